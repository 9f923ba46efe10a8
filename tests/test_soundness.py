"""Any gradient, any dtype, any hyperparameter: weights and state stay sound."""

import keras
import numpy as np
import pytest

from keras_adanorm import AdamNorm, DiffGrad
from tests.support.optimizers import (
    CLASSES,
    MODES,
    NORM_CLASSES,
    Run,
    algorithm,
    assert_finite,
    assert_same_state,
    every_class,
    floatx,
    run_beside_reference,
    swinging_gradients,
    to_numpy,
)
from tests.support.reference import Reference

HALF = ("float16", "bfloat16")


# --- zero gradients


@every_class
def test_zero_gradients(cls):
    """Zero always, at the start, after history, or in one coordinate only."""
    ones, zeros = np.array([1.0, -0.5]), np.zeros(2)
    streams = {
        "always": [zeros] * 6,
        "first": [zeros, zeros, ones, ones, ones, ones],
        "after": [ones, ones, ones, zeros, zeros, zeros],
        "in_part": [ones * [1, 0]] * 6,
    }
    gradients = [{name: stream[t] for name, stream in streams.items()} for t in range(6)]
    before = dict.fromkeys(streams, ones)
    for run, reference in run_beside_reference(cls(0.01, beta_2=0.8), before, gradients):
        assert_finite(run)
        assert_same_state(run, reference, atol=1e-6, rtol=1e-5)
        np.testing.assert_array_equal(run.params["always"], np.float32(ones))
        assert run.params["in_part"][1] == np.float32(-0.5)
        if reference.t > 3:  # the momentum goes on
            assert (run.params["after"] != before["after"]).all()
        before = run.params


@every_class
def test_no_variable_has_a_gradient(cls):
    """All zero at once, with epsilon 0 too: nothing is divided by zero."""
    run = Run(cls(0.01, epsilon=0.0, beta_2=0.8), {"w": np.ones((2, 3)), "s": np.ones(())})
    for size in (0.0, 0.0, 1.0, 0.0, 0.0):
        before = run.params
        run.step({"w": np.full((2, 3), size), "s": np.array(size)})
        assert_finite(run)
    assert (run.params["w"] != before["w"]).all()


# --- small and large gradients

SIZES = {
    "float16": (6e-8, 6e-5, 300.0, 6e4),
    "bfloat16": (1e-38, 1e-25, 1e25, 3e38),
    "float32": (1e-45, 1e-38, 1e-30, 1e-23, 1e-20, 1e19, 2e19, 1e30, 3.4e38),
    "float64": (1e-320, 1e-307, 1e-200, 1e-160, 1e155, 1e200, 1.7e308),
}


@pytest.mark.parametrize("dtype", SIZES)
@every_class
def test_gradients_beyond_the_root_of_the_range(cls, dtype):
    """Weights and state stay finite, and the average norm stays right."""
    sizes = {f"size_{i}": size for i, size in enumerate(SIZES[dtype])}
    with floatx("float64" if dtype == "float64" else "float32"):
        run = Run(cls(1e-9, beta_2=0.8), dict.fromkeys(sizes, np.ones(2)), dtype)
        e = dict.fromkeys(sizes, 0.0)
        wide = "float64" if dtype == "float64" else "float32"
        for factor in (1.0, -0.3, 0.0, 0.9, 1e-3, -1.0):
            gradients = {name: np.array([factor * size, 0.0], wide) for name, size in sizes.items()}
            run.step(gradients)
            assert_finite(run)
            for name in run.e:
                rounded = to_numpy(keras.ops.convert_to_tensor(gradients[name], dtype))
                e[name] = 0.95 * e[name] + 0.05 * float(abs(rounded[0]))
                tiny = float(np.finfo(wide).tiny)
                np.testing.assert_allclose(run.e[name], e[name], rtol=1e-5, atol=tiny)


