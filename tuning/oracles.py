"""keras-tuner's oracles, made to survive: killed searches, lost workers, damaged files.

What keras-tuner 1.4.8 lacks and this adds: files that are whole after a kill, and are checked when
they are read; a grid search that can be resumed; a Bayesian search that proposes the same after a
restart and nothing twice; trials of workers that went silent handed on; a seed of 0; failures that
do not end the search.
"""

import itertools
import json
import math
import pathlib
import sys
import time

import keras_tuner
import numpy as np

from examples.training import records
from tuning.project import SearchError, read_json
from tuning.space import rounded

ENDED = ("COMPLETED", "FAILED")
_BEGUN = ("RUNNING", "INVALID")
_PROPOSALS = "proposals"


# Another machine's new file can take that long to be seen.
_SECONDS_TO_APPEAR = 30


class WorkerRefused(Exception):
    """A worker speaks of a trial that is not there, or of records that the chief does not see."""


class Durable:
    """What all oracles below share.

    `oracle.json` says which settings were proposed, `trial.json` of each trial how it ended; every
    write is whole or absent. A `trial.json` that is lost or damaged is made again from
    `oracle.json`, and its trial is run again, which costs nothing where its record is still there.

    Args:
        seed: Integer of at least 0 that all proposals follow from.
        on_end: Function that is called with each trial that has ended, in the oracle's process.
        missing: Function that is given a trial that has ended, and returns in words what of it is
            missing or damaged, or `None`.
        worker_timeout: Seconds after which a worker that has not been heard of counts as lost.
        **kwargs: Arguments of the oracle.
    """

    def __init__(self, *, seed=0, on_end=None, missing=None, worker_timeout=60.0, **kwargs):
        # keras-tuner takes a seed of 0 for none, counts it up with every number that it draws, and
        # ends a search after three failures in a row.
        seed = (1_000_003 * seed) % (2**32 - 1) + 1
        super().__init__(seed=seed, max_consecutive_failed_trials=sys.maxsize, **kwargs)
        self.verbose = 0  # `on_end` shows more
        self.worker_timeout = worker_timeout
        self._on_end = on_end or (lambda trial: None)
        self._missing = missing or (lambda trial: None)
        self._heard = {}
        self._begun = set()

    def place(self, folder):
        """Says which folder the search has."""
        self._set_project_dir(str(folder.parent), folder.name)

    def populate_space(self, trial_id):
        proposal = super().populate_space(trial_id)
        if proposal.get("values"):
            proposal["values"] = _rounded(proposal["values"])
        return proposal

    def create_trial(self, tuner_id):
        self._heard[tuner_id] = time.monotonic()
        trial = super().create_trial(tuner_id)
        if trial.status == "STOPPED" and self.ongoing_trials:
            # A worker that waits can take over the trial of one that is lost.
            self.tuner_ids.add(tuner_id)
            trial.status = "IDLE"
        return trial

    def update_trial(self, trial_id, metrics, step=0):
        self._check_known(trial_id)
        return super().update_trial(trial_id, metrics, step=step)

    def end_trial(self, trial):
        self._check_known(trial.trial_id)
        # One that was handed on can end twice; both ends say the same.
        if trial.trial_id in self.end_order:
            return
        if trial.status == "COMPLETED":
            self._check_records(trial)
        trial.hyperparameters.values = _rounded(trial.hyperparameters.values)
        super().end_trial(trial)
        if trial.trial_id in self._retry_queue:
            self._retry_queue.remove(trial.trial_id)
        self.save()
        self._on_end(self.trials[trial.trial_id])

    def _check_records(self, trial):
        """Hands a trial on whose records do not appear, instead of ending it."""
        deadline = time.monotonic() + _SECONDS_TO_APPEAR
        while problem := self._missing(trial):
            if time.monotonic() >= deadline:
                self._hand_on(trial.trial_id)
                raise WorkerRefused(
                    f"{problem}: the chief does not see it, and gives trial {trial.trial_id} to "
                    "another worker. "
                    "Chief and workers need one --directory that they share."
                )
            time.sleep(1)

    def get_trial(self, trial_id):
        """Returns a trial; a worker also calls it to show that it is alive."""
        self._check_known(trial_id)
        for tuner_id, trial in list(self.ongoing_trials.items()):
            if trial.trial_id == trial_id:
                self._heard[tuner_id] = time.monotonic()
        return super().get_trial(trial_id)

    def _check_known(self, trial_id):
        if trial_id not in self.trials:
            raise WorkerRefused(f"The search in {self._project_dir} has no trial {trial_id}.")

    def all_have_ended(self):
        """Whether as many trials have ended as were asked for, where a number was."""
        return bool(self.max_trials) and len(self.end_order) >= self.max_trials

    def release_silent_workers(self):
        """Forgets workers that were not heard of for too long; their trials wait for others."""
        for tuner_id in {*self.tuner_ids, *self.ongoing_trials}:
            silent = time.monotonic() - self._heard[tuner_id]
            if silent <= self.worker_timeout:
                continue
            self.tuner_ids.discard(tuner_id)
            lost = self.ongoing_trials.get(tuner_id)
            if lost is not None:
                print(
                    f"{tuner_id} is silent for {silent:.0f} s: "
                    f"trial {lost.trial_id} is given to another worker",
                    flush=True,
                )
                self._hand_on(lost.trial_id)

    def _hand_on(self, trial_id):
        """Takes a trial from whoever has it: the next that asks begins it anew."""
        self.ongoing_trials = {
            tuner_id: trial
            for tuner_id, trial in self.ongoing_trials.items()
            if trial.trial_id != trial_id
        }
        self._begin_anew(trial_id)
        self.save()

    def _begin_anew(self, trial_id):
        values = self.trials[trial_id].hyperparameters
        self.trials[trial_id] = keras_tuner.engine.trial.Trial(values, trial_id)
        if trial_id not in self._retry_queue:
            self._retry_queue.insert(0, trial_id)

    def get_state(self):
        proposals = {i: trial.hyperparameters.values for i, trial in self.trials.items()}
        return super().get_state() | {_PROPOSALS: proposals}

    def save(self):
        _write(self._get_oracle_fname(), self.get_state())

    def _trial_path(self, trial_id):
        return pathlib.Path(self._get_trial_dir(trial_id)) / "trial.json"

    def _save_trial(self, trial):
        path = self._trial_path(trial.trial_id)
        if trial.trial_id not in self._begun:
            _set_other_aside(path, trial)
            self._begun.add(trial.trial_id)
        _write(path, trial.get_state())

    def saved(self):
        """Whether there is a state to reload."""
        return pathlib.Path(self._get_oracle_fname()).exists()

    def reload(self, keep_workers=False):
        """Goes on from the files.

        Args:
            keep_workers: Boolean, whether those who had a trial may still be at it. They keep it
                as long as they are not silent for too long.

        Raises:
            SearchError: If `oracle.json` is damaged or of another version.
        """
        path = pathlib.Path(self._get_oracle_fname())
        state = read_json(path, _ORACLE_ADVICE)
        try:
            _check_alike(state, json.loads(json.dumps(self.get_state())))
            for trial_id in state["start_order"]:
                _check_proposal(state[_PROPOSALS][trial_id], self.hyperparameters.space)
            # A trial that oracle.json does not know of was proposed, but not begun: the same
            # proposal comes again.
            self.trials = {i: self._restored(i, state[_PROPOSALS]) for i in state["start_order"]}
            self.set_state(state)
            self._begun = set(self.trials)
        except SearchError:
            raise
        except Exception as error:  # whatever keras-tuner makes of what it finds
            reason = f"{type(error).__name__}: {error}"
            raise SearchError(
                f"{path} is damaged or of another version ({reason}). {_ORACLE_ADVICE}"
            ) from error
        # One that had not ended begins again.
        ended = [i for i, trial in self.trials.items() if trial.status in ENDED]
        self.end_order = [i for i in self.end_order if i in ended]
        self.end_order += [i for i in ended if i not in self.end_order]
        ongoing = {}
        if keep_workers:
            ongoing = {
                tuner_id: trial
                for tuner_id, trial in self.ongoing_trials.items()
                if trial.trial_id not in ended
            }
        self.ongoing_trials = ongoing
        self._heard = dict.fromkeys(ongoing, time.monotonic())
        self._retry_queue = []
        kept = {trial.trial_id for trial in ongoing.values()}
        for trial_id in self.start_order:
            if trial_id not in ended and trial_id not in kept:
                self._begin_anew(trial_id)

    def _restored(self, trial_id, proposals):
        """The trial as its file has it, or begun again where that is missing or damaged."""
        hyperparameters = self.hyperparameters.copy()
        hyperparameters.values = dict(proposals[trial_id])
        again = keras_tuner.engine.trial.Trial(hyperparameters, trial_id)
        path = self._trial_path(trial_id)
        try:
            state = read_json(path)
            trial = keras_tuner.engine.trial.Trial.from_state(state)
            _check_trial(trial, again, self.objective)
        except Exception as error:
            problem = str(error)
            if not isinstance(error, SearchError):
                problem = f"{path} is damaged ({type(error).__name__}: {error})."
            _say_again(trial_id, problem)
            return again
        if trial.status not in ENDED:
            return again
        if problem := self._missing(trial):
            _say_again(trial_id, problem)
            return again
        return trial


