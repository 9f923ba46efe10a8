"""A loop over several devices: `MirroredStrategy` and `strategy.run`.

python -m examples.loops.tf_strategy_run      # on all GPUs, or on the CPU
"""

import tensorflow as tf

from examples.loops.problem import BATCH, LEARNING_RATE, X, Y, loss, new_model
from keras_adanorm import AdamNorm


def train(strategy):
    with strategy.scope():
        model, optimizer = new_model(), AdamNorm(LEARNING_RATE)
        optimizer.build(model.trainable_variables)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            # The optimizer sums over the devices: each gives its share of the whole batch's mean.
            error = tf.reduce_sum((model(x, training=True) - y) ** 2) / BATCH
        gradients = tape.gradient(error, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    @tf.function
    def step(x, y):
        strategy.run(replica_step, args=(x, y))

    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH).repeat(2)
    for x, y in strategy.experimental_distribute_dataset(data):
        step(x, y)
    return model, optimizer


if __name__ == "__main__":
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    model, optimizer = train(tf.distribute.MirroredStrategy([device.name for device in devices]))
    print(f"loss {loss(model):.4f}")
