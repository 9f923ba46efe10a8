"""Where and how the operations that are being recorded will run; only speed depends on it."""

import keras


def has_accelerator():
    """Whether there is a GPU or TPU, which adds up fast, but waits where it has to branch."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend() != "cpu"
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return any(device.device_type != "CPU" for device in tf.config.list_logical_devices())
    return False


def is_compiled_by_xla():
    """Whether TensorFlow is recording for XLA, as part of one program."""
    import tensorflow as tf

    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        return False
    return not tf.executing_eagerly() and GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )
