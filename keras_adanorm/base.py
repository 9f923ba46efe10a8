"""What the optimizers share: hyperparameters, state, and the way a step reaches the algorithm."""

import math
import numbers
import warnings

import keras

from keras_adanorm import acceleration, precision
from keras_adanorm.norm_correction import correct_norm
from keras_adanorm.step import Step

CORRECTED_MOMENTS = ("first", "second", "both")
UNBUILT = 2  # what an optimizer holds before it is built: the count of steps, the learning rate


class AdaptiveOptimizer(keras.optimizers.Optimizer):
    """Base class of the optimizers with adaptive moments.

    A subclass names its state in `slots`, each of a variable's shape and zero at the start, and in
    `scalar_slots`, and writes its algorithm in `update_step`. That may be asked to update one
    variable or, where the backend is faster so, a list of them: it uses the operators of Python and
    what `Step` offers.

    The state is kept, and the arithmetic done, in float32 for variables of float32, float16 and
    bfloat16, and in float64 for those of float64.
    """

    slots = ("momentum", "velocity")
    scalar_slots = ()

    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        epsilon_root=0.0,
        weight_decay=None,
        clipnorm=None,
        clipvalue=None,
        global_clipnorm=None,
        use_ema=False,
        ema_momentum=0.99,
        ema_overwrite_frequency=None,
        loss_scale_factor=None,
        gradient_accumulation_steps=None,
        name=None,
        **kwargs,
    ):
        finite = {
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
            "clipnorm": clipnorm,
            "clipvalue": clipvalue,
            "global_clipnorm": global_clipnorm,
            "ema_momentum": ema_momentum,
            "loss_scale_factor": loss_scale_factor,
        }
        for argument, value in finite.items():
            if _is_number(value) and not math.isfinite(value):
                raise ValueError(
                    f"Argument `{argument}` must be a finite number. Received: {argument}={value!r}"
                )
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
            use_ema=use_ema,
            ema_momentum=ema_momentum,
            ema_overwrite_frequency=ema_overwrite_frequency,
            loss_scale_factor=loss_scale_factor,
            gradient_accumulation_steps=gradient_accumulation_steps,
            name=name,
            **kwargs,
        )
        self.beta_1 = decay_rate("beta_1", beta_1)
        self.beta_2 = decay_rate("beta_2", beta_2)
        self.epsilon = number_at_least(0, "epsilon", epsilon)
        self.epsilon_root = number_at_least(0, "epsilon_root", epsilon_root)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        # A hyperparameter, maybe; the learning rate is an argument of what was traced.
        if not name.startswith("_") and name != "learning_rate":
            acceleration.forget(self)

    def build(self, variables):
        """Creates the state of an optimizer for these variables."""
        if self.built:
            warn_of_other_variables(self, variables)
            return
        super().build(variables)
        acceleration.set_untracked(self, "_slots", {n: [] for n in self.slots + self.scalar_slots})
        for names in (self.slots, self.scalar_slots):
            for variable in variables:
                for name in names:
                    self._slots[name].append(self._add_slot(variable, name))

    def _add_slot(self, variable, name):
        """A state of one variable: of its shape and layout, or a scalar on its device."""
        if self._overwrite_variable_with_gradient(variable):
            return None
        if name in self.scalar_slots:
            # Not by the variable's path, by which a layout map would find a layout for it.
            kind = {"shape": (), "name": f"{name}_{len(self._slots[name])}"}
        else:
            path = getattr(variable, "path", variable.name).replace("/", "_").replace(":", "_")
            layout = getattr(variable, "_layout", None)
            kind = {"shape": variable.shape, "name": f"{path}_{name}", "layout": layout}
        dtype = precision.compute_dtype(variable.dtype)
        with acceleration.device_of(self, variable):
            return self.add_variable(initializer="zeros", dtype=dtype, **kind)

    def begin_step(self, gradient, variable, learning_rate, kind=Step):
        """The `Step` with which `update_step` reads and writes what belongs to a variable."""
        if isinstance(variable, Step):
            return variable
        index = self._get_variable_index(variable)
        state = {name: states[index] for name, states in self._slots.items()}
        return kind(self, gradient, variable, learning_rate, self.iterations, state)

    def moment_gradients(self, step):
        """The gradients that enter the first and the second moment: here `g_t` enters both."""
        return step.gradient, step.gradient

    def denominator(self, step, second_moment, scale=1.0):
        """`sqrt(v + scale ** 2 * epsilon_root) + scale * epsilon`, and nowhere 0."""
        if self.epsilon_root > 0:
            second_moment = second_moment + scale * scale * self.epsilon_root
        denominator = step.ops.sqrt(second_moment)
        if self.epsilon > 0:
            return denominator + scale * self.epsilon
        return step.ops.where(denominator > 0, denominator, precision.largest(step.dtype))

    def adaptive_step(self, step, m, v):
        """`learning_rate * m_hat / (sqrt(v_hat + epsilon_root) + epsilon)`, moments bias-corrected.

        As in Adam, both sides of the fraction are multiplied by `sqrt(1 - beta_2 ** t)`, which
        leaves the corrections to scalars.
        """
        correction = step.bias_correction(self.beta_2) ** 0.5
        rate = step.learning_rate * (correction / step.bias_correction(self.beta_1))
        return rate * m / self.denominator(step, v, scale=correction)

    def apply(self, grads, trainable_variables=None):
        """Updates the variables from their gradients, see `keras.optimizers.Optimizer.apply`."""
        return super().apply([precision.dense(g) for g in grads], trainable_variables)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        update = acceleration.fast_update(self)
        if update is None:
            super()._backend_update_step(grads, trainable_variables, learning_rate)
        else:
            update(grads, trainable_variables, learning_rate)

    def _parallel_update_step(self, grads, variables, learning_rate):
        """Updates all variables together, as torch's own optimizers in Keras do."""
        acceleration.update_in_lists(self, grads, variables, learning_rate)

    def load_own_variables(self, store):
        """Takes up the state in `store`, see `keras.optimizers.Optimizer`."""
        if not skips_state(self, store):
            super().load_own_variables(store)

    def get_config(self):
        """The arguments with which to make the same optimizer, without its state."""
        config = super().get_config()
        config.update(
            {
                "beta_1": self.beta_1,
                "beta_2": self.beta_2,
                "epsilon": self.epsilon,
                "epsilon_root": self.epsilon_root,
            }
        )
        return config


