"""AdaNorm around any optimizer: what it changes, what it leaves alone, what it refuses."""

import os
import subprocess
import sys
import textwrap

import h5py
import keras
import numpy as np
import pytest
from keras import optimizers

import keras_adanorm
from keras_adanorm import AdamNorm, AdaNorm
from tests.support import make_saved
from tests.support.optimizers import (
    BACKEND,
    KERAS,
    OLD_JAX,
    Run,
    floatx,
    swinging_gradients,
    tensorflow_only,
    to_numpy,
)
from tests.support.reference import norm_correction

needs_multi_optimizer = pytest.mark.skipif(
    not hasattr(optimizers, "MultiOptimizer"), reason="this Keras has no MultiOptimizer"
)

# The learning rates suit a comparison of trajectories, not a training.
INNER = {
    "sgd": lambda **kw: optimizers.SGD(0.1, **kw),
    "sgd_momentum": lambda **kw: optimizers.SGD(0.1, momentum=0.9, **kw),
    "sgd_nesterov": lambda **kw: optimizers.SGD(0.1, momentum=0.9, nesterov=True, **kw),
    "rmsprop": lambda **kw: optimizers.RMSprop(0.01, **kw),
    "rmsprop_centered": lambda **kw: optimizers.RMSprop(0.01, centered=True, momentum=0.9, **kw),
    "adam": lambda **kw: optimizers.Adam(0.01, **kw),
    "adam_amsgrad": lambda **kw: optimizers.Adam(0.01, amsgrad=True, **kw),
    "adamw": lambda **kw: optimizers.AdamW(0.01, **kw),
    "adamax": lambda **kw: optimizers.Adamax(0.01, **kw),
    "nadam": lambda **kw: optimizers.Nadam(0.01, **kw),
    "adagrad": lambda **kw: optimizers.Adagrad(0.1, **kw),
    "adadelta": lambda **kw: optimizers.Adadelta(0.1, **kw),
    "ftrl": lambda **kw: optimizers.Ftrl(0.1, **kw),
    "lion": lambda **kw: optimizers.Lion(0.01, **kw),
    "lamb": lambda **kw: optimizers.Lamb(0.01, **kw),
    "adafactor": lambda **kw: optimizers.Adafactor(0.01, **kw),
    "muon": lambda **kw: optimizers.Muon(0.01, **kw),
    "schedule_free_adamw": lambda **kw: optimizers.ScheduleFreeAdamW(0.01, **kw),
    "diffgrad": lambda **kw: keras_adanorm.DiffGrad(0.01, **kw),
    "radam": lambda **kw: keras_adanorm.Radam(0.01, **kw),
    "adabelief": lambda **kw: keras_adanorm.AdaBelief(0.01, **kw),
}
# What an older Keras lacks, or has with a fault: Muon on TensorFlow before Keras 3.12.
if not hasattr(optimizers, "ScheduleFreeAdamW"):
    del INNER["schedule_free_adamw"]
if KERAS < (3, 12) and BACKEND == "tensorflow":
    del INNER["muon"]
every_inner = pytest.mark.parametrize("inner", INNER)
# A few with one line of their own each: lists on torch, `_backend_update_step`, weight decay.
SOME = [name for name in ("sgd_momentum", "nadam", "adamw", "muon", "radam") if name in INNER]
some_inner = pytest.mark.parametrize("inner", SOME)
# Eager steps are quick to test. XLA, which may round a fused program otherwise, is left to others.
COMPILED = {"tensorflow": "graph", "jax": "jit", "torch": "eager"}[BACKEND]
# The XLA of JAX 0.4 rounds the last digit of two programs differently on some processors.
SAME_WHEN_COMPILED = {"rtol": 1e-6, "atol": 1e-7} if OLD_JAX else {}

SHAPES = {"matrix": (4, 3), "vector": (3,), "kernel": (2, 2, 3)}
# What an optimizer of Keras can be asked to do with gradients and weights, beside its algorithm.
SETTINGS = {
    "clipnorm_decay_ema": {
        "clipnorm": 0.5,
        "weight_decay": 0.1,
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 3,
    },
    "clipvalue_loss_scale": {"clipvalue": 0.1, "loss_scale_factor": 8.0},
    "global_clipnorm_decay_accumulation": {
        "global_clipnorm": 0.5,
        "weight_decay": 0.1,
        "gradient_accumulation_steps": 2,
    },
}


