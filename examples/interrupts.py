"""Ctrl-C while a program of this repository is still being imported: one line and status 130.

A package calls `handle` before it imports anything else; from then on `command_line.run` has
handlers of its own. Nothing is imported here that is not there already.
"""

import os
import sys

# `signal` imports `enum`, which takes longer than all else before a program is imported.
try:
    import _signal as signal
except ImportError:
    import signal


def handle(package):
    """Handles Ctrl-C from now on, if this process is `python -m` of a program of the package."""
    program = _program()
    if not program.startswith(f"{package}."):
        return

    def end(number, frame):
        sys.stderr.write(f"python -m {program}: error: interrupted\n")
        sys.stderr.flush()
        os._exit(128 + number)

    signal.signal(signal.SIGINT, end)


def _program():
    """What is being started by `python -m`, or nothing: only then is `argv` not set yet."""
    if sys.argv[:1] != ["-m"]:
        return ""
    arguments = sys.orig_argv
    return arguments[arguments.index("-m") + 1] if "-m" in arguments[:-1] else ""
