"""A step compiled by `tf.function`, with `optimizer.apply_gradients` as in older code.

python -m examples.loops.tf_function
"""

import tensorflow as tf

from examples.loops.problem import LEARNING_RATE, batches, loss, new_model
from keras_adanorm import AdamNorm


def train():
    model, optimizer = new_model(), AdamNorm(LEARNING_RATE)
    optimizer.build(model.trainable_variables)  # a tf.function is not to create variables

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            error = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(error, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for x, y in batches():
        step(x, y)
    return model, optimizer


if __name__ == "__main__":
    model, optimizer = train()
    print(f"loss {loss(model):.4f}")
