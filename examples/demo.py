"""Trains a small network on scikit-learn's digits with every Norm variant and its plain optimizer.

Each optimizer runs with three seeds; within a seed both of a pair start from the same weights and
see the same batches, so that only the correction makes a difference. It ends with a table and a
picture.

example:
  python -m examples.demo

Every run trains for the same number of epochs on all 1,437 training images, and its result is the
test accuracy after the last one: nothing is chosen by looking at the 360 test images. One optimizer
of a pair is said to be ahead only where the interval of their difference leaves out zero; the
intervals of all pairs hold together at 95 %.
"""

import dataclasses
import pathlib
import sys
from typing import Annotated

import numpy as np

from examples.study import intervals
from examples.study.drawing import (
    INK,
    PLAIN,
    QUIET,
    STYLE,
    VARIANT,
    check_picture,
    epochs_on,
    mean_and_range,
)
from examples.training import command_line, options, pairs
from examples.training.checks import Setting

PROGRAM = "python -m examples.demo"
PAIRS = {plain: variant for variant, plain in pairs.read().items()}
CURVES = ("loss", "val_accuracy", "corrections_fired")


@dataclasses.dataclass(frozen=True)
class Options:
    """The size of the demonstration."""

    seeds: Annotated[int, Setting("runs per optimizer", low=1, high=1000)] = 3
    epochs: Annotated[int, Setting("epochs of a run", low=1)] = 8
    output: Annotated[
        pathlib.Path,
        Setting("the picture; the ending of its name is the format", metavar="FILE", file=True),
    ] = pathlib.Path("runs/demo.png")


def main(arguments=None):
    """Runs the command line and returns its exit status."""
    return command_line.run(PROGRAM, lambda: _demonstrate(arguments))


def _demonstrate(arguments):
    chosen = Options(
        **options.read(PROGRAM, __doc__, {"demonstration": options.group(Options)}, arguments)
    )
    check_picture(chosen.output)
    runs = train_all(chosen.seeds, chosen.epochs, verbose=1 if sys.stdout.isatty() else 2)
    print("\n" + table(runs))
    draw(runs, chosen.output)
    print(f"\nLoss and accuracy curves: {chosen.output}")
    return 0


def train_all(seeds, epochs, verbose):
    """Trains all pairs.

    Args:
        seeds: Positive integer, runs per optimizer.
        epochs: Positive integer.
        verbose: 0, 1 or 2, as in `keras.Model.fit`.

    Returns:
        `{optimizer: [{curve: [value per epoch]} per seed]}`.
    """
    names = [name for pair in PAIRS.items() for name in pair]
    return {name: train(name, seeds, epochs, verbose) for name in names}


def train(name, seeds, epochs, verbose):
    """Trains a network with the named optimizer, once per seed: a list of `{curve: [values]}`.

    The network is compiled once. Each run begins with the weights of its seed and with the
    optimizer as it was before its first step.
    """
    import keras

    import keras_adanorm
    from examples.training import data, models, recipes

    plain = name in PAIRS
    runs, before_first_step = [], {}
    for seed in range(seeds):
        print(f"\n{name}, seed {seed} (run {seed + 1} of {seeds})", flush=True)
        keras.utils.set_random_seed(seed)
        digits = data.load("digits", batch_size=32, seed=seed, validation_size=0)
        initial = models.build("cnn", digits.num_classes, digits.input_shape, seed=seed)
        if seed == 0:
            model = initial
            optimizer = recipes.optimizer_class(name)(learning_rate=1e-3)
            optimizer.build(model.trainable_variables)
            optimizer.save_own_variables(before_first_step)
            model.compile(
                optimizer=optimizer,
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
            )
        else:
            model.set_weights(initial.get_weights())
            optimizer.load_own_variables(before_first_step)
        history = model.fit(
            digits.train_from(0),
            steps_per_epoch=digits.steps_per_epoch,
            validation_data=digits.test,
            epochs=epochs,
            callbacks=[] if plain else [keras_adanorm.GradientNormMonitor()],
            shuffle=False,
            verbose=verbose,
        ).history
        runs.append({curve: history[curve] for curve in CURVES if curve in history})
    return runs


