"""The correction and the norm as functions, without an optimizer."""

import functools
import math

import keras
import numpy as np
import pytest

from keras_adanorm import correct_norm
from keras_adanorm.engine.norms import l2_norm, l2_norms
from tests.support.optimizers import BACKEND, floatx, tensorflow_only, to_numpy
from tests.support.reference import norm_correction

SHAPES = ((), (1,), (7,), (3, 4), (2, 3, 2), (2, 1, 3, 2), (2, 1, 2, 1, 3))
DTYPES = ("float16", "bfloat16", "float32", "float64")
# From the smallest normal number to the largest, far beyond where a square is finite.
EXTREMES = {
    "float32": (1.2e-38, 1e-30, 1e-23, 1e-19, 1e-12, 1.0, 1e12, 1.9e19, 1e30, 3.4e38),
    "float64": (2.3e-308, 1e-200, 1e-160, 1e-120, 1.0, 1e120, 1.5e154, 1e200, 1.7e308),
}


def tensor(value, dtype="float32"):
    return keras.ops.convert_to_tensor(np.asarray(value), dtype)


def correct(gradient, average, dtype="float32", **arguments):
    """`correct_norm` from arrays to arrays."""
    s, e = correct_norm(tensor(gradient, dtype), tensor(average, dtype), **arguments)
    assert keras.backend.standardize_dtype(s.dtype) == dtype
    assert keras.backend.standardize_dtype(e.dtype) == dtype
    return to_numpy(s), to_numpy(e)


