"""Variants that a user may write on the public bases, beside their statement in float64 NumPy.

Each is a class with an `algorithm`, which is put before a base, and a function of NumPy that says
the same: from the gradient `s` that enters, the weight and the state it returns the new weight.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_adanorm import AdaptiveOptimizer, NormCorrection, StepOptimizer
from tests.support.fast_paths import use_small_thresholds
from tests.support.optimizers import (
    MODES,
    Run,
    floatx,
    swinging_gradients,
    to_numpy,
)
from tests.support.reference import norm_correction

LR = 0.05
# Three small matrices of one shape, a vector, and a matrix that is large under small thresholds.
SHAPES = {"a": (3, 4), "b": (3, 4), "c": (3, 4), "bias": (5,), "large": (6, 7)}
PARAMS = {
    name: np.random.default_rng(i).normal(size=shape).astype("float32")
    for i, (name, shape) in enumerate(SHAPES.items())
}
FLOAT64 = ("b", "bias")  # the others are of float32


@pytest.fixture(autouse=True)
def small_thresholds(monkeypatch):
    use_small_thresholds(monkeypatch)


def mean(x, axis=None):
    """`ops.mean`, which computes float64 in float32 on JAX and torch (Keras 3.15)."""
    total = ops.sum(x, axis=axis)
    return total * (max(np.prod(total.shape), 1.0) / np.prod(x.shape))


def norm(x):
    """`ops.norm`, for the same reason."""
    return ops.sqrt(ops.sum(x * x))


class Lamb:
    slots = ("m", "v")

    def algorithm(self, step):
        s = step.corrected_gradient
        m = step.average("m", s, 0.9) / step.bias_correction(0.9)
        v = step.average_of_square("v", s, 0.99) / step.bias_correction(0.99)
        update = m / (ops.sqrt(v) + 1e-6) + 0.01 * step.weight
        trust = norm(step.weight) / norm(update)
        step.descend(step.learning_rate * trust * update)


def lamb(s, w, state, t):
    m = state["m"] = 0.9 * state["m"] + 0.1 * s
    v = state["v"] = 0.99 * state["v"] + 0.01 * s**2
    update = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.99**t)) + 1e-6) + 0.01 * w
    return w - LR * np.linalg.norm(w) / np.linalg.norm(update) * update


class NormalisedMomentum:
    slots = ("m",)

    def algorithm(self, step):
        m = step.average("m", step.corrected_gradient, 0.9)
        step.descend(step.learning_rate * m / (ops.sqrt(mean(ops.square(m))) + 1e-8))


def normalised_momentum(s, w, state, t):
    m = state["m"] = 0.9 * state["m"] + 0.1 * s
    return w - LR * m / (np.sqrt(np.mean(m**2)) + 1e-8)


class Centralised:
    """A reduction of the gradient, and nothing else that could be told apart."""

    slots = ("m",)

    def algorithm(self, step):
        s = step.corrected_gradient
        step.descend(step.learning_rate * step.average("m", s - mean(s), 0.9))


def centralised(s, w, state, t):
    m = state["m"] = 0.9 * state["m"] + 0.1 * (s - np.mean(s))
    return w - LR * m


class Lion:
    slots = ("m",)
    elementwise = True

    def algorithm(self, step):
        s, before = step.corrected_gradient, step.read("m")
        step.average("m", s, 0.99)
        step.descend(step.learning_rate * ops.sign(0.9 * before + (1 - 0.9) * s))


def lion(s, w, state, t):
    before = state["m"]
    state["m"] = 0.99 * before + 0.01 * s
    return w - LR * np.sign(0.9 * before + 0.1 * s)


class Yogi:
    slots = ("m", "v")
    elementwise = True

    def algorithm(self, step):
        s = step.corrected_gradient
        square, v = s**2, step.read("v")
        v = v - 0.01 * ops.sign(v - square) * square
        step.write("v", v)
        step.descend_quotient(step.learning_rate, step.average("m", s, 0.9), ops.sqrt(v) + 1e-3)


def yogi(s, w, state, t):
    m = state["m"] = 0.9 * state["m"] + 0.1 * s
    v = state["v"] = state["v"] - 0.01 * np.sign(state["v"] - s**2) * s**2
    return w - LR * m / (np.sqrt(v) + 1e-3)


class AMSGrad:
    slots = ("m", "v", "largest")
    elementwise = True

    def algorithm(self, step):
        s = step.corrected_gradient
        m = step.average("m", s, 0.9)
        v = step.average("v", s * s, 0.99)
        step.write("largest", ops.where(v > step.read("largest"), v, step.read("largest")))
        step.descend_quotient(step.learning_rate, m, ops.sqrt(step.read("largest")) + 1e-3)


def amsgrad(s, w, state, t):
    m = state["m"] = 0.9 * state["m"] + 0.1 * s
    v = state["v"] = 0.99 * state["v"] + 0.01 * s**2
    state["largest"] = np.maximum(v, state["largest"])
    return w - LR * m / (np.sqrt(state["largest"]) + 1e-3)


class Factored:
    """Second moments of rows and columns alone."""

    slots = ("rows", "columns")

    def slot_shape(self, name, variable):
        return tuple(variable.shape[:-1] if name == "rows" else variable.shape[-1:])

    def algorithm(self, step):
        s = step.corrected_gradient
        square = s * s + 1e-12
        rows = step.average("rows", mean(square, -1), 0.9)
        columns = step.average("columns", mean(square, 0) if s.ndim == 2 else square, 0.9)
        v = columns if s.ndim == 1 else rows[:, None] * columns / mean(rows)
        step.descend(step.learning_rate * s / ops.sqrt(v))


def factored(s, w, state, t):
    square = s * s + 1e-12
    state["rows"] = 0.9 * state["rows"] + 0.1 * square.mean(-1)
    columns = square.mean(0) if s.ndim == 2 else square
    state["columns"] = 0.9 * state["columns"] + 0.1 * columns
    rows, columns = state["rows"], state["columns"]
    v = columns if s.ndim == 1 else rows[:, None] * columns / rows.mean()
    return w - LR * s / np.sqrt(v)


def newton_schulz(x):
    """Three iterations towards the nearest orthogonal matrix."""
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(3):
        x = 1.5 * x - 0.5 * (x @ x.T @ x)
    return x


class Orthogonalised:
    slots = ("m",)

    def algorithm(self, step):
        m = step.average("m", step.corrected_gradient, 0.9)
        if m.ndim == 2:
            x = m / (norm(m) + 1e-7)
            for _ in range(3):
                x = 1.5 * x - 0.5 * (x @ ops.transpose(x) @ x)
            m = x
        step.descend(step.learning_rate * m)


def orthogonalised(s, w, state, t):
    m = state["m"] = 0.9 * state["m"] + 0.1 * s
    return w - LR * (newton_schulz(m) if m.ndim == 2 else m)


class BeforeLast:
    """A step against the gradient and by its second difference."""

    slots = ("last", "before_last")
    elementwise = True

    def algorithm(self, step):
        s, last, before_last = step.corrected_gradient, step.read("last"), step.read("before_last")
        step.write("before_last", last)
        step.write("last", s)
        step.descend(step.learning_rate * (s + 0.5 * (s - 2 * last + before_last)))


def before_last(s, w, state, t):
    last, old = state["last"], state["before_last"]
    state["before_last"], state["last"] = last, s
    return w - LR * (s + 0.5 * (s - 2 * last + old))


class Traps:
    """Reads before and after a write and an average, operators of Python, two steps in one."""

    slots = ("m", "n")

    def algorithm(self, step):
        s, weight, old = step.corrected_gradient, step.weight, step.read("m")
        new = step.average("m", s, 0.5)
        again = step.read("m")
        step.write("n", 1 - s)
        twice = step.average("n", s**2, 0.25)
        step.descend(step.learning_rate * (old + 3 * again - new))
        step.descend(0.01 * ops.sign(s) * weight + 0.001 * step.weight)
        step.descend_quotient(step.learning_rate, twice, 2 + abs(old))
        step.write("m", again * (2 - step.learning_rate) - old)


def traps(s, w, state, t):
    old = state["m"]
    new = 0.5 * old + 0.5 * s
    state["n"] = 0.25 * (1 - s) + 0.75 * s**2
    state["m"] = new * (2 - LR) - old
    change = LR * (old + 2 * new) + 0.01 * np.sign(s) * w + 0.001 * w
    return w - change - LR * state["n"] / (2 + np.abs(old))


class TrapsElementwise(Traps):
    elementwise = True


class Swapped:
    """The weight and a state change places: neither may be overwritten before it is read."""

    slots = ("other", "kept")
    elementwise = True

    def algorithm(self, step):
        weight, other = step.weight, step.read("other")
        step.average("kept", weight, 0.5)
        step.write("other", weight)
        step.set_weight(other)
        step.descend(step.learning_rate * step.corrected_gradient)


def swapped(s, w, state, t):
    state["kept"] = 0.5 * state["kept"] + 0.5 * w
    state["other"], w = w, state["other"]
    return w - LR * s


class Started:
    """A state that starts at the weight, and the gradient itself as a state."""

    slots = ("slow", "gradient")
    elementwise = True

    def slot_initializer(self, name, variable):
        if name == "gradient":
            return keras.initializers.Constant(2.0)
        return lambda shape, dtype: ops.cast(ops.convert_to_tensor(variable), dtype)

    def algorithm(self, step):
        step.descend(0.1 * step.read("gradient"))
        step.write("gradient", step.gradient)
        slow = step.average("slow", step.weight, 0.5)
        step.descend(step.learning_rate * (step.corrected_gradient + step.weight - slow))


def started(s, w, state, t, g):
    new = w - 0.1 * state["gradient"]
    state["gradient"] = g
    slow = state["slow"] = 0.5 * state["slow"] + 0.5 * w
    return new - LR * (s + w - slow)


class Squares:
    """Squares of a number, of integers and of booleans."""

    slots = ("v", "w")
    elementwise = True

    def algorithm(self, step):
        s = step.corrected_gradient
        sign = ops.cast(ops.sign(s), "int32")
        v = step.average_of_square("v", 3 * sign + 1, 0.9)
        w = step.average_of_square("w", 2.0, 0.9)
        factor = step.square(1.5) + step.square(sign + 2) + step.square(s > 0)
        step.descend(step.learning_rate * factor * s / (1 + v + w))


def squares(s, w, state, t):
    sign = np.sign(s)
    state["v"] = 0.9 * state["v"] + 0.1 * (3 * sign + 1) ** 2
    state["w"] = 0.9 * state["w"] + 0.1 * 4
    factor = 2.25 + (sign + 2) ** 2 + (s > 0)
    return w - LR * factor * s / (1 + state["v"] + state["w"])


VARIANTS = {
    Lamb: lamb,
    NormalisedMomentum: normalised_momentum,
    Centralised: centralised,
    Lion: lion,
    Yogi: yogi,
    AMSGrad: amsgrad,
    Factored: factored,
    Orthogonalised: orthogonalised,
    BeforeLast: before_last,
    Traps: traps,
    TrapsElementwise: traps,
    Swapped: swapped,
    Started: started,
    Squares: squares,
}


def on_base(variant, *bases):
    return type(f"{variant.__name__}On{bases[0].__name__}", (variant, *bases), {})


class InNumpy:
    """The variables of a run, stepped by a function of NumPy."""

    def __init__(self, variant, run, gamma):
        self.function, self.gamma, self.t = VARIANTS[variant], gamma, 0
        self.params = {n: value.astype("float64") for n, value in run.params.items()}
        states = [run.optimizer.state_of(variable) for variable in run.variables]
        self.states = {
            name: {slot: to_numpy(value).astype("float64") for slot, value in state.items()}
            for name, state in zip(run.names, states, strict=True)
        }
        self.e = dict.fromkeys(run.names, 0.0)
        self.fired = []

    def step(self, grads):
        self.t += 1
        for name, g in grads.items():
            s, g = g, np.asarray(g, "float64")
            s, self.e[name], fired = norm_correction(g, self.e[name], self.gamma)
            self.fired.append(fired)
            extra = (g,) if self.function is started else ()
            state = self.states[name]
            self.params[name] = self.function(s, self.params[name], state, self.t, *extra)


def assert_same(run, expected):
    for variable, name in zip(run.variables, run.names, strict=True):
        tolerance = 1e-11 if name in FLOAT64 else 3e-5
        pairs = {"weight": (run.params[name], expected.params[name])}
        for slot, value in run.optimizer.state_of(variable).items():
            pairs[slot] = (to_numpy(value), expected.states[name][slot])
        for kind, (a, b) in pairs.items():
            np.testing.assert_allclose(a, b, tolerance, tolerance, err_msg=f"{kind} of {name}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gamma", [None, 0.0, 0.9], ids=["plain", "gamma=0", "gamma=0.9"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_variant(variant, gamma, mode):
    """The same numbers as NumPy, with the correction, without it and with it off."""
    if gamma == 0.0 and mode != "eager":
        pytest.skip("eagerly it is the same")
    with floatx("float64"):
        if gamma is None:
            optimizer = on_base(variant, StepOptimizer)(LR)
        else:
            optimizer = on_base(variant, NormCorrection)(LR, gamma=gamma)
        dtypes = {name: "float64" if name in FLOAT64 else "float32" for name in SHAPES}
        run = Run(optimizer, PARAMS, dtypes, mode)
        expected = InNumpy(variant, run, gamma or 0.0)
        for grads in swinging_gradients(SHAPES, 5):
            grads = {name: np.float32(g) for name, g in grads.items()}
            run.step(grads)
            expected.step(grads)
        assert_same(run, expected)
        if gamma:
            assert 0 < sum(expected.fired) < len(expected.fired)


@pytest.mark.parametrize("mode", MODES)
def test_adaptive_base(mode):
    """What `AdaptiveOptimizer` offers, with a factor of one's own."""

    class Halved(AdaptiveOptimizer):
        elementwise = True

        def algorithm(self, step):
            g_m, g_v = self.moment_gradients(step)
            m = step.average("momentum", g_m, self.beta_1)
            v = step.average_of_square("velocity", g_v, self.beta_2)
            self.adaptive_step(step, m, v, factor=0.5 + 0 * g_m)

    run = Run(Halved(LR), PARAMS, mode=mode)
    adam = Run(on_base(_Adam, AdaptiveOptimizer)(LR / 2), PARAMS)
    for grads in swinging_gradients(SHAPES, 4):
        run.step(grads)
        adam.step(grads)
    for name in SHAPES:
        np.testing.assert_allclose(run.params[name], adam.params[name], 1e-5, 1e-6)


