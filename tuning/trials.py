"""Runs trials: every execution of one is a run of the examples, with its own seed and record."""

import contextlib
import math
import time

import numpy as np

from examples.training import records, run
from tuning import trial_process
from tuning.project import SearchError, read_json, read_record, write_json
from tuning.trial_process import ProcessStopped, TrialDiverged

FAILED = "failed.json"


def trial_path(folder, trial_id):
    return folder / f"trial_{trial_id}"


def model_path(folder, trial_id):
    """Where the model of a trial's first execution lies; it is kept of the best trial alone."""
    return trial_path(folder, trial_id) / "execution0" / "model.keras"


class Trials:
    """The runs of a search's trials and their folders.

    The score of a trial is the mean over its executions of the last epoch's value. Execution `i`
    has the seed `settings.seed + i`. A trial that is begun again goes on after its last finished
    epoch. Hyperband's longer runs start from the beginning: a run's learning rate drops after
    four fifths of its own epochs, so that a longer one is no continuation of a shorter one.

    Args:
        plan: `tuning.search.Plan`.
        folder: `pathlib.Path` of the search.
        data_dir: Path that is handed to `examples.training.data.load`.
        verbose: 0, 1 or 2, as in `keras.Model.fit`.
    """

    def __init__(self, plan, folder, data_dir=None, verbose=0):
        self.plan = plan
        self.folder = folder
        self._data_dir = data_dir
        self._verbose = verbose

    def folder_of(self, trial_id):
        return trial_path(self.folder, trial_id)

    def settings_of(self, trial):
        """The settings of a trial's runs."""
        base, hp = self.plan.settings, trial.hyperparameters.copy()
        epochs = hp.values.get("tuner/epochs", base.epochs)
        return [
            self.plan.space.settings(hp, base, seed=base.seed + execution, epochs=epochs)
            for execution in range(self.plan.executions_per_trial)
        ]

    def _paths(self, trial):
        folder = self.folder_of(trial.trial_id)
        return [folder / f"execution{i}" for i in range(self.plan.executions_per_trial)]

    def train(self, trial):
        """Trains a trial in a process of its own and returns the means of the last epochs' values.

        Raises:
            TrialDiverged: If a loss, a weight or a value is not finite.
            SearchError: If the process could not end, which says nothing about the trial.
        """
        failed = self.folder_of(trial.trial_id) / FAILED
        failed.unlink(missing_ok=True)
        executions = zip(self.settings_of(trial), self._paths(trial), strict=True)
        runs = [(settings, path, i == 0) for i, (settings, path) in enumerate(executions)]
        try:
            trial_process.train(runs, self._data_dir, self._verbose)
            validations = [record["validation"] for record in self.records(trial)]
            return {
                f"last_epoch_val_{name}": _mean(name, [v[name] for v in validations])
                for name in ("accuracy", "loss")
            }
        except TrialDiverged as error:
            write_json(failed, {"reason": str(error)})
            raise
        except (ProcessStopped, records.RecordError) as error:
            raise SearchError(f"Trial {trial.trial_id} was stopped: {error}") from error

    def records(self, trial):
        """The records of a trial's runs.

        Raises:
            RecordError: Naming the file, if one is missing or damaged.
        """
        return [read_record(path / run.RECORD) for path in self._paths(trial)]

    def readable_records(self, trial):
        """The records of those runs of a trial that came to an end."""
        readable = []
        for path in self._paths(trial):
            with contextlib.suppress(records.RecordError):
                readable.append(read_record(path / run.RECORD))
        return readable

    def missing(self, trial):
        """What of a trial that has ended is missing or damaged, in words, or `None`."""
        if trial.status == "FAILED":
            return None
        try:
            self.records(trial)
        except records.RecordError as error:
            return str(error)
        return None

    def reason(self, trial):
        """Why a trial failed, in words, or `None`."""
        if trial.status != "FAILED":
            return None
        path = self.folder_of(trial.trial_id) / FAILED
        try:
            return str(read_json(path)["reason"])
        except (KeyError, SearchError):
            return f"unknown, {path} is missing or damaged"


def run_trials(oracle, trials, tuner_id, alive=None):
    """Asks for trials and runs them until there are no more.

    Args:
        oracle: One of `tuning.oracles.ORACLES`, or the chief's, a `tuning.chief.ChiefClient`.
        trials: `Trials`.
        tuner_id: String, the name that this process has for the oracle.
        alive: Function of a trial's id that gives the context in which the trial is run.
    """
    idle = False
    while (trial := oracle.create_trial(tuner_id)).status != "STOPPED":
        if trial.status == "IDLE":
            if not idle:
                print("Waiting for trials that other workers run", flush=True)
            idle = True
            time.sleep(0.2)
            continue
        idle = False
        with alive(trial.trial_id) if alive else contextlib.nullcontext():
            try:
                values = trials.train(trial)
            except TrialDiverged as error:
                trial.status, trial.message = "FAILED", str(error)
            else:
                oracle.update_trial(trial.trial_id, values)
                trial.status = "COMPLETED"
        oracle.end_trial(trial)


def _mean(name, values):
    if any(value is None or not math.isfinite(value) for value in values):
        raise TrialDiverged(f"The validation {name} after the last epoch is not finite: {values}")
    return float(np.mean(values))
