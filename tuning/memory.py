"""Measures the memory of a search over many trials.

examples:
  30 trials of the small CNN on the digits:
    python -m tuning.memory
  the sentence in tuning/README.md from the record:
    python -m tuning.tables

The record has the peak memory of the search's own process after each trial, and the largest peak
of a process that trained one.

exit status: 0 done, 1 could not go on, 2 wrong options, 130 interrupted.
"""

import dataclasses
import pathlib
import sys
import tempfile
from typing import Annotated

from examples.training import command_line, options
from examples.training.checks import Setting

PROGRAM = "python -m tuning.memory"
RECORD = pathlib.Path(__file__).parent / "results" / "memory.json"


@dataclasses.dataclass(frozen=True)
class Options:
    """How much is measured, and where the record goes."""

    trials: Annotated[int, Setting("trials of the search", low=2, high=1000)] = 30
    epochs: Annotated[int, Setting("epochs of each trial", low=1, high=1000)] = 1
    output: Annotated[pathlib.Path, Setting("the record", metavar="FILE", file=True)] = RECORD


def peaks():
    """The peak memory of this process, and the largest of those that it started, in MB."""
    import resource  # not on Windows

    unit = 1e6 if sys.platform == "darwin" else 1e3
    of = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return [round(resource.getrusage(who).ru_maxrss / unit, 1) for who in of]


def measure(plan):
    """Runs a search and returns its record.

    Args:
        plan: `tuning.search.Plan`.
    """
    from examples.training import records
    from tuning.search import search

    measured = []
    with tempfile.TemporaryDirectory() as folder:
        search(plan, folder, on_trial=lambda: measured.append(peaks()))
    own, started = zip(*measured, strict=True)
    return {
        "model": plan.settings.model,
        "dataset": plan.settings.dataset,
        "epochs": plan.settings.epochs,
        "search_mb": own,
        "largest_trial_mb": started[-1],
        "device": records.device(),
        "versions": records.versions(),
    }


def sentence(record):
    """What a record says, in one sentence."""
    own, versions = record["search_mb"], record["versions"]
    return (
        f"Over {len(own)} trials of `{record['model']}` on `{record['dataset']}`, the peak memory "
        f"of the search itself grew from {own[0]:.1f} to {own[-1]:.1f} MB, and no trial needed "
        f"more than {record['largest_trial_mb']:.0f} MB ({record['device']['system']}, CPU, "
        f"TensorFlow {versions['tensorflow']})."
    )


def main(arguments=None):
    """Runs the command line and returns its exit status."""

    def action():
        values = options.read(PROGRAM, __doc__, {"options": options.group(Options)}, arguments)
        from examples.training import records
        from examples.training.recipes import Settings
        from tuning.project import write_json
        from tuning.search import Plan
        from tuning.space import OptimizerSpace

        settings = Settings(
            model="cnn", dataset="digits", epochs=values["epochs"], deterministic=True
        )
        plan = Plan(settings, OptimizerSpace("AdamNorm"), max_trials=values["trials"])
        records.make_folder(values["output"].parent)
        record = measure(plan)
        write_json(values["output"], record)
        print(sentence(record))
        return 0

    return command_line.run(PROGRAM, action)


if __name__ == "__main__":
    sys.exit(main())
