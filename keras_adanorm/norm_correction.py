"""The gradient norm correction of AdaNorm as one pure function.

Source: Dubey, Singh and Chaudhuri, "AdaNorm: Adaptive Gradient Norm Correction based Optimizer for
CNNs", WACV 2023, equations 2 to 4.
"""

import numbers
from typing import Any

import keras
import numpy as np

from keras_adanorm import checks
from keras_adanorm.engine import precision
from keras_adanorm.engine.norms import l2_norm


def correct_norm(
    gradient: Any,
    average: Any,
    gamma: float = 0.95,
    max_correction: float | None = None,
    norm: Any = None,
) -> tuple[Any, Any]:
    """Scales a gradient up to the moving average of its norm where it is smaller.

    ```
    e_t = gamma * e_{t-1} + (1 - gamma) * ||g_t||                        (equation 4)
    s_t = (e_t / ||g_t||) * g_t   if e_t > ||g_t||   else   g_t          (equation 3)
    ```

    The norm is the L2 norm over all elements (equation 2), taken so that it neither overflows nor
    underflows. Three cases that the paper leaves open:

    - `||g_t|| = 0`: there is no direction to scale, so `s_t = g_t = 0`, and `e_t` decays. A norm
      below the smallest normal number of the dtype counts as 0.
    - A norm that is not finite (an Inf or NaN in the gradient): `e_t = e_{t-1}` and `s_t = g_t`.
    - `e_t / ||g_t||` beyond the largest number of the dtype: the ratio is held at that number.

    Args:
        gradient: Floating point tensor of any shape: `g_t`.
        average: Scalar tensor, float64 for a float64 gradient, else float32: `e_{t-1}`, which is
            0 before the first step. Its unit is the gradient's.
        gamma: Float in [0, 1), the decay of the average. With 0 nothing is ever corrected.
            Defaults to `0.95`.
        max_correction: Float, at least 1, an upper bound on `e_t / ||g_t||`, or `None` for no
            bound. Defaults to `None`.
        norm: Scalar tensor: `||g_t||` where it is known, or `None` to compute it. Defaults to
            `None`.

    Returns:
        A tuple `(s_t, e_t)`: the corrected gradient, of the shape of `gradient`, and the new
        average, a scalar; both in float64 for a float64 gradient, else in float32.

    Raises:
        ValueError: If `gamma` or `max_correction` is outside its range, or `average` no scalar.

    Example:

    >>> import numpy as np
    >>> from keras_adanorm import correct_norm
    >>> g = np.array([3.0, 4.0], "float32")                     # ||g|| = 5
    >>> s, e = correct_norm(g, np.float32(25.0), gamma=0.5)      # e = 0.5 * 25 + 0.5 * 5
    >>> float(e), np.asarray(s).tolist()
    (15.0, [9.0, 12.0])
    """
    if isinstance(gamma, numbers.Real) or not hasattr(gamma, "shape"):
        gamma = checks.decay_rate("gamma", gamma)
    if isinstance(max_correction, numbers.Real) or not hasattr(max_correction, "shape"):
        max_correction = checks.correction_bound(max_correction)
    if average is None or not _may_be_scalar(average):
        raise ValueError(f"Argument `average` must be a scalar. Received: average={average!r}")
    gradient = precision.to_compute_dtype(gradient)
    norm = l2_norm(gradient) if norm is None else norm
    ratio, average = norm_ratio(norm, average, gamma, max_correction)
    return (gradient if ratio is None else gradient * ratio), average


def _may_be_scalar(value):
    try:
        return np.shape(value) == ()
    except ValueError:  # a tensor of TensorFlow whose rank is not known
        return True


def norm_ratio(
    norm: Any, average: Any, gamma: float, max_correction: float | None = None
) -> tuple[Any, Any]:
    """What `correct_norm` does with the norm, for one norm or elementwise for a vector of them.

    Args:
        norm: Tensor: `||g_t||`.
        average: Tensor of the shape of `norm`: `e_{t-1}`.
        gamma: Float in [0, 1).
        max_correction: Float, at least 1, or `None`.

    Returns:
        A tuple `(ratio, e_t)`: `||s_t|| / ||g_t||`, or `None` if it is always 1, and the average.
    """
    limits = np.finfo(keras.backend.standardize_dtype(norm.dtype))
    xp = precision.operations(norm, average)
    gamma = precision.number(gamma)
    if not isinstance(gamma, numbers.Real):
        gamma = precision.to_dtype(gamma, keras.backend.standardize_dtype(norm.dtype))
    finite = xp.isfinite(norm)
    # No operation below makes an Inf or NaN from finite numbers, in no branch: people look for them
    # with the numeric debuggers of TensorFlow and JAX.
    norm = xp.where(finite, norm, xp.zeros_like(norm))
    average = xp.where(finite, gamma * average + (1 - gamma) * norm, average)
    # A gradient that is scaled up to it must not overflow by a rounding.
    average = precision.minimum(average, float(limits.max) * (1 - 2.0**-21))
    if precision.is_zero(gamma):  # e_t is the norm itself: the gradient passes, to the last bit
        return None, average
    bound = float(limits.max) if max_correction is None else max_correction
    one = xp.ones_like(norm)
    # Whether `average / norm` is beyond the bound, asked without a quotient: that with the largest
    # number is subnormal, which a compiler may take for 0, and the product may overflow.
    held = precision.minimum(norm, float(limits.max) / bound)
    beyond = average > held * (bound * (1 - 2 * float(limits.eps)))
    corrects = xp.logical_and(norm >= float(limits.tiny), average > norm)
    numerator = xp.where(corrects, xp.where(beyond, bound * one, average), one)
    denominator = xp.where(xp.logical_and(corrects, xp.logical_not(beyond)), norm, one)
    # The quotient comes last: XLA computes one once and keeps it, but would do the choices again
    # in the update of each variable.
    return numerator / denominator, average
