"""Turns the committed records into the tables of the READMEs and into figures.

examples:
  rewrites the tables between the markers, and the figures:
    python -m examples.study.report
  fails if a table or a sentence is not what the records give:
    python -m examples.study.report --check
  the same for other records, written to their folder:
    python -m examples.study.report --folder runs/smoke --scale smoke

The documents are docs/cost.md and the READMEs of the project, of examples/ and of
examples/study/results/. A table is between `<!-- name -->` and `<!-- end -->`, a figure in
examples/study/results/figures/. What is between `<!-- results -->` and `<!-- end -->` is written by
hand: its numbers are checked against the records, and it is never rewritten.

exit status: 0 written, or as the records give it; 1 not so, or a damaged record; 2 wrong options.
"""

import dataclasses
import json
import math
import pathlib
import re
import statistics
import sys
from typing import Annotated

from examples.benchmarks import accelerator_table, step_share, step_time, step_time_tables
from examples.study import (
    convergence,
    convergence_results,
    experiments,
    intervals,
    markdown,
    paper,
    simulation,
)
from examples.study.experiments import SCALES, TABLES
from examples.study.markdown import device, table
from examples.training import command_line, options, records
from examples.training.checks import Setting
from examples.training.command_line import counted

PROGRAM = "python -m examples.study.report"
ROOT = pathlib.Path(__file__).parents[2]
RESULTS = pathlib.Path(__file__).parent / "results"
RECORDS = RESULTS / "reproduce"
NOT_RUN = "not run"
# The comparisons of the released code's settings that the sentences tell.
STATED_CAUSES = (
    ("Adam-floor", "Adam"),
    ("AdamNorm-released", "Adam-floor"),
    ("AdamNorm-released", "Adam"),
)
# What a folder of records other than the committed one is reported as.
TEMPLATE = """# Results of the records in this folder

## At convergence

<!-- convergence -->
<!-- end -->

## Short trainings

<!-- study -->
<!-- end -->

## The paper's tables, at full size

<!-- paper -->
<!-- end -->

## Simulations

<!-- simulation -->
<!-- end -->
"""
LABELS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny_imagenet": "TinyImageNet",
    "vgg16": "VGG16",
    "resnet18": "ResNet18",
    "resnet50": "ResNet50",
    "resnet8": "ResNet-8",
}

TITLES = {
    "pairs": "Pairs: a variant against its plain optimizer",
    "causes": "Causes: what the correction does, and what the released code does besides",
    "gamma": "The average's gamma, against 0.95",
    "moments": "The moments that see the corrected gradient, against the first alone",
    "noise": "Noise floor: Adam against itself with other seeds",
}


