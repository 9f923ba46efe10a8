"""What a run leaves behind: files that are whole or absent, and the JSON record."""

import contextlib
import datetime
import json
import math
import os
import pathlib
import platform
import subprocess

from examples.training.errors import RecordError

SCHEMA = 1
FIELDS = {
    "schema": int,
    "settings": dict,
    "optimizer": dict,
    "model": dict,
    "data": dict,
    "epochs": dict,
    "test": dict,
    "validation": (dict, type(None)),
    "corrections": (dict, type(None)),
    "weights": str,
    "seconds": (int, float),
    "finished": str,
    "commit": (str, type(None)),
    "versions": dict,
    "device": dict,
}


@contextlib.contextmanager
def replacing(path):
    """Gives a path to write to, and moves what was written to `path` once it is on the disk.

    A reader, or a process started after a kill, sees the old file or the new one, never a part.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.stem}.writing{path.suffix}")
    try:
        yield temporary
        settle(temporary, path)
    except BaseException:
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
    try:
        record = json.loads(pathlib.Path(path).read_text())
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not a record: {error}") from error
    validate(record, path)
    return record


def read_all(folder):
    """All records under a folder, as `{path: record}` in the order of their paths."""
    return {path: read(path) for path in sorted(pathlib.Path(folder).rglob("record*.json"))}


def validate(record, path="record"):
    """Checks that all fields are there, of the right kind, and that the curves are whole.

    Raises:
        RecordError: Naming the file and the first field that is wrong.
    """
    if not isinstance(record, dict):
        raise RecordError(f"{path} is not a record: an object is expected")
    for name, type_ in FIELDS.items():
        if name not in record:
            raise RecordError(f"{path} is not a record: `{name}` is missing")
        if not isinstance(record[name], type_) or isinstance(record[name], bool):
            raise RecordError(f"{path} is not a record: `{name}` is {record[name]!r}")
    if record["schema"] != SCHEMA:
        raise RecordError(f"{path} has schema {record['schema']}, this program reads {SCHEMA}")
    for name in ("model", "dataset", "optimizer", "seed", "epochs"):
        if name not in record["settings"]:
            raise RecordError(f"{path} is not a record: `settings.{name}` is missing")
    epochs = record["settings"]["epochs"]
    for name, curve in record["epochs"].items():
        if not isinstance(curve, list) or len(curve) != epochs:
            raise RecordError(f"{path}: the curve `{name}` does not have {epochs} values")
    accuracy = record["test"].get("accuracy")
    if not isinstance(accuracy, float) or not 0 <= accuracy <= 1:
        raise RecordError(f"{path}: `test.accuracy` is {accuracy!r}, not between 0 and 1")


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
    """The machine: processor, cores, accelerators, backend."""
    import keras

    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count())
    return {
        "backend": keras.backend.backend(),
        "processor": _processor(),
        "cores": len(cores),
        "gpus": _gpus(keras.backend.backend()),
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