def table(runs):
    """The results as text."""
    lines = [
        f"{'test accuracy in %':<19}{'mean':>7}{'spread':>8}{'runs':>6}  corrections that fired",
    ]
    for name in runs:
        accuracy = _last_accuracies(runs[name])
        spread = f"{100 * accuracy.std(ddof=1):.2f}" if len(accuracy) > 1 else "-"
        fired = "-" if name in PAIRS else f"{100 * _fired(runs[name]):.0f} %"
        lines.append(
            f"{name:<19}{100 * accuracy.mean():>7.2f}{spread:>8}{len(accuracy):>6}  {fired:>22}"
        )
    lines += ["", f"{'difference in points':<27}{'mean':>6}   {'95 % interval':<18}verdict"]
    for plain, variant in PAIRS.items():
        result = _compare_runs(runs, plain, variant)
        mean, low, high = (100 * value for value in result)
        interval = f"{low:+.2f} to {high:+.2f}"
        lines.append(
            f"{variant + ' - ' + plain:<27}{mean:>+6.2f}   {interval:<18}"
            f"{intervals.verdict(plain, variant, result)}"
        )
    lines.append("Spread: standard deviation over the seeds. The intervals hold together.")
    return "\n".join(lines)


def draw(runs, path):
    """Draws loss, accuracy and fired corrections, one column per pair, and saves the picture."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        _figure(runs).savefig(path)


def _figure(runs):
    from matplotlib.figure import Figure
    from matplotlib.ticker import (
        FuncFormatter,
        LogLocator,
        NullFormatter,
        PercentFormatter,
    )

    seeds, epochs = len(runs["Adam"]), len(runs["Adam"][0]["loss"])
    figure = Figure(figsize=(12, 7.2))
    rows = figure.subplots(
        3, len(PAIRS), sharex=True, sharey="row", height_ratios=[1, 1, 0.45], squeeze=False
    )
    for column, (plain, variant) in zip(rows.T, PAIRS.items(), strict=True):
        for axes, curve in zip(column, CURVES, strict=True):
            for name, color in ((plain, PLAIN), (variant, VARIANT)):
                if curve in runs[name][0]:
                    mean_and_range(
                        axes, [run[curve] for run in runs[name]], color, wide=name == plain
                    )
        difference = _compare_runs(runs, plain, variant)
        result = intervals.verdict(plain, variant, difference)
        column[0].text(0, 1.2, variant, color=VARIANT, weight="bold", size=12, **_above(column[0]))
        column[0].text(
            0, 1.07, f"beside {plain}", color=PLAIN, weight="bold", size=9, **_above(column[0])
        )
        column[1].text(
            0.97,
            0.06,
            f"last epoch: {100 * difference.mean:+.2f} points\n{result}",
            ha="right",
            color=INK,
            linespacing=1.5,
            transform=column[1].transAxes,
        )
        column[2].set_xlabel("epoch")
        column[2].set_xlim(1, max(epochs, 2))
        epochs_on(column[2].xaxis)
    rows[0, 0].set_yscale("log")
    rows[0, 0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    rows[0, 0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    rows[0, 0].yaxis.set_minor_formatter(NullFormatter())
    rows[1, 0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    rows[2, 0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    rows[2, 0].set_ylim(0, 1)
    rows[2, 0].set_yticks([0, 0.5, 1])
    for axes, label in zip(
        rows[:, 0], ("training loss", "test accuracy", "corrected"), strict=True
    ):
        axes.set_ylabel(label)
    figure.subplots_adjust(left=0.065, right=0.985, top=0.8, bottom=0.11, wspace=0.08, hspace=0.14)
    figure.align_ylabels(rows[:, 0])
    figure.text(
        0.065, 0.945, "Four optimizers and their norm-corrected variants", size=16, weight="bold"
    )
    figure.text(
        0.065,
        0.91,
        "A small convolutional network on the 8x8 digits of scikit-learn: 1,437 images to train "
        "on, 360 to test.",
        color=QUIET,
        size=10,
    )
    band = f"Lines: mean of {seeds} seeds, bands: from the lowest to the highest.  "
    figure.text(
        0.065,
        0.025,
        (band if seeds > 1 else "One seed.  ")
        + "Corrected: share of gradients whose norm lay below its average and was raised to it.",
        color=QUIET,
        size=8,
    )
    return figure


def _above(axes):
    return {"transform": axes.transAxes, "va": "bottom"}


def _compare_runs(runs, plain, variant):
    """The interval of a pair's difference. Those of all pairs hold together."""
    sides = (_last_accuracies(runs[name]) for name in (plain, variant))
    return intervals.paired(*sides, comparisons=len(PAIRS), resolution=1 / 360)


def _last_accuracies(runs):
    return np.array([run["val_accuracy"][-1] for run in runs])


def _fired(runs):
    return np.mean([run["corrections_fired"] for run in runs])


if __name__ == "__main__":
    sys.exit(main())