def params(seed=1):
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape).astype("float32") for name, shape in SHAPES.items()}


def values(variables):
    return [to_numpy(variable) for variable in variables]


def assert_equal_lists(found, expected, **tolerance):
    compare = np.testing.assert_allclose if tolerance else np.testing.assert_array_equal
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        compare(one, other, **tolerance)


def run_both(wrapped, bare, gradients, mode="eager"):
    """A run of each optimizer after the same steps."""
    runs = Run(wrapped, params(), mode=mode), Run(bare, params(), mode=mode)
    for grads in gradients:
        for run in runs:
            run.step(grads)
    return runs


def norms(grads):
    return [np.linalg.norm(gradient) for gradient in grads.values()]


@every_inner
def test_gamma_0_equals_the_bare_optimizer_bit_for_bit(inner):
    gradients = swinging_gradients(SHAPES, steps=5)
    wrapped, bare = run_both(AdaNorm(INNER[inner](), gamma=0), INNER[inner](), gradients)
    assert_equal_lists(values(wrapped.variables), values(bare.variables))
    assert_equal_lists(
        values(wrapped.optimizer.inner_optimizer.variables), values(bare.optimizer.variables)
    )
    e = values(wrapped.optimizer.norm_averages)
    assert_equal_lists(e, norms(gradients[-1]), rtol=1e-6)


@every_inner
def test_inner_optimizer_gets_the_corrected_gradient(inner):
    gradients = swinging_gradients(SHAPES, steps=6)
    gamma = 0.6
    e, fired, corrected = dict.fromkeys(SHAPES, 0.0), [], []
    for grads in gradients:
        corrected.append({})
        for name, g in grads.items():
            s, e[name], fires = norm_correction(g.astype("float64"), e[name], gamma)
            corrected[-1][name] = s
            fired.append(fires)
    assert any(fired) and not all(fired)

    wrapped, bare = Run(AdaNorm(INNER[inner](), gamma), params()), Run(INNER[inner](), params())
    for g, s in zip(gradients, corrected, strict=True):
        wrapped.step(g)
        bare.step(s)
    assert_equal_lists(values(wrapped.optimizer.norm_averages), list(e.values()), rtol=1e-5)
    assert_equal_lists(values(wrapped.variables), values(bare.variables), rtol=1e-4, atol=2e-6)
    assert_equal_lists(
        values(wrapped.optimizer.inner_optimizer.variables),
        values(bare.optimizer.variables),
        rtol=1e-4,
        atol=2e-6,
    )


@some_inner
def test_growing_gradients_are_left_alone_to_the_last_bit(inner):
    random = np.random.default_rng(0)
    base = {name: random.standard_normal(shape) for name, shape in SHAPES.items()}
    gradients = [{name: g * 1.5**t for name, g in base.items()} for t in range(4)]
    wrapped, bare = run_both(AdaNorm(INNER[inner]()), INNER[inner](), gradients)
    assert_equal_lists(values(wrapped.variables), values(bare.variables))


def test_a_step_by_hand():
    run = Run(AdaNorm(optimizers.SGD(0.5), gamma=0.5), {"w": np.zeros(2)})
    run.step({"w": np.array([30.0, 40.0])})  # e = 25 < 50
    run.step({"w": np.array([3.0, 4.0])})  # e = 15, three times the norm
    np.testing.assert_allclose(run.params["w"], [-15 - 4.5, -20 - 6], rtol=1e-6)
    assert run.e["w"] == 15


def test_max_correction_bounds_the_ratio():
    run = Run(AdaNorm(optimizers.SGD(0.5), gamma=0.5, max_correction=2), {"w": np.zeros(2)})
    run.step({"w": np.array([30.0, 40.0])})
    run.step({"w": np.array([3.0, 4.0])})
    np.testing.assert_allclose(run.params["w"], [-15 - 3, -20 - 4], rtol=1e-6)
    assert run.e["w"] == 15


