"""Trains on one and on two CPU devices and writes down what came out, for `test_distribution`.

python -m tests.support.mirrored FOLDER

A program of its own: the devices of TensorFlow are set before it does anything else.
"""

import pathlib
import runpy
import sys

import keras
import numpy as np
import tensorflow as tf

from keras_adanorm import AdamNorm
from tests.support.coverage_table import SETUPS, make

SAMPLES, BATCH = 21, 8  # the last batch has 5 samples, of which one device gets 3
SAMPLED = np.random.default_rng(0).standard_normal((SAMPLES, 4)).astype("float32")
TARGETS = np.sin(SAMPLED[:, :3])
# In the second batch, all that the second device gets has weight 0: its gradient is zero.
WEIGHTS = np.ones(SAMPLES, "float32")
WEIGHTS[BATCH + BATCH // 2 : 2 * BATCH] = 0
# The second device's share of the last batch is the smaller one, and counts as much in a mean.
MEAN_OF_MEANS = np.ones(SAMPLES, "float32")
MEAN_OF_MEANS[-5:] = [5 / 6] * 3 + [5 / 4] * 2


def train(model, epochs=2, sample_weight=WEIGHTS):
    model.fit(
        SAMPLED,
        TARGETS,
        sample_weight=sample_weight,
        batch_size=BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
    )
    return model


def new_model(strategy, optimizer, reduction="sum"):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh")])
        # On one device the same without tracing, and sooner.
        eagerly = strategy.num_replicas_in_sync == 1
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        model.compile(optimizer(), loss, run_eagerly=eagerly)
    return model


def interrupted(first, then, optimizer, folder):
    """Trains under one strategy, saves, loads under another, trains on."""
    path = folder / "interrupted.keras"
    train(new_model(first, optimizer)).save(path)
    with then.scope():
        model = keras.models.load_model(path)
    model.run_eagerly = then.num_replicas_in_sync == 1
    return train(model)


def clipped_per_replica(strategy):
    """One step with gradients of norm 3 and 4 and `clipnorm=2`."""
    with strategy.scope():
        variable = keras.Variable(np.zeros(2, "float32"))
        optimizer = AdamNorm(0.1, gamma=0.5, clipnorm=2.0)
        optimizer.build([variable])

    @tf.function
    def step():
        def replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.apply([tf.gather([[3.0, 0.0], [0.0, 4.0]], number)], [variable])

        strategy.run(replica)

    step()
    return optimizer


def arrays(variables):
    return [variable.numpy() for variable in variables]


def state(model):
    return arrays(model.trainable_variables + model.optimizer.variables)


def main(folder):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    one, two = tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def write(name, values):
        np.savez(folder / f"{name}.npz", *values)

    for name in SETUPS["mirrored"].optimizers:

        def optimizer(name=name):
            return make(name)

        for number, strategy in enumerate((one, two), 1):
            write(f"{name}-{number}", state(train(new_model(strategy, optimizer))))

        if name in ("AdamNorm", "AdaNorm"):
            write(f"{name}-straight", state(train(new_model(one, optimizer), epochs=4)))
            write(f"{name}-1-then-2", state(interrupted(one, two, optimizer, folder)))
            write(f"{name}-2-then-1", state(interrupted(two, one, optimizer, folder)))

    for number, strategy, weights in ((1, one, MEAN_OF_MEANS), (2, two, np.ones_like(WEIGHTS))):
        model = new_model(strategy, lambda: AdamNorm(0.01), reduction="sum_over_batch_size")
        write(f"mean-{number}", state(train(model, sample_weight=weights)))
    loop = runpy.run_module("examples.loops.tf_strategy_run")["train"]
    for number, strategy in enumerate((one, two), 1):
        model, optimizer = loop(strategy)
        write(f"loop-{number}", arrays(model.trainable_variables + optimizer.variables))
    write("clipped", arrays(clipped_per_replica(two).norm_averages))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