_ORACLE_ADVICE = (
    "Delete it and start the same command again: trials whose records are there are not trained "
    "again."
)


def _set_other_aside(path, trial):
    """Moves the folder of a trial away that had other settings under the same name.

    That is so where `oracle.json` was deleted, and workers came back in another order.
    """
    try:
        values = read_json(path)["hyperparameters"]["values"]
    except (KeyError, SearchError, TypeError):
        return
    if values == trial.hyperparameters.values:
        return
    folder = path.parent
    others = (folder.with_name(f"old-{count}-{folder.name}") for count in itertools.count(1))
    aside = next(other for other in others if not other.exists())
    folder.rename(aside)
    folder.mkdir()
    print(f"{aside} is what {folder.name} was before: it had other settings", flush=True)


def _say_again(trial_id, problem):
    print(f"Trial {trial_id} is run again: {problem}", flush=True)


def _check_alike(state, fresh):
    """Raises ValueError unless a saved state has the entries of a fresh one, of their types."""
    for name, value in fresh.items():
        if name not in state:
            raise ValueError(f"`{name}` is missing")
        if value is not None and not isinstance(state[name], type(value)):
            raise ValueError(f"`{name}` is {state[name]!r:.40}")
    ids = state["start_order"]
    for trial_id in ids:
        if not isinstance(trial_id, str) or pathlib.PurePath(trial_id).name != trial_id:
            raise ValueError(f"`start_order` has {trial_id!r:.40}")
    if set(ids) != set(state[_PROPOSALS]) or len(set(ids)) != len(ids):
        raise ValueError(f"`start_order` and `{_PROPOSALS}` do not agree")