class NormCorrection(AdaptiveOptimizer):
    """Base class of the Norm variants: `s_t` enters a moment in the place of `g_t`.

    Put before a plain optimizer in the bases of a class, it adds the hyperparameters of the
    correction and one scalar of state per variable, the average norm `e_t`.
    """

    scalar_slots = ("norm_average",)

    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        gamma=0.95,
        corrected_moments="first",
        max_correction=None,
        epsilon_root=0.0,
        weight_decay=None,
        clipnorm=None,
        clipvalue=None,
        global_clipnorm=None,
        use_ema=False,
        ema_momentum=0.99,
        ema_overwrite_frequency=None,
        loss_scale_factor=None,
        gradient_accumulation_steps=None,
        name=None,
        **kwargs,
    ):
        super().__init__(
            learning_rate=learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            epsilon_root=epsilon_root,
            weight_decay=weight_decay,
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
            use_ema=use_ema,
            ema_momentum=ema_momentum,
            ema_overwrite_frequency=ema_overwrite_frequency,
            loss_scale_factor=loss_scale_factor,
            gradient_accumulation_steps=gradient_accumulation_steps,
            name=name,
            **kwargs,
        )
        if corrected_moments not in CORRECTED_MOMENTS:
            allowed = ", ".join(f'"{moments}"' for moments in CORRECTED_MOMENTS)
            raise ValueError(
                f"Argument `corrected_moments` must be one of {allowed}. "
                f"Received: corrected_moments={corrected_moments!r}"
            )
        self.gamma = decay_rate("gamma", gamma)
        self.corrected_moments = corrected_moments
        self.max_correction = (
            None
            if max_correction is None
            else number_at_least(1, "max_correction", max_correction, "None or ")
        )

    @property
    def norm_averages(self):
        """The averages `e_t`, one scalar variable per trainable variable in the order of `build`.

        `None` stands where a variable is overwritten with its gradient and keeps no state.
        """
        return list(self._slots["norm_average"]) if self.built else []

    def moment_gradients(self, step):
        """The gradients that enter the first and the second moment, `s_t` or `g_t`."""
        g = step.gradient
        s, e = correct_norm(
            g, step.read("norm_average"), self.gamma, self.max_correction, norm=step.norm()
        )
        step.write("norm_average", e)
        return (
            g if self.corrected_moments == "second" else s,
            g if self.corrected_moments == "first" else s,
        )

    def get_config(self):
        """The arguments with which to make the same optimizer, without its state."""
        config = super().get_config()
        config.update(
            {
                "gamma": self.gamma,
                "corrected_moments": self.corrected_moments,
                "max_correction": self.max_correction,
            }
        )
        return config


def warn_of_other_variables(optimizer, variables):
    """Warns if a built optimizer is to be built again, for variables that it does not know.

    Keras leaves it as it is. Its `apply` will refuse them; its `stateless_apply`, and with it `fit`
    on JAX, can't tell them apart and goes on with the state of the others.
    """
    known = optimizer._trainable_variables_indices
    if any(optimizer._var_key(variable) not in known for variable in variables):
        name = type(optimizer).__name__
        warnings.warn(
            f"{name} has been built for other variables, and keeps their state: `build` does "
            f"nothing. Make a new optimizer, `{name}.from_config(optimizer.get_config())`.",
            stacklevel=3,
        )


def skips_state(optimizer, store):
    """Whether what is stored is not for this optimizer: warns if there is state that is lost."""
    saved, here = len(store.keys()), len(optimizer.variables)
    if optimizer.built:
        # One that was saved before it was built has no state; without a step, neither has this one.
        return saved <= UNBUILT < here and int(optimizer.iterations) == 0
    if saved <= here:
        return False
    warnings.warn(
        f"Skipping variable loading for optimizer '{optimizer.name}', which is not built: its "
        "state is lost. Call `optimizer.build(model.trainable_variables)` before you load it.",
        stacklevel=3,
    )
    return True


def decay_rate(argument, value):
    """The value as a float, if it can be the decay of an average: a number in [0, 1)."""
    if not _is_number(value) or not 0 <= value < 1:
        raise ValueError(
            f"Argument `{argument}` must be in the range [0, 1). Received: {argument}={value!r}"
        )
    return float(value)


def number_at_least(minimum, argument, value, alternative=""):
    """The value as a float, if it is a finite number not below the minimum."""
    if not _is_number(value) or not minimum <= value < math.inf:
        raise ValueError(
            f"Argument `{argument}` must be {alternative}a finite number >= {minimum}. "
            f"Received: {argument}={value!r}"
        )
    return float(value)


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