class _Adam:
    def algorithm(self, step):
        m = step.average("momentum", step.gradient, self.beta_1)
        v = step.average_of_square("velocity", step.gradient, self.beta_2)
        self.adaptive_step(step, m, v)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_master_copy(dtype, mode):
    """Weights of 16 bits follow a copy of 32, where steps below their last digit add up."""

    class Master(NormCorrection):
        slots = ("master",)
        elementwise = True

        def slot_initializer(self, name, variable):
            return lambda shape, dtype: ops.cast(ops.convert_to_tensor(variable), dtype)

        def algorithm(self, step):
            master = step.read("master") - step.learning_rate * step.corrected_gradient
            step.write("master", master)
            step.set_weight(master)

    run = Run(Master(1e-5, gamma=0.5), PARAMS, dtype, mode)
    master = {name: value.astype("float64") for name, value in run.params.items()}
    for _ in range(40):
        run.step({name: np.ones(shape) for name, shape in SHAPES.items()})
    for variable, name in zip(run.variables, SHAPES, strict=True):
        expected = master[name] - 40e-5
        state = run.optimizer.state_of(variable)["master"]
        assert state.dtype == "float32"
        np.testing.assert_allclose(to_numpy(state), expected, rtol=0, atol=2e-6)
        rounded = to_numpy(ops.cast(ops.convert_to_tensor(to_numpy(state)), dtype))
        np.testing.assert_array_equal(run.params[name], rounded)


