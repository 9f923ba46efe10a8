"""What is compared: the runs of the paper's tables, at three sizes, and of the desk study.

An arm is an optimizer with its arguments. A table is a set of arms, a scale says on which data,
networks and seeds. A run that stands in two tables is one run: its name follows from its settings.
"""

import dataclasses
import itertools

from examples.training.errors import UsageError
from examples.training.recipes import Settings


@dataclasses.dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    Args:
        name: What it is called in tables and file names.
        optimizer: Name of its class, see `recipes.optimizer_classes`.
        arguments: Dictionary of the optimizer's arguments that differ from its defaults.
        learning_rate: Positive float. Defaults to the paper's 0.001.
        batch_size: Positive integer. Defaults to the paper's 64.
        seed_offset: Integer, what is added to the seeds that all other arms have.
    """

    name: str
    optimizer: str
    arguments: dict = dataclasses.field(default_factory=dict)
    learning_rate: float = 1e-3
    batch_size: int = 64
    seed_offset: int = 0


@dataclasses.dataclass(frozen=True)
class Scale:
    """Size of an experiment.

    Args:
        datasets, models: Names, all of which are combined.
        seeds: Positive integer, runs of an arm.
        settings: Dictionary of the `Settings` of every run that differ from the defaults.
        machine: What it is meant for, in words.
        rate: Positive float, the multiply-adds a second that a training is assumed to reach on
            that machine, for estimates of time.
    """

    datasets: tuple[str, ...]
    models: tuple[str, ...]
    seeds: int
    settings: dict
    machine: str
    rate: float


SCALES = {
    "paper": Scale(
        datasets=("cifar10", "cifar100", "tiny_imagenet"),
        models=("vgg16", "resnet18", "resnet50"),
        seeds=3,
        settings={"epochs": 100, "validation_size": 0, "test_every_epoch": True},
        # A twenty-fifth of its peak in TensorFloat-32: batches of small images do not fill it.
        machine="one H100-class GPU",
        rate=1e13,
    ),
    "desk": Scale(
        datasets=("cifar10",),
        models=("resnet8",),
        seeds=5,
        settings={
            "epochs": 6,
            "width": 8,
            "train_size": 10_000,
            "validation_size": 2_000,
            "deterministic": True,
        },
        machine="one or two CPU cores",
        rate=1e10,
    ),
    "smoke": Scale(
        datasets=("digits",),
        models=("cnn",),
        seeds=2,
        settings={"epochs": 2, "width": 4, "train_size": 320, "validation_size": 100},
        machine="one or two CPU cores",
        rate=1e8,  # the start of a run takes longer than its steps
    ),
}

# The paper's Adam. That of Keras adds epsilon before the correction for bias, the paper after.
ADAM = Arm("Adam", "AdamNorm", {"gamma": 0.0})
ADAM_NORM = Arm("AdamNorm", "AdamNorm")
PAIRS = (
    (ADAM, ADAM_NORM),
    (Arm("DiffGrad", "DiffGrad"), Arm("DiffGradNorm", "DiffGradNorm")),
    (Arm("Radam", "Radam"), Arm("RadamNorm", "RadamNorm")),
    (Arm("AdaBelief", "AdaBelief"), Arm("AdaBeliefNorm", "AdaBeliefNorm")),
)
GAMMAS = tuple(
    ADAM_NORM if gamma == 0.95 else Arm(f"AdamNorm-gamma{gamma}", "AdamNorm", {"gamma": gamma})
    for gamma in (0.9, 0.95, 0.99, 0.999)
)
MOMENTS = (
    ADAM_NORM,
    Arm("AdamNorm-second", "AdamNorm", {"corrected_moments": "second"}),
    Arm("AdamNorm-both", "AdamNorm", {"corrected_moments": "both"}),
)
KERAS_ADAM = Arm("keras.Adam", "Adam")
NOISE = Arm("Adam-other-seeds", "AdamNorm", {"gamma": 0.0}, seed_offset=1000)
# The released code adds epsilon to v_t at every step: a floor of epsilon / (1 - beta_2) under the
# root. Its AdaBeliefNorm corrects both moments.
FLOOR = {"epsilon_root": 1e-5}
RELEASED = (
    Arm("Adam-floor", "AdamNorm", {"gamma": 0.0, **FLOOR}),
    Arm("AdamNorm-released", "AdamNorm", FLOOR),
    Arm("AdaBeliefNorm-released", "AdaBeliefNorm", {"corrected_moments": "both", **FLOOR}),
)


@dataclasses.dataclass(frozen=True)
class Table:
    """A declared set of runs.

    Args:
        name: What the command line calls it.
        title: What is compared, in words.
        arms: The arms, in the order of the table.
        models: Models of the paper's scale; the others have theirs.
    """

    name: str
    title: str
    arms: tuple[Arm, ...]
    models: tuple[str, ...] = SCALES["paper"].models


def _varied(arm, label, name, values):
    default = getattr(ADAM, name)
    return tuple(
        arm
        if value == default
        else dataclasses.replace(arm, name=f"{arm.name}-{label}{value:g}", **{name: value})
        for value in values
    )


def _both_varied(label, name, values):
    return tuple(arm for side in (ADAM, ADAM_NORM) for arm in _varied(side, label, name, values))


TABLES = {
    table.name: table
    for table in (
        Table(
            "table1",
            "Four optimizers without and with AdaNorm",
            tuple(arm for pair in PAIRS for arm in pair),
        ),
        Table("table2", "The average's gamma, AdamNorm", GAMMAS),
        Table("table3", "The moments that see the corrected gradient, AdamNorm", MOMENTS),
        Table(
            "table4",
            "The learning rate, Adam and AdamNorm",
            _both_varied("lr", "learning_rate", (1e-2, 1e-3, 1e-4)),
            ("vgg16", "resnet18"),
        ),
        Table(
            "table5",
            "The batch size, Adam and AdamNorm",
            _both_varied("batch", "batch_size", (32, 64, 128)),
            ("vgg16", "resnet18"),
        ),
        Table(
            "figure2",
            "Test accuracy and training loss against the epoch, Adam and AdamNorm",
            (ADAM, ADAM_NORM),
            ("vgg16", "resnet18"),
        ),
        Table(
            "figure3",
            "Mean gradient norm against the epoch, Adam and AdamNorm",
            (ADAM, ADAM_NORM),
            ("vgg16", "resnet18"),
        ),
        Table(
            "study",
            "The desk study: tables 1 to 3, the noise floor, the released code's settings",
            tuple(
                {
                    arm.name: arm
                    for arms in (*PAIRS, (KERAS_ADAM, NOISE), RELEASED, GAMMAS, MOMENTS)
                    for arm in arms
                }.values()
            ),
        ),
    )
}

# What is compared in the study, as (variant, plain). The intervals of a group hold together.
GROUPS = {
    "pairs": tuple((variant.name, plain.name) for plain, variant in PAIRS),
    "causes": (
        ("Adam-floor", "Adam"),
        ("AdamNorm-released", "Adam"),
        ("AdamNorm-released", "Adam-floor"),
        ("AdaBeliefNorm-released", "AdaBelief"),
        ("keras.Adam", "Adam"),
    ),
    "gamma": tuple((arm.name, ADAM_NORM.name) for arm in GAMMAS if arm is not ADAM_NORM),
    "moments": tuple((arm.name, ADAM_NORM.name) for arm in MOMENTS if arm is not ADAM_NORM),
    "noise": ((NOISE.name, ADAM.name),),
}

# The tuned pair: each side has the same trials, the better one on the validation images runs on
# fresh seeds.
TUNED_ARMS = (ADAM, ADAM_NORM)
TUNED_RATES = (1e-4, 2.15e-4, 4.64e-4, 1e-3, 2.15e-3, 4.64e-3, 1e-2)
TRIAL_SEED = 100
FRESH_SEED = 200


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One training run of a series: where its record stands, and what it trains."""

    path: str
    arm: Arm
    settings: Settings


