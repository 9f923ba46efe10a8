"""What Keras promises of every optimizer: arguments, copies, and what surrounds the algorithm.

One suite over all seven classes. It asks what Keras' own optimizer tests ask, with gradients on
which the correction fires, and asks it of `e_t` too. What Keras leaves open (a copy of a trained
optimizer, an optimizer moved to another model) must go as it goes with `keras.optimizers.Adam`.
"""

import copy
import inspect
import json
import logging
import pickle
import re
import warnings

import keras
import numpy as np
import pytest
from keras import ops

from tests.support.optimizers import (
    BACKEND,
    KERAS,
    NORM_CLASSES,
    Run,
    algorithm,
    every_class,
    every_norm_class,
    swinging_gradients,
    tensorflow_only,
    to_numpy,
)
from tests.support.reference import Reference

LR = 0.1
LOOPS = {"tensorflow": ("eager", "graph"), "jax": ("jit",), "torch": ("eager",)}[BACKEND]
# One shape for both: TensorFlow traces the update once per shape.
SHAPES = {"kernel": (2, 3), "bias": (2, 3)}
PARAMS = {
    "kernel": np.float32([[1.0, -2.0, 0.5], [0.25, 1.5, -0.75]]),
    "bias": np.float32([[0.5, 0.125, -1.0], [2.0, -0.5, 1.0]]),
}
CLOSE = dict(rtol=2e-5, atol=2e-6)

NON_DEFAULT = dict(
    learning_rate=0.25,
    beta_1=0.5,
    beta_2=0.75,
    epsilon=0.125,
    epsilon_root=0.0625,
    epsilon_hat=True,
    weight_decay=0.5,
    clipnorm=2.0,
    use_ema=True,
    ema_momentum=0.5,
    ema_overwrite_frequency=7,
    loss_scale_factor=4.0,
    gradient_accumulation_steps=3,
    name="mine",
)
NON_DEFAULT_NORM = dict(gamma=0.375, corrected_moments="both", max_correction=8.0)


def non_default(cls):
    return NON_DEFAULT | (NON_DEFAULT_NORM if cls in NORM_CLASSES else {})


def gradients(steps=6, seed=0):
    stream = swinging_gradients(SHAPES, steps=steps, seed=seed)
    return [{name: np.float32(g) for name, g in grads.items()} for grads in stream]


def tensors(grads):
    return [None if grads[name] is None else ops.convert_to_tensor(grads[name]) for name in SHAPES]


def new_variables(**attributes):
    variables = [keras.Variable(value, name=name) for name, value in PARAMS.items()]
    for name, value in attributes.items():
        for variable in variables:
            setattr(variable, name, value)
    return variables


def values(variables):
    return [to_numpy(variable) for variable in variables]


def assert_equal(actual, expected, **tolerance):
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, **(tolerance or dict(rtol=0, atol=0)))


def assert_like_reference(run, reference, kinds=("params", "e")):
    for kind in kinds:
        for name, value in getattr(run, kind).items():
            np.testing.assert_allclose(
                value, getattr(reference, kind)[name], **CLOSE, err_msg=f"{kind} of {name}"
            )


def reference_of(cls):
    return Reference(algorithm(cls), dict(PARAMS), learning_rate=LR)


def small_model(optimizer, **compile_arguments):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(3, name="hidden"),
            keras.layers.Dense(3, name="output"),
        ]
    )
    model.compile(optimizer, keras.losses.MeanSquaredError(), **compile_arguments)
    return model


def data(samples=8):
    x = np.random.default_rng(0).normal(size=(samples, 3)).astype("float32")
    return x, 2 * x[:, ::-1]


def outcome(function):
    """The result of a call, or the type of the error that it raised."""
    try:
        return function()
    except Exception as error:
        return type(error)


