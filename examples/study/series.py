"""Carries out a series of runs, once each, whoever starts it and how often it is stopped.

The folder of a series holds a record per run, `<folder>/<run>.json`, and what is needed on the
way in `<folder>/work`. Processes and machines that share the folder share the work.
"""

import collections
import contextlib
import json
import pathlib
import shutil
import statistics
import time

import keras
import numpy as np

from examples.study import arms, cost
from examples.training import callbacks, locks, records, run
from examples.training.command_line import counted
from examples.training.errors import DivergedError, LockedError, RecordError, RunError

POLL = 15.0
MEASURED = ("gradient_norms", "corrected_gradient_norms")
STATES = ("done", "failed", "running", "open")


class Series:
    """The records of a folder.

    Args:
        folder: Path of the folder, made if it does not exist.
    """

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def record(self, planned):
        """The record of a run, or `None` where it is not done or failed.

        Raises:
            RunError: If what stands there was made with other settings, or is damaged.
        """
        record = self._read(planned)
        return None if record is None or "failed" in record else record

    def failure(self, planned):
        """Why a run failed, or `None`."""
        return (self._read(planned) or {}).get("failed")

    def done(self, planned):
        """Whether a run has ended, well or badly."""
        return self._read(planned) is not None

    def execute(self, planned, data_dir=None, patience=POLL):
        """Trains what is not done, and returns when all is done.

        A run that diverges is recorded as failed, with its reason, and the series goes on.

        Args:
            planned: List of `experiments.PlannedRun`.
            data_dir: Path that is handed to `examples.training.data.load`.
            patience: Seconds between two looks at what others are doing.

        Raises:
            RunError, UsageError: If a run cannot be made on this machine. What is done is kept.
        """
        began = time.monotonic()
        open_before = sum(not self.done(one) for one in planned)
        _say(
            f"{counted(len(planned), 'run')}, {len(planned) - open_before} of them done, "
            f"in {self.folder}"
        )
        waited_for = None
        while waiting := [one for one in planned if not self.done(one)]:
            idle = True
            for one in waiting:
                if (ended := self._attempt(one, data_dir)) is None:
                    continue
                idle = False
                left = sum(not self.done(other) for other in planned)
                elapsed = time.monotonic() - began
                _say(
                    f"[{len(planned) - left}/{len(planned)}] {_name(one)}: "
                    f"{ended}{_remaining(elapsed, open_before - left, left)}"
                )
            if idle and (waiting := [one for one in waiting if not self.done(one)]):
                if waiting != waited_for:
                    _say(
                        f"Waiting for other processes to end {counted(len(waiting), 'run')}, "
                        f"first {_name(waiting[0])} (lock: {self._lock(waiting[0])})"
                    )
                    waited_for = waiting
                time.sleep(patience)

    def state(self, planned):
        """One of `STATES`. A running one is locked by the process that trains it."""
        if (ended := self._read(planned)) is not None:
            return "failed" if "failed" in ended else "done"
        return "running" if locks.held(self._lock(planned)) else "open"

    def describe(self, planned, rate, machine):
        """What there is to do, in words: every run with its state, and an estimate of the time.

        The time of an open run is the median of those of its size that have ended, or else what
        `examples.study.cost` computes.

        Args:
            planned: List of `experiments.PlannedRun`.
            rate: Positive float, multiply-adds a second, for what was not measured.
            machine: The machine that has it, in words.
        """
        states = [self.state(one) for one in planned]
        counts = collections.Counter(states)
        lines = [f"{state:<8}{_name(one)}" for one, state in zip(planned, states, strict=True)]
        told = ", ".join(f"{counts[state]} {state}" for state in STATES)
        lines.append(f"{counted(len(planned), 'run')}: {told}; in {self.folder}")
        measured, computed = [], []
        for one, state in zip(planned, states, strict=True):
            if state in ("open", "running"):
                if (seconds := self.seconds(one)) is not None:
                    measured.append(seconds)
                else:
                    computed.append(cost.seconds(one.settings, rate))
        if measured:
            lines.append(
                f"{counted(len(measured), 'run')} of a size that was run before: "
                f"{duration(sum(measured))}, at its median time"
            )
        if computed:
            lines.append(
                f"{counted(len(computed), 'run')} of a size that was never run: "
                f"{duration(sum(computed))}, computed and not measured, for {machine} at "
                f"{rate:.0e} multiply-adds a second"
            )
        return "\n".join(lines)

    def seconds(self, planned):
        """The median seconds of the ended runs with the run's data, model and batch size.

        `None` where there is none.
        """
        alike = []
        for path in sorted((self.folder / planned.path).parent.glob("*.json")):
            # Whatever else lies there is nobody's run.
            with contextlib.suppress(RecordError):
                record = records.read(path)
                if record["settings"].get("batch_size") == planned.settings.batch_size:
                    alike.append(record["seconds"])
        return statistics.median(alike) if alike else None

    def _attempt(self, planned, data_dir):
        """Trains a run and says how it ended, or `None` where another process trains it."""
        lock = self._lock(planned)
        with contextlib.ExitStack() as stack:
            try:
                with callbacks.files_of(self.folder):
                    lock.parent.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(locks.hold(lock, "training"))
                # Another process may have ended it in the meantime.
                return None if self.done(planned) else self._train(planned, data_dir)
            except LockedError:
                return None

    def _train(self, planned, data_dir):
        """Trains a run and says how it ended."""
        keras.utils.clear_session()
        folder = self._working_folder(planned)
        try:
            record = run.train(
                planned.settings, folder, data_dir=data_dir, verbose=0, keep_model=False
            )
            ended = f"test {record['test']['accuracy']:.2%}, {record['seconds']:.0f} s"
            if planned.settings.monitor == "step":
                with np.load(folder / run.NORMS) as norms:
                    ratio = arms.first_moment_ratio(*map(norms.get, MEASURED))
                record["corrections"]["first_moment_ratio"] = ratio
            self._write(planned, record)
        except DivergedError as error:
            failed = {"settings": planned.settings.as_dict(), "failed": str(error)}
            self._write(planned, failed | {"commit": records.commit(), "finished": records.now()})
            ended = f"failed. {error}"
        shutil.rmtree(folder, ignore_errors=True)
        return ended

    def _write(self, planned, record):
        path = self.folder / planned.path
        with callbacks.files_of(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            if "failed" in record:
                with records.replacing(path) as temporary:
                    temporary.write_text(json.dumps(record, indent=1) + "\n")
            else:
                records.write(path, record)

    def _read(self, planned):
        path = self.folder / planned.path
        if not path.exists():
            return None
        try:
            record = records.load(path)
            if not isinstance(record, dict) or "failed" not in record:
                records.validate(record, path)
            elif not isinstance(record.get("settings"), dict):
                raise RecordError(f"{path} is not a record: `settings` is missing")
        except RecordError as error:
            raise RunError(f"{error}. Delete it to train again.") from error
        wanted = {"settings": callbacks.as_json(planned.settings.as_dict())}
        if record["settings"] != wanted["settings"]:
            raise RunError(
                f"{path} belongs to another run: {callbacks.difference(record, wanted)}. "
                "Use another folder, or delete it."
            )
        return record

    def _working_folder(self, planned):
        return self.folder / "work" / _name(planned).replace("/", "_")

    def _lock(self, planned):
        folder = self._working_folder(planned)
        return folder.with_name(f"{folder.name}.lock")


def _name(planned):
    return planned.path.removesuffix(".json")


def duration(seconds):
    """A time in words: `"40 s"`, `"12 min"`, `"3.5 h"`.

    >>> duration(40), duration(700), duration(12_600)
    ('40 s', '12 min', '3.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _remaining(elapsed, finished, left):
    """What is left, at the pace at which all who share the series have worked so far."""
    if left == 0 or finished == 0:
        return ""
    return f"; {left} left, about {duration(elapsed / finished * left)}"


def _say(text):
    print(text, flush=True)
