"""torch: taken for every update, unless `torch.compile` records it.

What an algorithm sees are torch's own tensors. It is run

- for all small variables of one kind together, as one flat tensor that their values are copied into
  and back from, if it is elementwise: a GPU is sent few operations, and Python runs few lines;
- for a large variable in flat parts, if it is elementwise and on a CPU: what one operation writes
  is still in the cache when the next one reads it;
- for any other variable alone, in its own shape.

Averages and the variable are changed in place where nothing can tell: see `TorchStep`.
"""

import math
import numbers
from typing import Any, NamedTuple

import numpy as np
import torch

from keras_adanorm.engine import precision, private, torch_kernels, ways
from keras_adanorm.engine.norms import l2_norms
from keras_adanorm.engine.step import Step, Update

# Elements per thread in a part of a large variable on a CPU, and in a group of small ones: the half
# dozen tensors of an algorithm then fit a second-level cache.
PART_PER_THREAD = 2**17
# Variables up to this size are put together. Beyond it the copies cost more than they save.
SMALL = 2**15
GPU_SMALL = 2**16
GPU_GROUP = 2**22

_WEIGHT = "weight"  # stands for the variable among the names of its state, as no identifier


def update_in_groups(optimizer, gradients, variables, learning_rate):
    """Updates variables, by a kernel or small ones of one dtype and device together."""
    if torch.compiler.is_compiling():
        ways.one_by_one(optimizer, gradients, variables, learning_rate)
        return
    update = Update(learning_rate, optimizer.iterations)
    weights = private.tensors_of(variables)
    gradients = own_gradients(gradients, weights)
    form = torch_kernels.form_for(optimizer, weights)
    averages, norms = getattr(optimizer, "norm_vector", None), None
    if averages is not None or form is not None:
        norms = l2_norms(gradients, "float32" if averages is None else averages.dtype)
    batch = Batch(
        weights,
        gradients,
        optimizer.norm_ratios(gradients, variables, norms),
        are_bounded(norms, weights),
        ways.slots_of(optimizer, variables),
    )
    left = range(len(weights))
    if form is not None:
        done = torch_kernels.update_by_kernel(form, optimizer, update, items_of(batch))
        left = [i for i in left if i not in done]
    update_without_kernel(optimizer, update, batch, left)


class Batch(NamedTuple):
    """The variables of an update: tensors and scalars by position, and their state."""

    weights: list[Any]
    gradients: list[Any]
    ratios: list[Any]
    bounded: list[bool]
    slots: dict[str, list[Any]]

    def states(self, name, positions):
        """The tensors of a state."""
        return private.tensors_of([self.slots[name][i] for i in positions])


def items_of(batch):
    """A dict of position to `Item` of the variables that the kernel is to update."""
    chosen = [
        i
        for i, weight in enumerate(batch.weights)
        if weight.numel() >= torch_kernels.SMALLEST and batch.bounded[i]
    ]
    states = [batch.states(name, chosen) for name in batch.slots]
    items, size = {}, part_size()
    for i, *state in zip(chosen, *states, strict=True):
        tensors = (batch.weights[i], batch.gradients[i].contiguous(), *state)
        if torch_kernels.is_fit(tensors):
            ratio = 1.0 if batch.ratios[i] is None else float(batch.ratios[i])
            items[i] = torch_kernels.Item(tensors, ratio, size)
    return items


def update_without_kernel(optimizer, update, batch, positions):
    """Updates variables by their algorithm: groups of small ones, parts of large ones."""
    weights, gradients, ratios, bounded, _ = batch
    groups, alone = groups_of(weights, positions, optimizer.elementwise)
    for group in groups:
        memory = Group([weights[i] for i in group], lambda name, g=group: batch.states(name, g))
        gradient = memory.join([gradients[i] for i in group])
        ratio = memory.spread([ratios[i] for i in group])
        run(optimizer, update, gradient, ratio, memory, all(bounded[i] for i in group))
    for i in alone:
        weight, gradient = weights[i], gradients[i]
        memory = Single(weight, lambda name, i=i: batch.states(name, [i])[0])
        size = part_size() if optimizer.elementwise and weight.device.type == "cpu" else math.inf
        if weight.numel() > size and memory.is_contiguous(optimizer.slots):
            parts = gradient.reshape(-1).split(size)
            for k, part in enumerate(parts):
                run(optimizer, update, part, ratios[i], Part(memory, k, size), bounded[i])
        else:
            run(optimizer, update, gradient, ratios[i], memory, bounded[i])


