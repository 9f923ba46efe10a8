"""Carries out the runs of the paper's tables and figures, and of the desk study.

examples:
  what a table needs, and how long it may take:
    python -m examples.reproduce table1 --dry-run
  the study of the README, two hours and more on two cores; it goes on where it stopped:
    python -m examples.reproduce study tuned --scale desk
  the same command, started again beside it or on another machine, shares the work:
    python -m examples.reproduce study --scale desk --folder /a/shared/folder
  everything in a minute, to see that it runs:
    python -m examples.reproduce study tuned --scale smoke --folder runs/smoke

A run that is done, here or by another process that shares the folder, is not run again.
"""

import argparse
import os
import pathlib
import sys

from examples import experiments
from examples.experiments import SCALES, TABLES

FOLDER = pathlib.Path(__file__).parent / "results" / "reproduce"
TARGETS = (*TABLES, "tuned")


def main(arguments=None):
    """Runs the command line and returns its exit status."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    options = _options(arguments)
    from examples import recipes, run, series

    work = series.Series(options.folder)
    try:
        for target in options.targets:
            if target == "tuned":
                tried = [one for arm in experiments.trials(options.scale).values() for one in arm]
                work.execute(tried, options.data_dir)
                best = experiments.finals(options.scale, work.record, options.seeds)
                # Seed by seed, as everywhere.
                planned = [one for pair in zip(*best.values(), strict=True) for one in pair]
            else:
                planned = experiments.runs(TABLES[target], options.scale, options.seeds)
            work.execute(planned, options.data_dir)
    except recipes.UsageError as error:
        return _complain(error, 2)
    except run.RunError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return _complain("interrupted; the same command goes on where it stopped", 130)
    return 0


def _options(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m examples.reproduce",
        description=__doc__.partition("\n\n")[0],
        epilog=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.error = lambda message: sys.exit(_complain(message, 2))
    parser.add_argument("targets", nargs="+", choices=TARGETS, metavar="target")
    parser.add_argument("--scale", choices=SCALES, default="paper", help="size (default: paper)")
    parser.add_argument("--seeds", type=int, help="runs per arm (default: the scale's)")
    parser.add_argument("--folder", type=pathlib.Path, default=FOLDER, help="of the series")
    parser.add_argument("--data-dir", help="folder of the data (default: the library's own)")
    return parser.parse_args(arguments)


def _complain(reason, status):
    print(f"python -m examples.reproduce: error: {reason}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
