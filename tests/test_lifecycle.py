"""An optimizer that meets other variables than those it was built for, or state before any.

What Keras does with every optimizer, backend by backend, and where a warning can be given.
"""

import warnings

import keras
import numpy as np
import pytest

from tests.support.coverage_table import make
from tests.support.optimizers import BACKEND, KERAS, to_numpy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")
# What Keras raises for a variable that it does not know. Before 3.13, it fails to name the variable
# in a graph of TensorFlow.
UNKNOWN, MESSAGE = ValueError, "(?s)Unknown variable.*recreate a new optimizer"
if BACKEND == "tensorflow" and KERAS < (3, 13):
    UNKNOWN, MESSAGE = (ValueError, NotImplementedError), f"{MESSAGE}|numpy\\(\\) is only available"
# JAX compiles each anew.
some_optimizers = pytest.mark.parametrize(
    "name", ["AdamNorm"] if BACKEND == "jax" else ["AdamNorm", "AdaNorm"]
)

X = np.random.default_rng(0).standard_normal((8, 3)).astype("float32")


def new_model(optimizer):
    layers = [keras.layers.Dense(3, name="hidden"), keras.layers.Dense(3, name="output")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(optimizer, "mse")
    return model


def fit(model):
    model.fit(X, X[:, ::-1], verbose=0)
    return model


def variables():
    return [keras.Variable(np.ones(2, "float32")), keras.Variable(np.ones(3, "float32"))]


@pytest.mark.parametrize("name", ["Radam", "AdamNorm", "AdaNorm"])
def test_the_warning_of_other_variables_says_where_they_were_given(name):
    optimizer = make(name)
    optimizer.build(variables())
    with pytest.warns(UserWarning, match="has been built for other variables") as told:
        optimizer.build(variables())
    assert [warning.filename for warning in told] == [__file__]


@some_optimizers
def test_an_optimizer_reused_for_another_model(name):
    optimizer = make(name)
    fit(new_model(optimizer))
    other = new_model(optimizer)
    if BACKEND == "jax":  # the weights come as bare arrays: the state of the first model goes on
        fit(other)
        assert int(to_numpy(optimizer.iterations)) == 2
    else:
        with pytest.raises(UNKNOWN, match=MESSAGE):
            fit(other)
    fresh = type(optimizer).from_config(optimizer.get_config())
    other.compile(fresh, "mse")
    fit(other)
    assert int(to_numpy(fresh.iterations)) == 1


@some_optimizers
def test_build_warns_of_other_variables(name):
    optimizer, known = make(name), variables()
    optimizer.build(known)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.build(known)
        optimizer.build(known[:1])
    count = len(optimizer.variables)
    with pytest.warns(UserWarning, match=f"^{name} has been built for other.*{name}.from_config"):
        optimizer.build(variables())
    assert len(optimizer.variables) == count


def unfrozen(optimizer):
    """A model that was trained without its first layer, which may be trained from now on."""
    model = new_model(optimizer)
    hidden = model.get_layer("hidden")
    hidden.trainable = False
    before = to_numpy(hidden.kernel)
    fit(model)
    np.testing.assert_array_equal(to_numpy(hidden.kernel), before)
    hidden.trainable = True
    return model, before


@some_optimizers
def test_a_layer_unfrozen_after_the_first_step(name):
    model, before = unfrozen(make(name))
    if BACKEND == "tensorflow":  # `fit` has compiled its step without the layer, and says nothing
        fit(model)
        np.testing.assert_array_equal(to_numpy(model.get_layer("hidden").kernel), before)
    else:
        with pytest.raises(ValueError, match="Unknown variable|was built with 2 variables"):
            fit(model)


def test_a_layer_unfrozen_and_a_new_optimizer():
    optimizer = make("AdamNorm")
    model, before = unfrozen(optimizer)
    model.compile(type(optimizer).from_config(optimizer.get_config()), "mse")
    fit(model)
    assert not np.array_equal(to_numpy(model.get_layer("hidden").kernel), before)


def test_a_layer_unfrozen_before_the_first_step():
    model = new_model(make("AdamNorm"))
    hidden = model.get_layer("hidden")
    hidden.trainable = False
    model.compile(model.optimizer, "mse")
    hidden.trainable = True
    before = to_numpy(hidden.kernel)
    fit(model)
    assert not np.array_equal(to_numpy(hidden.kernel), before)


@some_optimizers
def test_state_loaded_into_an_unbuilt_optimizer(name):
    trained, known, state = make(name), variables(), {}
    trained.build(known)
    for number, variable in enumerate(trained.variables):
        variable.assign(np.full(variable.shape, number + 1))
    trained.save_own_variables(state)

    optimizer = make(name)
    with pytest.warns(
        UserWarning, match="Skipping variable loading.*not built.*Call `optimizer.build"
    ):
        optimizer.load_own_variables(state)
    with pytest.raises(ValueError, match="has not yet been built"):
        optimizer.set_weights(list(state.values()))

    optimizer.build(known)
    optimizer.load_own_variables(state)
    for one, other in zip(optimizer.variables, trained.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))


@some_optimizers
def test_state_that_was_saved_before_the_build(name):
    """Nothing is lost in an optimizer without a step; in one that has made steps, Keras warns."""
    state = {}
    make(name).save_own_variables(state)
    optimizer = make(name)
    optimizer.build(variables())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.load_own_variables(state)
    optimizer.iterations.assign(1)
    with pytest.warns(UserWarning, match="Skipping variable loading"):
        optimizer.load_own_variables(state)
