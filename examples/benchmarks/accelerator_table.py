"""What the records of `examples.benchmarks.accelerator` say, as Markdown."""

import json
import pathlib

from examples.study.markdown import table
from examples.training import records

RECORDS = pathlib.Path(__file__).parent / "results" / "accelerator"
DEVICES = {"h100": "an NVIDIA H100", "v5e": "a TPU v5e"}
# For a TPU each instruction of the program is counted.
UNITS = {"h100": "kernels", "v5e": "instructions"}


def tables():
    """The tables of all records."""
    told = []
    for path in sorted(RECORDS.glob("*.json")):
        with records.content_of(path, "Count it again."):
            told.append(_table(json.loads(path.read_text(encoding="utf-8"))))
    return "\n\n".join(told)


def _table(record):
    models, unit = list(record["counts"]), UNITS[record["target"]]
    header = ["", *(f"{model}, {what}" for model in models for what in (unit, "bytes"))]
    rows = [[name, *_cells(record, models, name)] for name in record["counts"][models[0]]]
    versions = record["versions"]
    return (
        f"Compiled for {DEVICES[record['target']]} by JAX {versions['jax']}: Adam's {unit} and "
        f"megabytes, and the ratios to them.\n\n{table([header, *rows])}"
    )


def _cells(record, models, name):
    for model in models:
        ours, adam = (record["counts"][model][each] for each in (name, "Adam"))
        if name == "Adam":
            yield from (str(adam["kernels"]), f"{adam['bytes'] / 1e6:.0f} MB")
        else:
            yield from (f"{ours[key] / adam[key]:.2f}" for key in ("kernels", "bytes"))