def test_adam_wrapped_is_adamnorm_with_both_moments_corrected():
    # The two place epsilon differently. Keras rounds hyperparameters to float32 on TensorFlow, so
    # these are numbers that float32 holds.
    settings = {"learning_rate": 2.0**-6, "beta_1": 0.875, "beta_2": 1 - 2.0**-8, "epsilon": 1e-30}
    gradients = swinging_gradients(SHAPES, steps=12)
    with floatx("float64"):
        runs = [
            Run(optimizer, params(), dtype="float64")
            for optimizer in (
                AdaNorm(optimizers.Adam(**settings), gamma=0.9),
                AdamNorm(**settings, gamma=0.9, corrected_moments="both"),
                AdamNorm(**settings, gamma=0.9),
            )
        ]
        for grads in gradients:
            for run in runs:
                run.step(grads)
        both, first = (values(run.variables) for run in runs[1:])
        assert_equal_lists(values(runs[0].variables), both, rtol=1e-12)
        assert_equal_lists(
            values(runs[0].optimizer.norm_averages),
            values(runs[1].optimizer.norm_averages),
            rtol=1e-12,
        )
    assert np.abs(both[0] - first[0]).max() > 1e-3


def settings_of_inner_optimizers():
    """One optimizer with every setting, and each other one with one of them in turn."""
    first, *others = [name for name in SOME if name != "adamw"]
    return [(first, setting) for setting in SETTINGS] + list(zip(others, SETTINGS, strict=False))


@pytest.mark.parametrize(("inner", "setting"), settings_of_inner_optimizers())
def test_settings_keep_their_meaning_once(inner, setting):
    settings = SETTINGS[setting]
    gradients = swinging_gradients(SHAPES, steps=7)
    wrapped, bare = run_both(
        AdaNorm(INNER[inner](**settings), gamma=0), INNER[inner](**settings), gradients, COMPILED
    )
    for run in (wrapped, bare):
        run.optimizer.finalize_variable_values(run.variables)
    assert_equal_lists(values(wrapped.variables), values(bare.variables), **SAME_WHEN_COMPILED)
    assert_equal_lists(
        values(wrapped.optimizer.inner_optimizer.variables),
        values(bare.optimizer.variables),
        **SAME_WHEN_COMPILED,
    )
    for name, value in settings.items():
        assert getattr(wrapped.optimizer, name) == value


def test_norm_is_that_of_the_gradient_that_enters_the_update():
    first, second, third = swinging_gradients(SHAPES, steps=3)

    def averages(steps, **settings):
        run = Run(AdaNorm(optimizers.SGD(0.1, **settings), gamma=0), params(), mode=COMPILED)
        for grads in steps:
            run.step(grads)
        return values(run.optimizer.norm_averages)

    clipped = [min(norm, 0.5) for norm in norms(first)]
    assert_equal_lists(averages([first], clipnorm=0.5), clipped, rtol=1e-6)
    in_range = {name: g.clip(-0.1, 0.1) for name, g in first.items()}
    assert_equal_lists(averages([first], clipvalue=0.1), norms(in_range), rtol=1e-6)
    scaled = [norm / 8 for norm in norms(first)]
    assert_equal_lists(averages([first], loss_scale_factor=8.0), scaled, rtol=1e-6)
    mean = norms({name: (first[name] + second[name]) / 2 for name in first})
    for steps in ([first, second], [first, second, third]):  # the third changes nothing
        found = averages(steps, gradient_accumulation_steps=2)
        assert_equal_lists(found, mean, rtol=1e-6)


def test_accumulated_gradients_are_corrected_once_per_update():
    gradients = swinging_gradients(SHAPES, steps=8)
    pairs = zip(gradients[::2], gradients[1::2], strict=True)
    means = [{name: (a[name] + b[name]) / 2 for name in a} for a, b in pairs]
    accumulating = Run(
        AdaNorm(optimizers.Adam(0.01, gradient_accumulation_steps=2)), params(), mode=COMPILED
    )
    plain = Run(AdaNorm(optimizers.Adam(0.01)), params(), mode=COMPILED)
    for grads in gradients:
        accumulating.step(grads)
    for grads in means:
        plain.step(grads)
    assert_equal_lists(
        values(accumulating.optimizer.norm_averages),
        values(plain.optimizer.norm_averages),
        rtol=1e-6,
    )
    assert_equal_lists(values(accumulating.variables), values(plain.variables), rtol=1e-5)
    assert int(accumulating.optimizer.iterations) == int(plain.optimizer.iterations) == 4


