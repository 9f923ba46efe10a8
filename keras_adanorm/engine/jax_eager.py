"""JAX, eagerly: a step of one variable in few operations.

Taken where JAX runs operation by operation, that is outside of `jax.jit`. It then compiles each
operation anew for each shape, which is what the first update of many variables costs. Here what
belongs together is one operation. Numbers, such as a decay, are its arguments: another number
needs no other program.
"""

import numbers

import jax
import jax.numpy as jnp

from keras_adanorm.engine import precision
from keras_adanorm.engine.ways import StepOfOne


class EagerStep(StepOfOne):
    """The step of a single variable, whose operations are compiled together."""

    def average(self, name, value, decay):
        decay = precision.rounded(decay, self.dtype)
        average = _average(self.read(name), value, decay, 1 - decay)
        self.write(name, average)
        return average

    def square(self, x):
        x = precision.to_dtype(x, self.dtype)
        return _square(x, precision.square_limit(self.dtype))

    def average_of_square(self, name, value, decay):
        decay = precision.rounded(decay, self.dtype)
        value = precision.to_dtype(value, self.dtype)
        average = _average_of_square(
            self.read(name), value, precision.square_limit(self.dtype), decay, 1 - decay
        )
        self.write(name, average)
        return average

    def root(self, x, floor):
        if isinstance(floor, numbers.Real) and floor == 0:
            return super().root(x, floor)
        return _root(x, floor)

    def descend_quotient(self, rate, numerator, denominator):
        self.descend(_quotient(rate, numerator, denominator))


@jax.jit
def _average(old, value, decay, rest):
    return decay * old + rest * value


@jax.jit
def _square(x, limit):
    return jnp.square(jnp.clip(x, -limit, limit))


@jax.jit
def _average_of_square(old, value, limit, decay, rest):
    return decay * old + rest * _square(value, limit)


@jax.jit
def _root(x, floor):
    return jnp.sqrt(x) + floor


@jax.jit
def _quotient(rate, numerator, denominator):
    return rate * numerator / denominator
