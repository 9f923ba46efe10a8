"""Searches for an optimizer's learning rate, gamma and more with keras-tuner.

examples:
  data that come with scikit-learn, no download:
    python -m tuning.search
  real images:
    python -m tuning.search --dataset cifar10 --model resnet8 --optimizer AdamNorm --max-trials 20
  more than the usual two arguments, by a Gaussian process, each trial the mean of three seeds:
    python -m tuning.search --tune learning_rate gamma max_correction --tuner bayesian \\
        --executions-per-trial 3
  a grid of 4 learning rates and 4 gammas:
    python -m tuning.search --tuner grid --grid-points 4

Every trial is trained on the training images and scored on validation images after its last
epoch. Started again with the same options, a search that was stopped goes on, and loses no
finished trial. Its folder then holds trials.csv, trials.json, search.png, best_optimizer.json
(python -m examples.train --optimizer-config takes it) and a folder for each trial, with the
trained model.keras in that of the best.

On several machines, with one folder that they share: the same command on each, with the environment
variables KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT, the address of the first, and
KERASTUNER_TUNER_ID, chief on the first and a name of its own on each other one.

exit status: 0 done, 1 could not go on or no trial succeeded, 2 wrong options, 130 interrupted.
"""

import contextlib
import dataclasses
import json
import pathlib
import sys
from typing import Annotated

from examples.training import checks, command_line, options
from examples.training.checks import Setting
from examples.training.errors import UsageError
from examples.training.recipes import LARGEST_SEED, Settings
from tuning.space import DIRECTIONS, SEARCHABLE