def test_weight_decay_exclusions_reach_the_inner_optimizer():
    optimizer = AdaNorm(optimizers.AdamW(0.01, weight_decay=0.5))
    optimizer.exclude_from_weight_decay(var_names=["vector"])
    run = Run(optimizer, params(), mode=COMPILED)
    run.step({name: np.zeros(shape) for name, shape in SHAPES.items()})
    np.testing.assert_array_equal(run.params["vector"], params()["vector"])
    np.testing.assert_allclose(run.params["matrix"], params()["matrix"] * (1 - 0.005), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_corrected_in_float32(dtype):
    seen = []

    class Recorder(optimizers.Optimizer):
        def update_step(self, gradient, variable, learning_rate):
            seen.append(gradient)

    run = Run(AdaNorm(Recorder(0.1), gamma=0.5), {"w": np.zeros(3)}, dtype=dtype)
    for scale in (1000.0, 0.1):  # squared, the first overflows float16
        g = keras.ops.convert_to_tensor(np.array([1.0, 2.0, 3.0]) * scale, dtype)
        run.apply([g])
    e = run.optimizer.norm_averages[0]
    assert keras.backend.standardize_dtype(e.dtype) == "float32"
    g = to_numpy(keras.ops.cast(g, "float32"))
    expected = 0.5 * (500 * 14**0.5 + np.linalg.norm(g))
    np.testing.assert_allclose(to_numpy(e), expected, rtol=1e-2 if dtype == "bfloat16" else 1e-4)
    assert [keras.backend.standardize_dtype(g.dtype) for g in seen] == [dtype] * 2
    s = keras.ops.convert_to_tensor(to_numpy(e) / np.linalg.norm(g) * g, dtype)
    np.testing.assert_array_equal(to_numpy(seen[1]), to_numpy(s))


def test_gradients_without_a_direction_or_a_number():
    run = Run(AdaNorm(optimizers.SGD(0.5), gamma=0.5), {"w": np.zeros(2)})
    run.step({"w": np.array([30.0, 40.0])})
    run.step({"w": np.zeros(2)})
    assert run.e["w"] == 12.5
    np.testing.assert_array_equal(run.params["w"], [-15, -20])
    run.step({"w": np.array([np.inf, 1.0])})
    assert run.e["w"] == 12.5


# Learning rate


def test_learning_rate_is_the_inner_optimizers():
    inner = optimizers.SGD(0.1)
    optimizer = AdaNorm(inner)
    optimizer.learning_rate = 0.25
    assert float(to_numpy(inner.learning_rate)) == float(to_numpy(optimizer.learning_rate)) == 0.25
    run = Run(optimizer, {"w": np.zeros(2)})
    run.step({"w": np.array([4.0, 8.0])})
    np.testing.assert_array_equal(run.params["w"], [-1, -2])
    assert int(optimizer.iterations) == int(inner.iterations) == 1


def test_learning_rate_schedule_counts_the_steps():
    schedule = optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.5])
    run = Run(AdaNorm(optimizers.SGD(schedule), gamma=0), {"w": np.zeros(1)}, mode=COMPILED)
    for _ in range(3):
        run.step({"w": np.array([1.0])})
    np.testing.assert_array_equal(run.params["w"], [-2.5])
    with pytest.raises(TypeError, match="not settable"):
        run.optimizer.learning_rate = 0.1


def small_model(optimizer):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    )
    model.compile(optimizer, loss="mse", jit_compile=BACKEND == "jax")  # XLA is slow to compile
    return model


def fit(model, epochs=1, **arguments):
    x = np.random.default_rng(0).standard_normal((32, 4)).astype("float32")
    arguments = {"batch_size": 8, "shuffle": False, "verbose": 0, **arguments}
    return model.fit(x, np.sin(x[:, :1]), epochs=epochs, **arguments)


