"""What a search gives: all trials as CSV and JSON, a table, the best optimizer, a picture.

python -m tuning.report trials.json    # draws search.png beside it again
"""

import csv
import dataclasses
import pathlib
import sys
from typing import Annotated

from examples.training import checks, command_line, options, records
from examples.training.checks import Setting
from tuning.project import SearchError, read_json, write_json
from tuning.space import DIRECTIONS

PROGRAM = "python -m tuning.report"
BEST = "best_optimizer.json"
PICTURE = "search.png"


def rows(oracle, trials):
    """One dictionary per trial, in the order in which they were begun.

    A trial's accuracies are those of the last epoch on the validation images, one per execution;
    `test_accuracy` is not among them: it is for the final number, not for choices.

    Args:
        oracle: One of `tuning.oracles.ORACLES`, made.
        trials: `tuning.trials.Trials`.

    Raises:
        RecordError: If a record that a trial needs is missing or damaged.
    """
    return [_row(oracle.trials[trial_id], trials) for trial_id in oracle.start_order]


def _row(trial, trials):
    completed = trial.status == "COMPLETED"
    if completed:
        runs = trials.records(trial)
    else:
        runs = trials.readable_records(trial) if trial.status == "FAILED" else []
    settings = trials.settings_of(trial)[0]
    accuracies = [r["validation"]["accuracy"] for r in runs]
    losses = [r["validation"]["loss"] for r in runs]
    return {
        "trial": trial.trial_id,
        "status": trial.status,
        "arguments": trials.plan.space.arguments(trial.hyperparameters.copy()),
        "epochs": settings.epochs,
        "last_epoch_val_accuracy": _mean(accuracies) if completed else None,
        "last_epoch_val_loss": _mean(losses) if completed else None,
        "seeds": [r["settings"]["seed"] for r in runs],
        "val_accuracies": accuracies,
        "val_losses": losses,
        "seconds": round(sum(r["seconds"] for r in runs), 1),
        "reason": trials.reason(trial),
        "optimizer": runs[0]["optimizer"] if runs else None,
    }


def _mean(values):
    return sum(values) / len(values)


def ranked(rows, objective):
    """The completed trials, best first; the earlier one of two that are equal.

    Args:
        rows: List of dictionaries, as `rows` gives them.
        objective: A name of `tuning.space.DIRECTIONS`.
    """
    completed = [row for row in rows if row["status"] == "COMPLETED"]
    largest_first = DIRECTIONS[objective] == "max"
    return sorted(completed, key=lambda row: row[objective], reverse=largest_first)


def document(rows, identity, machine):
    """All trials and what they come from, as JSON can hold it.

    Args:
        rows: List of dictionaries, as `rows` gives them.
        identity: Dictionary, as `tuning.search.Plan.identity` gives it.
        machine: Dictionary with `commit`, `versions` and `device`.
    """
    return {"schema": 1, "search": identity, "trials": rows} | machine


def write(folder, document):
    """Writes `trials.json`, `trials.csv` and the best optimizer's config, each whole or not at all.

    The config is what `keras.optimizers.deserialize` and `examples.train --optimizer-config` take.
    """
    write_json(folder / "trials.json", document)
    flat = [_flat(row) for row in document["trials"]]
    with records.replacing(folder / "trials.csv") as temporary:
        with open(temporary, "w", newline="") as file:
            writer = csv.DictWriter(file, list(flat[0]))
            writer.writeheader()
            writer.writerows(flat)
    best = ranked(document["trials"], document["search"]["objective"])
    if best:
        write_json(folder / BEST, best[0]["optimizer"])


def _flat(row):
    """A row without nesting: several values of a cell stand one behind the other."""
    plain = {k: v for k, v in row.items() if k not in ("arguments", "optimizer")}
    joined = {k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in plain.items()}
    return {"trial": joined.pop("trial"), **row["arguments"], **joined}


def describe(arguments):
    """Arguments in a line.

    >>> describe({"learning_rate": 0.001, "gamma": 0.95})
    'learning_rate=0.001 gamma=0.95'
    """
    return " ".join(f"{name}={value}" for name, value in arguments.items())


def line(trial_id, rows, objective, max_trials):
    """A trial that has ended, and the best so far, in a line."""
    (row,) = [row for row in rows if row["trial"] == trial_id]
    ended = [row for row in rows if row["status"] in ("COMPLETED", "FAILED")]
    if row["status"] == "FAILED":
        result = f"failed: {row['reason']}"
    else:
        result = f"{objective}={row[objective]:.4f} ({row['seconds']:.0f} s)"
    best = ranked(rows, objective)[:1]
    so_far = f"; best {best[0][objective]:.4f}, trial {best[0]['trial']}" if best else ""
    return (
        f"[{len(ended)}/{max_trials or '?'}] trial {trial_id}: {describe(row['arguments'])}: "
        f"{result}{so_far}"
    )


