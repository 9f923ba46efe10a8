"""Bad arguments raise one clear line: the argument, the value and what is allowed."""

import inspect
import re

import keras
import numpy as np
import pytest

from keras_adanorm import AdaNorm, GradientNormMonitor
from keras_adanorm.documentation import documented
from tests.support.optimizers import CLASSES, every_class, every_norm_class

NAN, INF = float("nan"), float("inf")
DECAYS = (1, 1.0, -0.1, 2, NAN, INF, None, "0.9", True)
NOT_NEGATIVE = (-1e-8, NAN, INF, None, "1e-8", True)


@pytest.mark.parametrize("value", DECAYS, ids=repr)
@pytest.mark.parametrize("argument", ["beta_1", "beta_2"])
@every_class
def test_beta_out_of_range(cls, argument, value):
    with pytest.raises(ValueError) as error:
        cls(**{argument: value})
    assert str(error.value) == (
        f"Argument `{argument}` must be in the range [0, 1). Received: {argument}={value!r}"
    )


@pytest.mark.parametrize("value", DECAYS, ids=repr)
@every_norm_class
def test_gamma_out_of_range(cls, value):
    with pytest.raises(ValueError) as error:
        cls(gamma=value)
    assert str(error.value) == (
        f"Argument `gamma` must be in the range [0, 1). Received: gamma={value!r}"
    )


@pytest.mark.parametrize("value", NOT_NEGATIVE, ids=repr)
@pytest.mark.parametrize("argument", ["epsilon", "epsilon_root"])
@every_class
def test_epsilon_out_of_range(cls, argument, value):
    with pytest.raises(ValueError) as error:
        cls(**{argument: value})
    assert str(error.value) == (
        f"Argument `{argument}` must be a finite number >= 0. Received: {argument}={value!r}"
    )


@pytest.mark.parametrize("argument", ["epsilon", "epsilon_root", "max_correction", "clipnorm"])
@every_norm_class
def test_a_number_beyond_all_floats(cls, argument):
    with pytest.raises(ValueError, match=f"`{argument}` must be .*a finite number"):
        cls(**{argument: 10**400})


@pytest.mark.parametrize("value", [0.99, 0, -1, NAN, INF, "2", True], ids=repr)
@every_norm_class
def test_max_correction_out_of_range(cls, value):
    with pytest.raises(ValueError) as error:
        cls(max_correction=value)
    assert str(error.value) == (
        "Argument `max_correction` must be None or a finite number >= 1. "
        f"Received: max_correction={value!r}"
    )


@pytest.mark.parametrize(
    "value",
    ["third", "First", "", None, 1, ["first"], np.array("both"), np.array(["first", "first"])],
    ids=repr,
)
@every_norm_class
def test_unknown_corrected_moments(cls, value):
    with pytest.raises(ValueError) as error:
        cls(corrected_moments=value)
    assert str(error.value) == (
        'Argument `corrected_moments` must be one of "first", "second", "both". '
        f"Received: corrected_moments={value!r}"
    )


@pytest.mark.parametrize("value", [1, "0.1", None], ids=repr)
@every_class
def test_a_learning_rate_that_is_no_float(cls, value):
    with pytest.raises(ValueError, match=f"`learning_rate` should be float.*{value}"):
        cls(learning_rate=value)


@pytest.mark.parametrize("value", [NAN, INF, -INF, np.float32("nan"), np.float64("inf")], ids=repr)
@pytest.mark.parametrize(
    "argument",
    [
        "learning_rate",
        "weight_decay",
        "clipnorm",
        "clipvalue",
        "global_clipnorm",
        "ema_momentum",
        "loss_scale_factor",
    ],
)
@every_class
def test_numbers_of_the_base_class_that_are_not_finite(cls, argument, value):
    with pytest.raises(ValueError) as error:
        cls(**{argument: value})
    message = str(error.value)
    assert f"`{argument}`" in message and ("finite" in message or "float" in message)
    assert message.count("\n") == 0


@every_class
def test_an_unknown_argument(cls):
    with pytest.raises(ValueError, match="gama"):
        cls(gama=0.9)


@every_class
def test_the_plain_optimizers_take_no_gamma(cls):
    if hasattr(cls(), "gamma"):
        return
    for argument in ("gamma", "corrected_moments", "max_correction"):
        with pytest.raises(ValueError, match=argument):
            cls(**{argument: 0.9})


@every_norm_class
def test_what_is_allowed(cls):
    optimizer = cls(
        keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9),
        beta_1=0,
        beta_2=np.float64(0.5),
        epsilon=0,
        gamma=0,
        max_correction=1,
        epsilon_root=np.float32(0.5),
    )
    config = optimizer.get_config()
    expected = dict(beta_1=0, beta_2=0.5, epsilon=0, gamma=0, max_correction=1, epsilon_root=0.5)
    for name, value in expected.items():
        assert type(config[name]) is float and config[name] == value
    assert cls(max_correction=None, gamma=1 - 2**-53).gamma < 1


def _parameters(cls):
    """Those of `__init__` without `self`: on torch an optimizer's `__new__` takes anything."""
    parameters = dict(inspect.signature(cls.__init__).parameters)
    del parameters["self"]
    return parameters


@pytest.mark.parametrize("cls", [*CLASSES, AdaNorm, GradientNormMonitor])
def test_every_argument_is_documented(cls):
    _, arguments = inspect.getdoc(cls).split("\nArgs:\n")
    documented = re.findall(r"^    (\w+):", arguments.partition("\n\n")[0], re.MULTILINE)
    parameters = _parameters(cls).values()
    assert sorted(documented) == sorted(p.name for p in parameters if p.kind != p.VAR_KEYWORD)


@pytest.mark.parametrize("indentation", ["", "    "])
def test_the_docstring_is_filled_in_with_and_without_indentation(indentation):
    """Python takes the indentation off from 3.13 on."""
    lines = ["A class.", "", "Args:", "    {{arguments}}", "", "Raises:", "    {{raises}}", ""]
    doc = f"\n{indentation}".join(lines)
    filled = documented()(type("Some", (), {"__doc__": doc})).__doc__
    assert "\n    beta_1: " in filled and "\n    name: " in filled
    assert "\n    ValueError: " in filled and "\n        value and what" in filled


@pytest.mark.parametrize("cls", [*CLASSES, AdaNorm, GradientNormMonitor])
def test_every_default_is_documented(cls):
    _, arguments = inspect.getdoc(cls).split("\nArgs:\n")
    parts = re.split(r"^    (\w+): ", arguments.partition("\n\n")[0], flags=re.MULTILINE)
    told = dict(zip(parts[1::2], parts[2::2], strict=True))
    for name, parameter in _parameters(cls).items():
        default = parameter.default
        if default is parameter.empty:
            continue
        default = f'"{default}"' if isinstance(default, str) else default
        text = " ".join(told[name].split()).replace("1e-8", "1e-08")
        assert f"Defaults to `{default}`" in text