def _check_proposal(values, space):
    """Raises ValueError unless the values are those of a point of the space, rounded."""
    for searched in space:
        value = values.get(searched.name)
        if isinstance(searched, keras_tuner.engine.hyperparameters.Float):
            low, high = searched.min_value, searched.max_value
            # `rounded` may go over an end.
            fits = type(value) in (int, float) and 0.999 * low <= value <= 1.001 * high
        else:
            fits = value in searched.values
        if not fits:
            raise ValueError(f"`{_PROPOSALS}` has {searched.name} {value!r:.40}")


def _check_trial(trial, proposed, objective):
    """Raises ValueError if a trial that was read is not the one that was proposed, or no trial."""
    if trial.trial_id != proposed.trial_id:
        raise ValueError(f"it is of trial {trial.trial_id}")
    if trial.hyperparameters.values != proposed.hyperparameters.values:
        raise ValueError("it has other settings than oracle.json")
    if trial.status not in ENDED + _BEGUN:
        raise ValueError(f"its status is {trial.status!r:.40}")
    if trial.status == "COMPLETED":
        score = trial.metrics.get_best_value(objective.name)
        if not math.isfinite(trial.score) or trial.score != score:
            raise ValueError(f"its score is {trial.score!r:.40}")


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


ORACLES = {
    "random": RandomOracle,
    "bayesian": BayesianOracle,
    "hyperband": HyperbandOracle,
    "grid": GridOracle,
}


def _rounded(values):
    return {k: rounded(v) if isinstance(v, float) else v for k, v in values.items()}


def _write(path, state):
    with records.replacing(path) as temporary:
        temporary.write_text(json.dumps(state))
