"""TensorFlow without XLA: the kernels that TensorFlow has for Adam, eagerly and in graphs.

Taken for variables of float32 and float64 on TensorFlow, outside of XLA and of strategies of
`tf.distribute`, for the algorithms in `FORMS` as this package has them. Any other variable is
updated by its algorithm as it is written, one operation at a time.

`ResourceApplyAdam` updates both moments and the variable in one pass over memory. It needs no
compiler and no tracing. It is given `g_t`. The first moment is to average `s_t = ratio * g_t`, so
before the kernel runs the moment is moved by what is missing,

    m_{t-1}  <-  m_{t-1} + (1 - beta_1) / beta_1 * (ratio - 1) * g_t

which is one more pass. It is left out where `ratio` is 1, eagerly and for large variables.
"""

import functools

import numpy as np
import tensorflow as tf

from keras_adanorm.engine import precision, private, ways
from keras_adanorm.engine.forms import form_of
from keras_adanorm.engine.norms import is_small, l2_norms, shared_function
from keras_adanorm.engine.step import Step, Update

# A gradient with a larger norm is clipped for the second moment, where its square would overflow.
_SQUARABLE = {"float32": 1e19, "float64": 1e154}


def update_by_kernels(optimizer, gradients, variables, learning_rate):
    """Updates variables by a fused kernel each, where that gives the same numbers."""
    form = form_of(optimizer, FORMS)
    update = Update(learning_rate, optimizer.iterations)
    variables = [private.native(variable) for variable in variables]
    gradients = [
        tf.ensure_shape(ways.in_compute_dtype(g, v), v.shape)  # of a sparse one it is not known
        for g, v in zip(gradients, variables, strict=True)
    ]
    fused = [form is not None and is_fit(optimizer, variable) for variable in variables]
    norms = l2_norms(gradients, _widest(gradients)) if any(fused) else None
    ratios = optimizer.norm_ratios(gradients, variables, norms)
    for i in range(len(variables)):
        if not fused[i]:
            ways.update_one(optimizer, update, gradients[i], variables[i], ratios[i])
    for dtype in ("float32", "float64"):
        chosen = [i for i, v in enumerate(variables) if fused[i] and v.dtype.name == dtype]
        if not chosen:
            continue
        scalars = Scalars(optimizer, update, dtype)
        pushes = first_moment_pushes(
            [gradients[i] for i in chosen],
            [ratios[i] for i in chosen],
            tf.gather(norms, chosen),
            scalars,
        )
        form(optimizer, scalars, pushes, [variables[i] for i in chosen])


def _widest(gradients):
    return "float64" if any(g.dtype == tf.float64 for g in gradients) else "float32"


def is_fit(optimizer, variable):
    """Whether a variable is one that the kernels take, with moments of its own dtype."""
    if not isinstance(variable, tf.Variable) or not hasattr(variable, "handle"):
        return False
    if variable.dtype not in (tf.float32, tf.float64):
        return False
    # The kernels have no other decay than one of the variable's dtype.
    number_in = np.dtype(variable.dtype.name).type
    return all(
        float(number_in(beta)) == precision.rounded(beta, variable.dtype.name)
        for beta in (optimizer.beta_1, optimizer.beta_2)
    )


