"""Carries out the runs of the paper's tables and figures, and of this project's studies.

examples:
  what a table needs, and how long it may take:
    python -m examples.study.reproduce table1 --dry-run
  a part of it:
    python -m examples.study.reproduce table1 --only cifar10-vgg16 --only cifar10-resnet18
  the desk study, hours on two cores; it goes on where it stopped:
    python -m examples.study.reproduce study tuned --scale desk
  the same command, started twice on one machine or on several that share a folder, shares the work:
    python -m examples.study.reproduce study --scale desk --folder /a/shared/folder
  one of four jobs of a scheduler, which need not share anything while they run:
    python -m examples.study.reproduce table1 --shard 1/4
  the study at convergence, on the digits, two hours on two cores:
    python -m examples.study.reproduce digits-convergence
  and on CIFAR-10, a night, started twice; the records are of one thread a process:
    TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 OMP_NUM_THREADS=1 \\
      python -m examples.study.reproduce cifar10-convergence
  the two small simulations, a few minutes:
    python -m examples.study.reproduce figure1 regret
  everything in a few minutes, to see that it runs:
    python -m examples.study.reproduce study tuned --scale smoke --folder runs/smoke

A run that is done, here or by another process that shares the folder, is not run again. A run
that was killed goes on after its last finished epoch when the same command is started again.

exit status: 0 all done, 1 could not go on (what is done is kept), 2 wrong options, 130 interrupted.
"""

import dataclasses
import json
import pathlib
import re
import sys
from typing import Annotated

from examples.study import convergence, experiments, simulation
from examples.study.experiments import SCALES, TABLES
from examples.training import checks, command_line, options, records
from examples.training.checks import Setting
from examples.training.errors import UsageError

PROGRAM = "python -m examples.study.reproduce"
FOLDER = pathlib.Path(__file__).parent / "results" / "reproduce"
TARGETS = (*TABLES, "tuned", *convergence.STUDIES, *simulation.SIMULATIONS)


@dataclasses.dataclass(frozen=True)
class Options:
    """Which runs are carried out, and where they are kept."""

    targets: Annotated[
        tuple[str, ...],
        Setting("what to carry out, one or more", choices=TARGETS, metavar="TARGET", least=1),
    ]
    scale: Annotated[
        str, Setting("size of the runs, except those at convergence", choices=tuple(SCALES))
    ] = "paper"
    seeds: Annotated[int | None, Setting("runs per arm", low=1, high=1000, unset="the scale's")] = (
        None
    )
    only: Annotated[
        tuple[str, ...],
        Setting(
            "only the runs with this in their name, scale/data-model/arm-seed",
            metavar="TEXT",
            repeated=True,
        ),
    ] = ()
    dry_run: Annotated[bool, Setting("list the runs, estimate the time, train nothing")] = False
    shard: Annotated[
        str,
        Setting("the I-th of N equal parts of the runs, for the I-th of N jobs", metavar="I/N"),
    ] = "1/1"
    folder: Annotated[
        pathlib.Path, Setting("folder of the records", unset="examples/study/results/reproduce")
    ] = FOLDER
    data_dir: Annotated[
        pathlib.Path | None, Setting("folder of the data", unset="the library's own")
    ] = None

    def __post_init__(self):
        checks.check(self)
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", self.shard)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise checks.refused("shard", "I/N with I from 1 to N, such as 2/8", self.shard)

    def share(self, planned):
        """The runs of a list that this job carries out."""
        index, count = map(int, self.shard.split("/"))
        if self.only:
            planned = [one for one in planned if any(text in one.path for text in self.only)]
        return planned[index - 1 :: count]


def main(arguments=None):
    """Runs the command line and returns its exit status."""
    return command_line.run(
        PROGRAM, lambda: _reproduce(arguments), "the same command goes on where it stopped"
    )


def _reproduce(arguments):
    groups = {"series": options.group(Options)}
    chosen = Options(**options.read(PROGRAM, __doc__, groups, arguments, positional=["targets"]))
    from examples.study.series import Series

    series = Series(chosen.folder)
    _check_only(chosen, series)
    for target in chosen.targets:
        if target in simulation.SIMULATIONS:
            _simulate(target, chosen)
        else:
            for planned in _stages(target, chosen, series):
                _carry_out(target, planned, chosen, series)
    return 0


def _stages(target, chosen, series):
    """The runs of a target, in lists: what is in a list may follow from the lists before."""
    if target in convergence.STUDIES:
        yield from map(chosen.share, _plan(target, chosen, series).stages())
        return
    if target != "tuned":
        yield chosen.share(experiments.runs(TABLES[target], chosen.scale, chosen.seeds))
        return
    trials = experiments.trials(chosen.scale)
    yield chosen.share([one for arm in trials.values() for one in arm])
    finals = experiments.finals(chosen.scale, series, chosen.seeds)
    for name, tried in trials.items():
        if name not in finals:
            ended = sum(map(series.done, tried))
            reason = f"follow when all trials have ended; {ended} of {len(tried)} have"
            if ended == len(tried):
                reason = f"are left out: none of {len(tried)} trials succeeded"
            print(f"{name}: the runs on fresh seeds {reason}", flush=True)
    yield chosen.share(experiments.seed_by_seed(finals.values()))


def _plan(target, chosen, series):
    study = convergence.STUDIES[target]
    if chosen.seeds is not None:
        study = dataclasses.replace(study, seeds=chosen.seeds)
    return convergence.Plan(study, series)


def _carry_out(target, planned, chosen, series):
    if not chosen.dry_run:
        series.execute(planned, chosen.data_dir)
    elif planned:
        if target in convergence.STUDIES:
            scale = convergence.STUDIES[target]
            print(target)
        else:
            scale = SCALES[chosen.scale]
            print(f"{target}, scale {chosen.scale}")
        print(series.describe(planned, scale.rate, scale.machine), flush=True)


def _simulate(name, chosen):
    path = simulation.path(chosen.folder, name)
    done = path.exists() and _settings(path) == simulation.SIMULATIONS[name][1]
    if chosen.dry_run:
        print(f"{'done' if done else 'open':<8}simulation/{name}; a few minutes", flush=True)
    elif done:
        print(f"Done already, nothing to compute: {path}", flush=True)
    else:
        from examples.training import callbacks

        with callbacks.files_of(chosen.folder):
            records.make_folder(path.parent)
        print(f"simulation/{name}: a few minutes", flush=True)
        record = simulation.record(name)
        with callbacks.files_of(chosen.folder):
            with records.replacing(path) as temporary:
                temporary.write_text(json.dumps(record) + "\n")
        print(f"simulation/{name}: {path}", flush=True)


def _settings(path):
    with records.content_of(path, "Delete it to compute it again."):
        return json.loads(path.read_text(encoding="utf-8"))["settings"]


def _check_only(chosen, series):
    """Refuses a part of a name that no run has."""
    names = []
    for target in chosen.targets if chosen.only else ():
        if target in convergence.STUDIES:
            stages = _plan(target, chosen, series).stages()
            names += [one.path for planned in stages for one in planned]
        elif target in TABLES:
            names += [one.path for one in experiments.runs(TABLES[target], chosen.scale)]
        elif target == "tuned":
            trials = experiments.trials(chosen.scale)
            names += [one.path for arm in trials.values() for one in arm]
    for text in chosen.only:
        if not any(text in name for name in names):
            example = f", such as {names[0].removesuffix('.json')}" if names else ""
            raise UsageError(
                f"--only must be a part of the name of a run of {', '.join(chosen.targets)}"
                f"{example}. Received: {text}"
            )


if __name__ == "__main__":
    sys.exit(main())
