"""Fixtures of all tests. They run on the backend that `KERAS_BACKEND` names."""

import collections
import gc
import os
import pathlib
import re

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import contextlib

import keras
import pytest

# A doctest leaves its last result in `builtins`, and tyro can't be imported beside one that has no
# hash. So it is imported before any doctest runs.
with contextlib.suppress(ImportError):
    import tyro  # noqa: F401

TESTS = pathlib.Path(__file__).parent
QUICK = 4  # cases of a test
ON_TENSORFLOW_ONLY = {"test_devices_document.py", "test_packaging.py", "test_reference.py"}
IN_A_CLONE_ONLY = {"test_docs.py", "test_loops.py"}


def pytest_addoption(parser):
    parser.addoption(
        "--optimizers-only",
        action="store_true",
        help="leave out what tests the examples, the tuning and the pages",
    )
    parser.addoption(
        "--quick",
        action="store_true",
        help=f"of each test at most {QUICK} cases, and none of those that are marked as long",
    )


def pytest_collection_modifyitems(config, items):
    if not config.option.quick:
        return
    tests = collections.defaultdict(list)
    for item in items:
        tests[item.parent, getattr(item, "originalname", item.name)].append(item)
    kept = set()
    for cases in tests.values():
        if cases[0].get_closest_marker("long") is None:
            count = min(QUICK, len(cases))
            # At even distances. The `+ i`: or all might be in the mode that varies fastest.
            kept.update(cases[(i * len(cases) // count + i) % len(cases)] for i in range(count))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_ignore_collect(collection_path, config):
    """The examples and the tuning run on TensorFlow alone, and the NumPy reference on no backend.

    They need more packages than the optimizers do, and a clone.
    """
    if collection_path.suffix != ".py" or collection_path.parent != TESTS:
        return None
    only, name = config.option.optimizers_only, collection_path.name
    if not name.startswith("test_") or (keras.backend.backend() == "tensorflow" and not only):
        return None
    if name in ON_TENSORFLOW_ONLY or (only and name in IN_A_CLONE_ONLY):
        return True
    text = collection_path.read_text(encoding="utf-8")
    return True if re.search(r"^(from|import) (examples|tuning)\b", text, re.MULTILINE) else None


@pytest.fixture(autouse=True)
def default_precision():
    """Gives back `floatx` and the dtype policy that a test has changed."""
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


@pytest.fixture(autouse=True, scope="module")
def compiled_programs():
    """Lets go of what JAX has compiled: over all modules it would come to gigabytes."""
    yield
    if keras.backend.backend() == "jax":
        import jax

        jax.clear_caches()
    gc.collect()