@functools.cache
def compiled(function):
    """The function as the backend's compiler runs it."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    return function


# --- equations 3 and 4


def test_by_hand():
    s, e = correct([3.0, 4.0], 25.0, gamma=0.5)  # ||g|| = 5, e = 0.5 * 25 + 0.5 * 5
    assert e == 15.0
    np.testing.assert_allclose(s, [9.0, 12.0], rtol=1e-6)


@pytest.mark.parametrize(
    "given, told",
    (
        ({"gamma": 1.5}, r"`gamma` must be in the range \[0, 1\). Received: gamma=1.5"),
        ({"gamma": "x"}, "`gamma` must be in the range"),
        ({"gamma": None}, "`gamma` must be in the range"),
        ({"max_correction": 0.5}, "`max_correction` must be None or a finite number >= 1"),
        ({"average": None}, "`average` must be a scalar"),
        ({"average": np.ones(2, "float32")}, "`average` must be a scalar"),
    ),
    ids=repr,
)
def test_arguments_out_of_range(given, told):
    with pytest.raises(ValueError, match=told):
        correct_norm(**{"gradient": np.ones(2, "float32"), "average": np.float32(1), **given})


def test_a_norm_above_the_average_passes():
    s, e = correct([3.0, 4.0], 1.0, gamma=0.5)
    assert e == 3.0
    np.testing.assert_array_equal(s, np.float32([3.0, 4.0]))


def test_a_norm_equal_to_the_average_passes():
    s, e = correct([3.0, 4.0], 5.0, gamma=0.5)
    assert e == 5.0
    np.testing.assert_array_equal(s, np.float32([3.0, 4.0]))


@pytest.mark.parametrize("average", [0.0, 0.01, 100.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_rank_follows_the_reference(shape, average):
    g = np.random.default_rng(2).standard_normal(shape)
    with floatx("float64"):
        s, e = correct(g, average, "float64")
    expected_s, expected_e, fired = norm_correction(g, average, 0.95)
    np.testing.assert_allclose(s, expected_s, rtol=1e-14)
    np.testing.assert_allclose(e, expected_e, rtol=1e-14)
    assert s.shape == shape and e.shape == ()
    assert fired == (average == 100.0)


def test_the_corrected_gradient_has_the_norm_e():
    s, e = correct(np.arange(1.0, 7.0).reshape(2, 3), 30.0)
    assert np.linalg.norm(s) == pytest.approx(float(e), rel=1e-6)


def test_max_correction_bounds_the_ratio_and_not_the_average():
    s, e = correct([3.0, 4.0], 100.0, gamma=0.9, max_correction=2.0)
    np.testing.assert_allclose(s, [6.0, 8.0], rtol=1e-6)
    assert e == pytest.approx(90.5)


def test_max_correction_of_one_corrects_nothing():
    s, _ = correct([3.0, 4.0], 100.0, max_correction=1.0)
    np.testing.assert_array_equal(s, np.float32([3.0, 4.0]))


def test_gamma_zero_corrects_nothing():
    random = np.random.default_rng(3)
    for _ in range(20):
        g = random.standard_normal(5).astype("float32")
        s, e = correct(g, random.exponential(), gamma=0.0)
        np.testing.assert_array_equal(s, g)
        assert e == pytest.approx(np.linalg.norm(g), rel=1e-6)


# --- what the paper leaves open


def test_a_zero_gradient_stays_zero_while_the_average_decays():
    s, e = correct(np.zeros(3), 4.0, gamma=0.75)
    assert e == 3.0
    np.testing.assert_array_equal(s, np.zeros(3))


def test_a_zero_gradient_in_the_first_step():
    s, e = correct(np.zeros(3), 0.0)
    assert e == 0.0
    np.testing.assert_array_equal(s, np.zeros(3))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("gamma", [0.0, 0.95])
def test_a_norm_that_is_not_finite_is_forgotten(bad, gamma):
    s, e = correct([1.0, bad, 2.0], 100.0, gamma=gamma)
    assert e == 100.0
    np.testing.assert_array_equal(s, np.float32([1.0, bad, 2.0]))


@pytest.mark.parametrize("average", [0.0, 1e-30, 1.0, 1e30, 3.4e38])
@pytest.mark.parametrize("size", [1e-45, 1e-40, *EXTREMES["float32"]])
def test_extremes_stay_finite(size, average):
    s, e = correct([size, -size / 2, 0.0], average)
    assert np.isfinite(s).all() and np.isfinite(e)
    assert s[2] == 0


@pytest.mark.parametrize("max_correction", [None, 10.0])
def test_a_ratio_beyond_the_largest_number(max_correction):
    s, e = correct([1e-30, 0.0], 1e30, max_correction=max_correction)
    assert np.isfinite(s).all() and e == pytest.approx(9.5e29)
    bound = float(np.finfo("float32").max) if max_correction is None else max_correction
    assert s[0] == pytest.approx(bound * 1e-30, rel=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_average_never_overflows(dtype):
    """Not even where the rounded gamma and 1 - gamma add up to more than one."""
    largest = np.finfo(dtype).max
    gammas = [0.1, 0.3, 0.6, 0.8, 0.9, 0.95, 0.99, 0.999, *np.linspace(0.01, 0.98, 40)]
    with floatx(dtype):
        for gamma in gammas:
            s, e = correct([largest, largest], largest, dtype, gamma=float(gamma))
            assert np.isfinite(e), gamma
            assert np.isfinite(s).all(), gamma


def test_the_scale_of_the_gradients_does_not_matter():
    """Equations 3 and 4 are homogeneous: without overflow, also where the squares have one."""
    g = np.random.default_rng(4).standard_normal(6).astype("float32")
    s, e = correct(g, 20.0)
    for exponent in (-100, -70, 70, 110):
        unit = 2.0**exponent
        scaled_s, scaled_e = correct(g * np.float32(unit), 20.0 * unit)
        np.testing.assert_allclose(scaled_s / unit, s, rtol=1e-6)
        np.testing.assert_allclose(scaled_e / unit, e, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_left(dtype):
    g = tensor(np.full(300, 300.0), dtype)  # the norm, 5196, and its square are beyond float16
    s, e = correct_norm(g, tensor(1e6), gamma=0.5)
    assert keras.backend.standardize_dtype(s.dtype) == "float32"
    norm = np.linalg.norm(to_numpy(g).astype("float64"))
    assert to_numpy(e) == pytest.approx(0.5e6 + 0.5 * norm, rel=1e-6)
    assert np.linalg.norm(to_numpy(s)) == pytest.approx(float(to_numpy(e)), rel=1e-5)


def test_the_arguments_are_not_written_to():
    g, average = tensor([3.0, 4.0]), tensor(25.0)
    correct_norm(g, average)
    np.testing.assert_array_equal(to_numpy(g), np.float32([3.0, 4.0]))
    assert to_numpy(average) == 25.0


# --- the norm


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_l2_norm_of_any_rank_and_dtype(shape, dtype):
    with floatx("float64" if dtype == "float64" else "float32"):
        x = tensor(np.random.default_rng(5).standard_normal(shape), dtype)
        norm = l2_norm(x)
        wide = "float64" if dtype == "float64" else "float32"
        assert keras.backend.standardize_dtype(norm.dtype) == wide
        expected = np.linalg.norm(to_numpy(x).astype("float64"))
        assert to_numpy(norm) == pytest.approx(expected, rel=4 * float(np.finfo(wide).eps))


def test_a_norm_that_is_known_is_not_computed():
    s, e = correct_norm(tensor([3.0, 4.0]), tensor(25.0), gamma=0.5, norm=tensor(10.0))
    np.testing.assert_allclose(to_numpy(e), 17.5)
    np.testing.assert_allclose(to_numpy(s), [5.25, 7.0])


@pytest.mark.parametrize(
    ("dtype", "size"), [(dtype, size) for dtype in EXTREMES for size in EXTREMES[dtype]]
)
@pytest.mark.parametrize("compiler", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_l2_norm_of_extremes(dtype, size, compiler):
    x = np.array([size, -size, 0.5 * size, 0.0], dtype)
    largest = float(np.finfo(dtype).max)
    with floatx(dtype):
        norm = float(to_numpy(compiler(l2_norm)(tensor(x, dtype))))
    expected = float(x[0]) * min(1.5, largest / float(x[0]))
    assert norm == pytest.approx(expected, rel=1e-6)


# A compiled sum is one of blocks of 16 and of 8, where the length can be divided so: these are a
# power of 2, a length with an odd rest, a prime number and one whose blocks are a prime number.
LENGTHS = (2**15, 2**15 - 1, 40_009, 16 * 2_503, 33)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("compiler", [lambda f: f, compiled], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_l2_norm_of_a_long_vector(length, compiler, dtype):
    with floatx(dtype):
        norm_of = compiler(l2_norm)
        x = np.random.default_rng(6).standard_normal(length).astype(dtype)
        tolerance = {"float32": 1e-5, "float64": 1e-13}[dtype]
        huge, tiny = {"float32": (1e35, 1e-35), "float64": (1e290, 1e-290)}[dtype]
        for unit in (1.0, huge, tiny):
            scaled = x * np.asarray(unit, dtype)
            expected = np.linalg.norm(scaled.astype("longdouble"))
            norm = to_numpy(norm_of(tensor(scaled, dtype)))
            assert norm == pytest.approx(float(expected), rel=tolerance), unit
        for index in (0, length - 1):  # no element is left out
            one = np.zeros(length, dtype)
            one[index] = 3.0
            assert to_numpy(norm_of(tensor(one, dtype))) == pytest.approx(3.0)


@pytest.mark.parametrize("length", [4, 2**15])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_l2_norm_is_not_finite_where_the_tensor_is_not(length, bad, dtype):
    x = np.full(length, 1.0, dtype)
    x[1] = bad
    with floatx(dtype):
        assert not np.isfinite(to_numpy(l2_norm(tensor(x, dtype))))
        x[2] = np.finfo(dtype).max
        assert not np.isfinite(to_numpy(l2_norm(tensor(x, dtype))))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_l2_norm_of_nothing_is_zero(dtype):
    with floatx(dtype):
        assert to_numpy(l2_norm(tensor(np.zeros((0, 3)), dtype))) == 0
        assert to_numpy(l2_norm(tensor(np.zeros((2, 3)), dtype))) == 0


@tensorflow_only
def test_l2_norm_sums_repeated_rows_first():
    import tensorflow as tf

    rows = tf.IndexedSlices(tf.constant([[3.0], [1.0], [-3.0]]), [2, 0, 2], [4, 1])
    assert to_numpy(l2_norm(rows)) == 1.0


@pytest.mark.parametrize("compiler", [lambda f: f, compiled], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms_of_a_list_are_those_of_its_tensors(dtype, compiler):
    units = (0.0, 1.0, np.inf, np.nan, *EXTREMES[dtype])
    with floatx(dtype):
        tensors = [tensor([unit, -unit], dtype) for unit in units] + [
            tensor(np.zeros((0, 2)), dtype)
        ]
        norms = to_numpy(compiler(lambda *some: l2_norms(list(some), dtype))(*tensors))
    for unit, norm in zip(units, norms, strict=False):
        if math.isfinite(unit):
            largest = float(np.finfo(dtype).max)
            expected = min(unit, largest / 2**0.5) * 2**0.5
            assert norm == pytest.approx(expected, rel=1e-6)
        else:
            assert not math.isfinite(norm)
    assert norms[-1] == 0
