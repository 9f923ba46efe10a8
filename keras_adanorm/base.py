"""What the optimizers share: hyperparameters, state, and the way a step reaches the algorithm."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from keras_adanorm import checks
from keras_adanorm.engine import precision, private, ways
from keras_adanorm.engine.averages import NormAverages, from_scalars
from keras_adanorm.engine.exclusions import (
    FROM_NORM_CORRECTION,
    FROM_WEIGHT_DECAY,
    Exclusions,
    exclude_before_build,
)
from keras_adanorm.engine.step import Step

CORRECTED_MOMENTS = ("first", "second", "both")


class StepOptimizer(keras.optimizers.Optimizer):
    """Base class of an optimizer whose algorithm is one method, `algorithm(step)`.

    A subclass names its state in `slots` and writes its algorithm for one variable and one step.
    The state is kept, and the arithmetic done, in float32 for variables of float32, float16 and
    bfloat16, and in float64 for those of float64.

    Args:
        learning_rate: A float, a `keras.optimizers.schedules.LearningRateSchedule`, or a callable
            that takes no argument and returns the learning rate. Defaults to `0.001`.
        **kwargs: `weight_decay`, `clipnorm`, `clipvalue`, `global_clipnorm`, `use_ema`,
            `ema_momentum`, `ema_overwrite_frequency`, `loss_scale_factor`,
            `gradient_accumulation_steps` and `name`: see `keras.optimizers.Optimizer`.

    Attributes:
        slots: Tuple of strings, the names of the state, of which each variable has its own. A state
            is of the variable's shape and 0 at the start, unless `slot_shape` or `slot_initializer`
            say else.
        elementwise: Boolean, whether each element of the new weight and the new state depends on
            the same element of the gradient, the weight and the state alone, beside scalars.
            Several variables, or parts of one, may then be updated as one tensor, which is faster.
            Defaults to `False`, which is always right.

    Raises:
        ValueError: If an argument is outside its range, or at `build` for complex variables.

    Example:

    >>> import keras, keras_adanorm
    >>> @keras.saving.register_keras_serializable(package="my_package")
    ... class SignDescent(keras_adanorm.StepOptimizer):
    ...     elementwise = True
    ...
    ...     def algorithm(self, step):
    ...         step.descend(step.learning_rate * keras.ops.sign(step.gradient))
    >>> variable = keras.Variable([1.0, -1.0])
    >>> SignDescent(0.5).apply([keras.ops.convert_to_tensor([3.0, -0.1])], [variable])
    >>> keras.ops.convert_to_numpy(variable.value).tolist()
    [0.5, -0.5]
    """

    slots: tuple[str, ...] = ()
    elementwise: bool = False

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
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
            checks.finite_if_number(argument, value)
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
        private.set_untracked(self, "_weight_decay_exclusions", Exclusions(FROM_WEIGHT_DECAY))

    # ------------------------------------------------------------ what a subclass writes

    def algorithm(self, step: Step) -> None:
        """One step of one variable. See `keras_adanorm.Step` for what it offers."""
        raise NotImplementedError(f"{type(self).__name__} must have a method `algorithm(step)`.")

    def slot_shape(self, name: str, variable: Any) -> tuple[int, ...]:
        """The shape of a variable's state `name`: the variable's own."""
        return tuple(variable.shape)

    def slot_initializer(self, name: str, variable: Any) -> Any:
        """A Keras initializer for a variable's state `name`: zeros."""
        return "zeros"

    # ------------------------------------------------------------ what Keras calls

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the state of an optimizer for these variables."""
        if self.built:
            checks.warn_of_other_variables(self, variables)
            return
        checks.refuse_complex(self, variables)
        kept = self._weight_decay_exclusions
        kept.resolve(self, variables)
        if excluded := kept.variables(variables):  # Keras has yet to be told those of a config
            super().exclude_from_weight_decay(excluded, kept.var_names)
        super().build(variables)
        slots = {name: [None] * len(variables) for name in self.slots}
        for i, variable in enumerate(variables):
            if not private.is_overwritten_with_gradient(variable):
                for name in self.slots:
                    slots[name][i] = self._add_slot(name, variable)
        private.set_untracked(self, "_slots", slots)
        for value in list(vars(self).values()):
            if isinstance(value, keras.random.SeedGenerator):
                self._track_variable(value.state)

    def _add_slot(self, name, variable):
        path = getattr(variable, "path", variable.name).replace("/", "_").replace(":", "_")
        shape = tuple(self.slot_shape(name, variable))
        is_like_it = shape == tuple(variable.shape)
        with private.device_of(self, variable):
            return self.add_variable(
                shape=shape,
                initializer=_own_memory(self.slot_initializer(name, variable)),
                dtype=precision.compute_dtype(variable.dtype),
                name=f"{path}_{name}",
                layout=private.layout_of(variable) if is_like_it else None,
            )

    def state_of(self, variable: Any) -> dict[str, Any]:
        """The state of a variable, a dict of name to variable."""
        index = self._get_variable_index(variable)
        return {name: states[index] for name, states in self._slots.items()}

    def norm_ratios(
        self, gradients: Sequence[Any], variables: Sequence[Any], norms: Any = None
    ) -> list[Any]:
        """`||s_t|| / ||g_t||` of each gradient, `None` where it is always 1, as it is here."""
        return [None] * len(gradients)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates a variable and its state, as Keras calls it.

        A subclass may change the gradient or the learning rate and call this. It is then called
        for each variable; without such a subclass variables may be updated together.
        """
        ways.one_by_one(self, [gradient], [variable], learning_rate)

    def begin_step(self, gradient: Any, variable: Any, learning_rate: Any) -> Step:
        """A step for an `update_step` of one's own, in which everything takes effect at once.

        Without a reason to write `update_step`, write `algorithm`.
        """
        return ways.begin_step(self, gradient, variable, learning_rate)

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Updates the variables from their gradients, see `keras.optimizers.Optimizer.apply`."""
        return super().apply([precision.dense(g) for g in grads], trainable_variables)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if ways.is_distributed(self) or not ways.is_run_by_the_package(self, StepOptimizer):
            with ways.without_gradients():
                super()._backend_update_step(grads, trainable_variables, learning_rate)
        else:
            ways.update_all(self, grads, trainable_variables, learning_rate)

    def _distributed_tf_update_step(self, distribution, grads_and_vars, learning_rate):
        if ways.is_run_by_the_package(self, StepOptimizer):
            from keras_adanorm.engine.distributed import update_under_strategy

            update_under_strategy(self, distribution, grads_and_vars, learning_rate)
        else:
            super()._distributed_tf_update_step(distribution, grads_and_vars, learning_rate)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Excludes variables from weight decay, see `keras.optimizers.Optimizer`.

        What is excluded is kept in the config, and with it in a saved model: names always, a list
        of variables once the optimizer is built.
        """
        # As lists, for Keras and for the config alike. Keras takes a string for its letters.
        var_list, var_names = (
            list(given) if isinstance(given, Iterable) and not hasattr(given, "shape") else given
            for given in (var_list, var_names)
        )
        super().exclude_from_weight_decay(var_list, var_names)
        self._weight_decay_exclusions.set(var_list, var_names)
        if self.built:  # where this Keras allows it
            self._weight_decay_exclusions.resolve(self, self._trainable_variables)

    def load_own_variables(self, store: Any) -> None:
        """Takes up the state in `store`, see `keras.optimizers.Optimizer`.

        Warns if the store says that it is the state of another class.
        """
        checks.warn_of_another_class(self, store)
        store = self._in_this_layout(store)
        if not checks.skips_state(self, store):
            super().load_own_variables(store)

    def _in_this_layout(self, store):
        return store

    def get_config(self) -> dict[str, Any]:
        """The arguments with which to make the same optimizer, without its state."""
        return super().get_config() | self._weight_decay_exclusions.get_config()

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "StepOptimizer":
        """Makes an optimizer from what `get_config` returned."""
        config = dict(config)
        excluded = config.pop(FROM_WEIGHT_DECAY, None)
        optimizer = super().from_config(config, custom_objects)
        if excluded:
            exclusions = Exclusions(FROM_WEIGHT_DECAY, excluded)
            optimizer.exclude_from_weight_decay(var_names=exclusions.var_names)
            private.set_untracked(optimizer, "_weight_decay_exclusions", exclusions)
        return optimizer


