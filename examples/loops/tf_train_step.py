"""A model with a `train_step` of its own, which `fit` calls.

python -m examples.loops.tf_train_step
"""

import keras
import tensorflow as tf

from examples.loops.problem import BATCH, LEARNING_RATE, X, Y, loss, new_model
from keras_adanorm import AdamNorm


class Model(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)  # for mixed_float16; else the loss itself
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def train():
    network = new_model()
    model = Model(network.inputs[0], network.outputs[0])
    model.compile(AdamNorm(LEARNING_RATE), "mse")
    model.fit(X, Y, BATCH, epochs=2, shuffle=False, verbose=0)
    return model, model.optimizer


if __name__ == "__main__":
    model, optimizer = train()
    print(f"loss {loss(model):.4f}")
