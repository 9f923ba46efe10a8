"""How the optimizers are made fast, in one place; what they compute is in their own files.

- TensorFlow: the update of one variable is a `tf.function` that all variables of a shape share,
  compiled by XLA if the variable is large: few passes over memory in the place of a dozen, at the
  cost of one compilation per shape. Small variables of one shape are updated as one tensor, see
  `tensor_stack`. For eager calls, one more `tf.function` holds them all.
- A step that XLA compiles as a whole for a processor: the variables are updated in turn, so that
  what the operations of one share stays in the cache.
- torch: the update runs on lists of tensors, see `tensor_list`.
- JAX compiles what its caller jits. Anything else, a `tf.distribute` strategy above all, takes
  Keras' own path through `update_step`, with the same results.
"""

import contextlib
import functools
import math

import keras
from keras import ops

from keras_adanorm import precision
from keras_adanorm.execution import has_accelerator, is_compiled_by_xla
from keras_adanorm.l2_norm import l2_norm
from keras_adanorm.step import Step

# From this many elements on, one pass over memory soon saves the time that a compilation takes.
XLA_MINIMUM_SIZE = 2**13
# Smaller variables stay in the cache in any order, and may as well be updated side by side.
IN_TURN_MINIMUM_SIZE = 2**18


def set_untracked(optimizer, name, value):
    """Sets an attribute that the tracking of Keras and TensorFlow is not to wrap or save."""
    object.__setattr__(optimizer, name, value)


def device_of(optimizer, variable):
    """A context in which a new variable lies where the given one does (TensorFlow only)."""
    strategy = getattr(optimizer, "_distribution_strategy", None)
    if keras.backend.backend() != "tensorflow" or strategy is None:
        return contextlib.nullcontext()
    return strategy.extended.colocate_vars_with(native(variable))


def native(variable):
    """The backend's own variable of a Keras variable; a TensorFlow variable as it is."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def forget(optimizer):
    """Drops what was traced with the values that the hyperparameters had until now."""
    optimizer.__dict__.pop("_tensorflow_update", None)


def fast_update(optimizer):
    """The faster form of `_backend_update_step` where there is one here and now, else `None`."""
    backend = keras.backend.backend()
    if backend == "torch":
        return optimizer._parallel_update_step
    if is_one_program(optimizer):
        return None if has_accelerator() else functools.partial(update_in_turn, optimizer)
    if backend == "tensorflow" and not is_distributed(optimizer):
        if not hasattr(optimizer, "_tensorflow_update"):
            set_untracked(optimizer, "_tensorflow_update", TensorFlowUpdate(optimizer))
        return optimizer._tensorflow_update
    return None


def is_one_program(optimizer):
    """Whether XLA compiles the update of all variables as one, for one device."""
    if keras.backend.backend() == "jax":
        import jax

        traced = isinstance(precision.as_tensor(optimizer.iterations), jax.core.Tracer)
        return traced and keras.distribution.distribution() is None
    return (
        keras.backend.backend() == "tensorflow"
        and is_compiled_by_xla()
        and not is_distributed(optimizer)
    )


def update_in_lists(optimizer, gradients, variables, learning_rate):
    """The update on torch: see `tensor_list`."""
    import torch

    from keras_adanorm.tensor_list import update_in_groups

    with torch.no_grad():
        update_in_groups(optimizer, gradients, variables, learning_rate)


def is_distributed(optimizer):
    """Whether a `tf.distribute` strategy is to sum the replicas' gradients before the update."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return tf.distribute.has_strategy() or (
        optimizer._distribution_strategy.extended._num_replicas_in_sync > 1
    )


def update_in_turn(optimizer, gradients, variables, learning_rate):
    """Updates the variables so that XLA begins a large one when one before has ended.

    Left to itself, XLA on a processor does the same operation for all variables before it goes on
    to the next, and what they share has left the cache by then. A product with a number that is
    always 1, of which XLA only knows that it comes after the variable before, changes nothing else.
    Without a norm, two at a time keep the cores busier and fit the cache as well.
    """
    at_a_time = 1 if optimizer.scalar_slots else 2
    never = ops.less(precision.as_tensor(optimizer.iterations), 0)
    large = []
    for gradient, variable in zip(gradients, variables, strict=True):
        size = math.prod(variable.shape)
        step = optimizer.begin_step(gradient, variable, learning_rate, KeepingStep)
        if size >= IN_TURN_MINIMUM_SIZE:
            if len(large) >= at_a_time:
                step.begin_after(_one_after(large[-at_a_time], never, step.dtype))
            large.append(variable)
        optimizer.update_step(step.gradient, step, learning_rate)
        for name in step.kept:
            # After the variable, whose update needs what the state held; else XLA would copy it.
            if size > 0:
                step.begin_after(_one_after(variable, never, step.dtype))
            step.store(name, step.gradient)


