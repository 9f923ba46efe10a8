"""Checkpoints of a run: one file per finished epoch, whole or absent, that knows its own sum.

A checkpoint is a `.keras` file (`keras.models.load_model` takes it, optimizer state included) with
one more member, `run.json`: the epoch, the curves so far, the settings, the states of the random
layers. Its name holds the epoch and the start of the file's SHA-256, so that a file that was
damaged, cut short or changed is told from a good one before anything is loaded.
"""

import contextlib
import hashlib
import io
import json
import pathlib
import re
import zipfile

import numpy as np

from examples.training import records

KEPT = 2
_NAME = re.compile(r"epoch-(\d{4,})-([0-9a-f]{16})\.keras")
_RUN = "run.json"
_ARRAYS = "run.npz"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be gone on from, and what can be done about it."""


def save(folder, model, epoch, run, arrays=None):
    """Writes the checkpoint of an epoch and removes all but the last `KEPT`.

    Args:
        folder: Path of the folder, made if it does not exist.
        model: Built and compiled `keras.Model`.
        epoch: Integer, the number of finished epochs.
        run: Dictionary that JSON can hold, given back by `load`.
        arrays: Dictionary of NumPy arrays, given back by `load`.

    Raises:
        OSError: If it cannot be written. What was there before is still there.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / ".writing.keras"
    try:
        model.save(temporary)
        with zipfile.ZipFile(temporary, "a") as archive:
            state = {"epoch": epoch, "seeds": _seeds(model), "run": run}
            archive.writestr(_RUN, json.dumps(state))
            if arrays:
                buffer = io.BytesIO()
                np.savez(buffer, **arrays)
                archive.writestr(_ARRAYS, buffer.getvalue())
        path = folder / f"epoch-{epoch:04d}-{_digest(temporary)}.keras"
        records.settle(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    for _, old in list_all(folder)[:-KEPT]:
        old.unlink()
    return path


def load(folder, model, check):
    """Brings the model to the state of the newest checkpoint.

    Args:
        folder: Path of the folder.
        model: `keras.Model`, built and compiled as the saved one was, its optimizer built too.
        check: Function that is given the saved `run` before the model is touched, and raises if
            it is another run's.

    Returns:
        `(epoch, run, arrays)`, or `None` if there is no checkpoint.

    Raises:
        CheckpointError: If the newest file is damaged or does not fit the model.
    """
    found = list_all(folder)
    if not found:
        return None
    epoch, path = found[-1]
    if not is_sound(path):
        kept = [f"epoch {number} in {good}" for number, good in found[:-1] if is_sound(good)]
        good = f"the state after {kept[-1]} is sound" if kept else "there is no sound one before it"
        raise CheckpointError(
            f"The checkpoint {path} is damaged: its content does not have the sum in its name. "
            f"{good[0].upper()}{good[1:]}; delete the damaged file to go on from there."
        )
    with zipfile.ZipFile(path) as archive:
        state = json.loads(archive.read(_RUN))
        arrays = {}
        if _ARRAYS in archive.namelist():
            with np.load(io.BytesIO(archive.read(_ARRAYS)), allow_pickle=False) as saved:
                arrays = dict(saved)
    check(state["run"])
    try:
        model.load_weights(path)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"The checkpoint {path} does not fit the model: {reason}") from error
    for variable, value in zip(_seed_variables(model), state["seeds"], strict=True):
        variable.assign(np.array(value, dtype=variable.dtype))
    return epoch, state["run"], arrays


def list_all(folder):
    """The finished checkpoints of a folder as `(epoch, path)`, oldest first."""
    with contextlib.suppress(FileNotFoundError):
        paths = pathlib.Path(folder).iterdir()
        named = [(_NAME.fullmatch(path.name), path) for path in paths]
        return sorted((int(name[1]), path) for name, path in named if name)
    return []


def is_sound(path):
    """Whether a checkpoint holds what was written to it."""
    return _NAME.fullmatch(path.name)[2] == _digest(path)


def _digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _seed_variables(model):
    """States of dropout and other random layers, which a `.keras` file leaves out."""
    saved = {id(v) for v in model.weights}
    metrics = {id(v) for v in model.metrics_variables}
    return [v for v in model.variables if id(v) not in saved | metrics]


def _seeds(model):
    return [v.numpy().tolist() for v in _seed_variables(model)]
