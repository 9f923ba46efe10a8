"""Records of runs that never were, for tests of what is made of records."""

from examples.training import records
from examples.training.callbacks import as_json


def record(settings, accuracy=0.5, validation=None, fired=0.3, seconds=60.0, gpus=()):
    """A record of a run with these settings.

    Args:
        settings: `recipes.Settings`.
        accuracy: Test accuracy after the last epoch.
        validation: List of the epochs' validation accuracies. Defaults to ones that rise to
            `accuracy`.
        fired: Share of corrections that fired.
        seconds: That the run took.
        gpus: Names of the machine's GPUs.
    """
    epochs = settings.epochs
    if validation is None:
        validation = [accuracy * (epoch + 1) / epochs for epoch in range(epochs)]
    test = {"accuracy": accuracy, "loss": 1.0}
    curves = {
        "loss": [2.0 / (epoch + 1) for epoch in range(epochs)],
        "val_accuracy": validation,
        "gradient_norm": [0.2] * epochs,
        "corrected_gradient_norm": [0.2 * (1 + fired)] * epochs,
    }
    if settings.test_every_epoch:
        curves["test_accuracy"] = [value + 0.01 for value in validation]
        test |= {"best_epoch": epochs, "best_epoch_accuracy": validation[-1] + 0.01}
    return {
        "schema": records.SCHEMA,
        "settings": as_json(settings.as_dict()),
        "optimizer": {},
        "model": {"name": settings.model, "parameters": 1000},
        "data": {
            "name": settings.dataset,
            "fingerprint": "made up",
            "train_examples": settings.train_size or 50_000,
            "validation_examples": 2_000,
            "test_examples": 10_000,
        },
        "epochs": curves,
        "test": test,
        "validation": {"accuracy": validation[-1], "loss": 1.0},
        "corrections": {
            "corrections_fired": fired,
            "gradient_norm": 0.2,
            "corrected_gradient_norm": 0.2 * (1 + fired),
        },
        "weights": "0",
        "seconds": seconds,
        "finished": "2026-01-01T00:00:00+00:00",
        "commit": None,
        "versions": {},
        "device": {
            "backend": "tensorflow",
            "processor": "a processor",
            "cores": 2,
            "gpus": list(gpus),
            "system": "Linux x86_64",
        },
    }
