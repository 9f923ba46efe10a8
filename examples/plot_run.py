"""Draws the curves of one run from its record.

examples:
  python -m examples.plot_run runs/NAME/record.json
  python -m examples.plot_run runs/NAME/record.json --output curves.png
"""

import dataclasses
import pathlib
import sys
from typing import Annotated

from examples.training import checks, command_line, options, records
from examples.training.checks import Setting
from examples.training.command_line import counted

PROGRAM = "python -m examples.plot_run"
PANELS = {
    "accuracy": {
        "training": "accuracy",
        "validation": "val_accuracy",
        "test": "test_accuracy",
    },
    "loss": {"training": "loss", "validation": "val_loss", "test": "test_loss"},
    "mean gradient norm": {
        "before the correction": "gradient_norm",
        "after": "corrected_gradient_norm",
    },
}


@dataclasses.dataclass(frozen=True)
class Options:
    """What is drawn, and where to."""

    record: Annotated[
        tuple[pathlib.Path, ...],
        Setting("record.json of a run", metavar="RECORD", least=1, file=True),
    ]
    output: Annotated[
        pathlib.Path | None,
        Setting("the picture", metavar="FILE", unset="curves.png beside the record", file=True),
    ] = None


def draw(record, path):
    """Writes a picture of accuracy, loss and gradient norm over the epochs of a record."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    from examples.study.drawing import epochs_on

    curves = record["epochs"]
    settings = record["settings"]
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for axes, (title, lines) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for label, key in lines.items():
            if curves.get(key):
                # An epoch of which nothing was observed is a gap.
                values = [float("nan") if value is None else value for value in curves[key]]
                axes.plot(range(1, len(values) + 1), values, marker=".", label=label)
        axes.set(title=title, xlabel="epoch")
        epochs_on(axes.xaxis)
        if title == "accuracy":
            axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(frameon=False)
    figure.suptitle(
        f"{settings['optimizer']}, {settings['model']} on {settings['dataset']}, "
        f"seed {settings['seed']}: test accuracy {record['test']['accuracy']:.1%} "
        f"after {counted(settings['epochs'], 'epoch')}"
    )
    figure.savefig(path, dpi=120)


def main(arguments=None):
    """Runs the command line and returns its exit status."""
    return command_line.run(PROGRAM, lambda: _plot(arguments))


def _plot(arguments):
    groups = {"picture": options.group(Options)}
    values = options.read(PROGRAM, __doc__, groups, arguments, positional=["record"])
    (path, *others), output = values["record"], values["output"]
    if others:
        raise checks.refused("record", "one file", " ".join(map(str, values["record"])))
    record = records.read(path)
    output = output or path.with_name("curves.png")
    from examples.study.drawing import check_picture

    check_picture(output)
    with records.content_of(path):
        draw(record, output)
    print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
