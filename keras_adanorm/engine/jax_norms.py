"""The L2 norms of a list of JAX arrays, free of overflow and underflow, each read once.

A norm comes from one of three sums of squares, of `x * 2^-k`, `x` and `x * 2^k`: the one whose
terms are in the dtype's range. A compiler computes all three in one read. What a sum can't hold is
clipped before it is squared, so that no Inf arises from finite numbers.

On a CPU, where a program is compiled for float32, the squares are added up in float64 instead.
"""

import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_adanorm import execution
from keras_adanorm.engine import private
from keras_adanorm.engine.stacks import MAX_OPERANDS, SMALL, positions_by_kind

# 2^k is the scale. A sum is used below 2^limit; its terms are clipped there. Up to 2^31 terms of
# this size are still in range.
_SCALE = {"float32": 80, "float64": 540}
_LIMIT = {"float32": 96, "float64": 960}
# Partial sums of a large gradient on a GPU. A second kernel adds up those of all gradients.
_PARTS = 256
# XLA on a CPU compiles one kernel for a sum of so many elements, but three for one of fewer. What
# small variables cost is to compile them.
_FOR_ONE_KERNEL = 4096
# On a CPU fewer small arrays than these are not put together: that takes longer to compile.
_MANY = 16


def jax_norms(tensors, dtype):
    """The L2 norm of each array, a vector of a dtype."""
    if any(map(private.is_traced_by_jax, tensors)):
        return _norms_with_derivative(tensors, dtype)
    return _norms(tensors, dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _norms_with_derivative(tensors, dtype):
    """The norms, for a program that may be differentiated, as in meta-learning."""
    return _norms(tensors, dtype)


@_norms_with_derivative.defjvp
def _derivative(dtype, primals, tangents):
    """`d||g|| = <g / ||g||, dg>`, and 0 where the norm is 0; no sum of squares is differentiated"""
    (tensors,), (moves,) = primals, tangents
    norms = _norms_with_derivative(tensors, dtype)
    changes = []
    for i, (tensor, move) in enumerate(zip(tensors, moves, strict=True)):
        norm = norms[i].astype(tensor.dtype)
        direction = tensor / jnp.where(norm == 0, jnp.ones_like(norm), norm)
        changes.append(jnp.sum(direction * move).astype(dtype))
    return norms, jnp.stack(changes)


def _norms(tensors, dtype):
    by_dtype = {}
    for i, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype.name, []).append(i)
    norms, order = [], []
    for name, positions in by_dtype.items():
        norms.append(_norms_of_one_dtype([tensors[i] for i in positions], name).astype(dtype))
        order += positions
    return norms[0] if len(norms) == 1 else jnp.concatenate(norms)[np.argsort(order)]


def _norms_of_one_dtype(tensors, dtype):
    if private.is_traced_by_jax(tensors[0]) and keras_has_one_device():
        if execution.target() == "gpu":
            return _norms_of_sums(_sums_in_few_kernels(tensors, _scales(dtype)), dtype)
        if execution.target() == "tpu":
            return _norms_of_sums(_sums_for_a_tpu(tensors, _scales(dtype)), dtype)
        if execution.target() == "cpu" and dtype == "float32":
            return _norms_by_float64(tensors)
    return _norms_of_sums(_sums_one_by_one(tensors, _scales(dtype)), dtype)


def keras_has_one_device():
    """Whether no distribution of Keras lays arrays out over devices: a stack would move them."""
    return keras.distribution.distribution() is None


def _scales(dtype):
    """2^-k and 2^k, hidden from XLA, which may make `(x * c) * (x * c)` a `(x * x) * (c * c)`."""
    k = _SCALE[dtype]
    scales = tuple(jnp.asarray(2.0**power, dtype) for power in (-k, k))
    return jax.lax.optimization_barrier(scales)


def _scaled_squares(x, scales):
    """The squares at the three scales, clipped at 2^limit."""
    dtype = x.dtype.name
    largest = 2.0 ** (_LIMIT[dtype] / 2)
    small = largest * 2.0 ** -_SCALE[dtype]
    return [
        jnp.square(x * scales[0]),
        jnp.square(jnp.clip(x, -largest, largest)),
        jnp.square(jnp.clip(x, -small, small) * scales[1]),
    ]


def _norms_of_sums(sums, dtype):
    large, plain, small = sums
    k, limit = _SCALE[dtype], 2.0 ** _LIMIT[dtype]
    # The root of the largest number at the smallest scale: what is larger is held there.
    held = jnp.minimum(jnp.sqrt(large), float(np.finfo(dtype).max) * 2.0**-k)
    # An Inf or NaN in the array makes the sum of the smallest scale one.
    beyond = jnp.where(jnp.isfinite(large), held * 2.0**k, large)
    norm = jnp.where(plain < limit, jnp.sqrt(plain), beyond)  # false where it is NaN
    return jnp.where(small < limit, jnp.sqrt(small) * 2.0**-k, norm)


def _sums_for_a_tpu(tensors, scales):
    """Small vectors of one length as rows. The others as they are: a reshape is a copy there."""
    order, sums = [], []
    for group in positions_by_kind([x.shape for x in tensors], SMALL, MAX_OPERANDS):
        if tensors[group[0]].ndim == 1 and len(group) > 1:
            rows = jnp.stack([tensors[i] for i in group])
            sums.append([jnp.sum(x, axis=1) for x in _scaled_squares(rows, scales)])
        else:
            sums.append(_sums_one_by_one([tensors[i] for i in group], scales))
        order += group
    return _in_order(sums, order)


