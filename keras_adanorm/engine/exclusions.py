"""Variables that are left out of something, given by themselves or by their names."""

import re
import warnings
from collections.abc import Iterable

# Methods of an optimizer. What is given to one is kept in its config under the same name.
FROM_NORM_CORRECTION = "exclude_from_norm_correction"
FROM_WEIGHT_DECAY = "exclude_from_weight_decay"


class Exclusions:
    """What was given to a method like `exclude_from_weight_decay`, and what is kept in a config.

    A config can't hold variables. It holds the names that were given and, once the optimizer is
    built, the positions and paths of the variables.

    Args:
        method: `FROM_NORM_CORRECTION` or `FROM_WEIGHT_DECAY`.
        config: Dictionary, what `get_config` returned under this name, or `None`.
    """

    def __init__(self, method, config=None):
        config = config or {}
        self._method = method
        self._var_list = []
        self._var_names = list(config.get("var_names", ()))
        positions = config.get("positions", ())
        paths = config.get("paths", [None] * len(positions))  # an older one has none
        self._paths = dict(zip(positions, paths, strict=True))
        self._count = config.get("count")

    def set(self, var_list=None, var_names=None):
        """Takes the place of what was given before."""
        self._var_list, self._var_names = list(var_list or ()), list(var_names or ())
        self._paths, self._count = {}, None

    def resolve(self, optimizer, variables):
        """Finds the positions of the variables in the order of `build`."""
        if self._paths:
            self._find(optimizer, variables)
        keys = {optimizer._var_key(variable) for variable in self._var_list}
        for position, variable in enumerate(variables):
            if optimizer._var_key(variable) in keys:
                self._paths[position] = _path(variable)
        self._var_list, self._count = [], len(variables)

    def _find(self, optimizer, variables):
        """Finds what a config says among variables that may be others than those it was made of."""
        paths = [_path(variable) for variable in variables]
        places = {old: self._place(old, paths) for old in self._paths}
        lost = [
            path or f"the variable at position {old}"
            for old, path in self._paths.items()
            if places[old] is None
        ]
        if lost:
            name = type(optimizer).__name__
            warnings.warn(
                f"{name} is built for {len(paths)} variables. Its config excludes others, which "
                f"are not among them: {', '.join(lost)}. Call `{self._method}()` of a new "
                f"{name} before it is built.",
                stacklevel=4,
            )
        self._paths = {new: paths[new] for new in places.values() if new is not None}

    def _place(self, old, paths):
        """The position of what was at position `old`, `None` if it is not there any more.

        A variable is known by its path, which may or may not begin with the model's name. Where no
        variable has it, a model may have been made again, with new names of its layers. Then the
        variable at the same position is taken for it, if it has the same name, and there are as
        many variables as before.
        """
        path = self._paths[old]
        places = [new for new, other in enumerate(paths) if _are_same(path, other)]
        if old in places:
            return old
        if places:
            return places[0] if len(places) == 1 else None
        is_as_long = old < len(paths) and self._count in (None, len(paths))
        is_like = is_as_long and (path is None or _own_name(path) == _own_name(paths[old]))
        return old if is_like else None

    def variables(self, variables):
        """Those of the optimizer's variables that were given or kept by themselves."""
        return [variables[i] for i in sorted(self._paths)]

    @property
    def var_names(self):
        """The patterns of which one in a variable's name excludes it."""
        return list(self._var_names)

    def positions(self, variables):
        """The positions of all that are excluded, by themselves or by their names."""
        patterns = [re.compile(name) for name in self._var_names]
        named = {
            i
            for i, variable in enumerate(variables)
            if any(pattern.search(variable.name) for pattern in patterns)
        }
        return frozenset(named.union(self._paths))

    def get_config(self):
        """The entry of the optimizer's config, a dict that is empty if nothing is excluded."""
        config = {"var_names": self.var_names} if self._var_names else {}
        if self._paths:
            positions = sorted(self._paths)
            paths = [self._paths[i] for i in positions]
            config |= {"positions": positions, "paths": paths, "count": self._count}
        return {self._method: config} if config else {}


def _path(variable):
    return getattr(variable, "path", variable.name)  # one of TensorFlow has no path


def _are_same(path, other):
    """Whether two paths are the same, but for where they begin."""
    short, long = sorted((path or "", other), key=len)
    return bool(short) and f"/{long}".endswith(f"/{short}")


def _own_name(path):
    return path.rpartition("/")[2]


def exclude_before_build(optimizer, var_list, var_names):
    """Notes which variables are excluded from the norm correction, unless it is too late."""
    if optimizer.built:
        raise ValueError(
            "`exclude_from_norm_correction()` can only be configured before the optimizer is built."
        )
    variables = _listed(var_list)
    if variables is None or not all(hasattr(variable, "assign") for variable in variables):
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
