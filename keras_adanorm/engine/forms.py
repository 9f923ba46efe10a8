"""Whether a fused kernel for Adam, as TensorFlow and torch have one, can run an optimizer."""

import numbers

# `(1 - beta_1) / beta_1` is to be a moderate number.
_SMALLEST_BETA_1 = 0.5
_SMALLEST_EPSILON = 1e-30
# What an optimizer must have from this package, unchanged.
_METHODS = ("algorithm", "moment_gradients", "adaptive_rate", "adaptive_step", "denominator")
_METHODS += ("rectified_rate", "norm_ratios", "state_of")


def form_of(optimizer, forms):
    """The function that runs this optimizer's algorithm by kernels, `None` if there is none.

    Args:
        optimizer: The optimizer.
        forms: A dict of such functions by module and name of the class that writes the algorithm.
    """
    cls = type(optimizer)
    owner = next(base for base in cls.__mro__ if "algorithm" in vars(base))
    form = forms.get((owner.__module__, owner.__qualname__))
    if form is None or not all(_is_ours(optimizer, name) for name in _METHODS):
        return None
    numeric = (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon, optimizer.epsilon_root)
    if not all(isinstance(number, numbers.Real) for number in numeric):  # variables, for example
        return None
    is_usual = (
        getattr(optimizer, "corrected_moments", "first") == "first"
        and optimizer.epsilon_root == 0
        and optimizer.epsilon >= _SMALLEST_EPSILON
        and optimizer.beta_1 >= _SMALLEST_BETA_1
    )
    return form if is_usual else None


def _is_ours(optimizer, name):
    """Whether an optimizer has no method of this name, or that of this package."""
    method = getattr(type(optimizer), name, None)
    is_own = method is None or method.__module__.startswith("keras_adanorm.")
    return is_own and name not in vars(optimizer)
