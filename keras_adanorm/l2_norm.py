"""The L2 norm of a gradient, free of overflow and underflow, in one pass over memory."""

import keras
import numpy as np
from keras import ops

from keras_adanorm import precision
from keras_adanorm.execution import has_accelerator, is_compiled_by_xla

# XLA on a CPU adds up a vector with more elements than this by another, slower way.
_SHORT = 32


def l2_norm(tensor, one=None):
    """The L2 norm of a tensor of any rank, `sqrt(sum(x ** 2))`, over all its elements.

    A finite tensor gives a finite norm, held at the dtype's largest number if it lies beyond, and
    a norm of 0 only if all elements are 0 (or subnormal, which most hardware takes for 0).

    Args:
        tensor: Floating point tensor of any shape, or a `TensorList`.
        one: `None`, or a scalar tensor that is 1: the sum is not begun before it is there, which
            only matters to a compiler. Defaults to `None`.

    Returns:
        A scalar tensor, float64 for a float64 tensor, else float32; for a `TensorList` a vector
        with the norm of each of its tensors.
    """
    if hasattr(tensor, "l2_norms"):
        return tensor.l2_norms()
    tensor = precision.to_compute_dtype(tensor)
    flat = ops.reshape(tensor, (-1,))
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if dtype == "float32" and keras.backend.backend() == "tensorflow":
        return _wide_norm(flat, one)
    if keras.backend.backend() != "jax" or has_accelerator():
        return _scaled_norm(flat)
    squares = flat * flat
    squared_norm = ops.sum(squares if one is None else squares * one)
    limits = np.finfo(dtype)
    safe = ops.logical_and(
        squared_norm >= float(limits.tiny / limits.eps**2), squared_norm <= float(limits.max)
    )
    return _jax_cond(safe, lambda: ops.sqrt(squared_norm), lambda: _scaled_norm(flat))


def l2_norms_of_rows(matrix):
    """The L2 norm of each row of a float32 matrix as `l2_norm` takes it (TensorFlow only)."""
    return _narrow_root(ops.sum(ops.square(ops.cast(matrix, "float64")), axis=1))


def _jax_cond(predicate, if_true, if_false):
    import jax

    if not isinstance(predicate, jax.core.Tracer):  # else compiled anew at every call
        return if_true() if predicate else if_false()
    return jax.lax.cond(predicate, if_true, if_false)


def _wide_norm(flat, one):
    """The norm by way of float64, in which squares of float32 neither overflow nor underflow."""
    squares = ops.square(ops.cast(flat, "float64"))
    if one is not None:
        squares = squares * ops.cast(one, "float64")
    in_blocks = is_compiled_by_xla() and not has_accelerator()
    return _narrow_root(_sum_in_blocks(squares) if in_blocks else ops.sum(squares))


def _narrow_root(squared_norm):
    """The root of a float64 tensor as float32, a finite one held at the largest number there."""
    norm = ops.sqrt(squared_norm)
    largest = precision.largest("float32")
    norm = ops.where(ops.isfinite(norm), precision.minimum(norm, largest), norm)
    return ops.cast(norm, "float32")


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


def _sum_in_blocks(squares):
    """The sum of a vector of numbers not below 0, for XLA on a CPU: of blocks, of blocks of those.

    More levels than two, and XLA would make one loop of it all, on one core.
    """
    for longest in (16, 8):
        size = squares.shape[0]
        if size is not None and size > _SHORT:
            block = max(n for n in range(1, longest + 1) if size % n == 0)
            # Without `abs`, which changes nothing, XLA joins this sum with the next.
            squares = ops.abs(ops.sum(ops.reshape(squares, (-1, block)), axis=1))
    return ops.sum(squares)
