"""Gives a variant and its plain optimizer the same number of trials, then compares their best.

examples:
  data that come with scikit-learn, no download:
    python -m tuning.compare
  real images:
    python -m tuning.compare --variant AdamNorm --dataset cifar10 --model resnet8 --max-trials 20

Both are searched with validation images, the variant with gamma in addition. Then each one's best
setting is trained with fresh seeds, which no trial has used, and scored on the test images after
the last epoch. Within a seed both start from the same weights and see the same batches; the 95 %
interval (Student's t) is that of the paired differences. It is a tie where the interval contains 0.
The interval covers what differs from seed to seed, not from search to search.

Started again with the same options, a comparison that was stopped goes on. Its folder then holds
comparison.json, and the folders of the searches lie beside it.

exit status: 0 done, 1 could not go on or no trial of a search succeeded, 2 wrong options,
130 interrupted.
"""

import dataclasses
import pathlib
import sys
from typing import Annotated

from examples.demo import PAIRS
from examples.study import intervals
from examples.training import checks, command_line, options
from examples.training.checks import Setting
from examples.training.errors import UsageError
from examples.training.recipes import LARGEST_SEED
from tuning import search

PROGRAM = "python -m tuning.compare"
PLAIN = {variant: plain for plain, variant in PAIRS.items()}
VARIANTS = tuple(PLAIN)
FIRST_SEED = 1000
RECORD = "comparison.json"


def compare(plans, seeds, directory, data_dir=None, verbose=0):
    """Searches for both optimizers, then trains the best of each with fresh seeds.

    Args:
        plans: `{optimizer: Plan}`, the plain optimizer first.
        seeds: Positive integer, runs of each best setting.
        directory: Path of the folder that all folders lie in.
        data_dir: Path that is handed to `examples.training.data.load`.
        verbose: 0, 1 or 2, as in `keras.Model.fit`.

    Returns:
        `(path, comparison)`: where it was written, and a dictionary.
    """
    from examples.training import records, run
    from tuning import chief, report, trial_process
    from tuning.project import SearchError, read_record, write_json

    if chief.role() != "alone":
        raise UsageError(
            "A comparison runs on one machine: unset KERASTUNER_TUNER_ID and the other "
            "KERASTUNER variables"
        )
    best, names = {}, []
    for optimizer, plan in plans.items():
        print(f"\nSearching for {optimizer}", flush=True)
        search_folder, rows = search.search(plan, directory, data_dir=data_dir, verbose=verbose)
        names.append(search_folder.name)
        ranked = report.ranked(rows, plan.objective)
        if not ranked:
            raise SearchError(f"No trial of {optimizer} succeeded.")
        best[optimizer] = ranked[0] | {"trials": len(rows)}
    folder = pathlib.Path(directory) / "-against-".join(reversed(names))
    sides = {
        optimizer: {
            "search": name,
            "trials": row["trials"],
            "arguments": row["arguments"],
            "last_epoch_val_accuracy": row["last_epoch_val_accuracy"],
            "test_accuracies": [],
        }
        for (optimizer, row), name in zip(best.items(), names, strict=True)
    }
    fresh = [FIRST_SEED + plan.settings.seed + i for i in range(seeds)]
    for seed in fresh:
        for optimizer, plan in plans.items():
            settings = _at(plan.settings, best[optimizer]["arguments"], seed)
            run_folder = folder / f"{optimizer}-trial{best[optimizer]['trial']}-seed{seed}"
            print(f"{optimizer}, seed {seed}: ", end="", flush=True)
            try:
                trial_process.train([(settings, run_folder, False)], data_dir, verbose)
                record = read_record(run_folder / run.RECORD)
            except (
                records.RecordError,
                trial_process.ProcessStopped,
                trial_process.TrialDiverged,
            ) as error:
                raise SearchError(str(error)) from error
            sides[optimizer]["test_accuracies"].append(record["test"]["accuracy"])
    comparison = {
        "schema": 1,
        "settings": {
            k: v for k, v in plan.settings.as_dict().items() if not k.startswith("optimizer")
        },
        "data": record["data"],
        "seeds": fresh,
        "optimizers": sides,
        "commit": record["commit"],
        "versions": record["versions"],
        "device": record["device"],
    }
    path = folder / RECORD
    write_json(path, comparison)
    return path, comparison