class AdaptiveOptimizer(StepOptimizer):
    """Base class of optimizers with two moments, which divide the first by the second's root.

    Args:
        beta_1: Float in [0, 1), the decay of the first moment. Defaults to `0.9`.
        beta_2: Float in [0, 1), the decay of the second moment. Defaults to `0.999`.
        epsilon: Float, at least 0, added to the root of the second moment. Defaults to `1e-8`.
        epsilon_root: Float, at least 0, added to the second moment under the root. Defaults to
            `0.0`.
        epsilon_hat: Boolean, whether `adaptive_step` adds epsilon to the root before the correction
            for bias, as `keras.optimizers.Adam` does, and not after it, as the paper does. Without
            effect in an algorithm that does not call it, as in `Radam`. Defaults to `False`.
        **kwargs: See `StepOptimizer`.

    Raises:
        ValueError: If an argument is outside its range.
    """

    slots = ("momentum", "velocity")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        epsilon_root: float = 0.0,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str | None = None,
        epsilon_hat: bool = False,
        **kwargs: Any,
    ) -> None:
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
        self.beta_1 = checks.decay_rate("beta_1", beta_1)
        self.beta_2 = checks.decay_rate("beta_2", beta_2)
        self.epsilon = checks.number_at_least(0, "epsilon", epsilon)
        self.epsilon_root = checks.number_at_least(0, "epsilon_root", epsilon_root)
        self.epsilon_hat = checks.boolean("epsilon_hat", epsilon_hat)

    def moment_gradients(self, step: Step) -> tuple[Any, Any]:
        """The gradients that enter the first and the second moment: here `g_t` enters both."""
        return step.gradient, step.gradient

    def adaptive_rate(self, step: Step) -> tuple[Any, Any]:
        """The learning rate and the scale of epsilon, with both corrections for bias.

        As in Adam, both sides of `m_hat / (sqrt(v_hat) + epsilon)` are multiplied by
        `sqrt(1 - beta_2 ** t)`, which leaves the corrections to scalars.
        """
        correction = step.bias_correction(self.beta_2) ** 0.5
        rate = step.learning_rate * (correction / step.bias_correction(self.beta_1))
        return rate, correction

    def denominator(self, step: Step, second_moment: Any, scale: Any = 1.0) -> Any:
        """`sqrt(v + scale ** 2 * epsilon_root) + scale * epsilon`, and nowhere 0.

        With `epsilon_hat` it is `epsilon` that is added.
        """
        epsilon_root, epsilon = map(precision.number, (self.epsilon_root, self.epsilon))
        if not precision.is_zero(epsilon_root):
            second_moment = second_moment + scale * scale * epsilon_root
        if precision.is_zero(epsilon) or self.epsilon_hat:
            return step.root(second_moment, epsilon)
        return step.root(second_moment, scale * epsilon)

    def adaptive_step(self, step: Step, m: Any, v: Any, factor: Any = None) -> None:
        """Takes `learning_rate * factor * m_hat / (sqrt(v_hat + epsilon_root) + epsilon)` off."""
        rate, scale = step.once(self.adaptive_rate)
        numerator = m if factor is None else factor * m
        step.descend_quotient(rate, numerator, self.denominator(step, v, scale))

    def get_config(self) -> dict[str, Any]:
        """The arguments with which to make the same optimizer, without its state."""
        config = super().get_config()
        config.update(
            {
                "beta_1": self.beta_1,
                "beta_2": self.beta_2,
                "epsilon": self.epsilon,
                "epsilon_root": self.epsilon_root,
                "epsilon_hat": self.epsilon_hat,
            }
        )
        return config