def run(optimizer, update, gradient, ratio, memory, is_bounded=False):
    """Runs the algorithm once, then stores what it has changed."""
    step = TorchStep(update, gradient, memory, ratio, is_bounded)
    optimizer.algorithm(step)
    step.finish()


def are_bounded(norms, weights):
    """For each variable whether its gradient's norm, if known, says that no square overflows."""
    if norms is None or norms.device.type != "cpu":
        return [False] * len(weights)
    return (norms < precision.square_limit("float32")).tolist()


def part_size():
    """The number of elements in a part of a large variable."""
    return PART_PER_THREAD * min(torch.get_num_threads(), 16)


def groups_of(weights, positions, elementwise):
    """Lists of positions of variables to be updated together, and positions of the others."""
    if not elementwise:
        return [], positions
    kinds, alone = {}, []
    cpu_group = part_size()
    for i in positions:
        weight = weights[i]
        on_cpu = weight.device.type == "cpu"
        size = weight.numel()
        if size > (SMALL if on_cpu else GPU_SMALL) or not weight.is_contiguous():
            alone.append(i)
            continue
        groups = kinds.setdefault((weight.dtype, weight.device), [])
        if not groups or groups[-1][1] + size > (cpu_group if on_cpu else GPU_GROUP):
            groups.append([[], 0])
        groups[-1][0].append(i)
        groups[-1][1] += size
    groups = []
    for kind in kinds.values():
        for group, _ in kind:
            if len(group) > 1:
                groups.append(group)
            else:
                alone += group
    return groups, alone


def own_gradients(gradients, weights):
    """The gradients in their compute dtypes and in the variables' shapes.

    One that lies in the memory of a variable, which is about to change, is copied.
    """
    addresses = {address(weight) for weight in weights}
    result = []
    for gradient, weight in zip(gradients, weights, strict=True):
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        if gradient.layout != torch.strided:
            gradient = precision.dense(gradient)
        if gradient.dtype != dtype:
            gradient = gradient.to(dtype)
        elif address(gradient) in addresses:
            gradient = gradient.clone()
        same = gradient.shape == weight.shape
        result.append(gradient if same else gradient.expand(weight.shape))
    return result


class Single:
    """The memory of one variable and its state, in their own shape.

    Args:
        weight: The variable, a torch tensor.
        state: A function from a name to the tensor of that state.
    """

    def __init__(self, weight, state):
        self._weight = weight
        self._state = state
        self._tensors = {}
        self.dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32

    def tensor(self, name):
        """The tensor in which a state or the variable is kept."""
        if name not in self._tensors:
            self._tensors[name] = self._weight if name is _WEIGHT else self._state(name)
        return self._tensors[name]

    def is_contiguous(self, slots):
        """Whether the variable and its state can be taken as flat tensors of one length."""
        tensors = [self.tensor(name) for name in (_WEIGHT, *slots)]
        return all(t.is_contiguous() and t.numel() == self._weight.numel() for t in tensors)

    def load(self, name):
        """A state or the variable, the variable in its compute dtype."""
        tensor = self.tensor(name)
        return tensor.to(self.dtype) if name is _WEIGHT else tensor

    def store(self, name, value):
        """Keeps what `load` gave and was changed in place, or another tensor."""
        tensor = self.tensor(name)
        if value is not tensor:
            tensor.copy_(value)

    def separate(self, values):
        """The values, copied where they lie in the memory that is about to change."""
        addresses = {address(self.tensor(name)) for name in (_WEIGHT, *values)}
        return {n: v.clone() if address(v) in addresses else v for n, v in values.items()}


