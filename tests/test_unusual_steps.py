"""Steps that few loops take, but that `keras.optimizers.Adam` takes."""

import keras
import numpy as np
import pytest

from keras_adanorm import AdamNorm, AdaNorm, Radam, StepOptimizer, execution
from keras_adanorm.engine import norms as norms_module
from tests.support.optimizers import (
    BACKEND,
    CLASSES,
    NORM_CLASSES,
    Run,
    every_class,
    every_mode,
    to_numpy,
)

LR = 0.05


def state_of(optimizer):
    return [to_numpy(variable.value) for variable in optimizer.variables]


def own_way(cls):
    """The class with an `update_step` of its own, which Keras calls for one variable at a time."""
    own = {"update_step": lambda self, *arguments: super(derived, self).update_step(*arguments)}
    derived = type(cls.__name__, (cls,), own)
    return derived


# --- a variable that is given twice, as `encoder.weights + decoder.weights` gives a tied one


class Tied(Run):
    """Updates the first variable twice in each step."""

    def _traced_apply(self, gradients):
        self.optimizer.apply(gradients, [*self.variables, self.variables[0]])


def tied(optimizer, mode):
    shapes = {"w": (2, 3), "b": (3,)}
    run = Tied(optimizer, {name: np.ones(shape) for name, shape in shapes.items()}, mode=mode)
    for scale in (1.0, 4.0, 0.1):
        given = [np.full((2, 3), scale), np.ones(3), np.full((2, 3), -0.5 * scale)]
        run.apply([keras.ops.convert_to_tensor(g, "float32") for g in given])
    return run


