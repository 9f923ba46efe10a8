"""The pictures that `examples.study.report` makes of the records."""

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from examples.study import experiments
from examples.study.drawing import INK, PLAIN, QUIET, STYLE, VARIANT, epochs_on, mean_and_range
from examples.training import records

_NOTE = {"color": QUIET, "size": 7}
COLORS = {"Adam": PLAIN, "AdamNorm": VARIANT}
FEW = 2  # so many seeds are drawn one by one
CUT = 0.1  # the share of runs below which a row of panels may end
WIDE = {"Adam": True, "AdamNorm": False}
SCENARIOS = {"S1": "S1: a flat region", "S2": "S2: a steep region", "S3": "S3: a narrow valley"}
STREAMS = {"quadratics": "random quadratics", "cycle": "3w, -w, -w, 3w, ..."}


def write(figure, path):
    """Draws a `Figure` into a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with records.replacing(path) as temporary:
        figure.savefig(temporary, dpi=100)


def _styled(draw):
    def styled(*arguments):
        with matplotlib.rc_context(STYLE):
            return draw(*arguments)

    return styled


@_styled
def curves(columns, note):
    """Figure 2: training loss and accuracy by epoch, mean and range over the seeds.

    Args:
        columns: List of `(title, plain, variant)`, the two as `(name, records)`. The accuracy is
            the test accuracy where it was scored every epoch, as in the paper, or else the
            validation accuracy.
        note: What was trained, in words.
    """
    first = columns[0][1][1][0]["epochs"]
    accuracy = "test_accuracy" if "test_accuracy" in first else "val_accuracy"
    label = {"test_accuracy": "test accuracy", "val_accuracy": "validation accuracy"}[accuracy]
    rows = {accuracy: label, "loss": "training loss"}
    return _grid(columns, rows, [(name, side, name) for name in rows for side in (0, 1)], note)


@_styled
def gradient_norms(columns, note):
    """Figure 3: the mean gradient norm by epoch, before and after the correction.

    See `curves` for the arguments. Nobody looks at the norms of DiffGrad, Radam and AdaBelief
    without the correction; their variants' norms before it are there.
    """
    lines = [
        ("norm", 0, "gradient_norm"),
        ("norm", 1, "gradient_norm"),
        ("norm", 1, "corrected_gradient_norm"),
    ]
    return _grid(columns, {"norm": "mean gradient norm"}, lines, note)


def _grid(columns, rows, lines, note):
    """A column of panels for every pair; `lines` are `(row, side of the pair, curve)`."""
    figure = Figure(figsize=(max(5.5, 2.9 * len(columns)), 0.9 + 2.3 * len(rows)))
    grid = figure.subplots(len(rows), len(columns), sharex=True, squeeze=False, sharey="row")
    for panels, (title, *sides) in zip(grid.T, columns, strict=True):
        axes = dict(zip(rows, panels, strict=True))
        for row, side, curve in lines:
            name, records = sides[side]
            drawn = [record["epochs"][curve] for record in records if curve in record["epochs"]]
            if drawn:
                style = {"label": name}
                if curve == "corrected_gradient_norm":
                    style = {"label": f"{name}, corrected"}
                elif row == "norm" and side == 1:
                    style |= {"linestyle": ":"}
                color = (PLAIN, VARIANT)[side]
                mean_and_range(axes[row], drawn, color, wide=side == 0, **style)
        panels[0].set_title(title, color=INK)
        panels[0].legend(frameon=False, fontsize=7)
        panels[-1].set_xlabel("epoch")
        epochs_on(panels[-1].xaxis)
    for panel, label in zip(grid[:, 0], rows.values(), strict=True):
        panel.set_ylabel(label)
    figure.text(0.01, 0.01, f"{note}. Lines: means, bands: ranges.", color=QUIET, size=7)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    return figure


@_styled
def figure1(record):
    """Figure 1: the curve of each scenario, and how long the steps on it are."""
    results, before = record["results"], record["settings"]["slope_steps"]
    figure = Figure(figsize=(10, 4.6))
    grid = figure.subplots(2, len(results), sharex="row", squeeze=False)
    for (place, update), (scenario, walks) in zip(grid.T, results.items(), strict=True):
        for name, walk in walks.items():
            shown = slice(before - 40, before + 200)
            steps = np.arange(len(walk["update"]))[shown] - before
            style = {"color": COLORS[name], "label": name}
            style |= {"linewidth": 4, "alpha": 0.55} if WIDE[name] else {"linewidth": 1.5}
            place.plot(steps, walk["position"][shown], **style)
            update.plot(steps, np.maximum(walk["update"][shown], 1e-6), **style)
        place.set_title(SCENARIOS[scenario], color=INK)
        update.set_yscale("log")
        update.set_xlabel("steps from its beginning")
        for axes in (place, update):
            axes.axvline(0, color=QUIET, linewidth=0.8, linestyle=":")
    grid[0, 0].set_ylabel("position")
    grid[1, 0].set_ylabel("length of the step")
    grid[0, 0].legend(frameon=False)
    figure.tight_layout()
    return figure


@_styled
def regret(record):
    """The average regret, the theorem's bound on it, and a guide that falls as 1/sqrt(T)."""
    results = record["results"]
    figure = Figure(figsize=(9, 3.8))
    (panels,) = figure.subplots(1, len(results), squeeze=False)
    for axes, (stream, curves_of) in zip(panels, results.items(), strict=True):
        for name, curve in curves_of.items():
            mean_and_range(
                axes,
                curve["regret"],
                COLORS[name],
                wide=WIDE[name],
                x=curve["steps"],
                label=name,
            )
        steps, last = np.array(curve["steps"]), np.mean(curve["regret"], axis=0)
        for bound, label, style in (
            ("bound", "bound (supplement)", "--"),
            ("printed_bound", "bound (main text)", ":"),
        ):
            axes.plot(steps, curve[bound], color=INK, linewidth=1, linestyle=style, label=label)
        guide = last[len(last) // 2] * np.sqrt(steps[len(last) // 2] / steps)
        axes.plot(steps, guide, color=QUIET, linewidth=0.8, label="1/sqrt(T)")
        axes.set(xscale="log", yscale="log", xlabel="T")
        axes.set_title(STREAMS[stream], color=INK)
    panels[0].set_ylabel("R(T) / T")
    panels[-1].legend(frameon=False, fontsize=7)
    figure.tight_layout()
    return figure


@_styled
def rates(results):
    """Test accuracy against the learning rate: a row for each study, a panel for each pair.

    Args:
        results: List of `convergence_results.Results`.
    """
    figure = Figure(figsize=(10, 0.7 + 2.4 * len(results)))
    shared = {"squeeze": False, "sharex": "row", "sharey": "row"}
    grid, seeds = figure.subplots(len(results), len(experiments.PAIRS), **shared), []
    for panels, result in zip(grid, results, strict=True):
        drawn = []
        for axes, pair in zip(panels, experiments.PAIRS, strict=True):
            best_rates = result.best_rates(pair)
            for arm, best, side in zip(pair, best_rates, (0, 1), strict=True):
                points = [point for point in result.curve(arm, pair) if point.accuracies]
                drawn += points
                if points:
                    _rate_curve(axes, arm.name, points, best, side)
            axes.set_xscale("log")
            if axes.lines:
                axes.legend(frameon=False, fontsize=7, loc="lower center")
            else:
                names = " and ".join(arm.name for arm in pair)
                place = {"transform": axes.transAxes, "ha": "center", "va": "center"}
                axes.text(0.5, 0.5, f"{names}:\nnot run", **place, color=QUIET, size=7)
        counts = {len(point.accuracies) for point in drawn}
        seeds.append(
            f"{result.images}: {' to '.join(map(str, sorted({min(counts), max(counts)})))}"
        )
        values = [100 * value for point in drawn for value in point.accuracies]
        panels[0].set_ylim(bottom=np.quantile(values, CUT) - 1)
        panels[0].set_ylabel(f"test accuracy in percent,\n{result.images}")
    for axes in grid[-1]:
        axes.set_xlabel("learning rate")
    note = (
        f"Lines: means over the seeds ({', '.join(seeds)}). Bands: their ranges; where there are "
        "few seeds, small dots. Large dots: the rates with the best validation\naccuracy. Cut off "
        f"is what lies more than a point below the worst {CUT:.0%} of a row's runs."
    )
    figure.text(0.01, 0.01, note, **_NOTE)
    figure.tight_layout(rect=(0, 0.16 / len(results) ** 0.9, 1, 1))
    return figure


def _rate_curve(axes, name, points, best, side):
    """The curve of one side of a pair: 0 is the plain optimizer, 1 the variant."""
    color, width, alpha = ((PLAIN, 4.5, 0.55), (VARIANT, 1.6, 1.0))[side]
    x = [point.rate for point in points]
    values = [100 * np.array(point.accuracies) for point in points]
    if min(map(len, values)) > FEW:
        low, high = ([end(value) for value in values] for end in (np.min, np.max))
        axes.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0)
        for end in (low, high):
            axes.plot(x, end, color=color, alpha=0.5, linewidth=0.6)
    else:
        for rate, seeds in zip(x, values, strict=True):
            axes.plot([rate] * len(seeds), seeds, ".", color=color, markersize=3 + 2 * (not side))
    means = list(map(np.mean, values))
    axes.plot(x, means, color=color, linewidth=width, alpha=alpha, label=name)
    if best in x:
        axes.plot([best], [means[x.index(best)]], "o", color=color, markersize=9 - 3 * side)


