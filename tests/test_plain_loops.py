"""The plain loops that updates are timed beside on torch do what the optimizers do."""

import keras
import numpy as np
import pytest

from keras_adanorm import registry
from tests.support.optimizers import BACKEND, Run, swinging_gradients


@pytest.mark.skipif(BACKEND != "torch", reason="the loops are written in torch")
@pytest.mark.parametrize("name", [cls.__name__ for cls in registry.NORM_VARIANTS])
def test_the_same_numbers(name):
    loops = pytest.importorskip("examples.benchmarks.plain_loops", reason="needs a clone").LOOPS
    shapes = {"matrix": (4, 6), "scalar": ()}
    params = {key: np.ones(shape) for key, shape in shapes.items()}
    run, loop = Run(registry.OPTIMIZERS[name](), params), loops[name]()
    variables = [keras.Variable(value, dtype="float32") for value in params.values()]
    loop.build(variables)
    for grads in swinging_gradients(shapes, 8):
        run.step(grads)
        loop.apply([keras.ops.convert_to_tensor(g) for g in grads.values()], variables)
    for value, variable in zip(run.params.values(), variables, strict=True):
        np.testing.assert_allclose(value, variable.value.detach().numpy(), rtol=1e-6)
