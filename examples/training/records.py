"""What a run leaves behind: files that are whole or absent, and the JSON record."""

import contextlib
import datetime
import json
import math
import os
import pathlib
import platform
import subprocess
import tempfile

from examples.training import checks
from examples.training.errors import RecordError, UsageError

SCHEMA = 1
_NUMBER = (int, float)
# What a record has to hold: a type, several of which one fits, a dictionary of such, or a list of
# one. There may be more.
FIELDS = {
    "schema": int,
    "settings": {
        "model": str,
        "dataset": str,
        "optimizer": str,
        "seed": int,
        "epochs": int,
        "batch_size": int,
    },
    "optimizer": {},
    "model": {"name": str, "parameters": int},
    "data": {
        "name": str,
        "train_examples": int,
        "validation_examples": int,
        "test_examples": int,
    },
    "epochs": {},
    "test": {"accuracy": float, "loss": _NUMBER},
    "validation": {"accuracy": float, "loss": _NUMBER},
    "corrections": {},
    "weights": str,
    "seconds": _NUMBER,
    "finished": str,
    "commit": (str, type(None)),
    "versions": {},
    "device": {"processor": str, "cores": int, "gpus": [str]},
}
_THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
_MAY_BE_NULL = ("validation", "corrections")
# What becomes of a reader to whom a file gives something else than it wrote.
_MISREAD = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError)
_MISREAD += (RecursionError,)


@contextlib.contextmanager
def content_of(path, advice=""):
    """Turns any error that the content of a file leads to into a RecordError that names the file.

    Args:
        path: Path of the file.
        advice: A sentence that ends the message, what to do about it.
    """
    try:
        yield
    except UsageError:
        raise
    except _MISREAD as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, LookupError):
            reason = f"nothing stands at {error}"
        told = f"{path} is damaged or of another program: {reason[:200]}. {advice}"
        raise RecordError(told.rstrip()) from error