class NormCorrection(StepOptimizer):
    """Base class of optimizers that use `s_t`, the gradient with the norm correction.

    In a subclass `step.corrected_gradient` is `s_t` and `step.gradient` is `g_t`. All optimizers
    with this base keep one vector of state, the average norms `e_t`. Put it before a plain
    optimizer in the bases of a class, or use it alone.

    Args:
        gamma: Float in [0, 1), the decay of the average gradient norm `e_t`. With 0 nothing is
            ever corrected. Defaults to `0.95`.
        max_correction: Float, at least 1, an upper bound on `e_t / ||g_t||`, or `None` for none.
            Defaults to `None`.
        **kwargs: See the class that comes after this one in the bases.

    Raises:
        ValueError: If an argument is outside its range.
    """

    def __init__(
        self, *args: Any, gamma: float = 0.95, max_correction: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.gamma = checks.decay_rate("gamma", gamma)
        self.max_correction = checks.correction_bound(max_correction)
        private.set_untracked(self, "_norm_exclusions", Exclusions(FROM_NORM_CORRECTION))
        private.set_untracked(self, "_norm_averages", None)

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the state of an optimizer for these variables."""
        if self.built:
            checks.warn_of_other_variables(self, variables)
            return
        super().build(variables)
        self._norm_exclusions.resolve(self, variables)
        excluded = self._norm_exclusions.positions(variables)
        private.set_untracked(self, "_norm_averages", NormAverages(self, variables, excluded))

    @property
    def norm_averages(self) -> list[Any]:
        """The averages `e_t`, one scalar tensor per trainable variable in the order of `build`.

        `None` stands where a variable is overwritten with its gradient, or excluded.
        """
        return self._norm_averages.scalars() if self.built else []

    @property
    def norm_vector(self) -> Any:
        """The variable that holds all averages `e_t`, `None` before `build`."""
        return self._norm_averages.vector if self.built else None

    def norm_ratios(
        self, gradients: Sequence[Any], variables: Sequence[Any], norms: Any = None
    ) -> list[Any]:
        """`||s_t|| / ||g_t||` of each gradient, a scalar tensor; moves the averages `e_t` on.

        `norms` is a vector of the gradients' norms where they are known.
        """
        indices = [self._get_variable_index(variable) for variable in variables]
        return self._norm_averages.correct(
            gradients, indices, self.gamma, self.max_correction, norms
        )

    def exclude_from_norm_correction(self, var_list: Any = None, var_names: Any = None) -> None:
        """Excludes variables from the norm correction: biases, say, or embeddings.

        They are updated as with `gamma=0`. To be called before the optimizer is built. What is
        excluded is kept in the config, and with it in a saved model: names always, a list of
        variables once the optimizer is built.

        Args:
            var_list: List of variables, or `None`.
            var_names: List of strings, regular expressions. A variable is excluded if one of them
                is found in its own name, such as `kernel`, of which the layer's name is no part.

        Raises:
            ValueError: If the optimizer is built already, or if an argument is not such a list.
        """
        exclude_before_build(self, var_list, var_names)

    def _in_this_layout(self, store):
        return from_scalars(store, self._norm_averages, self.variables)

    def get_config(self) -> dict[str, Any]:
        """The arguments with which to make the same optimizer, without its state."""
        config = super().get_config()
        config.update({"gamma": self.gamma, "max_correction": self.max_correction})
        return config | self._norm_exclusions.get_config()

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "NormCorrection":
        """Makes an optimizer from what `get_config` returned."""
        config = dict(config)
        exclusions = Exclusions(FROM_NORM_CORRECTION, config.pop(FROM_NORM_CORRECTION, None))
        optimizer = super().from_config(config, custom_objects)
        private.set_untracked(optimizer, "_norm_exclusions", exclusions)
        return optimizer


class AdaptiveNormCorrection(NormCorrection, AdaptiveOptimizer):
    """Base class of the four Norm variants: `s_t` enters a moment in place of `g_t`.

    Put before a plain optimizer with two moments in the bases of a class, it adds the
    hyperparameters of the correction.

    Args:
        corrected_moments: `"first"`, `"second"` or `"both"`: the moments that `s_t` enters in
            place of `g_t`. Defaults to `"first"`.
        gamma: See `NormCorrection`.
        max_correction: See `NormCorrection`.
        **kwargs: See `AdaptiveOptimizer`.

    Raises:
        ValueError: If an argument is outside its range.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        gamma: float = 0.95,
        corrected_moments: str = "first",
        max_correction: float | None = None,
        epsilon_root: float = 0.0,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str | None = None,
        epsilon_hat: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            gamma=gamma,
            max_correction=max_correction,
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
            epsilon_hat=epsilon_hat,
            **kwargs,
        )
        self.corrected_moments = checks.one_of(
            CORRECTED_MOMENTS, "corrected_moments", corrected_moments
        )

    def moment_gradients(self, step: Step) -> tuple[Any, Any]:
        """The gradients that enter the first and the second moment, `s_t` or `g_t`."""
        g, s = step.gradient, step.corrected_gradient
        return (
            g if self.corrected_moments == "second" else s,
            g if self.corrected_moments == "first" else s,
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments with which to make the same optimizer, without its state."""
        return {**super().get_config(), "corrected_moments": self.corrected_moments}


def _own_memory(initializer):
    """The initializer. What a function returns is copied: on torch it may be a weight's memory."""
    if not callable(initializer):
        return initializer
    return lambda shape, dtype=None: keras.ops.copy(initializer(shape, dtype=dtype))
