"""Radam and RadamNorm (supplementary algorithms of the paper)."""

import math

import keras
from keras import ops

from keras_adanorm import precision
from keras_adanorm.base import AdaptiveOptimizer, NormCorrection


@keras.saving.register_keras_serializable(package="keras_adanorm")
class Radam(AdaptiveOptimizer):
    """DOC"""

    def update_step(self, gradient, variable, learning_rate):
        """Updates a variable and its state."""
        step = self.begin_step(gradient, variable, learning_rate)
        s_m, s_v = self.moment_gradients(step)
        m = step.average("momentum", s_m, self.beta_1)
        v = step.average("velocity", step.square(s_v), self.beta_2)
        alpha = step.learning_rate / step.bias_correction(self.beta_1)
        adaptive, rectification = self._rectification(step)
        # With `adaptive` 1 or 0: alpha * rho * m / (sqrt(v) + epsilon), or alpha * m.
        denominator = adaptive * self.denominator(step, v) + (1 - adaptive)
        step.descend(alpha * rectification * m / denominator)

    def _rectification(self, step):
        """Whether the variance is tractable, 1 or 0, and the factor `rho` that rectifies it."""
        rho_infinity = 2 / (1 - self.beta_2) - 1
        if rho_infinity < THRESHOLD:  # rho_t stays below rho_infinity
            return 0.0, 1.0
        rho_t = simple_average_length(step.t, self.beta_2)
        adaptive = ops.cast(rho_t >= THRESHOLD, rho_t.dtype)
        rho_t = precision.maximum(rho_t, THRESHOLD)  # keeps the root of the other case real
        rho_u = (rho_t - 4) * (rho_t - 2) * rho_infinity
        rho_d = (rho_infinity - 4) * (rho_infinity - 2) * rho_t
        rho = ops.sqrt(step.bias_correction(self.beta_2) * rho_u / rho_d)
        return adaptive, adaptive * rho + (1 - adaptive)


@keras.saving.register_keras_serializable(package="keras_adanorm")
class RadamNorm(NormCorrection, Radam):
    """DOC"""


THRESHOLD = 5.0  # the rho_t from which on the variance of the adaptive step is finite


def simple_average_length(t, beta_2):
    """`rho_t`, the length of the simple average that comes closest to the one of the velocity.

    ```
    rho_t = rho_inf - 2 * t * beta_2^t / (1 - beta_2^t)     with     rho_inf = 2 / (1 - beta_2) - 1
    ```

    At small t both terms are near `rho_inf` and their difference is lost in float32. With
    `L = -ln(beta_2)` and `x = t * L` the same is

    ```
    rho_t = (rho_inf - 2 / L) + t * h(x)     with     h(x) = 2 / x - 2 / (exp(x) - 1)
    ```

    whose first term is a small constant; for small x, h is its series 1 - x/6 + x^3/360 - ...

    Args:
        t: Scalar tensor, float32 or float64: the number of the step, at least 1.
        beta_2: Float in (0, 1).

    Returns:
        A scalar tensor of the dtype of `t`, with a relative error below 1e-5 at every `t`.
    """
    rate = -math.log(beta_2)
    offset = (1 + beta_2) / (1 - beta_2) - 2 / rate
    x = t * rate
    small = precision.minimum(x, 1.0)
    square = small * small
    series = 1 - small / 6 * (
        1 - square / 60 * (1 - square / 42 * (1 - square / 40 * (1 - square * 5 / 198)))
    )
    large = precision.maximum(x, 1.0)
    closed = 2 / large - 2 / ops.expm1(large)
    return offset + t * ops.where(x < 1, series, closed)
