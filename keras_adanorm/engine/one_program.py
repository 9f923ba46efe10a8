"""JAX, or TensorFlow with `jit_compile=True`: taken where XLA compiles all updates as one program."""

from keras_adanorm.engine import ways


def update_as_one_program(optimizer, gradients, variables, learning_rate):
    """Updates the variables."""
    ways.one_by_one(optimizer, gradients, variables, learning_rate)
