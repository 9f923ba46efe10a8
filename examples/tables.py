"""Writes the tables of the README from the committed records.

python -m examples.tables            # rewrites the tables between the markers in README.md
python -m examples.tables --check    # fails if a table is not what the records give
"""

import argparse
import json
import pathlib
import re
import sys

README = pathlib.Path(__file__).parents[1] / "README.md"
RESULTS = pathlib.Path(__file__).parent / "results"


def step_time_table():
    """The ratios of an update's time to that of Adam, of each record of `examples.step_time`."""
    parts = []
    for path in sorted((RESULTS / "step_time").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        device = ", ".join(record["device"]["gpus"]) or (
            f"{record['device']['cores']} cores of {record['device']['processor']}"
        )
        columns = [
            (model, mode)
            for model, modes in record["updates"].items()
            for mode in modes
            if mode not in ("parameters", "variables")
        ]
        parts.append(
            f"{record['device']['backend']} on {device}; medians of {record['rounds']} rounds with "
            f"quartiles; {path.relative_to(README.parent).as_posix()}\n"
        )
        parts.append("| | " + " | ".join(f"{model}, {mode}" for model, mode in columns) + " |")
        parts.append("|---" * (len(columns) + 1) + "|")
        adam = [_milliseconds(record["updates"][model][mode]["Adam"]) for model, mode in columns]
        parts.append("| Adam | " + " | ".join(adam) + " |")
        for name in record["updates"][columns[0][0]][columns[0][1]]:
            if name != "Adam":
                cells = [_ratio(record["updates"][model][mode][name]) for model, mode in columns]
                parts.append(f"| {name} | " + " | ".join(cells) + " |")
        parts.append("")
    return "\n".join(parts).strip()


def _milliseconds(row):
    return f"{row['milliseconds']['median']:.1f} ms"


def _ratio(row):
    ratio = row["ratio_to_adam"]
    quartiles = f"{ratio['lower_quartile']:.2f} to {ratio['upper_quartile']:.2f}"
    return f"{ratio['median']:.2f} ({quartiles})"


TABLES = {"step_time": step_time_table}


def render(text):
    """The text with each table between `<!-- name -->` and `<!-- end -->` written anew."""
    for name, table in TABLES.items():
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)",
            lambda match, table=table: f"{match[1]}{table()}\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
    return text


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m examples.tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="change nothing, compare")
    options = parser.parse_args(arguments)
    text = README.read_text(encoding="utf-8")
    rendered = render(text)
    if options.check and rendered != text:
        sys.exit("README.md: a table is not what the records give; run python -m examples.tables")
    if not options.check:
        README.write_text(rendered, encoding="utf-8")


if __name__ == "__main__":
    main()
