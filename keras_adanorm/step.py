"""One step of one variable, as an algorithm sees it."""

import math
import types

import keras
from keras import ops

from keras_adanorm import precision
from keras_adanorm.l2_norm import l2_norm

ELEMENTWISE = types.SimpleNamespace(
    abs=ops.abs, minimum=precision.minimum, sigmoid=ops.sigmoid, sqrt=ops.sqrt, where=ops.where
)


class Step:
    """One step of one variable: its gradient, its state, and what all algorithms do with them.

    All of it is in the compute dtype of the variable, float32 or float64: half precision is left
    on reading and entered again on writing.

    Attributes:
        ops: Elementwise functions: those of `keras.ops`, or their form for a list of tensors.
        gradient: `g_t`, a tensor of the variable's shape.
        learning_rate: `alpha`, a scalar tensor.
        dtype: The compute dtype, "float32" or "float64".
        t: The number of the step, a scalar tensor, 1 in the first.
    """

    ops = ELEMENTWISE

    def __init__(self, optimizer, gradient, variable, learning_rate, iterations, state):
        dtype = precision.compute_dtype(variable.dtype)
        self.gradient = ops.cast(precision.dense(gradient), dtype)
        self.learning_rate = ops.cast(learning_rate, dtype)
        self.t = ops.cast(iterations, dtype) + 1
        self.dtype = dtype
        self._optimizer = optimizer
        self._variable = variable
        self._state = state

    def norm(self):
        """`||g_t||`, a scalar tensor."""
        return l2_norm(self.gradient)

    def read(self, name):
        """The state `name` as it stands."""
        return precision.as_tensor(self._state[name])

    def write(self, name, value):
        """Replaces the state `name`."""
        self._optimizer.assign(self._state[name], value)

    def average(self, name, value, decay):
        """Moves an exponential average on, `a_t = decay * a_{t-1} + (1 - decay) * x_t`."""
        average = decay * self.read(name) + (1 - decay) * value
        self.write(name, average)
        return average

    def square(self, x):
        """`x ** 2`, held at half the largest number of the dtype, so that its average is finite."""
        return self.ops.minimum(x * x, 0.5 * precision.largest(self.dtype))

    def bias_correction(self, decay):
        """`1 - decay ** t`, to the last digits for every step and every decay in [0, 1)."""
        return 1.0 if decay == 0 else -ops.expm1(self.t * math.log(decay))

    def descend(self, delta):
        """Takes `delta` off the variable."""
        self._take_off(self._variable, delta)

    def _take_off(self, variable, delta):
        if keras.backend.standardize_dtype(variable.dtype) == self.dtype:
            self._optimizer.assign_sub(variable, delta)
        else:  # one rounding, of the new weight
            weight = ops.cast(precision.as_tensor(variable), self.dtype)
            self._optimizer.assign(variable, weight - delta)
