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

import tensorflow as tf

from keras_adanorm.engine import precision, private, ways
from keras_adanorm.engine.forms import form_of
from keras_adanorm.engine.norms import is_small, l2_norms, shared_function
from keras_adanorm.engine.step import Step, Update

# A gradient with a larger norm is clipped for the second moment, where its square would overflow.
_SQUARABLE = {"float32": 1e19, "float64": 1e154}
# The inverse of a larger number is subnormal, which TensorFlow takes for 0.
_LARGEST_INVERTIBLE = {"float32": 2.0**125, "float64": 2.0**1021}


def update_by_kernels(optimizer, gradients, variables, learning_rate):
    """Updates variables by a fused kernel each, where that gives the same numbers."""
    form = form_of(optimizer, FORMS)
    update = Update(learning_rate, optimizer.iterations)
    variables = private.tensors_of(variables)
    gradients = [gradient_of(v, g) for g, v in zip(gradients, variables, strict=True)]
    dtypes = [] if form is None else dtypes_for(optimizer)
    fused = [has_kernel(variable, dtypes) for variable in variables]
    norms = l2_norms(gradients, _widest(gradients)) if any(fused) else None
    ratios = optimizer.norm_ratios(gradients, variables, norms)
    for i in range(len(variables)):
        if not fused[i]:
            ways.update_one(optimizer, update, gradients[i], variables[i], ratios[i])
    for dtype in dtypes:
        chosen = [i for i, v in enumerate(variables) if fused[i] and v.dtype == dtype]
        if not chosen:
            continue
        scalars = Scalars(optimizer, update, dtype.name)
        pushes = first_moment_pushes(
            [gradients[i] for i in chosen],
            [ratios[i] for i in chosen],
            norms if len(chosen) == len(variables) else tf.gather(norms, chosen),
            scalars,
        )
        chosen = [variables[i] for i in chosen]
        form(optimizer, scalars, pushes, chosen, states_of(optimizer, chosen))


def gradient_of(variable, gradient):
    """The gradient, dense and in the variable's compute dtype and shape."""
    is_ready = isinstance(gradient, tf.Tensor) and gradient.dtype == variable.dtype
    if not is_ready or variable.dtype not in (tf.float32, tf.float64):
        gradient = ways.in_compute_dtype(gradient, variable)
    gradient = ways.in_shape(gradient, variable.shape)
    # Of a sparse gradient the shape is not known in a graph.
    if gradient.shape.is_fully_defined():
        return gradient
    return tf.ensure_shape(gradient, variable.shape)


def states_of(optimizer, variables):
    """The states of some variables: a list of TensorFlow's variables by name."""
    slots = ways.slots_of(optimizer, variables)
    return {name: private.tensors_of(states) for name, states in slots.items()}


def _widest(gradients):
    return "float64" if any(g.dtype == tf.float64 for g in gradients) else "float32"


def dtypes_for(optimizer):
    """The dtypes of variables that the kernels take for this optimizer.

    The kernels have no other decay than one of the variable's dtype.
    """
    return [
        dtype
        for dtype in (tf.float32, tf.float64)
        if all(
            float(dtype.as_numpy_dtype(beta)) == precision.rounded(beta, dtype.name)
            for beta in (optimizer.beta_1, optimizer.beta_2)
        )
    ]


def has_kernel(variable, dtypes):
    """Whether a variable is one that the kernels take, in one of these dtypes."""
    return isinstance(variable, tf.Variable) and (
        variable.dtype in dtypes and hasattr(variable, "handle")
    )


class Scalars:
    """The scalars of one update in one dtype, computed from the betas as they are in that dtype."""

    def __init__(self, optimizer, update, dtype):
        self.dtype = dtype
        self.update = update
        self.beta_1 = precision.rounded(optimizer.beta_1, dtype)
        self.beta_2 = precision.rounded(optimizer.beta_2, dtype)
        self.root = update.bias_correction(self.beta_2, dtype) ** 0.5
        self.zero, self.one = self.tensor(0.0), self.tensor(1.0)
        self.missing = self.tensor((1 - self.beta_1) / self.beta_1)
        self._beta_1_tensor, self._beta_2_tensor = map(self.tensor, (self.beta_1, self.beta_2))

    def tensor(self, value):
        """A number, or a tensor with one element, as a scalar tensor of the dtype."""
        if isinstance(value, tf.Tensor):
            value = tf.cast(value, self.dtype)
            return value if value.shape.rank == 0 else tf.reshape(value, ())
        return tf.constant(value, self.dtype)

    def rate(self):
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
            beta1_power=self.zero,
            beta2_power=self.zero,
            lr=rate,
            beta1=self._beta_1_tensor if beta_1 is None else beta_1,
            beta2=self._beta_2_tensor,
            epsilon=epsilon,
            grad=gradient,
        )


