"""GradientNormMonitor: the norms it derives are the norms that were there."""

import csv

import keras
import numpy as np
import pytest

import keras_adanorm
from keras_adanorm import registry
from keras_adanorm.monitor import GradientNormMonitor, norms_between
from tests.support.optimizers import OLD_TORCH

NORMS = np.array([1.0, 2.0, 0.5, 0.0, 0.25, 4.0, 1e-3, 3.0, 3.0, 0.1, 0.0, 2.0])
VARIANTS = [cls.__name__ for cls in registry.NORM_VARIANTS]


def fit(optimizer, callbacks=(), norms=NORMS, epochs=1, **compile_arguments):
    """Trains a model whose kernel has gradients of the given norms, and whose bias has ones."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(optimizer, loss=lambda y, outputs: keras.ops.mean(outputs), **compile_arguments)
    again(model, callbacks, norms, epochs)
    return model


def again(model, callbacks=(), norms=NORMS, epochs=1):
    x = np.stack([0.6 * norms, -0.8 * norms], axis=1).astype("float32")
    model.fit(
        x,
        np.zeros((len(x), 1)),
        batch_size=1,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )


def expected(norms, gamma, max_correction=None, average=0.0):
    """The paper's equations 3 and 4 on a stream of norms: before, after, fired."""
    after = []
    for norm in norms:
        average = gamma * average + (1 - gamma) * norm
        after.append(max(norm, average) if norm > 0 else 0.0)
    after = np.array(after)
    if max_correction is not None:
        after = np.minimum(after, max_correction * norms)
    return np.array(norms), after, after > norms


def check(monitor, norms, gamma, max_correction=None, epochs=1):
    before, after, fired = expected(np.tile(norms, epochs), gamma, max_correction)
    assert np.allclose(monitor.gradient_norms[:, 0], before, rtol=1e-4, atol=1e-6)
    assert np.allclose(monitor.corrected_gradient_norms[:, 0], after, rtol=1e-4, atol=1e-6)
    assert np.array_equal(
        monitor.corrected_gradient_norms[:, 0] > monitor.gradient_norms[:, 0], fired
    )
    assert np.allclose(monitor.gradient_norms[:, 1], 1.0, rtol=1e-5)
    assert not (monitor.corrected_gradient_norms[:, 1] > 1.0001).any()


@pytest.mark.parametrize("name", VARIANTS)
def test_norms_are_those_of_the_gradients(name):
    monitor = GradientNormMonitor(per_step=True)
    fit(getattr(keras_adanorm, name)(0.01, gamma=0.9), [monitor], epochs=2)
    check(monitor, NORMS, 0.9, epochs=2)
    assert monitor.iterations.tolist() == list(range(1, 25))
    assert [path.rpartition("/")[2] for path in monitor.variable_names] == ["kernel", "bias"]


@pytest.mark.parametrize("mode", [{"run_eagerly": True}, {"jit_compile": True}, {}])
def test_every_mode_of_execution(mode):
    if OLD_TORCH and "jit_compile" in mode:
        pytest.skip("torch 2.4 can't compile Keras' `fit`, with whatever optimizer")
    monitor = GradientNormMonitor(per_step=True)
    fit(keras_adanorm.AdamNorm(0.01), [monitor], **mode)
    check(monitor, NORMS, 0.95)


@pytest.mark.parametrize("max_correction", [1.0, 1.5])
def test_bounded_correction(max_correction):
    monitor = GradientNormMonitor(per_step=True)
    fit(keras_adanorm.AdamNorm(0.01, max_correction=max_correction), [monitor])
    check(monitor, NORMS, 0.95, max_correction)
    fired = monitor.history["corrections_fired"][0]
    assert (fired == 0) == (max_correction == 1)


