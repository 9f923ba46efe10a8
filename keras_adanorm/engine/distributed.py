"""TensorFlow under a strategy of `tf.distribute`: taken where `Strategy.scope` or `run` is active.

Keras has summed the gradients over the devices when this is called. The norms are taken of the
sums, on each device of the same numbers, and then each variable is updated where it lies.
"""

from keras_adanorm.engine import ways
from keras_adanorm.engine.step import Update


def update_under_strategy(optimizer, distribution, grads_and_vars, learning_rate):
    """Updates the variables of all devices, in the cross-replica context that Keras has entered."""
    gradients, variables = zip(*grads_and_vars, strict=True)
    ratios = norm_ratios(optimizer, distribution, gradients, variables)

    def update(variable, gradient, ratio, learning_rate):
        ways.update_one(
            optimizer,
            Update(learning_rate, optimizer.iterations),
            ways.in_compute_dtype(gradient, variable),
            variable,
            ratio,
        )

    for gradient, variable, ratio in zip(gradients, variables, ratios, strict=True):
        arguments = (gradient, ratio, learning_rate)
        distribution.extended.update(variable, update, args=arguments, group=False)


def update_with_correction(wrapper, distribution, grads_and_vars, learning_rate):
    """Has the inner optimizer of an `AdaNorm` update the variables with `s_t`."""
    gradients, variables = zip(*grads_and_vars, strict=True)
    ratios = norm_ratios(wrapper, distribution, gradients, variables)

    def update(variable, gradient, ratio, learning_rate):
        (corrected,) = wrapper.scaled([gradient], [variable], [ratio])
        wrapper.inner_optimizer.update_step(corrected, variable, learning_rate)

    for gradient, variable, ratio in zip(gradients, variables, ratios, strict=True):
        arguments = (gradient, ratio, learning_rate)
        distribution.extended.update(variable, update, args=arguments, group=False)


def norm_ratios(optimizer, distribution, gradients, variables):
    """`||s_t|| / ||g_t||` of each variable, one value for each device; moves `e_t` on everywhere.

    Args:
        optimizer: An optimizer with `norm_ratios` and perhaps `norm_vector`.
        distribution: The strategy.
        gradients: For each variable its summed gradient, one value for each device.
        variables: The variables.
    """
    vector = getattr(optimizer, "norm_vector", None)
    if vector is None:
        return [None] * len(variables)

    def on_one_device(_, gradients):
        pairs = zip(gradients, variables, strict=True)
        return optimizer.norm_ratios([ways.in_compute_dtype(g, v) for g, v in pairs], variables)

    return distribution.extended.update(
        vector.value, on_one_device, args=(list(gradients),), group=False
    )
