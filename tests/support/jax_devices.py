"""Trains on one and on four CPU devices of JAX and writes down what came out.

XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m tests.support.jax_devices FOLDER
"""

import pathlib
import sys

import jax
import keras
import numpy as np

from tests.support.coverage_table import SETUPS, make

TRACED = ("AdamNorm", "AdaNorm")
SAMPLES = np.random.default_rng(0).standard_normal((24, 4)).astype("float32")
TARGETS = np.sin(SAMPLES[:, :2])


def data_parallel():
    return keras.distribution.DataParallel(devices=keras.distribution.list_devices())


def model_parallel():
    """Two devices share the batch, and two the weights, by patterns as in Keras' guide."""
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"))
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map[".*dense.*kernel"] = (None, "model")
    layout_map[".*dense.*bias"] = ("model",)
    return keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch")


def train(name, distribution):
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "tanh", name="dense")])
    model.compile(make(name), "mse")
    model.fit(SAMPLES, TARGETS, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model


def layouts(variables):
    """How many devices hold each variable, and whether each holds all of it."""
    shardings = [variable.value.sharding for variable in variables]
    return [[len(s.device_set), s.is_fully_replicated] for s in shardings]


def traces(model):
    """How often the pure update of a model's optimizer is traced in four steps."""
    optimizer, count = model.optimizer, []

    @jax.jit
    def update(state, gradients, weights):
        count.append(1)
        return optimizer.stateless_apply(state, gradients, weights)

    weights = [v.value for v in model.trainable_variables]
    state = [v.value for v in optimizer.variables]
    for scale in (1.0, 0.5, 2.0, 0.1):
        weights, state = update(state, [scale * w for w in weights], weights)
    return len(count)


def main(folder):
    distributions = {"one": None, "data": data_parallel(), "model": model_parallel()}
    for name in SETUPS["data_parallel"].optimizers:
        for kind, distribution in distributions.items():
            model = train(name, distribution)
            variables = model.trainable_variables + model.optimizer.variables
            values = [np.array(variable.value) for variable in variables]
            whole = [not v.shape or v.path.endswith("/norm_averages") for v in variables]
            np.savez(
                folder / f"{name}-{kind}.npz", *values, layouts=layouts(variables), whole=whole
            )
        if name in TRACED:
            np.savez(folder / f"{name}-traces.npz", traces(model))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
