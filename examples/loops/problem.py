"""What all loops here solve: a sine curve, learned by a small network from eight batches."""

import keras
import numpy as np

LEARNING_RATE, BATCH = 0.01, 32

X = np.linspace(-3, 3, 4 * BATCH, dtype="float32").reshape(-1, 1)
X = np.random.default_rng(0).permutation(X)
Y = np.sin(X)


def new_model():
    """A network with the same weights each time."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
    )


def batches(epochs=2):
    """The batches in which `fit(X, Y, BATCH, epochs, shuffle=False)` would see the data."""
    for _ in range(epochs):
        for first in range(0, len(X), BATCH):
            yield X[first : first + BATCH], Y[first : first + BATCH]


def loss(model):
    """The mean squared error over all data."""
    return float(np.mean((keras.ops.convert_to_numpy(model(X)) - Y) ** 2))
