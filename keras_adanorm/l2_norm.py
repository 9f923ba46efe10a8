"""The L2 norm of a gradient, free of overflow and underflow, in one pass over memory."""

import keras
import numpy as np
from keras import ops

from keras_adanorm import precision

# A compiler (XLA on a CPU) adds the squares of a long vector one after the other, on one core. In
# this many rows it can work on several at a time, and in each add this many squares at once.
_ROWS, _LANES = 16, 8
_LONG = 2**15


def l2_norm(tensor):
    """The L2 norm of a tensor of any rank, `sqrt(sum(x ** 2))`, over all its elements.

    A finite tensor gives a finite norm, held at the dtype's largest number if it lies beyond, and
    a norm of 0 only if all elements are 0 (or subnormal, which most hardware takes for 0).

    Args:
        tensor: Floating point tensor of any shape, or a `TensorList`.

    Returns:
        A scalar tensor, float64 for a float64 tensor, else float32; for a `TensorList` a vector
        with the norm of each of its tensors.
    """
    if hasattr(tensor, "l2_norms"):
        return tensor.l2_norms()
    tensor = precision.to_compute_dtype(tensor)
    flat = ops.reshape(tensor, (-1,))
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    wide = dtype == "float32" and keras.backend.backend() == "tensorflow"
    exact_norm = _wide_norm if wide else _scaled_norm
    if _is_short(flat) or _branches_are_slow() or (wide and not is_compiled_by_xla()):
        return exact_norm(flat)
    squared_norm = _sum_of_squares(flat)
    limits = np.finfo(dtype)
    safe = ops.logical_and(
        squared_norm >= float(limits.tiny / limits.eps**2), squared_norm <= float(limits.max)
    )
    return _cond(safe, lambda: ops.sqrt(squared_norm), lambda: exact_norm(flat))


def _cond(predicate, if_true, if_false):
    if keras.backend.backend() == "jax":
        import jax

        if not isinstance(predicate, jax.core.Tracer):  # else compiled anew at every call
            return if_true() if predicate else if_false()
    return ops.cond(predicate, if_true, if_false)


def _wide_norm(flat):
    """The norm by way of float64, in which squares of float32 neither overflow nor underflow."""
    norm = ops.sqrt(ops.sum(ops.square(ops.cast(flat, "float64"))))
    largest = precision.largest(flat.dtype)
    norm = ops.where(ops.isfinite(norm), precision.minimum(norm, largest), norm)
    return ops.cast(norm, flat.dtype)


def _scaled_norm(flat):
    """The norm by way of the largest element: exact in range, but twice through memory."""
    largest = precision.largest(flat.dtype)
    peak = ops.max(ops.abs(flat), initial=0.0)
    # The reciprocal of a number near the largest is subnormal, which a compiler may take for 0.
    scale = precision.minimum(peak, largest / 64)
    scaled = flat / ops.where(scale > 0, scale, ops.ones_like(scale))
    norm = scale * ops.sqrt(ops.sum(scaled * scaled))
    # An Inf or NaN in the tensor stays one in the norm; XLA's maximum may have lost the NaN.
    return ops.where(ops.isfinite(peak), precision.minimum(norm, largest), peak)


def _sum_of_squares(flat):
    size = flat.shape[0]
    if not is_compiled_by_xla():
        return ops.sum(flat * flat)
    body = size - size % (_ROWS * _LANES)
    blocks = ops.reshape(flat[:body], (_ROWS, _LANES, -1))
    squares = [blocks[:, i] * blocks[:, i] for i in range(_LANES)]
    while len(squares) > 1:
        squares = [a + b for a, b in zip(squares[::2], squares[1::2], strict=True)]
    total = ops.sum(ops.sum(squares[0], axis=1))
    return total + ops.sum(flat[body:] * flat[body:]) if body < size else total


def _branches_are_slow():
    """Whether asking for a value costs more than a second pass: a GPU would have to wait for it."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend() != "cpu"
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return any(device.device_type != "CPU" for device in tf.config.list_logical_devices())
    return False


def _is_short(flat):
    return flat.shape[0] is None or flat.shape[0] < _LONG


def is_compiled_by_xla():
    """Whether the operations being recorded go to XLA as one program. Only speed depends on it."""
    if keras.backend.backend() == "jax":
        # A tensor that is spread over devices is summed where it lies: leave its shape alone.
        return keras.distribution.distribution() is None
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        return False
    return not tf.executing_eagerly() and GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )
