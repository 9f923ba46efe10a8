"""What the records of the study at convergence say: curves over the rate, and differences."""

import dataclasses
import math
import statistics

from examples.study import convergence, intervals
from examples.study.analysis import Comparison, arm_results, compare
from examples.study.experiments import ADAM_NORM, PAIRS
from examples.study.markdown import device, table

TITLES = {
    "tuned": "Does it help? Each side at its best learning rate",
    "longer": "Is it more than a longer step? Against the plain optimizer with a larger rate",
    "held": "Does it matter when the factor is large? Against the running mean of the factor",
    "start": "Does the slow start of the average matter? Corrected for bias, against as published",
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
        groups = {name: [] for name in TITLES}
        for pair in PAIRS:
            plain, variant = (self.finals(arm, pair) for arm in pair)
            causes = {
                name: arm_results(self.plan, runs[0].arm.name, runs)
                for name, runs in self.plan.causes(pair).items()
            }
            groups["tuned"].append(self._compare(variant, plain, 4))
            for name, changes in (("longer", plain), ("held", variant)):
                changed = causes.get(name) or self._open(f"{changes.name}-{name}")
                groups[name].append(self._compare(variant, changed, 4))
            changed = causes.get("debiased") or self._open(f"{variant.name}-debiased")
            groups["start"].append(self._compare(changed, variant, 5))
            if pair[1] is ADAM_NORM:
                slow = [
                    causes.get(name) or self._open(f"{variant.name}-{name}")
                    for name in ("debiased-gamma0.999", "gamma0.999")
                ]
                groups["start"].append(self._compare(*slow, 5))
        return groups

    def _open(self, name):
        return arm_results(self.plan, name, [])

    def _compare(self, one, other, comparisons):
        if not one.done or not other.done:
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
        commits = sorted({str(record["commit"])[:7] for record in self.records})
        devices = "; ".join(dict.fromkeys(map(device, self.records)))
        return (
            f"{record['data']['train_examples']:,} training images of {self.images}, "
            f"{record['data']['validation_examples']:,} for validation and "
            f"{record['data']['test_examples']:,} to test; a network with "
            f"{record['model']['parameters']:,} parameters, {record['settings']['epochs']} epochs. "
            f"{len(self.planned)} runs planned so far, {len(self.records)} done, {self.failed} "
            f"failed; {sum(seconds) / 3600:.1f} hours of training in all, "
            f"{statistics.median(seconds):.0f} s in the median, on {devices}; "
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
            "Each side at its best rate, on fresh seeds. The mean factor is by how much the "
            "correction lengthens the first moment.",
            self._finals(),
        ]
        for name, group in self.groups().items():
            parts += [f"**{TITLES[name]}**", comparisons(group)]
        return parts

    def _curves(self):
        rates = sorted({rate for pair in PAIRS for rate in self.plan.rates(pair)})
        rows = [["", *(f"{rate:g}" for rate in rates)]]
        for pair in PAIRS:
            for arm, best in zip(pair, self.best_rates(pair), strict=True):
                points = {point.rate: point for point in self.curve(arm, pair)}
                rows.append([arm.name, *(_cell(points.get(rate), best) for rate in rates)])
        return table(rows)

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
