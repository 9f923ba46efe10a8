"""Optimizers that only the study at convergence trains: variants whose factor is changed.

`Held...` corrects every gradient of a variable by the mean factor so far, so that the factor no
longer follows the norm of the present gradient. `Debiased...` divides the average `e_t` by
`1 - gamma ** t`, as Adam does with its moments, so that it does not start near 0.

Both are made of a variant of the package by what `docs/variants.md` describes.
"""

import keras
import numpy as np
from keras import ops

from keras_adanorm.registry import NORM_VARIANTS

PACKAGE = "examples.study"


SLOT = "own_average"  # a number for each variable


def held(optimizer, step):
    """The factor is its own running mean: `r_t = mean of ||s_i|| / ||g_i||, i <= t`."""
    mean = step.read(SLOT)
    mean = mean + (step.ratio - mean) / step.t
    step.write(SLOT, mean)
    return mean


def debiased(optimizer, step):
    """The norm is compared with `e_t / (1 - gamma ** t)` in the place of `e_t`."""
    norm = ops.sqrt(ops.sum(ops.square(step.gradient)))
    average = step.average(SLOT, norm, optimizer.gamma) / step.bias_correction(optimizer.gamma)
    is_zero = norm == 0
    factor = ops.maximum(average / ops.where(is_zero, 1.0, norm), 1.0)
    return ops.where(is_zero, 1.0, factor)


def _changed(variant, prefix, factor):
    class Changed(variant):
        slots = (*variant.slots, SLOT)
        elementwise = False  # a factor belongs to a whole variable

        def slot_shape(self, name, variable):
            return () if name == SLOT else super().slot_shape(name, variable)

        def algorithm(self, step):
            step.ratio = factor(self, step)
            super().algorithm(step)

    Changed.__name__ = Changed.__qualname__ = f"{prefix}{variant.__name__}"
    Changed.__doc__ = f"`{variant.__name__}`, changed. {factor.__doc__}"
    return keras.saving.register_keras_serializable(package=PACKAGE)(Changed)


CHANGED = {
    f"{prefix}{variant.__name__}": _changed(variant, prefix, factor)
    for prefix, factor in (("Held", held), ("Debiased", debiased))
    for variant in NORM_VARIANTS
}


def first_moment_ratio(norms, corrected_norms, beta_1=0.9):
    """The mean factor by which the correction lengthens the first moment.

    The first moment averages gradients with `beta_1`. Here their norms are averaged in the same
    way, which leaves out that gradients of different steps point in different directions.

    Args:
        norms, corrected_norms: Arrays `(steps, variables)` of a `GradientNormMonitor`.
        beta_1: Float in [0, 1), the decay of the first moment. Defaults to `0.9`.

    Returns:
        The mean over steps and variables of the average corrected norm over the average norm, a
        float of at least 1.
    """
    plain = corrected = np.zeros(norms.shape[1])
    ratios = []
    for norm, corrected_norm in zip(norms, corrected_norms, strict=True):
        plain = beta_1 * plain + (1 - beta_1) * norm
        corrected = beta_1 * corrected + (1 - beta_1) * corrected_norm
        ratios += list((corrected / np.where(plain > 0, plain, 1.0))[plain > 0])
    return float(np.mean(ratios))
