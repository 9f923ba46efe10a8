"""The kind of device for which XLA compiles an update.

Only speed depends on it. To count the work of an update for a device that is not there, replace
`target`.
"""

import keras


def target() -> str:
    """The kind of device that a compiled update is made for: "cpu", "gpu" or "tpu"."""
    if keras.backend.backend() == "jax":
        import jax

        platform = str(jax.default_backend())
        return platform if platform in ("cpu", "tpu") else "gpu"
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        kinds = {device.device_type for device in tf.config.list_logical_devices()}
        return "tpu" if "TPU" in kinds else "gpu" if "GPU" in kinds else "cpu"
    return "cpu"
