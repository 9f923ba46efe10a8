"""Callbacks of a run: stop at a loss that is no number, score the test set, keep the state."""

import contextlib
import csv
import json
import math
import time

import keras

from examples.training import checkpoint, records
from examples.training.errors import DivergedError, RunError

CURVES = {"learning_rate", "loss", "accuracy", "seconds"}  # those that every run has


class StopOnNonFinite(keras.callbacks.Callback):
    """Ends the run at the first loss or weight that is not finite, before anything is saved.

    The loss is that of a training step, or of an epoch's validation images.

    Args:
        keeper: `Keeper` of the run, which knows the last good state.
    """

    def __init__(self, keeper):
        super().__init__()
        self._keeper = keeper

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch, logs=None):
        if not math.isfinite(logs["loss"]):
            self._stop(f"The loss is {logs['loss']} at step {batch + 1} of epoch {self._epoch}.")

    def on_epoch_end(self, epoch, logs=None):
        for weight in self.model.weights:
            if not keras.ops.all(keras.ops.isfinite(weight)):
                self._stop(f"{weight.path} is not finite after epoch {self._epoch}.")
        if not math.isfinite(logs.get("val_loss", 0.0)):
            self._stop(f"The validation loss is {logs['val_loss']} after epoch {self._epoch}.")

    def _stop(self, what):
        raise DivergedError(f"{what} A smaller learning rate may help. {self._keeper.last_good()}")


class TestEveryEpoch(keras.callbacks.Callback):
    """Adds the test set's loss and accuracy to the logs of each epoch.

    Args:
        test: `tf.data.Dataset` of the test set.
    """

    __test__ = False  # not a test, whatever its name says to pytest

    def __init__(self, test):
        super().__init__()
        self._test = test

    def on_epoch_end(self, epoch, logs=None):
        results = self.model.evaluate(self._test, verbose=0, return_dict=True)
        logs.update({f"test_{name}": value for name, value in results.items()})


class Keeper(keras.callbacks.Callback):
    """Keeps the curves and the state: a checkpoint and `metrics.csv` after every epoch.

    It belongs at the end of the list, so that it writes down what all the others have seen.

    Args:
        output_dir: `pathlib.Path` of the run's folder.
        identity: Dictionary that says which run this is, `{"settings": ..., "data": ...,
            "backend": ...}`.
        monitor: `GradientNormMonitor` of the run, or `None`.
    """

    def __init__(self, output_dir, identity, monitor=None):
        super().__init__()
        self.output_dir = output_dir
        self.folder = output_dir / "checkpoints"
        self.identity = as_json(identity)
        self.monitor = monitor
        self.curves = {}

    def restore(self, model):
        """Takes up the newest checkpoint, if there is one, and returns its epoch, or 0.

        Raises:
            RunError: If the checkpoint is damaged, another run's, or cannot be read.
        """
        with files_of(self.output_dir):
            saved = checkpoint.load(self.folder, model, self._check)
            if saved is None:
                return 0
            epoch, run, arrays = saved
            self.curves = run["curves"]
            if self.monitor is not None and arrays:
                self.monitor.set_state(arrays)
            self._write_csv()
        return epoch

    def last_good(self):
        """A sentence that says where the last good state is."""
        saved = checkpoint.list_all(self.folder)
        if not saved:
            return "No epoch was finished before."
        return f"The state after epoch {saved[-1][0]} is kept in {saved[-1][1]}."

    def on_epoch_begin(self, epoch, logs=None):
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        row = {
            "learning_rate": self.model.optimizer.learning_rate,
            **logs,
            "seconds": round(time.perf_counter() - self._began, 3),
        }
        for name, value in row.items():
            self.curves.setdefault(name, []).append(float(value))
        per_step = self.monitor is not None and self.monitor.per_step
        with files_of(self.output_dir, self):
            checkpoint.save(
                self.folder,
                self.model,
                epoch + 1,
                run={**self.identity, "curves": self.curves},
                arrays=self.monitor.get_state() if per_step else None,
            )
            self._write_csv()

    def _write_csv(self):
        # Written anew from what the checkpoint holds: a run that was cut short leaves no row twice.
        with records.replacing(self.output_dir / "metrics.csv") as temporary:
            with open(temporary, "w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["epoch", *self.curves])
                rows = zip(*self.curves.values(), strict=True)
                writer.writerows([epoch, *row] for epoch, row in enumerate(rows, start=1))

    def _check(self, epoch, run, arrays):
        """What a checkpoint holds must be this run's, and as long as its name says."""
        if not isinstance(run.get("settings"), dict) or not isinstance(run.get("curves"), dict):
            raise checkpoint.DamagedError("it lacks the settings or the curves of a run")
        # One that was written before the backend was noted is of the backend that goes on.
        saved = {name: run.get(name, self.identity["backend"]) for name in self.identity}
        if saved != self.identity:
            raise RunError(
                f"The checkpoint in {self.folder} belongs to another run: "
                f"{difference(saved, self.identity)}. Give this run an output folder of its own, "
                "or delete that one."
            )
        epochs = self.identity["settings"]["epochs"]
        curves = run["curves"]
        lengths = {len(curve) if isinstance(curve, list) else 0 for curve in curves.values()}
        if epoch > epochs or lengths != {epoch}:
            raise checkpoint.DamagedError(f"its curves are not of {epoch} of {epochs} epochs")
        if lacking := CURVES - curves.keys():
            raise checkpoint.DamagedError(f"it lacks the curve of {sorted(lacking)[0]}")
        if not all(isinstance(value, int | float) for curve in curves.values() for value in curve):
            raise checkpoint.DamagedError("its curves have a value that is no number")
        if self.monitor is not None and self.monitor.per_step and not _is_of_a_monitor(arrays):
            raise checkpoint.DamagedError("it lacks the norms of all steps")


def _is_of_a_monitor(arrays):
    """Whether arrays are what `GradientNormMonitor.get_state` gives."""
    try:
        steps, names = arrays["iterations"], arrays["variable_names"]
        norms = arrays["gradient_norms"], arrays["corrected_gradient_norms"]
    except KeyError:
        return False
    kinds = [array.dtype.kind for array in (steps, names, *norms)]
    shapes = {array.shape for array in norms}
    return kinds == ["i", "U", "f", "f"] and shapes == {steps.shape + names.shape}


@contextlib.contextmanager
def files_of(output_dir, keeper=None):
    """Turns a file error (full disk, read-only folder) into a RunError that says what is kept."""
    try:
        yield
    except OSError as error:
        kept = f" {keeper.last_good()}" if keeper is not None else ""
        reason = error.strerror or error
        file = error.filename2 or error.filename
        where = f" ({file})" if file and str(file) != str(output_dir) else ""
        raise RunError(
            f"Cannot use the output folder {output_dir}: {reason}{where}.{kept}"
        ) from error


def difference(saved, wanted):
    """The first entry in which two identities differ, in words."""
    for name, here in wanted["settings"].items():
        there = saved["settings"].get(name)
        if there != here:
            return f"its {name} is {there}, not {here}"
    for name in saved["settings"].keys() - wanted["settings"].keys():
        return f"it has the setting {name}, which is not known here"
    for name in wanted.keys() - {"settings"}:
        if saved.get(name) != wanted[name]:
            return f"its {name} is {saved.get(name)}, not {wanted[name]}"
    return "it is the same"


def as_json(value):
    """The value as it comes back from a JSON file, where tuples are lists."""
    return json.loads(json.dumps(value))
