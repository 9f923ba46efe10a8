"""The L2 norms of gradients, free of overflow and underflow, and how TensorFlow takes them.

JAX and torch have a file each, `jax_norms.py` and `torch_norms.py`: neither can be imported without
its backend.
"""

import functools

import keras
import numpy as np
from keras import ops

from keras_adanorm import execution
from keras_adanorm.engine import precision, private

# XLA on a CPU sums a vector with more elements than this in a slower way.
_SHORT = 32
# In a graph of TensorFlow, work on a tensor with fewer elements than this costs less than a branch
# that would save the work.
SMALL = 2**14


def l2_norm(tensor):
    """The L2 norm of a tensor of any rank, `sqrt(sum(x ** 2))`, over all its elements.

    A finite tensor gives a finite norm, held at the dtype's largest number if it lies beyond, and
    a norm of 0 only if all elements are 0 (or subnormal, which most hardware takes for 0).

    Args:
        tensor: Floating point tensor of any shape.

    Returns:
        A scalar tensor, float64 for a float64 tensor, else float32.
    """
    tensor = precision.to_compute_dtype(tensor)
    return l2_norms([tensor], keras.backend.standardize_dtype(tensor.dtype))[0]


def l2_norms(tensors, dtype):
    """The L2 norm of each tensor, a vector.

    Args:
        tensors: Non-empty list of float32 and float64 tensors.
        dtype: The dtype of the result, "float32" or "float64".
    """
    backend = keras.backend.backend()
    if backend == "torch":
        from keras_adanorm.engine.torch_norms import torch_norms as norms
    elif backend == "jax":
        from keras_adanorm.engine.jax_norms import jax_norms as norms
    elif private.is_compiled_by_xla():
        norms = _tensorflow_norms_under_xla
    else:
        norms = _tensorflow_norms
    return norms(tensors, dtype)


def _hold(norm, dtype):
    """The norm, a finite one held at the largest number of a dtype."""
    return ops.where(ops.isfinite(norm), precision.minimum(norm, precision.largest(dtype)), norm)


# ---------------------------------------------------------------- TensorFlow, without a compiler


def _tensorflow_norms(tensors, dtype):
    """One operation per tensor. A norm whose squares left the range of the dtype is taken again."""
    import tensorflow as tf

    dtypes = [tensor.dtype.name for tensor in tensors]
    if private.watches_numbers():  # where a sum overflows, a numeric debugger would stop
        norms = [_wide_norm(tensor) for tensor in tensors]
    elif tf.executing_eagerly():
        halves = [tf.raw_ops.L2Loss(t=tensor) for tensor in tensors]
        values = np.array([float(half) for half in halves])
        norms = np.sqrt(2 * values)
        for i in np.flatnonzero(~_is_safe(values, dtypes)):
            norms[i] = _wide_norm(tensors[i])
    else:
        norms = _norms_in_graph(tensors)
    norms = tf.convert_to_tensor(norms, tf.float64)
    if "float32" in dtypes:
        limits = [precision.largest(name) for name in dtypes]
        norms = tf.where(tf.math.is_finite(norms), tf.minimum(norms, limits), norms)
    return tf.cast(norms, dtype)


def _is_safe(half_squared_norm, dtypes):
    lower, upper = np.array([_safe_range(name) for name in dtypes]).T
    return (half_squared_norm >= lower) & (half_squared_norm <= upper)


@functools.cache
def _safe_range(dtype):
    """Between which numbers half a sum of squares has lost nothing to underflow or overflow."""
    limits = np.finfo(dtype)
    return limits.tiny / np.float64(limits.eps) ** 2, float(limits.max) / 2


def _norms_in_graph(tensors):
    """Squares of small tensors are summed in float64, which needs no branch; others are checked."""
    import tensorflow as tf

    norms = []
    for tensor in tensors:
        if tensor.dtype == tf.float32 and is_small(tensor):
            half = tf.raw_ops.L2Loss(t=tf.cast(tensor, tf.float64))
            norms.append(tf.sqrt(half + half))
        else:
            norms.append(_checked_norm(tensor.dtype)(tensor))
    return tf.stack(norms)


