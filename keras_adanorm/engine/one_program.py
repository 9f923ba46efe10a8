"""JAX compiles all updates as one program: taken inside of `jax.jit` for one device.

On a GPU each kernel costs its launch, so small variables of one shape are updated as one tensor.
On a TPU and a CPU that would be copies, and each variable is updated by itself.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from keras_adanorm import execution
from keras_adanorm.engine import precision, ways
from keras_adanorm.engine.norms import l2_norms
from keras_adanorm.engine.stacks import MAX_OPERANDS, SMALL, positions_by_kind
from keras_adanorm.engine.step import Step, Update

# A gradient with fewer elements is copied on a CPU where it is kept.
_COPIED_ON_A_CPU = 2**18


def update_as_one_program(optimizer, gradients, variables, learning_rate):
    """Updates variables, on a GPU small ones of one kind together."""
    target = execution.target()
    update = Update(learning_rate, optimizer.iterations)
    gradients = [ways.in_compute_dtype(g, v) for g, v in zip(gradients, variables, strict=True)]
    norms = None
    if getattr(optimizer, "norm_vector", None) is not None:
        norms = l2_norms(gradients, ways.variable_dtype(optimizer.norm_vector))
    ratios = optimizer.norm_ratios(gradients, variables, norms)
    # What XLA does not know to be false.
    never = precision.as_tensor(optimizer.iterations) < 0
    states = [optimizer.state_of(variable) for variable in variables]
    kinds = [
        _kind(optimizer, v, state, ratio is None, i)
        for i, (v, state, ratio) in enumerate(zip(variables, states, ratios, strict=True))
    ]
    longest = MAX_OPERANDS // (2 + len(optimizer.slots))
    small = SMALL if target == "gpu" else 0
    for group in positions_by_kind(kinds, small, longest):
        bundle = _Bundle(
            optimizer,
            [variables[i] for i in group],
            [states[i] for i in group],
            never,
            target,
        )
        bundle.run(update, [gradients[i] for i in group], [ratios[i] for i in group])


def _kind(optimizer, variable, state, is_plain, position):
    """What variables must have in common to be updated as one tensor; their own position if not."""
    shape, dtype = tuple(variable.shape), ways.variable_dtype(variable)
    is_even = all(
        tuple(slot.shape) == shape and ways.variable_dtype(slot) == dtype for slot in state.values()
    )
    fits = optimizer.elementwise and is_even and dtype == precision.compute_dtype(dtype)
    # An empty variable has nothing to put together.
    alone = None if fits and math.prod(shape) > 0 else position
    return shape, dtype, is_plain, alone


class _Bundle:
    """One variable, or several of one kind with their values stacked."""

    def __init__(self, optimizer, variables, states, never, target):
        self._optimizer = optimizer
        self._variables = variables
        self._states = states
        self._never = never
        self._target = target

    def run(self, update, gradients, ratios):
        """Runs the algorithm, then gives the variables and their state their values."""
        dtype = precision.compute_dtype(self._variables[0].dtype)
        step = Step(
            update,
            self._join(gradients),
            dtype,
            self._read,
            lambda: self._join([precision.to_dtype(v, dtype) for v in self._variables]),
            self._ratio(ratios, gradients[0].ndim),
        )
        self._optimizer.algorithm(step)
        self._store(step)

    def _join(self, values):
        return values[0] if len(values) == 1 else jnp.stack(values)

    def _read(self, name):
        return self._join([precision.as_tensor(state[name]) for state in self._states])

    def _ratio(self, ratios, rank):
        if len(ratios) == 1 or ratios[0] is None:
            return ratios[0]
        return jnp.stack(ratios).reshape((-1,) + (1,) * rank)

    def _store(self, step):
        if len(self._variables) == 1:
            state = self._states[0]
            for name, value in step.written.items():
                if value is not step.gradient:
                    self._optimizer.assign(state[name], value)
            if step.new_weight is not None or step.delta is not None:
                ways.move(self._optimizer, self._variables[0], step)
            for name, value in step.written.items():
                if value is step.gradient:
                    self._optimizer.assign(state[name], self._own_memory(name, value))
            return
        written = {
            name: self._own_memory(name, value) if value is step.gradient else value
            for name, value in step.written.items()
        }
        targets, values = [], []
        if step.new_weight is not None or step.delta is not None:
            weight = step.weight if step.new_weight is None else step.new_weight
            values.append(weight if step.delta is None else weight - step.delta)
            targets += self._variables
        for name, value in written.items():
            values.append(value)
            targets += [state[name] for state in self._states]
        for target, part in zip(targets, self._parts(values), strict=True):
            self._optimizer.assign(target, part)

    def _own_memory(self, name, gradient):
        """The gradient as a new state, in the memory of the old one.

        XLA would copy the gradient itself. On a GPU it writes what depends on the old state in its
        place. On a CPU it does so for a product with a number that it can't have before it has
        the new weight: the old state has been read by then. The number is 1. For a small variable
        that is not worth the kernel, which has to be compiled.
        """
        small = _COPIED_ON_A_CPU if self._target == "cpu" else 1
        if self._target == "tpu" or gradient.size < small:
            return gradient
        if self._target == "gpu":
            return jnp.where(self._never, self._read(name), gradient)
        element = precision.as_tensor(self._variables[0]).reshape(-1)[0].astype(gradient.dtype)
        return gradient * jnp.where(self._never, element, jnp.ones_like(element))

    def _parts(self, values):
        """Takes stacked values apart in one kernel.

        Written by the kernel that computes them, each part would need a copy: its memory is that of
        the old value, which the kernel reads at another place. So all values go to one buffer, and
        one kernel fills the parts from it. XLA puts slices of one buffer into one kernel only if it
        can't see that they do not overlap: hence an offset that it does not know to be 0.
        """
        count, shape = len(self._variables), self._variables[0].shape
        values = [jnp.broadcast_to(value, (count, *shape)) for value in values]
        flat = jax.lax.optimization_barrier(jnp.concatenate([v.reshape(-1) for v in values]))
        size, zero = math.prod(shape), self._never.astype("int32")
        for start in np.arange(len(values) * count, dtype="int32") * size:
            yield jax.lax.dynamic_slice(flat, (zero + start,), (size,)).reshape(shape)
