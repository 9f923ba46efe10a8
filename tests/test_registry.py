"""The registry of variants: what reads it, and what it says."""

import keras_adanorm
from examples import demo
from examples.benchmarks import accelerator
from examples.training import pairs, recipes
from keras_adanorm import registry


def test_names_are_read_without_an_import_as_they_are():
    expected = {norm.__name__: plain.__name__ for norm, plain in registry.PLAIN_OF.items()}
    assert pairs.read() == expected
    assert {variant: plain for plain, variant in demo.PAIRS.items()} == expected


def test_what_is_listed_is_public_and_can_be_named():
    for name, cls in registry.OPTIMIZERS.items():
        assert getattr(keras_adanorm, name) is cls
        assert name in keras_adanorm.__all__
        assert recipes.optimizer_class(name) is cls
        assert name in accelerator.OPTIMIZERS
    assert len(set(keras_adanorm.__all__)) == len(keras_adanorm.__all__)


def test_a_variant_is_its_plain_optimizer_with_the_correction():
    for norm, plain in registry.PLAIN_OF.items():
        assert issubclass(norm, keras_adanorm.NormCorrection)
        assert not issubclass(plain, keras_adanorm.NormCorrection)
        assert (plain in registry.PLAIN_OPTIMIZERS) is hasattr(keras_adanorm, plain.__name__)
