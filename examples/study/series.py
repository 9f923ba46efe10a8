"""Carries out a series of runs, once each, whoever starts it and how often it is stopped.

The folder of a series holds a record per run, `<folder>/<run>.json`, and what is needed on the
way in `<folder>/work`. Processes and machines that share the folder share the work.
"""

import collections
import json
import pathlib
import shutil
import statistics
import time

import keras

from examples.study import claims, cost
from examples.training import callbacks, records, run

POLL = 15.0
STATES = ("done", "failed", "claimed", "open")


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
        found = self._read(planned)
        return None if found is None or "failed" in found else found

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
            planned: List of `experiments.Run`.
            data_dir: Path that is handed to `examples.training.data.load`.
            patience: Seconds between two looks at what others are doing.

        Raises:
            RunError, UsageError: If a run cannot be made on this machine. What is done is kept.
        """
        began = time.monotonic()
        open_before = sum(not self.done(one) for one in planned)
        _say(f"{len(planned)} runs, {len(planned) - open_before} of them done, in {self.folder}")
        while waiting := [one for one in planned if not self.done(one)]:
            idle = True
            for one in waiting:
                with claims.claim(self._work(one)) as mine:
                    if not mine or self.done(one):
                        continue
                    ended = self._train(one, data_dir)
                if ended is None:
                    continue
                idle = False
                left = sum(not self.done(other) for other in planned)
                elapsed = time.monotonic() - began
                _say(
                    f"[{len(planned) - left}/{len(planned)}] {_name(one)}: "
                    f"{ended}{_remaining(elapsed, open_before - left, left)}"
                )
            if idle and (waiting := [one for one in waiting if not self.done(one)]):
                _say(f"{len(waiting)} runs are in the hands of other processes; waiting")
                time.sleep(patience)

    def state(self, planned):
        """One of `STATES`. A claimed run is in the hands of a process that is alive."""
        if (found := self._read(planned)) is not None:
            return "failed" if "failed" in found else "done"
        return "claimed" if claims.held(self._work(planned)) else "open"

    def describe(self, planned, rate, machine):
        """What there is to do, in words: every run with its state, and an estimate of the time.

        The time of an open run is the median of those of its size that have ended, or else what
        `examples.study.cost` computes.

        Args:
            planned: List of `experiments.Run`.
            rate: Positive float, multiply-adds a second, for what was not measured.
            machine: The machine that has it, in words.
        """
        states = [self.state(one) for one in planned]
        count = collections.Counter(states)
        lines = [f"{state:<8}{_name(one)}" for one, state in zip(planned, states, strict=True)]
        told = ", ".join(f"{count[state]} {state}" for state in STATES)
        lines.append(f"{len(planned)} runs: {told}; in {self.folder}")
        measured, computed = [], []
        for one, state in zip(planned, states, strict=True):
            if state in ("open", "claimed"):
                if (seconds := self.seconds(one)) is not None:
                    measured.append(seconds)
                else:
                    computed.append(cost.seconds(one.settings, rate))
        if measured:
            lines.append(
                f"{len(measured)} runs like some that are done: {duration(sum(measured))}, "
                "at the median time of those"
            )
        if computed:
            lines.append(
                f"{len(computed)} runs like none that is done: {duration(sum(computed))} computed, "
                f"not measured, for {machine} at {rate:.0e} multiply-adds a second"
            )
        return "\n".join(lines)

    def seconds(self, planned):
        """The median seconds of the ended runs with the run's data, model and batch size.

        `None` where there is none.
        """
        alike = [
            record["seconds"]
            for path in sorted((self.folder / planned.path).parent.glob("*.json"))
            if "seconds" in (record := _load(path))
            and record["settings"]["batch_size"] == planned.settings.batch_size
        ]
        return statistics.median(alike) if alike else None

    def _train(self, planned, data_dir):
        """Trains a run and says how it ended, or `None` where another process is in its folder."""
        keras.utils.clear_session()
        folder = self._work(planned)
        try:
            record = run.train(
                planned.settings, folder, data_dir=data_dir, verbose=0, keep_model=False
            )
            ended = f"test {record['test']['accuracy']:.2%}, {record['seconds']:.0f} s"
            self._write(planned, record)
        except callbacks.DivergedError as error:
            failed = {"settings": planned.settings.as_dict(), "failed": str(error)}
            self._write(planned, failed | {"commit": records.commit(), "finished": records.now()})
            ended = f"failed. {error}"
        except run.RunError as error:
            # A process that was asleep for so long that its claim could be taken over.
            if isinstance(error.__cause__, BlockingIOError):
                return None
            raise
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
            record = _load(path)
            if "failed" not in record:
                records.validate(record, path)
        except records.RecordError as error:
            raise run.RunError(f"{error}. Delete it to train again.") from error
        wanted = {"settings": callbacks.as_json(planned.settings.as_dict())}
        if record["settings"] != wanted["settings"]:
            raise run.RunError(
                f"{path} belongs to another run: {callbacks.difference(record, wanted)}. "
                "Use another folder, or delete it."
            )
        return record

    def _work(self, planned):
        return self.folder / "work" / _name(planned).replace("/", "_")


def _load(path):
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise records.RecordError(f"{path} is not a record: {error}") from error


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
