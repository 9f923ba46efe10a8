"""The study at convergence: every pair over a range of learning rates, each side at its best.

What is asked, and what the answers are, stands in `results/PROTOCOL-convergence.md`. The runs come
in stages, since what a stage trains follows from the records of the one before:

1. curves: both sides of each pair at every learning rate;
2. finals: each side at its best rate by validation, on fresh seeds, and the variant once more
   with its gradient norms kept;
3. causes: on the same seeds, optimizers that tell the idea of the correction from its mean effect.
"""

import dataclasses
import math
import statistics

from examples.study import experiments
from examples.study.experiments import PAIRS, PlannedRun
from examples.training.recipes import Settings

CURVE_SEED, FRESH_SEED, MEASURED_SEED = 300, 400, 500
EXTENSIONS = 3  # rates that may be added at each end


@dataclasses.dataclass(frozen=True)
class Study:
    """One of the two sizes of the study.

    Args:
        name: What the command line calls it.
        rates: Learning rates, rising. The range is extended by their mean factor.
        curve_seeds: Positive integer, seeds of every point of a curve.
        seeds: Positive integer, fresh seeds of the comparisons.
        settings: Dictionary of the `Settings` that all its runs have.
        rate: Positive float, multiply-adds a second, for estimates of time.
        machine: The machine that has it, in words.
    """

    name: str
    rates: tuple[float, ...]
    curve_seeds: int
    seeds: int
    settings: dict
    rate: float
    machine: str = "one or two CPU cores"

    @property
    def folder(self):
        return f"convergence/{self.settings['dataset']}-{self.settings['model']}"


STUDIES = {
    study.name: study
    for study in (
        Study(
            "digits-convergence",
            rates=(1e-3, 2.15e-3, 4.64e-3, 1e-2, 2.15e-2, 4.64e-2, 1e-1),
            curve_seeds=5,
            seeds=30,
            settings={
                "dataset": "digits",
                "model": "cnn",
                "width": 8,
                "train_size": 800,
                "validation_size": 600,
                "batch_size": 32,
                "epochs": 30,
                "deterministic": True,
            },
            rate=1e8,
        ),
        Study(
            "cifar10-convergence",
            rates=(3e-4, 1e-3, 3e-3, 1e-2),
            curve_seeds=2,
            seeds=6,
            settings={
                "dataset": "cifar10",
                "model": "resnet8",
                "width": 8,
                "train_size": 10_000,
                "validation_size": 2_000,
                "batch_size": 64,
                "epochs": 30,
                "deterministic": True,
            },
            rate=1e10,
        ),
    )
}