def test_callbacks_set_the_learning_rate_and_see_the_norms():
    model = small_model(AdaNorm(optimizers.SGD(0.1, momentum=0.9)))
    monitor = keras_adanorm.GradientNormMonitor()
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    history = fit(model, epochs=3, callbacks=[schedule, monitor]).history
    assert history["loss"][-1] < history["loss"][0]
    np.testing.assert_allclose(history["learning_rate"], [0.05, 0.025, 0.0125], rtol=1e-6)
    assert monitor.history["gradient_norm"][0] > 0


def test_swap_of_ema_weights():
    model = small_model(AdaNorm(optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5)))
    fit(model, callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)])
    averages = model.optimizer.inner_optimizer._model_variables_moving_average
    assert_equal_lists(values(model.trainable_variables), values(averages))


# Saving


@every_inner
def test_config_round_trip(inner):
    optimizer = AdaNorm(INNER[inner](clipnorm=1.5), gamma=0.5, max_correction=4.0, name="mine")
    config = optimizer.get_config()
    copy = optimizers.deserialize(optimizers.serialize(optimizer))
    assert type(copy.inner_optimizer) is type(optimizer.inner_optimizer)
    assert copy.get_config() == config == AdaNorm.from_config(config).get_config()
    assert copy.name == "mine" and copy.max_correction == 4 and copy.clipnorm == 1.5


@keras.saving.register_keras_serializable(package="tests")
class Registered(optimizers.SGD):
    pass


def test_config_of_other_peoples_optimizers():
    copy = optimizers.deserialize(optimizers.serialize(AdaNorm(Registered(0.3))))
    assert type(copy.inner_optimizer) is Registered

    class Unregistered(optimizers.SGD):
        pass

    config = AdaNorm(Unregistered(0.3)).get_config()
    copy = AdaNorm.from_config(config, custom_objects={"Unregistered": Unregistered})
    assert type(copy.inner_optimizer) is Unregistered


# Keras does not keep all of Nadam's state in a LossScaleOptimizer, wrapped or not: Adam is there.
@pytest.mark.parametrize("inner", ["sgd_momentum", "nadam", "radam", "loss_scale"])
def test_training_resumes_bit_for_bit(inner, tmp_path):
    if inner == "loss_scale":
        optimizer = optimizers.LossScaleOptimizer(AdaNorm(optimizers.Adam(0.01)))
    else:
        optimizer = AdaNorm(INNER[inner]())
    model = small_model(optimizer)
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_equal_lists(values(loaded.optimizer.variables), values(model.optimizer.variables))
    fit(model), fit(loaded)
    assert_equal_lists(values(loaded.variables), values(model.variables))
    assert_equal_lists(values(loaded.optimizer.variables), values(model.optimizer.variables))


def test_state_moves_by_weights_file_and_by_hand(tmp_path):
    model, read, set_by_hand = (
        small_model(AdaNorm(optimizers.Adam(0.01, use_ema=True))) for _ in range(3)
    )
    fit(model)
    model.save_weights(tmp_path / "model.weights.h5")
    for other in (read, set_by_hand):
        other.optimizer.build(other.trainable_variables)
    read.load_weights(tmp_path / "model.weights.h5")
    set_by_hand.optimizer.set_weights(values(model.optimizer.variables))
    for other in (read, set_by_hand):
        assert_equal_lists(values(other.optimizer.variables), values(model.optimizer.variables))


def test_file_holds_the_state_once(tmp_path):
    h5py = pytest.importorskip("h5py")
    model = small_model(AdaNorm(optimizers.Adam()))
    fit(model)
    model.save_weights(tmp_path / "model.weights.h5")
    saved = []
    with h5py.File(tmp_path / "model.weights.h5") as file:
        file["optimizer"].visititems(
            lambda name, item: saved.append(name) if isinstance(item, h5py.Dataset) else None
        )
    # Counter, learning rate, two moments of each variable, the vector of the averages.
    assert len(saved) == len(model.optimizer.variables) == 2 + 4 * 2 + 1