class Scalars:
    """The scalars of one update in one dtype, computed from the betas as they are in that dtype."""

    def __init__(self, optimizer, update, dtype):
        self.dtype = dtype
        self.update = update
        self.beta_1 = precision.rounded(optimizer.beta_1, dtype)
        self.beta_2 = precision.rounded(optimizer.beta_2, dtype)
        self.root = update.bias_correction(self.beta_2, dtype) ** 0.5
        self.missing = (1 - self.beta_1) / self.beta_1
        self.of_betas = {
            "beta1_power": self.tensor(0.0),
            "beta2_power": self.tensor(0.0),
            "beta2": self.tensor(self.beta_2),
        }

    def tensor(self, value):
        """A number or scalar tensor as a scalar tensor of the dtype."""
        return tf.cast(value, self.dtype) if tf.is_tensor(value) else tf.constant(value, self.dtype)

    def rate(self, optimizer):
        """`learning_rate * sqrt(1 - beta_2 ** t) / (1 - beta_1 ** t)`."""
        learning_rate = self.update.learning_rate(self.dtype)
        bias = self.update.bias_correction(self.beta_1, self.dtype)
        return self.tensor(learning_rate * (self.root / bias))

    def epsilon(self, optimizer):
        """What is added to the root of the second moment that is not corrected for bias."""
        if optimizer.epsilon_hat:
            return self.tensor(optimizer.epsilon)
        return self.tensor(optimizer.epsilon * self.root)

    def adam(self, variable, m, v, gradient, rate, epsilon, beta_1=None):
        """TensorFlow's kernel: both moments, then the variable."""
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=m.handle,
            v=v.handle,
            lr=rate,
            epsilon=epsilon,
            beta1=self.tensor(self.beta_1 if beta_1 is None else beta_1),
            grad=gradient,
            **self.of_betas,
        )


class Push:
    """What a first moment is moved by before the kernel adds a gradient to it.

    Attributes:
        whole: The gradient `g_t`.
        ratio: `||s_t|| / ||g_t||`, a scalar tensor or, eagerly, a number.
    """

    def __init__(self, gradient, ratio, is_beyond, scalars):
        self.whole = gradient
        self.ratio = ratio
        self._is_beyond = is_beyond
        self._scalars = scalars

    def apply(self, m):
        """Moves the first moment; returns the gradient for the kernel, whose square is finite."""
        scalars, limit = self._scalars, _SQUARABLE[self._scalars.dtype]
        missing = scalars.tensor(scalars.missing)
        if tf.executing_eagerly():
            if not self._is_beyond and self.ratio == 1:
                return self.whole
            return _push(m.handle, self.whole, scalars.tensor(self.ratio), missing, limit)
        # What graphs share must not be recorded with a debugger's operations in it.
        if is_small(self.whole) or private.watches_numbers():
            return _push(m.handle, self.whole, self.ratio, missing, limit)
        push = _push_if_needed(m.dtype)
        return push(m.handle, self.whole, self.ratio, missing, self._is_beyond)


def _push(handle, gradient, ratio, missing, limit):
    clipped = tf.raw_ops.ClipByValue(t=gradient, clip_value_min=-limit, clip_value_max=limit)
    delta = gradient * ratio - clipped
    tf.raw_ops.ResourceApplyGradientDescent(var=handle, alpha=-missing, delta=delta)
    return clipped


@functools.cache
def _push_if_needed(dtype):
    """A function that all graphs share. It reads its arguments and nothing else."""
    limit = _SQUARABLE[dtype.name]

    def push(handle, gradient, ratio, missing, is_beyond):
        def without_clipping():
            size = -missing * (ratio - 1)
            tf.raw_ops.ResourceApplyGradientDescent(var=handle, alpha=size, delta=gradient)
            return gradient

        def move():
            return tf.cond(
                is_beyond,
                lambda: _push(handle, gradient, ratio, missing, limit),
                without_clipping,
            )

        return tf.cond(is_beyond | (ratio != 1), move, lambda: gradient)

    signature = [
        tf.TensorSpec((), tf.resource),
        tf.TensorSpec(None, dtype),
        tf.TensorSpec((), dtype),
        tf.TensorSpec((), dtype),
        tf.TensorSpec((), tf.bool),
    ]
    return shared_function(push, signature)


def first_moment_pushes(gradients, ratios, norms, scalars):
    """A `Push` for each gradient."""
    beyond = tf.math.is_finite(norms) & (norms > _SQUARABLE[scalars.dtype])
    if tf.executing_eagerly():
        ratios = [1.0 if ratio is None else float(ratio) for ratio in ratios]
        beyond = beyond.numpy().tolist()
    else:
        one = scalars.tensor(1.0)
        ratios = [one if ratio is None else ratio for ratio in ratios]
        beyond = tf.unstack(beyond)
    parts = zip(gradients, ratios, beyond, strict=True)
    return [Push(gradient, ratio, is_beyond, scalars) for gradient, ratio, is_beyond in parts]


