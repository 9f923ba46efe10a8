"""What the tests of fast paths share: small thresholds, and each class beside Keras' own way."""

import keras
from keras import ops

from keras_adanorm import (
    AdaBeliefNorm,
    AdamNorm,
    AdaNorm,
    DiffGradNorm,
    Radam,
    RadamNorm,
)
from keras_adanorm.engine.norms import l2_norms
from keras_adanorm.engine.precision import compute_dtype
from keras_adanorm.norm_correction import norm_ratio
from tests.support.optimizers import BACKEND, to_numpy

# Beside the small thresholds: three variables that are put together, a scalar, one without
# elements, one that is just too large, and one that makes several parts.
SHAPES = {
    "matrix": (3, 4),
    "twin": (3, 4),
    "vector": (5,),
    "scalar": (),
    "empty": (0, 3),
    "medium": (17,),
    "large": (6, 7),
}
# What Keras does before and after an update.
EVERYTHING = dict(
    weight_decay=0.1,
    global_clipnorm=8.0,
    use_ema=True,
    ema_momentum=0.5,
    ema_overwrite_frequency=3,
    loss_scale_factor=2.0,
)
# On TensorFlow Keras can't average a variable without elements.
AVERAGED = [name for name in SHAPES if name != "empty"]


def use_small_thresholds(monkeypatch, target="cpu"):
    """Sets every threshold so low that the variables of `SHAPES` lie on both sides of it.

    Args:
        monkeypatch: The fixture of pytest.
        target: "cpu", "gpu" or "tpu": the device for which JAX is made to compile.
    """
    from keras_adanorm.engine import norms

    monkeypatch.setattr(norms, "SMALL", 16)
    if BACKEND == "torch":
        from keras_adanorm.engine import torch_groups, torch_kernels

        monkeypatch.setattr(torch_kernels, "SMALLEST", 17)
        monkeypatch.setattr(torch_groups, "SMALL", 16)
        monkeypatch.setattr(torch_groups, "part_size", lambda: 20)
    if BACKEND == "jax":
        from keras_adanorm import execution
        from keras_adanorm.engine import jax_norms, one_program

        monkeypatch.setattr(one_program, "SMALL", 16)
        monkeypatch.setattr(one_program, "_COPIED_ON_A_CPU", 16)
        monkeypatch.setattr(jax_norms, "SMALL", 16)
        monkeypatch.setattr(jax_norms, "_PARTS", 4)
        monkeypatch.setattr(jax_norms, "_MANY", 2)
        monkeypatch.setattr(jax_norms, "_FOR_ONE_KERNEL", 64)
        monkeypatch.setattr(execution, "target", lambda: target)


def by_keras_own_way(cls):
    """A class with the same algorithm, which Keras runs for one variable after the other."""

    class Own(cls):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient, variable, learning_rate)

    return Own


_DTYPES = ("float64", "float32")


class CorrectedSGD(keras.optimizers.SGD):
    """What `AdaNorm(SGD)` is, written as an optimizer of Keras."""

    def __init__(self, *args, gamma=0.95, **kwargs):
        super().__init__(*args, **kwargs)
        self.gamma = gamma

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        dtypes = {compute_dtype(variable.dtype) for variable in variables}
        self.averages = self.add_variable(
            (len(variables),), dtype=min(dtypes, key=_DTYPES.index), name="norm_averages"
        )

    def update_step(self, gradient, variable, learning_rate):
        i = self._get_variable_index(variable)
        average = ops.convert_to_tensor(self.averages)
        dtype = compute_dtype(variable.dtype)
        gradient = ops.cast(gradient, dtype)
        norm = l2_norms([gradient], self.averages.dtype)[0]
        ratio, after = norm_ratio(norm, average[i], self.gamma)
        here = ops.arange(average.shape[0]) == i
        self.assign(self.averages, ops.where(here, after, average))
        s = gradient if ratio is None else gradient * ops.cast(ratio, dtype)
        super().update_step(ops.cast(s, variable.dtype), variable, learning_rate)


class Subject:
    """An optimizer under test, and the same one run by Keras' own way.

    Attributes:
        fast: Makes the optimizer; takes the arguments of a Keras optimizer.
        own: Makes the one that is run by Keras' own way.
    """

    def __init__(self, name, fast, own):
        self.name = name
        self.fast = fast
        self.own = own

    def __repr__(self):
        return self.name


def _adanorm_of_sgd(learning_rate=0.01, gamma=0.95, **kwargs):
    return AdaNorm(keras.optimizers.SGD(learning_rate, momentum=0.9, **kwargs), gamma=gamma)


def _corrected_sgd(learning_rate=0.01, **kwargs):
    return CorrectedSGD(learning_rate, momentum=0.9, **kwargs)


SUBJECTS = [
    Subject(cls.__name__, cls, by_keras_own_way(cls))
    for cls in (AdamNorm, DiffGradNorm, RadamNorm, AdaBeliefNorm, Radam)
] + [Subject("AdaNorm", _adanorm_of_sgd, _corrected_sgd)]


def state_of(optimizer, variables):
    """The weights and all state of an optimizer, as arrays."""
    return [to_numpy(variable) for variable in [*variables, *optimizer.variables]]
