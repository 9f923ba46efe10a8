"""The parts that the docstrings of the optimizers have in common, written once."""

import inspect

_LEARNING_RATE_AND_BETAS = """learning_rate: A float, a
            `keras.optimizers.schedules.LearningRateSchedule`, or a callable that takes no argument
            and returns the learning rate. Defaults to `0.001`.
        beta_1: Float in [0, 1), the decay of the first moment. Defaults to `0.9`.
        beta_2: Float in [0, 1), the decay of the second moment. Defaults to `0.999`.
        epsilon: Float, at least 0, added to the root of the second moment{bias}. It is the epsilon
            of the algorithm above, outside the root. Defaults to `1e-8`."""

_CORRECTION = """gamma: Float in [0, 1), the decay of the average gradient norm `e_t`. With 0
            the class equals {plain}. Defaults to `0.95`.
        corrected_moments: `"first"`, `"second"` or `"both"`: the moments that `s_t` enters in the
            place of `g_t`; {moments}. Defaults to `"first"`, the paper's choice; the others are
            the ablation of its Table 3.
        max_correction: Float, at least 1, an upper bound on `e_t / ||g_t||`, or `None` for none, as
            in the paper. Without it an update is not bounded by the learning rate: when one
            coordinate dominates the norm and then vanishes, the others are scaled up without
            limit. Defaults to `None`."""

_KERAS = """epsilon_root: Float, at least 0, added to the second moment{bias}, under the root.
            Defaults to `0.0`.
        weight_decay: Float or `None`, decoupled weight decay: before the update, each variable
            loses `learning_rate * weight_decay` of itself. Defaults to `None`.
        clipnorm: Float or `None`, the largest L2 norm of a variable's gradient; beyond it the
            gradient is scaled down. All clipping comes before the algorithm: `g_t` is the clipped
            gradient. Defaults to `None`.
        clipvalue: Float or `None`, the largest absolute value in a gradient. Defaults to `None`.
        global_clipnorm: Float or `None`, the largest L2 norm of all gradients together. Defaults to
            `None`.
        use_ema: Boolean, whether to keep an exponential moving average of the weights. Defaults to
            `False`.
        ema_momentum: Float in [0, 1], the decay of that average. Defaults to `0.99`.
        ema_overwrite_frequency: Integer, at least 1, or `None`: after how many steps the weights
            are overwritten with their average. Defaults to `None`.
        loss_scale_factor: Float or `None`: the loss is multiplied, and the gradients are divided,
            by it. Defaults to `None`.
        gradient_accumulation_steps: Integer, at least 2, or `None`: over how many gradients to
            average before one update. `t` counts updates. Defaults to `None`.
        name: String or `None`, the name of the optimizer. Defaults to `None`."""

_EPSILON_HAT = """epsilon_hat: Boolean, whether epsilon is added to the root before the correction
            for bias, as in Keras, and not after it, as in the paper. {note}Defaults to `False`."""
_NO_DIFFERENCE = "It makes no difference here: the\n            paper adds epsilon before, too. "

_RAISES = """ValueError: If an argument is outside its range. The message names the argument, the
            value and what is allowed."""


def documented(
    plain=None,
    moments="the second moment averages `s_t ** 2` where it is corrected",
    bias=" corrected for bias",
):
    """A class decorator that fills `{{arguments}}` and `{{raises}}` in a docstring.

    Args:
        plain: String, what a Norm variant equals with `gamma=0`; `None` for a plain optimizer.
        moments: String, what `corrected_moments` means for the second moment.
        bias: String, what is said of the second moment to which epsilon is added.
    """

    def fill(cls):
        parts = [_LEARNING_RATE_AND_BETAS.format(bias=bias)]
        if plain is not None:
            parts.append(_CORRECTION.format(plain=plain, moments=moments))
        parts.append(_KERAS.format(bias=bias))
        parts.append(_EPSILON_HAT.format(note="" if bias else _NO_DIFFERENCE))
        # Python takes the indentation off a docstring from 3.13 on; `python -OO` leaves none.
        doc = inspect.cleandoc(cls.__doc__ or "")
        texts = {"{{arguments}}": "\n        ".join(parts), "{{raises}}": _RAISES}
        for place, text in texts.items():  # written above with the indentation of a class
            doc = doc.replace(place, text.replace("\n    ", "\n"))
        cls.__doc__ = doc
        return cls

    return fill
