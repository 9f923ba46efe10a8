"""The dtypes of the arithmetic: at least float32, whatever the dtype of a variable."""

import functools
import math
import numbers

import keras
import numpy as np
from keras import ops

from keras_adanorm.engine import private

# How far 1 minus a rounded decay may be from 1 minus the decay, as a part of it.
ROUNDING = 2e-5


def compute_dtype(dtype):
    """The dtype in which a variable of `dtype` is updated: float64 for float64, else float32.

    In bfloat16 0.999 is 1, and in float16 1e-8 is 0: neither can hold an optimizer's state.
    """
    return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"


def as_tensor(value):
    """The value (a variable, an array, a number) as a tensor, a variable as it stands now."""
    if keras.backend.backend() == "tensorflow":  # there `ops` takes a variable for a tensor
        import tensorflow as tf

        return tf.convert_to_tensor(value)
    return ops.convert_to_tensor(value)


def to_dtype(value, dtype):
    """The value as a tensor of a dtype; unchanged where it is one."""
    if isinstance(value, numbers.Real):  # `ops.cast` takes it through float32
        return ops.convert_to_tensor(float(value), dtype)
    tensor = as_tensor(value)
    if keras.backend.standardize_dtype(tensor.dtype) == dtype:
        return tensor
    return ops.cast(tensor, dtype)


def to_compute_dtype(tensor):
    """The tensor (a variable, an array) as a dense tensor in its compute dtype."""
    tensor = as_tensor(dense(tensor))
    return to_dtype(tensor, compute_dtype(tensor.dtype))


def dense(tensor):
    """The tensor without sparse storage, an embedding's gradient with its repeated rows summed."""
    if tensor is None:
        return None
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        if isinstance(tensor, tf.IndexedSlices):
            return tf.convert_to_tensor(tensor)
        if isinstance(tensor, tf.SparseTensor):
            return tf.sparse.to_dense(tf.sparse.reorder(tensor))
    elif backend == "torch":
        if getattr(tensor, "is_sparse", False):
            return tensor.to_dense()
    elif backend == "jax" and hasattr(tensor, "todense"):
        return tensor.todense()
    return tensor


def is_complex(dtype):
    """Whether a dtype, of any library, is one of complex numbers."""
    return "complex" in str(getattr(dtype, "name", dtype))


def number(value):
    """A number or `None` as it is; of a variable or tensor the number in it.

    While it is recorded, a variable or tensor stays a tensor.

    Decays and epsilons may be set to a variable, as with `keras.optimizers.Adam`.
    """
    if value is None or isinstance(value, numbers.Real):
        return value
    tensor = as_tensor(value)
    backend = keras.backend.backend()
    if backend == "tensorflow" and not hasattr(tensor, "numpy"):
        return tensor
    if backend == "jax" and private.is_traced_by_jax(tensor):
        return tensor
    return ops.convert_to_numpy(tensor).item()


def is_zero(value):
    """Whether this is the number 0. Of a tensor that is being recorded nobody knows."""
    return isinstance(value, numbers.Real) and value == 0


def rounded(decay, dtype):
    """The decay of an average as it is in a compute dtype.

    Rounding a decay near 1 hardly changes it, but it changes `1 - decay`, the weight of a new
    value, by much more. So all that belongs to an average is computed from this one number: its
    decay, the weight of a new value and the correction for bias. A decay so close to 1 that
    rounding would change `1 - decay` by more than a part of `ROUNDING` stays as it is.
    """
    if type(decay) is not float:
        decay = number(decay)
        if not isinstance(decay, numbers.Real):
            return to_dtype(decay, dtype)
    return _rounded(decay, dtype)


@functools.lru_cache(1024)
def _rounded(decay, dtype):
    nearest = float(np.dtype(dtype).type(decay))
    return nearest if abs((1 - nearest) / (1 - decay) - 1) <= ROUNDING else decay


def largest(dtype):
    """The largest finite number of a compute dtype, as a Python float."""
    return float(np.finfo(keras.backend.standardize_dtype(dtype)).max)


def square_limit(dtype):
    """The largest number of which the square is at most half the dtype's largest number."""
    return math.sqrt(0.5 * largest(dtype)) * (1 - 1e-6)


def operations(*values):
    """The module `torch` if these are tensors of torch, else `keras.ops`.

    Many functions have the same name in both. On small tensors those of torch take a fraction of
    the time.
    """
    if keras.backend.backend() == "torch":
        import torch

        if all(isinstance(value, torch.Tensor) for value in values):
            return torch
    return ops


def minimum(tensor, number):
    """The elementwise minimum with a Python number, in the tensor's own dtype; NaN stays NaN.

    `ops.minimum` takes float64 to float32 on torch (Keras 3.15).
    """
    if operations(tensor) is not ops:
        return tensor.clamp(max=number)
    return ops.where(tensor > number, ops.convert_to_tensor(number, tensor.dtype), tensor)


def maximum(tensor, number):
    """The elementwise maximum with a Python number, in the tensor's own dtype; NaN stays NaN."""
    if operations(tensor) is not ops:
        return tensor.clamp(min=number)
    return ops.where(tensor < number, ops.convert_to_tensor(number, tensor.dtype), tensor)


def clip(tensor, number):
    """The tensor of floats held between `-number` and `number`; NaN stays NaN."""
    if keras.backend.backend() == "torch":
        return tensor.clamp(-number, number)
    if keras.backend.backend() == "jax":
        import jax

        # One operation; those of `jax.numpy` are functions, which take longer to trace.
        limit = np.asarray(number, tensor.dtype)
        return jax.lax.clamp(-limit, tensor, limit)
    return ops.clip(tensor, -number, number)
