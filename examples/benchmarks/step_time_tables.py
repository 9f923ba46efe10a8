"""What the records of `examples.benchmarks.step_time` say, as Markdown."""

import pathlib

from examples.study.markdown import device, table

RECORDS = pathlib.Path(__file__).parent / "results" / "step_time"


def tables(record, path):
    """The tables of one record.

    Args:
        record: The record, a dictionary.
        path: Where it stands, as it is to be told.

    Returns:
        Markdown.
    """
    parts = [
        f"{record['device']['backend']} on {device(record)}; medians of {record['rounds']} rounds "
        f"with quartiles; {path}",
        _updates(record["updates"]),
        _beside_loops(record["updates"]),
        *(_compilation(model, modes["graph"]) for model, modes in _with_graph(record)),
        _fit(record),
        _memory(record),
        _growth(record),
    ]
    return "\n\n".join(filter(None, parts))


def summary(record, path=None, model="vgg16"):
    """A table of the ratios of the Norm variants for one model and for `fit`.

    Args:
        record: The record, a dictionary.
        path: Not used.
        model: Name of the model. Defaults to `"vgg16"`.

    Returns:
        Markdown, the same header for every record.
    """
    from keras_adanorm.registry import PLAIN_OF

    names = [cls.__name__ for cls in PLAIN_OF]
    rows, backend = [["", "Adam", *names]], record["device"]["backend"]
    for mode in _modes(record["updates"].get(model, ())):
        times = record["updates"][model][mode]
        ratios = [f"{times[name]['ratio_to_adam']['median']:.2f}" for name in names]
        rows.append([f"{backend}, {mode}", _milliseconds(times["Adam"]), *ratios])
    if "fit" in record:
        adam = f"{record['fit']['milliseconds']['Adam']['median']:.1f} ms"
        name = f"{backend}, a step of `fit`, smaller network"
        ratio = f"{record['fit']['ratio_to_adam']['median']:.2f}"
        rows.append([name, adam, ratio, *("" for _ in names[1:])])
    return table(rows)


def _updates(updates):
    columns = [(model, mode) for model, modes in updates.items() for mode in _modes(modes)]
    rows = [["", *(f"{model}, {mode}" for model, mode in columns)]]
    first_model, first_mode = columns[0]
    for name in updates[first_model][first_mode]:
        cell = _milliseconds if name == "Adam" else _ratio
        rows.append([name, *(cell(updates[model][mode][name]) for model, mode in columns)])
    return table(rows)


def _beside_loops(updates):
    """The ratios to plain loops, where they were measured."""
    columns = [(model, mode) for model, modes in updates.items() for mode in _modes(modes)]
    key = "ratio_to_plain_loop"
    first_model, first_mode = columns[0]
    names = [name for name, row in updates[first_model][first_mode].items() if key in row]
    if not names:
        return None
    rows = [["", *(f"{model}, {mode}" for model, mode in columns)]]
    for name in names:
        cells = (updates[model][mode][name][key] for model, mode in columns)
        rows.append([name, *(_quartiles(ratio) for ratio in cells)])
    return f"Beside a plain loop over the variables, written in torch:\n\n{table(rows)}"


def _modes(modes):
    return [mode for mode in modes if mode not in ("parameters", "variables")]


def _with_graph(record):
    return [(model, modes) for model, modes in record["updates"].items() if "graph" in modes]


def _compilation(model, rows):
    """How long the first update takes, and when later ones have saved that."""
    adam, ours = rows["Adam"], rows["AdamNorm"]
    extra = ours["seconds_to_first_update"] - adam["seconds_to_first_update"]
    saved = (adam["milliseconds"]["median"] - ours["milliseconds"]["median"]) / 1e3
    told = (
        f"{model}, graph: tracing and compiling take AdamNorm "
        f"{ours['seconds_to_first_update']:.1f} s, Adam {adam['seconds_to_first_update']:.1f} s"
    )
    if extra <= 0:
        return f"{told}."
    if saved <= 0:
        return f"{told}; later updates save nothing."
    return f"{told}, saved by later updates after {extra / saved:.0f} steps."


def _fit(record):
    if "fit" not in record:
        return None
    fit = record["fit"]
    return (
        f"`model.fit` of a network with {fit['parameters']:,} parameters and batches of "
        f"{fit['batch_size']}: AdamNorm takes {_ratio(fit)} times Adam's time."
    )


def _memory(record):
    if "memory" not in record:
        return None
    modes = list(record["memory"])
    names = list(record["memory"][modes[0]])
    rows = [["MB", "state", "scalars", *(f"update's peak, {mode}" for mode in modes)]]
    for name in names:
        first = record["memory"][modes[0]][name]
        peaks = (record["memory"][mode][name]["update_bytes"] for mode in modes)
        rows.append(
            [
                name,
                f"{first['state_bytes'] / 1e6:.1f}",
                str(first["scalars"]),
                *(f"{peak / 1e6:.1f}" for peak in peaks),
            ]
        )
    return table(rows)


def _growth(record):
    if "scaling" not in record:
        return None
    scaling = record["scaling"]
    rows = [["parameters", "variables", "Adam", "AdamNorm"]]
    for row in scaling["rows"]:
        adam, ours = (row["optimizers"][name] for name in ("Adam", "AdamNorm"))
        sizes = [f"{row['parameters']:,}", f"{row['variables']:,}"]
        rows.append([*sizes, f"{_milliseconds(adam, 3)}", _ratio(ours)])
    costs = "; ".join(
        f"{name} {cost['nanoseconds_per_parameter']:.2f} ns a parameter and "
        f"{cost['microseconds_per_variable']:.0f} µs a variable"
        for name, cost in scaling["fitted_cost"].items()
    )
    speed = record["memory_gigabytes_per_second"]
    return (
        f"{table(rows)}\n\nFitted ({scaling['mode']}): {costs}. A large copy reads and writes "
        f"{speed:.1f} GB/s: {7 * 4 / speed:.2f} ns for the seven numbers of four bytes that an "
        "update of Adam must read or write for each parameter."
    )


def _milliseconds(row, digits=1):
    return f"{row['milliseconds']['median']:.{digits}f} ms"


def _ratio(row):
    return _quartiles(row["ratio_to_adam"])


def _quartiles(ratio):
    quartiles = f"{ratio['lower_quartile']:.2f} to {ratio['upper_quartile']:.2f}"
    return f"{ratio['median']:.2f} ({quartiles})"
