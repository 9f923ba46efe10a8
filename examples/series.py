"""Carries out a series of runs, once each, whoever starts it and how often it is stopped.

The folder of a series holds a record per run, `<folder>/<run>.json`, and what is needed on the
way in `<folder>/work`. Processes and machines that share the folder share the work.
"""

import json
import pathlib
import shutil
import statistics
import time

import keras

from examples import callbacks, records, run
from examples.claims import claim

POLL = 15.0


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
            data_dir: Path that is handed to `examples.data.load`.
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
                with claim(self._work(one)) as mine:
                    if not mine or self.done(one):
                        continue
                    idle = False
                    ended = self._train(one, data_dir)
                left = sum(not self.done(other) for other in planned)
                elapsed = time.monotonic() - began
                _say(
                    f"[{len(planned) - left}/{len(planned)}] {one.path.removesuffix('.json')}: "
                    f"{ended}{_remaining(elapsed, open_before - left, left)}"
                )
            if idle:
                _say(f"{len(waiting)} runs are in the hands of other processes; waiting")
                time.sleep(patience)

    def seconds(self, planned):
        """An estimate of the seconds of a run from the records of runs of its size, or `None`."""
        alike = [
            record["seconds"]
            for path in sorted((self.folder / planned.path).parent.glob("*.json"))
            if "seconds" in (record := _load(path))
        ]
        return statistics.median(alike) if alike else None

    def _train(self, planned, data_dir):
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
        return self.folder / "work" / planned.path.removesuffix(".json").replace("/", "_")


def _load(path):
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise records.RecordError(f"{path} is not a record: {error}") from error


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