@keras.saving.register_keras_serializable(package="tests")
class Noisy(StepOptimizer):
    """Descent with noise from a generator, whose state is a part of the optimizer's."""

    def __init__(self, *args, seed=7, **kwargs):
        super().__init__(*args, **kwargs)
        self.seed = seed
        self.generator = keras.random.SeedGenerator(seed)

    def algorithm(self, step):
        noise = keras.random.normal(step.gradient.shape, dtype=step.dtype, seed=self.generator)
        step.descend(step.learning_rate * (step.gradient + 0.1 * noise))

    def get_config(self):
        return {**super().get_config(), "seed": self.seed}


# XLA has other random numbers for TensorFlow, whatever the optimizer.
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "xla"])
def test_noise(mode):
    """The same numbers in each mode: those that the generator gives one variable after another."""
    run = Run(Noisy(LR), PARAMS, mode=mode)
    generator = keras.random.SeedGenerator(7)
    expected = {name: value.astype("float64") for name, value in PARAMS.items()}
    for grads in swinging_gradients(SHAPES, 3):
        run.step(grads)
        for name, shape in SHAPES.items():
            noise = to_numpy(keras.random.normal(shape, seed=generator))
            expected[name] = expected[name] - LR * (grads[name] + 0.1 * noise)
    for name in SHAPES:
        np.testing.assert_allclose(run.params[name], expected[name], 1e-5, 1e-6)