class Part(Single):
    """The memory of one part of a large variable, flat."""

    def __init__(self, whole, number, size):
        self._whole = whole
        self._slice = slice(number * size, (number + 1) * size)
        self._tensors = {}
        self.dtype = whole.dtype

    def tensor(self, name):
        """The part of the tensor in which a state or the variable is kept."""
        if name not in self._tensors:
            self._tensors[name] = self._whole.tensor(name).view(-1)[self._slice]
        return self._tensors[name]


class Group:
    """The memory of several contiguous variables as one flat tensor, into which they are copied.

    Args:
        weights: The variables, torch tensors.
        states: A function from a name to the tensors of that state.
    """

    def __init__(self, weights, states):
        self._weights = weights
        self._states = states
        self._tensors = {}
        self._sizes = [weight.numel() for weight in weights]
        self.dtype = torch.float64 if weights[0].dtype == torch.float64 else torch.float32

    def join(self, tensors):
        """The tensors as a flat one."""
        return torch.cat([t if t.ndim == 1 else t.reshape(-1) for t in tensors])

    def spread(self, ratios):
        """The scalars as a flat tensor with each one repeated for its variable, or `None`."""
        if all(ratio is None for ratio in ratios):
            return None
        one = next(ratio for ratio in ratios if ratio is not None)
        ratios = torch.stack([torch.ones_like(one) if r is None else r for r in ratios])
        if ratios.device.type == "cpu" and bool((ratios == 1).all()):
            return None
        if ratios.device.type == "cpu":  # torch's own function would wake up all threads
            return torch.from_numpy(np.repeat(ratios.numpy(), self._sizes))
        sizes = torch.tensor(self._sizes, device=ratios.device)
        return torch.repeat_interleave(ratios, sizes, output_size=sum(self._sizes))

    def load(self, name):
        """A state or the variables in their compute dtype, a copy."""
        flat = self.join(self._targets(name))
        return flat.to(self.dtype) if name is _WEIGHT else flat

    def store(self, name, value):
        """Copies a flat tensor back."""
        torch._foreach_copy_(self._targets(name), value.expand(sum(self._sizes)).split(self._sizes))

    def separate(self, values):
        """The values, which never lie in the memory that is about to change."""
        return values

    def _targets(self, name):
        """Flat views of what is kept under a name."""
        if name not in self._tensors:
            tensors = self._weights if name is _WEIGHT else self._states(name)
            self._tensors[name] = [t if t.ndim == 1 else t.view(-1) for t in tensors]
        return self._tensors[name]


