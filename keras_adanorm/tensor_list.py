"""Lists of tensors that compute like one: torch's foreach operations behind Python's operators."""

import types

import torch

from keras_adanorm import precision
from keras_adanorm.step import Step

# Lists are updated in groups of at most this many elements: their intermediate results then stay in
# the cache of a processor, and use little memory on a GPU. A larger tensor is a group of its own.
_GROUP_SIZE = {"cpu": 2**18, "other": 2**26}


class TensorList:
    """Tensors on which an operator works one by one, as torch's foreach operations do.

    The other operand is a `TensorList` of the same length, a number, a scalar tensor, or a vector
    with one number per tensor.
    """

    def __init__(self, tensors):
        self.tensors = list(tensors)  # from a list: torch.compile fails on a generator

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return NotImplemented  # `tensor * tensor_list` is for the methods below

    def _apply(self, operation, other):
        if isinstance(other, TensorList):
            other = other.tensors
        elif isinstance(other, torch.Tensor) and other.ndim == 1:
            other = other.unbind()
        return TensorList(operation(self.tensors, other))

    def __add__(self, other):
        return self._apply(torch._foreach_add, other)

    def __sub__(self, other):
        return self._apply(torch._foreach_sub, other)

    def __mul__(self, other):
        return self._apply(torch._foreach_mul, other)

    def __truediv__(self, other):
        return self._apply(torch._foreach_div, other)

    def __gt__(self, number):
        return [tensor > number for tensor in self.tensors]

    __radd__ = __add__
    __rmul__ = __mul__

    def l2_norms(self):
        """The norms of the tensors, a vector; free of overflow and underflow as `l2_norm` is."""
        tensors = self.tensors
        largest = precision.largest(str(tensors[0].dtype).removeprefix("torch."))
        if tensors[0].device.type == "cuda" and tensors[0].dtype == torch.float32:
            norms = torch.stack(torch._foreach_norm(tensors, dtype=torch.float64))
            held = torch.where(norms.isfinite(), norms.clamp(max=largest), norms)
            return held.to(torch.float32)
        norms = torch.stack(torch._foreach_norm(tensors))
        limits = torch.finfo(norms.dtype)
        unsafe = (norms < limits.tiny**0.5 / limits.eps) | ~norms.isfinite()
        for i in unsafe.nonzero().flatten().tolist():
            if tensors[i].numel() == 0:
                continue
            scale = tensors[i].abs().max()
            if scale > 0 and scale.isfinite():
                norms[i] = (scale * torch.linalg.vector_norm(tensors[i] / scale)).clamp(max=largest)
        return norms


def _where(conditions, x, other):
    pairs = zip(conditions, x.tensors, strict=True)
    return TensorList([torch.where(condition, tensor, other) for condition, tensor in pairs])


FOREACH_OPS = types.SimpleNamespace(
    abs=lambda x: TensorList(torch._foreach_abs(x.tensors)),
    minimum=lambda x, number: TensorList(torch._foreach_clamp_max(x.tensors, number)),
    sigmoid=lambda x: TensorList(torch._foreach_sigmoid(x.tensors)),
    sqrt=lambda x: TensorList(torch._foreach_sqrt(x.tensors)),
    where=_where,
)


class ListStep(Step):
    """One step of a list of variables of one dtype on one device.

    Here `variables`, `gradients` and each entry of `states` are lists of torch's own tensors.
    """

    ops = FOREACH_OPS

    def __init__(self, optimizer, gradients, variables, learning_rate, iterations, states):
        super().__init__(optimizer, gradients[0], variables[0], learning_rate, iterations, states)
        dtype = getattr(torch, self.dtype)
        self.gradient = TensorList([gradient.to(dtype) for gradient in gradients])
        self._variables = variables

    def read(self, name):
        if name in self._optimizer.scalar_slots:
            return torch.stack(self._state[name])
        return TensorList(self._state[name])

    def write(self, name, value):
        values = value.unbind() if isinstance(value, torch.Tensor) else value.tensors
        torch._foreach_copy_(self._state[name], values)

    def average(self, name, value, decay):
        average = self._state[name]
        torch._foreach_mul_(average, decay)
        torch._foreach_add_(average, value.tensors, alpha=1 - decay)
        return TensorList(average)

    def descend(self, delta):
        if self._variables[0].dtype == delta.tensors[0].dtype:
            torch._foreach_sub_(self._variables, delta.tensors)
        else:
            pairs = zip(self._variables, delta.tensors, strict=True)
            torch._foreach_copy_(self._variables, [w.to(d.dtype) - d for w, d in pairs])


def update_in_groups(optimizer, gradients, variables, learning_rate):
    """Calls `update_step` for groups of variables of one dtype on one device."""
    slots = optimizer._slots
    indices = [optimizer._get_variable_index(variable) for variable in variables]
    tensors = [variable.value for variable in variables]
    for group in _groups(gradients, tensors):
        step = ListStep(
            optimizer,
            [gradients[i] for i in group],
            [tensors[i] for i in group],
            learning_rate,
            optimizer.iterations,
            {name: [slots[name][indices[i]].value for i in group] for name in slots},
        )
        optimizer.update_step(step.gradient, step, learning_rate)


def _groups(gradients, tensors):
    """Lists of positions: tensors of one dtype on one device, of a bounded size together."""
    kinds = {}
    for i, (gradient, tensor) in enumerate(zip(gradients, tensors, strict=True)):
        kinds.setdefault((tensor.dtype, gradient.dtype, tensor.device), []).append(i)
    for (_, _, device), positions in kinds.items():
        limit = _GROUP_SIZE["cpu" if device.type == "cpu" else "other"]
        group, size = [], 0
        for i in positions:
            if group and size + tensors[i].numel() > limit:
                yield group
                group, size = [], 0
            group.append(i)
            size += tensors[i].numel()
        yield group