class Report:
    """All marked tables and all figures of a folder of records.

    Args:
        folder: Path of the records, as `examples.study.reproduce` writes them.
        scale: Name of `SCALES` at which the study was run. Defaults to `"desk"`.
    """

    def __init__(self, folder, scale="desk"):
        from examples.study.analysis import Study
        from examples.study.series import Series

        self.folder = pathlib.Path(folder)
        self.series = Series(folder)
        self.study = Study(self.series, scale)
        self._scale = scale
        self.convergence = [
            convergence_results.Results(study, self.series)
            for study in convergence.STUDIES.values()
        ]

    def render(self, text):
        """The text with each table between `<!-- name -->` and `<!-- end -->` written anew."""
        names = ("cost", "step_time", "accelerator", "hours", "convergence", "study", "paper")
        names += ("share", "simulation")
        return markdown.render(text, {name: getattr(self, f"{name}_table") for name in names})

    def complaints(self, text):
        """What the sentences between `<!-- results -->` and its end say wrongly or leave out.

        Returns:
            List of phrases that have to be there and are not, and of differences that are there
            and are not of these records.
        """
        said = markdown.marked(text, "results")
        if not said:
            return []
        facts = self.facts()
        lacking = [f"it lacks: {fact}" for fact in facts if fact not in said]
        strange = [
            f"not in the records: {match[0]}"
            for match in re.finditer(r"\S+ - \S+ [+-][\d.]+ points( \([^)]*\))?", said)
            if match[0] not in facts
        ]
        return lacking + strange

    # What an update costs

    def cost_table(self):
        """The ratios of an update's time to that of Adam, for one model."""
        return "\n".join(
            line
            for number, made in enumerate(self._of_each_record(step_time_tables.summary))
            for line in made.splitlines()[2 if number else 0 :]
        )

    def accelerator_table(self):
        """What the update is compiled to for devices that are only described."""
        return accelerator_table.tables()

    def share_table(self):
        """The share of a step that the optimizer takes, in the networks of the study."""
        return step_share.table()

    def step_time_table(self):
        """The ratios of an update's time to that of Adam, of each record of `step_time`."""
        return "\n\n".join(self._of_each_record(step_time_tables.tables))

    def _of_each_record(self, tell):
        """What is told of each record of `step_time` and its path."""
        told = []
        for path in sorted(step_time_tables.RECORDS.glob("*.json")):
            record = step_time.load(path)
            with records.content_of(path, "Measure it again."):
                told.append(tell(record, path.relative_to(ROOT).as_posix()))
        return told

    # The study

    def facts(self):
        """What the sentences about the study have to say: its size, differences, power."""
        record, study = self.study.done, self.study
        if record is None:
            return []
        causes = [one for one in study.group("causes") if (one.variant, one.plain) in STATED_CAUSES]
        stated = [*study.group("pairs"), *causes, study.tuned()]
        seen = [100 * one.detectable for one in study.group("pairs") if one.count > 1]
        counts = [one.count for one in study.group("pairs")]
        return [
            f"{record['data']['train_examples']:,} images of "
            f"{_label(record['settings']['dataset'])}",
            f"{record['model']['parameters']:,} parameters",
            counted(record["settings"]["epochs"], "epoch"),
            f"{_span(min(counts), max(counts))} seed" + ("" if max(counts) == 1 else "s"),
            counted(len(experiments.TUNED_RATES), "trial"),
            f"{self._steps():,} steps",
            *map(_difference, stated),
            *([f"{min(seen):.1f} to {max(seen):.1f} points"] if seen else []),
        ]

    def _what(self):
        record, counts = self.study.done, [one.count for one in self.study.group("pairs")]
        settings, seeds = record["settings"], _span(min(counts), max(counts))
        return (
            f"On {record['data']['train_examples']:,} images of {_label(settings['dataset'])}, "
            f"{_label(settings['model'])} with {record['model']['parameters']:,} parameters, "
            f"{counted(settings['epochs'], 'epoch')}, {seeds} {'seed' if seeds == '1' else 'seeds'}"
        )

    def _steps(self):
        record = self.study.done
        per_epoch = math.ceil(record["data"]["train_examples"] / record["settings"]["batch_size"])
        return record["settings"]["epochs"] * per_epoch

    def study_table(self):
        """The comparisons by group, the accuracies, the tuned pair."""
        study = self.study
        if study.done is None:
            return NOT_RUN.capitalize() + "."
        arms = study.arms.values()
        total = sum(len(arm.planned) for arm in arms)
        done, failed = sum(len(arm.done) for arm in arms), sum(arm.failed for arm in arms)
        records = [record for arm in arms for record in arm.done]
        hours = sum(record["seconds"] for record in records) / 3600
        parts = [
            f"{self._what()}; {total} runs, {done} done, {failed} failed, {hours:.1f} hours of "
            f"training, on {_devices(records)}. Accuracies are of the test images after "
            "the last epoch, in percent, and differences in points. The interval of a group's "
            "comparisons is widened so that all hold together with 95%; the verdict is by it. "
            "Detectable is the difference that it would show with a probability of 80%."
        ]
        for name, title in TITLES.items():
            parts += [f"### {title}", _comparisons(study.group(name))]
        parts += ["### Accuracy", self._accuracies(), *self._tuned_parts()]
        for name, caption in (
            ("figure2", "curves of the pairs"),
            ("figure3", "mean gradient norm of the pairs"),
        ):
            parts.append(f"![{caption}](figures/{self._scale}-{name}.png)")
        return "\n\n".join(parts)

    def _accuracies(self):
        study = self.study
        best = any(arm.best_accuracies for arm in study.arms.values())
        header = ["", "test accuracy", "95% interval", "n"]
        header += ["best epoch, chosen on the test set"] if best else []
        rows = [[*header, "corrections that fired", "epochs to the target"]]
        for arm in study.arms.values():
            row = [arm.name, *_mean_cells(arm.accuracies), _runs(arm)]
            row += [_mean_cells(arm.best_accuracies)[0]] if best else []
            fired = "-" if arm.fired is None else f"{arm.fired:.1%}"
            rows.append([*row, fired, _epochs(arm.epochs_to(study.target))])
        told = ""
        if study.target is not None:
            told = (
                f"The target is {100 * study.target:.2f} % of the validation images, the median of "
                "Adam after the last epoch. The median over the runs is given; a run that never "
                "reached the target counts as later than all others.\n\n"
            )
        return told + table(rows)

    def _tuned_parts(self):
        study = self.study
        rows = [["learning rate", *study.trials]]
        for index, rate in enumerate(experiments.TUNED_RATES):
            cells = [_trial(self.series, arm, index) for arm in study.trials.values()]
            rows.append([f"{rate:g}", *cells])
        trials = (
            f"Validation accuracy of one run with seed {experiments.TRIAL_SEED}; the best of a "
            "side runs on fresh seeds.\n\n" + table(rows)
        )
        rows = [
            ["best setting on fresh seeds", "learning rate", "test accuracy", "95% interval", "n"]
        ]
        for name in study.trials:
            arm = study.finals.get(name)
            if arm is None:
                rows.append([name, NOT_RUN, NOT_RUN, "-", "0"])
            else:
                rate = f"{arm.planned[0].settings.learning_rate:g}"
                rows.append([name, rate, *_mean_cells(arm.accuracies), _runs(arm)])
        return [
            "### Tuned: each side at the learning rate that was best for it",
            trials,
            table(rows),
            _comparisons([study.tuned()]),
        ]

    # The study at convergence

    def convergence_table(self):
        """Curves, finals and comparisons of both studies at convergence."""
        parts = [part for one in self.convergence for part in one.tables(_comparisons)]
        for name in self._convergence_figures():
            parts.append(f"![{name}](figures/{name}.png)")
        return "\n\n".join(parts)

    def _convergence_figures(self):
        """The figures of the studies that have records, as `{name: function that makes it}`."""
        from examples.study import figures

        done = [one for one in self.convergence if one.records]
        if not done:
            return {}
        return {
            "learning-rates": lambda: figures.rates(done),
            "differences": lambda: figures.forest(done, convergence_results.QUESTIONS),
        }

    # The paper's tables

    def paper_table(self):
        """Tables 1 to 5: the paper's value and ours at full size."""
        parts = [
            "Each cell: the paper's accuracy in percent; ours, test accuracy after the last epoch "
            "with its 95% interval and n, and in brackets the mean of the best epochs, which are "
            "chosen on the test set. Reduced runs are never in these tables."
        ]
        for name in paper.ACCURACIES:
            declared, cells = TABLES[name], self._cells(name)
            rows = [["", *(arm.name for arm in declared.arms)]]
            for place in dict.fromkeys((dataset, model) for dataset, model, _ in cells):
                row = [", ".join(map(_label, place))]
                for arm in declared.arms:
                    key = (*place, arm.name)
                    row.append(f"{paper.ACCURACIES[name][key]:.2f}; {_ours(cells[key])}")
                rows.append(row)
            parts += [f"### Table {name[-1]}. {declared.title}", table(rows)]
            if ours := [record for done in cells.values() for record in done]:
                parts.append(f"Ours on {_devices(ours)}.")
        for name, caption in (("figure2", "curves"), ("figure3", "mean gradient norm")):
            if self._paper_columns(name):
                parts.append(f"![{caption} at full size](figures/paper-{name}.png)")
            else:
                parts.append(f"Figure {name[-1]} at full size: {NOT_RUN}.")
        return "\n\n".join(parts)

    def _cells(self, name, scale="paper"):
        """The records of each cell of a table at full size."""
        cells = {}
        for one in experiments.runs(TABLES[name], scale):
            key = (one.settings.dataset, one.settings.model, one.arm.name)
            done = cells.setdefault(key, [])
            if (record := self.series.record(one)) is not None:
                done.append(record)
        return cells

    def _paper_columns(self, name):
        """What is drawn at full size: where both Adam and AdamNorm have records."""
        cells, columns = self._cells(name), []
        for place in dict.fromkeys(key[:2] for key in cells):
            sides = [(arm.name, cells[*place, arm.name]) for arm in TABLES[name].arms]
            if all(records for _, records in sides):
                columns.append((", ".join(map(_label, place)), *sides))
        return columns

    def hours_table(self):
        """The computed time of the paper's tables at full size."""
        from examples.study import cost

        rate, seen = SCALES["paper"].rate, set()
        rows = [["", "runs", "hours", "of them in no table above", "hours"]]
        for name in (*paper.ACCURACIES, "figure2", "figure3"):
            planned = experiments.runs(TABLES[name], "paper")
            new = [one for one in planned if one.path not in seen]
            seen.update(one.path for one in new)
            row = [name]
            for chosen in (planned, new):
                hours = sum(cost.seconds(one.settings, rate) for one in chosen) / 3600
                row += [f"{len(chosen)}", f"{hours:.0f}"]
            rows.append(row)
        return table(rows)

    # The simulations

    def simulation_table(self):
        """What the two simulations gave."""
        return "\n\n".join([*self._figure1_parts(), *self._regret_parts()])

    def _simulation(self, name, tell):
        """What a function makes of the record of a simulation, or `None` where there is none."""
        path = simulation.path(self.folder, name)
        if not path.exists():
            return None
        with records.content_of(path, "Delete it to compute it again."):
            return tell(json.loads(path.read_text(encoding="utf-8")))

    def _figure1_parts(self):
        title = "### Figure 1: three scenarios on a curve of one parameter"
        told = self._simulation("figure1", _figure1_parts)
        return [title, *(told or [NOT_RUN.capitalize() + "."])]

    def _regret_parts(self):
        title = "### Average regret and the bound of the theorem"
        told = self._simulation("regret", _regret_parts)
        return [title, *(told or [NOT_RUN.capitalize() + "."])]

    # Figures

    def figures(self):
        """The figures that the records give, as `{file name: function that makes it}`."""
        from examples.study import figures

        drawn = {}
        for name, draw in (("figure1", figures.figure1), ("regret", figures.regret)):
            if simulation.path(self.folder, name).exists():
                drawn[f"{name}.png"] = lambda name=name, draw=draw: self._simulation(name, draw)
        for name, draw in self._convergence_figures().items():
            drawn[f"{name}.png"] = draw
        draws = {"figure2": figures.curves, "figure3": figures.gradient_norms}
        for scale, columns, note in self._drawn():
            for name, draw in draws.items():
                if chosen := columns(name):
                    drawn[f"{scale}-{name}.png"] = lambda draw=draw, chosen=chosen, note=note: draw(
                        chosen, note
                    )
        return drawn

    def _drawn(self):
        from examples.study import figures

        if self.study.done is not None:
            pairs = figures.pair_columns(self.study.arms)
            yield self._scale, lambda name: pairs, self._what()
        yield "paper", self._paper_columns, "Full size, as in the paper"


