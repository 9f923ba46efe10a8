"""What the command lines of the examples and of the tuning share: how they end, and their words."""

import contextlib
import os
import signal
import sys
import threading

from examples.training.errors import RunError, UsageError

REPEAT_AFTER = 3.0  # seconds
NEEDS = {"examples": "pip install -e '.[examples]'", "tuning": "pip install -e '.[tuning]'"}


def run(prog, action, after_interrupt=""):
    """Runs a program and returns its exit status. What ends it early is told on one line.

    The status is 2 for a wrong option, 1 for anything else that keeps the program from going on,
    and 130 after Ctrl-C, at whatever moment it comes.

    Args:
        prog: What the user types, `"python -m examples.train"`.
        action: Function that does all of it, the reading of the command line included, and
            returns a status.
        after_interrupt: What is said after "interrupted", such as that the same command goes on.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # The name of a file may have characters that the terminal's encoding lacks.
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stdout is None:  # it was closed before the program began
        sys.stdout = open(os.devnull, "w")
    signals = []
    interrupted = f"interrupted; {after_interrupt}" if after_interrupt else "interrupted"

    def interrupt(number, frame):
        signals.append(number)
        # An import, or a callback of a library, can swallow the interrupt: it is repeated.
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, REPEAT_AFTER)
        raise KeyboardInterrupt

    def end(unraisable):
        # Raised inside a callback that lets nothing through, it would be lost.
        if signals and issubclass(unraisable.exc_type, KeyboardInterrupt):
            os._exit(complain(prog, interrupted, 128 + signals[0]))
        sys.__unraisablehook__(unraisable)

    with _handled(interrupt, end):
        try:
            return action()
        except UsageError as error:
            reason, status = error, 2
        except RunError as error:
            reason, status = error, 1
        except OSError as error:
            named = error.filename is not None
            reason, status = f"{error.strerror}: {error.filename}" if named else error, 1
        except ImportError as error:
            folder = prog.removeprefix("python -m ").partition(".")[0]
            reason, status = f"{error}. This needs: {NEEDS[folder]}", 1
        except KeyboardInterrupt:
            signals.append(signal.SIGINT)
        except Exception:
            # An import that is interrupted can end in an error of another name.
            if not signals:
                raise
    if signals:
        # Python remembers an interrupt inside of `exec` of a text, which many imports do, and would
        # end by the signal instead of with the status. The next such `exec` makes it forget.
        exec("")
        status = complain(prog, interrupted, 128 + signals[0])
        if _is_running(prog):
            # A library that was interrupted in its import can crash as Python takes it down.
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(status)
        return status
    return complain(prog, reason, status)


def _is_running(prog):
    """Whether this process is the program, and not one that has called it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and f"python -m {spec.name.removesuffix('.__main__')}" == prog


class _handled:
    """Handles Ctrl-C, and the request of a scheduler to end, while the block runs."""

    def __init__(self, handler, unraisable):
        self._handler = handler
        self._unraisable = unraisable
        self._before = {}

    def __enter__(self):
        self._unraisable_before = sys.unraisablehook
        sys.unraisablehook = self._unraisable
        # Python lets no other thread set a handler.
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGALRM"):
                if number := getattr(signal, name, None):
                    self._before[number] = signal.signal(number, self._handler)

    def __exit__(self, *error):
        sys.unraisablehook = self._unraisable_before
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)


def counted(number, noun):
    """A number with its noun.

    >>> counted(1, "epoch"), counted(2, "epoch")
    ('1 epoch', '2 epochs')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def complain(prog, reason, status):
    """Says on one line why a program ends, and returns the status that it ends with."""
    print(f"{prog}: error: {' '.join(str(reason).split())}", file=sys.stderr)
    return status
