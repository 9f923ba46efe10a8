"""Draws the curves of one run from its record.

python -m examples.plot_run runs/NAME/record.json curves.png
"""

import argparse
import pathlib

from examples.training import records


def draw(record, path):
    """Writes a picture of accuracy, loss and gradient norm over the epochs of a record."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {
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
    curves = record["epochs"]
    settings = record["settings"]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(11, 3.4), layout="constrained")
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for label, key in lines.items():
            if curves.get(key):
                epochs = range(1, len(curves[key]) + 1)
                axis.plot(epochs, curves[key], marker=".", label=label)
        axis.set(title=title, xlabel="epoch")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.suptitle(
        f"{settings['optimizer']}, {settings['model']} on {settings['dataset']}, "
        f"seed {settings['seed']}: test accuracy {record['test']['accuracy']:.1%} "
        f"after {settings['epochs']} epochs"
    )
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m examples.plot_run", description=__doc__)
    parser.add_argument("record", type=pathlib.Path, help="a record.json")
    parser.add_argument("picture", type=pathlib.Path, help="the PNG to write")
    options = parser.parse_args(arguments)
    try:
        draw(records.read(options.record), options.picture)
    except (records.RecordError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
