"""What a `GradientNormMonitor` watches: the optimizers that keep norms, wherever a model has them.

Taken when a training with that callback begins. It assumes that an optimizer which holds others
names them `inner_optimizer` or `optimizers`, as `LossScaleOptimizer` and `MultiOptimizer` do.
"""

import inspect

import keras
from keras import ops

from keras_adanorm.base import NormCorrection
from keras_adanorm.wrapper import AdaNorm


class Watched:
    """An optimizer that keeps norms, and what was last read of it.

    Args:
        optimizer: A Norm variant or an `AdaNorm`.
        from_now: Boolean, whether to start from the state that it has. Otherwise it starts from
            none, `e_0 = 0`, as does one that is not built.

    Attributes:
        optimizer: The optimizer.
        step: The number of steps that it had taken.
        averages: Array of the averages `e_t` of `variables`, `0.0` before there are any.
    """

    def __init__(self, optimizer, from_now):
        self.optimizer = optimizer
        self._kept = None
        self.step, self.averages = 0, 0.0
        if from_now and optimizer.built:
            self.step, self.averages = self.read()

    @property
    def variables(self):
        """The variables whose norms are kept, in the order of `averages`."""
        return [self.optimizer._trainable_variables[i] for i in self._kept]

    def read(self):
        """The number of steps taken and the averages, read from the device in one go."""
        if not self.optimizer.built:
            return 0, 0.0
        if self._kept is None:
            averages = self.optimizer.norm_averages
            self._kept = [i for i, average in enumerate(averages) if average is not None]
        # The sums make plain tensors of what is mirrored on several devices, too.
        step = int(ops.add(self.optimizer.iterations, 0))
        vector = ops.convert_to_numpy(ops.add(self.optimizer.norm_vector, 0))
        return step, vector[self._kept]


def optimizers_of(model):
    """The compiled optimizer and those that are attributes of the model, as a GAN's are."""
    found = [getattr(model, "optimizer", None)]
    for value in vars(model).values():
        if isinstance(value, dict):
            found += value.values()
        else:
            found += value if isinstance(value, list | tuple) else [value]
    unique = {id(each): each for each in found if isinstance(each, keras.optimizers.Optimizer)}
    return list(unique.values())


def norm_keepers(optimizers):
    """Those that keep norms among some optimizers and what they hold, each one once."""
    found = {}
    for optimizer in optimizers:
        if isinstance(optimizer, NormCorrection | AdaNorm):
            found[id(optimizer)] = optimizer
        else:
            found |= {id(each): each for each in norm_keepers(_held_by(optimizer))}
    return list(found.values())


def may_hold_more(optimizer):
    """Whether an optimizer chooses others for its variables and has not done so yet."""
    chooses = hasattr(optimizer, "optimizers") and not optimizer.built
    return chooses or any(may_hold_more(each) for each in _held_by(optimizer))


def _held_by(optimizer):
    if isinstance(optimizer, AdaNorm):
        return []
    inner = getattr(optimizer, "inner_optimizer", None)
    return [*getattr(optimizer, "optimizers", ()), *([] if inner is None else [inner])]


def refuse(optimizers):
    """Raises an error that says how to write the first of these optimizers so that it can be."""
    optimizer = optimizers[0] if optimizers else None
    inner, advice, name = optimizer, "keras_adanorm.AdaNorm(optimizer, gamma=0)", "{}"
    while getattr(inner, "inner_optimizer", None) is not None:
        advice = f"{type(inner).__name__}({advice})"
        name = name.format(f"{type(inner).__name__}({{}})")
        inner = inner.inner_optimizer
    if hasattr(inner, "optimizers"):
        what = f"Wrap those inside of {type(inner).__name__}, each as "
        advice = "keras_adanorm.AdaNorm(optimizer, gamma=0)"
    else:
        what = "Wrap yours as "
    raise ValueError(
        "GradientNormMonitor needs an optimizer that keeps gradient norms. "
        f"{what}`{advice}`: it trains as before, bit for bit, and the "
        f"norms are kept. Received: optimizer={name.format(type(inner).__name__)}"
    )


def put_first(callback):
    """Puts a callback before the others of its list, which then see what it adds to `logs`.

    To be called in the callback's `on_train_begin`. A callback isn't told the list that it is in:
    the list is looked for among those who called it.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList):
            # The list is being gone through: what comes after the callback keeps its place.
            caller.callbacks.sort(key=lambda each: each is not callback)
            return
        frame = frame.f_back
