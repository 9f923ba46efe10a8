"""One step of one variable, as an algorithm sees it."""

import math
import numbers
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_adanorm.engine import precision


class Update:
    """What all variables of one update have in common: learning rate, count of steps, constants.

    A constant of the step, such as a correction for bias, is computed once per dtype.
    """

    def __init__(self, learning_rate, iterations):
        # A number of Python's stays one: it has more digits than a tensor of float32.
        is_number = isinstance(learning_rate, numbers.Real)
        self._learning_rate = learning_rate if is_number else precision.as_tensor(learning_rate)
        self._iterations = precision.as_tensor(iterations)
        self._known = {}

    def once(self, key, compute):
        """The value of `compute()`, which is called once per key."""
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]

    def learning_rate(self, dtype):
        """The learning rate, a scalar tensor of a dtype."""
        return self.once(
            ("learning_rate", dtype), lambda: precision.to_dtype(self._learning_rate, dtype)
        )

    def number(self, dtype):
        """The number of the step, 1 in the first, a scalar tensor of a dtype."""
        return self.once(("t", dtype), lambda: precision.to_dtype(self._iterations, dtype) + 1)

    def bias_correction(self, decay, dtype):
        """`1 - decay ** t`, to the last digits for every step and every decay in [0, 1)."""
        decay = precision.rounded(decay, dtype)
        if not isinstance(decay, numbers.Real):
            return -ops.expm1(self.number(dtype) * ops.log(decay))
        if decay == 0:
            return 1.0
        return self.once(("bias", decay, dtype), lambda: self._bias_correction(decay, dtype))

    def _bias_correction(self, decay, dtype):
        number = self.number(dtype)
        return -precision.operations(number).expm1(number * math.log(decay))


class Step:
    """One step of one variable: its gradient, its state, and what all algorithms do with them.

    Everything is a tensor of the backend, in the compute dtype of the variable: float64 for
    float64, else float32. Tensors are values: what was read stays as it was, and a state that has
    been written is read as it was written. The variable and its state change when the algorithm has
    ended.

    An algorithm that is declared elementwise may be given several variables as one tensor, or a
    part of one. It then sees tensors of another shape, and its scalars `ratio` are tensors that
    broadcast.

    A decay, such as `beta_2`, is taken as it is in the compute dtype, in averages and in
    corrections for bias alike.

    Attributes:
        gradient: `g_t`, a tensor of the variable's shape.
        ratio: `||s_t|| / ||g_t||`, the factor by which the norm correction scales this gradient: a
            tensor that broadcasts to it, or `None` where nothing is ever corrected.
        dtype: The compute dtype, "float32" or "float64".
    """

    def __init__(
        self,
        update: Update,
        gradient: Any,
        dtype: str,
        read_state: Callable[[str], Any],
        read_weight: Callable[[], Any],
        ratio: Any = None,
    ) -> None:
        self.gradient = gradient
        self.ratio = ratio
        self.dtype = dtype
        self.written: dict[str, Any] = {}
        self.delta: Any = None
        self.new_weight: Any = None
        self._update = update
        self._read_state = read_state
        self._read_weight = read_weight

    @property
    def learning_rate(self) -> Any:
        """The learning rate, a scalar tensor."""
        return self._update.learning_rate(self.dtype)

    @property
    def t(self) -> Any:
        """The number of the step, a scalar tensor, 1 in the first."""
        return self._update.number(self.dtype)

    @property
    def weight(self) -> Any:
        """The variable's value before this step."""
        return self._read_weight()

    @property
    def corrected_gradient(self) -> Any:
        """`s_t`, the gradient scaled up to the average of its norm where it is smaller."""
        return self.gradient if self.ratio is None else self.gradient * self.ratio

    def read(self, name: str) -> Any:
        """The state `name`, as it was before this step or as it was written in it."""
        return self.written[name] if name in self.written else self._read_state(name)

    def write(self, name: str, value: Any) -> None:
        """Replaces the state `name` by a tensor of its shape."""
        self.written[name] = value

    def average(self, name: str, value: Any, decay: float) -> Any:
        """Moves an exponential average on, `a_t = decay * a_{t-1} + (1 - decay) * x_t`."""
        decay = precision.rounded(decay, self.dtype)
        average = decay * self.read(name) + (1 - decay) * value
        self.write(name, average)
        return average

    def average_of_square(self, name: str, value: Any, decay: float) -> Any:
        """Moves the exponential average of a square on, which is held below overflow."""
        return self.average(name, self.square(value), decay)

    def square(self, x: Any) -> Any:
        """`x ** 2`, held at half the largest number of the dtype, so that its average is finite.

        `x` is a tensor of any dtype, or a number.
        """
        held = precision.clip(precision.to_dtype(x, self.dtype), precision.square_limit(self.dtype))
        return held * held

    def root(self, x: Any, floor: Any) -> Any:
        """`sqrt(x) + floor`, to divide by.

        Where it would be 0, because `floor` is the number 0, it is the largest number of the dtype.
        """
        root = ops.sqrt(x)
        if isinstance(floor, numbers.Real) and floor == 0:
            return ops.where(root > 0, root, precision.largest(self.dtype))
        return root + floor

    def choose(
        self, condition: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]
    ) -> Any:
        """`if_true()` where a boolean scalar holds, else `if_false()`; both may be computed."""
        if isinstance(condition, bool):
            return if_true() if condition else if_false()
        return ops.where(condition, if_true(), if_false())

    def bias_correction(self, decay: float) -> Any:
        """`1 - decay ** t`, to the last digits for every step and every decay in [0, 1)."""
        return self._update.bias_correction(decay, self.dtype)

    def once(self, compute: Callable[..., Any], *arguments: Any) -> Any:
        """`compute(step, *arguments)`, which is called once for all variables of an update.

        For what depends on the number of the step and on hyperparameters alone.
        """
        key = (compute, arguments, self.dtype)  # a method is the same one each time it is read
        return self._update.once(key, lambda: compute(self, *arguments))

    def descend(self, delta: Any) -> None:
        """Takes `delta` off the variable."""
        self.delta = delta if self.delta is None else self.delta + delta

    def descend_quotient(self, rate: Any, numerator: Any, denominator: Any) -> None:
        """Takes `rate * numerator / denominator` off the variable; `rate` is a scalar."""
        self.descend(rate * numerator / denominator)

    def set_weight(self, value: Any) -> None:
        """Replaces the variable's value. What was taken off in this step before is dropped."""
        self.new_weight, self.delta = value, None
