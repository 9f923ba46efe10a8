"""What is checked before anything changes: arguments, variables, and the state in a file."""

import math
import numbers
import re
import warnings

import keras
import numpy as np

from keras_adanorm.engine import precision, private

UNBUILT = 2  # what an optimizer holds before it is built: the count of steps, the learning rate


def decay_rate(argument, value):
    """The value as a float, if it can be the decay of an average: a number in [0, 1)."""
    if not _is_number(value) or not 0 <= value < 1:
        raise ValueError(
            f"Argument `{argument}` must be in the range [0, 1). Received: {argument}={value!r}"
        )
    return float(value)


def number_at_least(minimum, argument, value, alternative=""):
    """The value as a float, if it is a finite number not below the minimum."""
    if not _is_number(value) or not _is_finite(value) or value < minimum:
        raise ValueError(
            f"Argument `{argument}` must be {alternative}a finite number >= {minimum}. "
            f"Received: {argument}={value!r}"
        )
    return float(value)


def correction_bound(value):
    """The value as a float, if it can bound the correction: `None` or a number of at least 1."""
    return None if value is None else number_at_least(1, "max_correction", value, "None or ")


def boolean(argument, value):
    """The value, if it is a boolean."""
    if not isinstance(value, bool):
        raise ValueError(
            f"Argument `{argument}` must be True or False. Received: {argument}={value!r}"
        )
    return value


def one_of(allowed, argument, value):
    """The value, if it is one of some strings."""
    if not isinstance(value, str) or value not in allowed:
        names = ", ".join(f'"{name}"' for name in allowed)
        raise ValueError(
            f"Argument `{argument}` must be one of {names}. Received: {argument}={value!r}"
        )
    return value


def finite_if_number(argument, value):
    """Raises if the value is a number that is not finite."""
    if _is_number(value) and not _is_finite(value):
        raise ValueError(
            f"Argument `{argument}` must be a finite number. Received: {argument}={value!r}"
        )


def refuse_complex(optimizer, variables):
    """Raises before anything changes if a variable is complex."""
    for variable in variables:
        if precision.is_complex(variable.dtype):
            raise ValueError(
                f"{type(optimizer).__name__} updates real variables only: its second moment and "
                "its norm are not defined here for complex ones. Keep the real and the imaginary "
                "part in two variables. "
                f"Received: variable '{variable.name}' with dtype={variable.dtype}"
            )


def warn_of_other_variables(optimizer, variables):
    """Warns if a built optimizer is to be built again, for variables that it does not know.

    Keras leaves it as it is. Its `apply` will refuse them; its `stateless_apply`, and with it `fit`
    on JAX, can't tell them apart and goes on with the state of the others.
    """
    known = private.known_indices(optimizer)
    if any(optimizer._var_key(variable) not in known for variable in variables):
        name = type(optimizer).__name__
        warnings.warn(
            f"{name} has been built for other variables, and keeps their state: `build` does "
            f"nothing. Make a new optimizer, `{name}.from_config(optimizer.get_config())`.",
            stacklevel=3,
        )


def skips_state(optimizer, store):
    """Whether what is stored is not for this optimizer: warns if there is state that is lost."""
    saved, here = len(store.keys()), len(optimizer.variables)
    if optimizer.built:
        # One that was saved before it was built has no state; without a step, neither has this one.
        steps = int(np.asarray(store["0"])) if saved else 0
        return saved <= UNBUILT < here and steps == int(optimizer.iterations) == 0
    if saved <= here:
        return False
    warnings.warn(
        f"Skipping variable loading for optimizer '{optimizer.name}', which is not built: its "
        "state is lost. Call `optimizer.build(model.trainable_variables)` before you load it.",
        stacklevel=3,
    )
    return True


def warn_of_another_class(optimizer, store):
    """Warns if what is stored is the state of an optimizer of another class.

    A file has the optimizer's name alone. It tells the class if Keras made it, as `adam_norm_2` of
    `AdamNorm`; a name that a user gave tells nothing.
    """
    saved = private.saved_name(store)
    if not isinstance(saved, str) or saved == optimizer.name:
        return
    name = re.sub(r"_\d+$", "", saved).replace("_", "").lower()
    others = [c for c in _classes(keras.optimizers.Optimizer) if c.__name__.lower() == name]
    here = type(optimizer)
    if not others or any(issubclass(c, here) or issubclass(here, c) for c in others):
        return
    other = others[0].__name__
    warnings.warn(
        f"Loading the state of '{saved}', a name of {other}, into {here.__name__}, in which it "
        f"means something else. Make an optimizer of the class {other} to load it.",
        stacklevel=3,
    )


def _classes(cls):
    """A class and all classes that inherit from it."""
    found = {cls}
    for subclass in cls.__subclasses__():
        found |= _classes(subclass)
    return found


def _is_finite(number):
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond all floats
        return False


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
