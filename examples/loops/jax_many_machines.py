"""Data parallel training on one machine or on many, with JAX.

On one machine, with all its devices:

    KERAS_BACKEND=jax python -m examples.loops.jax_many_machines

On N machines, on each with its own number I from 0 to N - 1 and an address of machine 0 that all
can reach, within five minutes of each other:

    export KERAS_BACKEND=jax
    export KERAS_DISTRIBUTION_JOB_ADDRESSES=ADDRESS_OF_MACHINE_0:1234
    export KERAS_DISTRIBUTION_NUM_PROCESSES=N KERAS_DISTRIBUTION_PROCESS_ID=I
    python -m examples.loops.jax_many_machines

Every process ends with the same weights, those that a single one finds with the same batches.
"""

import os
import sys

import jax
import keras
import numpy as np

from keras_adanorm import AdamNorm

GLOBAL_BATCH = 48  # a multiple of the number of devices


def train():
    """Trains on this process' share of each batch; returns the weights and the averages `e_t`."""
    keras.utils.set_random_seed(0)  # the same weights on every machine
    x = np.random.default_rng(0).standard_normal((4 * GLOBAL_BATCH, 8)).astype("float32")
    y = np.sin(x[:, :1])
    share = slice(jax.process_index(), None, jax.process_count())

    # Each process brings its own share of the data: Keras is not to divide it once more.
    distribution = keras.distribution.DataParallel(auto_shard_dataset=False)
    with distribution.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        optimizer = AdamNorm(0.01)
        model.compile(optimizer, "mse")
        batch_size = GLOBAL_BATCH // jax.process_count()
        model.fit(x[share], y[share], batch_size, epochs=2, shuffle=False, verbose=0)
    return model.get_weights() + [np.array(e) for e in optimizer.norm_averages]


if __name__ == "__main__":
    if "KERAS_DISTRIBUTION_JOB_ADDRESSES" in os.environ:
        keras.distribution.initialize()  # before JAX does anything else
    values = train()
    print(f"process {jax.process_index()} of {jax.process_count()}: bias {values[1]}")
    if len(sys.argv) > 1:
        np.savez(sys.argv[1], *values)