@every_class
def test_one_huge_step_is_survived(cls):
    """Afterwards ordinary gradients move the weights again."""
    arguments = {"gamma": 0.5} if cls in NORM_CLASSES else {}
    run = Run(cls(0.01, beta_1=0.5, beta_2=0.5, **arguments), {"w": np.zeros(2)})
    for size in (1.0, 3e38, -3e38, *[1.0] * 160):
        run.step({"w": np.full(2, size)})
        assert np.isfinite(run.params["w"]).all()
    assert_finite(run)
    np.testing.assert_allclose(run.m["w"], 1.0, rtol=1e-3)


# --- gradients that are not finite


@every_class
def test_one_bad_number(cls):
    """It harms one coordinate for ever, as in Keras' Adam, and nothing else."""
    bad = {"nan": np.nan, "inf": np.inf, "minus_inf": -np.inf}
    shapes = dict.fromkeys([*bad, "other"], (3,))
    gradients = swinging_gradients(shapes, 6)
    for name, number in bad.items():
        gradients[1][name][1] = number
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    fired = dict.fromkeys(bad, False)
    for run, reference in run_beside_reference(cls(0.01, beta_2=0.8), params, gradients):
        for kind, values in run.state.items():
            for name, value in values.items():
                expected = np.asarray(getattr(reference, kind)[name])
                if name in bad and kind != "e":
                    value, expected = np.delete(value, 1), np.delete(expected, 1)
                assert np.isfinite(value).all(), (kind, name)
                np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-6)
        if reference.t > 2:
            fired = {name: fired[name] or reference.fired[name] for name in bad}
    assert set(fired.values()) == {cls in NORM_CLASSES}  # the correction was at work again


def test_keras_adam_loses_the_same_coordinate():
    run = Run(keras.optimizers.Adam(0.01), {"w": np.ones(3)})
    run.step({"w": np.array([1.0, np.nan, 1.0])})
    run.step({"w": np.ones(3)})
    np.testing.assert_array_equal(np.isfinite(run.params["w"]), [True, False, True])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_bad_number_in_a_long_variable(bad):
    """Where a compiler sums, and takes the maximum, in another way."""
    gradient = np.ones(40_000, "float32")
    gradient[123] = bad
    for mode in MODES:
        run = Run(AdamNorm(0.01), {"w": np.ones(40_000)}, mode=mode)
        run.step({"w": np.ones(40_000)})
        e = run.e["w"]
        run.step({"w": gradient})
        assert run.e["w"] == e
        assert np.isfinite(np.delete(run.params["w"], 123)).all()


@every_class
def test_a_variable_with_nothing_but_bad_numbers_leaves_the_others_alone(cls):
    runs = []
    for bad in (np.nan, 1.0):
        run = Run(cls(0.01, beta_2=0.8), {"bad": np.ones(2), "good": np.ones(3)})
        for grads in swinging_gradients({"bad": (2,), "good": (3,)}, 4):
            run.step({"bad": grads["bad"] * bad, "good": grads["good"]})
        runs.append(run)
    for kind, values in runs[0].state.items():
        if values:
            np.testing.assert_array_equal(values["good"], runs[1].state[kind]["good"])
    if cls in NORM_CLASSES:
        assert runs[0].e["bad"] == 0.0


# --- dtypes and shapes