def _in_order(sums, order):
    """Vectors of the sums at each scale, from parts of them in another order."""
    back = np.argsort(order)
    return [jnp.concatenate(of_scale)[back] for of_scale in zip(*sums, strict=True)]


def _sums_one_by_one(tensors, scales):
    """A full sum of each array in its own shape."""
    of_each = [_sums_of_one(x, scales) for x in tensors]
    return [jnp.stack(of_scale) for of_scale in zip(*of_each, strict=True)]


@functools.partial(jax.jit, inline=True)
def _sums_of_one(x, scales):
    """One program for each shape, where JAX runs eagerly, and not one for each operation."""
    return [jnp.sum(squares) for squares in _scaled_squares(x, scales)]


def _sums_in_few_kernels(tensors, scales):
    """GPU: small arrays of one shape as rows; partial sums of large ones, added up at once."""
    order, sums, partial = [], [], []
    for group in positions_by_kind([x.shape for x in tensors], SMALL, MAX_OPERANDS):
        first = tensors[group[0]]
        if first.size < SMALL:
            rows = jnp.stack([tensors[i].reshape(-1) for i in group])
            order += group
            sums.append([jnp.sum(x, axis=1) for x in _scaled_squares(rows, scales)])
        else:
            flat = jnp.pad(first.reshape(-1), (0, -first.size % _PARTS))
            rows = _scaled_squares(flat.reshape(_PARTS, -1), scales)
            partial.append((group[0], [jnp.sum(x, axis=1) for x in rows]))
    for start in range(0, len(partial), MAX_OPERANDS):
        part = partial[start : start + MAX_OPERANDS]
        order += [i for i, _ in part]
        of_scales = zip(*(sums_of_one for _, sums_of_one in part), strict=True)
        sums.append([jnp.sum(jnp.stack(of_scale), axis=1) for of_scale in of_scales])
    return _in_order(sums, order)


def _norms_by_float64(tensors):
    """CPU: one sum in float64, in which squares of float32 neither overflow nor underflow."""
    with private.jax_in_64_bits():
        sums, order = [], []
        for group in positions_by_kind([x.shape for x in tensors], SMALL, MAX_OPERANDS):
            if len(group) < _MANY:
                sums += [jnp.sum(_wide_squares(_matrix(tensors[i]))).reshape(1) for i in group]
            else:
                sums.append(jnp.sum(_wide_squares(_rows([tensors[i] for i in group])), axis=1))
            order += group
        # JAX before 0.5 can't compare signed positions here in a loop, to see which are negative.
        squared = jnp.concatenate(sums)[np.argsort(order).astype("uint32")]
        # JAX before 0.5 has no constant in float64 where the rest of the program has no float64.
        largest = jnp.full(squared.shape, np.finfo("float32").max, "float32")
        largest = jax.lax.convert_element_type(largest, jnp.float64)
        held = jax.lax.min(squared, largest * largest)
        squared = jnp.where(jnp.isfinite(squared), held, squared)
        # The root comes last: XLA computes it once and keeps it. What comes after it, it would
        # compute again inside of each variable's update.
        return jax.lax.convert_element_type(jnp.sqrt(squared), jnp.float32)


def _wide_squares(tensor):
    return jnp.square(jax.lax.convert_element_type(tensor, jnp.float64))


def _rows(tensors):
    """Small arrays of one shape as the rows of a matrix that is large enough."""
    rows = jnp.stack([tensor.reshape(-1) for tensor in tensors])
    return _filled_up(rows, -(-_FOR_ONE_KERNEL // len(tensors)) - rows.shape[1])


def _matrix(tensor):
    """The array, a small one as a matrix that is large enough."""
    if tensor.size >= SMALL:
        return tensor
    flat = tensor.reshape(-1)
    return _filled_up(flat, -flat.size % _FOR_ONE_KERNEL).reshape(64, -1)


def _filled_up(tensor, count):
    """The array with zeros added at the end of its last axis."""
    # `jnp.pad` has an integer constant, which JAX before 0.5 takes for one of 64 bits.
    around = [(0, 0, 0)] * (tensor.ndim - 1) + [(0, max(count, 0), 0)]
    return jax.lax.pad(tensor, np.zeros((), tensor.dtype), around)


def scalars_of(vector):
    """The elements of a vector of numbers not below 0, as a list of scalars.

    XLA on a CPU takes an element in the kernel that uses it, and compiles kernels that are the same
    only once. So an element's position is read from a constant at a place that XLA does not know:
    variables of one shape then have one kernel. That place is always 0.
    """
    if not private.is_traced_by_jax(vector) or execution.target() != "cpu":
        return keras.ops.unstack(vector)
    place = (vector[0] < 0).astype("uint32")
    scalars = []
    for i in range(vector.shape[0]):
        position = jax.lax.dynamic_slice(np.array([i, 0], "uint32"), (place,), (1,))
        scalars.append(jax.lax.dynamic_slice(vector, (position[0],), (1,))[0])
    return scalars
