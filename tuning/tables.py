"""Puts the records of a comparison into results/ and writes the tables of README.md from them.

examples:
  copies the records of a comparison from its folder:
    python -m tuning.tables --collect runs/tuning/NAME
  rewrites the tables between the markers:
    python -m tuning.tables
  fails if one is not what the records give:
    python -m tuning.tables --check

exit status: 0 done, 1 a table is out of date or a record damaged, 2 wrong options.
"""

import dataclasses
import pathlib
import shutil
import sys
from typing import Annotated

from examples.study import markdown
from examples.training import checks, command_line, options, records
from examples.training.checks import Setting
from tuning import compare, memory, report
from tuning.project import SearchError, read_json

PROGRAM = "python -m tuning.tables"

README = pathlib.Path(__file__).parent / "README.md"
RESULTS = pathlib.Path(__file__).parent / "results"
KEPT = ("trials.json", "trials.csv", report.BEST, report.PICTURE)
BEST_TRIALS = 5


def collect(folder, results=None):
    """Copies a comparison's records and those of its searches, without the models."""
    folder = pathlib.Path(folder)
    record = folder / compare.RECORD
    comparison = read_json(record)
    with records.content_of(record):
        settings = comparison["settings"]
        searches = {name: side["search"] for name, side in comparison["optimizers"].items()}
        _, variant = searches
        parts = [settings["dataset"], settings["model"], variant]
        for name in (*parts, *searches, *searches.values()):
            if not checks.names_a_folder(name):
                raise ValueError(f"{name!r} is no name")
    target = (results or RESULTS) / "-".join(parts)
    for optimizer, search in searches.items():
        (target / optimizer).mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            shutil.copyfile(folder.parent / search / name, target / optimizer / name)
    shutil.copyfile(record, target / compare.RECORD)
    return target


def comparison_table(folder):
    """What the comparison gave, and what it was of."""
    record = folder / compare.RECORD
    comparison = read_json(record)
    with records.content_of(record):
        settings, data = comparison["settings"], comparison["data"]
        width = f" of width {settings['width']}" if settings["width"] else ""
        return (
            f"{settings['model']}{width} on {data['name']}: "
            f"{data['train_examples']:,} training, {data['validation_examples']:,} validation and "
            f"{data['test_examples']:,} test images, {settings['epochs']} epochs, accuracies in %, "
            f"{len(comparison['seeds'])} fresh seeds\n\n" + markdown.table(compare.rows(comparison))
        )


def trials_table(folder):
    """The best trials of both searches."""
    lines = [("optimizer", "trial", "setting", "validation accuracy, %")]
    comparison = read_json(folder / compare.RECORD)
    with records.content_of(folder / compare.RECORD):
        optimizers = list(comparison["optimizers"])
    for optimizer in optimizers:
        path = folder / optimizer / "trials.json"
        record = read_json(path)
        with records.content_of(path):
            best = report.ranked(record["trials"], record["search"]["objective"])
            for row in best[:BEST_TRIALS]:
                accuracy = f"{100 * row['last_epoch_val_accuracy']:.2f}"
                told = report.describe(row["arguments"])
                lines.append((optimizer, str(row["trial"]), told, accuracy))
    return markdown.table(lines)


def memory_sentence(folder):
    """What the record of a search's memory says."""
    path = folder / memory.RECORD.name
    record = read_json(path)
    with records.content_of(path):
        return memory.sentence(record)


TABLES = {"comparison": comparison_table, "trials": trials_table}


def render(text, results=None):
    """The text with what stands between `<!-- name: folder -->` and `<!-- end -->` written anew."""
    parts = {
        name: lambda folder, table=table: table((results or RESULTS) / folder)
        for name, table in TABLES.items()
    }
    parts["memory"] = lambda: memory_sentence(results or RESULTS)
    return markdown.render(text, parts)


@dataclasses.dataclass(frozen=True)
class Options:
    """What is done."""

    collect: Annotated[
        pathlib.Path | None,
        Setting(
            "copy the records of this comparison to tuning/results", metavar="FOLDER", unset="none"
        ),
    ] = None
    check: Annotated[bool, Setting("change nothing, and fail if a table is out of date")] = False


def main(arguments=None):
    """Runs the command line and returns its exit status."""

    def action():
        values = options.read(PROGRAM, __doc__, {"tables": options.group(Options)}, arguments)
        if values["collect"] is not None:
            print(collect(values["collect"]))
        with records.content_of(README):
            text = README.read_text(encoding="utf-8")
        rendered = render(text)
        if not values["check"]:
            with records.replacing(README) as temporary:
                temporary.write_text(rendered, encoding="utf-8")
        elif rendered != text:
            raise SearchError(f"{README}: a table is not what the records give; run {PROGRAM}")
        return 0

    return command_line.run(PROGRAM, action)


if __name__ == "__main__":
    sys.exit(main())
