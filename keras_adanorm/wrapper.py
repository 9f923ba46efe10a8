"""AdaNorm: the norm correction round any Keras optimizer."""

import keras
from keras import ops

from keras_adanorm import acceleration, precision
from keras_adanorm.base import (
    AdaptiveOptimizer,
    NormCorrection,
    decay_rate,
    number_at_least,
    skips_state,
    warn_of_other_variables,
)
from keras_adanorm.l2_norm import l2_norm
from keras_adanorm.norm_correction import norm_ratio

# Where Keras itself leads the gradients from `apply` to the update in which they are corrected.
_WAY_TO_THE_UPDATE = ("apply", "stateless_apply", "_backend_apply_gradients")

_LARGEST_FLOAT16 = 65504.0

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

    The inner optimizer is given `s_t` in the place of every gradient `g_t`, per variable:

    ```
    e_t = gamma * e_{t-1} + (1 - gamma) * ||g_t||                    (equation 4 of the paper)
    s_t = (e_t / ||g_t||) * g_t   if e_t > ||g_t||   else   g_t      (equation 3)
    ```

    Everything else is the inner optimizer's own work, done once and where it always is: `g_t` is
    the gradient that would have entered its update, so after loss scaling, accumulation, clipping
    and the sum over devices. `s_t` has the dtype of `g_t`, while norm and average are taken in
    float32 (float64 for float64 variables); in float16 the ratio is held so that `s_t` is finite
    if `g_t` is. A sparse gradient stays sparse.

    Round an optimizer with one moment (`SGD` with momentum, `Lion`) this is the paper's method.
    Round one with two moments (`Adam` and its kin) the correction enters both, which is the "both
    moments" row of the paper's Table 3: there it was less accurate than the correction of the
    first moment alone, in all nine comparisons. For the latter see `AdamNorm`, `DiffGradNorm`,
    `RadamNorm` and `AdaBeliefNorm`.

    Args:
        optimizer: A `keras.optimizers.Optimizer`, or what `keras.optimizers.get` makes one of. It
            belongs to the wrapper from then on: do not use it by itself. State that it has is
            kept. `SGD`, `RMSprop`, `Adam`, `AdamW`, `Adamax`, `Nadam`, `Adagrad`, `Adadelta`,
            `Ftrl`, `Lion`, `Lamb`, `Adafactor`, `Muon`, `ScheduleFreeAdamW`, this package's
            `DiffGrad`, `Radam` and `AdaBelief`, and any class that writes its algorithm in
            `update_step`.
        gamma: Float in [0, 1), the decay of the average gradient norm `e_t`. With 0 the wrapper
            equals the inner optimizer bit for bit. Defaults to `0.95`.
        max_correction: Float, at least 1, an upper bound on `e_t / ||g_t||`, or `None` for none, as
            in the paper. Defaults to `None`.
        name: String or `None`, the name of the optimizer. Defaults to `None`.

    Attributes:
        inner_optimizer: The optimizer that was given.
        norm_averages: The averages `e_t`, one scalar variable per trainable variable.

    The learning rate and all settings common to Keras optimizers are read and set through the
    wrapper and are the inner optimizer's. Loss scaling and several optimizers in one model go round
    the wrapper: `LossScaleOptimizer(AdaNorm(optimizer))`, and likewise in a `MultiOptimizer`.

    Raises:
        ValueError: If an argument is outside its range; if a setting of the inner optimizer is
            given to the wrapper; or if the optimizer can't be wrapped: a Norm variant or another
            `AdaNorm` corrects gradients already, a `LossScaleOptimizer` or `MultiOptimizer` goes
            round the wrapper, and a class with an `apply` of its own may update without it.

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

    def __init__(self, optimizer, gamma=0.95, max_correction=None, name=None, **kwargs):
        for argument in kwargs:
            raise ValueError(
                f"AdaNorm does not take `{argument}`: set it on the optimizer that it wraps. "
                f"Received: {argument}={kwargs[argument]}"
            )
        optimizer = _wrappable(optimizer)
        # The inner optimizer holds the learning rate and counts the steps. What the base class has
        # of both is neither used nor saved.
        super().__init__(learning_rate=lambda: optimizer.learning_rate, name=name)
        self.gamma = decay_rate("gamma", gamma)
        self.max_correction = (
            None
            if max_correction is None
            else number_at_least(1, "max_correction", max_correction, "None or ")
        )
        self._norm_averages = []
        self.inner_optimizer = optimizer
        self._correct_its_gradients()
        if optimizer.built:
            self.build(optimizer._trainable_variables)

    def build(self, variables):
        """Creates the state of both optimizers for these variables."""
        if self.built:
            warn_of_other_variables(self, variables)
            return
        inner = self.inner_optimizer
        inner.build(variables)
        inner._check_variables_are_known(variables)
        self._norm_averages = [
            self._add_norm_average(variable, index)
            for index, variable in enumerate(inner._trainable_variables)
        ]
        self.built = True

    def _add_norm_average(self, variable, index):
        if self._overwrite_variable_with_gradient(variable):
            return None
        with acceleration.device_of(self.inner_optimizer, variable):
            return self.add_variable(
                shape=(),
                initializer="zeros",
                dtype=precision.compute_dtype(variable.dtype),
                name=f"norm_average_{index}",
            )

    def _correct_its_gradients(self):
        """Puts the correction right before the inner optimizer's update, after the all-reduce.

        Under a `tf.distribute` strategy the gradients are summed inside of `_backend_update_step`,
        and in `update_step` they are complete. Everywhere else they are when the former is called,
        behind which some optimizers have a faster way than `update_step`.
        """
        inner = self.inner_optimizer
        update_all, update_one = inner._backend_update_step, inner.update_step

        def update_all_corrected(grads, trainable_variables, learning_rate):
            if not acceleration.is_distributed(inner):
                pairs = zip(grads, trainable_variables, strict=True)
                grads = [self._correct(gradient, variable) for gradient, variable in pairs]
            update_all(grads, trainable_variables, learning_rate)

        def update_one_corrected(gradient, variable, learning_rate):
            if acceleration.is_distributed(inner):
                gradient = self._correct(gradient, variable)
            update_one(gradient, variable, learning_rate)

        acceleration.set_untracked(inner, "_backend_update_step", update_all_corrected)
        acceleration.set_untracked(inner, "update_step", update_one_corrected)

    def _correct(self, gradient, variable):
        """`s_t`, in the dtype and the storage of `g_t`; moves `e_t` on."""
        inner = self.inner_optimizer
        state = self._norm_averages[inner._get_variable_index(variable)]
        dtype = precision.compute_dtype(variable.dtype)
        norm = l2_norm(ops.cast(precision.dense(gradient), dtype))
        before = precision.as_tensor(state)
        ratio, average = norm_ratio(norm, before, self.gamma, self.max_correction)
        steps = inner.gradient_accumulation_steps
        if steps:  # on JAX the update runs in every step, and is undone if it was not due
            average = ops.where((inner._iterations + 1) % steps == 0, average, before)
        self.assign(state, average)
        if ratio is None:
            return gradient
        if keras.backend.standardize_dtype(gradient.dtype) == "float16":
            ratio = _within_float16(ratio, gradient)
        return _scale(gradient, ratio, dtype)

    def apply(self, grads, trainable_variables=None):
        """Updates the variables from their gradients, see `keras.optimizers.Optimizer.apply`."""
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not self.built:
                self.build(trainable_variables)
        self.inner_optimizer.apply(grads, trainable_variables)

    @property
    def variables(self):
        """The inner optimizer's variables, then the averages `e_t`."""
        averages = [average for average in self._norm_averages if average is not None]
        return self.inner_optimizer.variables + averages

    @property
    def norm_averages(self):
        """The averages `e_t`, one scalar variable per trainable variable in the order of `build`.

        `None` stands where a variable is overwritten with its gradient and keeps no state.
        """
        return list(self._norm_averages)

    @property
    def iterations(self):
        """The number of updates, the inner optimizer's."""
        return self.inner_optimizer.iterations

    def scale_loss(self, loss):
        """Scales the loss as the inner optimizer does."""
        return self.inner_optimizer.scale_loss(loss)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Excludes variables from weight decay, see `keras.optimizers.Optimizer`."""
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list):
        """Sets the final values of the weights, as the inner optimizer does."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def set_weights(self, weights):
        """Sets the values of all variables, in the order of `variables`."""
        count = len(self.inner_optimizer.variables)
        self.inner_optimizer.set_weights(weights[:count])
        for variable, weight in zip(self.variables[count:], weights[count:], strict=True):
            variable.assign(weight)

    def load_own_variables(self, store):
        """Takes up the state in `store`, see `keras.optimizers.Optimizer`."""
        if not skips_state(self, store):
            super().load_own_variables(store)

    def get_config(self):
        """The arguments with which to make the same optimizer, without its state."""
        return {
            "name": self.name,
            "optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "gamma": self.gamma,
            "max_correction": self.max_correction,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Makes an optimizer from what `get_config` returned."""
        optimizer = keras.saving.deserialize_keras_object(
            config["optimizer"], custom_objects=custom_objects
        )
        return cls(**{**config, "optimizer": optimizer})

    def __dir__(self):
        # Keras saves the state of all optimizers that it finds here, beside that of `variables`:
        # without this the inner optimizer's would be in a file twice.
        return [name for name in super().__dir__() if name != "inner_optimizer"]


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
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer | keras.optimizers.MultiOptimizer):
        raise ValueError(
            "Argument `optimizer` must be an optimizer that updates variables itself: nest them "
            f"the other way round, with AdaNorm inside. Received: optimizer={name}"
        )
    for method in _WAY_TO_THE_UPDATE:
        if getattr(type(optimizer), method) not in (
            getattr(keras.optimizers.Optimizer, method),
            getattr(AdaptiveOptimizer, method),
        ):
            raise ValueError(
                f"Argument `optimizer` must be of a class that leaves `{method}` to Keras: one "
                f"of its own might update variables without the correction. Received: "
                f"optimizer={name}"
            )
    if "update_step" in vars(optimizer):
        raise ValueError(
            "Argument `optimizer` must not be wrapped already. Make another one from its "
            f"`get_config()`. Received: optimizer={name}"
        )
    return optimizer


def _within_float16(ratio, gradient):
    """The ratio, held where the largest element of a finite gradient would leave float16."""
    peak = ops.max(ops.abs(ops.cast(precision.dense(gradient), "float32")), initial=0.0)
    fits = ops.logical_or(peak * ratio <= _LARGEST_FLOAT16, ops.logical_not(ops.isfinite(peak)))
    return ops.where(fits, ratio, _LARGEST_FLOAT16 / ops.where(fits, ops.ones_like(peak), peak))


def _scale(gradient, ratio, dtype):
    """The product in the storage of the gradient and, computed in `dtype`, in its dtype."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if isinstance(gradient, tf.IndexedSlices):
            values = _scale(gradient.values, ratio, dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    gradient = precision.dense(gradient)
    return ops.cast(ops.cast(gradient, dtype) * ratio, gradient.dtype)


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