class TorchStep(Step):
    """One step, which changes averages and the variable in place where nothing can tell.

    A tensor that the algorithm was given stays as it is while the algorithm runs: the state is only
    changed in place if it has not been read in this step, and the variable after the algorithm has
    ended.
    """

    def __init__(self, update, gradient, memory, ratio, is_bounded=False):
        super().__init__(
            update,
            gradient,
            str(memory.dtype).removeprefix("torch."),
            self._load,
            lambda: self._load(_WEIGHT),
            ratio,
        )
        self._memory = memory
        self._loaded = {}  # what the algorithm has seen, and must not change any more
        self._moved = []  # states that were changed in place
        self._bounded = gradient if is_bounded else None  # none of its squares overflows
        self._quotient = None
        self._corrected = None, None, None  # a gradient, its ratio, and their product
        self._on_cpu = gradient.device.type == "cpu"

    def _load(self, name):
        if name not in self._loaded:
            self._loaded[name] = self._memory.load(name)
        return self._loaded[name]

    @property
    def corrected_gradient(self):
        gradient, ratio, product = self._corrected
        if self.gradient is not gradient or self.ratio is not ratio:
            gradient, ratio = self.gradient, self.ratio
            is_one = ratio is None or (self._on_cpu and ratio.ndim == 0 and float(ratio) == 1)
            product = gradient if is_one else gradient * ratio
            self._corrected = gradient, ratio, product
        return product

    def average(self, name, value, decay):
        state = self._to_move(name, value)
        if state is None:
            return super().average(name, value, decay)
        decay = precision.rounded(decay, self.dtype)
        return state.mul_(decay).add_(value, alpha=1 - decay)

    def average_of_square(self, name, value, decay):
        state = self._to_move(name, value)
        if state is None:
            return super().average_of_square(name, value, decay)
        held = self.held_for_square(value)
        decay = precision.rounded(decay, self.dtype)
        return state.mul_(decay).addcmul_(held, held, value=1 - decay)

    def held_for_square(self, value):
        """The value, held where its square would leave the range of the dtype."""
        if value is self._bounded:
            return value
        limit = precision.square_limit(self.dtype)
        return value.clamp(-limit, limit)

    def root(self, x, floor):
        root = torch.sqrt(x)
        if isinstance(floor, numbers.Real) and floor == 0:
            return root.masked_fill_(root == 0, precision.largest(self.dtype))
        return root.add_(self._scalar(floor))

    def choose(self, condition, if_true, if_false):
        if self._on_cpu and not isinstance(
            condition, bool
        ):  # where a look at a number costs nothing
            return if_true() if bool(condition) else if_false()
        return super().choose(condition, if_true, if_false)

    def _scalar(self, value):
        """A scalar as what torch adds fastest: on a CPU a number of Python's."""
        return float(value) if self._on_cpu and _is_scalar(value) else value

    def _to_move(self, name, value):
        """The tensor of a state that may be changed in place by a value, or `None`."""
        if name in self._loaded or name in self.written or not isinstance(value, torch.Tensor):
            return None
        state = self._load(name)  # from now on the algorithm has seen it
        if state.dtype != value.dtype or state.shape != value.shape:
            return None
        self._moved.append(name)
        return state

    def descend(self, delta):
        self._take_in_quotient()
        super().descend(delta)

    def descend_quotient(self, rate, numerator, denominator):
        if self._quotient is None and self.delta is None and self.new_weight is None:
            self._quotient = rate, numerator, denominator
        else:
            self._take_in_quotient()
            super().descend_quotient(rate, numerator, denominator)

    def set_weight(self, value):
        self._quotient = None
        super().set_weight(value)

    def _take_in_quotient(self):
        if self._quotient is not None:
            quotient, self._quotient = self._quotient, None
            super().descend_quotient(*quotient)

    def finish(self):
        """Changes the variable and its state as the algorithm has said."""
        written = self._memory.separate(self.written) if self.written else {}
        self._move_weight()
        for name in self._moved:
            if name not in written:
                self._memory.store(name, self._loaded[name])
        for name, value in written.items():
            self._memory.store(name, value)

    def _move_weight(self):
        if self.new_weight is not None:
            new = self.new_weight if self.delta is None else self.new_weight - self.delta
            self._memory.store(_WEIGHT, new)
            return
        if self._quotient is None and self.delta is None:
            return
        weight = self._load(_WEIGHT)
        if self._quotient is None:
            weight.sub_(self._apart(self.delta, weight))
        else:
            rate, numerator, denominator = self._quotient
            numerator, denominator = (self._apart(x, weight) for x in (numerator, denominator))
            if self._on_cpu and not isinstance(denominator, torch.Tensor):
                weight.add_(numerator, alpha=-float(rate) / denominator)
            elif self._on_cpu and _is_scalar(rate):
                weight.addcdiv_(numerator, denominator, value=-float(rate))
            else:
                weight.sub_(rate * (numerator / denominator))
        self._memory.store(_WEIGHT, weight)

    def _apart(self, value, weight):
        """The value, copied if it lies in the memory of the variable that is about to change."""
        is_inside = isinstance(value, torch.Tensor) and address(value) == address(weight)
        return value.clone() if is_inside else value


def _is_scalar(value):
    return not isinstance(value, torch.Tensor) or value.ndim == 0


def address(tensor):
    """Where the memory begins that a tensor is a part of, in less time than its storage takes."""
    return tensor.data_ptr() - tensor.storage_offset() * tensor.itemsize