def _figure1_parts(record):
    begin, spans = record["settings"]["slope_steps"], (20, 100, record["settings"]["steps"])
    rows = [["distance walked in the first", *(f"{span} steps" for span in spans)]]
    for scenario, walks in record["results"].items():
        for name, walk in walks.items():
            lengths = [sum(walk["update"][begin : begin + span]) for span in spans]
            rows.append([f"{scenario}, {name}", *(f"{length:.3g}" for length in lengths)])
    return [
        "S1, a slope of 1 becomes one of 0.01; S2, it becomes one of 100; S3, a parabola with "
        "its minimum 0.02 further. By the package's optimizers in float64, learning rate "
        f"{record['settings']['learning_rate']}.",
        table(rows),
        "![the three scenarios](figures/figure1.png)",
    ]


def _regret_parts(record):
    rows = [
        [
            *("stream", "", "T", "R(T) / T", "bound / T, supplement"),
            *("bound / T, main text", "R(T) above the bound, of the T looked at"),
        ]
    ]
    for stream, curves in record["results"].items():
        for name, curve in curves.items():
            worst = [max(values) for values in zip(*curve["regret"], strict=True)]
            rows.append(
                [
                    stream,
                    name,
                    f"{curve['steps'][-1]:,}",
                    f"{statistics.mean(values[-1] for values in curve['regret']):.3g}",
                    f"{curve['bound'][-1]:.3g}",
                    f"{curve['printed_bound'][-1]:.3g}" if name == "AdamNorm" else "-",
                    _violated(curve, worst, name),
                ]
            )
    broken = any(row[-1] != "none" for row in rows[1:])
    verdict = "No average regret is above its bound."
    if broken:
        verdict = (
            "Where the last column names a T, the regret is above what the theorem allows: as "
            "stated, it does not hold there."
        )
    return [
        "Streams, settings and the two readings of the bound: `examples/study/simulation.py`. "
        "The cycle is the example with which Reddi et al. (ICLR 2018) showed that Adam's own "
        f"theorem does not hold. {verdict}",
        table(rows),
        "![average regret](figures/regret.png)",
    ]