def _one_after(value, never, dtype):
    """The number 1, that a compiler can't have before it has the value of a tensor or variable."""
    element = ops.cast(ops.reshape(precision.as_tensor(value), (-1,))[0], dtype)
    return ops.where(never, element, ops.ones_like(element))


class KeepingStep(Step):
    """A step that leaves it to its caller to store what is the gradient itself.

    Attributes:
        kept: The names of the states that are to become the gradient.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.kept = []
        self.store = super().write
        self._own = self.gradient
        self._one = None

    def begin_after(self, one):
        """Lets everything depend on a tensor that is 1, so that nothing is done before it is."""
        self.gradient = self.gradient * one
        self._one = one

    def norm(self):
        """`||g_t||`, a scalar tensor."""
        return l2_norm(self._own, self._one)

    def write(self, name, value):
        """Replaces the state `name`, unless by the gradient itself."""
        if value is self.gradient:
            self.kept.append(name)
        else:
            self.store(name, value)


class TensorFlowUpdate:
    """Updates variables by functions that are traced, and for large ones compiled, once a shape."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self._one_variable = {}
        self._all_variables = {}

    def __call__(self, gradients, variables, learning_rate):
        import tensorflow as tf

        variables = [native(variable) for variable in variables]
        iterations = precision.as_tensor(self._optimizer.iterations)
        learning_rate = precision.as_tensor(learning_rate)
        if not tf.executing_eagerly():
            self._update(gradients, variables, learning_rate, iterations)
            return
        gradients = [precision.as_tensor(gradient) for gradient in gradients]
        key = tuple((id(v), g.dtype) for g, v in zip(gradients, variables, strict=True))
        if key not in self._all_variables:

            def update(gradients, learning_rate, iterations):
                self._update(gradients, variables, learning_rate, iterations)

            self._all_variables[key] = tf.function(update, autograph=False).get_concrete_function(
                gradients, learning_rate, iterations
            )
        self._all_variables[key](gradients, learning_rate, iterations)

    def _update(self, gradients, variables, learning_rate, iterations):
        from keras_adanorm.tensor_stack import stacks

        slots = self._optimizer._slots
        indices = [self._optimizer._get_variable_index(variable) for variable in variables]
        for stack in stacks(gradients, variables, XLA_MINIMUM_SIZE):
            update = self._update_one if len(stack) == 1 else self._update_together
            update(
                [gradients[i] for i in stack],
                [variables[i] for i in stack],
                learning_rate,
                iterations,
                {name: [slots[name][indices[i]].value for i in stack] for name in slots},
            )

    def _update_together(self, gradients, variables, learning_rate, iterations, states):
        from keras_adanorm.tensor_stack import StackedStep

        step = StackedStep(self._optimizer, gradients, variables, learning_rate, iterations, states)
        self._optimizer.update_step(step.gradient, step, learning_rate)

    def _update_one(self, gradients, variables, learning_rate, iterations, states):
        (gradient,), (variable,) = gradients, variables
        state = {name: of_one for name, (of_one,) in states.items()}
        function, kept = self._function(variable, gradient)
        function(gradient, variable, learning_rate, iterations, state)
        for name in kept:  # no copy: the state and the gradient share their memory
            self._optimizer.assign(state[name], gradient)

    def _function(self, variable, gradient):
        import tensorflow as tf

        key = (tuple(variable.shape), variable.dtype, gradient.dtype)
        if key not in self._one_variable:
            kept = []

            def update(gradient, variable, learning_rate, iterations, state):
                gradient = tf.ensure_shape(gradient, variable.shape)
                step = KeepingStep(
                    self._optimizer, gradient, variable, learning_rate, iterations, state
                )
                self._optimizer.update_step(gradient, step, learning_rate)
                kept[:] = step.kept

            compiled = variable.shape.num_elements() >= XLA_MINIMUM_SIZE and _has_xla(variable)
            function = tf.function(
                update,
                jit_compile=compiled,
                autograph=False,
                # Inlined, a copy for each variable would take the graph's optimization seconds.
                experimental_attributes={"_noinline": True},
            )
            self._one_variable[key] = function, kept
        return self._one_variable[key]


def _has_xla(variable):
    import tensorflow as tf

    on_gpu = "GPU" in variable.device
    return tf.test.is_built_with_xla() and (not on_gpu or tf.test.is_built_with_gpu_support())