PROGRAM = "python -m tuning.search"
AFTER_INTERRUPT = "the same command goes on"
TUNERS = ("random", "bayesian", "hyperband", "grid")
MAX_TRIALS = 12


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that decides what a search finds.

    `settings` are the `examples.training.recipes.Settings` of the trials; their seed is that of
    the first execution, and of the proposals. `space` is a `tuning.space.OptimizerSpace`.
    Hyperband's number of trials follows from the epochs. What else a field means, and what it may
    be, stands beside it.

    Raises:
        UsageError: If a value is not allowed.
    """

    settings: Settings
    space: object
    tuner: Annotated[str, Setting("how the next point is chosen", choices=TUNERS)] = "random"
    max_trials: Annotated[
        int | None,
        Setting(
            "number of points to try",
            low=1,
            unset=f"{MAX_TRIALS}; with grid, the whole grid; hyperband has its own number",
        ),
    ] = None
    executions_per_trial: Annotated[
        int,
        Setting("runs of a trial, each with the next seed; their mean counts", low=1, high=1000),
    ] = 1
    objective: Annotated[
        str,
        Setting("what to maximize, or to minimize if it is the loss", choices=tuple(DIRECTIONS)),
    ] = "last_epoch_val_accuracy"

    def __post_init__(self):
        checks.check(self)
        if self.max_trials is not None and self.tuner == "hyperband":
            allowed = (
                "left out with the hyperband tuner, whose number of trials follows from the epochs"
            )
            raise checks.refused("max_trials", allowed, self.max_trials)
        if self.max_trials is None and self.tuner in ("random", "bayesian"):
            object.__setattr__(self, "max_trials", MAX_TRIALS)
        if self.tuner == "grid":
            if self.space.size is None:
                raise UsageError("A grid needs a space with `points`. Received: points=None")
            checks.check_integer("max_trials", self.max_trials or self.space.size, self.space.size)
        if self.settings.seed + self.executions_per_trial - 1 > LARGEST_SEED:
            allowed = f"at most {LARGEST_SEED - self.executions_per_trial + 1}, for all executions"
            raise checks.refused("seed", allowed, self.settings.seed)
        if self.settings.validation_size == 0:
            raise UsageError(
                f"The objective {self.objective} needs validation images. "
                "Received: validation_size=0"
            )

    def identity(self, fingerprint):
        """What two searches must agree in to be the same one, as JSON holds it."""
        settings = self.settings.as_dict()
        for name in ("optimizer", "learning_rate", "optimizer_config"):
            settings.pop(name)
        identity = {
            "space": self.space.describe(),
            "tuner": self.tuner,
            "objective": self.objective,
            "executions_per_trial": self.executions_per_trial,
            "data": fingerprint,
            "settings": settings,
        }
        return json.loads(json.dumps(identity))


def search(
    plan,
    directory="runs/tuning",
    project_name=None,
    data_dir=None,
    verbose=0,
    worker_timeout=60.0,
    chief_timeout=300.0,
    on_trial=None,
):
    """Searches, or goes on with a search, and returns what it gave.

    This process trains nothing, and leaves memory and accelerator to those that do.

    Args:
        plan: `Plan`.
        directory: Path of the folder that the search's own folder lies in.
        project_name: Name of the search's own folder. Defaults to `None`: one that follows from
            the plan.
        data_dir: Path that is handed to `examples.training.data.load`.
        verbose: 0, 1 or 2, for each run as in `keras.Model.fit`.
        worker_timeout: Seconds until a silent worker's trial is handed on.
        chief_timeout: Seconds until a worker gives up on a chief that does not answer.
        on_trial: Function without arguments that is called after each trial.

    Returns:
        `(folder, rows)`: the search's folder, and what `tuning.report.rows` says of its trials;
        `None` in the place of the rows for a worker, which sees only its own.

    Raises:
        UsageError: If an argument is wrong, there are no data, or the folder is another search's.
        LockedError: If another process is at this search.
        RunError: If the search cannot go on.
    """
    from examples.training import records, run
    from tuning import chief, project, trial_process
    from tuning.trials import Trials

    role = chief.role()
    if role == "chief":
        chief.check_address()
    if project_name is not None and not checks.names_a_folder(project_name):
        raise checks.refused("project_name", "the name of a folder", project_name)
    try:
        machine = trial_process.describe(plan.settings, data_dir)
    except trial_process.ProcessStopped as error:
        raise project.SearchError(str(error)) from error
    identity = plan.identity(machine.pop("fingerprint"))
    folder = pathlib.Path(directory) / (project_name or project.name_of(identity))
    trials = Trials(plan, folder, data_dir, verbose)
    if role == "worker":
        _work_for_chief(trials, identity, worker_timeout, chief_timeout)
        return folder, None
    with run.exclusive(folder):
        try:
            project.claim(folder, identity)
            return folder, _search(trials, identity, machine, role, worker_timeout, on_trial)
        except (OSError, records.RecordError) as error:
            raise project.SearchError(f"Cannot go on: {error}") from error


def _search(trials, identity, machine, role, worker_timeout, on_trial):
    """Runs a search alone or as the chief, and returns the rows of its trials."""
    from tuning import chief, report
    from tuning.oracles import ENDED
    from tuning.trials import model_path, run_trials

    plan, folder = trials.plan, trials.folder

    def on_end(trial):
        rows = report.rows(oracle, trials)
        report.write(folder, report.document(rows, identity, machine))
        for row in report.ranked(rows, plan.objective)[1:]:
            model_path(folder, row["trial"]).unlink(missing_ok=True)
        print(report.line(trial.trial_id, rows, plan.objective, oracle.max_trials), flush=True)
        if on_trial is not None:
            on_trial()

    oracle = _oracle(plan, on_end=on_end, missing=trials.missing, worker_timeout=worker_timeout)
    oracle.place(folder)
    plan.space.declare(oracle.hyperparameters)
    began = "Starting afresh in"
    if oracle.saved():
        oracle.reload(keep_workers=role == "chief")
        began = "Resuming"
    ended = len([trial for trial in oracle.trials.values() if trial.status in ENDED])
    total = oracle.max_trials or "all"
    print(f"{began} {folder}: {ended} of {total} trials are finished", flush=True)
    if role == "chief":
        chief.serve(oracle, folder)
    else:
        run_trials(oracle, trials, chief.tuner_id())
    rows = report.rows(oracle, trials)
    document = report.document(rows, identity, machine)
    report.write(folder, document)
    if plan.space.numbers:
        report.draw(document, folder / report.PICTURE)
    return rows


def _work_for_chief(trials, identity, worker_timeout, chief_timeout):
    """Runs trials that the chief hands out, until there are no more."""
    from tuning import chief, project
    from tuning.trials import run_trials

    client = chief.ChiefClient(_oracle(trials.plan), trials.folder, chief_timeout)
    client.connect()
    project.check(trials.folder, identity)

    def alive(trial_id):
        return client.heartbeat(trial_id, worker_timeout / 6)

    with contextlib.suppress(chief.ChiefEnded):
        run_trials(client, trials, chief.tuner_id(), alive)
    print("No trials are left", flush=True)


def _oracle(plan, **others):
    from tuning.hypermodel import OBJECTIVES
    from tuning.oracles import ORACLES

    limit = {"max_trials": plan.max_trials}
    if plan.tuner == "hyperband":
        limit = {"max_epochs": plan.settings.epochs}
    return ORACLES[plan.tuner](
        objective=OBJECTIVES[plan.objective], seed=plan.settings.seed, **limit, **others
    )


@dataclasses.dataclass(frozen=True)
class SpaceOptions:
    """What is searched."""

    tune: Annotated[
        tuple[str, ...] | None,
        Setting(
            "arguments to search",
            choices=SEARCHABLE,
            unset="learning_rate and gamma, if it has them",
        ),
    ] = None
    learning_rate: Annotated[
        tuple[float, ...] | None,
        Setting("range, on a logarithmic scale", above=0, count=2, unset="0.0001 0.01"),
    ] = None
    gamma: Annotated[
        tuple[float, ...] | None,
        Setting("range, on a logarithmic scale of 1 - gamma", above=0, count=2, unset="0.8 0.999"),
    ] = None
    weight_decay: Annotated[
        tuple[float, ...] | None,
        Setting("range, on a logarithmic scale", above=0, count=2, unset="0.00001 0.1"),
    ] = None
    grid_points: Annotated[
        int, Setting("points of each range, with --tuner grid", low=2, high=1000)
    ] = 4


@dataclasses.dataclass(frozen=True)
class Options:
    """What does not decide what a search finds."""

    directory: Annotated[pathlib.Path, Setting("folder of all searches")] = pathlib.Path(
        "runs/tuning"
    )
    project_name: Annotated[
        str | None,
        Setting(
            "the search's folder in --directory",
            unset="a name made of the options",
            folder_name=True,
        ),
    ] = None
    data_dir: Annotated[
        pathlib.Path | None, Setting("folder of the data", unset="the library's own")
    ] = None
    verbose: Annotated[
        str,
        Setting(
            "progress of each run: none, a bar, a line per epoch; auto is a bar on a terminal, "
            "else none",
            choices=("auto", "0", "1", "2"),
        ),
    ] = "auto"
    worker_timeout: Annotated[
        float,
        Setting(
            "seconds until the chief gives a silent worker's trial to another one",
            low=1,
            high=604800,
        ),
    ] = 60.0
    chief_timeout: Annotated[
        float,
        Setting(
            "seconds until a worker gives up on a chief that does not answer", low=1, high=604800
        ),
    ] = 300.0


TRAINED = ("model", "width", "dataset")
IMAGES = ("image_size", "train_size", "validation_size", "augment")
RECIPE = ("epochs", "batch_size", "seed")
SETTINGS = (*TRAINED, *IMAGES, *RECIPE)
# What a search and a comparison share.
GROUPS = {
    "search space": options.group(SpaceOptions),
    "search": options.group(Plan),
    "model and data": [
        *options.group(Settings, TRAINED, model="cnn", dataset="digits"),
        *options.group(Options, ["data_dir"]),
        *options.group(Settings, IMAGES),
    ],
    "recipe": options.group(Settings, RECIPE, epochs=5),
    "output": options.group(Options, ["directory", "verbose"]),
}
SEARCH_GROUPS = GROUPS | {
    "this search": [
        *options.group(Settings, ["optimizer"]),
        *options.group(Options, ["project_name", "worker_timeout", "chief_timeout"]),
    ]
}


def make_plan(values, optimizer):
    """The `Plan` that the values of options make with an optimizer.

    Raises:
        UsageError: If they don't go together.
    """
    from tuning.space import RANGES, OptimizerSpace

    settings = Settings(
        optimizer=optimizer, deterministic=True, **{name: values[name] for name in SETTINGS}
    )
    ranges = {name: values[name] for name in RANGES if values[name]}
    points = values["grid_points"] if values["tuner"] == "grid" else None
    return Plan(
        settings,
        OptimizerSpace(optimizer, values["tune"], ranges, points),
        **{name: values[name] for name in checks.fields(Plan)},
    )


def verbosity(verbose):
    """`verbose` for `keras.Model.fit`."""
    if verbose == "auto":
        return 1 if sys.stdout.isatty() else 0
    return int(verbose)


def main(arguments=None):
    """Runs the command line and returns its exit status."""

    def action():
        values = options.read(PROGRAM, __doc__, SEARCH_GROUPS, arguments)
        plan = make_plan(values, values["optimizer"])
        folder, rows = search(
            plan,
            values["directory"],
            values["project_name"],
            values["data_dir"],
            verbosity(values["verbose"]),
            values["worker_timeout"],
            values["chief_timeout"],
        )
        return 0 if rows is None else _summarise(folder, rows, plan)

    return command_line.run(PROGRAM, action, AFTER_INTERRUPT)


def _summarise(folder, rows, plan):
    from tuning import report
    from tuning.trials import model_path

    best = report.ranked(rows, plan.objective)
    print("\n" + report.table(rows, plan.objective))
    if not best:
        print("No trial succeeded.")
        return 1
    print(f"\nBest: {report.describe(best[0]['arguments'])}")
    print(f"  {folder / report.BEST} goes into python -m examples.train --optimizer-config")
    model = model_path(folder, best[0]["trial"])
    if model.exists():
        print(f"  {model} is its model, to be trained on")
    print(f"  {folder / 'trials.csv'} has all trials")
    if plan.space.numbers:
        print(f"  {folder / report.PICTURE} draws them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
