"""Fixtures of all tests. They run on the backend that `KERAS_BACKEND` names."""

import os
import pathlib
import re

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import pytest

# The examples and the tuning run on TensorFlow alone, and the NumPy reference on no backend.
collect_ignore = [
    path.name
    for path in pathlib.Path(__file__).parent.glob("test_*.py")
    if keras.backend.backend() != "tensorflow"
    and (
        path.name == "test_reference.py"
        or re.search(r"^(from|import) (examples|tuning)\b", path.read_text(), re.MULTILINE)
    )
]


@pytest.fixture(autouse=True)
def default_precision():
    """Gives back `floatx` and the dtype policy that a test has changed."""
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
