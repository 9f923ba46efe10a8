"""Small variables of one shape as one tensor: what they cost in TensorFlow is their operations."""

import math

import tensorflow as tf

from keras_adanorm import precision
from keras_adanorm.l2_norm import l2_norms_of_rows
from keras_adanorm.step import Step

# A stack of at most this many elements, copied together and apart again, stays in the cache.
STACK_MAXIMUM_SIZE = 2**14


class StackedStep(Step):
    """One step of variables of one shape and dtype, which compute like one of one dimension more.

    Here `variables`, `gradients` and each entry of `states` are lists of TensorFlow's own tensors
    or variables. Scalars, of the state too, are tensors of the shape `(len(variables), 1, ..., 1)`.
    """

    def __init__(self, optimizer, gradients, variables, learning_rate, iterations, states):
        shape = variables[0].shape
        gradient = tf.stack([tf.ensure_shape(gradient, shape) for gradient in gradients])
        super().__init__(optimizer, gradient, variables[0], learning_rate, iterations, states)
        self._variables = variables
        self._shape_of_scalars = [len(variables)] + [1] * shape.rank

    def norm(self):
        """The norms of the gradients, scalars as all of them are here."""
        rows = tf.reshape(self.gradient, (len(self._variables), -1))
        return tf.reshape(l2_norms_of_rows(rows), self._shape_of_scalars)

    def read(self, name):
        tensor = tf.stack([tf.convert_to_tensor(state) for state in self._state[name]])
        if name in self._optimizer.scalar_slots:
            return tf.reshape(tensor, self._shape_of_scalars)
        return tensor

    def write(self, name, value):
        if name in self._optimizer.scalar_slots:
            value = tf.reshape(value, (-1,))
        for state, part in zip(self._state[name], tf.unstack(value), strict=True):
            self._optimizer.assign(state, part)

    def descend(self, delta):
        for variable, part in zip(self._variables, tf.unstack(delta), strict=True):
            self._take_off(variable, part)


def stacks(gradients, variables, size):
    """Lists of positions: of variables that are to be updated as one, and of single ones.

    Args:
        gradients: List of tensors.
        variables: List of TensorFlow variables, of the shapes of `gradients`.
        size: Positive integer: variables of as many elements or more are left single.

    Yields:
        Lists of positions in `variables`, which together hold each position once.
    """
    kinds = {}
    for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
        is_small = variable.shape.num_elements() < size
        if is_small and precision.compute_dtype(variable.dtype) == "float32":
            kind = (tuple(variable.shape), variable.dtype, gradient.dtype, variable.device)
            kinds.setdefault(kind, []).append(i)
        else:
            yield [i]
    for (shape, *_), positions in kinds.items():
        longest = max(1, STACK_MAXIMUM_SIZE // max(1, math.prod(shape)))
        yield from (positions[i : i + longest] for i in range(0, len(positions), longest))