def _state(optimizer, variable):
    return {name: state.value for name, state in optimizer.state_of(variable).items()}


def adam(optimizer, scalars, pushes, variables):
    """AdamNorm's algorithm."""
    rate, epsilon = scalars.rate(optimizer), scalars.epsilon(optimizer)
    for push, variable in zip(pushes, variables, strict=True):
        state = _state(optimizer, variable)
        g = push.apply(state["momentum"])
        scalars.adam(variable, state["momentum"], state["velocity"], g, rate, epsilon)


def radam(optimizer, scalars, pushes, variables):
    """Radam's algorithm: while it is not adaptive the kernel only updates the moments."""
    step = Step(scalars.update, None, scalars.dtype, None, None)
    rate, adaptive = optimizer.rectified_rate(step)
    adaptive_rate = scalars.tensor(rate * adaptive)
    epsilon = scalars.tensor(optimizer.epsilon)
    moments = []
    for push, variable in zip(pushes, variables, strict=True):
        state = _state(optimizer, variable)
        moments.append(state["momentum"])
        g = push.apply(state["momentum"])
        scalars.adam(variable, state["momentum"], state["velocity"], g, adaptive_rate, epsilon)

    def descend():
        for variable, m in zip(variables, moments, strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=scalars.tensor(rate), delta=m.read_value()
            )
        return tf.constant(True)

    is_adaptive = adaptive > 0
    if not tf.is_tensor(is_adaptive) or tf.executing_eagerly():
        if not is_adaptive:
            descend()
    else:
        tf.cond(is_adaptive, lambda: tf.constant(False), descend)


def adabelief(optimizer, scalars, pushes, variables):
    """AdaBelief's algorithm: the kernel gets the surprise, and the new first moment."""
    rate, epsilon = scalars.rate(optimizer), scalars.epsilon(optimizer)
    limit = _SQUARABLE[scalars.dtype]
    for push, variable in zip(pushes, variables, strict=True):
        state = _state(optimizer, variable)
        m = state["momentum"]
        _average(m, push, scalars)
        surprise = tf.clip_by_value(push.whole - m, -limit, limit)
        scalars.adam(variable, m, state["velocity"], surprise, rate, epsilon, beta_1=1.0)


def _average(m, push, scalars):
    """`m <- beta_1 * m + (1 - beta_1) * ratio * g`, in one pass where the device has the kernel."""
    if "CPU" not in m.device:
        share = scalars.tensor((1 - scalars.beta_1) * push.ratio)
        m.assign(scalars.tensor(scalars.beta_1) * m + share * push.whole)
        return
    # (m - alpha * g) / (1 + alpha * l2) with alpha * l2 = (1 - beta_1) / beta_1 = 1 / beta_1 - 1
    tf.raw_ops.ResourceApplyProximalGradientDescent(
        var=m.handle,
        alpha=scalars.tensor(-scalars.missing * push.ratio),
        l1=scalars.tensor(0.0),
        l2=scalars.tensor(-1.0 / push.ratio),
        delta=push.whole,
    )


def diffgrad(optimizer, scalars, pushes, variables):
    """diffGrad's algorithm: the kernel's step is left in the place of the previous gradient."""
    rate, epsilon = scalars.rate(optimizer), scalars.epsilon(optimizer)
    for push, variable in zip(pushes, variables, strict=True):
        state = _state(optimizer, variable)
        previous = state["previous_gradient"]
        friction = tf.sigmoid(tf.abs(push.whole - previous))
        previous.assign(tf.zeros_like(push.whole))
        g = push.apply(state["momentum"])
        scalars.adam(previous, state["momentum"], state["velocity"], g, rate, epsilon)
        variable.assign_add(friction * previous)
        previous.assign(push.whole)


# By the class that writes the algorithm.
FORMS = {
    ("keras_adanorm.adam_norm", "AdamNorm"): adam,
    ("keras_adanorm.radam", "Radam"): radam,
    ("keras_adanorm.adabelief", "AdaBelief"): adabelief,
    ("keras_adanorm.diff_grad", "DiffGrad"): diffgrad,
}
