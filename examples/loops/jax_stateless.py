"""A stateless loop on JAX: weights and optimizer state go in and come out.

KERAS_BACKEND=jax python -m examples.loops.jax_stateless
"""

import jax

from examples.loops.problem import LEARNING_RATE, batches, loss, new_model
from keras_adanorm import AdamNorm


def train():
    model, optimizer = new_model(), AdamNorm(LEARNING_RATE)
    optimizer.build(model.trainable_variables)

    def error(weights, x, y):
        outputs, _ = model.stateless_call(weights, [], x, training=True)
        return ((outputs - y) ** 2).mean()

    @jax.jit
    def step(weights, state, x, y):
        gradients = jax.grad(error)(weights, x, y)
        return optimizer.stateless_apply(state, gradients, weights)

    weights = [variable.value for variable in model.trainable_variables]
    state = [variable.value for variable in optimizer.variables]
    for x, y in batches():
        weights, state = step(weights, state, x, y)
    # Back into the variables, to use the model or to save both.
    for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value)
    for variable, value in zip(optimizer.variables, state, strict=True):
        variable.assign(value)
    return model, optimizer


if __name__ == "__main__":
    model, optimizer = train()
    print(f"loss {loss(model):.4f}")