class Push:
    """What a first moment is moved by before the kernel adds a gradient to it.

    Attributes:
        whole: The gradient `g_t`.
        ratio: `||s_t|| / ||g_t||`, a scalar tensor.
        alpha: What is to be taken off the moment, as a multiple of `g_t`, a scalar tensor.
        is_needed: Whether `ratio` is not 1, a boolean or a scalar tensor.
        is_beyond: Whether the square of the gradient may overflow, a boolean or a scalar tensor.
    """

    def __init__(self, whole, ratio, alpha, is_needed, is_beyond, scalars):
        self.whole = whole
        self.ratio = ratio
        self._alpha = alpha
        self._is_needed = is_needed
        self._is_beyond = is_beyond
        self._missing = scalars.missing

    def apply(self, m):
        """Moves the first moment; returns the gradient for the kernel, whose square is finite."""
        if tf.executing_eagerly():
            if self._is_beyond:
                return _push_and_clip(m.handle, self.whole, self.ratio, self._missing)
            if self._is_needed:
                _push(m.handle, self.whole, self._alpha)
            return self.whole
        # What graphs share must not be recorded with a debugger's operations in it.
        if is_small(self.whole) or private.watches_numbers():
            return _push_and_clip(m.handle, self.whole, self.ratio, self._missing)
        push = _push_if_needed(m.dtype)
        return push(
            m.handle,
            self.whole,
            self.ratio,
            self._alpha,
            self._missing,
            self._is_needed,
            self._is_beyond,
        )


def _push(handle, gradient, alpha):
    tf.raw_ops.ResourceApplyGradientDescent(var=handle, alpha=alpha, delta=gradient)


def _push_and_clip(handle, gradient, ratio, missing):
    limit = _SQUARABLE[gradient.dtype.name]
    clipped = tf.raw_ops.ClipByValue(t=gradient, clip_value_min=-limit, clip_value_max=limit)
    _push(handle, gradient * ratio - clipped, -missing)
    return clipped


@functools.cache
def _push_if_needed(dtype):
    """A function that all graphs share. It reads its arguments and nothing else."""

    def push(handle, gradient, ratio, alpha, missing, is_needed, is_beyond):
        def without_clipping():
            _push(handle, gradient, alpha)
            return gradient

        def move():
            return tf.cond(
                is_beyond,
                lambda: _push_and_clip(handle, gradient, ratio, missing),
                without_clipping,
            )

        return tf.cond(is_beyond | is_needed, move, lambda: gradient)

    scalar, boolean = tf.TensorSpec((), dtype), tf.TensorSpec((), tf.bool)
    signature = [tf.TensorSpec((), tf.resource), tf.TensorSpec(None, dtype)]
    return shared_function(push, [*signature, scalar, scalar, scalar, boolean, boolean])


def first_moment_pushes(gradients, ratios, norms, scalars):
    """A `Push` for each gradient, with what all of them need computed at once."""
    is_beyond = tf.math.is_finite(norms) & (norms > _SQUARABLE[scalars.dtype])
    if all(ratio is None for ratio in ratios):
        ratios = alphas = [scalars.one] * len(ratios)
        is_needed = tf.zeros_like(is_beyond)
    else:
        ratios = [scalars.one if ratio is None else ratio for ratio in ratios]
        vector = tf.stack(ratios)
        alphas = tf.unstack((1 - vector) * scalars.missing)
        is_needed = vector != 1
    # Eagerly they are looked at here, at once.
    listed = tf.unstack if not tf.executing_eagerly() else lambda flags: flags.numpy().tolist()
    parts = zip(gradients, ratios, alphas, listed(is_needed), listed(is_beyond), strict=True)
    return [Push(*part, scalars) for part in parts]


def adam(optimizer, scalars, pushes, variables, states):
    """AdamNorm's algorithm."""
    rate, epsilon = scalars.rate(), scalars.epsilon(optimizer)
    moments = states["momentum"], states["velocity"]
    for push, variable, m, v in zip(pushes, variables, *moments, strict=True):
        scalars.adam(variable, m, v, push.apply(m), rate, epsilon)


