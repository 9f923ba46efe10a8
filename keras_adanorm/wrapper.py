"""AdaNorm: the norm correction around any Keras optimizer."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_adanorm import checks
from keras_adanorm.base import NormCorrection, StepOptimizer
from keras_adanorm.engine import precision, private, ways
from keras_adanorm.engine.averages import NormAverages, from_scalars
from keras_adanorm.engine.exclusions import (
    FROM_NORM_CORRECTION,
    Exclusions,
    exclude_before_build,
)

# Where Keras itself leads the gradients from `apply` to the update in which they are corrected.
_WAY_TO_THE_UPDATE = ("apply", "stateless_apply", "_backend_apply_gradients")

_LARGEST_FLOAT16 = 65504.0

# They leave the updates to optimizers inside them. An older Keras has no `MultiOptimizer`.
_DELEGATING = private.optimizer_classes("LossScaleOptimizer", "MultiOptimizer")

# What is read and set through the wrapper and held by the inner optimizer alone.
_SETTINGS = (
    "learning_rate",
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)
_STATE = (
    "_iterations",
    "_learning_rate",
    "_model_variables_moving_average",
    "_trainable_variables",
    "_trainable_variables_indices",
)


@keras.saving.register_keras_serializable(package="keras_adanorm")
class AdaNorm(keras.optimizers.Optimizer):
    """Any Keras optimizer with the gradient norm correction of AdaNorm.

    The inner optimizer is given `s_t` in place of every gradient `g_t`, per variable:

    ```
    e_t = gamma * e_{t-1} + (1 - gamma) * ||g_t||                    (equation 4 of the paper)
    s_t = (e_t / ||g_t||) * g_t   if e_t > ||g_t||   else   g_t      (equation 3)
    ```

    Everything else is the inner optimizer's own work, done once and where it always is: `g_t` is
    the gradient that would have entered its update, so after loss scaling, accumulation, clipping
    and the sum over devices. `s_t` has the dtype of `g_t`, while norm and average are taken in
    float32 (float64 for float64 variables); in float16 the ratio is held so that `s_t` is finite
    if `g_t` is. A sparse gradient stays sparse.

    With an optimizer that has one moment (`SGD` with momentum, `Lion`) this is the paper's method.
    With one that has two (`Adam` and its relatives) the correction enters both, which is the "both
    moments" row of the paper's Table 3: there it was less accurate than the correction of the
    first moment alone, in all nine comparisons. For the latter see `AdamNorm`, `DiffGradNorm`,
    `RadamNorm` and `AdaBeliefNorm`.

    Args:
        optimizer: A `keras.optimizers.Optimizer`, or what `keras.optimizers.get` makes one of. It
            belongs to the wrapper from then on: do not use it by itself. State that it has is
            kept. It may be any class that writes its algorithm in `update_step`, and this package's
            `DiffGrad`, `Radam` and `AdaBelief`. Of Keras' own these are tested: `SGD`, `RMSprop`,
            `Adam`, `AdamW`, `Adamax`, `Nadam`, `Adagrad`, `Adadelta`, `Ftrl`, `Lion`, `Lamb`,
            `Adafactor`, `Muon` and `ScheduleFreeAdamW`.
        gamma: Float in [0, 1), the decay of the average gradient norm `e_t`. With 0 the wrapper
            equals the inner optimizer bit for bit; compiled by JAX 0.4, the last digit may differ.
            Defaults to `0.95`.
        max_correction: Float, at least 1, an upper bound on `e_t / ||g_t||`, or `None` for none, as
            in the paper. Defaults to `None`.
        name: String or `None`, the name of the optimizer. Defaults to `None`.

    Attributes:
        inner_optimizer: The optimizer that was given.
        norm_averages: The averages `e_t`, a list with one scalar tensor per trainable variable.

    The learning rate and all settings common to Keras optimizers are read and set through the
    wrapper and are the inner optimizer's. An inner optimizer of Keras, like `Adam`, does not keep
    what `exclude_from_weight_decay` excluded in a saved model: call it again after loading. For
    loss scaling, and for several optimizers in one model, put the wrapper inside:
    `LossScaleOptimizer(AdaNorm(optimizer))`, and likewise in a `MultiOptimizer`.

    Raises:
        ValueError: If an argument is outside its range; if a setting of the inner optimizer is
            given to the wrapper; or if the optimizer can't be wrapped: a Norm variant or another
            `AdaNorm` corrects gradients already, a `LossScaleOptimizer` or `MultiOptimizer` must
            be outside of the wrapper, and a class with an `apply` of its own may update without it.

    Example:

    >>> import keras, keras_adanorm
    >>> sgd = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
    >>> optimizer = keras_adanorm.AdaNorm(sgd)
    >>> variable = keras.Variable([1.0, 2.0])
    >>> for scale in (1.0, 0.01):
    ...     optimizer.apply([keras.ops.multiply(scale, [3.0, 4.0])], [variable])
    >>> round(float(optimizer.norm_averages[0]), 4)  # 0.95 * (0.05 * 5) + 0.05 * 0.05
    0.24

    Reference:
        Dubey et al., "AdaNorm: Adaptive Gradient Norm Correction based Optimizer for CNNs",
        WACV 2023, equations 2 to 4 and Table 3.
    """

    def __init__(
        self,
        optimizer: Any,
        gamma: float = 0.95,
        max_correction: float | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        for argument in kwargs:
            raise ValueError(
                f"AdaNorm does not take `{argument}`: set it on the optimizer that it wraps. "
                f"Received: {argument}={kwargs[argument]}"
            )
        optimizer = _wrappable(optimizer)
        # The inner optimizer holds the learning rate and counts the steps. What the base class has
        # of both is neither used nor saved.
        super().__init__(learning_rate=lambda: optimizer.learning_rate, name=name)
        self.gamma = checks.decay_rate("gamma", gamma)
        self.max_correction = checks.correction_bound(max_correction)
        private.set_untracked(self, "_norm_averages", None)
        private.set_untracked(self, "_norm_exclusions", Exclusions(FROM_NORM_CORRECTION))
        self.inner_optimizer = optimizer
        self._correct_its_gradients()
        self._save_it_once()
        if optimizer.built:
            self.build(optimizer._trainable_variables)

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the state of both optimizers for these variables."""
        if self.built:
            checks.warn_of_other_variables(self, variables)
            return
        checks.refuse_complex(self, variables)
        inner = self.inner_optimizer
        inner.build(variables)
        inner._check_variables_are_known(variables)
        variables = inner._trainable_variables
        self._norm_exclusions.resolve(self, variables)
        excluded = self._norm_exclusions.positions(variables)
        averages = NormAverages(self, variables, excluded, where=inner)
        private.set_untracked(self, "_norm_averages", averages)
        self.built = True

    def _correct_its_gradients(self):
        """Puts the correction right before the inner optimizer's update, after the all-reduce.

        Under a `tf.distribute` strategy the gradients are summed inside of `_backend_update_step`,
        and in `_distributed_tf_update_step` they are complete. Everywhere else they are when the
        former is called.
        """
        inner = self.inner_optimizer
        update_all = inner._backend_update_step

        def update_all_corrected(grads, trainable_variables, learning_rate):
            if not ways.is_distributed(inner):
                with ways.without_gradients():
                    ratios = self.norm_ratios(grads, trainable_variables)
                    grads = self.scaled(grads, trainable_variables, ratios)
            update_all(grads, trainable_variables, learning_rate)

        private.set_untracked(inner, "_backend_update_step", update_all_corrected)
        if keras.backend.backend() != "tensorflow":
            return
        update_under_strategy = inner._distributed_tf_update_step

        def update_corrected_under_strategy(distribution, grads_and_vars, learning_rate):
            if ways.is_distributed(inner):
                from keras_adanorm.engine.distributed import update_with_correction

                update_with_correction(self, distribution, grads_and_vars, learning_rate)
            else:  # corrected before
                update_under_strategy(distribution, grads_and_vars, learning_rate)

        private.set_untracked(inner, "_distributed_tf_update_step", update_corrected_under_strategy)

    def _save_it_once(self):
        """Keeps the inner optimizer's state out of a file in which it is among the wrapper's.

        Keras saves every optimizer that it finds by `dir`.
        """
        inner = self.inner_optimizer
        load = inner.load_own_variables

        def load_if_any(store):
            checks.warn_of_another_class(inner, store)
            if len(store.keys()):
                load(store)

        private.set_untracked(inner, "save_own_variables", lambda store: None)
        private.set_untracked(inner, "load_own_variables", load_if_any)

    def scaled(
        self, gradients: Sequence[Any], variables: Sequence[Any], ratios: Sequence[Any]
    ) -> list[Any]:
        """`s_t` of each gradient, in the dtype and the storage of `g_t`."""
        return [
            gradient if ratio is None else _scale(gradient, variable, ratio)
            for gradient, variable, ratio in zip(gradients, variables, ratios, strict=True)
        ]

    def norm_ratios(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """`||s_t|| / ||g_t||` of each gradient, a scalar tensor; moves the averages `e_t` on."""
        inner = self.inner_optimizer
        steps = inner.gradient_accumulation_steps
        # On JAX the update runs in every step, and is undone if it was not due.
        keep_if = (inner._iterations + 1) % steps != 0 if steps else None
        return self._norm_averages.correct(
            [ways.in_compute_dtype(g, v) for g, v in zip(gradients, variables, strict=True)],
            [inner._get_variable_index(variable) for variable in variables],
            self.gamma,
            self.max_correction,
            keep_if=keep_if,
        )

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Updates the variables from their gradients, see `keras.optimizers.Optimizer.apply`."""
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not self.built:
                self.build(trainable_variables)
        self.inner_optimizer.apply(grads, trainable_variables)

    @property
    def variables(self) -> list[Any]:
        """The inner optimizer's variables, then the averages `e_t`."""
        averages = [] if self._norm_averages is None else [self._norm_averages.vector]
        return self.inner_optimizer.variables + averages

    @property
    def norm_averages(self) -> list[Any]:
        """The averages `e_t`, one scalar tensor per trainable variable in the order of `build`.

        `None` stands where a variable is overwritten with its gradient, or excluded.
        """
        return [] if self._norm_averages is None else self._norm_averages.scalars()

    @property
    def norm_vector(self) -> Any:
        """The variable that holds all averages `e_t`, `None` before `build`."""
        return None if self._norm_averages is None else self._norm_averages.vector

    @property
    def iterations(self) -> Any:
        """The number of updates, the inner optimizer's."""
        return self.inner_optimizer.iterations

    def scale_loss(self, loss: Any) -> Any:
        """Scales the loss as the inner optimizer does."""
        return self.inner_optimizer.scale_loss(loss)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Excludes variables from weight decay, see `keras.optimizers.Optimizer`.

        An inner optimizer of Keras, like `Adam`, does not keep this in a saved model: call it again
        after loading. One of this package keeps it.
        """
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list: Any) -> None:
        """Sets the final values of the weights, as the inner optimizer does."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the values of all variables, in the order of `variables`."""
        count = len(self.inner_optimizer.variables)
        self.inner_optimizer.set_weights(weights[:count])
        for variable, weight in zip(self.variables[count:], weights[count:], strict=True):
            variable.assign(weight)

    def exclude_from_norm_correction(self, var_list: Any = None, var_names: Any = None) -> None:
        """Excludes variables from the norm correction, see `NormCorrection`."""
        exclude_before_build(self, var_list, var_names)

    def load_own_variables(self, store: Any) -> None:
        """Takes up the state in `store`, see `keras.optimizers.Optimizer`.

        Warns if the store says that it is the state of another class.
        """
        checks.warn_of_another_class(self, store)
        store = from_scalars(store, self._norm_averages, self.variables)
        if not checks.skips_state(self, store):
            super().load_own_variables(store)

    def get_config(self) -> dict[str, Any]:
        """The arguments with which to make the same optimizer, without its state."""
        config = {
            "name": self.name,
            "optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "gamma": self.gamma,
            "max_correction": self.max_correction,
        }
        return config | self._norm_exclusions.get_config()

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "AdaNorm":
        """Makes an optimizer from what `get_config` returned."""
        config = dict(config)
        exclusions = Exclusions(FROM_NORM_CORRECTION, config.pop(FROM_NORM_CORRECTION, None))
        config["optimizer"] = keras.saving.deserialize_keras_object(
            config["optimizer"], custom_objects=custom_objects
        )
        optimizer = cls(**config)
        private.set_untracked(optimizer, "_norm_exclusions", exclusions)
        return optimizer


def _wrappable(optimizer):
    """The optimizer as an instance, if the correction can be put into it."""
    if isinstance(optimizer, str | dict):
        optimizer = keras.optimizers.get(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            "Argument `optimizer` must be a `keras.optimizers.Optimizer` (an instance, not a "
            f"class). Received: optimizer={optimizer!r}"
        )
    name = type(optimizer).__name__
    if isinstance(optimizer, AdaNorm | NormCorrection):
        raise ValueError(
            "Argument `optimizer` must be an optimizer that does not correct the norm of gradients "
            f"already. Received: optimizer={name}"
        )
    if isinstance(optimizer, _DELEGATING):
        raise ValueError(
            "Argument `optimizer` must be an optimizer that updates variables itself: nest them "
            f"the other way around, with AdaNorm inside. Received: optimizer={name}"
        )
    for method in _WAY_TO_THE_UPDATE:
        if getattr(type(optimizer), method) not in (
            getattr(keras.optimizers.Optimizer, method),
            getattr(StepOptimizer, method),
        ):
            raise ValueError(
                f"Argument `optimizer` must be of a class that leaves `{method}` to Keras: a class "
                f"with its own `{method}` might update variables without the correction. "
                f"Received: optimizer={name}"
            )
    if "_backend_update_step" in vars(optimizer):
        raise ValueError(
            "Argument `optimizer` must not be wrapped already. Make another one from its "
            f"`get_config()`. Received: optimizer={name}"
        )
    return optimizer


def _within_float16(ratio, gradient):
    """The ratio, held where the largest element of a finite gradient would leave float16."""
    peak = ops.max(ops.abs(ops.cast(precision.dense(gradient), "float32")), initial=0.0)
    finite = ops.isfinite(peak)
    most = _LARGEST_FLOAT16 / ops.where(
        ops.logical_and(finite, peak > 0), peak, ops.ones_like(peak)
    )
    most = ops.where(ops.logical_and(finite, peak > 1e-30), most, ratio)
    return ops.where(ratio > most, most, ratio)


def _scale(gradient, variable, ratio):
    """The product in the storage of the gradient and, computed at least in float32, its dtype."""
    if keras.backend.standardize_dtype(gradient.dtype) == "float16":
        ratio = _within_float16(ratio, gradient)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if isinstance(gradient, tf.IndexedSlices):
            values = _scale(gradient.values, variable, ratio)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    gradient = precision.as_tensor(precision.dense(gradient))
    dtype = precision.compute_dtype(variable.dtype)
    product = precision.to_dtype(gradient, dtype) * ratio
    return precision.to_dtype(product, keras.backend.standardize_dtype(gradient.dtype))


def _of_the_inner(name):
    """A property of the inner optimizer's attribute of this name."""

    def read(self):
        return getattr(self.inner_optimizer, name)

    def write(self, value):
        if hasattr(self, "inner_optimizer"):  # else it is the default of the base class
            setattr(self.inner_optimizer, name, value)

    return property(read, write)


for _name in _SETTINGS + _STATE:
    setattr(AdaNorm, _name, _of_the_inner(_name))
