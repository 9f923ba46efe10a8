"""The ways of an update, and which is taken. They differ in speed alone.

| way | when it is taken |
|---|---|
| Keras' own: `update_step` for each variable | a class that has its own `update_step` or `assign` |
| `one_by_one`: all norms at once, then each variable | everywhere else, and if one is given twice |
| `distributed.py`: the same after the sum over devices | under a strategy of `tf.distribute` |
| `tensorflow_kernels.py`: fused kernels | TensorFlow without XLA |
| `one_program.py` | JAX compiles the update of all variables as one program |
| `jax_eager.py`: `one_by_one` with NumPy's scalars | JAX without `jit` |
| `torch_groups.py`: small variables together, large ones in parts | torch |
| `torch_kernels.py`: the fused kernel | torch, large variables on a CPU |
"""

import contextlib

import keras
from keras import ops

from keras_adanorm.engine import precision, private
from keras_adanorm.engine.step import Step, Update

# Keras' own way is taken for a subclass that defines one of these.
_OWN = ("update_step", "assign", "assign_add", "assign_sub")


def is_run_by_the_package(optimizer, base):
    """Whether no subclass has methods of its own by which a variable is updated."""
    if any(name in vars(optimizer) for name in _OWN):
        return False
    return all(getattr(type(optimizer), name) is getattr(base, name) for name in _OWN)


def update_all(optimizer, gradients, variables, learning_rate):
    """Updates variables in the fastest way that gives the right numbers here."""
    way = _way_for(optimizer, variables)
    with without_gradients():
        way(optimizer, gradients, variables, learning_rate)


def _way_for(optimizer, variables):
    if len(set(map(id, variables))) < len(variables):
        return one_by_one  # one that is given twice is updated twice, one step after the other
    backend = keras.backend.backend()
    if backend == "torch":
        from keras_adanorm.engine.torch_groups import update_in_groups as way
    elif backend == "jax" and is_one_program(optimizer):
        from keras_adanorm.engine.one_program import update_as_one_program as way
    elif backend == "tensorflow" and not is_one_program(optimizer):
        from keras_adanorm.engine.tensorflow_kernels import update_by_kernels as way
    else:
        way = one_by_one
    return way


def is_one_program(optimizer):
    """Whether XLA compiles the update of all variables as one, for one device."""
    if keras.backend.backend() == "jax":
        traced = private.is_traced_by_jax(precision.as_tensor(optimizer.iterations))
        return traced and keras.distribution.distribution() is None
    return keras.backend.backend() == "tensorflow" and private.is_compiled_by_xla()


def is_distributed(optimizer):
    """Whether a `tf.distribute` strategy is to sum the replicas' gradients before the update."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    strategy = private.strategy_of(optimizer)
    return tf.distribute.has_strategy() or strategy.num_replicas_in_sync > 1


def without_gradients():
    """A context in which torch records no gradients; no other backend does."""
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def one_by_one(optimizer, gradients, variables, learning_rate):
    """Takes all norms, then updates each variable."""
    update = Update(learning_rate, optimizer.iterations)
    gradients = [in_compute_dtype(g, v) for g, v in zip(gradients, variables, strict=True)]
    ratios = optimizer.norm_ratios(gradients, variables)
    for gradient, variable, ratio in zip(gradients, variables, ratios, strict=True):
        update_one(optimizer, update, gradient, variable, ratio)


def in_compute_dtype(gradient, variable):
    """A variable's gradient as a dense tensor in the variable's compute dtype and shape."""
    dtype = precision.compute_dtype(variable.dtype)
    gradient = precision.to_dtype(precision.dense(gradient), dtype)
    return in_shape(gradient, variable.shape)


def in_shape(gradient, shape):
    """The gradient, one that broadcasts to the variable's shape in that shape."""
    if gradient.shape == shape:
        return gradient
    is_known = getattr(gradient.shape, "is_fully_defined", lambda: True)  # TensorFlow's in a graph
    return ops.broadcast_to(gradient, tuple(shape)) if is_known() else gradient


def slots_of(optimizer, variables):
    """The state of some variables: for each name of a state a list of Keras variables."""
    indices = [optimizer._get_variable_index(variable) for variable in variables]
    return {name: [slots[i] for i in indices] for name, slots in optimizer._slots.items()}


def update_one(optimizer, update, gradient, variable, ratio):
    """Runs the algorithm for one variable, then changes the variable and its state."""
    step = _step_class(gradient)(optimizer, update, gradient, variable, ratio)
    optimizer.algorithm(step)
    step.finish()


def _step_class(gradient):
    if keras.backend.backend() == "jax" and not private.is_traced_by_jax(gradient):
        from keras_adanorm.engine.jax_eager import EagerStep

        return EagerStep
    return StepOfOne


class StepOfOne(Step):
    """The step of a single variable."""

    def __init__(self, optimizer, update, gradient, variable, ratio):
        dtype = precision.compute_dtype(variable.dtype)
        state = optimizer.state_of(variable)
        super().__init__(
            update,
            gradient,
            dtype,
            lambda name: precision.as_tensor(state[name]),
            lambda: precision.to_dtype(variable, dtype),
            ratio,
        )
        self._optimizer, self._variable, self._state = optimizer, variable, state

    def finish(self):
        """Changes the variable and its state to what was found for them."""
        for name, value in self.written.items():
            self._optimizer.assign(self._state[name], value)
        if self.new_weight is not None or self.delta is not None:
            move(self._optimizer, self._variable, self)


class ImmediateStep(StepOfOne):
    """The step of a single variable in which everything takes effect at once.

    What is read is copied: on torch it would be the memory that is about to change.
    """

    @property
    def weight(self):
        return ops.copy(super().weight)

    def read(self, name):
        return super().read(name) if name in self.written else ops.copy(super().read(name))

    def write(self, name, value):
        super().write(name, value)
        self._optimizer.assign(self._state[name], value)

    def descend(self, delta):
        self.delta = delta
        move(self._optimizer, self._variable, self)
        self.delta = self.new_weight = None

    def set_weight(self, value):
        self.new_weight = value
        move(self._optimizer, self._variable, self)
        self.new_weight = None


def begin_step(optimizer, gradient, variable, learning_rate):
    """An `ImmediateStep` of a variable."""
    gradient = in_compute_dtype(gradient, variable)
    (ratio,) = optimizer.norm_ratios([gradient], [variable])
    return ImmediateStep(
        optimizer, Update(learning_rate, optimizer.iterations), gradient, variable, ratio
    )


def move(optimizer, variable, step):
    """Gives a variable the value that a step has found for it."""
    if step.new_weight is not None:
        delta = step.delta
        value = step.new_weight if delta is None else step.new_weight - delta
        optimizer.assign(variable, precision.to_dtype(value, variable_dtype(variable)))
    elif variable_dtype(variable) == step.dtype:
        optimizer.assign_sub(variable, step.delta)
    else:  # one rounding, of the new weight
        value = step.weight - step.delta
        optimizer.assign(variable, precision.to_dtype(value, variable_dtype(variable)))


def variable_dtype(variable):
    """The dtype of a variable of Keras or TensorFlow, as a string."""
    return keras.backend.standardize_dtype(variable.dtype)
