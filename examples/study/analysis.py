"""What the records of the desk study say: differences, accuracies, epochs to a target.

Everything that is reported of it is computed here; `examples.study.report` puts it into words.
"""

import dataclasses
import functools
import math
import statistics

import numpy as np

from examples.study import experiments, intervals
from examples.study.experiments import GROUPS, SCALES, TABLES


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Paired differences of two arms, `variant - plain`, one per seed that both have ended well.

    Args:
        variant, plain: Names of the arms.
        differences: Tuple of floats, as shares of the test images.
        comparisons: Positive integer, how many hold together with this one.
        resolution: Positive float, one test image.
        failed: Dictionary, how many runs of an arm failed, of the arms of which some did.
    """

    variant: str
    plain: str
    differences: tuple[float, ...]
    comparisons: int
    resolution: float
    failed: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def count(self):
        return len(self.differences)

    @functools.cached_property
    def alone(self):
        """The plain 95% interval."""
        return intervals.interval(self.differences, 1, self.resolution)

    @functools.cached_property
    def together(self):
        """The interval that holds together with the others of its group."""
        return intervals.interval(self.differences, self.comparisons, self.resolution)

    @functools.cached_property
    def detectable(self):
        """The smallest difference that `together` would show with a probability of 80%."""
        return intervals.detectable(self.differences, self.comparisons, self.resolution)

    @property
    def verdict(self):
        """The arm that is ahead, or a tie. An arm of which a run failed is never ahead."""
        if not self.differences:
            return "failed" if self.failed else "not run"
        found = intervals.verdict(self.plain, self.variant, self.together)
        ahead = found.removesuffix(" ahead")
        return f"none, since runs of {ahead} failed" if ahead in self.failed else found


@dataclasses.dataclass(frozen=True)
class ArmResults:
    """The runs of an arm.

    Args:
        name: Its name.
        planned: Tuple of `experiments.PlannedRun`, in the order of the seeds.
        records: Tuple, as long, of records; `None` where a run failed or is not done.
        failed: Number of runs that failed.
    """

    name: str
    planned: tuple
    records: tuple
    failed: int

    @property
    def done(self):
        return [record for record in self.records if record is not None]

    @property
    def accuracies(self):
        """Test accuracies after the last epoch."""
        return [record["test"]["accuracy"] for record in self.done]

    @property
    def best_accuracies(self):
        """Test accuracies of the best epoch, of runs that tested every epoch."""
        found = (record["test"].get("best_epoch_accuracy") for record in self.done)
        return [accuracy for accuracy in found if accuracy is not None]

    @property
    def fired(self):
        """The mean share of corrections that fired, or `None` where nobody looked."""
        fired = [(record["corrections"] or {}).get("corrections_fired") for record in self.done]
        seen = [share for share in fired if share is not None]
        return statistics.mean(seen) if seen else None

    def epochs_to(self, target):
        """For each run, the epochs until its validation accuracy reached the target, or infinity.

        `None` for the target, or a run without validation images, gives an empty list.
        """
        if target is None:
            return []
        curves = [record["epochs"].get("val_accuracy", ()) for record in self.done]
        return [
            next((e for e, value in enumerate(curve, 1) if value >= target), math.inf)
            for curve in curves
            if curve
        ]


class Study:
    """The desk study as far as it has come.

    Args:
        series: `series.Series`.
        scale: Name of `SCALES`. Defaults to `"desk"`.
    """

    def __init__(self, series, scale="desk"):
        self.scale = scale
        self._series = series
        table = TABLES["study"]
        seeds = self._seeds(lambda seed: experiments.runs(table, scale, 1, first_seed=seed))
        planned = {arm.name: [] for arm in table.arms}
        for one in experiments.runs(table, scale, seeds):
            planned[one.arm.name].append(one)
        self.arms = {name: self._arm(name, runs) for name, runs in planned.items()}
        self.trials = {
            name: self._arm(name, runs) for name, runs in experiments.trials(scale).items()
        }
        fresh = self._seeds(
            lambda seed: [runs[-1] for runs in experiments.finals(scale, series, seed + 1).values()]
        )
        finals = experiments.finals(scale, series, fresh)
        self.finals = {name: self._arm(name, runs) for name, runs in finals.items()}

    def _seeds(self, planned):
        """The scale's number of seeds, or more where runs of more seeds were added.

        Args:
            planned: Function from the number of a seed to its runs.
        """
        seeds = SCALES[self.scale].seeds
        while any(map(self._series.done, planned(seeds))):
            seeds += 1
        return seeds

    def _arm(self, name, runs):
        return arm_results(self._series, name, runs)

    @property
    def done(self):
        """A record of the study, or `None` if there is none."""
        return next((record for arm in self.arms.values() for record in arm.done), None)

    def group(self, name):
        """The comparisons of a group of `experiments.GROUPS`."""
        return [
            compare(self.arms[variant], self.arms[plain], len(GROUPS[name]))
            for variant, plain in GROUPS[name]
        ]

    def tuned(self):
        """The comparison of the tuned pair, on its fresh seeds."""
        plain, variant = (arm.name for arm in experiments.TUNED_ARMS)
        if len(self.finals) < 2:
            return Comparison(variant, plain, (), 1, 0.0)
        return compare(self.finals[variant], self.finals[plain], 1)

    @property
    def target(self):
        """The median of Adam's validation accuracies after the last epoch, or `None`."""
        adam = self.arms[experiments.ADAM.name].done
        return statistics.median(r["validation"]["accuracy"] for r in adam) if adam else None


def arm_results(series, name, runs):
    """The `ArmResults` of some runs, as far as a series, or a plan of one, has them."""
    return ArmResults(
        name,
        tuple(runs),
        tuple(map(series.record, runs)),
        sum(series.failure(one) is not None for one in runs),
    )


def compare(variant, plain, comparisons):
    """The `Comparison` of two `ArmResults` whose runs have the same seeds in the same order."""
    pairs = [
        (one["test"]["accuracy"], other["test"]["accuracy"], one["data"]["test_examples"])
        for one, other in zip(variant.records, plain.records, strict=True)
        if one is not None and other is not None
    ]
    return Comparison(
        variant.name,
        plain.name,
        tuple(float(np.subtract(one, other)) for one, other, _ in pairs),
        comparisons,
        1 / pairs[0][2] if pairs else 0.0,
        {arm.name: arm.failed for arm in (variant, plain) if arm.failed},
    )