def runs(table, scale, seeds=None, first_seed=0):
    """The runs of a table, seed by seed, so that a series that is stopped has whole rounds.

    Args:
        table: `Table`.
        scale: Name of `SCALES`.
        seeds: Positive integer, number of seeds, or `None` for the scale's.
        first_seed: Integer, the first of them.

    Returns:
        List of `PlannedRun`.
    """
    size = SCALES[scale]
    models = table.models if scale == "paper" else size.models
    return [
        _run(arm, scale, dataset, model, first_seed + seed + arm.seed_offset)
        for seed in range(seeds or size.seeds)
        for dataset in size.datasets
        for model in models
        for arm in table.arms
    ]


def trials(scale):
    """The trials of the tuned pair, as `{arm: [PlannedRun]}`.

    Raises:
        UsageError: If the runs of the scale have no validation images to choose by.
    """
    if SCALES[scale].settings.get("validation_size") == 0:
        allowed = [name for name, size in SCALES.items() if size.settings.get("validation_size")]
        raise UsageError(
            "The tuned pair needs validation images, which the paper's recipe has none of. "
            f"Argument `scale` must be one of {', '.join(allowed)}. Received: scale={scale}"
        )
    planned = {}
    for arm in TUNED_ARMS:
        table = Table("trials", "", _varied(arm, "lr", "learning_rate", TUNED_RATES))
        planned[arm.name] = runs(table, scale, seeds=1, first_seed=TRIAL_SEED)
    return planned


def finals(scale, series, seeds=None):
    """The runs of the tuned pair on fresh seeds, as `{arm: [PlannedRun]}`.

    An arm is in it once all its trials have ended and at least one has ended well.

    Args:
        scale: Name of `SCALES`.
        series: `series.Series`.
        seeds: Positive integer, number of seeds, or `None` for the scale's.

    Returns:
        The runs of each arm at the learning rate whose trial had the highest validation accuracy
        after the last epoch.
    """
    planned = {}
    for name, tried in trials(scale).items():
        scores = [
            (record["validation"]["accuracy"], one.arm)
            for one in tried
            if (record := series.record(one)) is not None
        ]
        if scores and all(series.done(one) for one in tried):
            _, best = max(scores, key=lambda scored: scored[0])
            table = Table("finals", "", (best,))
            planned[name] = runs(table, scale, seeds=seeds, first_seed=FRESH_SEED)
    return planned


def seed_by_seed(arms):
    """The runs of several arms in one list, seed by seed.

    >>> seed_by_seed([["a0", "a1"], ["b0"]])
    ['a0', 'b0', 'a1']
    """
    rounds = itertools.zip_longest(*arms)
    return [one for together in rounds for one in together if one is not None]


def _run(arm, scale, dataset, model, seed):
    settings = Settings(
        model=model,
        dataset=dataset,
        optimizer=arm.optimizer,
        optimizer_arguments=arm.arguments,
        learning_rate=arm.learning_rate,
        batch_size=arm.batch_size,
        seed=seed,
        **SCALES[scale].settings,
    )
    return PlannedRun(f"{scale}/{dataset}-{model}/{arm.name}-seed{seed}.json", arm, settings)
