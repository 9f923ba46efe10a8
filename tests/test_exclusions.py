"""Variables left out of the norm correction or of weight decay, by themselves or by name."""

import keras
import numpy as np
import pytest

from keras_adanorm import AdaNorm, NormCorrection
from tests.support.optimizers import NORM_CLASSES, Run, every_mode, swinging_gradients, to_numpy

LR = 0.05
SHAPES = {"kernel": (3, 4), "bias": (4,), "embedding": (3, 4)}
PARAMS = {name: np.ones(shape) for name, shape in SHAPES.items()}


def adanorm(learning_rate=LR, gamma=0.95, name=None, **arguments):
    sgd = keras.optimizers.SGD(learning_rate, momentum=0.9, **arguments)
    return AdaNorm(sgd, gamma=gamma, name=name)


MAKERS = [*NORM_CLASSES, adanorm]
every_maker = pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
every_way = pytest.mark.parametrize("way", ["var_list", "var_names", "both"])
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


def excluding(optimizer, variables, way):
    """Leaves bias and embedding out."""
    _, bias, embedding = variables
    given = {
        "var_list": dict(var_list=[bias, embedding]),
        "var_names": dict(var_names=["bias", "embed"]),
        "both": dict(var_list=[bias], var_names=["embed"]),
    }[way]
    optimizer.exclude_from_norm_correction(**given)
    return optimizer


def new_variables():
    return [keras.Variable(value, dtype="float32", name=name) for name, value in PARAMS.items()]


class Given(Run):
    """A run of variables that are there before the optimizer is built."""

    def __init__(self, optimizer, variables, mode="eager"):
        super().__init__(optimizer_of_none(), PARAMS)
        self.optimizer, self.variables, self.mode = optimizer, variables, mode
        optimizer.build(variables)
        self._apply = self._compiled_apply()


def optimizer_of_none():
    return keras.optimizers.SGD()


def train(run, steps=6):
    for grads in swinging_gradients(SHAPES, steps):
        run.step(grads)
    return run