def test_hyperparameters_that_are_variables():
    optimizer = keras_adanorm.AdamNorm()
    optimizer.gamma, optimizer.max_correction = keras.Variable(0.8), keras.Variable(2.0)
    monitor = GradientNormMonitor(per_step=True)
    fit(optimizer, [monitor], run_eagerly=True)
    check(monitor, NORMS, gamma=0.8, max_correction=2.0)


def test_gamma_of_zero_never_fires():
    monitor = GradientNormMonitor(per_step=True)
    fit(keras_adanorm.AdamNorm(0.01, gamma=0.0), [monitor])
    check(monitor, NORMS, 0.0)
    assert monitor.history["corrections_fired"] == [0.0]


def test_wrapped_optimizer_shows_the_norms_of_the_plain_one():
    monitor = GradientNormMonitor(per_step=True)
    fit(keras_adanorm.AdaNorm(keras.optimizers.Adam(0.01), gamma=0.0), [monitor])
    check(monitor, NORMS, 0.0)


def test_logs_are_means_over_steps_and_variables(tmp_path):
    monitor = GradientNormMonitor(per_step=True)
    logger = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    model = fit(keras_adanorm.AdamNorm(0.01), [monitor, logger], epochs=2)
    before, after = monitor.gradient_norms, monitor.corrected_gradient_norms
    for epoch, rows in enumerate([slice(0, 12), slice(12, 24)]):
        wanted = {
            "corrections_fired": np.mean(after[rows] > before[rows]),
            "gradient_norm": before[rows].mean(),
            "corrected_gradient_norm": after[rows].mean(),
        }
        for name, value in wanted.items():
            assert monitor.history[name][epoch] == pytest.approx(value, rel=1e-5)
            assert model.history.history[name][epoch] == monitor.history[name][epoch]
    with open(tmp_path / "log.csv", newline="") as file:
        logged = [float(row["gradient_norm"]) for row in csv.DictReader(file)]
    assert logged == monitor.history["gradient_norm"]


def test_nothing_is_kept_per_step_unless_asked():
    monitor = GradientNormMonitor()
    fit(keras_adanorm.AdamNorm(0.01), [monitor])
    assert monitor.iterations.size == monitor.gradient_norms.size == 0
    assert monitor.history["gradient_norm"][0] > 0


def test_light_mode_reads_few_steps_and_the_same_norms():
    every, light = (GradientNormMonitor(per_step=True, every=n) for n in (1, 4))
    reads = []
    read = light._read
    light._read = lambda: reads.append(1) or read()
    fit(keras_adanorm.AdamNorm(0.01), [every, light], epochs=2)
    assert light.iterations.tolist() == [4, 8, 12, 16, 20, 24]
    assert np.array_equal(light.gradient_norms, every.gradient_norms[3::4])
    assert len(reads) <= 13


def test_epoch_without_a_sample_is_nan():
    monitor = GradientNormMonitor(every=20)
    fit(keras_adanorm.AdamNorm(0.01), [monitor], epochs=2)
    assert np.isnan(monitor.history["gradient_norm"][0])
    assert monitor.history["gradient_norm"][1] > 0


def test_it_only_looks_on():
    watched = fit(keras_adanorm.AdamNorm(0.01), [GradientNormMonitor()])
    alone = fit(keras_adanorm.AdamNorm(0.01))
    for one, other in zip(watched.get_weights(), alone.get_weights(), strict=True):
        assert np.array_equal(one, other)


def test_a_second_fit_goes_on_from_the_averages():
    monitor = GradientNormMonitor(per_step=True)
    model = fit(keras_adanorm.AdamNorm(0.01))
    again(model, [monitor])
    assert monitor.iterations.tolist() == list(range(13, 25))
    whole = expected(np.tile(NORMS, 2), 0.95)
    assert np.allclose(monitor.corrected_gradient_norms[:, 0], whole[1][12:], rtol=1e-4)


