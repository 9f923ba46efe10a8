"""The tuner: every execution of a trial is a run of the examples, with its own seed and record."""

import contextlib
import json
import math
import os
import pathlib
import socket
import threading
import time

import grpc
import keras
import keras_tuner
import numpy as np

from examples.training import records, run
from examples.training.errors import LockedError, RunError
from examples.training.recipes import UsageError
from tuning import oracles

ORACLES = {
    "random": oracles.RandomOracle,
    "bayesian": oracles.BayesianOracle,
    "hyperband": oracles.HyperbandOracle,
    "grid": oracles.GridOracle,
}
FAILED = "failed.json"
_LOST_CHIEF = "The connection to the chief was lost; the same command goes on"
_VARIABLES = ("KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT")


class ExampleTuner(keras_tuner.Tuner):
    """Runs trials by `examples.training.run.train`, alone, as the chief or as a worker.

    The score of a trial is the mean over its executions of the last epoch's value. Execution `i`
    has the seed `settings.seed + i`. A trial that is begun again goes on after its last finished
    epoch. Hyperband's longer runs start from the beginning: a run's learning rate drops after
    four fifths of its own epochs, so that a longer one is no continuation of a shorter one.

    Args:
        oracle: One of `ORACLES`, made.
        hypermodel: `ExampleHyperModel`.
        folder: `pathlib.Path` of the project.
        executions_per_trial: Positive integer. Defaults to `1`.
        verbose: 0, 1 or 2, as in `keras.Model.fit`. Defaults to `0`.
    """

    def __init__(self, oracle, hypermodel, folder, executions_per_trial=1, verbose=0):
        self._alive_every = oracle.worker_timeout / 6
        self._idle = False
        self._verbose = verbose
        oracle.verbose = 0  # `on_end` of the oracle shows more
        super().__init__(
            oracle,
            hypermodel,
            directory=str(folder.parent),
            project_name=folder.name,
            executions_per_trial=executions_per_trial,
        )

    def _populate_initial_space(self):
        # In the place of keras-tuner's, which builds models to find the space. It runs before the
        # oracle of a worker gives way to that of the chief.
        if role() != "worker" and self.oracle.saved():
            self.oracle.reload()
            return
        space = self.oracle.get_space()
        self.hypermodel.declare_hyperparameters(space)
        self.oracle.update_space(space)

    def search(self):
        """Runs trials until there are no more; the chief hands them out until then."""
        stop = threading.Event()
        if role() == "chief":
            _check_address()
            watch = (stop, self.oracle.worker_timeout / 6, self.oracle.release_silent_workers)
            threading.Thread(target=_repeat, args=watch, daemon=True).start()
        try:
            super().search()
        except grpc.RpcError as error:
            raise keras_tuner.errors.FatalRuntimeError(_LOST_CHIEF) from error
        finally:
            stop.set()

    def _run_and_update_trial(self, trial):
        try:
            super()._run_and_update_trial(trial)
        except grpc.RpcError as error:
            # Not the trial's fault: the chief, when it is back, hands it out again.
            raise keras_tuner.errors.FatalRuntimeError(_LOST_CHIEF) from error

    def pre_create_trial(self):
        # keras-tuner asks again at once when there is nothing to do at the moment.
        if self._idle:
            time.sleep(0.2)
        self._idle = True

    def on_trial_begin(self, trial):
        self._idle = False

    def run_trial(self, trial):
        """Trains the trial's executions and returns the mean values of their last epochs."""
        folder = self.folder_of(trial)
        (folder / FAILED).unlink(missing_ok=True)
        try:
            with self._heartbeat(trial):
                found = [self._execute(trial, i) for i in range(self.executions_per_trial)]
            return {f"last_epoch_val_{name}": _mean(name, found) for name in ("accuracy", "loss")}
        except (UsageError, OSError) as error:
            raise keras_tuner.errors.FatalRuntimeError(str(error)) from error
        except Exception as error:
            if isinstance(error.__cause__, OSError):
                raise keras_tuner.errors.FatalRuntimeError(str(error)) from error
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            with records.replacing(folder / FAILED) as temporary:
                temporary.write_text(json.dumps({"reason": reason}) + "\n")
            raise keras_tuner.errors.FailedTrialError(reason) from error

    def _execute(self, trial, execution):
        settings = self.hypermodel.settings
        hp = trial.hyperparameters
        settings = self.hypermodel.trial_settings(
            hp,
            seed=settings.seed + execution,
            epochs=hp.values.get("tuner/epochs", settings.epochs),
        )
        folder = self.folder_of(trial) / f"execution{execution}"
        while True:
            try:
                return run.train(
                    settings,
                    folder,
                    data_dir=self.hypermodel.data_dir,
                    verbose=self._verbose,
                    keep_model=execution == 0,
                )
            except RunError as error:
                if not isinstance(error, LockedError):
                    raise
                # Handed on by mistake: its first worker is still at it.
                time.sleep(1)
            finally:
                keras.utils.clear_session()

    @contextlib.contextmanager
    def _heartbeat(self, trial):
        """Lets the chief know that this worker is alive."""
        stop = threading.Event()
        if role() == "worker":

            def beat():
                with contextlib.suppress(grpc.RpcError):
                    self.oracle.get_trial(trial.trial_id)

            threading.Thread(
                target=_repeat, args=(stop, self._alive_every, beat), daemon=True
            ).start()
        try:
            yield
        finally:
            stop.set()

    def load_model(self, trial):
        """The model of a trial's first execution after its last epoch, optimizer included.

        It is kept of the best trial alone.
        """
        return keras.models.load_model(self.folder_of(trial) / "execution0" / "model.keras")

    def folder_of(self, trial):
        return pathlib.Path(self.get_trial_dir(trial.trial_id))

    def save(self):
        """Saves the oracle, which is all that there is to save."""
        if role() != "worker":
            self.oracle.save()


def role():
    """What keras-tuner's environment variables make of this process.

    Returns:
        `"chief"`, `"worker"` or, without them, `"alone"`.

    Raises:
        UsageError: If some of them are set, and others are not.
    """
    missing = [name for name in _VARIABLES if not os.environ.get(name)]
    if len(missing) == len(_VARIABLES):
        return "alone"
    if missing:
        raise UsageError(
            f"{', '.join(_VARIABLES)} must be set together. Not set: {', '.join(missing)}"
        )
    if not os.environ[_VARIABLES[2]].isdecimal():
        raise UsageError(f"{_VARIABLES[2]} must be a number. Received: {os.environ[_VARIABLES[2]]}")
    return "chief" if "chief" in os.environ[_VARIABLES[0]] else "worker"


def _mean(name, found):
    values = [record["validation"][name] for record in found]
    if any(value is None or not math.isfinite(value) for value in values):
        raise RunError(f"The validation {name} after the last epoch is not finite: {values}")
    return float(np.mean(values))


def _check_address():
    """Raises UsageError if the chief cannot listen at the address that it is given."""
    address = (os.environ[_VARIABLES[1]], int(os.environ[_VARIABLES[2]]))
    try:
        socket.create_server(address).close()
    except OSError as error:
        raise UsageError(
            f"The chief cannot listen at {address[0]}:{address[1]}: {error}"
        ) from error


def _repeat(stop, seconds, action):
    while not stop.wait(seconds):
        action()