@_styled
def forest(results, questions):
    """All differences with their intervals: a column for each study, a block for each group.

    A study that has none yet is left out.

    Args:
        results: List of `convergence_results.Results`.
        questions: `{group: (what it asks, which difference it shows)}`.
    """
    begun = [r for r in results if any(one.count > 1 for g in r.groups().values() for one in g)]
    results = begun or results[:1]
    rows = sum(len(group) + 2 for group in results[0].groups().values())
    figure = Figure(figsize=(4.6 + 2.9 * len(results), 1.0 + 0.22 * rows))
    (panels,) = figure.subplots(1, len(results), squeeze=False, sharex=True, sharey=True)
    for axes, result in zip(panels, results, strict=True):
        labels, y, counts = [], 0, set()
        for name, group in result.groups().items():
            labels += zip((y, y + 0.8), questions[name], strict=True)
            y += 1
            for one in group:
                y += 1
                labels.append((y, one.variant.removesuffix(", debiased")))
                counts.update({one.count} - {0})
                _difference(axes, y, one)
            y += 1.3
        axes.axvline(0, color=INK, linewidth=0.8)
        seeds = " to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else "no"
        axes.set_title(f"{result.images[0].upper()}{result.images[1:]}, {seeds} seeds", color=INK)
        axes.set_xlabel(
            "\N{LEFTWARDS ARROW} first worse   points of test accuracy   first better "
            "\N{RIGHTWARDS ARROW}"
        )
        axes.grid(axis="y", visible=False)
    panels[0].set_yticks(*zip(*labels, strict=True), fontsize=7)
    for label in panels[0].get_yticklabels():
        if label.get_text().endswith("?"):
            label.set(color=INK, weight="bold")
        elif " - " in label.get_text():
            label.set(style="italic")
    panels[0].set_ylim(y - 0.5, -0.7)
    figure.text(
        0.01,
        0.01,
        "Dots: mean differences. Lines: intervals over the seeds; those of a block hold together "
        "with 95%.\nGrey: the interval holds 0, a tie. Red: it does not.",
        **_NOTE,
    )
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    return figure


def _difference(axes, y, one):
    """The interval of a `Comparison` in row `y`."""
    if one.count > 1:
        mean, low, high = (100 * value for value in one.together)
        color = VARIANT if low > 0 or high < 0 else PLAIN
        axes.plot([low, high], [y, y], color=color, linewidth=2)
        axes.plot([mean], [y], "o", color=color, markersize=5)
    if one.failed:
        told = ", ".join(f"{count} of {name} failed" for name, count in one.failed.items())
        place = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
        axes.text(1, y, told, **place, **_NOTE)


def pair_columns(arms, pairs=experiments.PAIRS):
    """The columns of `curves` of the pairs of which both sides have records."""
    return [
        (variant.name, (plain.name, arms[plain.name].done), (variant.name, arms[variant.name].done))
        for plain, variant in pairs
        if arms[plain.name].done and arms[variant.name].done
    ]
