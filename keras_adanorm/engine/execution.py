"""Where the operations that are being recorded will run; only speed depends on it."""

import keras

from keras_adanorm.engine.private import is_compiled_by_xla  # noqa: F401


def has_accelerator():
    """Whether there is a GPU or TPU, which adds up fast, but waits where it has to branch."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend() != "cpu"
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return any(device.device_type != "CPU" for device in tf.config.list_logical_devices())
    return False