def table(rows, objective, count=5):
    """The best trials as text, and how many failed."""
    best = ranked(rows, objective)
    names = list(rows[0]["arguments"])
    header = ["trial", *names, "epochs", "val. accuracy", "val. loss", "seconds"]
    lines = [header]
    for row in best[:count]:
        lines.append(
            [
                row["trial"],
                *(str(row["arguments"][name]) for name in names),
                str(row["epochs"]),
                f"{row['last_epoch_val_accuracy']:.2%}",
                f"{row['last_epoch_val_loss']:.4f}",
                f"{row['seconds']:.0f}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(map(str.rjust, line, widths)) for line in lines]
    failed = [row for row in rows if row["status"] == "FAILED"]
    text += [f"trial {row['trial']} failed: {row['reason']}" for row in failed]
    return "\n".join(text)


def draw(document, path):
    """Draws where the trials of `trials.json` lie and how they did.

    With learning rate and `gamma` searched that is their plane, colored by accuracy; otherwise
    accuracy against the first of the searched numbers. The best trial has a ring, failed ones are
    crosses.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    searched, settings = document["search"]["space"], document["search"]["settings"]
    axes = [name for name, part in searched["searched"].items() if isinstance(part, dict)][:2]
    plane = sorted(axes) == ["gamma", "learning_rate"]
    names = ["learning_rate", "gamma"] if plane else axes[:1]
    done = ranked(document["trials"], document["search"]["objective"])
    failed = [row for row in document["trials"] if row["status"] == "FAILED"]
    accuracy = [100 * row["last_epoch_val_accuracy"] for row in done]

    def values(name, rows):
        given = [row["arguments"][name] for row in rows]
        return [1 - value for value in given] if name == "gamma" else given

    figure, axis = pyplot.subplots(figsize=(6, 4.2), layout="constrained")
    for name, which in zip(names, "xy", strict=False):
        part = searched["searched"][name]
        margin = (part["high"] / part["low"]) ** 0.04
        axis.set(
            **{
                f"{which}scale": "log",
                f"{which}lim": (part["low"] / margin, part["high"] * margin),
                f"{which}label": "1 - gamma" if name == "gamma" else name.replace("_", " "),
            }
        )
    label = "validation accuracy after the last epoch, %"
    y = accuracy
    if plane:
        y = values("gamma", done)
        points = axis.scatter(values(names[0], done), y, c=accuracy, s=70)
        figure.colorbar(points, label=label)
        axis.scatter(values(names[0], failed), values("gamma", failed), marker="x", color="tab:red")
    else:
        axis.scatter(values(names[0], done), y, s=50)
        axis.set_ylabel(label)
        for x in values(names[0], failed):
            axis.plot(x, 0.02, "x", color="tab:red", transform=axis.get_xaxis_transform())
    axis.scatter(values(names[0], done[:1]), y[:1], s=190, facecolors="none", edgecolors="black")
    axis.set_title(f"{searched['optimizer']}, {settings['model']} on {settings['dataset']}")
    axis.grid(alpha=0.3)
    with records.replacing(path) as temporary:
        figure.savefig(temporary, dpi=110)
    pyplot.close(figure)


@dataclasses.dataclass(frozen=True)
class Options:
    """What is drawn, and where to."""

    record: Annotated[
        tuple[pathlib.Path, ...],
        Setting("trials.json of a search", metavar="RECORD", least=1, file=True),
    ]
    output: Annotated[
        pathlib.Path | None,
        Setting(
            "the PNG to write", metavar="FILE", unset=f"{PICTURE} beside the record", file=True
        ),
    ] = None


def main(arguments=None):
    """Runs the command line and returns its exit status."""

    def action():
        groups = {"picture": options.group(Options)}
        values = options.read(PROGRAM, __doc__, groups, arguments, positional=["record"])
        if len(values["record"]) > 1:
            raise checks.refused("record", "one file", " ".join(map(str, values["record"])))
        (record,) = values["record"]
        picture = values["output"] or record.with_name(PICTURE)
        if picture.suffix.lower() != ".png":
            raise checks.refused("output", "a file name that ends in .png", picture)
        _draw_file(record, picture)
        print(picture)
        return 0

    return command_line.run(PROGRAM, action)


def _draw_file(record, picture):
    document = read_json(record)
    try:
        with records.content_of(record):
            draw(document, picture)
    except OSError as error:
        raise SearchError(f"{picture} cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