@every_mode
@every_way
@every_maker
def test_excluded_variables_are_updated_as_without_gamma(make, way, mode):
    if mode == "xla" and way != "both":
        pytest.skip("one way is enough to compile")
    variables = new_variables()
    run = train(Given(excluding(make(LR), variables, way), variables, mode))
    corrected, plain = train(Run(make(LR), PARAMS)), train(Run(make(LR, gamma=0.0), PARAMS))
    close = dict(rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(run.params["kernel"], corrected.params["kernel"], **close)
    for name in ("bias", "embedding"):
        np.testing.assert_allclose(run.params[name], plain.params[name], **close)
        assert not np.allclose(plain.params[name], corrected.params[name], rtol=1e-4)
    kernel, bias, embedding = run.optimizer.norm_averages
    assert float(to_numpy(kernel)) > 0
    assert bias is None and embedding is None


@every_maker
def test_all_variables_excluded(make):
    variables = new_variables()
    optimizer = make(LR)
    optimizer.exclude_from_norm_correction(var_list=variables)
    run, plain = train(Given(optimizer, variables)), train(Run(make(LR, gamma=0.0), PARAMS))
    for name in SHAPES:
        np.testing.assert_array_equal(run.params[name], plain.params[name])
    assert optimizer.norm_averages == [None] * 3


@every_maker
def test_too_late(make):
    run = Run(make(LR), PARAMS)
    with pytest.raises(ValueError, match="before the optimizer is built"):
        run.optimizer.exclude_from_norm_correction(var_names=["bias"])


@every_maker
def test_what_is_not_a_list_is_refused(make):
    variable = keras.Variable(np.ones(3), name="kernel")
    layer = keras.layers.Dense(3)
    for given in (variable, [variable, layer], layer, "kernel", ["kernel"], 5):
        with pytest.raises(ValueError, match=r"`var_list` must be a list of .* var_list="):
            make(LR).exclude_from_norm_correction(var_list=given)
    for given in (5, [5], [None], ["bias", b"kernel"], ["("], "(", variable):
        with pytest.raises(ValueError, match=r"`var_names` must be a list of .* var_names="):
            make(LR).exclude_from_norm_correction(var_names=given)


@pytest.mark.parametrize("given", ("generator", "string"))
def test_what_decays_is_the_same_after_loading(given):
    """Keras takes a string for its letters: `"k"` is in no name but "kernel"."""
    variables = new_variables()
    optimizer = NormCorrection(LR, weight_decay=0.1)
    if given == "generator":
        optimizer.exclude_from_weight_decay(var_list=(v for v in variables[:1]))
    else:
        optimizer.exclude_from_weight_decay(var_names="k")
    optimizer.build(variables)
    again = NormCorrection.from_config(optimizer.get_config())
    again.build(variables)
    for one in (optimizer, again):
        assert [one._use_weight_decay(variable) for variable in variables] == [False, True, True]


def test_names_that_are_one_string_are_kept_as_keras_takes_them():
    variables = new_variables()
    ours, keras_own = NormCorrection(LR, weight_decay=0.1), keras.optimizers.Adam(weight_decay=0.1)
    for optimizer in (ours, keras_own):
        optimizer.exclude_from_weight_decay(var_names="bias")
        optimizer.build(variables)
    again = NormCorrection.from_config(ours.get_config())
    again.build(variables)
    for variable in variables:
        decays = {one._use_weight_decay(variable) for one in (ours, again, keras_own)}
        assert len(decays) == 1


def test_any_iterable_is_taken():
    variables = dict(zip(SHAPES, new_variables(), strict=True))
    left = {"bias": variables["bias"]}
    for given in ({"var_list": left.values()}, {"var_names": iter(left)}, {"var_names": ("bias",)}):
        optimizer = NormCorrection(LR)
        optimizer.exclude_from_norm_correction(**given)
        optimizer.build(list(variables.values()))
        assert [e is None for e in optimizer.norm_averages] == [False, True, False]


@every_way
@every_maker
def test_config_keeps_what_is_excluded(make, way):
    variables = new_variables()
    optimizer = excluding(make(LR), variables, way)
    optimizer.build(variables)
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()
    run = train(Run(again, PARAMS))
    assert [e is None for e in again.norm_averages] == [False, True, True]
    expected = train(Given(excluding(make(LR), other := new_variables(), way), other))
    for name in SHAPES:
        np.testing.assert_array_equal(run.params[name], expected.params[name])


def test_config_without_exclusions_is_as_it_was():
    for make in MAKERS:
        config = make(LR).get_config()
        assert not [name for name in config if "exclude" in name]


def test_names_before_build_are_kept():
    optimizer = NormCorrection(LR)
    optimizer.exclude_from_norm_correction(var_names="bias")
    again = NormCorrection.from_config(optimizer.get_config())
    Run(again, PARAMS)
    assert [e is None for e in again.norm_averages] == [False, True, False]


def make_model(optimizer, exclude):
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(3, activation="tanh", name="hidden"),
            keras.layers.Dense(1, name="output"),
        ]
    )
    random = np.random.default_rng(5)
    model.set_weights([random.normal(size=w.shape, scale=0.5) for w in model.weights])
    exclude(optimizer, model.trainable_variables)
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def fit(model, first, last):
    for step in range(first, last):
        x = np.random.default_rng(step).normal(size=(4, 2)).astype("float32")
        model.train_on_batch(x, np.float32((1.0, 5.0, 0.3, 0.1)[step % 4] * x[:, :1]))
    return [to_numpy(variable) for variable in model.trainable_variables]


def from_norm_correction(optimizer, variables):
    optimizer.exclude_from_norm_correction(variables[1:2], ["output"])


def from_weight_decay(optimizer, variables):
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    inner.exclude_from_weight_decay(variables[1:2], ["output"])


def from_nothing(optimizer, variables):
    pass


