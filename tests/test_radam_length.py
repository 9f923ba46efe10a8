"""Radam's rho_t at every step, in the dtype of the variable, against sixty digits."""

import keras
import numpy as np
import pytest

from keras_adanorm.radam import simple_average_length
from tests.support.optimizers import floatx, to_numpy
from tests.support.reference import rho

BETAS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999)
EXTREME_BETAS = (1e-300, 0.1, 0.5, 2 / 3, 0.7, 1 - 1e-7, 1 - 1e-12, 1 - 2.0**-53)
STEPS = sorted(
    {*range(1, 130), *np.unique(np.geomspace(130, 2**31 - 1, 150).astype("int64")), 2**31 - 1}
)

every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def lengths(beta_2, dtype):
    """The lengths as they are computed, and as they should be."""
    with floatx(dtype):
        t = keras.ops.convert_to_tensor(np.array(STEPS, dtype), dtype)
        actual = to_numpy(simple_average_length(t, beta_2))
    assert actual.dtype == dtype
    return actual, np.array([rho(int(t), beta_2) for t in np.array(STEPS, dtype)])


@every_dtype
@pytest.mark.parametrize("beta_2", BETAS)
def test_length(beta_2, dtype):
    actual, expected = lengths(beta_2, dtype)
    np.testing.assert_allclose(actual, expected, rtol={"float32": 1e-6, "float64": 1e-8}[dtype])
    exact = expected < (1e3 if dtype == "float32" else np.inf)  # where float32 has the digits
    assert exact.sum() > 100
    np.testing.assert_allclose(actual[exact], expected[exact], rtol=0, atol=1e-3)


@every_dtype
@pytest.mark.parametrize("beta_2", EXTREME_BETAS)
def test_length_of_any_beta(beta_2, dtype):
    actual, expected = lengths(beta_2, dtype)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@every_dtype
@pytest.mark.parametrize("beta_2", BETAS)
def test_the_threshold_is_passed_at_the_right_step(beta_2, dtype):
    actual, expected = lengths(beta_2, dtype)
    np.testing.assert_array_equal(actual >= 5, expected >= 5)
