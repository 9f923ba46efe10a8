"""Every name that the libraries don't promise to keep, each with what it is used for.

`tests/test_private_names.py` names the one that is gone when a release has dropped it. Only torch's
operations on lists, such as `torch._foreach_norm`, stand where they are used: its release notes
document them.
"""

import contextlib

import keras

# Attributes of `keras.optimizers.Optimizer` that this package reads, calls or overrides.
OPTIMIZER_NAMES = {
    "_backend_update_step": "overridden: where the gradients are complete, before any update",
    "_get_variable_index": "the position of a variable in the order of `build`",
    "_var_key": "tells whether a variable is known to a built optimizer",
    "_track_variable": "adds the state of a random generator to the optimizer's variables",
    "_check_variables_are_known": "refuses a wrapped optimizer that was built for other variables",
    "_backend_apply_gradients": "a wrapped optimizer must leave it to Keras",
}
# The same of an optimizer that is built, or has been made.
INSTANCE_NAMES = {
    "_iterations": "the wrapper's count of steps is that of its inner optimizer",
    "_learning_rate": "the same for the learning rate",
    "_trainable_variables": "the variables in the order of `build`",
    "_trainable_variables_indices": "their positions",
    "_model_variables_moving_average": "the same for the averages of the weights (`use_ema`)",
}
# Of a `keras.Variable`.
VARIABLE_NAMES = {
    "_value": "its tensor, without the time that a look for scopes takes",
}
# The same, only on JAX.
JAX_VARIABLE_NAMES = {
    "_layout": "the state of a weight is laid out over the devices like the weight",
}
# Of what Keras hands to `load_own_variables`.
STORE_NAMES = {
    "_h5_entry_group": "the name of the optimizer whose state is stored",
}
# Only on TensorFlow.
TENSORFLOW_OPTIMIZER_NAMES = {
    "_distribution_strategy": "the strategy under which the optimizer was made",
    "_distributed_tf_update_step": "overridden: where gradients are summed over the devices",
}
# Of torch.
TORCH_NAMES = {
    "_fused_adam_": "the kernel of `torch.optim.Adam(fused=True)`",
}
# Of `tf.function(experimental_attributes=...)`.
TENSORFLOW_FUNCTION_ATTRIBUTES = {
    "_noinline": "what graphs share is called and not copied into each of them",
}


def set_untracked(optimizer, name, value):
    """Sets an attribute that the tracking of Keras and TensorFlow is not to wrap or save."""
    object.__setattr__(optimizer, name, value)


def is_overwritten_with_gradient(variable):
    """Whether Keras gives a variable its gradient as its value (float8 training)."""
    return getattr(variable, "overwrite_with_gradient", False)


def layout_of(variable):
    """How a weight is laid out over the devices of JAX, `None` where it is not."""
    return getattr(variable, "_layout", None)


def known_indices(optimizer):
    """The positions of the variables for which an optimizer was built, by key."""
    return optimizer._trainable_variables_indices


def strategy_of(optimizer):
    """The `tf.distribute` strategy under which an optimizer was made, or `None`."""
    return getattr(optimizer, "_distribution_strategy", None)


def saved_name(store):
    """The name of the optimizer whose state Keras has stored, `None` where that isn't said.

    The group of a file has it as an attribute, which is not among what a store promises.
    """
    return getattr(getattr(store, "_h5_entry_group", None), "attrs", {}).get("name")


def watches_numbers():
    """Whether one of TensorFlow's numeric debuggers looks at the result of each operation."""
    try:
        from tensorflow.python.framework import op_callbacks
    except ImportError:
        return False
    return bool(op_callbacks.should_invoke_op_callbacks())


def is_compiled_by_xla():
    """Whether TensorFlow is recording for XLA, as part of one program."""
    import tensorflow as tf

    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        return False
    return not tf.executing_eagerly() and GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )


def is_traced_by_jax(value):
    """Whether a JAX transformation (`jit` above all) is recording what is done with a tensor."""
    import jax

    return isinstance(value, jax.core.Tracer)


def jax_in_64_bits():
    """A context in which JAX has float64 (`jax.enable_x64` from 0.8 on)."""
    import jax

    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64

    return enable_x64(True)


def device_of(optimizer, variable):
    """A context in which a new variable lies where the given one does (TensorFlow only)."""
    strategy = strategy_of(optimizer)
    if keras.backend.backend() != "tensorflow" or strategy is None:
        return contextlib.nullcontext()
    return strategy.extended.colocate_vars_with(native(variable))


def tensors_of(variables):
    """What the backend has for Keras variables: tensors of torch, variables of TensorFlow.

    `Variable.value` looks for a scope and a dtype policy at each call, 2 us on a CPU: with three or
    four tensors per variable a third of the time that an update of small ones takes. `_value` is
    what it returns outside of scopes.
    """
    if _in_stateless_scope():
        return [native(variable) for variable in variables]
    tensors = [getattr(variable, "_value", None) for variable in variables]
    return [native(v) if t is None else t for v, t in zip(variables, tensors, strict=True)]


def _in_stateless_scope():
    try:
        from keras.src.backend.common.stateless_scope import in_stateless_scope
    except ImportError:
        return True  # the slower way is always right
    return in_stateless_scope()


def torch_adam():
    """torch's kernel for Adam, `None` where this torch has none of that name."""
    import torch

    return getattr(torch, "_fused_adam_", None)


def native(variable):
    """The backend's own variable of a Keras variable; a TensorFlow variable as it is."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def optimizer_classes(*names):
    """The classes of `keras.optimizers` with these names, as far as this Keras has them.

    `MultiOptimizer` is there from Keras 3.15 on.
    """
    found = (getattr(keras.optimizers, name, None) for name in names)
    return tuple(cls for cls in found if cls is not None)
