"""What the records of the study at convergence say: curves over the rate, and differences."""

import dataclasses
import math
import statistics

import numpy as np

from examples.study import convergence, intervals
from examples.study.analysis import Comparison, arm_results, compare
from examples.study.experiments import ADAM_NORM, PAIRS
from examples.study.markdown import device, table

# What each group asks, and which difference answers it.
QUESTIONS = {
    "tuned": ("Does it help?", "variant - plain optimizer, each at its best learning rate"),
    "longer": (
        "Is it more than a longer step?",
        "variant - plain optimizer at the variant's rate times the mean factor",
    ),
    "held": (
        "Does it matter when the factor is large?",
        "variant - variant with the running mean of its ratios",
    ),
    "start": (
        "Does the slow start of the average matter?",
        "variant with an average that is corrected for bias - variant",
    ),
}
IMAGES = {"digits": "the digits", "cifar10": "CIFAR-10"}


@dataclasses.dataclass(frozen=True)
class Point:
    """A learning rate of a curve: test accuracies of the runs that ended well, one a seed."""

    rate: float
    accuracies: tuple[float, ...]
    validation: float | None
    failed: int


class Results:
    """A study as far as it has come.

    Args:
        study: `convergence.Study`.
        series: `series.Series`.
    """

    def __init__(self, study, series):
        self.study = study
        self.plan = convergence.Plan(study, series)
        planned = {one.path: one for stage in self.plan.stages() for one in stage}
        self.planned = list(planned.values())
        self.records = [r for r in map(self.plan.record, self.planned) if r is not None]
        self.failed = sum(self.plan.failure(one) is not None for one in self.planned)

    @property
    def images(self):
        """The images in words."""
        return IMAGES[self.study.settings["dataset"]]

    def curve(self, arm, pair):
        """The points of an arm at which a run has ended."""
        points = []
        for rate in self.plan.rates(pair):
            ran = arm_results(self.plan, arm.name, self.plan.curve(arm, rate))
            validated = [record["validation"]["accuracy"] for record in ran.done]
            if validated or ran.failed:
                mean = statistics.mean(validated) if validated else None
                points.append(Point(rate, tuple(ran.accuracies), mean, ran.failed))
        return points

    def best_rates(self, pair):
        """The best rates of the plain optimizer and of the variant, `None` before they are known"""
        return tuple(self.plan.best_rate(arm, pair) for arm in pair)

    def finals(self, arm, pair):
        """The `ArmResults` of a side on the fresh seeds."""
        return arm_results(self.plan, arm.name, self.plan.finals(arm, pair))

    def groups(self):
        """The comparisons of each group of the protocol, as `{name: [Comparison]}`."""
        groups = {name: [] for name in QUESTIONS}
        for pair in PAIRS:
            plain, variant = (self.finals(arm, pair) for arm in pair)
            causes = self.plan.causes(pair)

            def changed(name, told, causes=causes):
                return arm_results(self.plan, told, causes.get(name, ()))

            longer = changed("longer", self._longer(pair, causes))
            held = changed("held", f"{variant.name}, held")
            debiased = changed("debiased", f"{variant.name}, debiased")
            groups["tuned"].append(self._compare(variant, plain, 4))
            groups["longer"].append(self._compare(variant, longer, 4))
            groups["held"].append(self._compare(variant, held, 4))
            groups["start"].append(self._compare(debiased, variant, 5))
            if pair[1] is ADAM_NORM:
                name = f"{variant.name}(gamma=0.999)"
                slow = changed("gamma0.999", name)
                debiased = changed("debiased-gamma0.999", f"{name}, debiased")
                groups["start"].append(self._compare(debiased, slow, 5))
        return groups

    @staticmethod
    def _longer(pair, causes):
        """The plain optimizer with longer steps, by its learning rate once that is known."""
        for run in causes.get("longer", ()):
            return f"{pair[0].name} at {run.settings.learning_rate:g}"
        return f"{pair[0].name} at a larger rate"

    @staticmethod
    def _compare(one, other, comparisons):
        if not one.planned or not other.planned:
            return Comparison(one.name, other.name, (), comparisons, 0.0)
        return compare(one, other, comparisons)

    def what(self):
        """What was trained, in words."""
        if not self.records:
            return (
                f"Not run: {len(self.planned)} runs of the first stage are planned, none is done."
            )
        record = self.records[0]
        seconds = [record["seconds"] for record in self.records]
        low, median, high = np.percentile(seconds, [25, 50, 75])
        commits = sorted({str(record["commit"])[:7] for record in self.records})
        devices = "; ".join(dict.fromkeys(map(device, self.records)))
        return (
            f"{record['data']['train_examples']:,} training images of {self.images}, "
            f"{record['data']['validation_examples']:,} for validation and "
            f"{record['data']['test_examples']:,} to test; a network with "
            f"{record['model']['parameters']:,} parameters, {record['settings']['epochs']} epochs. "
            f"{len(self.planned)} runs planned so far, {len(self.records)} done, {self.failed} "
            f"failed; {sum(seconds) / 3600:.1f} hours of training in all, {median:.0f} s a run in "
            f"the median (quartiles {low:.0f} to {high:.0f} s), on {devices}; "
            f"commit {', '.join(commits)}."
        )

    def tables(self, comparisons):
        """All tables of the study in Markdown. `comparisons` makes the table of a group."""
        parts = [f"### On {self.images}", self.what()]
        if not self.records:
            return parts
        parts += [
            "Test accuracy in percent at each learning rate, mean over the seeds of the curves; in "
            "bold at the rate with the best validation accuracy.",
            self._curves(),
            *self._ends(),
            "Each side at its best rate, on fresh seeds. The mean factor is how many times as long "
            "the correction makes the gradients, averaged over time as the first moment does.",
            self._finals(),
        ]
        for name, group in self.groups().items():
            question, told = QUESTIONS[name]
            parts += [f"**{question}** {told[0].upper()}{told[1:]}:", comparisons(group)]
        return parts

    def _curves(self):
        rates = sorted({rate for pair in PAIRS for rate in self.plan.rates(pair)})
        rows = [["", *(f"{rate:g}" for rate in rates)]]
        for pair in PAIRS:
            for arm, best in zip(pair, self.best_rates(pair), strict=True):
                points = {point.rate: point for point in self.curve(arm, pair)}
                rows.append([arm.name, *(_cell(points.get(rate), best) for rate in rates)])
        return table(rows)

    def _ends(self):
        """A sentence where a best rate is at an end of its range, which goes on no further."""
        ends = [
            f"{arm.name} at {best:g}"
            for pair in PAIRS
            for arm, best in zip(pair, self.best_rates(pair), strict=True)
            if best in (self.plan.rates(pair)[0], self.plan.rates(pair)[-1])
        ]
        if not ends:
            return []
        return [
            f"Best at the end of the range, so that another rate may be better: {', '.join(ends)}."
        ]

    def _finals(self):
        rows = [["", "learning rate", "test accuracy", "95% interval", "n", "mean factor"]]
        for pair in PAIRS:
            for arm, rate in zip(pair, self.best_rates(pair), strict=True):
                ran = self.finals(arm, pair)
                if not ran.done:
                    rows.append([arm.name, "not run", "-", "-", "0", "-"])
                    continue
                mean, low, high = intervals.interval(ran.accuracies)
                told = f"{100 * max(low, 0):.2f} to {100 * min(high, 1):.2f}"
                ratio = self.plan.moment_ratio(pair) if arm is pair[1] else None
                rows.append(
                    [
                        arm.name,
                        f"{rate:g}",
                        f"{100 * mean:.2f}",
                        "-" if math.isinf(high) else told,
                        f"{len(ran.done)}" + (f", {ran.failed} failed" if ran.failed else ""),
                        "-" if ratio is None else f"{ratio:.3f}",
                    ]
                )
        return table(rows)


def _cell(point, best):
    if point is None:
        return "-"
    if not point.accuracies:
        return "failed"
    mean = f"{100 * statistics.mean(point.accuracies):.2f}"
    mean = f"**{mean}**" if point.rate == best else mean
    return f"{mean} ({point.failed} failed)" if point.failed else mean
