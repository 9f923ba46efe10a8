"""What a few runs allow to say: intervals by Student's t, and the differences that they can see.

difference = intervals.paired(plain, variant, comparisons=4)
intervals.verdict("Adam", "AdamNorm", difference)
"""

import typing

import numpy as np

CONFIDENCE = 0.95
POWER = 0.8


class Interval(typing.NamedTuple):
    """A mean and the ends of its interval, which are infinite where there is one value."""

    mean: float
    low: float
    high: float


def interval(values, comparisons=1, resolution=0.0):
    """The mean of some values and its interval by Student's t.

    Args:
        values: Sequence of numbers, at least one.
        comparisons: Positive integer. So many intervals hold together with `CONFIDENCE`
            (Bonferroni). Defaults to `1`, the plain interval.
        resolution: Float of at least 0, the smallest difference that a value can show. The spread
            counts as at least this: results that agree by rounding prove nothing. Defaults to `0`.

    Returns:
        `Interval`.

    >>> "{:.3f}, {:.3f} to {:.3f}".format(*interval([0.90, 0.92, 0.94]))
    '0.920, 0.870 to 0.970'
    """
    count = len(values)
    mean = float(np.mean(values))
    if count == 1:
        return Interval(mean, -np.inf, np.inf)
    reach = _quantile(count, comparisons) * _spread(values, resolution) / count**0.5
    return Interval(mean, mean - reach, mean + reach)


def paired(plain, variant, comparisons=1, resolution=0.0):
    """The interval of `variant - plain`, from one result of each per seed in the same order.

    See `interval` for the arguments and the result.
    """
    return interval(np.subtract(variant, plain), comparisons, resolution)


def verdict(plain, variant, difference):
    """What the interval of a difference allows to say: the name of the better one, or "tie"."""
    if difference.low > 0:
        return f"{variant} ahead"
    if difference.high < 0:
        return f"{plain} ahead"
    return "tie" if np.isfinite(difference.high - difference.low) else "one seed tells nothing"


def detectable(values, comparisons=1, resolution=0.0, power=POWER):
    """The smallest true difference that as many values with the same spread would likely show.

    With it, an interval as of `interval` leaves out zero with a probability of `power`. That is
    the power of the t test, `E[P(|Z + c| > q S)]`, with Z normal, `c = difference * sqrt(count) /
    spread`, q the quantile of t, and S the estimated spread over the true one.

    Args:
        values: Sequence of numbers, the differences.
        comparisons, resolution: As for `interval`.
        power: Float in the range (0, 1). Defaults to `0.8`.

    Returns:
        A positive float, in the unit of the values; infinity where there is one value.

    >>> round(detectable([0.1, 0.2, 0.3, 0.4]), 2)
    0.27
    """
    from scipy import optimize, stats

    count = len(values)
    if count == 1:
        return np.inf
    # S squared has the distribution of chi squared over its degrees of freedom.
    middles = (np.arange(2000) + 0.5) / 2000
    limits = (
        _quantile(count, comparisons) * (stats.chi2.ppf(middles, count - 1) / (count - 1)) ** 0.5
    )

    def excess(centre):
        beyond = stats.norm.sf(limits - centre) + stats.norm.cdf(-limits - centre)
        return float(beyond.mean()) - power

    centre = optimize.brentq(excess, 0.0, limits.max() + 10)
    return centre * _spread(values, resolution) / count**0.5


def _spread(values, resolution):
    return max(float(np.std(values, ddof=1)), resolution)


def _quantile(count, comparisons):
    from scipy import stats

    return float(stats.t.ppf(1 - (1 - CONFIDENCE) / (2 * comparisons), count - 1))