def radam(optimizer, scalars, pushes, variables, states):
    """Radam's algorithm: while it is not adaptive the kernel only updates the moments."""
    step = Step(scalars.update, None, scalars.dtype, None, None)
    rate, adaptive = optimizer.rectified_rate(step)
    adaptive_rate = scalars.tensor(rate * adaptive)
    epsilon = scalars.tensor(optimizer.epsilon)
    moments = states["momentum"], states["velocity"]
    for push, variable, m, v in zip(pushes, variables, *moments, strict=True):
        scalars.adam(variable, m, v, push.apply(m), adaptive_rate, epsilon)

    def descend():
        alpha = scalars.tensor(rate)
        for variable, m in zip(variables, states["momentum"], strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=alpha, delta=m.read_value()
            )

    _run_if(adaptive <= 0, descend)


def adabelief(optimizer, scalars, pushes, variables, states):
    """AdaBelief's algorithm: the kernel gets `g_t - m_t`, after the first moment has moved."""
    rate, epsilon = scalars.rate(), scalars.epsilon(optimizer)
    limit = _SQUARABLE[scalars.dtype]
    _average_first_moments(states["momentum"], pushes, scalars)
    moments = states["momentum"], states["velocity"]
    for push, variable, m, v in zip(pushes, variables, *moments, strict=True):
        surprise = tf.raw_ops.ClipByValue(
            t=push.whole - m, clip_value_min=-limit, clip_value_max=limit
        )
        scalars.adam(variable, m, v, surprise, rate, epsilon, beta_1=scalars.one)


def _average_first_moments(moments, pushes, scalars):
    """`m <- beta_1 * m + (1 - beta_1) * ratio * g`, in one pass where the device has the kernel."""
    ratios = tf.stack([push.ratio for push in pushes])
    held = tf.minimum(ratios, _LARGEST_INVERTIBLE[scalars.dtype])
    alphas = tf.unstack(-scalars.missing * held)
    inverses = tf.unstack(-1 / held)
    for m, push, alpha, inverse in zip(moments, pushes, alphas, inverses, strict=True):
        if "CPU" in m.device:
            # (m - alpha * g) / (1 + alpha * l2) with 1 + alpha * l2 = 1 / beta_1
            tf.raw_ops.ResourceApplyProximalGradientDescent(
                var=m.handle, alpha=alpha, l1=scalars.zero, l2=inverse, delta=push.whole
            )
        else:
            m.assign(scalars.beta_1 * m - (scalars.beta_1 * alpha) * push.whole)

    def add_the_rest():
        rests = tf.unstack((scalars.beta_1 - 1) * (ratios - held))
        for m, push, rest in zip(moments, pushes, rests, strict=True):
            _push(m.handle, push.whole, rest)

    _run_if(tf.reduce_any(ratios > held), add_the_rest)


def _run_if(condition, action):
    """Runs an action on variables where a boolean, or a boolean scalar tensor, is true."""
    if tf.executing_eagerly() or not isinstance(condition, tf.Tensor):
        if condition:
            action()
        return

    def run():
        action()
        return tf.constant(True)

    tf.cond(condition, run, lambda: tf.constant(False))


def diffgrad(optimizer, scalars, pushes, variables, states):
    """diffGrad's algorithm: the kernel writes its step where the previous gradient was."""
    rate, epsilon = scalars.rate(), scalars.epsilon(optimizer)
    of_each = states["momentum"], states["velocity"], states["previous_gradient"]
    for push, variable, m, v, previous in zip(pushes, variables, *of_each, strict=True):
        change = tf.abs(push.whole - previous)
        previous.assign(tf.zeros_like(push.whole))
        scalars.adam(previous, m, v, push.apply(m), rate, epsilon)
        # The gradient of softplus is a sigmoid: this is `step * sigmoid(change)` in one operation.
        step = tf.raw_ops.SoftplusGrad(gradients=previous.read_value(), features=change)
        variable.assign_add(step)
        previous.assign(push.whole)


# By the class that writes the algorithm.
FORMS = {
    ("keras_adanorm.adam_norm", "AdamNorm"): adam,
    ("keras_adanorm.radam", "Radam"): radam,
    ("keras_adanorm.adabelief", "AdaBelief"): adabelief,
    ("keras_adanorm.diff_grad", "DiffGrad"): diffgrad,
}
