"""The search space: every point of it is an optimizer."""

import itertools
import math

import keras
import keras_tuner
import numpy as np
import pytest

from examples.training import recipes
from examples.training.errors import UsageError
from keras_adanorm import registry
from tests.support.tuning_fakes import tiny
from tuning.hypermodel import ExampleHyperModel
from tuning.space import CHOICES, ONE_MINUS_GAMMA, RANGES, OptimizerSpace

OURS = list(registry.OPTIMIZERS)


def everything(optimizer):
    """All that can be searched of an optimizer."""
    cls = recipes.optimizer_classes()[optimizer]
    has = {"learning_rate", *recipes.optimizer_arguments(cls)}
    return [name for name in (*RANGES, *CHOICES) if name in has]


def points(space, randoms=20):
    """The corners of a space and random points of it."""
    declared = keras_tuner.HyperParameters()
    space.declare(declared)
    ends = [
        part.values
        if isinstance(part, keras_tuner.engine.hyperparameters.Choice)
        else (part.min_value, part.max_value)
        for part in declared.space
    ]
    names = [part.name for part in declared.space]
    points = list(itertools.product(*ends))
    points += [[part.random_sample(seed) for part in declared.space] for seed in range(randoms)]
    for values in points:
        hp = keras_tuner.HyperParameters()
        hp.values = dict(zip(names, values, strict=True))
        yield hp


@pytest.mark.parametrize("optimizer", [*OURS, "Adam", "SGD"])
def test_every_point_is_a_valid_optimizer(optimizer):
    space = OptimizerSpace(optimizer, tune=everything(optimizer))
    for hp in points(space):
        config = space.build(hp).get_config()
        # Keras holds the rate in float32.
        assert 0.99999e-4 <= config["learning_rate"] <= 1.00001e-2
        assert 1e-5 <= config["weight_decay"] <= 1e-1
        if registry.OPTIMIZERS.get(optimizer) in registry.NORM_VARIANTS:
            assert 0.8 <= config["gamma"] <= 0.999
            assert config["max_correction"] in (None, 2.0, 10.0)
            assert config["corrected_moments"] in ("first", "both")


def test_all_that_is_ours_can_be_searched():
    names = {name for name in recipes.optimizer_classes() if name in OURS}
    assert names == set(OURS)
    assert everything("AdamNorm") == [*RANGES, *CHOICES]
    assert everything("Adam") == ["learning_rate", "weight_decay"]


def test_a_point_takes_a_step():
    space = OptimizerSpace("AdamNorm", tune=everything("AdamNorm"))
    weight = keras.Variable(np.ones(3, "float32"))
    space.build(next(points(space))).apply([keras.ops.ones(3)], [weight])
    assert np.isfinite(weight.numpy()).all()
    assert (weight.numpy() < 1).all()


def test_gamma_is_searched_on_the_scale_of_one_minus_gamma():
    hp = keras_tuner.HyperParameters()
    space = OptimizerSpace("AdamNorm")
    space.declare(hp)
    (part,) = [part for part in hp.space if part.name == ONE_MINUS_GAMMA]
    hp.values[ONE_MINUS_GAMMA] = part.prob_to_value(0.5)
    assert space.arguments(hp)["gamma"] == pytest.approx(1 - math.sqrt(0.2 * 0.001), abs=1e-5)
    for prob, gamma in ((0.0, 0.999), (1.0, 0.8)):
        hp.values[ONE_MINUS_GAMMA] = part.prob_to_value(prob)
        assert space.arguments(hp)["gamma"] == pytest.approx(gamma, abs=1e-9)


def test_a_point_that_went_through_float32_is_the_same_point():
    space = OptimizerSpace("AdamNorm")
    for hp in points(space):
        other = hp.copy()
        other.values = {name: float(np.float32(value)) for name, value in hp.values.items()}
        assert space.arguments(other) == space.arguments(hp)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"optimizer": "Adamnorm"}, "Argument `optimizer` must be one of AdaBelief, "),
        ({"tune": []}, "an empty space"),
        ({"tune": ["momentum"]}, "Received: tune=momentum"),
        ({"optimizer": "Adam", "tune": ["gamma"]}, "learning_rate, weight_decay with Adam"),
        ({"ranges": {"gamma": (0.9, 1.0)}}, "The range of `gamma` must lie below 1"),
        ({"ranges": {"gamma": (0.9, 0.8)}}, "must start below its end. Received: 0.9 0.8"),
        ({"ranges": {"learning_rate": (1e-2, 1e-4)}}, "must start below its end"),
        ({"ranges": {"learning_rate": (1e-3, 1e-3)}}, "must start below its end"),
        ({"ranges": {"learning_rate": (0.0, 1e-3)}}, "must be of positive numbers"),
        ({"ranges": {"learning_rate": (1e-3, math.inf)}}, "must be of positive numbers"),
        ({"ranges": {"weight_decay": (1e-3, 1e-2)}}, "`weight_decay` has a range, but is not"),
        ({"points": 1}, "Argument `points` must be an integer of at least 2"),
    ],
)
def test_what_is_no_space_is_refused(arguments, complaint):
    with pytest.raises(ValueError) as error:
        OptimizerSpace(**arguments)
    assert complaint in str(error.value)
    assert isinstance(error.value, UsageError) or "points" in arguments


def test_hypermodel_trains_by_the_recipe_and_tells_of_the_last_epoch():
    rates = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rates.append((logs["learning_rate"], logs["val_accuracy"]))
    )
    hypermodel = ExampleHyperModel(tiny(epochs=3, drop_epoch=2))
    hp = keras_tuner.HyperParameters()
    hp.values = {"learning_rate": 0.01, ONE_MINUS_GAMMA: 0.25}
    model = hypermodel.build(hp)
    assert model.optimizer.gamma == 0.75
    last_values = hypermodel.fit(hp, model, callbacks=[watch], verbose=0)
    assert last_values["last_epoch_val_accuracy"] == rates[-1][1]
    assert [rate for rate, _ in rates] == pytest.approx([0.01, 0.01, 0.001])
    assert int(model.optimizer.iterations) == 9
