"""Variables that are left out of something, given by themselves or by their names."""

import re
from collections.abc import Iterable


class Exclusions:
    """What was given to a method like `exclude_from_weight_decay`, and what is kept in a config.

    A config can't hold variables. It holds the names, and the positions of the variables once the
    optimizer is built.
    """

    def __init__(self, config=None):
        self._var_list = []
        self._var_names = list((config or {}).get("var_names", ()))
        self._positions = set((config or {}).get("positions", ()))

    def set(self, var_list=None, var_names=None):
        """Takes the place of what was given before."""
        self._var_list = list(var_list or ())
        self._var_names = [var_names] if isinstance(var_names, str) else list(var_names or ())
        self._positions = set()

    def resolve(self, optimizer, variables):
        """Finds the positions of the variables in the order of `build`."""
        keys = {optimizer._var_key(variable) for variable in self._var_list}
        for position, variable in enumerate(variables):
            if optimizer._var_key(variable) in keys:
                self._positions.add(position)
        self._var_list = []

    def variables(self, variables):
        """The variables at the positions that are known."""
        return self._var_list + [variables[i] for i in self._positions if i < len(variables)]

    @property
    def var_names(self):
        """The strings of which one in a variable's name excludes it."""
        return list(self._var_names)

    def positions(self, variables):
        """The positions of all that are excluded, by themselves or by their names."""
        named = set()
        if self._var_names:
            pattern = re.compile("|".join(self._var_names))
            named = {i for i, variable in enumerate(variables) if pattern.search(variable.name)}
        return frozenset(self._positions | named)

    def get_config(self):
        """What is kept, a dict that is empty if nothing is excluded."""
        config = {"var_names": self.var_names, "positions": sorted(self._positions)}
        return {name: value for name, value in config.items() if value}


def exclude_before_build(optimizer, var_list, var_names):
    """Notes which variables are excluded from the norm correction, unless it is too late."""
    if optimizer.built:
        raise ValueError(
            "`exclude_from_norm_correction()` can only be configured before the optimizer is built."
        )
    variables = _listed(var_list)
    if variables is None or not all(hasattr(variable, "shape") for variable in variables):
        raise ValueError(
            "Argument `var_list` must be a list of variables, such as "
            f"`layer.trainable_variables`. Received: var_list={var_list!r}"
        )
    names = [var_names] if isinstance(var_names, str) else _listed(var_names)
    if names is None or not all(map(_is_pattern, names)):
        raise ValueError(
            "Argument `var_names` must be a list of strings, each a regular expression. "
            f"Received: var_names={var_names!r}"
        )
    optimizer._norm_exclusions.set(variables, names)


def _listed(given):
    """What was given as a list, `None` if it is not one."""
    if given is None:
        return []
    # A variable is iterable, too.
    one = isinstance(given, (str, bytes)) or hasattr(given, "shape")
    return None if one or not isinstance(given, Iterable) else list(given)


def _is_pattern(name):
    try:
        return isinstance(name, str) and re.compile(name) is not None
    except re.error:
        return False