@pytest.mark.parametrize("mode", ("eager", "graph") if BACKEND == "tensorflow" else ("eager",))
@every_class
def test_a_variable_that_is_given_twice_is_updated_twice(cls, mode):
    run, expected = tied(cls(LR), mode), tied(own_way(cls)(LR), mode)
    for one, other in zip(state_of(run.optimizer), state_of(expected.optimizer), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    for name in run.params:
        np.testing.assert_allclose(run.params[name], expected.params[name], rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    (AdamNorm, lambda rate: AdaNorm(keras.optimizers.SGD(rate))),
    ids=("AdamNorm", "AdaNorm"),
)
def test_the_average_of_a_variable_that_is_given_twice_moves_twice(make):
    run = Tied(make(LR), {"w": np.ones(4)})
    ones = keras.ops.ones(4)
    run.apply([ones, 3 * ones])  # norms of 2 and 6
    (e,) = run.optimizer.norm_averages
    assert float(to_numpy(e)) == pytest.approx(0.95 * (0.05 * 2) + 0.05 * 6)


# --- gradients and learning rates of other shapes


@every_mode
@every_class
def test_a_gradient_that_broadcasts(cls, mode):
    params = {"w": np.ones((3, 2)), "v": np.ones(1)}
    whole = [np.array([[1.0, 1.0], [-2.0, -2.0], [0.5, 0.5]]), np.array([0.3])]
    short = [whole[0][:, :1], np.array(0.3)]
    runs = Run(cls(LR), params, mode=mode), Run(cls(LR), params, mode=mode)
    for scale in (1.0, 0.1):
        for run, gradients in zip(runs, (short, whole), strict=True):
            run.apply([keras.ops.convert_to_tensor(scale * g, "float32") for g in gradients])
    for one, other in zip(*(state_of(run.optimizer) for run in runs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    for name in params:
        np.testing.assert_allclose(runs[0].params[name], runs[1].params[name], rtol=1e-6)


@keras.saving.register_keras_serializable(package="tests")
class FromATable(keras.optimizers.schedules.LearningRateSchedule):
    """Gives a learning rate of the shape (1,)."""

    def __call__(self, step):
        return keras.ops.take(
            keras.ops.convert_to_tensor([0.1, 0.05]), keras.ops.reshape(step, (1,))
        )

    def get_config(self):
        return {}


@every_mode
@every_class
def test_a_learning_rate_with_one_element(cls, mode):
    params = {"w": np.ones((3, 2)), "b": np.ones(3)}
    run, expected = Run(cls(FromATable()), params, mode=mode), Run(cls(0.1), params, mode=mode)
    for rate in (0.1, 0.05):
        expected.optimizer.learning_rate = rate
        gradients = {name: rate * value for name, value in params.items()}
        run.step(gradients)
        expected.step(gradients)
    for name in params:
        np.testing.assert_allclose(run.params[name], expected.params[name], rtol=1e-6)


# --- hyperparameters that are variables


@pytest.mark.parametrize("mode", ("eager", "graph") if BACKEND == "tensorflow" else ("eager",))
@every_class
def test_decays_and_epsilon_may_be_variables(cls, mode):
    values = {"beta_1": (0.9, 0.6, 0.8), "epsilon": (1e-3, 1e-2, 1e-3)}
    if cls in NORM_CLASSES:
        values["gamma"] = (0.9, 0.5, 0.7)
    params = {"w": np.ones((3, 2)), "b": np.ones(3)}
    run, expected = Run(cls(LR), params, mode=mode), Run(cls(LR), params)
    variables = {name: keras.Variable(value[0]) for name, value in values.items()}
    for name, variable in variables.items():
        setattr(run.optimizer, name, variable)
    for step, scale in enumerate((1.0, 0.1, 0.3)):
        for name, variable in variables.items():
            variable.assign(values[name][step])
            setattr(expected.optimizer, name, values[name][step])
        gradients = {name: scale * np.ones(value.shape) for name, value in params.items()}
        run.step(gradients)
        expected.step(gradients)
    for name in params:
        np.testing.assert_allclose(run.params[name], expected.params[name], rtol=2e-5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a graph of TensorFlow")
def test_radam_says_that_its_beta_2_must_be_a_number_in_a_graph():
    run = Run(Radam(LR), {"w": np.ones(3)}, mode="graph")
    run.optimizer.beta_2 = keras.Variable(0.99)
    with pytest.raises(
        ValueError, match=r"Radam needs a number as `beta_2`.*Received: beta_2 of type Variable"
    ):
        run.step({"w": np.ones(3)})


# --- algorithms of a user


class Rate:
    """The learning rate times a factor."""

    def __init__(self, factor):
        self.factor = factor

    def rate(self, step):
        return step.learning_rate * self.factor


class FourRates(StepOptimizer):
    """Takes four steps at once, by functions that have one name in pairs."""

    elementwise = True
    parts = Rate(1.0), Rate(10.0)

    def algorithm(self, step):
        rates = [step.once(part.rate) for part in self.parts]
        rates += [step.once(lambda s: s.learning_rate), step.once(lambda s: 100 * s.learning_rate)]
        step.descend(sum(rates) * step.gradient)


def test_what_is_computed_once_is_of_one_function():
    run = Run(FourRates(0.01), {"w": np.zeros(3), "b": np.zeros(2)})
    run.step({"w": np.ones(3), "b": np.ones(2)})
    for value in run.params.values():
        np.testing.assert_allclose(value, -1.12, rtol=1e-6)


class Replaced(AdamNorm):
    """The gradient is replaced after it has been looked at."""

    def algorithm(self, step):
        assert step.corrected_gradient is not None
        step.gradient = step.gradient * 1e15
        super().algorithm(step)


@pytest.mark.parametrize("moments", ("first", "both"))
@pytest.mark.parametrize("size", (1.0, 1e10))
def test_a_replaced_gradient_is_used_everywhere(size, moments):
    """Squares of the gradient that was given fit into float32, those of the other do not."""
    params = {"w": np.ones((3, 2)), "b": np.ones(3)}
    runs = [
        Run(cls(LR, corrected_moments=moments), params) for cls in (Replaced, own_way(Replaced))
    ]
    for scale in (1.0, 0.1):
        for run in runs:
            run.step({name: scale * size * np.ones(p.shape) for name, p in params.items()})
    states = [
        [to_numpy(variable) for variable in run.optimizer.variables] + list(run.params.values())
        for run in runs
    ]
    for fast, slow in zip(*states, strict=True):
        assert np.isfinite(fast).all()
        np.testing.assert_allclose(fast, slow, rtol=1e-5)


# --- derivatives of an update, as meta-learning takes them

jax_only = pytest.mark.skipif(BACKEND != "jax", reason="differentiates by JAX")
every_target = pytest.mark.parametrize("target", ("cpu", "gpu", "tpu"))


def after_two_steps(make):
    """A function from weights to a loss after two steps, in the second of which `e_t > ||g_t||`."""
    import jax.numpy as jnp

    optimizer, start = make(LR), jnp.array([[1.0, 2.0], [0.5, -1.0]])
    optimizer.build([keras.Variable(start), keras.Variable(start[0])])
    state = [variable.value for variable in optimizer.variables]

    def loss(w):
        values, now = [w, w[0]], state
        for scale in (5.0, 0.1):
            gradients = [scale * (jnp.sin(v) + 0.2 * v**2) for v in values]
            values, now = optimizer.stateless_apply(now, gradients, values)
        return sum(jnp.sum(v**3) for v in values)

    return loss, start


WRAPPED = [*CLASSES, lambda rate: AdaNorm(keras.optimizers.SGD(rate, momentum=0.9))]


@jax_only
@every_target
@pytest.mark.parametrize("make", WRAPPED, ids=lambda make: getattr(make, "__name__", ""))
def test_an_update_can_be_differentiated(make, target, monkeypatch):
    import jax

    monkeypatch.setattr(execution, "target", lambda: target)
    loss, start = after_two_steps(make)
    found = np.asarray(jax.jit(jax.grad(loss))(start))
    np.testing.assert_allclose(np.asarray(jax.grad(loss)(start)), found, rtol=1e-4)
    for place in np.ndindex(start.shape):
        # By differences, in float32.
        move = np.zeros(start.shape, "float32")
        move[place] = 1e-2
        slope = (float(loss(start + move)) - float(loss(start - move))) / 2e-2
        assert found[place] == pytest.approx(slope, rel=2e-2, abs=2e-2)


@jax_only
@every_target
def test_the_derivative_of_the_norm(target, monkeypatch):
    import jax
    import jax.numpy as jnp

    monkeypatch.setattr(execution, "target", lambda: target)

    def norm(x):
        return norms_module.l2_norms([x, 2 * x], "float32") @ jnp.array([1.0, 10.0])

    for scale in (1.0, 1e-30, 1e30):  # whose squares leave the range of float32
        x = scale * jnp.array([3.0, 4.0])
        for differentiate in (jax.grad, jax.jacfwd):
            slope = jax.jit(differentiate(norm))(x)
            np.testing.assert_allclose(np.asarray(slope), [21 * 0.6, 21 * 0.8], rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(jax.jit(jax.grad(norm))(jnp.zeros(2))), [0.0, 0.0])
    hessian = jax.hessian(lambda x: norms_module.l2_norms([x], "float32")[0])(jnp.array([3.0, 4.0]))
    expected = (np.eye(2) - np.outer([0.6, 0.8], [0.6, 0.8])) / 5
    np.testing.assert_allclose(np.asarray(hessian), expected, atol=1e-6)
