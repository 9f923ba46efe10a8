"""Mixed and pure half precision on scikit-learn's digits: as accurate as float32."""

import functools

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

from keras_adanorm import AdaNorm
from tests.support.coverage_table import PRECISIONS, SETUPS, make
from tests.support.optimizers import BACKEND, to_numpy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")
EPOCHS, BATCH, TRAINING = 12, 300, 1200


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On torch: threads that wait for each other take longer than these small matrices."""
    if BACKEND != "torch":
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def digits():
    """Images as vectors, labels, and weights for a network of one hidden layer."""
    random = np.random.default_rng(0)
    x, y = load_digits(return_X_y=True)
    order = random.permutation(len(x))
    weights = [
        random.uniform(-1, 1, shape) / shape[0] ** 0.5 if len(shape) == 2 else np.zeros(shape)
        for shape in ((64, 32), (32,), (32, 10), (10,))
    ]
    return (x[order] / 16).astype("float32"), y[order], weights


def new_model(name, precision):
    keras.config.set_dtype_policy(precision)
    *_, weights = digits()
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    )
    model.set_weights(weights)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = {"AdaNorm": 0.3, "Radam": 0.1, "RadamNorm": 0.1}.get(name, 0.03)
    # On TensorFlow the same without tracing, and sooner.
    model.compile(make(name, rate), loss, run_eagerly=BACKEND == "tensorflow")
    return model


@functools.cache
def trained(name, precision):
    """The losses of a training, and the accuracy on the images that it left out."""
    x, y, _ = digits()
    model = new_model(name, precision)
    history = model.fit(x[:TRAINING], y[:TRAINING], BATCH, EPOCHS, shuffle=False, verbose=0)
    logits = to_numpy(model(x[TRAINING:])).astype("float32")
    return history.history["loss"], np.mean(logits.argmax(1) == y[TRAINING:])


@pytest.mark.parametrize(
    ("name", "precision"),
    [(n, p) for p in PRECISIONS for n in SETUPS[f"{BACKEND} {p}"].optimizers],
)
def test_digits_as_in_float32(name, precision):
    _, full_accuracy = trained(name, "float32")
    loss, accuracy = trained(name, precision)
    assert loss[-1] < 0.2 * loss[0]
    assert full_accuracy > 0.9
    assert abs(accuracy - full_accuracy) < 0.02


@pytest.mark.skipif(BACKEND == "jax", reason="the contract suite asks it of the compiled update")
@pytest.mark.parametrize("name", ["AdamNorm", "RadamNorm", "AdaNorm"])
def test_an_overflow_in_mixed_float16_changes_nothing(name):
    """Neither weights nor state, the count of steps and the averages `e_t` included."""
    x, y, _ = digits()
    batch, labels = x[:BATCH], y[:BATCH]
    overflowing = np.where(batch == 1, np.float32(1e30), batch)  # infinite in float16
    model, full = new_model(name, "mixed_float16"), new_model(name, "float32")
    model.optimizer.build(model.trainable_variables)
    inner = model.optimizer.inner_optimizer

    def values():
        return [to_numpy(v) for v in model.trainable_variables + inner.variables]

    for scaling in (1, 1 / 2):
        assert float(to_numpy(model.optimizer.dynamic_scale)) == scaling * 2**15
        before = values()
        model.train_on_batch(overflowing, labels)
        for one, other in zip(values(), before, strict=True):
            np.testing.assert_array_equal(one, other)

        model.train_on_batch(batch, labels)
        full.train_on_batch(batch, labels)
        assert int(to_numpy(inner.iterations)) == int(to_numpy(full.optimizer.iterations))
        averages = [to_numpy(e) for e in inner.norm_averages]  # of the unscaled gradients
        expected = [to_numpy(e) for e in full.optimizer.norm_averages]
        np.testing.assert_allclose(averages, expected, rtol=0.01)


def test_a_correction_beyond_float16_stays_finite():
    """`e_t` is kept in float32, but what the wrapper hands on has the gradient's float16."""
    rate, largest = 2.0**-10, 65504.0
    optimizer = AdaNorm(keras.optimizers.SGD(rate))
    variable = keras.Variable(np.zeros(400), dtype="float16")
    for _ in range(40):  # of norm 1.2e6
        optimizer.apply([keras.ops.full((400,), 6e4, "float16")], [variable])
    assert to_numpy(optimizer.norm_averages[0]) > 10 * largest
    for g, step in ((8.0, -rate * largest), (np.inf, -np.inf)):
        variable.assign(np.zeros(400))
        sparse = np.where(np.arange(400) == 7, g, 0.0)
        optimizer.apply([keras.ops.convert_to_tensor(sparse, "float16")], [variable])
        expected = np.where(np.arange(400) == 7, step, 0.0)
        np.testing.assert_allclose(to_numpy(variable), expected, rtol=1e-3)