def _label(name):
    return LABELS.get(name, name)


def _devices(records):
    return "; ".join(dict.fromkeys(map(device, records)))


def _span(low, high):
    return f"{low}" if low == high else f"{low} to {high}"


def _points(interval):
    if math.isinf(interval.high):
        return "-"
    return f"{100 * interval.low:+.2f} to {100 * interval.high:+.2f}"


def _difference(one):
    """A comparison in words: `"AdamNorm - Adam +0.10 points (-0.20 to +0.40, tie)"`."""
    name = f"{one.variant} - {one.plain}"
    if not one.differences:
        return f"{name} {NOT_RUN}"
    told = [_points(one.together)] if one.count > 1 else []
    return f"{name} {100 * one.together.mean:+.2f} points ({', '.join([*told, one.verdict])})"


def _comparisons(comparisons):
    rows = [["", "difference", "95% interval", "widened", "n", "detectable", "verdict"]]
    for one in comparisons:
        row = [f"{one.variant} - {one.plain}"]
        lost = "".join(f", {count} of {name} failed" for name, count in one.failed.items())
        if one.differences:
            detectable = "-" if math.isinf(one.detectable) else f"{100 * one.detectable:.2f}"
            row += [f"{100 * one.alone.mean:+.2f}", _points(one.alone), _points(one.together)]
            row += [f"{one.count}{lost}", detectable, one.verdict]
        else:
            row += ["-", "-", "-", f"0{lost}", "-", one.verdict]
        rows.append(row)
    return table(rows)