def test_state_is_taken_up():
    one = GradientNormMonitor(per_step=True)
    model = fit(keras_adanorm.AdamNorm(0.01), [one])
    two = GradientNormMonitor(per_step=True)
    two.set_state(one.get_state())
    again(model, [two])
    assert two.iterations.tolist() == list(range(1, 25))
    assert np.array_equal(two.gradient_norms[:12], one.gradient_norms)
    assert two.variable_names == one.variable_names


def test_clipped_gradients_are_what_the_optimizer_saw():
    monitor = GradientNormMonitor(per_step=True)
    fit(keras_adanorm.AdamNorm(0.01, clipnorm=1.0), [monitor])
    check(monitor, np.minimum(NORMS, 1.0), 0.95)


def test_accumulated_gradients_make_one_step():
    monitor = GradientNormMonitor(per_step=True)
    fit(keras_adanorm.AdamNorm(0.01, gradient_accumulation_steps=3), [monitor])
    assert monitor.iterations.tolist() == [1, 2, 3, 4]
    check(monitor, NORMS.reshape(4, 3).mean(axis=1), 0.95)


def test_a_step_with_overflow_is_no_step():
    monitor = GradientNormMonitor(per_step=True)
    norms = NORMS.copy()
    norms[5] = np.inf
    optimizer = keras.optimizers.LossScaleOptimizer(keras_adanorm.AdamNorm(0.01))
    fit(optimizer, [monitor], norms=norms)
    assert monitor.iterations.tolist() == list(range(1, 12))
    check(monitor, np.delete(norms, 5), 0.95)


def test_variables_without_a_norm_are_left_out(monkeypatch):
    optimizer = keras_adanorm.AdamNorm(0.01)
    model = fit(optimizer)
    read = keras_adanorm.AdamNorm.norm_averages.fget
    without_the_first = property(lambda self: [None, read(self)[1]])
    monkeypatch.setattr(keras_adanorm.AdamNorm, "norm_averages", without_the_first)
    monitor = GradientNormMonitor(per_step=True)
    again(model, [monitor])
    assert [path.rpartition("/")[2] for path in monitor.variable_names] == ["bias"]


def test_plain_optimizer_is_refused_with_advice():
    with pytest.raises(ValueError, match=r"AdaNorm\(optimizer, gamma=0\).*optimizer=Adam$"):
        fit(keras.optimizers.Adam(), [GradientNormMonitor()])


def two_optimizers():
    """Corrects the kernel's gradients and only watches the bias's."""
    watched = keras_adanorm.AdaNorm(keras.optimizers.SGD(0.01), gamma=0)
    return keras.optimizers.OptimizerMap(keras_adanorm.AdamNorm(0.01), {".*bias": watched})


def check_two_optimizers(monitor):
    kernel = [name.endswith("kernel") for name in monitor.variable_names].index(True)
    before, after, _ = expected(NORMS, 0.95)
    assert np.allclose(monitor.gradient_norms[:, kernel], before, rtol=1e-4, atol=1e-6)
    assert np.allclose(monitor.corrected_gradient_norms[:, kernel], after, rtol=1e-4, atol=1e-6)
    assert np.allclose(monitor.gradient_norms[:, 1 - kernel], 1.0, rtol=1e-5)
    assert monitor.iterations.tolist() == list(range(1, 13))
    assert monitor.history["gradient_norm"][0] == pytest.approx((before.mean() + 1) / 2, rel=1e-4)


needs_multi_optimizer = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has no MultiOptimizer"
)


@needs_multi_optimizer
@pytest.mark.parametrize("scaled", [False, True])
def test_optimizers_inside_a_multi_optimizer(scaled):
    optimizer = keras.optimizers.MultiOptimizer(two_optimizers())
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
    monitor = GradientNormMonitor(per_step=True)
    fit(optimizer, [monitor])
    check_two_optimizers(monitor)


@needs_multi_optimizer
def test_optimizers_that_a_function_chooses_when_they_are_built():
    chosen = two_optimizers()
    monitor = GradientNormMonitor(per_step=True)
    fit(keras.optimizers.MultiOptimizer(lambda variable: chosen[variable.path]), [monitor])
    check_two_optimizers(monitor)


