"""A training run that takes no time, for tests of what is built around it."""

import math
import os
import pathlib
import time

from examples.training import records, run
from examples.training.errors import DivergedError
from examples.training.recipes import Settings
from tests.support.tiny import TINY
from tuning import trial_process
from tuning.search import Plan
from tuning.space import OptimizerSpace


def tiny(**changes):
    return Settings(**(TINY | changes))


TUNERS = {
    "random": {"max_trials": 5},
    "bayesian": {"max_trials": 8},
    "hyperband": {},
    "grid": {},
}


def plan(tuner="random", seed=0, epochs=4, optimizer="AdamNorm", **changes):
    points = 2 if tuner == "grid" else None
    space = OptimizerSpace(optimizer, points=points)
    changes = TUNERS[tuner] | changes
    return Plan(tiny(seed=seed, epochs=epochs, optimizer=optimizer), space, tuner, **changes)


def in_this_process(patch):
    """Does the jobs of `tuning.trial_process` here, where what they call can be replaced."""
    patch.setattr(trial_process, "start", trial_process.perform)


def accuracy(settings):
    """What a fake run reaches: best at a learning rate of 0.002, a little better with a seed."""
    gamma = settings.optimizer_arguments.get("gamma", 0.95)
    far = abs(math.log10(settings.learning_rate / 0.002)) + abs(gamma - 0.95)
    return max(0.0, 0.9 - 0.2 * far + 0.001 * (settings.seed % 7))


class FakeTrain:
    """Stands in for `examples.training.run.train`: writes a record, and a file as the model.

    Args:
        failing: Function of the settings that says whether the loss is no number.
        seconds: How long a run takes.
    """

    def __init__(self, failing=lambda settings: False, seconds=0.0):
        self.failing = failing
        self.seconds = seconds
        self.trained = []

    def __call__(self, settings, output_dir, data_dir=None, verbose=0, keep_model=True):
        output_dir = pathlib.Path(output_dir)
        if (output_dir / run.RECORD).exists():
            return records.read(output_dir / run.RECORD)
        self.trained.append((settings, output_dir))
        output_dir.mkdir(parents=True, exist_ok=True)
        with open(output_dir / "started", "a") as file:
            file.write(f"{os.environ.get('KERASTUNER_TUNER_ID')}\n")
        time.sleep(self.seconds)
        if self.failing(settings):
            raise DivergedError("The loss is nan at step 3 of epoch 1.")
        if keep_model:
            (output_dir / "model.keras").touch()
        record = record_of(settings)
        records.write(output_dir / run.RECORD, record)
        return record


def record_of(settings):
    last = accuracy(settings)
    curve = [last + 0.05] * (settings.epochs - 1) + [last]  # its best epoch is not its last
    return {
        "schema": records.SCHEMA,
        "settings": settings.as_dict(),
        "optimizer": {
            "module": "keras_adanorm",
            "class_name": settings.optimizer,
            "config": {"learning_rate": settings.learning_rate} | settings.optimizer_arguments,
            "registered_name": f"keras_adanorm>{settings.optimizer}",
        },
        "model": {"name": settings.model, "parameters": 1},
        "data": {
            "name": settings.dataset,
            "fingerprint": "fake",
            "train_examples": 96,
            "validation_examples": 32,
            "test_examples": 200,
        },
        "epochs": {"val_accuracy": curve},
        "test": {"accuracy": last - 0.01, "loss": 1.0},
        "validation": {"accuracy": last, "loss": 1 - last},
        "corrections": None,
        "weights": "",
        "seconds": 1.5,
        "finished": "2026-01-01T00:00:00+00:00",
        "commit": None,
        "versions": {},
        "device": {"processor": "a processor", "cores": 2, "gpus": []},
    }
