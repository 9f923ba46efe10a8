"""AdamNorm: Adam with the norm-corrected gradient (Algorithm 2 of the paper)."""

import keras

from keras_adanorm.base import AdaptiveNormCorrection
from keras_adanorm.documentation import documented
from keras_adanorm.engine.step import Step


@keras.saving.register_keras_serializable(package="keras_adanorm")
@documented(plain="the Adam of the paper (Algorithm 1)")
class AdamNorm(AdaptiveNormCorrection):
    """Adam whose first moment averages the norm-corrected gradient.

    The gradient `g_t` of each variable is scaled up to the moving average of its norm where it is
    smaller, before it enters the first moment:

    ```
    e_t = gamma * e_{t-1} + (1 - gamma) * ||g_t||
    s_t = (e_t / ||g_t||) * g_t   if e_t > ||g_t||   else   g_t
    m_t = beta_1 * m_{t-1} + (1 - beta_1) * s_t
    v_t = beta_2 * v_{t-1} + (1 - beta_2) * g_t^2
    m_hat = m_t / (1 - beta_1^t),   v_hat = v_t / (1 - beta_2^t)
    w_t = w_{t-1} - learning_rate * m_hat / (sqrt(v_hat + epsilon_root) + epsilon)
    ```

    All operations are elementwise but the norm, which is the L2 norm of each variable's own
    gradient. All averages start at 0. Gradients and updates are tensors of the variable's shape.

    With `epsilon_root=epsilon / (1 - beta_2)` the class reproduces the authors' released code,
    which adds epsilon to `v_t` at every step.

    Args:
        {{arguments}}

    Raises:
        {{raises}}

    Example:

    >>> import keras
    >>> from keras_adanorm import AdamNorm
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer=AdamNorm(learning_rate=1e-3), loss="mse")
    >>> history = model.fit(keras.ops.ones((8, 4)), keras.ops.zeros((8, 1)), verbose=0)
    >>> int(model.optimizer.iterations)
    1

    Source:
        Dubey, Singh and Chaudhuri, "AdaNorm: Adaptive Gradient Norm Correction based Optimizer for
        CNNs", WACV 2023, Algorithm 2 and equations 2 to 9.
    """

    elementwise = True

    def algorithm(self, step: Step) -> None:
        """One step of one variable."""
        s_m, s_v = self.moment_gradients(step)  # s_t and g_t, unless `corrected_moments` says else
        m = step.average("momentum", s_m, self.beta_1)
        v = step.average_of_square("velocity", s_v, self.beta_2)
        self.adaptive_step(step, m, v)