@pytest.mark.parametrize(
    ("cls", "floating"),
    [(cls, "float32") for cls in CLASSES]
    + [(AdamNorm, floating) for floating in ("float16", "bfloat16", "float64")],
)
def test_every_dtype_under_any_floatx(cls, floating):
    """Moments and norms are those of float32 (float64) arithmetic, whatever the variable's."""
    dtypes = ("float16", "bfloat16", "float32") + ("float64",) * (floating == "float64")
    shapes = {dtype: (2, 3) for dtype in dtypes}
    raw = swinging_gradients(shapes, 4)
    with floatx(floating):
        gradients = [
            {d: to_numpy(keras.ops.convert_to_tensor(g, d)) for d, g in grads.items()}
            for grads in raw
        ]
        params = {d: np.ones(shape) for d, shape in shapes.items()}
        run = Run(cls(0.01), params, dict(zip(dtypes, dtypes, strict=True)))
        widest = {d: "float64" if d == "float64" else "float32" for d in dtypes}
        wide = Run(cls(0.01), params, widest)
        for grads in gradients:
            run.step(grads)
            wide.step(grads)
        for d, variable in zip(dtypes, run.variables, strict=True):
            assert keras.backend.standardize_dtype(variable.dtype) == d
            for kind in ("m", "v", "previous_gradient", "e"):
                for name, value in getattr(run, kind).items():
                    assert value.dtype == ("float64" if name == "float64" else "float32")
                    np.testing.assert_allclose(value, getattr(wide, kind)[name], rtol=1e-6)
            epsilon = {"float16": 1e-3, "bfloat16": 8e-3}.get(d, 1e-6)
            np.testing.assert_allclose(run.params[d], wide.params[d], rtol=2 * epsilon)


@pytest.mark.parametrize("cls", [AdamNorm, DiffGrad])
def test_every_rank(cls):
    shapes = dict(
        scalar=(),
        one=(1,),
        vector=(3,),
        row=(1, 4),
        cube=(2, 3, 2),
        kernel=(2, 2, 1, 3),
        deep=(1, 2, 1, 2, 1),
        empty=(0, 3),
    )
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    gradients = swinging_gradients(shapes, 4)
    for run, reference in run_beside_reference(cls(0.01), params, gradients):
        assert_same_state(run, reference, atol=1e-6, rtol=1e-5)


@every_class
def test_the_loss_falls_in_half_precision(cls):
    random = np.random.default_rng(8)
    x = random.standard_normal((64, 8))
    y = x @ random.standard_normal(8)

    def residual(w):
        return x @ w.astype("float64") - y

    run = Run(cls(0.05), {d: np.zeros(8) for d in HALF}, {d: d for d in HALF})
    for _ in range(60):
        run.step({d: x.T @ residual(w) / 64 for d, w in run.params.items()})
    for w in run.params.values():
        assert np.mean(residual(w) ** 2) < 0.25 * np.mean(y**2)


# --- hyperparameters and step counts

CORNERS = (
    dict(beta_1=0.0, beta_2=0.0),
    dict(beta_1=0.0, beta_2=0.999, gamma=0.0),
    dict(beta_1=0.999999, beta_2=0.0, gamma=0.999999),
    dict(beta_1=0.5, beta_2=0.9999999, gamma=0.5),
    dict(beta_1=1e-30, beta_2=2 / 3, gamma=1e-30),
    dict(epsilon=1.0, epsilon_root=1.0, beta_2=0.8),
)


@pytest.mark.parametrize("arguments", CORNERS, ids=str)
@every_class
def test_corners_of_the_hyperparameters(cls, arguments):
    if cls not in NORM_CLASSES:
        arguments = {name: value for name, value in arguments.items() if name != "gamma"}
    optimizer = cls(0.01, **{"epsilon": 1e-3, **arguments})
    gradients = swinging_gradients({"w": (2, 3)}, 6)
    for run, reference in run_beside_reference(optimizer, {"w": np.ones((2, 3))}, gradients):
        assert_finite(run)
        assert_same_state(run, reference, atol=2e-5, rtol=2e-5)


@every_class
def test_any_step_count(cls):
    run = Run(cls(0.01, epsilon=1e-3), {"w": np.ones(3)})
    reference = Reference(algorithm(cls), {"w": np.ones(3)}, 0.01, epsilon=1e-3)
    counts = (5, 6, 1_000, 2**24 + 1, 2**30, 2**31 - 1)
    for t, grads in zip(counts, swinging_gradients({"w": (3,)}, 6), strict=True):
        run.optimizer.iterations.assign(t - 1)
        reference.t = t - 1
        run.step(grads)
        reference.step(grads)
        assert_same_state(run, reference, atol=1e-6, rtol=1e-5)
