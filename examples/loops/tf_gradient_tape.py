"""The plainest loop on TensorFlow: a tape, and `optimizer.apply`.

python -m examples.loops.tf_gradient_tape
"""

import tensorflow as tf

from examples.loops.problem import LEARNING_RATE, batches, loss, new_model
from keras_adanorm import AdamNorm


def train():
    model, optimizer = new_model(), AdamNorm(LEARNING_RATE)
    for x, y in batches():
        with tf.GradientTape() as tape:
            error = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(error, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
    return model, optimizer


if __name__ == "__main__":
    model, optimizer = train()
    print(f"loss {loss(model):.4f}")
