"""keras-tuner's oracles, made to survive: killed searches, lost workers, failing trials.

What keras-tuner 1.4.8 lacks and this adds: files that are whole after a kill; a grid search that
can be resumed; a Bayesian search that proposes the same after a restart and nothing twice; trials
of workers that went silent handed on; a seed of 0; failures that do not end the search.
"""

import itertools
import json
import pathlib
import sys
import time

import keras_tuner
import numpy as np

from examples.training import records
from tuning.space import rounded

ENDED = ("COMPLETED", "FAILED")


class Durable:
    """What all oracles below share. `oracle.json` says which trials exist, `trial.json` of each
    how it ended; every write is whole or absent.

    Args:
        seed: Integer of at least 0 that all proposals follow from.
        on_end: Function that is called with each trial that has ended, in the oracle's process.
        worker_timeout: Seconds after which a worker that has not been heard of counts as lost.
        **kwargs: Arguments of the oracle.
    """

    def __init__(self, *, seed=0, on_end=None, worker_timeout=60.0, **kwargs):
        # keras-tuner takes a seed of 0 for none, counts it up with every number that it draws, and
        # ends a search after three failures in a row.
        seed = (1_000_003 * seed) % (2**32 - 1) + 1
        super().__init__(seed=seed, max_consecutive_failed_trials=sys.maxsize, **kwargs)
        self.worker_timeout = worker_timeout
        self._on_end = on_end or (lambda trial: None)
        self._heard = {}

    def populate_space(self, trial_id):
        proposal = super().populate_space(trial_id)
        if proposal.get("values"):
            proposal["values"] = _rounded(proposal["values"])
        return proposal

    @keras_tuner.synchronized
    def create_trial(self, tuner_id):
        self._heard[tuner_id] = time.monotonic()
        trial = super().create_trial(tuner_id)
        if trial.status == "STOPPED" and self.ongoing_trials:
            # A worker that waits can take over the trial of one that is lost.
            self.tuner_ids.add(tuner_id)
            trial.status = "IDLE"
        return trial

    @keras_tuner.synchronized
    def end_trial(self, trial):
        # One that was handed on can end twice; both ends say the same.
        if trial.trial_id in self.end_order:
            return
        trial.hyperparameters.values = _rounded(trial.hyperparameters.values)
        super().end_trial(trial)
        if trial.trial_id in self._retry_queue:
            self._retry_queue.remove(trial.trial_id)
        self.save()
        self._on_end(self.trials[trial.trial_id])

    def get_trial(self, trial_id):
        """Returns a trial; a worker also calls it to show that it is alive."""
        for tuner_id, trial in list(self.ongoing_trials.items()):
            if trial.trial_id == trial_id:
                self._heard[tuner_id] = time.monotonic()
        return super().get_trial(trial_id)

    @keras_tuner.synchronized
    def release_silent_workers(self):
        """Forgets workers that were not heard of for too long; their trials wait for others."""
        for tuner_id in list(self.tuner_ids):
            silent = time.monotonic() - self._heard[tuner_id]
            if silent <= self.worker_timeout:
                continue
            self.tuner_ids.remove(tuner_id)
            lost = self.ongoing_trials.pop(tuner_id, None)
            if lost is not None:
                print(
                    f"{tuner_id} is silent for {silent:.0f} s: trial {lost.trial_id} is handed on"
                )
                self._begin_anew(lost.trial_id)
                self.save()

    def _begin_anew(self, trial_id):
        values = self.trials[trial_id].hyperparameters
        self.trials[trial_id] = keras_tuner.engine.trial.Trial(values, trial_id)
        if trial_id not in self._retry_queue:
            self._retry_queue.insert(0, trial_id)

    def save(self):
        _write(self._get_oracle_fname(), self.get_state())

    def _save_trial(self, trial):
        _write(pathlib.Path(self._get_trial_dir(trial.trial_id)) / "trial.json", trial.get_state())

    def saved(self):
        """Whether there is a state to reload."""
        return pathlib.Path(self._get_oracle_fname()).exists()

    def reload(self):
        super().reload()
        # A trial that oracle.json does not know of was proposed, but not begun: the same proposal
        # comes again. One that had not ended begins again.
        self.trials = {trial_id: self.trials[trial_id] for trial_id in self.start_order}
        ended = [i for i, trial in self.trials.items() if trial.status in ENDED]
        self.end_order += [i for i in ended if i not in self.end_order]
        self._retry_queue = []
        for trial_id in self.start_order:
            if trial_id not in ended:
                self._begin_anew(trial_id)


class RandomOracle(Durable, keras_tuner.oracles.RandomSearchOracle):
    """Random search."""


class BayesianOracle(Durable, keras_tuner.oracles.BayesianOptimizationOracle):
    """Gaussian process; the first 3 trials per searched argument are random."""

    def populate_space(self, trial_id):
        # Its random state is not saved; this way a restart does not matter.
        self._random_state = np.random.RandomState([self.seed, int(trial_id)])
        proposal = super().populate_space(trial_id)
        if proposal.get("values") and self._duplicate(proposal["values"]):
            proposal = self._random_populate_space()
            proposal["values"] = proposal["values"] and _rounded(proposal["values"])
        return proposal


class HyperbandOracle(Durable, keras_tuner.oracles.HyperbandOracle):
    """Hyperband: many short runs, and longer ones for the best of them."""


class _Grid(keras_tuner.Oracle):
    def populate_space(self, trial_id):
        space = self.hyperparameters.space
        points = itertools.product(*(list(hp.values) for hp in space))
        point = next(itertools.islice(points, len(self.trials), None), None)
        if point is None:
            return {"status": "STOPPED"}
        names = [hp.name for hp in space]
        return {"status": "RUNNING", "values": dict(zip(names, point, strict=True))}


class GridOracle(Durable, _Grid):
    """Every point of the grid, in order."""


def _rounded(values):
    return {k: rounded(v) if isinstance(v, float) else v for k, v in values.items()}


def _write(path, state):
    with records.replacing(path) as temporary:
        temporary.write_text(json.dumps(state))
