"""Draws a training batch as the model sees it, cropped and mirrored, with its labels.

example:
  python -m examples.show_batch --dataset cifar10 --output batch.png

Only the normalization is undone, to show the colors; the black edges are the padding.
"""

import dataclasses
import pathlib
import sys
from typing import Annotated

from examples.training import command_line, options
from examples.training.checks import Setting
from examples.training.recipes import Settings

PROGRAM = "python -m examples.show_batch"
# All of a batch is drawn: more pictures take minutes, and none can be seen.
MOST_IMAGES = 256


@dataclasses.dataclass(frozen=True)
class Options:
    """Which batch is drawn, and where to."""

    batch_size: Annotated[int, Setting("images of the batch", low=1, high=MOST_IMAGES)] = 32
    epoch: Annotated[int, Setting("draw the first batch of this epoch, counted from 0", low=0)] = 0
    data_dir: Annotated[
        pathlib.Path | None, Setting("folder of the data", unset="the library's own")
    ] = None
    output: Annotated[
        pathlib.Path,
        Setting("the picture; the ending of its name is the format", metavar="FILE", file=True),
    ] = pathlib.Path("runs/batch.png")


GROUPS = {
    "batch": [
        *options.group(Settings, ["dataset", "seed", "image_size"]),
        *options.group(Options),
    ]
}


def draw(dataset, epoch=0):
    """A figure of the first batch of an epoch.

    Args:
        dataset: `examples.training.data.Data`.
        epoch: integer, counted from 0.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    import numpy as np
    from matplotlib.figure import Figure

    from examples.training import data

    images, labels = next(dataset.train_epoch(epoch).as_numpy_iterator())
    source = data.DATASETS[dataset.name]
    pixels = np.clip(images * np.array(source.std) + np.array(source.mean), 0, 1)
    names = dataset.label_names or [str(label) for label in range(dataset.num_classes)]
    columns = min(8, len(images))
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(1.3 * columns, 1.5 * rows), layout="constrained")
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        axes.axis("off")
    for axes, image, label in zip(figure.axes, pixels, labels, strict=False):
        axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(names[label].split(",")[0], fontsize=7)
    return figure


def main(arguments=None):
    """Runs the command line and returns its exit status."""
    return command_line.run(PROGRAM, lambda: _show(arguments))


def _show(arguments):
    values = options.read(PROGRAM, __doc__, GROUPS, arguments)
    output, epoch = values.pop("output"), values.pop("epoch")
    from examples.study.drawing import check_picture

    check_picture(output)
    from examples.training import data

    with data.usable():
        dataset = data.load(values.pop("dataset"), **values)
    draw(dataset, epoch).savefig(output, dpi=150)
    print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
