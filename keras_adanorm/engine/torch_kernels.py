"""torch on a CPU: the fused kernel that torch has for Adam.

Taken by `torch_groups.py` for the algorithms in `FORMS` as this package has them, for large
contiguous variables of float32 and float64 on a CPU, whose gradients can be squared without an
overflow.

The kernel updates both moments and the variable in one pass over memory. It is given `g_t`. The
first moment is to average `s_t = ratio * g_t`, so where `ratio` is not 1 the moment is first moved
by what is missing,

    m_{t-1}  <-  m_{t-1} + (1 - beta_1) / beta_1 * (ratio - 1) * g_t
"""

from typing import Any, NamedTuple

import torch

from keras_adanorm.engine import precision, private
from keras_adanorm.engine.forms import form_of
from keras_adanorm.engine.step import Step

# A variable with fewer elements is updated together with others: each call of the kernel wakes up
# all threads, which takes longer than such an update.
SMALLEST = 2**12
# What the kernel may be given: it trusts that memory is as long as it is said to be.
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DTYPES = {torch.float32: "float32", torch.float64: "float64"}
# The kernel corrects for bias by the number of the step. After so many steps it changes nothing.
_MANY = 2.0**62
# A decay with which the kernel hardly moves the first moment. With 1 it would divide by 0.
_NEAR_1 = 1 - 2.0**-20


class Item(NamedTuple):
    """A variable.

    Attributes:
        tensors: The variable, its gradient and its state in the order of `slots`: contiguous, of
            one shape and dtype.
        ratio: `||s_t|| / ||g_t||`, a number.
        size: The number of elements of a part. All operations are done for one part before the
            next: what one has written is still in the cache when another reads it.
    """

    tensors: tuple[Any, ...]
    ratio: float
    size: int

    def parts(self):
        """For each part of the variable its tensors, flat; the whole of a small variable."""
        if self.tensors[0].numel() <= self.size:
            return [self.tensors]
        flat = (tensor.view(-1).split(self.size) for tensor in self.tensors)
        return zip(*flat, strict=True)


class Kernel:
    """torch's kernel with the scalars of one update in one dtype.

    Attributes:
        beta_1: The decay of the first moment as it is in the dtype.
        rate: What the quotient of the moments is multiplied by, a number.
    """

    def __init__(self, optimizer, update, dtype):
        step = Step(update, None, dtype, None, None)
        self.dtype = dtype
        self.beta_1 = precision.rounded(optimizer.beta_1, dtype)
        self.rate, epsilon = _rate_and_epsilon(optimizer, step)
        self._steps = torch.tensor(_MANY, dtype=torch.float32, device="cpu")
        self._constants = {
            "beta2": precision.rounded(optimizer.beta_2, dtype),
            "eps": epsilon,
            "weight_decay": 0.0,
            "amsgrad": False,
            "maximize": False,
        }

    def __call__(self, weights, gradients, first, second, rate=None, beta_1=None):
        """Moves the moments on, then takes `rate * first / (sqrt(second) + epsilon)` off."""
        private.torch_adam()(
            weights,
            gradients,
            first,
            second,
            [],
            [self._steps] * len(weights),
            lr=self.rate if rate is None else rate,
            beta1=self.beta_1 if beta_1 is None else beta_1,
            **self._constants,
        )

    def push(self, gradient, first, ratio):
        """Moves the first moment by what is missing; see the head of this file."""
        first.add_(gradient, alpha=(1 - self.beta_1) / self.beta_1 * (ratio - 1))


def _rate_and_epsilon(optimizer, step):
    """The rate is `None` while Radam takes no adaptive step."""
    if hasattr(optimizer, "rectified_rate"):
        rate, adaptive = step.once(optimizer.rectified_rate)
        return (float(rate) if adaptive > 0 else None), optimizer.epsilon
    rate, scale = step.once(optimizer.adaptive_rate)
    scale = 1.0 if optimizer.epsilon_hat else float(scale)
    return float(rate), scale * optimizer.epsilon


def form_for(optimizer, weights):
    """The function that runs this optimizer's algorithm by the kernel, `None` if there is none."""
    if private.torch_adam() is None or not all(weight.is_cpu for weight in weights):
        return None
    return form_of(optimizer, FORMS)


def is_fit(tensors):
    """Whether the kernel may be given these tensors of one variable. It looks at nothing itself."""
    weight = tensors[0]
    dtype, shape = weight.dtype, weight.shape
    return dtype in _DTYPES and all(
        type(t) in _PLAIN
        and t.is_cpu
        and t.dtype == dtype
        and t.shape == shape
        and t.is_contiguous()
        for t in tensors
    )


def update_by_kernel(form, optimizer, update, items):
    """Updates variables by the kernel, if it can.

    Args:
        form: What `form_for` found.
        optimizer: The optimizer.
        update: The `Update`.
        items: A dict of position to `Item`.

    Returns:
        The positions of the variables that were updated.
    """
    done = set()
    for dtype, name in _DTYPES.items():
        chosen = {i: item for i, item in items.items() if item.tensors[0].dtype == dtype}
        kernel = Kernel(optimizer, update, name) if chosen else None
        if kernel is not None and kernel.rate is not None:
            form(kernel, chosen.values())
            done.update(chosen)
    return done


def adam(kernel, items):
    """AdamNorm's and Radam's algorithm."""
    whole = []
    for item in items:
        if item.ratio == 1:
            whole.append(item.tensors)
            continue
        for part in item.parts():
            kernel.push(*part[1:3], item.ratio)
            kernel(*([tensor] for tensor in part))
    if whole:
        kernel(*(list(tensors) for tensors in zip(*whole, strict=True)))


def adabelief(kernel, items):
    """AdaBelief's algorithm: the kernel is given the surprise as the gradient.

    Its second moment is then the right one. Its first moment would move towards the surprise, by
    the small share `1 - decay`. So it is given a copy of the first moment from which this has been
    taken off, and ends at `decay` times the right one.
    """
    decay, limit = _NEAR_1, precision.square_limit(kernel.dtype)
    share = (1 - decay) / decay
    for item in items:
        for weight, gradient, m, v in item.parts():
            m.mul_(kernel.beta_1).add_(gradient, alpha=(1 - kernel.beta_1) * item.ratio)
            surprise = torch.sub(gradient, m).clamp_(-limit, limit)
            first = torch.sub(m, surprise, alpha=share)
            kernel([weight], [surprise], [first], [v], rate=kernel.rate / decay, beta_1=decay)


def diffgrad(kernel, items):
    """diffGrad's algorithm: the kernel starts at 0, and its step is multiplied by the friction."""
    for item in items:
        for weight, gradient, m, v, previous in item.parts():
            friction = previous.sub_(gradient).abs_().sigmoid_()
            if item.ratio != 1:
                kernel.push(gradient, m, item.ratio)
            move = torch.zeros_like(weight)
            kernel([move], [gradient], [m], [v])
            weight.addcmul_(friction, move)
            previous.copy_(gradient)


# By the class that writes the algorithm.
FORMS = {
    ("keras_adanorm.adam_norm", "AdamNorm"): adam,
    ("keras_adanorm.radam", "Radam"): adam,
    ("keras_adanorm.adabelief", "AdaBelief"): adabelief,
    ("keras_adanorm.diff_grad", "DiffGrad"): diffgrad,
}