@pytest.mark.parametrize("exclude", [from_norm_correction, from_weight_decay])
@every_maker
def test_saved_model_keeps_what_is_excluded(make, exclude, tmp_path):
    if make is adanorm and exclude is from_weight_decay:
        pytest.skip("Keras' own optimizers don't keep what is excluded from weight decay")
    straight = make_model(make(LR, weight_decay=0.5), exclude)
    fit(straight, 0, 4)
    straight.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for a, b in zip(fit(loaded, 4, 7), weights := fit(straight, 4, 7), strict=True):
        np.testing.assert_array_equal(a, b)
    other = make_model(make(LR, weight_decay=0.5), from_nothing)
    assert not np.allclose(fit(other, 0, 7)[1], weights[1], rtol=1e-4)


def two_layers(names=("hidden", "output")):
    layers = [keras.layers.Dense(2, name=name) for name in names]
    return keras.Sequential([keras.Input((2,)), *layers])


def without(optimizer, variables):
    """The optimizer, told to leave variables out of both."""
    optimizer.exclude_from_norm_correction(variables)
    optimizer.exclude_from_weight_decay(variables)
    return optimizer


def left_out(optimizer):
    """For each variable whether it is left out of the correction, and of weight decay."""
    return [
        (average is None, not optimizer._use_weight_decay(variable))
        for average, variable in zip(
            optimizer.norm_averages, optimizer._trainable_variables, strict=True
        )
    ]


def test_after_unfreezing_the_same_variables_are_left_out():
    """Their positions are others then."""
    model = two_layers()
    hidden, output = model.layers
    hidden.trainable = False
    optimizer = without(NormCorrection(LR, weight_decay=0.1), [output.bias])
    optimizer.build(model.trainable_variables)
    hidden.trainable = True
    again = NormCorrection.from_config(optimizer.get_config())
    again.build(model.trainable_variables)
    assert left_out(again) == [(False, False)] * 3 + [(True, True)]
    # As many variables, at other positions.
    hidden.trainable, output.trainable = True, False
    frozen = NormCorrection.from_config(again.get_config())
    with pytest.warns(UserWarning, match="output/bias. Call `exclude_from_"):
        frozen.build(model.trainable_variables)
    assert left_out(frozen) == [(False, False)] * 2


@pytest.mark.filterwarnings("ignore:Skipping variable loading")
@every_maker
def test_a_model_saved_after_unfreezing_leaves_out_the_same_variables(make, tmp_path):
    model = two_layers()
    model.layers[0].trainable = False
    optimizer = make(LR)
    optimizer.exclude_from_norm_correction([model.layers[1].bias])
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    model.layers[0].trainable = True
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    again.train_on_batch(np.ones((1, 2)), np.ones((1, 2)))
    averages = zip(again.trainable_variables, again.optimizer.norm_averages, strict=True)
    (excluded,) = (variable for variable, average in averages if average is None)
    assert excluded is again.get_layer("output").bias


def test_the_same_model_with_other_names_leaves_out_the_same_positions():
    model = two_layers()
    optimizer = without(NormCorrection(LR, weight_decay=0.1), [model.layers[1].bias])
    optimizer.build(model.trainable_variables)
    again = NormCorrection.from_config(optimizer.get_config())
    again.build(two_layers(("first", "second")).trainable_variables)
    assert left_out(again) == [(False, False)] * 3 + [(True, True)]


def test_each_pattern_is_taken_by_itself():
    """Joined by `|`, neither flags nor references to groups would mean the same."""
    variables = [keras.Variable(np.ones(2), name=name) for name in ("kernel", "Bias", "noon")]
    optimizer = NormCorrection(LR)
    optimizer.exclude_from_norm_correction(var_names=["(k)kk", "(?i)BIAS", r"(o)\1"])
    optimizer.build(variables)
    assert [e is None for e in optimizer.norm_averages] == [False, True, True]


def test_values_are_not_taken_for_variables():
    for given in ([keras.ops.ones(2)], [np.ones(2)]):
        with pytest.raises(ValueError, match="`var_list` must be a list of variables"):
            NormCorrection(LR).exclude_from_norm_correction(given)