def compiled_step(optimizer, variables):
    """`optimizer.apply` as the backend's training loop runs it, a function of the gradients."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(lambda grads: optimizer.apply(grads, variables))
    if BACKEND == "torch":
        return lambda grads: optimizer.apply(grads, variables)

    import jax

    update = jax.jit(lambda state, grads, weights: optimizer.stateless_apply(state, grads, weights))

    def step(grads):
        state = optimizer.variables
        new, new_state = update([v.value for v in state], grads, [v.value for v in variables])
        for variable, value in zip(variables + state, new + new_state, strict=True):
            variable.assign(value)

    return step


class Record(keras.callbacks.Callback):
    """Keeps the weights and the learning rate as they stand after each epoch."""

    def __init__(self):
        super().__init__()
        self.weights, self.learning_rates = [], []

    def on_epoch_end(self, epoch, logs=None):
        self.weights.append(values(self.model.trainable_variables))
        self.learning_rates.append(float(to_numpy(self.model.optimizer.learning_rate)))


# Arguments, configuration, names


@every_class
def test_config_round_trip(cls):
    optimizer = cls(**non_default(cls))
    assert optimizer.get_config() == non_default(cls) | {"clipvalue": None, "global_clipnorm": None}
    assert cls.from_config(optimizer.get_config()).get_config() == optimizer.get_config()

    serialized = keras.optimizers.serialize(optimizer)
    again = keras.optimizers.deserialize(json.loads(json.dumps(serialized)))
    assert type(again) is cls
    assert again.get_config() == optimizer.get_config()
    assert keras.optimizers.serialize(again) == serialized


@every_class
def test_config_holds_every_argument(cls):
    arguments = set(inspect.signature(cls.__init__).parameters) - {"self", "kwargs"}
    assert (
        set(cls().get_config())
        == arguments
        == set(non_default(cls))
        | {
            "clipvalue",
            "global_clipnorm",
        }
    )
    for argument in ("clipvalue", "global_clipnorm"):
        assert cls.from_config(cls(**{argument: 0.5}).get_config()).get_config()[argument] == 0.5


@every_class
def test_config_of_numpy_arguments_is_json(cls):
    norm = {"gamma": np.float32(0.5)} if cls in NORM_CLASSES else {}
    optimizer = cls(beta_1=np.float64(0.5), beta_2=np.float32(0.5), epsilon=np.float32(1), **norm)
    assert json.loads(json.dumps(optimizer.get_config())) == optimizer.get_config()


@every_class
def test_config_round_trip_of_a_schedule(cls):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.25)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(cls(schedule)))
    assert again.get_config() == cls(schedule, name=again.name).get_config()
    assert float(again._learning_rate(10)) == pytest.approx(0.125)


@every_class
def test_keras_refuses_its_arguments_as_ever(cls):
    with pytest.raises(ValueError, match="not recognized.*momentum"):
        cls(momentum=0.9)
    with pytest.raises(ValueError, match="Only one of `clipnorm`, `clipvalue` and"):
        cls(clipnorm=0.1, global_clipnorm=0.1)
    with pytest.raises(ValueError, match="`gradient_accumulation_steps` must be an integer >= 2"):
        cls(gradient_accumulation_steps=1)
    with pytest.raises(ValueError, match="`ema_momentum` must be in the range"):
        cls(use_ema=True, ema_momentum=1.5)


@every_class
def test_plain_three_take_no_norm_arguments(cls):
    for argument in NON_DEFAULT_NORM:
        assert hasattr(cls(), argument) is (cls in NORM_CLASSES)
    if cls not in NORM_CLASSES:
        with pytest.raises(ValueError, match="not recognized.*gamma"):
            cls(gamma=0.5)
        assert not hasattr(cls(), "norm_averages")


@every_class
def test_names(cls):
    keras.utils.clear_session(free_memory=False)
    expected = re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
    assert [cls().name, cls().name] == [expected, f"{expected}_1"]
    named = keras.optimizers.deserialize(keras.optimizers.serialize(cls(name="mine")))
    assert named.name == "mine"


@every_class
def test_found_by_its_registered_name(cls):
    name = f"keras_adanorm>{cls.__name__}"
    assert keras.saving.get_registered_name(cls) == name
    for config in (
        {"class_name": name, "config": {"learning_rate": 0.25}},
        {"class_name": cls.__name__, "registered_name": name, "config": {"learning_rate": 0.25}},
    ):
        for optimizer in (keras.optimizers.get(config), small_model(config).optimizer):
            assert type(optimizer) is cls
            assert float(to_numpy(optimizer.learning_rate)) == 0.25


@every_class
@pytest.mark.skipif(KERAS >= (3, 16), reason="Keras finds its own classes only by name")
def test_found_by_name(cls):
    name = keras.saving.get_registered_name(cls)
    assert type(keras.optimizers.get(name)) is cls
    assert type(small_model(name).optimizer) is cls
    for name in (cls.__name__, cls.__name__.lower(), f"keras_adanorm>{cls.__name__.lower()}"):
        for look_up in (keras.optimizers.get, small_model):
            message = f"^Could not interpret optimizer identifier: {name}$"
            with pytest.raises(ValueError, match=message):
                look_up(name)
    with keras.saving.custom_object_scope({cls.__name__: cls}):
        assert type(keras.optimizers.get(cls.__name__)) is cls
        assert type(small_model(cls.__name__).optimizer) is cls


# Copies


@every_class
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["copy", "pickle"]
)
@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_copies_as_adam_does(cls, duplicate):
    assert duplicate(cls(**non_default(cls))).get_config() == non_default(cls) | {
        "clipvalue": None,
        "global_clipnorm": None,
    }
    copies = []
    for optimizer in (keras.optimizers.Adam(LR), cls(LR)):
        variables = new_variables()
        optimizer.apply(tensors(gradients()[0]), variables)
        with pytest.warns(UserWarning, match="Skipping variable loading for optimizer"):
            copies.append(duplicate(optimizer))
        optimizer.apply(tensors(gradients()[1]), variables)
        assert int(optimizer.iterations) == 2
    # Keras hands on the configuration of a trained optimizer, not its state.
    assert [(c.built, len(c.variables), int(c.iterations)) for c in copies] == 2 * [(False, 2, 0)]


@every_class
@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_pickled_model_trains_on(cls):
    x, y = data()
    model = small_model(cls(LR), run_eagerly=True)
    model.train_on_batch(x, y)
    model.train_on_batch(0.1 * x, 0.1 * y)
    other = pickle.loads(pickle.dumps(model))
    assert_equal(values(other.optimizer.variables), values(model.optimizer.variables))
    for _ in range(2):
        model.train_on_batch(x, y)
        other.train_on_batch(x, y)
    assert_equal(values(other.trainable_variables), values(model.trainable_variables))


# State


@every_class
def test_variables_are_named_and_ordered(cls):
    arguments = dict(use_ema=True, gradient_accumulation_steps=2, name="mine")
    optimizer = cls(LR, **arguments)
    variables = []
    for layer in ("hidden", "output"):
        with keras.name_scope(layer):
            variables.append(keras.Variable(PARAMS["kernel"], name="kernel"))
    optimizer.build(variables)
    paths = ["hidden_kernel", "output_kernel"]
    expected = ["iteration", "learning_rate"]
    expected += [f"{path}_average" for path in paths]
    expected += [f"{path}_gradient_accumulator" for path in paths]
    expected += [f"{path}_{slot}" for path in paths for slot in cls.slots]
    if cls in NORM_CLASSES:
        expected += ["norm_averages"]
    assert [v.path for v in optimizer.variables] == [f"mine/{name}" for name in expected]
    if cls in NORM_CLASSES:
        assert tuple(optimizer.norm_vector.shape) == (2,)
        assert [tuple(v.shape) for v in optimizer.norm_averages] == [(), ()]

    before = list(map(id, optimizer.variables))
    optimizer.build(variables)  # as `compile` and `load_model` do: nothing is made twice
    assert list(map(id, optimizer.variables)) == before
    assert not any(v.trainable for v in optimizer.variables)


@every_norm_class
def test_norm_averages_before_build(cls):
    assert cls().norm_averages == []


@every_class
def test_iterations_and_ways_to_apply(cls):
    stream = gradients(3)
    by_apply, by_pairs = cls(LR), cls(LR)
    variables, pairs = new_variables(), new_variables()
    with pytest.raises(ValueError, match="the optimizer must already be built"):
        by_apply.apply(tensors(stream[0]))
    by_apply.build(variables)
    for step, grads in enumerate(stream):
        assert int(by_apply.iterations) == step
        by_apply.apply(tensors(grads))
        by_pairs.apply_gradients(zip(tensors(grads), pairs, strict=True))
    assert int(by_pairs.iterations) == len(stream)
    assert_equal(values(variables), values(pairs))
    by_apply.apply([])
    assert int(by_apply.iterations) == len(stream)
    with pytest.raises(ValueError, match="must match"):
        by_apply.apply(tensors(stream[0])[:1])


@every_class
def test_set_weights(cls):
    stream = gradients(6)
    run = Run(cls(LR), PARAMS)
    for grads in stream[:4]:
        run.step(grads)
    other = Run(cls(0.9), run.params)
    with pytest.raises(ValueError, match="has not yet been built"):
        cls().set_weights(run.optimizer.variables)
    other.optimizer.set_weights(run.optimizer.variables)
    for grads in stream[4:]:
        run.step(grads)
        other.step(grads)
    assert int(other.optimizer.iterations) == 6
    assert_equal(values(other.variables), values(run.variables))
    assert_equal(values(other.optimizer.variables), values(run.optimizer.variables))


# Gradients that are missing, variables that are left out


@every_class
def test_none_gradients(cls):
    run, reference = Run(cls(LR), PARAMS), reference_of(cls)
    stream = gradients(2)
    run.optimizer.apply(tensors(stream[0]), run.variables)
    reference.step(stream[0])
    before = {kind: state["bias"] for kind, state in run.state.items() if state}
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        run.optimizer.apply([None, None], run.variables)
    with pytest.warns(UserWarning, match="Gradients do not exist for variables.*bias"):
        run.optimizer.apply(tensors(stream[1] | {"bias": None}), run.variables)
    assert_equal([run.state[kind]["bias"] for kind in before], list(before.values()))
    reference.step(stream[1])
    np.testing.assert_allclose(run.params["kernel"], reference.params["kernel"], **CLOSE)


@every_class
def test_subset_of_the_variables(cls):
    stream = gradients(4)
    run, reference = Run(cls(LR), PARAMS), reference_of(cls)
    for step, grads in enumerate(stream):
        before = [state["bias"] for state in run.state.values() if state]
        used = 1 if step % 2 else 2
        run.optimizer.apply(tensors(grads)[:used], run.variables[:used])
        after = [state["bias"] for state in run.state.values() if state]
        if used == 1:
            assert_equal(after, before)
        reference.step(grads)
    np.testing.assert_allclose(run.params["kernel"], reference.params["kernel"], **CLOSE)
    with pytest.raises(ValueError, match="Unknown variable"):
        run.optimizer.apply(tensors(stream[0]), new_variables())


@every_class
def test_variables_in_another_order(cls):
    """Each gradient still meets its own variable and state."""
    run, reference = Run(cls(LR), PARAMS), reference_of(cls)
    for step, grads in enumerate(gradients(4)):
        order = -1 if step % 2 else 1
        run.optimizer.apply(tensors(grads)[::order], run.variables[::order])
        reference.step(grads)
    assert_like_reference(run, reference, kinds=("params", "m", "v", "e"))


@every_class
def test_frozen_layer_stays(cls):
    x, y = data()
    model = small_model(cls(LR), run_eagerly=True)
    model.get_layer("hidden").trainable = False
    frozen, trained = values(model.layers[0].variables), values(model.layers[1].variables)
    model.fit(x, y, epochs=2, verbose=0)
    assert_equal(values(model.layers[0].variables), frozen)
    assert not np.array_equal(values(model.layers[1].variables)[0], trained[0])
    assert not any("hidden" in v.path for v in model.optimizer.variables)


@every_class
def test_layer_frozen_after_the_first_epochs_as_with_adam(cls):
    x, y = data()

    def freeze_and_train_on(optimizer):
        model = small_model(optimizer, run_eagerly=True)
        model.train_on_batch(x, y)
        model.get_layer("hidden").trainable = False
        before = values(model.weights)
        model.train_on_batch(x, y)
        return [np.array_equal(a, b) for a, b in zip(before, values(model.weights), strict=True)]

    ours = outcome(lambda: freeze_and_train_on(cls(LR)))
    assert ours == outcome(lambda: freeze_and_train_on(keras.optimizers.Adam(LR)))
    if BACKEND != "jax":  # whose trainer wants all variables that the optimizer was built with
        assert ours == [True, True, False, False]


@every_class
def test_optimizer_of_another_model_as_with_adam(cls):
    x, y = data()

    def train_two(optimizer):
        small_model(optimizer, run_eagerly=True).train_on_batch(x, y)
        model = small_model(optimizer, run_eagerly=True)
        before = values(model.weights)
        model.train_on_batch(x, y)
        return [np.array_equal(a, b) for a, b in zip(before, values(model.weights), strict=True)]

    ours = outcome(lambda: train_two(cls(LR)))
    assert ours == outcome(lambda: train_two(keras.optimizers.Adam(LR)))
    # JAX can't tell the variables apart, and trains on.
    assert ours == [False] * 4 if BACKEND == "jax" else issubclass(ours, Exception)


@every_class
def test_overwrite_with_gradient(cls):
    stream = gradients(3)
    variables = new_variables()
    variables[1].overwrite_with_gradient = True
    optimizer, reference = cls(LR), reference_of(cls)
    for grads in stream:
        optimizer.apply(tensors(grads), variables)
        reference.step(grads)
    np.testing.assert_array_equal(to_numpy(variables[1]), stream[-1]["bias"])
    np.testing.assert_allclose(to_numpy(variables[0]), reference.params["kernel"], **CLOSE)
    assert not any("bias" in v.path for v in optimizer.variables)
    if cls in NORM_CLASSES:
        kernel, bias = optimizer.norm_averages
        assert bias is None
        np.testing.assert_allclose(to_numpy(kernel), reference.e["kernel"], **CLOSE)


@every_class
def test_overwrite_with_gradient_and_accumulation(cls):
    variables = new_variables()
    variables[1].overwrite_with_gradient = True
    optimizer, reference = cls(LR, gradient_accumulation_steps=2), reference_of(cls)
    optimizer.build(variables)
    step = compiled_step(optimizer, variables)
    for grads in gradients(3):
        halves = [
            {"kernel": 0.5 * grads["kernel"], "bias": grads["bias"]},
            {"kernel": 1.5 * grads["kernel"], "bias": grads["bias"] - 1},
        ]
        for half in halves:
            step(tensors(half))
        reference.step(grads)
        np.testing.assert_allclose(  # Keras keeps the largest, and counts from 0
            to_numpy(variables[1]), np.maximum(grads["bias"] - 1, np.maximum(grads["bias"], 0))
        )
    np.testing.assert_allclose(to_numpy(variables[0]), reference.params["kernel"], **CLOSE)


# The learning rate


@every_class
def test_learning_rates(cls):
    """A number that is set, a schedule and a callable all reach the step that they are for."""
    rates = [0.1, 0.1, 0.02, 0.02]
    current = {}
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.1, 0.02])
    ways = {"number": 0.1, "schedule": schedule, "callable": lambda: current["rate"]}
    results = {}
    for way, learning_rate in ways.items():
        optimizer, variables = cls(learning_rate), new_variables()
        for rate, grads in zip(rates, gradients(4), strict=True):
            current["rate"] = rate
            if way == "number":
                optimizer.learning_rate = rate
                assert float(to_numpy(optimizer.learning_rate)) == pytest.approx(rate)
            optimizer.apply(tensors(grads), variables)
        results[way] = values(variables)
    reference = reference_of(cls)
    for rate, grads in zip(rates, gradients(4), strict=True):
        reference.learning_rate = rate
        reference.step(grads)
    for result in results.values():
        assert_equal(result, list(reference.params.values()), **CLOSE)


@every_class
def test_schedule_and_variable_change_places_as_in_keras(cls):
    optimizer = cls(keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.25))
    assert float(to_numpy(optimizer.learning_rate)) == 0.5
    with pytest.raises(TypeError, match="learning rate is not settable"):
        optimizer.learning_rate = 0.1
    optimizer = cls(0.1)
    assert len(optimizer.variables) == 2
    optimizer.learning_rate = keras.optimizers.schedules.PolynomialDecay(0.1, 4)
    assert len(optimizer.variables) == 1
    variables = new_variables()
    optimizer.apply(tensors(gradients()[0]), variables)
    assert float(to_numpy(optimizer.learning_rate)) < 0.1


@every_class
def test_learning_rate_scheduler(cls):
    record = Record()
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: [0.1, 0.0, 0.05][epoch])
    model = small_model(cls(0.7))
    model.fit(*data(), epochs=3, batch_size=4, verbose=0, callbacks=[schedule, record])
    np.testing.assert_allclose(record.learning_rates, [0.1, 0.0, 0.05], rtol=1e-6)
    first, second, third = record.weights
    assert_equal(second, first)  # an epoch with a learning rate of 0
    assert not np.array_equal(second[0], third[0])


@every_class
def test_reduce_learning_rate_on_plateau(cls):
    record = Record()
    reduce = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1e9)
    model = small_model(cls(0.5), run_eagerly=True)
    model.fit(*data(), epochs=3, verbose=0, callbacks=[reduce, record])
    np.testing.assert_allclose(record.learning_rates, [0.5, 0.25, 0.125])


# Weight decay, clipping, averages, constraints


@every_class
def test_weight_decay_is_decoupled_and_applied_once(cls):
    decay = 0.25
    run, reference = Run(cls(LR, weight_decay=decay), PARAMS), reference_of(cls)
    for grads in gradients():
        run.step(grads)
        reference.params = {name: w - LR * decay * w for name, w in reference.params.items()}
        reference.step(grads)
        assert_like_reference(run, reference, kinds=("params", "m", "v", "e"))


@every_class
@pytest.mark.parametrize("way", ["var_list", "var_names"])
def test_exclude_from_weight_decay(cls, way):
    def exclude(optimizer, variables):
        excluded = {"var_list": variables[1:], "var_names": ["bias"]}[way]
        optimizer.exclude_from_weight_decay(**{way: excluded})

    run = Run(cls(LR, weight_decay=0.25), PARAMS, prepare=exclude)
    reference = reference_of(cls)
    for grads in gradients(3):
        run.step(grads)
        reference.params["kernel"] = reference.params["kernel"] * (1 - LR * 0.25)
        reference.step(grads)
    assert_like_reference(run, reference)


def clip_each_norm(grads, bound):
    return {n: g * (bound / max(np.linalg.norm(g), bound)) for n, g in grads.items()}


def clip_global_norm(grads, bound):
    norm = np.sqrt(sum(np.sum(g**2) for g in grads.values()))
    return {n: g * (bound / max(norm, bound)) for n, g in grads.items()}


def clip_values(grads, bound):
    return {n: np.clip(g, -bound, bound) for n, g in grads.items()}


CLIPS = {
    "clipnorm": clip_each_norm,
    "global_clipnorm": clip_global_norm,
    "clipvalue": clip_values,
}


@every_class
@pytest.mark.parametrize("argument", CLIPS)
def test_clipping_comes_first(cls, argument):
    """The moments and `e_t` see the clipped gradient."""
    bound = 0.75
    run, reference = Run(cls(LR, **{argument: bound}), PARAMS), reference_of(cls)
    clipped = 0
    for grads in gradients():
        expected = CLIPS[argument](grads, bound)
        clipped += not np.allclose(expected["kernel"], grads["kernel"])
        run.step(grads)
        reference.step(expected)
    assert 0 < clipped < 6
    assert_like_reference(run, reference, kinds=("params", "m", "v", "e"))


@every_class
def test_average_of_the_weights(cls):
    """`use_ema`: the averages follow the weights, overwrite them, and end in their place."""
    optimizer = cls(LR, use_ema=True, ema_momentum=0.75, ema_overwrite_frequency=3)
    run, reference = Run(optimizer, PARAMS), reference_of(cls)
    average = dict(PARAMS)
    for step, grads in enumerate(gradients(5)):
        run.step(grads)
        reference.step(grads)
        momentum = 0.75 if step else 0.0  # the first weights are the first average
        average = {
            n: momentum * average[n] + (1 - momentum) * w for n, w in reference.params.items()
        }
        if step == 2:
            reference.params = dict(average)
        assert_like_reference(run, reference)
        assert_equal(
            values(optimizer._model_variables_moving_average), list(average.values()), **CLOSE
        )
    optimizer.finalize_variable_values(run.variables)
    assert_equal(values(run.variables), values(optimizer._model_variables_moving_average))


@every_class
def test_fit_ends_with_the_average(cls):
    model = small_model(cls(LR, use_ema=True, ema_momentum=0.5), run_eagerly=True)
    record = Record()
    model.fit(*data(), epochs=3, verbose=0, callbacks=[record])
    w = record.weights
    expected = [0.5 * (0.5 * a + 0.5 * b) + 0.5 * c for a, b, c in zip(*w, strict=True)]
    assert_equal(values(model.trainable_variables), expected, rtol=1e-5, atol=1e-6)


@every_class
def test_constraints(cls):
    variables = new_variables(constraint=keras.constraints.NonNeg())
    optimizer, reference = cls(LR), reference_of(cls)
    for grads in gradients():
        optimizer.apply(tensors(grads), variables)
        reference.step(grads)
        reference.params = {name: np.maximum(w, 0) for name, w in reference.params.items()}
    assert_equal(values(variables), list(reference.params.values()), **CLOSE)
    assert min(w.min() for w in values(variables)) == 0


# Gradient accumulation and loss scaling


@every_class
@pytest.mark.parametrize("mode", LOOPS)
def test_accumulation_equals_the_big_batch(cls, mode):
    steps = 3
    optimizer = cls(
        LR, gradient_accumulation_steps=steps, weight_decay=0.25, clipnorm=1.5, name="mine"
    )
    run, reference = Run(optimizer, PARAMS, mode=mode), reference_of(cls)
    for number, grads in enumerate(gradients(4)):
        parts = swinging_gradients(SHAPES, steps=steps, seed=number)
        shift = {n: grads[n] - sum(part[n] for part in parts) / steps for n in SHAPES}
        for k, part in enumerate(parts):
            before = run.state
            run.step({n: part[n] + shift[n] for n in SHAPES})
            if k < steps - 1:  # nothing moves, the average norm neither
                assert all(
                    np.array_equal(before[kind][n], run.state[kind][n])
                    for kind in before
                    for n in before[kind]
                )
                assert int(optimizer.iterations) == number
        reference.params = {n: w * (1 - LR * 0.25) for n, w in reference.params.items()}
        reference.step(clip_each_norm(grads, 1.5))
        assert_like_reference(run, reference, kinds=("params", "m", "v", "e"))
    assert int(optimizer.iterations) == 4
    assert int(optimizer._iterations) == 12


@every_class
def test_loss_scale_factor(cls):
    run, reference = Run(cls(LR, loss_scale_factor=1024.0), PARAMS), reference_of(cls)
    assert run.optimizer.scale_loss(2.0) == 2048.0
    for grads in gradients():
        run.step({name: 1024 * g for name, g in grads.items()})
        reference.step(grads)
    assert_like_reference(run, reference, kinds=("params", "m", "v", "e"))


@every_class
def test_overflow_under_loss_scaling_changes_nothing(cls):
    optimizer = keras.optimizers.LossScaleOptimizer(cls(LR), initial_scale=2.0**10)
    variables = new_variables()
    optimizer.build(variables)
    step = compiled_step(optimizer, variables)
    reference = reference_of(cls)
    scale = 2.0**10
    for number, grads in enumerate(gradients()):
        if number in (0, 3):  # at the first step and after history
            before = values(variables) + values(optimizer.inner_optimizer.variables)
            bad = {name: scale * g for name, g in grads.items()}
            bad["bias"][0, 1] = np.nan if number else np.inf
            step(tensors(bad))
            scale /= 2
            assert float(to_numpy(optimizer.dynamic_scale)) == scale
            after = values(variables) + values(optimizer.inner_optimizer.variables)
            assert_equal(after, before)
        step(tensors({name: scale * g for name, g in grads.items()}))
        reference.step(grads)
    assert_equal(values(variables), list(reference.params.values()), **CLOSE)
    if cls in NORM_CLASSES:
        averages = values(optimizer.inner_optimizer.norm_averages)
        assert_equal(averages, list(reference.e.values()), **CLOSE)


@every_class
def test_fit_in_mixed_float16(cls):
    keras.config.set_dtype_policy("mixed_float16")
    # Eagerly, JAX would compile the branches of the loss scaling anew at each step.
    model = small_model(cls(0.05), run_eagerly=BACKEND != "jax")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert type(model.optimizer.inner_optimizer) is cls
    losses = model.fit(*data(), epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    state = model.optimizer.inner_optimizer.variables[2:]
    assert {v.dtype for v in state} == {"float32"}
    assert all(np.isfinite(value).all() for value in values(state))


# Other ways to step


@every_class
def test_fit_eagerly_and_compiled(cls):
    x, y = data()
    results = []
    for run_eagerly in (False, True):
        model = small_model(cls(0.05), run_eagerly=run_eagerly)
        model.fit(x, y, epochs=2, batch_size=4, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations) == 4
        if cls in NORM_CLASSES:
            assert min(values(model.optimizer.norm_averages)) > 0
        results.append(values(model.weights))
    assert_equal(*results, rtol=1e-4, atol=1e-5)


@every_class
def test_multi_optimizer(cls):
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        pytest.skip("Keras has MultiOptimizer from 3.15 on")
    kernel, bias = cls(LR), cls(0.02)
    optimizer = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(kernel, {"bias": bias})
    )
    variables = new_variables()
    references = [reference_of(cls), reference_of(cls)]
    references[1].learning_rate = 0.02
    for grads in gradients():
        optimizer.apply(tensors(grads), variables)
        for reference in references:
            reference.step(grads)
    expected = [references[0].params["kernel"], references[1].params["bias"]]
    assert_equal(values(variables), expected, **CLOSE)
    assert optimizer.optimizers == [bias, kernel]


@tensorflow_only
@every_class
def test_variables_of_tensorflow(cls):
    import tensorflow as tf

    stream = gradients()
    native = [tf.Variable(value, name=name) for name, value in PARAMS.items()]
    mixed = [tf.Variable(PARAMS["kernel"], name="kernel"), new_variables()[1]]
    arguments = dict(weight_decay=0.25, clipnorm=2.0, use_ema=True)
    run = Run(cls(LR, **arguments), PARAMS)
    for grads in stream:
        run.step(grads)
    for variables in (native, mixed):
        optimizer = cls(LR, **arguments)
        for grads in stream:
            optimizer.apply(tensors(grads), variables)
        assert_equal(values(variables), values(run.variables))
        assert_equal(values(optimizer.variables), values(run.optimizer.variables))
        with pytest.warns(UserWarning, match="Gradients do not exist for variables.*kernel"):
            optimizer.apply([None, tensors(stream[0])[1]], variables)


@tensorflow_only
@every_class
def test_constraint_of_a_tensorflow_variable(cls):
    import tensorflow as tf

    variable = tf.Variable([0.01, -0.01], constraint=lambda w: tf.maximum(w, 0.0))
    optimizer = cls(LR)
    optimizer.apply([tf.constant([5.0, -5.0])], [variable])
    assert variable.numpy()[0] == 0 < variable.numpy()[1]


@every_class
def test_steps_are_quiet(cls, caplog):
    """No warning of Python's, and none in the log, as AutoGraph writes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "__array__ implementation")  # Keras' own
        variables, optimizer = new_variables(), cls(LR)
        for grads in gradients(2):
            optimizer.apply(tensors(grads), variables)
    assert not [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@every_class
def test_stateless_apply(cls):
    optimizer, variables = cls(LR), new_variables()
    optimizer.build(variables)
    if BACKEND == "tensorflow":
        with pytest.raises(ValueError, match="stateless_apply is not supported"):
            optimizer.stateless_apply([], [], [])
        return
    with pytest.raises(ValueError, match="must be built"):
        cls(LR).stateless_apply([], [], [])
    weights = [ops.copy(v.value) for v in variables]
    state = [ops.copy(v.value) for v in optimizer.variables]
    untouched = values(variables), values(optimizer.variables)
    run = Run(cls(LR), PARAMS)
    for grads in gradients():
        weights, state = optimizer.stateless_apply(state, tensors(grads), weights)
        run.step(grads)
    assert_equal(values(weights), values(run.variables), **CLOSE)
    assert_equal(values(state), values(run.optimizer.variables), **CLOSE)
    assert_equal(values(variables), untouched[0])
    assert_equal(values(optimizer.variables), untouched[1])