def test_noise_goes_on_after_saving(tmp_path):
    def model(optimizer):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(optimizer, "mse", run_eagerly=True)
        return model

    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    straight = model(Noisy(LR))
    for _ in range(2):
        straight.train_on_batch(x, x[:, :2])
    straight.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (straight, loaded):
        each.train_on_batch(x, x[:, :2])
    for a, b in zip(straight.trainable_variables, loaded.trainable_variables, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


@pytest.mark.parametrize("mode", MODES)
def test_update_step_of_version_0_1(mode):
    """A variant with an `update_step` of its own, which begins its step itself."""

    class Momentum(NormCorrection):
        slots = ("m",)

        def update_step(self, gradient, variable, learning_rate):
            step = self.begin_step(gradient, variable, learning_rate)
            old = step.read("m")
            m = step.average("m", step.corrected_gradient, 0.9)
            step.descend(step.learning_rate * m)
            step.descend(0.01 * old)

    run = Run(Momentum(LR, gamma=0.9), PARAMS, mode=mode)
    e, m = dict.fromkeys(SHAPES, 0.0), {name: np.zeros(shape) for name, shape in SHAPES.items()}
    expected = {name: value.astype("float64") for name, value in PARAMS.items()}
    for grads in swinging_gradients(SHAPES, 4):
        run.step(grads)
        for name, g in grads.items():
            s, e[name], _ = norm_correction(np.asarray(g, "float64"), e[name], 0.9)
            old, m[name] = m[name], 0.9 * m[name] + 0.1 * s
            expected[name] = expected[name] - LR * m[name] - 0.01 * old
    for name in SHAPES:
        np.testing.assert_allclose(run.params[name], expected[name], 1e-5, 1e-6)
        np.testing.assert_allclose(run.e[name], e[name], 1e-5)