@tensorflow_only
def test_tensorflow_checkpoint(tmp_path):
    import tensorflow as tf

    gradients = swinging_gradients(SHAPES, steps=4)
    run = Run(AdaNorm(optimizers.Adam(0.01)), params())
    for grads in gradients:
        run.step(grads)
    path = tf.train.Checkpoint(optimizer=run.optimizer).save(tmp_path / "checkpoint")
    other = Run(AdaNorm(optimizers.Adam(0.01)), params())
    tf.train.Checkpoint(optimizer=other.optimizer).restore(path)
    assert_equal_lists(values(other.optimizer.variables), values(run.optimizer.variables))


# Other optimizers around it


def test_in_loss_scale_optimizer():
    first, second = swinging_gradients(SHAPES, steps=2)
    scaled = optimizers.LossScaleOptimizer(
        AdaNorm(optimizers.Adam(0.01, loss_scale_factor=4.0)), initial_scale=16.0
    )
    run = Run(scaled, params(), mode=COMPILED)
    plain = Run(AdaNorm(optimizers.Adam(0.01)), params(), mode=COMPILED)
    for grads in (first, second):
        run.step({name: 16 * g for name, g in grads.items()})
        plain.step(grads)
    inner = scaled.inner_optimizer
    assert_equal_lists(values(inner.norm_averages), values(plain.optimizer.norm_averages))
    assert_equal_lists(values(run.variables), values(plain.variables))

    before = values(run.variables + inner.variables)
    run.step({name: np.where(g > 0, np.inf, g) for name, g in first.items()})
    assert_equal_lists(values(run.variables + inner.variables), before)
    assert float(to_numpy(scaled.dynamic_scale)) == 8


@needs_multi_optimizer
def test_in_multi_optimizer(tmp_path):
    def optimizer(wrap):
        sgd, adam = optimizers.SGD(0.1, momentum=0.9), optimizers.Adam(0.01)
        return optimizers.MultiOptimizer(
            optimizers.OptimizerMap(wrap(sgd), {".*bias": wrap(adam)}), loss_scale_factor=2.0
        )

    model = small_model(optimizer(lambda inner: AdaNorm(inner, gamma=0)))
    bare = small_model(optimizer(lambda inner: inner))
    fit(model), fit(bare)
    assert_equal_lists(values(model.variables), values(bare.variables))
    assert [each.loss_scale_factor for each in model.optimizer.optimizers] == [2.0, 2.0]

    model = small_model(optimizer(AdaNorm))
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    other = small_model(optimizer(AdaNorm))
    other.set_weights(model.get_weights())
    other.optimizer.build(other.trainable_variables)
    other.optimizer.set_weights(values(model.optimizer.variables))
    for each in (model, loaded, other):
        fit(each)
    for each in (loaded, other):
        assert_equal_lists(values(each.variables), values(model.variables))


# What is given and what is refused


def test_state_of_a_built_optimizer_is_kept():
    grads = swinging_gradients(SHAPES, steps=1)[0]
    bare = Run(optimizers.Adam(0.01), params(), mode=COMPILED)
    bare.step(grads)
    momentum = values(bare.optimizer.variables)
    optimizer = AdaNorm(bare.optimizer)
    assert optimizer.built and int(optimizer.iterations) == 1
    assert_equal_lists(values(optimizer.variables)[: len(momentum)], momentum)
    assert_equal_lists(values(optimizer.norm_averages), [0.0] * len(SHAPES))
    tensors = [keras.ops.convert_to_tensor(g) for g in grads.values()]
    optimizer.apply(tensors)
    assert int(optimizer.iterations) == 2
    assert_equal_lists(values(optimizer.norm_averages), [0.05 * n for n in norms(grads)], rtol=1e-5)
    with pytest.raises(ValueError, match="Unknown variable"):
        optimizer.apply(tensors[:1], [keras.Variable(np.zeros((4, 3)))])