@needs_multi_optimizer
def test_variables_of_a_plain_optimizer_are_left_out():
    plain = keras.optimizers.SGD(0.01)
    both = keras.optimizers.OptimizerMap(keras_adanorm.AdamNorm(0.01), {".*bias": plain})
    monitor = GradientNormMonitor(per_step=True)
    fit(keras.optimizers.MultiOptimizer(both), [monitor])
    assert [path.rpartition("/")[2] for path in monitor.variable_names] == ["kernel"]


class Pair(keras.Model):
    """Two layers with an optimizer each, like a GAN's two models. The second rests every other."""

    def __init__(self, second):
        super().__init__()
        self.layers_of = [keras.layers.Dense(1, kernel_initializer="ones") for _ in range(2)]
        self.optimizers_of = {"first": keras_adanorm.AdamNorm(0.01), "second": second}
        self.batches = 0

    def build(self, shape):
        for layer in self.layers_of:
            layer.build(shape)

    def call(self, x):
        return self.layers_of[0](x)

    def train_step(self, data):
        x = data[0]
        self.batches += 1
        for layer, optimizer in zip(self.layers_of, self.optimizers_of.values(), strict=True):
            if layer is self.layers_of[0] or self.batches % 2 == 0:
                optimizer.apply([keras.ops.transpose(x), keras.ops.ones(1)], layer.variables)
        return {"loss": 0.0}


def fit_pair(monitor, second):
    model = Pair(second)
    model.build((1, 2))
    model.compile(run_eagerly=True)
    again(model, [monitor])


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="its train steps have no effects")
def test_optimizers_that_are_attributes_of_the_model():
    monitor = GradientNormMonitor(per_step=True)
    fit_pair(monitor, keras_adanorm.RadamNorm(0.01))
    before = monitor.gradient_norms
    assert [path.rpartition("/")[2] for path in monitor.variable_names] == 2 * ["kernel", "bias"]
    assert monitor.iterations.tolist() == list(range(1, 13))
    assert np.allclose(before[:, 0], NORMS, rtol=1e-4, atol=1e-6)
    assert np.allclose(before[1::2, 2], NORMS[1::2], rtol=1e-4, atol=1e-6)
    assert np.isnan(before[::2, 2:]).all()
    assert not np.isnan(before[1::2]).any()
    state = monitor.get_state()
    later = GradientNormMonitor(per_step=True)
    later.set_state(state)
    fit_pair(later, keras.optimizers.SGD(0.01))
    assert later.gradient_norms.shape == (24, 6)  # other variables, so other columns
    assert np.isnan(later.gradient_norms[:12, 4:]).all()
    assert np.isnan(later.gradient_norms[12:, :4]).all()


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_no_variable_with_a_norm():
    optimizer = keras_adanorm.AdamNorm(0.01)
    optimizer.exclude_from_norm_correction(var_names=["kernel", "bias"])
    monitor = GradientNormMonitor()
    fit(optimizer, [monitor])
    assert np.isnan(monitor.history["gradient_norm"][0])


@pytest.mark.parametrize(
    "kind", ["plain", "scaled", pytest.param("multi", marks=needs_multi_optimizer)]
)
def test_the_advice_of_a_refusal_works(kind):
    optimizers = keras.optimizers

    def make(inner):
        if kind == "multi":
            return optimizers.MultiOptimizer(optimizers.OptimizerMap(inner))
        return optimizers.LossScaleOptimizer(inner) if kind == "scaled" else inner

    with pytest.raises(ValueError, match="needs an optimizer that keeps") as refused:
        fit(make(optimizers.Adam(0.01)), [GradientNormMonitor()])
    advice, received = {
        "plain": ("Wrap yours as `keras_adanorm.AdaNorm(optimizer, gamma=0)`", "Adam"),
        "scaled": (
            "Wrap yours as `LossScaleOptimizer(keras_adanorm.AdaNorm(optimizer, gamma=0))`",
            "LossScaleOptimizer(Adam)",
        ),
        "multi": (
            "Wrap those inside of MultiOptimizer, each as "
            "`keras_adanorm.AdaNorm(optimizer, gamma=0)`",
            "MultiOptimizer",
        ),
    }[kind]
    assert advice in str(refused.value)
    assert str(refused.value).endswith(f"Received: optimizer={received}")
    monitor = GradientNormMonitor(per_step=True)
    fit(make(keras_adanorm.AdaNorm(optimizers.Adam(0.01), gamma=0)), [monitor])
    check(monitor, NORMS, 0.0)


