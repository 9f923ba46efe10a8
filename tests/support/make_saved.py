"""Makes what is missing in `tests/saved`: a trained model per optimizer, and how it trains on.

    KERAS_BACKEND=tensorflow python -m tests.support.make_saved

Run it with the oldest Keras that pyproject.toml allows: a later Keras loads what an earlier one
saved, not the reverse. The files stand for the models that users have saved. Remove one, to have
it made anew, only when the state of an optimizer is meant to change: then no file of theirs can be
loaded any more.
"""

import json
import re
from pathlib import Path

import keras
import numpy as np

from tests.support.optimizers import CLASSES, NORM_CLASSES, to_numpy

SAVED = Path(__file__).parents[1] / "saved"
EXPECTED = SAVED / "expected.json"
STEPS = 4


def make_optimizer(cls):
    """An optimizer with arguments of which most are not the defaults."""
    norm = dict(gamma=0.75, max_correction=50.0) if cls in NORM_CLASSES else {}
    return cls(0.05, beta_2=0.9, weight_decay=0.01, name="optimizer", **norm)


def make_model(optimizer, width=2, units=3, **compile_arguments):
    """A model with two layers that starts from the same weights each time."""
    model = keras.Sequential(
        [
            keras.Input((width,)),
            keras.layers.Dense(units, activation="tanh", name="hidden"),
            keras.layers.Dense(1, name="output"),
        ]
    )
    random = np.random.default_rng(5)
    model.set_weights([random.normal(size=w.shape, scale=0.5) for w in model.weights])
    model.compile(
        optimizer, keras.losses.MeanSquaredError(), **{"jit_compile": False} | compile_arguments
    )
    return model


def batch(step, width=2):
    """The batch of a step. Its targets swing, so that the correction fires on some steps."""
    random = np.random.default_rng(step)
    x = random.normal(size=(4, width)).astype("float32")
    scale = (1.0, 5.0, 0.3, 0.1)[step % 4]
    return x, np.float32(scale * (x[:, :1] - 0.5 * x[:, 1:2]))


def train(model, first, last):
    """Takes the steps `first` to `last - 1`."""
    for step in range(first, last):
        model.train_on_batch(*batch(step, model.input_shape[-1]))
    return model


def weights(model):
    """The trainable weights as arrays."""
    return [to_numpy(variable) for variable in model.trainable_variables]


def state_names(model):
    """What the optimizer keeps, in the order of the file, without the name of the model."""
    names = [variable.name for variable in model.optimizer.variables]
    return [re.sub("^.*(?=hidden|output)", "", name) for name in names]


def main():
    """Writes a file per class that has none, and the weights after as many steps more."""
    SAVED.mkdir(exist_ok=True)
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    for cls in CLASSES:
        path = SAVED / f"{cls.__name__}.keras"
        if path.exists():
            continue
        model = train(make_model(make_optimizer(cls)), 0, STEPS)
        model.save(path)
        train(model, STEPS, 2 * STEPS)
        expected[cls.__name__] = {
            "state": state_names(model),
            "continued": [w.astype("float64").round(7).tolist() for w in weights(model)],
        }
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