def test_a_keras_without_multi_optimizer():
    """It came later than the oldest Keras with which the package works."""
    script = """
        from keras import optimizers
        for name in ("MultiOptimizer", "OptimizerMap"):
            if hasattr(optimizers, name):
                delattr(optimizers, name)
        import keras_adanorm
        keras_adanorm.AdaNorm(optimizers.SGD(0.1))
        try:
            keras_adanorm.AdaNorm(optimizers.LossScaleOptimizer(optimizers.SGD(0.1)))
        except ValueError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300
    )
    assert "other way around" in done.stdout, done.stderr


def test_optimizers_by_name():
    assert type(AdaNorm("sgd").inner_optimizer) is type(optimizers.SGD())
    config = optimizers.serialize(optimizers.SGD(0.125))
    assert float(to_numpy(AdaNorm(config).learning_rate)) == 0.125


class OwnApply(optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optimizers.SGD, "must be a `keras.optimizers.Optimizer`.*not a class"),
        (lambda: None, "must be a `keras.optimizers.Optimizer`.*optimizer=None"),
        (lambda: 0.1, "must be a `keras.optimizers.Optimizer`.*optimizer=0.1"),
        (lambda: AdamNorm(), "does not correct.*already. Received: optimizer=AdamNorm"),
        (lambda: keras_adanorm.RadamNorm(), "does not correct.*already"),
        (lambda: AdaNorm("sgd"), "does not correct.*already. Received: optimizer=AdaNorm"),
        (
            lambda: optimizers.LossScaleOptimizer(optimizers.SGD()),
            "other way around.*optimizer=LossScaleOptimizer",
        ),
        pytest.param(
            lambda: optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD())),
            "other way around.*optimizer=MultiOptimizer",
            marks=needs_multi_optimizer,
        ),
        (lambda: OwnApply(), "leaves `apply` to Keras.*optimizer=OwnApply"),
        (lambda: AdaNorm("sgd").inner_optimizer, "must not be wrapped already"),
    ],
)
def test_optimizers_that_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        AdaNorm(make())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": 1}, r"`gamma` must be in the range \[0, 1\). Received: gamma=1"),
        ({"gamma": -0.1}, "`gamma` must be"),
        ({"max_correction": 0.5}, "`max_correction` must be None or .*>= 1"),
        ({"clipnorm": 1.0}, "does not take `clipnorm`: set it on the optimizer that it wraps"),
        ({"learning_rate": 0.1}, "does not take `learning_rate`"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    inner = optimizers.SGD()
    with pytest.raises(ValueError, match=message):
        AdaNorm(inner, **arguments)
    AdaNorm(inner)  # a refusal leaves the optimizer as it was


def test_every_built_in_optimizer_is_wrapped_or_refused():
    """A new optimizer of Keras is to be added to the list, or to what is refused."""
    classes = {
        cls
        for cls in vars(optimizers).values()
        if isinstance(cls, type)
        and issubclass(cls, optimizers.Optimizer)
        and cls is not optimizers.Optimizer
    }
    known = {cls for make in INNER.values() for cls in type(make()).__mro__}
    refused = {getattr(optimizers, name, None) for name in ("LossScaleOptimizer", "MultiOptimizer")}
    left_out = set() if "muon" in INNER else {getattr(optimizers, "Muon", None)}
    assert classes - known == (refused | left_out) - {None}


# Backends and devices


@tensorflow_only
def test_sparse_gradients_stay_sparse():
    import tensorflow as tf

    def slices(scale):
        rows = tf.constant([[1.0, 2.0], [2.0, 2.0], [0.0, 0.0]]) * scale
        return tf.IndexedSlices(rows, tf.constant([1, 1, 3]), tf.constant([4, 2]))

    for inner in ("sgd", "adam"):
        wrapped, bare, quiet = (
            Run(optimizer, {"w": np.zeros((4, 2))}, mode="graph")
            for optimizer in (
                AdaNorm(INNER[inner](), gamma=0.5),
                INNER[inner](),
                AdaNorm(INNER[inner](), gamma=0),
            )
        )
        for scale, corrected in ((10.0, 10.0), (1.0, 3.0)):  # e = 25, then 15
            wrapped.apply([slices(scale)])
            bare.apply([slices(corrected)])
        np.testing.assert_allclose(wrapped.params["w"], bare.params["w"], rtol=1e-6)
        np.testing.assert_allclose(wrapped.e["w"], 15, rtol=1e-6)  # repeated rows summed: norm 5
        quiet.apply([slices(10.0)]), quiet.apply([slices(3.0)])
        np.testing.assert_array_equal(quiet.params["w"], bare.params["w"])


@pytest.mark.skipif(BACKEND != "jax", reason="needs JAX")
@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}])
def test_jax_traces_once_and_agrees_with_eager(settings):
    gradients = swinging_gradients(SHAPES, steps=4)
    jitted, eager = (
        Run(AdaNorm(optimizers.Adam(0.01, **settings)), params(), mode=mode)
        for mode in ("jit", "eager")
    )
    for grads in gradients:
        jitted.step(grads), eager.step(grads)
    assert jitted.traces == 1
    found = values(jitted.variables + jitted.optimizer.variables)
    expected = values(eager.variables + eager.optimizer.variables)
    assert_equal_lists(found, expected, rtol=1e-5, atol=1e-7)


@tensorflow_only
def test_replicas_are_summed_before_the_norm_is_taken():
    program = """
        import numpy as np, tensorflow as tf
        two_devices = [tf.config.LogicalDeviceConfiguration()] * 2
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, two_devices)
        import keras
        from keras_adanorm import AdaNorm, Radam

        def train(strategy, inner):
            with strategy.scope():
                variable = keras.Variable(np.ones((3, 2), "float32"), name="w")
                optimizer = AdaNorm(inner())
                optimizer.build([variable])

            @tf.function
            def step(scale):
                def replica():
                    replica_id = tf.distribute.get_replica_context().replica_id_in_sync_group
                    share = [tf.constant([[1.0, -2.0]]), tf.constant([[2.0, 5.0]])]
                    both = strategy.num_replicas_in_sync == 1
                    g = share[0] + share[1] if both else tf.gather(tf.stack(share), replica_id)
                    optimizer.apply([scale * tf.tile(g, [3, 1])], [variable])
                strategy.run(replica)

            for scale in (1.0, 0.1, 0.5):
                step(tf.constant(scale))
            return [np.array(variable)] + [np.array(v) for v in optimizer.variables]

        for inner in (lambda: keras.optimizers.Nadam(0.01), lambda: Radam(0.01)):
            one = train(tf.distribute.get_strategy(), inner)
            two = train(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), inner)
            for a, b in zip(one, two, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
        print("equal")
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=os.path.dirname(os.path.dirname(__file__)),
    )
    assert result.stdout == "equal\n", result.stderr