def make_folder(folder):
    """Makes a folder, and raises an OSError at once if nothing can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        error.filename = str(folder)  # and not that of a file that nobody asked for
        raise


@contextlib.contextmanager
def replacing(path):
    """Gives a path to write to, and moves what was written to `path` once it is on the disk.

    A reader, or a process started after a kill, sees the old file or the new one, never a part.
    """
    path = pathlib.Path(path)
    # A part of the name, so that the longest name that the system takes can be written too.
    temporary = path.with_name(f".{path.stem[:50]}.writing{path.suffix}")
    try:
        yield temporary
        settle(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError) and str(error.filename) == str(temporary):
            error.filename = str(path)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def settle(temporary, path):
    """Brings a written file to the disk, then under its name: either name holds a whole file."""
    with open(temporary, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    # Windows can't open a folder, and needs no call to keep a rename.
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def of_kind(path, kind, program):
    """The record that a benchmark wrote to a file.

    Args:
        path: `pathlib.Path` of the file.
        kind: String, its `"kind"`.
        program: String, the command that writes it, for the message.

    Raises:
        RecordError: If the file holds something else.
    """
    record = load(path)
    if not isinstance(record, dict) or record.get("kind") != kind:
        raise RecordError(f"{path} is not a record of {program}")
    return record


def check_output(path, load, program):
    """Raises an error if a record cannot stand there, before minutes are spent on it.

    Args:
        path: `pathlib.Path` of the record that is to be written.
        load: Function that reads such a record.
        program: String, the command that writes it, for the message.

    Raises:
        UsageError: If there is a file of another kind.
        OSError: If nothing can be written there.
    """
    make_folder(path.parent)
    if path.exists():
        try:
            load(path)
        except (OSError, RecordError) as error:
            allowed = f"a record of {program} or a new file ({error})"
            raise checks.refused("output", allowed, path) from error


def write(path, record):
    """Writes a record as JSON, whole or not at all.

    Raises:
        RecordError: If it is not a record that `read` would take.
    """
    record = _without_nan(record)
    validate(record, path)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")


def read(path):
    """Reads a record and checks it.

    Raises:
        RecordError: If the file is damaged or not a record.
    """
    record = load(path)
    validate(record, path)
    return record


def load(path):
    """What a JSON file holds, whatever it is.

    Raises:
        RecordError: If the file is damaged.
    """
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not a record: {error}") from error


def validate(record, path="record"):
    """Checks that all fields are there, of the right kind, and that the curves are whole.

    Raises:
        RecordError: Naming the file and the first field that is wrong.
    """
    if not isinstance(record, dict):
        raise RecordError(f"{path} is not a record: an object is expected")
    schema = record.get("schema")
    if schema != SCHEMA and _is_a(schema, int):
        raise RecordError(f"{path} has schema {schema}, this program reads {SCHEMA}")
    if problem := _misfit(record, FIELDS):
        raise RecordError(f"{path} is not a record: {problem}")
    epochs = record["settings"]["epochs"]
    for name, curve in record["epochs"].items():
        if not isinstance(curve, list) or len(curve) != epochs:
            raise RecordError(f"{path}: the curve `{name}` does not have {epochs} values")
        if not all(value is None or _is_a(value, _NUMBER) for value in curve):
            raise RecordError(f"{path}: the curve `{name}` has a value that is no number")
    accuracy = record["test"]["accuracy"]
    if not 0 <= accuracy <= 1:
        raise RecordError(f"{path}: `test.accuracy` is {accuracy!r}, not between 0 and 1")


def _misfit(value, wanted, name=""):
    """The first entry that is not as `FIELDS` has it, in words, or `None`."""
    if name in _MAY_BE_NULL and value is None:
        return None
    told = f"`{name}` is {value!r:.100}"
    if isinstance(wanted, list):
        fits = isinstance(value, list) and all(isinstance(one, wanted[0]) for one in value)
        return None if fits else told
    if not isinstance(wanted, dict):
        return None if _is_a(value, wanted) else told
    if not isinstance(value, dict):
        return told
    for key, inner in wanted.items():
        inner_name = f"{name}.{key}" if name else key
        if key not in value:
            return f"`{inner_name}` is missing"
        if problem := _misfit(value[key], inner, inner_name):
            return problem
    return None


def _is_a(value, kind):
    return isinstance(value, kind) and not isinstance(value, bool)


def _without_nan(value):
    """JSON has no NaN: an epoch of which nothing was observed is null."""
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def now():
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def origin():
    """What a result comes from, for its record: commit, versions and device."""
    return {"commit": commit(), "versions": versions(), "device": device()}


def commit():
    """The git commit that this file is checked out from, with `+` for local changes, or None."""
    folder = pathlib.Path(__file__).parent

    def git(*arguments):
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # An installed copy inside another project's repository has no commit of its own.
        if not git("ls-files", pathlib.Path(__file__).name):
            return None
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def versions():
    """Versions of what computes the result."""
    from importlib import metadata

    installed = {"python": platform.python_version()}
    for name in ("keras-adanorm", "keras", "tensorflow", "jax", "torch", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def device():
    """The machine: processor, cores, accelerators, backend, and bounds on threads if any is set.

    The number of threads decides the last digits of a result.
    """
    import keras

    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count())
    return {
        "backend": keras.backend.backend(),
        "processor": _processor(),
        "cores": len(cores),
        "gpus": _gpus(keras.backend.backend()),
        "threads": {name: os.environ[name] for name in _THREADS if name in os.environ},
        "system": f"{platform.system()} {platform.machine()}",
    }


def _gpus(backend):
    """The names of the GPUs that the backend sees."""
    if backend == "jax":
        import jax

        return [device.device_kind for device in jax.devices() if device.platform == "gpu"]
    if backend == "torch":
        import torch

        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    import tensorflow as tf

    details = tf.config.experimental.get_device_details
    gpus = tf.config.list_physical_devices("GPU")
    return [details(gpu).get("device_name", gpu.name) for gpu in gpus]


def _processor():
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
