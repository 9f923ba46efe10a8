"""How the pictures of the examples look, and the lines that they share."""

import numpy as np

from examples.training import checks, records

PLAIN, VARIANT, INK, QUIET = "#8b95a5", "#c8334a", "#22252b", "#6b7078"
STYLE = {
    "figure.facecolor": "white",
    "figure.dpi": 160,
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": "#c9ccd1",
    "axes.labelcolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#eceef0",
    "axes.axisbelow": True,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
}


def check_picture(path):
    """Raises an error if a picture could not be written there, before anything is done for it.

    Raises:
        UsageError: If matplotlib knows no format of that name.
        OSError: If the file cannot be made.
    """
    from matplotlib.figure import Figure

    formats = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix.lower().removeprefix(".") not in formats:
        raise checks.refused("output", f"a file that ends in one of .{', .'.join(formats)}", path)
    records.make_folder(path.parent)
    if path.exists():
        path.open("ab").close()


def epochs_on(axis):
    """Marks whole epochs only on matplotlib's axis."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def mean_and_range(axes, curves, color, wide, x=None, **line):
    """The mean as a line, wide and pale if another one may lie on it, and the range as a band.

    Args:
        axes: matplotlib's.
        curves: Sequence of curves of equal length, one per run.
        color: Of both.
        wide: Boolean, see above.
        x: Their abscissa. Defaults to the number of the epoch.
        **line: More for the line.
    """
    curves = np.array(curves, "float64")
    x = np.arange(1, curves.shape[1] + 1) if x is None else x
    width, alpha = (4.5, 0.55) if wide else (1.6, 1.0)
    marker = "o" if len(x) == 1 else None
    axes.fill_between(x, curves.min(0), curves.max(0), color=color, alpha=0.16, linewidth=0)
    axes.plot(
        x,
        curves.mean(0),
        **{"color": color, "linewidth": width, "alpha": alpha, "marker": marker} | line,
    )
