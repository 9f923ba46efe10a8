"""Lists of tensors that compute like one: torch's foreach operations behind Python's operators."""

import copy
import types

import torch

from keras_adanorm import precision
from keras_adanorm.step import Step

# Lists are updated in groups of at most this many elements: their intermediate results then stay in
# the cache of a processor, and use little memory on a GPU. A larger tensor is updated in parts.
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
        self._norms = None

    def norm(self):
        """The norms of the gradients, a vector."""
        if self._norms is None:
            self._norms = super().norm()
        return self._norms

    def in_parts(self, size):
        """This step, or the steps of a large variable's parts of `size` elements, with its norm."""
        if len(self._variables) > 1 or self._variables[0].numel() <= size:
            return [self]
        scalars = {name: self._state[name] for name in self._optimizer.scalar_slots}
        names = [name for name in self._state if name not in scalars]
        whole = [self._variables[0], *(self._state[name][0] for name in names)]
        if not all(tensor.is_contiguous() for tensor in whole):
            return [self]
        whole.insert(0, self.gradient.tensors[0])
        steps = []
        for gradient, variable, *states in zip(
            *(tensor.reshape(-1).split(size) for tensor in whole), strict=True
        ):
            part = copy.copy(self)
            part.gradient = TensorList([gradient])
            part.norm = self.norm
            part._variables = [variable]
            part._state = {name: [state] for name, state in zip(names, states, strict=True)}
            # Every part moves the scalars on from where they stand now; the last one keeps them.
            part._state |= {name: [scalar.clone()] for name, (scalar,) in scalars.items()}
            steps.append(part)
        steps[-1]._state |= scalars
        return steps

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
        for part in step.in_parts(_group_size(tensors[group[0]])):
            optimizer.update_step(part.gradient, part, learning_rate)


def _group_size(tensor):
    return _GROUP_SIZE["cpu" if tensor.device.type == "cpu" else "other"]


def _groups(gradients, tensors):
    """Lists of positions: tensors of one dtype on one device, of a bounded size together."""
    kinds = {}
    for i, (gradient, tensor) in enumerate(zip(gradients, tensors, strict=True)):
        kinds.setdefault((tensor.dtype, gradient.dtype, tensor.device), []).append(i)
    for positions in kinds.values():
        limit = _group_size(tensors[positions[0]])
        group, size = [], 0
        for i in positions:
            if group and size + tensors[i].numel() > limit:
                yield group
                group, size = [], 0
            group.append(i)
            size += tensors[i].numel()
        yield group
