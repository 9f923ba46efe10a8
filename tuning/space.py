"""The search space of every optimizer: which arguments are searched, where, and on which scale.

    optimizer = OptimizerSpace("AdamNorm").build(hp)

inside anybody's own `build(hp)` declares the space to keras-tuner and gives the optimizer of a
point of it. `gamma` is searched as `1 - gamma` on a logarithmic scale: the average of past norms
looks back over about `1 / (1 - gamma)` steps, and from 0.99 to 0.999 is as far as from 0.9 to 0.99.
"""

import dataclasses
import math

from examples.training import recipes
from examples.training.checks import check_integer
from examples.training.errors import UsageError

# Searched unless told otherwise, if the optimizer has them.
USUAL = ("learning_rate", "gamma")
RANGES = {
    "learning_rate": (1e-4, 1e-2),
    "gamma": (0.8, 0.999),
    "weight_decay": (1e-5, 1e-1),
}
CHOICES = {
    "max_correction": {"none": None, "2": 2.0, "10": 10.0},
    "corrected_moments": {"first": "first", "both": "both"},
}
# What a search can make large or small, of the last epoch. The best epoch is picked by looking,
# and a noisy curve has a better best epoch.
DIRECTIONS = {"last_epoch_val_accuracy": "max", "last_epoch_val_loss": "min"}
SEARCHABLE = (*RANGES, *CHOICES)
# What keras-tuner searches in the place of an argument: its name, and the way there and back.
ONE_MINUS_GAMMA = "one_minus_gamma"


@dataclasses.dataclass(frozen=True)
class Range:
    """One argument's range on a logarithmic scale, as keras-tuner is told of it."""

    low: float
    high: float
    name: str
    points: int | None = None

    def declare(self, hp):
        step = None if self.points is None else (self.high / self.low) ** (1 / (self.points - 1))
        return hp.Float(self.name, self.low, self.high, step=step, sampling="log")


class OptimizerSpace:
    """The arguments of one optimizer that are searched; all others keep their defaults.

    Args:
        optimizer: String, a name of `examples.training.recipes.optimizer_classes()`. Defaults to
            `"AdamNorm"`.
        tune: Sequence of names of `RANGES` and `CHOICES`. Defaults to `None`: those of `USUAL`
            that the optimizer has.
        ranges: Dictionary of `(low, high)` by name, in the place of those of `RANGES`.
        points: Integer of at least 2, into how many points a grid divides each range; `None` for
            any value in it. Defaults to `None`.

    Raises:
        UsageError: If there is no such optimizer, it lacks a named argument, nothing is left to
            be searched, or a range is none.

    Example:

    >>> import keras_tuner
    >>> hp = keras_tuner.HyperParameters()
    >>> optimizer = OptimizerSpace("AdamNorm").build(hp)
    >>> sorted(hp.values)
    ['learning_rate', 'one_minus_gamma']
    """

    def __init__(self, optimizer="AdamNorm", tune=None, ranges=None, points=None):
        cls = recipes.optimizer_class(optimizer)
        self.optimizer = optimizer
        has = ["learning_rate", *recipes.optimizer_arguments(cls)]
        known = [name for name in (*RANGES, *CHOICES) if name in has]
        tune = [name for name in USUAL if name in has] if tune is None else list(tune)
        if not tune:
            raise UsageError(
                f"Argument `tune` must name something to search: {', '.join(known)}. "
                "Received: an empty space"
            )
        for name in tune:
            if name not in known:
                raise UsageError(
                    f"Argument `tune` must be among {', '.join(known)} with {optimizer}. "
                    f"Received: tune={name}"
                )
        if points is not None:
            check_integer("points", points, 2)
        ranges = dict(ranges or {})
        for name in ranges:
            if name not in tune:
                raise UsageError(f"Argument `{name}` has a range, but is not searched")
        self._parts = {}
        for name in tune:
            if name in RANGES:
                self._parts[name] = _range(name, *ranges.get(name, RANGES[name]), points)
            else:
                self._parts[name] = CHOICES[name]

    @property
    def numbers(self):
        """The names of the searched arguments that have a range."""
        return [name for name, part in self._parts.items() if isinstance(part, Range)]

    @property
    def size(self):
        """The number of points of a grid, or None."""
        counts = [p.points if isinstance(p, Range) else len(p) for p in self._parts.values()]
        return None if None in counts else math.prod(counts)

    def declare(self, hp):
        """Declares the space to `hp`, a `keras_tuner.HyperParameters`."""
        for name, part in self._parts.items():
            if isinstance(part, Range):
                part.declare(hp)
            else:
                hp.Choice(name, list(part))

    def arguments(self, hp):
        """The optimizer's arguments at the point that `hp` stands for, as `{name: value}`."""
        self.declare(hp)
        arguments = {}
        for name, part in self._parts.items():
            if not isinstance(part, Range):
                arguments[name] = part[hp.get(name)]
            elif name == "gamma":
                arguments[name] = round(1 - rounded(hp.get(ONE_MINUS_GAMMA)), 9)
            else:
                arguments[name] = rounded(hp.get(name))
        return arguments

    def settings(self, hp, base, **changes):
        """The settings of a run at the point that `hp` stands for, with changes on top.

        Args:
            hp: `keras_tuner.HyperParameters`.
            base: `examples.training.recipes.Settings` of all that is not searched.
            **changes: More settings.
        """
        arguments = self.arguments(hp)
        rate = arguments.pop("learning_rate", base.learning_rate)
        return dataclasses.replace(
            base,
            optimizer=self.optimizer,
            optimizer_arguments=base.optimizer_arguments | arguments,
            learning_rate=rate,
            **changes,
        )

    def build(self, hp):
        """The optimizer at the point that `hp` stands for."""
        return recipes.optimizer_classes()[self.optimizer](**self.arguments(hp))

    def describe(self):
        """The space as JSON can hold it: what tells one search from another."""
        parts = {}
        for name, part in self._parts.items():
            parts[name] = dataclasses.asdict(part) if isinstance(part, Range) else list(part)
        return {"optimizer": self.optimizer, "searched": parts}


def rounded(value):
    """A number with four digits: what a table shows is what was trained.

    keras-tuner sends numbers to other machines in float32, which this undoes.

    >>> rounded(0.0012345678), rounded(0.0012350000441074371)
    (0.001235, 0.001235)
    """
    return float(f"{value:.4g}")


def _range(name, low, high, points):
    for value in (low, high):
        if not (value > 0 and math.isfinite(value)):
            raise UsageError(
                f"The range of `{name}` must be of positive numbers. Received: {value}"
            )
    if name == "gamma" and high >= 1:
        raise UsageError(f"The range of `gamma` must lie below 1. Received: {low} {high}")
    if not low < high:
        raise UsageError(
            f"The range of `{name}` must start below its end. Received: {low:g} {high:g}"
        )
    if name == "gamma":
        return Range(rounded(1 - high), rounded(1 - low), ONE_MINUS_GAMMA, points)
    return Range(low, high, name, points)