class Plan:
    """What a study has trained and has to train, as far as its records tell.

    Args:
        study: `Study`.
        series: `series.Series`.
    """

    def __init__(self, study, series):
        self.study = study
        self._series = series
        self._planned, self._ended = {}, {}

    def stages(self):
        """The runs in lists. A list follows once those before have ended."""
        known = None
        while (rates := [self.rates(pair) for pair in PAIRS]) != known:
            known = rates
            yield experiments.seed_by_seed(
                self.curve(arm, rate) for pair in PAIRS for arm in pair for rate in self.rates(pair)
            )
        yield experiments.seed_by_seed(
            runs
            for pair in PAIRS
            for arm in pair
            for runs in (self.finals(arm, pair), self.measured(arm, pair))
        )
        yield experiments.seed_by_seed(
            runs for pair in PAIRS for runs in self.causes(pair).values()
        )

    def rates(self, pair):
        """The learning rates of both sides of a pair, rising.

        Where the best rate of a side is at an end, the range was too narrow: it goes on by one
        rate, for both sides.
        """
        rates = list(self.study.rates)
        step = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1))
        for _ in range(EXTENSIONS):
            best = [self._best(arm, rates) for arm in pair]
            if rates[-1] in best:
                rates.append(_rounded(rates[-1] * step))
            if rates[0] in best:
                rates.insert(0, _rounded(rates[0] / step))
        return tuple(rates)

    def curve(self, arm, rate):
        """The runs of a point of a curve."""
        return [self._run(arm, rate, CURVE_SEED + seed) for seed in range(self.study.curve_seeds)]

    def best_rate(self, arm, pair):
        """The rate of an arm with the best validation accuracy, `None` before all have ended."""
        return self._best(arm, self.rates(pair))

    def finals(self, arm, pair):
        """The runs of an arm at its best rate, on the fresh seeds; empty before it is known."""
        rate = self.best_rate(arm, pair)
        return [] if rate is None else self._fresh(arm, rate)

    def measured(self, arm, pair):
        """The run of a variant that keeps the norms of its gradients; empty for a plain one."""
        rate = self.best_rate(arm, pair)
        if arm is pair[0] or rate is None:
            return []
        return [self._run(arm, rate, MEASURED_SEED, "-measured", monitor="step")]

    def moment_ratio(self, pair):
        """The mean factor of the first moment that the measured run showed, or `None`."""
        for one in self.measured(pair[1], pair):
            if (record := self.record(one)) is not None:
                return record["corrections"]["first_moment_ratio"]
        return None

    def done(self, planned):
        """Whether a run has ended, well or badly. What has ended is read once."""
        if planned.path not in self._ended and self._series.done(planned):
            self._ended[planned.path] = self._series.record(planned)
        return planned.path in self._ended

    def record(self, planned):
        """The record of a run, `None` where it is not done or failed."""
        return self._ended[planned.path] if self.done(planned) else None

    def failure(self, planned):
        """Why a run failed, or `None`."""
        return self._series.failure(planned) if self.record(planned) is None else None

    def causes(self, pair):
        """The runs beside the variant's finals, at its rate, as `{what is changed: runs}`."""
        plain, variant = pair
        rate, ratio = self.best_rate(variant, pair), self.moment_ratio(pair)
        if ratio is None:
            return {}
        longer = dataclasses.replace(plain, name=f"{plain.name}-longer")
        planned = {"longer": self._fresh(longer, _rounded(rate * ratio))}
        changes = {"held": ("Held", {}), "debiased": ("Debiased", {})}
        if variant is experiments.ADAM_NORM:
            slow = {"gamma": 0.999}
            arm = dataclasses.replace(variant, name=f"{variant.name}-gamma0.999", arguments=slow)
            planned["gamma0.999"] = self._fresh(arm, rate)
            changes["debiased-gamma0.999"] = ("Debiased", slow)
        for name, (change, arguments) in changes.items():
            arm = dataclasses.replace(variant, name=f"{variant.name}-{name}", arguments=arguments)
            planned[name] = self._fresh(arm, rate, change)
        return planned

    def _best(self, arm, rates):
        """By the mean validation accuracy after the last epoch; then by the lower loss."""
        scored = []
        for rate in rates:
            runs = self.curve(arm, rate)
            if not all(map(self.done, runs)):
                return None
            records = list(map(self.record, runs))
            if None not in records:  # a rate at which a run diverges is nobody's best
                accuracy, loss = (
                    statistics.mean(record["validation"][name] for record in records)
                    for name in ("accuracy", "loss")
                )
                scored.append((accuracy, -loss, rate))
        return max(scored)[-1] if scored else None

    def _fresh(self, arm, rate, change=None):
        seeds = range(FRESH_SEED, FRESH_SEED + self.study.seeds)
        return [self._run(arm, rate, seed, change=change) for seed in seeds]

    def _run(self, arm, rate, seed, label="", change=None, **settings):
        path = f"{self.study.folder}/{arm.name}{label}-lr{rate:g}-seed{seed}.json"
        if path not in self._planned:
            settings = self._settings(arm, rate, change) | settings
            settings = Settings(seed=seed, **settings, **self.study.settings)
            self._planned[path] = PlannedRun(path, arm, settings)
        return self._planned[path]

    @staticmethod
    def _settings(arm, rate, change):
        if change is None:
            named = {"optimizer": arm.optimizer, "optimizer_arguments": arm.arguments}
            return named | {"learning_rate": rate}
        from examples.study import arms

        name = f"{change}{arm.optimizer}"
        config = {
            "module": None,
            "class_name": name,
            "config": {"learning_rate": rate, **arm.arguments},
            "registered_name": f"{arms.PACKAGE}>{name}",
        }
        return {"optimizer_config": config}


def _rounded(rate):
    """Three digits, as rates are written."""
    return float(f"{rate:.{2 - math.floor(math.log10(rate))}f}")
