"""Draws a training batch as the model sees it, cropped and mirrored, with its labels.

    python -m examples.show_batch --dataset cifar10 --out batch.png

Only the normalisation is undone, for the colours; the black edges are the padding.
"""

import argparse

import numpy as np

from examples.training import data


def draw(dataset, epoch=0):
    """A figure of the first batch of an epoch.

    Args:
        dataset: `examples.training.data.Data`.
        epoch: integer, counted from 0.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    from matplotlib.figure import Figure

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
    parser = argparse.ArgumentParser(
        prog="python -m examples.show_batch",
        description="Draws a training batch as the model sees it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--dataset", default="cifar10", choices=list(data.DATASETS))
    parser.add_argument("--out", required=True, help="image file to write, for example batch.png")
    parser.add_argument("--batch-size", type=int, default=32, help="number of images")
    parser.add_argument("--epoch", type=int, default=0, help="epoch that the batch is the first of")
    parser.add_argument("--seed", type=int, default=0, help="seed of order, crops and flips")
    parser.add_argument("--image-size", type=int, help="resize to this height and width")
    parser.add_argument("--data-dir", help="folder of the data")
    options = parser.parse_args(arguments)
    try:
        dataset = data.load(
            options.dataset,
            batch_size=options.batch_size,
            seed=options.seed,
            image_size=options.image_size,
            data_dir=options.data_dir,
        )
        draw(dataset, options.epoch).savefig(options.out, dpi=150)
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
