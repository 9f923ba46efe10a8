"""TensorFlow under a strategy of `tf.distribute`: taken where `Strategy.scope` or `run` is active.

Keras has summed the gradients over the devices when this is called. Each device then takes the
norms of the sums, which are the same everywhere, and updates its own copy of the variables.
"""

from keras_adanorm.engine import ways


def update_under_strategy(optimizer, distribution, grads_and_vars, learning_rate):
    """Updates the variables on all devices, in the cross-replica context that Keras has entered."""

    def update(_, gradients, variables, learning_rate):
        ways.one_by_one(optimizer, gradients, variables, learning_rate)

    _on_each_device(optimizer, distribution, update, grads_and_vars, learning_rate)


def update_with_correction(wrapper, distribution, grads_and_vars, learning_rate):
    """Has the inner optimizer of an `AdaNorm` update the variables with `s_t`."""

    def update(_, gradients, variables, learning_rate):
        ratios = wrapper.norm_ratios(gradients, variables)
        corrected = wrapper.scaled(gradients, variables, ratios)
        for gradient, variable in zip(corrected, variables, strict=True):
            wrapper.inner_optimizer.update_step(gradient, variable, learning_rate)

    _on_each_device(wrapper, distribution, update, grads_and_vars, learning_rate)


def _on_each_device(optimizer, distribution, function, grads_and_vars, learning_rate):
    """Calls a function on each device with what lies there of the gradients and variables."""
    gradients, variables = (list(values) for values in zip(*grads_and_vars, strict=True))
    vector = getattr(optimizer, "norm_vector", None)
    # A variable that every device has a copy of. The function does not need it.
    anchor = variables[0] if vector is None else vector.value
    arguments = (gradients, variables, learning_rate)
    distribution.extended.update(anchor, function, args=arguments, group=False)
