"""Searches for an optimizer's learning rate, gamma and more with keras-tuner.

examples:
  embedded data, no download:
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

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import sys

from examples.training.checks import check_integer
from examples.training.command_line import DefaultsHelp, Parser, complain
from examples.training.errors import UsageError
from examples.training.recipes import Settings

PROGRAM = "python -m tuning.search"
TUNERS = ("random", "bayesian", "hyperband", "grid")
MAX_TRIALS = 12


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that decides what a search finds.

    Args:
        settings: `examples.training.recipes.Settings` of the trials; its seed is that of the first
            execution, and of the proposals.
        space: `tuning.space.OptimizerSpace`.
        tuner: One of `TUNERS`. Defaults to `"random"`.
        max_trials: Positive integer, or `None` for 12, or with a grid for all of it. Hyperband has
            a number of its own, which follows from the epochs. Defaults to `None`.
        executions_per_trial: Positive integer, runs of a trial, each with the next seed. Defaults
            to `1`.
        objective: A name of `tuning.hypermodel.OBJECTIVES`. Defaults to
            `"last_epoch_val_accuracy"`.

    Raises:
        UsageError: If an argument is not as said above.
    """

    settings: Settings
    space: object
    tuner: str = "random"
    max_trials: int | None = None
    executions_per_trial: int = 1
    objective: str = "last_epoch_val_accuracy"

    def __post_init__(self):
        from tuning.hypermodel import OBJECTIVES

        for name, allowed in (("tuner", TUNERS), ("objective", OBJECTIVES)):
            if getattr(self, name) not in allowed:
                raise UsageError(
                    f"Argument `{name}` must be one of {', '.join(allowed)}. "
                    f"Received: {name}={getattr(self, name)}"
                )
        if self.max_trials is not None:
            check_integer("max_trials", self.max_trials, 1)
            if self.tuner == "hyperband":
                raise UsageError(
                    "Argument `max_trials` cannot be given with the hyperband tuner, whose number "
                    f"of trials follows from the epochs. Received: max_trials={self.max_trials}"
                )
        elif self.tuner in ("random", "bayesian"):
            object.__setattr__(self, "max_trials", MAX_TRIALS)
        if self.tuner == "grid":
            if self.space.size is None:
                raise UsageError("A grid needs a space with `points`. Received: points=None")
            check_integer("max_trials", self.max_trials or self.space.size, self.space.size)
        check_integer("executions_per_trial", self.executions_per_trial, 1)
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
        chief_timeout: Seconds until a worker gives up a chief that does not answer.

    Returns:
        `(folder, rows)`: the search's folder, and what `tuning.report.rows` says of its trials;
        `None` in the place of the rows for a worker, which sees only its own.

    Raises:
        UsageError: If an argument is wrong or there are no data.
        RunError: If the folder cannot be used, or is another search's.
        SearchError: If the search cannot go on.
    """
    from examples.training import records, run
    from tuning import chief, project, trial_process
    from tuning.tuner import Trials

    role = chief.role()
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
        project.claim(folder, identity)
        try:
            return folder, _search(trials, identity, machine, role, worker_timeout)
        except (OSError, records.RecordError) as error:
            raise project.SearchError(f"Cannot go on: {error}") from error


def _search(trials, identity, machine, role, worker_timeout):
    """Runs a search alone or as the chief, and returns the rows of its trials."""
    from tuning import chief, report
    from tuning.oracles import ENDED
    from tuning.tuner import model_path, work

    plan, folder = trials.plan, trials.folder

    def on_end(trial):
        rows = report.rows(oracle, trials)
        report.write(folder, report.document(rows, identity, machine))
        for row in report.ranked(rows, plan.objective)[1:]:
            model_path(folder, row["trial"]).unlink(missing_ok=True)
        print(report.line(trial.trial_id, rows, plan.objective, oracle.max_trials), flush=True)

    oracle = _oracle(plan, on_end=on_end, missing=trials.missing, worker_timeout=worker_timeout)
    oracle.place(folder)
    plan.space.declare(oracle.hyperparameters)
    if role == "chief":
        chief.check_address()
    began = "Starting afresh in"
    if oracle.saved():
        oracle.reload(keep_workers=role == "chief")
        began = "Resuming"
    ended = len([trial for trial in oracle.trials.values() if trial.status in ENDED])
    print(
        f"{began} {folder}: {ended} of {oracle.max_trials or 'all'} trials are finished", flush=True
    )
    if role == "chief":
        chief.serve(oracle, folder)
    else:
        work(oracle, trials, chief.tuner_id())
    rows = report.rows(oracle, trials)
    document = report.document(rows, identity, machine)
    report.write(folder, document)
    if plan.space.numbers:
        report.draw(document, folder / report.PICTURE)
    return rows


def _work_for_chief(trials, identity, worker_timeout, chief_timeout):
    """Runs trials that the chief hands out, until there are no more."""
    from tuning import chief, project
    from tuning.tuner import work

    client = chief.ChiefClient(_oracle(trials.plan), trials.folder, chief_timeout)
    client.connect()
    project.check(trials.folder, identity)

    def alive(trial_id):
        return client.heartbeat(trial_id, worker_timeout / 6)

    with contextlib.suppress(chief.ChiefEnded):
        work(client, trials, chief.tuner_id(), alive)


def _oracle(plan, **others):
    from tuning.hypermodel import OBJECTIVES
    from tuning.oracles import ORACLES

    limit = {"max_trials": plan.max_trials}
    if plan.tuner == "hyperband":
        limit = {"max_epochs": plan.settings.epochs}
    return ORACLES[plan.tuner](
        objective=OBJECTIVES[plan.objective], seed=plan.settings.seed, **limit, **others
    )


def make_parser(prog, doc):
    """The options that a search and a comparison share."""
    parser = Parser(prog, doc, usage=f"{prog} [options]", formatter_class=DefaultsHelp)
    space = parser.add_argument_group("what is searched")
    space.add_argument(
        "--tune",
        nargs="*",
        metavar="NAME",
        help="arguments: learning_rate, gamma, weight_decay, max_correction, corrected_moments "
        "(default: the first two, if the optimizer has them)",
    )
    for name, text in (
        ("learning-rate", "0.0001 0.01"),
        ("gamma", "0.8 0.999, searched evenly in log(1 - gamma)"),
        ("weight-decay", "0.00001 0.1"),
    ):
        space.add_argument(
            f"--{name}",
            nargs=2,
            type=float,
            metavar=("LOW", "HIGH"),
            help=f"range, searched on a logarithmic scale (default: {text})",
        )
    how = parser.add_argument_group("how it is searched")
    how.add_argument("--tuner", default="random", help=", ".join(TUNERS))
    how.add_argument(
        "--max-trials",
        type=int,
        help=f"points that are tried (default: {MAX_TRIALS}; the whole grid; hyperband's own)",
    )
    how.add_argument(
        "--grid-points", type=int, default=4, help="points of each range, with --tuner grid"
    )
    how.add_argument(
        "--executions-per-trial",
        type=int,
        default=1,
        help="runs of a trial, each with the next seed; their mean counts",
    )
    how.add_argument(
        "--objective",
        default="last_epoch_val_accuracy",
        help="last_epoch_val_accuracy or last_epoch_val_loss",
    )
    how.add_argument("--seed", type=int, default=0, help="of the proposals and the first execution")
    what = parser.add_argument_group("what is trained")
    what.add_argument("--model", default="cnn", help="vgg16, resnet18, resnet50, resnet8 or cnn")
    what.add_argument("--width", type=int, help="filters of the first layer (default: the model's)")
    what.add_argument(
        "--dataset", default="digits", help="cifar10, cifar100, tiny_imagenet, digits or synthetic"
    )
    what.add_argument("--data-dir", help="folder of the data (default: the library's own)")
    what.add_argument("--image-size", type=int, help="pixels a side (default: the data set's own)")
    what.add_argument("--train-size", type=int, help="use that many training images (default: all)")
    what.add_argument(
        "--validation-size",
        type=int,
        help="training images held out to score trials (default: a tenth)",
    )
    what.add_argument(
        "--augment",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="shift and mirror training images",
    )
    what.add_argument("--epochs", type=int, default=5, help="passes over the training images")
    what.add_argument("--batch-size", type=int, default=64, help="images per step")
    where = parser.add_argument_group("where")
    where.add_argument(
        "--directory",
        type=pathlib.Path,
        default=pathlib.Path("runs/tuning"),
        help="folder of all searches",
    )
    where.add_argument(
        "--verbose",
        choices=["auto", "0", "1", "2"],
        default="auto",
        help="progress of each run: none, a bar, a line per epoch; auto is a bar on a terminal, "
        "else none",
    )
    return parser


def make_options(arguments=None):
    """Reads the command line."""
    parser = make_parser(PROGRAM, __doc__)
    group = parser.add_argument_group("this search")
    group.add_argument("--optimizer", default="AdamNorm", help="ours, or one of keras.optimizers")
    group.add_argument(
        "--project-name",
        help="the search's folder in --directory (default: a name made of the options)",
    )
    group.add_argument(
        "--worker-timeout",
        type=float,
        default=60.0,
        help="seconds until the chief hands on the trial of a worker that went silent",
    )
    group.add_argument(
        "--chief-timeout",
        type=float,
        default=300.0,
        help="seconds until a worker gives up a chief that does not answer",
    )
    return parser.parse_args(arguments)


def make_plan(options, optimizer):
    """The `Plan` that options make with an optimizer.

    Raises:
        ValueError: If they don't go together.
    """
    from tuning.space import RANGES, OptimizerSpace

    settings = Settings(
        optimizer=optimizer,
        deterministic=True,
        **{
            name: getattr(options, name)
            for name in (
                "model",
                "width",
                "dataset",
                "image_size",
                "train_size",
                "validation_size",
                "augment",
                "epochs",
                "batch_size",
                "seed",
            )
        },
    )
    ranges = {name: getattr(options, name) for name in RANGES if getattr(options, name)}
    points = options.grid_points if options.tuner == "grid" else None
    return Plan(
        settings,
        OptimizerSpace(optimizer, options.tune, ranges, points),
        tuner=options.tuner,
        max_trials=options.max_trials,
        executions_per_trial=options.executions_per_trial,
        objective=options.objective,
    )


def verbosity(options):
    """`verbose` for `keras.Model.fit`."""
    if options.verbose == "auto":
        return 1 if sys.stdout.isatty() else 0
    return int(options.verbose)


def main(arguments=None):
    """Runs the command line and returns its exit status."""
    options = make_options(arguments)

    def action():
        plan = make_plan(options, options.optimizer)
        folder, rows = search(
            plan,
            options.directory,
            options.project_name,
            options.data_dir,
            verbosity(options),
            options.worker_timeout,
            options.chief_timeout,
        )
        return 0 if rows is None else _summarise(folder, rows, plan)

    return run_program(PROGRAM, action)


def run_program(prog, action):
    """Runs an action and turns what it raises into one line and an exit status."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import keras_tuner  # noqa: F401

        from examples.training.errors import RunError
        from tuning.project import SearchError

        try:
            return action()
        except SearchError as error:
            reason, status = error, 1
        except (OSError, RunError, ValueError) as error:
            reason, status = error, 2
    except ImportError as error:
        reason, status = f"{error}. The tuning needs: pip install -e '.[tuning]'", 1
    except KeyboardInterrupt:
        reason, status = "interrupted; the same command goes on", 130
    return complain(prog, reason, status)


def _summarise(folder, rows, plan):
    from tuning import report
    from tuning.tuner import model_path

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