@functools.cache
def _checked_norm(dtype):
    """A function that all graphs share. It reads its argument and nothing else."""
    import tensorflow as tf

    def norm(tensor):
        half = tf.cast(tf.raw_ops.L2Loss(t=tensor), tf.float64)
        is_safe = tf.reduce_all(_is_safe(half[tf.newaxis], [dtype.name]))
        return tf.cond(
            is_safe,
            lambda: tf.sqrt(half + half),
            lambda: tf.cast(_wide_norm(tensor), tf.float64),
        )

    return shared_function(norm, [tf.TensorSpec(None, dtype)])


def shared_function(function, signature):
    """A `tf.function` that is traced once, and that each graph calls without a copy of it."""
    import tensorflow as tf

    return tf.function(
        function,
        input_signature=signature,
        autograph=False,
        experimental_attributes={"_noinline": True},
    )


def is_small(tensor):
    """Whether a tensor is known to be so small that a branch costs more than work on it."""
    size = tensor.shape.num_elements()
    return size is not None and size < SMALL


def _wide_norm(tensor):
    """The norm of a TensorFlow tensor as float64, where its squares may leave its dtype's range."""
    import tensorflow as tf

    if tensor.dtype == tf.float32:
        return tf.sqrt(tf.reduce_sum(tf.square(tf.cast(tensor, tf.float64))))
    return _scaled_norm(tf.reshape(tensor, [-1]))


# ---------------------------------------------------------------- TensorFlow, compiled by XLA


def _tensorflow_norms_under_xla(tensors, dtype):
    import tensorflow as tf

    norms = []
    for tensor in tensors:
        flat = tf.reshape(tensor, [-1])
        if tensor.dtype == tf.float32:
            squares = tf.square(tf.cast(flat, tf.float64))
            on_cpu = execution.target() == "cpu"
            total = _sum_in_blocks(squares) if on_cpu else tf.reduce_sum(squares)
            norm = _hold(tf.sqrt(total), "float32")
        else:
            norm = _scaled_norm(flat)
        norms.append(tf.cast(norm, dtype))
    return tf.stack(norms)


def _scaled_norm(flat):
    """The norm of the tensor divided by its largest element, times that element.

    It never leaves the range of the dtype, but the tensor is read twice.
    """
    largest = precision.largest(flat.dtype)
    peak = ops.max(ops.abs(flat), initial=0.0)
    # The reciprocal of a number near the largest is subnormal, which a compiler may take for 0.
    scale = precision.minimum(peak, largest / 64)
    scaled = flat / ops.where(scale > 0, scale, ops.ones_like(scale))
    root = ops.sqrt(ops.sum(scaled * scaled))
    # `scale * root`, held at the largest number without an overflow on the way.
    limit = largest / precision.maximum(scale, 1.0)
    norm = ops.where(root > limit, largest, scale * ops.where(root > limit, limit, root))
    # An Inf or NaN in the tensor stays one in the norm; XLA's maximum may have lost the NaN.
    return ops.where(ops.isfinite(peak), norm, peak)


def _sum_in_blocks(squares):
    """The sum of numbers not below 0, for XLA on a CPU, which sums a long vector slowly.

    Blocks are summed first, then blocks of these sums, then what is left. With a third level XLA
    would put everything into one loop, which runs on one core.
    """
    for longest in (16, 8):
        size = squares.shape[0]
        if size is not None and size > _SHORT:
            block = max(n for n in range(1, longest + 1) if size % n == 0)
            # `abs` changes nothing. Without it XLA would join this sum with the next one.
            squares = ops.abs(ops.sum(ops.reshape(squares, (-1, block)), axis=1))
    return ops.sum(squares)
