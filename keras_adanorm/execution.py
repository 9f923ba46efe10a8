"""The kind of device for which an update is recorded: the one place where the code asks for it.

Only speed depends on it. To count the work of an update for a device that is not there, replace
these functions.
"""

import keras


def has_accelerator() -> bool:
    """Whether there is a GPU or TPU."""
    return _platform() != "cpu"


def target() -> str:
    """The kind of device that a compiled update is made for: "cpu", "gpu" or "tpu"."""
    if not has_accelerator():
        return "cpu"
    return "tpu" if _platform() == "tpu" else "gpu"


def _platform() -> str:
    if keras.backend.backend() == "jax":
        import jax

        return str(jax.default_backend())
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        kinds = {device.device_type for device in tf.config.list_logical_devices()}
        return "tpu" if "TPU" in kinds else "gpu" if "GPU" in kinds else "cpu"
    return "cpu"
