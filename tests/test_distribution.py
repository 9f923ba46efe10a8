"""Several devices under `tf.distribute.MirroredStrategy` train as one device does."""

import numpy as np
import pytest

from tests.support.child import run_module
from tests.support.coverage_table import KEEP_NORMS, SETUPS
from tests.support.optimizers import BACKEND

pytestmark = [
    pytest.mark.skipif(BACKEND != "tensorflow", reason="needs TensorFlow"),
    pytest.mark.long,
]

every_optimizer = pytest.mark.parametrize("name", SETUPS["mirrored"].optimizers)
CLOSE = dict(rtol=2e-6, atol=3e-7)  # a few roundings of float32


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What `tests.support.mirrored` wrote, by its name: weights and the optimizer's state."""
    folder = tmp_path_factory.mktemp("mirrored")
    run_module("tests.support.mirrored", folder)

    def load(name):
        with np.load(folder / f"{name}.npz") as file:
            return list(file.values())

    return load


def assert_close(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


@every_optimizer
def test_two_devices_train_as_one(name, trained):
    """With an uneven last batch, and a batch in which one device's gradient is zero."""
    found = trained(f"{name}-2")
    assert_close(found, trained(f"{name}-1"))
    iterations = found[2]
    assert iterations == 6
    if name in KEEP_NORMS:
        assert found[-1].shape == (2,) and (found[-1] > 0).all()


@pytest.mark.parametrize("way", ["1-then-2", "2-then-1"])
@pytest.mark.parametrize("name", ["AdamNorm", "AdaNorm"])
def test_a_file_moves_between_one_device_and_two(name, way, trained):
    assert_close(trained(f"{name}-{way}"), trained(f"{name}-straight"))


def test_a_mean_over_an_uneven_batch_is_the_mean_of_the_devices_means(trained):
    """As Keras does it for every optimizer: each device's mean counts the same."""
    assert_close(trained("mean-2"), trained("mean-1"))


def test_each_device_clips_before_the_sum(trained):
    """As Keras does it for every optimizer: (2, 2) enters, not (3, 4) clipped to norm 2."""
    (average,) = trained("clipped")
    np.testing.assert_allclose(average, 0.5 * 8**0.5, rtol=1e-6)


def test_a_loop_of_ones_own_on_two_devices(trained):
    assert_close(trained("loop-2"), trained("loop-1"))
