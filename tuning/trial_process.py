"""Trains in a process of its own, which gives memory and accelerator back when it ends.

The parent writes a job as JSON on the child's standard input and keeps that open: once it is
closed the parent is gone, and the child ends too. The child's answer is a line of JSON on its
standard error. So an answer reaches the parent even from a disk that is full, and a child that
ends without one has crashed.

Only a child that trained to the end, or to a loss that is no number, gives an answer about the
trial. Everything else (a full disk, no memory, a damaged file) says nothing about its settings.
"""

import collections
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import traceback

from examples.training.errors import DivergedError, LockedError, RunError, UsageError
from examples.training.recipes import Settings

# The outcomes of a job.
DONE, DIVERGED, REFUSED, STOPPED = "done", "diverged", "refused", "stopped"
ERRORS = "errors.txt"
_ANSWER = "tuning.trial_process answers: "
_LONGEST_MESSAGE = 1000
_KEPT_LINES = 100


class TrialDiverged(Exception):
    """A loss, weight or score that is not finite: the doing of the trial's settings."""


class ProcessStopped(RunError):
    """Why a process could not train to the end; its settings are not to blame."""


def describe(settings, data_dir=None):
    """Checks settings and data, and says what they are trained on.

    Args:
        settings: `examples.training.recipes.Settings`.
        data_dir: Path that is handed to `examples.training.data.load`.

    Returns:
        Dictionary: the data's `fingerprint`, and `commit`, `versions` and `device` of this machine.

    Raises:
        UsageError: If a setting is wrong, or there are no such data.
        ProcessStopped: If the process could not end.
    """
    job = {"task": "describe", "settings": settings.as_dict(), "data_dir": _path(data_dir)}
    return _result(start(job))


def train(runs, data_dir=None, verbose=0):
    """Trains one run after the other in one process, unless that is done already.

    Args:
        runs: List of `(settings, folder, keep_model)`, as in `examples.training.run.train`.
        data_dir: Path that is handed to `examples.training.data.load`.
        verbose: 0, 1 or 2, as in `keras.Model.fit`.

    Raises:
        TrialDiverged: If a loss or a weight is not finite.
        UsageError: If a setting is wrong, or there are no such data.
        ProcessStopped: If the process could not end, for any other reason.
    """
    job = {
        "task": "train",
        "runs": [[run.as_dict(), _path(folder), keep] for run, folder, keep in runs],
        "data_dir": _path(data_dir),
        "verbose": verbose,
    }
    _result(start(job), pathlib.Path(runs[0][1]).parent)


def _path(path):
    return None if path is None else str(path)


def _result(answer, folder=None):
    """What a job gave, or the exception that its outcome stands for."""
    outcome, message = answer["outcome"], answer.get("message")
    if outcome == DONE:
        return answer.get("result")
    if outcome == DIVERGED:
        raise TrialDiverged(message)
    if outcome == REFUSED:
        raise UsageError(message)
    if folder is not None and answer.get("errors"):
        # A disk that is full has no room for this either.
        with contextlib.suppress(OSError):
            (folder / ERRORS).write_text(answer["errors"])
            message += f" Its messages are in {folder / ERRORS}."
    raise ProcessStopped(message)


def start(job):
    """Does a job in a new process and returns its answer, a dictionary with an `outcome`."""
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from tuning import trial_process; trial_process.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # Ctrl-C on the terminal reaches the parent alone, which then ends the child.
        start_new_session=True,
    )
    answer = None
    last_lines = collections.deque(maxlen=_KEPT_LINES)
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        for line in process.stderr:
            if line.startswith(_ANSWER):
                answer = json.loads(line.removeprefix(_ANSWER))
            else:
                last_lines.append(line)
        status = process.wait()
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stderr.close()
    if answer is None:
        answer = {"outcome": STOPPED, "message": _crash(status), "errors": "".join(last_lines)}
    return answer


def _crash(status):
    if status >= 0:
        return f"The process that trained ended with exit status {status}."
    why = ", often because memory ran out" if status == -signal.SIGKILL else ""
    return f"The process that trained was killed by {signal.Signals(-status).name}{why}."


def main():
    """Does the job that stands on standard input, and answers on standard error."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer = json.dumps(perform(job))
    sys.stdout.flush()
    print(f"\n{_ANSWER}{answer}", file=sys.stderr, flush=True)


def _end_with_parent():
    sys.stdin.read()
    os._exit(1)


def perform(job):
    """Does a job in this process and returns its answer."""
    try:
        return {"outcome": DONE, "result": _TASKS[job["task"]](job)}
    except DivergedError as error:
        outcome, reason, errors = DIVERGED, f"{type(error).__name__}: {error}", None
    except UsageError as error:
        outcome, reason, errors = REFUSED, str(error), None
    except (OSError, RunError) as error:
        outcome, reason, errors = STOPPED, str(error), None
    except Exception as error:
        # Nobody expected this one: where it came from helps.
        outcome, reason = STOPPED, f"{type(error).__name__}: {error}"
        errors = traceback.format_exc()
    message = " ".join(reason.split())
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + " ..."
    return {"outcome": outcome, "message": message, "errors": errors}


def _describe(job):
    from examples.training import records, run
    from tuning.hypermodel import ExampleHyperModel

    settings = Settings(**job["settings"])
    run.check(settings)
    try:
        images = ExampleHyperModel(settings, data_dir=job["data_dir"]).data
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error
    return {
        "fingerprint": images.fingerprint,
        **records.origin(),
    }


def _train(job):
    for settings, folder, keep_model in job["runs"]:
        _train_run(Settings(**settings), folder, job["data_dir"], job["verbose"], keep_model)


def _train_run(settings, folder, data_dir, verbose, keep_model):
    from examples.training import run

    set_aside_damaged(pathlib.Path(folder))
    said = False
    while True:
        try:
            run.train(settings, folder, data_dir, verbose, keep_model=keep_model)
            return
        except LockedError as error:
            # The trial was handed on by mistake: the process that had it is still at it.
            if not said:
                print(f"{error} Waiting for it to end.", flush=True)
            said = True
            time.sleep(1)


def set_aside_damaged(folder):
    """Puts a run's damaged files where they do no harm: it goes on from what it had before them."""
    from examples.training import checkpoint, records, run
    from tuning.project import read_record

    checkpoints = checkpoint.list_all(folder / "checkpoints")
    damaged = [path for _, path in checkpoints if not checkpoint.is_sound(path)]
    if (folder / run.RECORD).exists():
        try:
            read_record(folder / run.RECORD)
        except records.RecordError:
            damaged.append(folder / run.RECORD)
    for path in damaged:
        aside = path.with_name(f"{path.name}.damaged")
        os.replace(path, aside)
        print(f"{path} is damaged, and is now {aside.name}; the run goes on without it", flush=True)


_TASKS = {"describe": _describe, "train": _train}