def _at(settings, arguments, seed):
    """The settings of a final run."""
    arguments = dict(arguments)
    rate = arguments.pop("learning_rate", settings.learning_rate)
    return dataclasses.replace(
        settings, optimizer_arguments=arguments, learning_rate=rate, seed=seed
    )


def difference(comparison):
    """The interval of the variant's test accuracy minus the plain optimizer's, seed by seed."""
    plain, variant = (side["test_accuracies"] for side in comparison["optimizers"].values())
    return intervals.paired(plain, variant, resolution=_resolution(comparison))


def _resolution(comparison):
    return 1 / comparison["data"]["test_examples"]


def rows(comparison):
    """The comparison as lines of cells, the first of them the header."""
    lines = [("", "trials", "best setting", "validation", "test, mean", "95 % interval")]
    for name, side in comparison["optimizers"].items():
        test = intervals.interval(side["test_accuracies"], resolution=_resolution(comparison))
        lines.append(
            (
                name,
                str(side["trials"]),
                ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in side["arguments"].items()),
                f"{100 * side['last_epoch_val_accuracy']:.2f}",
                *_percent(test, ""),
            )
        )
    plain, variant = comparison["optimizers"]
    interval = difference(comparison)
    verdict = intervals.verdict(plain, variant, interval)
    lines.append((f"{variant} - {plain}", "", verdict, "", *_percent(interval, "+")))
    return lines


def _percent(interval, sign):
    mean, low, high = (f"{100 * value:{sign}.2f}" for value in interval)
    return mean, f"{low} to {high}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What a comparison is of."""

    variant: Annotated[
        str, Setting("the variant to compare with its plain optimizer", choices=VARIANTS)
    ] = "AdamNorm"
    seeds: Annotated[int, Setting("fresh seeds of each best setting", low=1, high=1000)] = 5


GROUPS = search.GROUPS | {"this comparison": options.group(Comparison)}


def plans_of(values):
    """The plans of the plain optimizer and of the variant, by their names."""
    if FIRST_SEED + values["seed"] + values["seeds"] - 1 > LARGEST_SEED:
        allowed = f"at most {LARGEST_SEED - FIRST_SEED - values['seeds'] + 1}, for the fresh seeds"
        raise checks.refused("seed", allowed, values["seed"])
    names = (PLAIN[values["variant"]], values["variant"])
    return {name: search.make_plan(_without_gamma(values, name), name) for name in names}


def main(arguments=None):
    """Runs the command line and returns its exit status."""

    def action():
        values = options.read(PROGRAM, __doc__, GROUPS, arguments)
        path, comparison = compare(
            plans_of(values),
            values["seeds"],
            values["directory"],
            values["data_dir"],
            search.verbosity(values["verbose"]),
        )
        lines = rows(comparison)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        print()
        for line in lines:
            print("  ".join(map(str.ljust, line, widths)).rstrip())
        seeds = command_line.counted(values["seeds"], "seed")
        print(f"\nAccuracies and differences in %, {seeds}; {path}")
        return 0

    return command_line.run(PROGRAM, action, search.AFTER_INTERRUPT)


def _without_gamma(values, optimizer):
    """The values of the options without what the plain optimizer lacks."""
    if optimizer in PLAIN:
        return values
    lacks = ("gamma", "max_correction", "corrected_moments")
    tune = values["tune"] and [name for name in values["tune"] if name not in lacks]
    return values | {"tune": tune, "gamma": None}


if __name__ == "__main__":
    sys.exit(main())
