"""Saved and taken up again: a training that goes on as if it had not been interrupted."""

import json
import os
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

from keras_adanorm import (
    AdaBelief,
    AdaBeliefNorm,
    AdamNorm,
    AdaNorm,
    DiffGradNorm,
    Radam,
    RadamNorm,
)
from tests.support.make_saved import (
    EXPECTED,
    SAVED,
    STEPS,
    batch,
    make_model,
    make_optimizer,
    state_names,
    train,
    weights,
)
from tests.support.optimizers import (
    BACKEND,
    CLASSES,
    NORM_CLASSES,
    Run,
    every_class,
    tensorflow_only,
    to_numpy,
)

ROOT = Path(__file__).parents[1]
# No tracing of the model: what is saved is the same, and sooner.
EAGER = dict(run_eagerly=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation"),
    pytest.mark.filterwarnings("ignore:Compiled the loaded model, but the compiled metrics"),
]


def state(model):
    return [to_numpy(variable) for variable in model.optimizer.variables]


def assert_same(arrays, others):
    assert len(arrays) == len(others)
    for array, other in zip(arrays, others, strict=True):
        np.testing.assert_array_equal(array, other)


def trained(cls, steps=STEPS, **compile_arguments):
    return train(make_model(make_optimizer(cls), **compile_arguments), 0, steps)


def assert_trains_on_alike(model, other, steps=2):
    """Both go on from the same weights and state, and stay equal to the last bit."""
    assert_same(weights(other), weights(model))
    assert_same(state(other), state(model))
    before = weights(model)
    for each in (model, other):
        train(each, STEPS, STEPS + steps)
    assert not np.array_equal(before[0], weights(model)[0])
    assert_same(weights(other), weights(model))
    assert_same(state(other), state(model))


def run_python(script, *arguments, package=True):
    """Runs a script in a fresh process that finds the package, or does not, and returns stdout."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if package:
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        env=environment,
        cwd=arguments[0],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


once = pytest.mark.skipif(BACKEND != "tensorflow", reason="the same on all backends")


# The committed files


@every_class
def test_committed_file_trains_on(cls):
    """A change of the state's layout, or of what a step does with it, fails here."""
    model = keras.models.load_model(SAVED / f"{cls.__name__}.keras")
    assert type(model.optimizer) is cls
    assert model.optimizer.get_config() == make_optimizer(cls).get_config()
    assert int(to_numpy(model.optimizer.iterations)) == STEPS
    expected = json.loads(EXPECTED.read_text())[cls.__name__]
    assert state_names(model) == expected["state"]
    train(model, STEPS, 2 * STEPS)
    for weight, value in zip(weights(model), expected["continued"], strict=True):
        np.testing.assert_allclose(weight, value, rtol=1e-4, atol=1e-5)


def test_committed_files_tell_each_state_apart():
    """No two states of a file could be mixed up unnoticed, and the correction has fired."""
    for cls in CLASSES:
        model = keras.models.load_model(SAVED / f"{cls.__name__}.keras")
        kernels = [v for v in state(model) if v.shape == (2, 3)]
        assert len(kernels) == len(cls.slots)
        for i, kernel in enumerate(kernels):
            assert np.abs(kernel).max() > 1e-4
            assert not any(np.allclose(kernel, other, rtol=0.1) for other in kernels[:i])
        if cls in NORM_CLASSES:
            averages = [float(to_numpy(e)) for e in model.optimizer.norm_averages]
            assert min(averages) > 0.01
            assert len(set(averages)) == 4
    assert sum(path.stat().st_size for path in SAVED.iterdir()) < 400_000


# A file and a fresh process


