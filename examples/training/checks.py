"""Checks of arguments."""

import numbers

from examples.training.errors import UsageError


def check_integer(name, value, low, high=None, limit=""):
    """Raises a `UsageError` unless `value` is an integer from `low` to `high`.

    Args:
        name: the argument's name.
        value: what was passed.
        low, high: the smallest and the largest allowed integer; no limit where `high` is None.
        limit: what the largest allowed integer is, for the message.
    """
    if (
        isinstance(value, numbers.Integral)
        and not isinstance(value, bool)
        and low <= value
        and (high is None or value <= high)
    ):
        return
    allowed = f"of at least {low}" if high is None else f"from {low} to {high}"
    if limit:
        allowed += f", {limit}"
    raise UsageError(f"Argument `{name}` must be an integer {allowed}. Received: {name}={value!r}")