# The file of version 0.1, and what is in a file

# What four steps more of the version that saved it have led to.
CONTINUED = [
    [[0.6155716, -0.9510697, -1.1892859], [-0.197556, 0.5432746, 0.5215062]],
    [0.5607296, 0.3753893, -0.3010612],
    [[-0.4188184], [-1.6696993], [-0.4500159]],
    [0.4983605],
]


def test_file_of_version_0_1():
    """There each average was a variable of its own."""
    model = keras.models.load_model(make_saved.SAVED / "AdaNorm.keras")
    optimizer = model.optimizer
    assert (type(optimizer), optimizer.gamma, optimizer.max_correction) == (AdaNorm, 0.75, 50.0)
    assert int(to_numpy(optimizer.iterations)) == 4
    averages = [float(to_numpy(e)) for e in optimizer.norm_averages]
    np.testing.assert_allclose(averages, [1.0542, 0.7482, 1.2527, 1.015], rtol=1e-4)
    make_saved.train(model, 4, 8)
    for weight, expected in zip(model.trainable_variables, CONTINUED, strict=True):
        np.testing.assert_allclose(to_numpy(weight), expected, rtol=1e-4, atol=1e-5)


def test_dir_finds_the_inner_optimizer_and_a_file_holds_each_state_once(tmp_path):
    optimizer = AdaNorm(keras.optimizers.Adam(0.1))
    assert "inner_optimizer" in dir(optimizer)
    model = make_saved.train(make_saved.make_model(optimizer), 0, 2)
    model.save_weights(tmp_path / "model.weights.h5")
    with h5py.File(tmp_path / "model.weights.h5") as file:
        saved = []
        file.visititems(lambda name, item: saved.append(name) if hasattr(item, "shape") else None)
        state = [name for name in saved if name.startswith("optimizer")]
    # Steps, learning rate, two moments of four weights, the vector of the averages.
    assert len(state) == 2 + 2 * 4 + 1 == len(optimizer.variables)
