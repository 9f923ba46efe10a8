"""Programs that tests start: on another backend, or with devices of their own."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def start(arguments, backend=None, **environment):
    """Starts Python with these arguments where `tests` and `examples` are found."""
    environment = {
        **os.environ,
        **environment,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    if backend is not None:
        environment["KERAS_BACKEND"] = backend
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process, timeout=300):
    """What a program printed, once it has ended well."""
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, stderr[-3000:]
    return stdout


def run_module(name, *arguments, **options):
    """Runs a module and returns what it printed."""
    return output(start(["-m", name, *arguments], **options))