def _mean_cells(accuracies):
    """The mean and its interval, in percent. No accuracy is below 0 or above 100."""
    if not accuracies:
        return NOT_RUN, "-"
    interval = intervals.interval(accuracies)
    low, high = (f"{100 * min(max(end, 0.0), 1.0):.2f}" for end in (interval.low, interval.high))
    return f"{100 * interval.mean:.2f}", "-" if len(accuracies) == 1 else f"{low} to {high}"


def _runs(arm):
    """How many runs of an arm a mean is of, and what became of the others."""
    done, planned = len(arm.done), len(arm.planned)
    told = f"{done}" if done == planned else f"{done} of {planned}"
    return f"{told}, {arm.failed} failed" if arm.failed else told


def _epochs(epochs):
    if not epochs:
        return "-"
    never = sum(map(math.isinf, epochs))
    median = statistics.median_high(epochs)
    told = "never" if math.isinf(median) else f"{median}"
    return f"{told} ({never} of {len(epochs)} never)" if never else told


def _trial(series, arm, index):
    record = arm.records[index]
    if record is not None:
        return f"{100 * record['validation']['accuracy']:.2f}"
    return "failed" if series.failure(arm.planned[index]) is not None else NOT_RUN


def _ours(records):
    if not records:
        return NOT_RUN
    mean, interval = _mean_cells([record["test"]["accuracy"] for record in records])
    told = f"{mean}, {interval}, n {len(records)}"
    best = [record["test"]["best_epoch_accuracy"] for record in records]
    return f"{told} ({_mean_cells(best)[0]})"