@once
def test_fresh_process_trains_on_bit_for_bit(tmp_path):
    """With a variable that is large enough for the graph to ask whether a correction has fired."""
    from keras_adanorm.engine.norms import SMALL

    width, units = 260, 256
    assert width * units > SMALL
    straight = {}
    for cls in CLASSES:
        model = trained(cls, width=width, units=units)
        model.save(tmp_path / f"{cls.__name__}.keras")
        straight[cls] = train(model, STEPS, 2 * STEPS)
    run_python(
        """
        import sys, pathlib, keras, numpy as np
        import keras_adanorm
        from tests.support.make_saved import STEPS, train
        from tests.support.optimizers import to_numpy

        for path in pathlib.Path(sys.argv[1]).glob("*.keras"):
            model = train(keras.models.load_model(path), STEPS, 2 * STEPS)
            variables = model.trainable_variables + model.optimizer.variables
            np.savez(path.with_suffix(".npz"), *map(to_numpy, variables))
        """,
        tmp_path,
    )
    for cls, model in straight.items():
        with np.load(tmp_path / f"{cls.__name__}.npz") as continued:
            assert_same(list(continued.values()), weights(model) + state(model))


@once
def test_load_without_the_import(tmp_path):
    """What Keras says names the class; the model without its optimizer loads all the same."""
    said = run_python(
        """
        import sys, keras

        def outcome(function):
            try:
                return str(function())
            except Exception as error:
                return f"{type(error).__name__}: {error}"

        path = sys.argv[2] + "/AdamNorm.keras"
        print(outcome(lambda: keras.models.load_model(path)).replace(chr(10), " "))
        print(keras.models.load_model(path, compile=False).count_params())
        print(outcome(lambda: keras.optimizers.get("keras_adanorm>AdamNorm")))
        print("keras_adanorm" in sys.modules)
        import keras_adanorm
        print(type(keras.models.load_model(path).optimizer).__name__)
        """,
        tmp_path,
        SAVED,
    ).splitlines()[-5:]
    assert said[0].startswith("TypeError: Could not locate class 'AdamNorm'. Make sure custom ")
    assert "'module': 'keras_adanorm.adam_norm'" in said[0]
    assert "'registered_name': 'keras_adanorm>AdamNorm'" in said[0]
    assert said[1] == "13"
    assert said[2] == "ValueError: Could not interpret optimizer identifier: keras_adanorm>AdamNorm"
    assert said[3:] == ["False", "AdamNorm"]


# Other ways to save


# JAX compiles each anew: there one with the correction and one without.
@pytest.mark.parametrize("cls", [DiffGradNorm, AdaBelief] if BACKEND == "jax" else CLASSES)
def test_keras_file_with_all_the_state_of_keras(cls, tmp_path):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    optimizer = cls(
        schedule, use_ema=True, ema_overwrite_frequency=2, gradient_accumulation_steps=3
    )
    # Eagerly, JAX would compile the branches of the accumulation anew at each step.
    model = train(make_model(optimizer, run_eagerly=BACKEND != "jax"), 0, STEPS)
    model.save(tmp_path / "model.keras")
    assert_trains_on_alike(model, keras.models.load_model(tmp_path / "model.keras"), steps=3)


EPOCHS = 4


def fit(model, epochs=EPOCHS, callbacks=(), **arguments):
    x, y = (np.concatenate(parts) for parts in zip(*map(batch, range(2)), strict=True))
    arguments |= dict(batch_size=4, epochs=epochs, shuffle=False, verbose=0)
    model.fit(x, y, callbacks=list(callbacks), **arguments)
    return model


def new_model(cls):
    """A model whose optimizer has its variables, so that it takes up the state of a file."""
    model = make_model(make_optimizer(cls), **EAGER)
    model.optimizer.build(model.trainable_variables)
    return model


def train_straight(optimizer, folder):
    """A training without a break, and the folder with what `ModelCheckpoint` kept of it."""
    model = make_model(optimizer, **EAGER)
    keep = [
        keras.callbacks.ModelCheckpoint(str(folder / "{epoch}.keras")),
        keras.callbacks.ModelCheckpoint(str(folder / "{epoch}.weights.h5"), save_weights_only=True),
    ]
    return fit(model, callbacks=keep), folder


