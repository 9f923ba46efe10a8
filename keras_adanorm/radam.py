"""Radam and RadamNorm (supplementary algorithms of the paper)."""

import math
import numbers
from typing import Any

import keras
from keras import ops

from keras_adanorm.base import AdaptiveNormCorrection, AdaptiveOptimizer
from keras_adanorm.documentation import documented
from keras_adanorm.engine import precision
from keras_adanorm.engine.step import Step


@keras.saving.register_keras_serializable(package="keras_adanorm")
@documented(bias="")
class Radam(AdaptiveOptimizer):
    """Adam that takes no adaptive step until its variance can be trusted.

    While the length `rho_t` of the average in the second moment is below 5, the step is that of SGD
    with momentum; from then on it is adaptive and rectified:

    ```
    m_t = beta_1 * m_{t-1} + (1 - beta_1) * g_t
    v_t = beta_2 * v_{t-1} + (1 - beta_2) * g_t^2
    m_hat = m_t / (1 - beta_1^t)
    rho_inf = 2 / (1 - beta_2) - 1,   rho_t = rho_inf - 2 * t * beta_2^t / (1 - beta_2^t)
    if rho_t >= 5:
        r = sqrt((1 - beta_2^t) * ((rho_t - 4) * (rho_t - 2) * rho_inf)
                                / ((rho_inf - 4) * (rho_inf - 2) * rho_t))
        w_t = w_{t-1} - learning_rate * r * m_hat / (sqrt(v_t + epsilon_root) + epsilon)
    else:
        w_t = w_{t-1} - learning_rate * m_hat
    ```

    All operations are elementwise. All averages start at 0. Gradients and updates are tensors of
    the variable's shape.

    The paper prints `1 - beta_2` in `r`, which is a slip: it would make these steps smaller, at
    first by a factor of 2 and in the end of about 30. Here it is `1 - beta_2^t`, as in Liu et al.
    2020.

    Args:
        {{arguments}}

    Raises:
        {{raises}}

    Example:

    >>> import keras
    >>> from keras_adanorm import Radam
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer=Radam(learning_rate=1e-3), loss="mse")
    >>> history = model.fit(keras.ops.ones((8, 4)), keras.ops.zeros((8, 1)), verbose=0)
    >>> int(model.optimizer.iterations)
    1

    Source:
        Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", ICLR 2020; as in
        Dubey, Singh and Chaudhuri, "AdaNorm", WACV 2023, supplementary, Radam algorithm.
    """

    elementwise = True

    def algorithm(self, step: Step) -> None:
        """One step of one variable."""
        s_m, s_v = self.moment_gradients(step)
        m = step.average("momentum", s_m, self.beta_1)
        v = step.average_of_square("velocity", s_v, self.beta_2)
        rate, adaptive = step.once(self.rectified_rate)
        # Where the step is not adaptive it is `rate * m`.
        denominator = step.choose(adaptive > 0, lambda: self.denominator(step, v), lambda: 1.0)
        step.descend_quotient(rate, m, denominator)

    def rectified_rate(self, step: Step) -> tuple[Any, Any]:
        """The factor of `m`, and whether the variance is tractable, 1 or 0.

        `r` and the factor end with a root and a quotient. XLA computes these once and keeps them;
        what comes after them it computes again in the update of each variable.
        """
        beta_2 = precision.number(self.beta_2)
        if not isinstance(beta_2, numbers.Real):
            raise ValueError(
                f"{type(self).__name__} needs a number as `beta_2` where its step is compiled. "
                f"Received: beta_2 of type {type(self.beta_2).__name__}"
            )
        rho_infinity = 2 / (1 - beta_2) - 1
        if rho_infinity < THRESHOLD:  # rho_t stays below rho_infinity
            return step.learning_rate / step.bias_correction(self.beta_1), 0.0
        rho_t = simple_average_length(step.t, beta_2)
        is_tractable = ops.cast(rho_t >= THRESHOLD, rho_t.dtype)
        rho_t = precision.maximum(rho_t, THRESHOLD)  # keeps the root of the other case real
        rho_u = (rho_t - 4) * (rho_t - 2) * rho_infinity
        rho_d = (rho_infinity - 4) * (rho_infinity - 2) * rho_t
        r = ops.sqrt(is_tractable * step.bias_correction(beta_2) * rho_u / rho_d)
        adaptive = ops.cast(r > 0, r.dtype)
        rate = step.learning_rate * (r + (1 - adaptive))
        return rate / step.bias_correction(self.beta_1), adaptive


@keras.saving.register_keras_serializable(package="keras_adanorm")
@documented(plain="`Radam` bit for bit", bias="")
class RadamNorm(AdaptiveNormCorrection, Radam):
    """Radam whose first moment averages the norm-corrected gradient.

    The second moment sees the gradient `g_t`, the first moment sees `s_t`:

    ```
    e_t = gamma * e_{t-1} + (1 - gamma) * ||g_t||
    s_t = (e_t / ||g_t||) * g_t   if e_t > ||g_t||   else   g_t
    m_t = beta_1 * m_{t-1} + (1 - beta_1) * s_t
    v_t = beta_2 * v_{t-1} + (1 - beta_2) * g_t^2
    m_hat = m_t / (1 - beta_1^t)
    rho_inf = 2 / (1 - beta_2) - 1,   rho_t = rho_inf - 2 * t * beta_2^t / (1 - beta_2^t)
    if rho_t >= 5:
        r = sqrt((1 - beta_2^t) * ((rho_t - 4) * (rho_t - 2) * rho_inf)
                                / ((rho_inf - 4) * (rho_inf - 2) * rho_t))
        w_t = w_{t-1} - learning_rate * r * m_hat / (sqrt(v_t + epsilon_root) + epsilon)
    else:
        w_t = w_{t-1} - learning_rate * m_hat
    ```

    All operations are elementwise but the norm, which is the L2 norm of each variable's own
    gradient. All averages start at 0. Gradients and updates are tensors of the variable's shape.

    The paper prints `1 - beta_2` in `r`, which is a slip: it would make these steps smaller, at
    first by a factor of 2 and in the end of about 30. Here it is `1 - beta_2^t`, as in Liu et al.
    2020.

    With `gamma=0` the class reproduces the authors' released code, whose `e_t` is reset before
    every step, so that it never corrects.

    Args:
        {{arguments}}

    Raises:
        {{raises}}

    Example:

    >>> import keras
    >>> from keras_adanorm import RadamNorm
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer=RadamNorm(learning_rate=1e-3), loss="mse")
    >>> history = model.fit(keras.ops.ones((8, 4)), keras.ops.zeros((8, 1)), verbose=0)
    >>> int(model.optimizer.iterations)
    1

    Source:
        Dubey, Singh and Chaudhuri, "AdaNorm: Adaptive Gradient Norm Correction based Optimizer for
        CNNs", WACV 2023, supplementary, RadamNorm algorithm.
    """


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
