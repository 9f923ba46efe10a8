"""Carries out the runs of the paper's tables and figures, and of the desk study.

examples:
  what a table needs, and how long it may take:
    python -m examples.study.reproduce table1 --dry-run
  a part of it:
    python -m examples.study.reproduce table1 --only cifar10-vgg16 --only cifar10-resnet18
  the study of the README, hours on two cores; it goes on where it stopped:
    python -m examples.study.reproduce study tuned --scale desk
  the same command, started twice on one machine or on several that share a folder, shares the work:
    python -m examples.study.reproduce study --scale desk --folder /a/shared/folder
  one of four jobs of a scheduler, which need not share anything while they run:
    python -m examples.study.reproduce table1 --shard 1/4
  the two small simulations, a few minutes:
    python -m examples.study.reproduce figure1 regret
  everything in a few minutes, to see that it runs:
    python -m examples.study.reproduce study tuned --scale smoke --folder runs/smoke

A run that is done, here or by another process that shares the folder, is not run again. A run
that was killed goes on after its last finished epoch when the same command is started again.

exit status: 0 all done, 1 could not go on (what is done is kept), 2 wrong options, 130 interrupted.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import sys

from examples.study import experiments, simulation
from examples.study.experiments import SCALES, TABLES
from examples.training import records
from examples.training.checks import check_integer
from examples.training.command_line import Parser, complain
from examples.training.errors import RunError, UsageError

PROGRAM = "python -m examples.study.reproduce"
FOLDER = pathlib.Path(__file__).parent / "results" / "reproduce"
TARGETS = (*TABLES, "tuned", *simulation.SIMULATIONS)


def main(arguments=None):
    """Runs the command line and returns its exit status."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    options = _options(arguments)
    try:
        if options.seeds is not None:
            check_integer("seeds", options.seeds, 1)
        _check_only(options)
    except ValueError as error:
        return complain(PROGRAM, error, 2)
    from examples.study.series import Series

    series = Series(options.folder)
    try:
        for target in options.targets:
            if target in simulation.SIMULATIONS:
                _simulate(target, options)
            else:
                for planned in _stages(target, options, series):
                    _carry_out(target, planned, options, series)
    except UsageError as error:
        return complain(PROGRAM, error, 2)
    except (RunError, records.RecordError) as error:
        return complain(PROGRAM, error, 1)
    except KeyboardInterrupt:
        return complain(PROGRAM, "interrupted; the same command goes on where it stopped", 130)
    return 0


def _stages(target, options, series):
    """The runs of a target, in lists: what is in a list may follow from the lists before."""
    if target != "tuned":
        yield _chosen(experiments.runs(TABLES[target], options.scale, options.seeds), options)
        return
    trials = experiments.trials(options.scale)
    yield _chosen([one for arm in trials.values() for one in arm], options)
    finals = experiments.finals(options.scale, series, options.seeds)
    for name, tried in trials.items():
        if name not in finals:
            ended = sum(map(series.done, tried))
            reason = f"follow when all trials have ended; {ended} of {len(tried)} have"
            if ended == len(tried):
                reason = f"fall away: none of {len(tried)} trials has ended well"
            print(f"{name}: the runs on fresh seeds {reason}", flush=True)
    yield _chosen(experiments.seed_by_seed(finals.values()), options)


def _carry_out(target, planned, options, series):
    if not options.dry_run:
        series.execute(planned, options.data_dir)
    elif planned:
        scale = SCALES[options.scale]
        print(f"{target}, scale {options.scale}")
        print(series.describe(planned, scale.rate, scale.machine), flush=True)


def _simulate(name, options):
    path = simulation.path(options.folder, name)
    done = path.exists() and _settings(path) == simulation.SIMULATIONS[name][1]
    if options.dry_run:
        print(f"{'done' if done else 'open':<8}simulation/{name}; a few minutes", flush=True)
    elif done:
        print(f"Done already, nothing to compute: {path}", flush=True)
    else:
        from examples.training import callbacks

        print(f"simulation/{name}: a few minutes", flush=True)
        record = simulation.record(name)
        with callbacks.files_of(options.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            with records.replacing(path) as temporary:
                temporary.write_text(json.dumps(record) + "\n")
        print(f"simulation/{name}: {path}", flush=True)


def _settings(path):
    try:
        return json.loads(path.read_text())["settings"]
    except (ValueError, KeyError, TypeError) as error:
        raise records.RecordError(f"{path} is not a record: {error}. Delete it.") from error


def _chosen(planned, options):
    index, count = options.shard
    chosen = [
        one for one in planned if not options.only or any(text in one.path for text in options.only)
    ]
    return chosen[index - 1 :: count]


def _check_only(options):
    """Refuses a part of a name that no run has."""
    names = []
    for target in options.targets:
        if target in TABLES:
            names += [one.path for one in experiments.runs(TABLES[target], options.scale)]
        elif target == "tuned":
            trials = experiments.trials(options.scale)
            names += [one.path for arm in trials.values() for one in arm]
    for text in options.only:
        if not any(text in name for name in names):
            example = f", such as {names[0].removesuffix('.json')}" if names else ""
            raise UsageError(
                f"--only must be a part of the name of a run of {', '.join(options.targets)}"
                f"{example}. Received: {text}"
            )


def _shard(text):
    """`(i, n)` of `"i/n"`."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"must be I/N with I from 1 to N, such as 2/8. Received: {text}"
        )
    return int(match[1]), int(match[2])


def _interrupt(number, frame):
    raise KeyboardInterrupt


def _options(arguments):
    parser = Parser(PROGRAM, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "targets", nargs="+", choices=TARGETS, metavar="target", help=", ".join(TARGETS)
    )
    parser.add_argument("--scale", choices=SCALES, default="paper", help="size (default: paper)")
    parser.add_argument("--seeds", type=int, help="runs per arm (default: the scale's)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="only the runs with this in their name, scale/data-model/arm-seed; more than one: "
        "with any of them",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs, estimate the time, train nothing"
    )
    parser.add_argument(
        "--shard",
        type=_shard,
        default=(1, 1),
        metavar="I/N",
        help="the I-th of N equal parts of the runs, for the I-th of N jobs",
    )
    parser.add_argument("--folder", type=pathlib.Path, default=FOLDER, help="of the series")
    parser.add_argument("--data-dir", help="folder of the data (default: the library's own)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # A process that is asked to end says so, as after Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main())