@pytest.fixture(scope="module", params=CLASSES, ids=lambda cls: cls.__name__)
def straight(request, tmp_path_factory):
    """A class and what `train_straight` returns for it."""
    optimizer = make_optimizer(request.param)
    return request.param, *train_straight(optimizer, tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def adam(tmp_path_factory):
    """What `train_straight` returns for Keras' Adam."""
    optimizer = keras.optimizers.Adam(0.05, name="optimizer")
    return train_straight(optimizer, tmp_path_factory.mktemp("adam"))


def test_model_checkpoint(straight):
    cls, expected, folder = straight
    model = fit(keras.models.load_model(folder / "2.keras"), initial_epoch=2)
    assert type(model.optimizer) is cls
    assert_same(weights(model), weights(expected))
    assert_same(state(model), state(expected))


def test_model_checkpoint_of_weights(straight):
    """`save_weights` keeps the state of the optimizer, and `load_weights` takes it up."""
    cls, expected, folder = straight
    model = new_model(cls)
    model.load_weights(folder / "2.weights.h5")
    fit(model, initial_epoch=2)
    assert_same(weights(model), weights(expected))
    assert_same(state(model), state(expected))
    model.save_weights(folder / "again.weights.h5")
    other = new_model(cls)
    other.load_weights(folder / "again.weights.h5")
    assert_same(state(other), state(expected))


ANOTHER_CLASS = "Loading the state of"


class Subclass(AdamNorm):
    pass


def loaded(optimizer, path, **arguments):
    model = make_model(optimizer, **EAGER)
    model.optimizer.build(model.trainable_variables)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.load_weights(path, **arguments)
    return [str(one.message) for one in told if ANOTHER_CLASS in str(one.message)]


def test_state_of_another_class(tmp_path):
    """The name that Keras gave to the optimizer says its class."""
    path = tmp_path / "state.weights.h5"

    def save(optimizer):
        model = make_model(optimizer, **EAGER)
        model.optimizer.build(model.trainable_variables)
        model.save_weights(path)

    save(AdamNorm())
    with h5py.File(path) as file:
        if "name" not in file["optimizer/vars"].attrs:
            pytest.skip("this Keras writes no names into a file")
    for other in (RadamNorm(), AdaBeliefNorm(), AdaBeliefNorm(name="mine")):
        (said,) = loaded(other, path)
        name = type(other).__name__
        assert re.search(rf"state of 'adam_norm\w*', a name of AdamNorm, into {name}, in", said)
    for same in (AdamNorm(), Subclass(), AdamNorm(name="mine")):
        assert loaded(same, path) == []
    scaled = keras.optimizers.LossScaleOptimizer
    save(scaled(AdamNorm()))
    assert loaded(scaled(AdamNorm()), path) == []
    assert len(loaded(scaled(RadamNorm()), path)) == 1
    save(AdamNorm(name="radam_norm"))  # what a user says, of both
    assert loaded(AdamNorm(name="radam_norm"), path) == []
    save(AdamNorm(name="optimizer"))
    assert loaded(RadamNorm(), path) == []
    save(keras.optimizers.Adam())
    assert len(loaded(Radam(), path)) == 1
    save(Subclass())
    assert loaded(AdamNorm(), path) == []
    save(AdaNorm(keras.optimizers.SGD(momentum=0.9)))
    assert loaded(AdaNorm(keras.optimizers.SGD(momentum=0.9)), path) == []
    (said,) = loaded(AdaNorm(keras.optimizers.Lion()), path)
    assert "a name of SGD, into Lion" in said


def test_state_that_is_not_taken_up_is_told_as_with_adam(tmp_path):
    """Of SGD after some steps, whose file has as many values as one of an unbuilt optimizer."""
    model = train(make_model(keras.optimizers.SGD(name="mine"), **EAGER), 0, 2)
    model.save_weights(tmp_path / "state.weights.h5")
    for cls in (keras.optimizers.Adam, AdamNorm):
        model = make_model(cls(name="mine"), **EAGER)
        model.optimizer.build(model.trainable_variables)
        with pytest.warns(UserWarning, match="Skipping variable loading for optimizer 'mine'"):
            model.load_weights(tmp_path / "state.weights.h5")


class Counting(AdamNorm):
    """Has a scalar of its own after the averages."""

    def build(self, variables):
        super().build(variables)
        self.count = self.add_variable(shape=(), name="count", initializer="ones")


def test_state_of_one_variable_and_a_scalar():
    """In number and shape like that of version 0.1, which had scalars for the averages."""
    run = Run(Counting(0.1), {"w": np.ones(3)})
    for scale in (1.0, 0.1):
        run.step({"w": scale * np.ones(3)})
    store = {}
    run.optimizer.save_own_variables(store)
    other = Run(Counting(0.1), {"w": np.ones(3)}).optimizer
    other.load_own_variables(store)
    assert_same([to_numpy(v) for v in other.variables], [store[str(i)] for i in range(len(store))])


class Interrupted(Exception):
    pass


class Interrupt(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise Interrupted


def test_backup_and_restore(straight, tmp_path):
    cls, expected, _ = straight
    with pytest.raises(Interrupted):
        fit(new_model(cls), callbacks=[keras.callbacks.BackupAndRestore(tmp_path), Interrupt()])
    epochs = []
    count = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epochs.append(epoch))
    model = fit(new_model(cls), callbacks=[keras.callbacks.BackupAndRestore(tmp_path), count])
    assert epochs == [2, 3]
    assert_same(weights(model), weights(expected))
    assert_same(state(model), state(expected))


def test_weights_file_and_an_optimizer_without_state_as_with_adam(straight, adam):
    """Keras skips the state and warns, with its words for all optimizers."""
    results = []
    for expected, folder in (straight[1:], adam):
        optimizer = type(expected.optimizer).from_config(expected.optimizer.get_config())
        model = make_model(optimizer, **EAGER)
        with pytest.warns(UserWarning, match="Skipping variable loading for optimizer"):
            model.load_weights(folder / "4.weights.h5")
        assert_same(weights(model), weights(expected))
        results.append((model.optimizer.built, int(to_numpy(model.optimizer.iterations))))
    assert results == 2 * [(False, 0)]


def test_hdf5_file_as_with_adam(straight, adam, tmp_path):
    """The legacy format: Keras writes all state, and reads as much of it as of Adam's."""
    path, results = tmp_path / "model.h5", []
    for expected in (straight[1], adam[0]):
        expected.save(path)
        with h5py.File(path) as file:
            group = file["optimizer_weights"]
            assert_same([group[n][()] for n in group.attrs["weight_names"]], state(expected))
        model = keras.models.load_model(path)
        assert type(model.optimizer) is type(expected.optimizer)
        assert model.optimizer.get_config() == expected.optimizer.get_config()
        assert_same(weights(model), weights(expected))
        results.append((model.optimizer.built, int(to_numpy(model.optimizer.iterations))))
    assert results[0] == results[1]


def test_keras_file_with_loss_scaling(straight, tmp_path):
    cls, expected, folder = straight
    wrapped = keras.optimizers.LossScaleOptimizer(make_optimizer(cls), initial_scale=4.0)
    model = make_model(wrapped)
    wrapped.build(model.trainable_variables)
    wrapped.inner_optimizer.set_weights(state(expected))
    model.save(tmp_path / "model.keras")
    other = keras.models.load_model(tmp_path / "model.keras").optimizer
    assert type(other.inner_optimizer) is cls
    assert float(to_numpy(other.dynamic_scale)) == 4.0
    assert_same([to_numpy(v) for v in other.inner_optimizer.variables], state(expected))


@tensorflow_only
@pytest.mark.parametrize("built", [True, False])
def test_tensorflow_checkpoint(straight, built, tmp_path):
    import tensorflow as tf

    cls, expected, _ = straight
    checkpoint = tf.train.Checkpoint(model=expected, optimizer=expected.optimizer)
    path = checkpoint.save(tmp_path / "checkpoint")
    model = new_model(cls) if built else make_model(make_optimizer(cls), **EAGER)
    status = tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(path)
    model.optimizer.build(model.trainable_variables)  # what is not built takes its state up here
    status.assert_consumed()
    assert_same(weights(model), weights(expected))
    assert_same(state(model), state(expected))


@tensorflow_only
def test_saved_model_and_export(tmp_path):
    """What makes the optimizer fast on TensorFlow does not stand in the way."""
    import tensorflow as tf

    model = trained(DiffGradNorm, **EAGER)
    x = batch(0)[0]
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(exported.serve(x), model(x), rtol=1e-5)
    tf.saved_model.save(model, str(tmp_path / "saved"))
