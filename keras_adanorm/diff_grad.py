"""diffGrad and diffGradNorm (supplementary algorithms of the paper)."""

import keras
from keras import ops

from keras_adanorm.base import AdaptiveNormCorrection, AdaptiveOptimizer
from keras_adanorm.documentation import documented
from keras_adanorm.engine.step import Step


@keras.saving.register_keras_serializable(package="keras_adanorm")
@documented()
class DiffGrad(AdaptiveOptimizer):
    """Adam with a friction that slows a variable whose gradient stands still.

    The step is multiplied by a number between 1/2, where the gradient equals the previous one, and
    1, where it changes much:

    ```
    xi_t = sigmoid(|g_t - g_{t-1}|)
    m_t = beta_1 * m_{t-1} + (1 - beta_1) * g_t
    v_t = beta_2 * v_{t-1} + (1 - beta_2) * g_t^2
    m_hat = m_t / (1 - beta_1^t),   v_hat = v_t / (1 - beta_2^t)
    w_t = w_{t-1} - learning_rate * xi_t * m_hat / (sqrt(v_hat + epsilon_root) + epsilon)
    ```

    All operations are elementwise. All averages start at 0. Gradients and updates are tensors of
    the variable's shape.

    The gradient before the first, `g_0`, is 0.

    Args:
        {{arguments}}

    Raises:
        {{raises}}

    Example:

    >>> import keras
    >>> from keras_adanorm import DiffGrad
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer=DiffGrad(learning_rate=1e-3), loss="mse")
    >>> history = model.fit(keras.ops.ones((8, 4)), keras.ops.zeros((8, 1)), verbose=0)
    >>> int(model.optimizer.iterations)
    1

    Source:
        Dubey et al., "diffGrad: An Optimization Method for Convolutional Neural Networks", 2019;
        as in Dubey, Singh and Chaudhuri, "AdaNorm", WACV 2023, supplementary, diffGrad algorithm.
    """

    slots = ("momentum", "velocity", "previous_gradient")
    elementwise = True

    def algorithm(self, step: Step) -> None:
        """One step of one variable."""
        g = step.gradient
        # The friction xi_t: 1/2 where the gradient stands still, near 1 where it changes much.
        friction = ops.sigmoid(ops.abs(g - step.read("previous_gradient")))
        step.write("previous_gradient", g)
        s_m, s_v = self.moment_gradients(step)
        m = step.average("momentum", s_m, self.beta_1)
        v = step.average_of_square("velocity", s_v, self.beta_2)
        self.adaptive_step(step, m, v, factor=friction)


@keras.saving.register_keras_serializable(package="keras_adanorm")
@documented(plain="`DiffGrad` bit for bit")
class DiffGradNorm(AdaptiveNormCorrection, DiffGrad):
    """diffGrad whose first moment averages the norm-corrected gradient.

    The friction and the second moment see the gradient `g_t`, the first moment sees `s_t`:

    ```
    xi_t = sigmoid(|g_t - g_{t-1}|)
    e_t = gamma * e_{t-1} + (1 - gamma) * ||g_t||
    s_t = (e_t / ||g_t||) * g_t   if e_t > ||g_t||   else   g_t
    m_t = beta_1 * m_{t-1} + (1 - beta_1) * s_t
    v_t = beta_2 * v_{t-1} + (1 - beta_2) * g_t^2
    m_hat = m_t / (1 - beta_1^t),   v_hat = v_t / (1 - beta_2^t)
    w_t = w_{t-1} - learning_rate * xi_t * m_hat / (sqrt(v_hat + epsilon_root) + epsilon)
    ```

    All operations are elementwise but the norm, which is the L2 norm of each variable's own
    gradient. All averages start at 0. Gradients and updates are tensors of the variable's shape.

    The gradient before the first, `g_0`, is 0, and `g_{t-1}` is the uncorrected one.

    With `epsilon_hat=True` the class reproduces the authors' released code, which adds epsilon to
    the root of `v_t` before the correction for bias.

    Args:
        {{arguments}}

    Raises:
        {{raises}}

    Example:

    >>> import keras
    >>> from keras_adanorm import DiffGradNorm
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer=DiffGradNorm(learning_rate=1e-3), loss="mse")
    >>> history = model.fit(keras.ops.ones((8, 4)), keras.ops.zeros((8, 1)), verbose=0)
    >>> int(model.optimizer.iterations)
    1

    Source:
        Dubey, Singh and Chaudhuri, "AdaNorm: Adaptive Gradient Norm Correction based Optimizer for
        CNNs", WACV 2023, supplementary, diffGradNorm algorithm.
    """
