"""JAX outside of `jax.jit`: what the first update compiles, and that numbers are arguments."""

import contextlib

import keras
import numpy as np
import pytest

from keras_adanorm import AdaNorm
from tests.support.optimizers import BACKEND, CLASSES, NORM_CLASSES

pytestmark = pytest.mark.skipif(BACKEND != "jax", reason="needs JAX")
COMPILED = "/jax/core/compile/backend_compile_duration"
MAKERS = {cls.__name__: cls for cls in CLASSES if cls is not AdaNorm}
MAKERS["AdaNorm"] = lambda *rate: AdaNorm(keras.optimizers.Adam(*rate))


@contextlib.contextmanager
def programs():
    """A list with an element for each program that is compiled."""
    from jax import monitoring

    found, listening = [], True

    def listener(event, duration, **more):
        if listening and event == COMPILED:
            found.append(duration)

    monitoring.register_event_duration_secs_listener(listener)
    yield found
    listening = False


def built(make, sizes):
    variables = [keras.Variable(np.ones(size, "float32")) for size in sizes]
    optimizer = make(0.01)
    optimizer.build(variables)
    gradients = [keras.ops.convert_to_tensor(np.full(s, 0.1, "float32")) for s in sizes]
    return optimizer, gradients, variables


def programs_of_shapes(make, start):
    """The programs of an update for four shapes not seen before, and for nothing else."""
    other = built(make, range(start, start + 4))
    other[0].apply(*other[1:])  # compiles what belongs to no shape
    optimizer, gradients, variables = built(make, range(start + 4, start + 8))
    with programs() as found:
        optimizer.apply(gradients, variables)
    return len(found)


@pytest.fixture(scope="module")
def adam():
    return programs_of_shapes(keras.optimizers.Adam, 900)


@pytest.mark.parametrize("name", MAKERS)
def test_first_step_compiles_no_more_than_keras_adam(name, adam):
    assert adam >= 20  # or the programs were not counted
    assert programs_of_shapes(MAKERS[name], 1000 + 10 * list(MAKERS).index(name)) <= 1.3 * adam


@pytest.mark.parametrize("cls", NORM_CLASSES, ids=lambda cls: cls.__name__)
def test_other_numbers_need_no_other_program(cls):
    optimizer, gradients, variables = built(cls, (3, 4))
    for _ in range(8):  # Radam comes to its second case
        optimizer.apply(gradients, variables)
    with programs() as found:
        for rate in (0.1, 0.2, 0.3):
            optimizer.learning_rate = rate
            optimizer.beta_1 = optimizer.beta_2 = 0.9 + rate / 10
            optimizer.apply(gradients, variables)
    assert len(found) == 0
