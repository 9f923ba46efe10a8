"""The same seeded training gives the same weights on TensorFlow, JAX and torch.

Each backend is held against one training in float64 NumPy, so that none has to start another.
"""

import keras
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from tests.support.coverage_table import KEEP_NORMS, SETUPS, make
from tests.support.optimizers import BACKEND, to_numpy
from tests.support.reference import Reference, norm_correction

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")
LEARNING_RATE, EPOCHS, BATCH = 0.05, 6, 6
SHAPES = {"kernel": (3, 3, 2, 3), "bias": (3,), "dense_kernel": (12, 2), "dense_bias": (2,)}

random = np.random.default_rng(0)
X = random.standard_normal((2 * BATCH, 4, 4, 2)).astype("float32")
Y = np.sin(X[:, 0, 0] * X[:, 1, 1])
WEIGHTS = np.repeat([1.0, 0.01], BATCH)  # small gradients follow large ones: they are corrected
START = {name: (0.3 * random.standard_normal(s)).astype("float32") for name, s in SHAPES.items()}


def gradients(w, x, y, weight):
    """The gradients of the weighted mean squared error of convolution, tanh and dense layer."""
    x = sliding_window_view(x.astype("float64"), (3, 3), axis=(1, 2))
    h = np.tanh(np.einsum("nijcab,abcf->nijf", x, w["kernel"]) + w["bias"])
    flat = h.reshape(len(x), -1)
    error = flat @ w["dense_kernel"] + w["dense_bias"] - y
    d_out = 2 * weight[:, None] * error / y.size
    d_h = (d_out @ w["dense_kernel"].T).reshape(h.shape) * (1 - h**2)
    return {
        "kernel": np.einsum("nijcab,nijf->abcf", x, d_h),
        "bias": d_h.sum((0, 1, 2)),
        "dense_kernel": flat.T @ d_out,
        "dense_bias": d_out.sum(0),
    }


class WrappedSGD:
    """SGD with momentum 0.9 in the wrapper, in the manner of `Reference`."""

    def __init__(self, params):
        self.params = {name: value.astype("float64") for name, value in params.items()}
        self.m = {name: np.zeros_like(value) for name, value in self.params.items()}
        self.e = dict.fromkeys(params, 0.0)
        self.fired = dict.fromkeys(params, False)

    def step(self, grads):
        for name, g in grads.items():
            s, self.e[name], self.fired[name] = norm_correction(g, self.e[name], 0.95)
            self.m[name] = 0.9 * self.m[name] - LEARNING_RATE * s
            self.params[name] = self.params[name] + self.m[name]


def train_in_numpy(name):
    """The reference after the training, and how many corrections fired."""
    if name == "AdaNorm":
        reference = WrappedSGD(START)
    else:
        reference = Reference(name.lower(), START, learning_rate=LEARNING_RATE)
    fired = 0
    for _ in range(EPOCHS):
        for first in range(0, len(X), BATCH):
            batch = slice(first, first + BATCH)
            reference.step(gradients(reference.params, X[batch], Y[batch], WEIGHTS[batch]))
            fired += sum(reference.fired.values())
    return reference, fired


@pytest.mark.parametrize("name", SETUPS[BACKEND].optimizers)
def test_training_is_the_same_on_every_backend(name):
    model = keras.Sequential(
        [
            keras.Input(X.shape[1:]),
            keras.layers.Conv2D(3, 3, activation="tanh"),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    model.set_weights(list(START.values()))
    optimizer = make(name, LEARNING_RATE)
    model.compile(optimizer, "mse")
    model.fit(X, Y, BATCH, EPOCHS, sample_weight=WEIGHTS, shuffle=False, verbose=0)

    reference, fired = train_in_numpy(name)
    for variable, expected in zip(
        model.trainable_variables, reference.params.values(), strict=True
    ):
        np.testing.assert_allclose(to_numpy(variable), expected, rtol=1e-5, atol=2e-6)
    if name in KEEP_NORMS:
        assert fired > 0
        averages = [to_numpy(e) for e in optimizer.norm_averages]
        np.testing.assert_allclose(averages, list(reference.e.values()), rtol=1e-5)