class Order(keras.callbacks.Callback):
    """Notes the calls that it gets, and what it finds in the logs."""

    def __init__(self):
        super().__init__()
        self.calls, self.logs = [], []

    def on_train_begin(self, logs=None):
        self.calls.append("train")

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append("epoch")
        self.logs.append(sorted(logs))


class Called(GradientNormMonitor):
    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)


@pytest.mark.parametrize("monitor", [GradientNormMonitor, Called])
def test_callbacks_before_it_see_what_it_logs(monitor, tmp_path):
    early, late = Order(), Order()
    logger = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    given = [early, logger, monitor(), late]
    fit(keras_adanorm.AdamNorm(0.01), given, epochs=2)
    assert early.calls == late.calls == ["train", "epoch", "epoch"]
    assert early.logs == late.logs
    assert {"corrections_fired", "gradient_norm"} < set(early.logs[0])
    with open(tmp_path / "log.csv", newline="") as file:
        assert (
            float(next(csv.DictReader(file))["gradient_norm"])
            == given[2].history["gradient_norm"][0]
        )


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="reads TensorFlow's files")
def test_tensorboard_before_it_logs_the_norms(tmp_path):
    import tensorflow as tf

    monitor = GradientNormMonitor()
    fit(keras_adanorm.AdamNorm(0.01), [keras.callbacks.TensorBoard(tmp_path), monitor])
    (path,) = (tmp_path / "train").glob("*.v2")
    events = tf.compat.v1.train.summary_iterator(str(path))
    tags = {value.tag for event in events for value in event.summary.value}
    assert {f"epoch_{name}" for name in monitor.history} < tags


def test_hidden_steps_are_refused():
    with pytest.raises(ValueError, match="Received: steps_per_execution=4"):
        fit(
            keras_adanorm.AdamNorm(0.01),
            [GradientNormMonitor()],
            steps_per_execution=4,
        )


def test_steps_taken_elsewhere_are_told():
    class Elsewhere(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 5:
                again(self.model)

    with pytest.warns(UserWarning, match="saw step 18 right after step 5"):
        fit(
            keras_adanorm.AdamNorm(0.01),
            [Elsewhere(), GradientNormMonitor()],
        )


@pytest.mark.parametrize("every", [0, -1, 1.5, True, None])
def test_every_must_be_a_positive_integer(every):
    with pytest.raises(ValueError, match="Argument `every` must be a positive integer"):
        GradientNormMonitor(every=every)


def test_every_may_be_an_integer_of_numpy():
    assert type(GradientNormMonitor(every=np.int64(5)).every) is int


def test_rounding_of_the_average_is_not_a_gradient():
    rng = np.random.default_rng(0)
    previous = rng.lognormal(size=1000, sigma=8).astype("float32")
    for gamma in (0.8, 0.95, 0.999):
        current = np.float32(gamma) * previous
        before, after, fired = norms_between(previous, current, gamma)
        assert not before.any() and not after.any() and not fired.any()
        small = 1e-3 * previous
        current = np.float32(gamma) * previous + np.float32(1 - gamma) * small
        before, after, fired = norms_between(previous, current, gamma)
        assert fired.all() and np.allclose(before, small, rtol=0.2)
        assert np.array_equal(after, current)
