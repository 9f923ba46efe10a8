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
from examples.training.errors import RunError

KEPT = 2
_NAME = re.compile(r"epoch-(\d{4,})-([0-9a-f]{16})\.keras")
_RUN = "run.json"
_ARRAYS = "run.npz"


class CheckpointError(RunError):
    """A checkpoint that cannot be gone on from, and what can be done about it."""


class DamagedError(ValueError):
    """A checkpoint that does not hold what its name says, with what is wrong with it."""


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
    """Brings the model to the state of the newest checkpoint that is sound.

    One that is not sound is told on a line, and put aside as `<name>.damaged`. One that does not
    fit the model is told and left, as an older state of the program may take it.

    Args:
        folder: Path of the folder.
        model: `keras.Model`, built and compiled as the saved one was, its optimizer built too.
        check: Function that is given the epoch and the saved `run` and `arrays` before the model
            is touched. It raises a `DamagedError` if they do not belong together, and anything
            else if they are another run's.

    Returns:
        `(epoch, run, arrays)`, or `None` if there is no sound checkpoint.

    Raises:
        CheckpointError: If no sound one fits the model.
    """
    misfit = None
    for epoch, path in reversed(list_all(folder)):
        try:
            state, arrays = _read(path, epoch)
            check(epoch, state["run"], arrays)
        except DamagedError as error:
            path.rename(path.with_name(f"{path.name}.damaged"))
            _say_next(f"The checkpoint {path} is damaged: {error}")
            continue
        try:
            model.load_weights(path)
            for variable, value in zip(_seed_variables(model), state["seeds"], strict=True):
                variable.assign(np.array(value, dtype=variable.dtype))
        except Exception as error:  # whatever Keras and h5py make of what they find
            if isinstance(error, OSError) and error.errno:
                raise  # it could not be read, which says nothing about the content
            reason = " ".join(str(error).split())[:300]
            problem = f"The checkpoint {path} does not fit the model: {reason}"
            misfit = misfit or problem
            _say_next(problem)
            continue
        return epoch, state["run"], arrays
    if misfit:
        raise CheckpointError(misfit)
    return None


def _say_next(problem):
    print(f"{problem}. Trying the one before it.", flush=True)


def _read(path, epoch):
    """What was saved beside the model; a DamagedError where it is not that."""
    if not is_sound(path):
        raise DamagedError("its content does not have the sum in its name")
    try:
        with zipfile.ZipFile(path) as archive:
            state = json.loads(archive.read(_RUN))
            arrays = {}
            if _ARRAYS in archive.namelist():
                with np.load(io.BytesIO(archive.read(_ARRAYS)), allow_pickle=False) as saved:
                    arrays = dict(saved)
    except (EOFError, KeyError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        raise DamagedError(f"it is not a checkpoint of a run ({error})") from error
    if not isinstance(state, dict) or not isinstance(state.get("run"), dict):
        raise DamagedError(f"its {_RUN} does not describe a run")
    if not isinstance(state.get("seeds"), list):
        raise DamagedError(f"its {_RUN} lacks the states of random layers")
    if state.get("epoch") != epoch:
        raise DamagedError(f"it is of epoch {state.get('epoch')}, and its name says {epoch}")
    return state, arrays


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