def _violated(curve, worst, name):
    """From where on the average regret was above the bound, of the T that were looked at."""
    told = []
    readings = {"supplement": "bound", "main text": "printed_bound"}
    if name != "AdamNorm":
        del readings["main text"]  # no gamma, no second reading
    for label, bound in readings.items():
        pairs = zip(worst, curve[bound], strict=True)
        above = [
            t for t, (value, limit) in zip(curve["steps"], pairs, strict=True) if value > limit
        ]
        if above:
            from_there = above == curve["steps"][-len(above) :]
            told.append(f"{label}: {above[0]:,}{' and all later' if from_there else ' and others'}")
    return "; ".join(told) or "none"


@dataclasses.dataclass(frozen=True)
class Options:
    """What is reported."""

    check: Annotated[bool, Setting("write nothing, and fail if a table is out of date")] = False
    folder: Annotated[
        pathlib.Path, Setting("records", unset="examples/study/results/reproduce")
    ] = RECORDS
    scale: Annotated[str, Setting("scale of the study", choices=("desk", "smoke"))] = "desk"


def main(arguments=None):
    """Runs the command line and returns its exit status."""
    return command_line.run(PROGRAM, lambda: _report(arguments))


def _report(arguments):
    chosen = Options(
        **options.read(PROGRAM, __doc__, {"report": options.group(Options)}, arguments)
    )
    stale, complaints = update(Report(chosen.folder, chosen.scale), chosen.folder, chosen.check)
    if chosen.check and stale:
        complaints.insert(0, f"{', '.join(stale)} not as the records give it; run {PROGRAM}")
    if complaints:
        return command_line.complain(PROGRAM, "; ".join(complaints), 1)
    if chosen.check:
        print("All tables and sentences are as the records give them.")
    else:
        print("\n".join(stale) or "All documents are as the records give them; figures drawn.")
    return 0


def update(report, folder, check):
    """Writes the documents and the figures.

    Args:
        report: `Report`.
        folder: Path of its records; the documents of any but the committed ones go there.
        check: Boolean, whether to write nothing and to look only.

    Returns:
        Two lists: the names of the documents that were not as the records give them, and of the
        figures that were missing; and what sentences that are written by hand say wrongly.
    """
    from examples.study import figures

    documents = [folder / "README.md"]
    if folder.resolve() == RECORDS.resolve():
        names = ("README.md", "docs/cost.md", "examples/README.md")
        documents = [*(ROOT / name for name in names), RESULTS / "README.md"]
    stale, complaints = [], []
    for path in documents:
        before = None
        if path.exists():
            with records.content_of(path):
                before = path.read_text(encoding="utf-8")
        rendered = report.render(TEMPLATE if before is None else before)
        complaints += [f"{path}: {complaint}" for complaint in report.complaints(rendered)]
        if rendered != before:
            stale.append(str(path))
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                with records.replacing(path) as temporary:
                    temporary.write_text(rendered, encoding="utf-8")
    for name, draw in report.figures().items():
        path = documents[-1].parent / "figures" / name
        if not path.exists():
            stale.append(str(path))
        if not check:
            figures.write(draw(), path)
    return stale, complaints


if __name__ == "__main__":
    sys.exit(main())
