"""Every name that the libraries don't promise to keep is there, and stands in one file.

A release that has dropped one fails here first, with the name and what it is for.
"""

import ast
import importlib
import re
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_adanorm.engine import private
from tests.support.optimizers import BACKEND, Run, tensorflow_only

PACKAGE = Path(private.__file__).parents[1]
# Of the backends that are not running, no module is imported.
OF_BACKEND = {"tensorflow": "tensorflow", "jax": "jax", "torch": "torch"}


def tables():
    """The tables of names in `private.py`, by name."""
    return {
        name: table
        for name, table in vars(private).items()
        if name.isupper() and isinstance(table, dict)
    }


def missing(owner, table):
    return [f"{name!r}: {use}" for name, use in table.items() if not hasattr(owner, name)]


def built():
    return Run(keras.optimizers.Adam(use_ema=True), {"w": np.ones(2)}).optimizer


def test_names_of_a_variable():
    gone = missing(keras.Variable(1.0), private.VARIABLE_NAMES)
    if BACKEND == "jax":
        gone += missing(keras.Variable(1.0), private.JAX_VARIABLE_NAMES)
    assert not gone, f"Keras {keras.__version__} has no longer: " + "; ".join(gone)


def test_names_of_what_an_optimizer_is_loaded_from(tmp_path):
    stores = []

    class Recording(keras.optimizers.SGD):
        def load_own_variables(self, store):
            stores.append(store)
            super().load_own_variables(store)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(Recording(), "mse")
    model.optimizer.build(model.trainable_variables)
    model.save_weights(tmp_path / "state.weights.h5")
    model.load_weights(tmp_path / "state.weights.h5")
    gone = missing(stores[0], private.STORE_NAMES)
    assert not gone, f"Keras {keras.__version__} has no longer: " + "; ".join(gone)


def test_names_of_the_optimizer():
    """`OPTIMIZER_NAMES` of the class, the other tables of a built optimizer."""
    assert {"OPTIMIZER_NAMES", "INSTANCE_NAMES", "TENSORFLOW_OPTIMIZER_NAMES"} <= set(tables())
    gone = missing(keras.optimizers.Optimizer, private.OPTIMIZER_NAMES)
    gone += missing(built(), private.INSTANCE_NAMES)
    if BACKEND == "tensorflow":
        gone += missing(built(), private.TENSORFLOW_OPTIMIZER_NAMES)
    assert not gone, f"Keras {keras.__version__} has no longer: " + "; ".join(gone)


@tensorflow_only
@pytest.mark.parametrize("name", private.TENSORFLOW_FUNCTION_ATTRIBUTES)
def test_attribute_of_a_function(name):
    import tensorflow as tf

    with_it = tf.function(lambda x: x + 1, experimental_attributes={name: True})
    function = with_it.get_concrete_function(tf.constant(1.0)).function_def
    assert function.attr[name].b, private.TENSORFLOW_FUNCTION_ATTRIBUTES[name]


@pytest.mark.skipif(BACKEND != "torch", reason="a matter of torch")
def test_names_of_torch():
    import torch

    gone = missing(torch, private.TORCH_NAMES)
    assert not gone, f"torch {torch.__version__} has no longer: " + "; ".join(gone)
    assert private.torch_adam() is not None


def test_what_is_missing_is_named():
    table = {**private.INSTANCE_NAMES, "_gone": "a purpose"}
    assert missing(built(), table) == ["'_gone': a purpose"]


def imports(path):
    """Pairs of module and name that a file imports from private modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, alias.name


def is_private(module):
    return module.startswith(("keras.src", "tensorflow.python", "jax._src")) or "._" in module


def test_private_modules_are_imported_in_one_file():
    elsewhere = [
        f"{path.relative_to(PACKAGE)}: from {module} import {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "private.py"
        for module, name in imports(path)
        if is_private(module)
    ]
    assert not elsewhere


PRIVATE_IMPORTS = [pair for pair in imports(Path(private.__file__)) if is_private(pair[0])]


@pytest.mark.parametrize(("module", "name"), PRIVATE_IMPORTS, ids=lambda text: text)
def test_private_import(module, name):
    """Without one of these the code takes a slower way, which nobody would notice."""
    library = module.split(".")[0]
    if OF_BACKEND.get(library, BACKEND) != BACKEND:
        pytest.skip(f"needs {library}")
    found = importlib.import_module(module)
    submodule = f"{module}.{name}"
    if not hasattr(found, name):
        importlib.import_module(submodule)


def test_there_are_private_imports():
    assert len(PRIVATE_IMPORTS) >= 3


def attributes(path):
    """Attributes with one leading underscore, and strings that name one, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
        if isinstance(name, str) and re.fullmatch("_[a-z][a-z_0-9]*", name):
            yield name, node.lineno


def own_names():
    """What the package itself defines with a leading underscore."""
    names = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "set_untracked":
                names.add(node.args[1].value)
    return names


def test_private_attributes_stand_in_the_tables():
    known = own_names().union(*tables().values())
    unknown = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "private.py"
        for name, line in attributes(path)
        # torch documents the operations on lists in the release notes alone.
        if name not in known and not name.startswith("_foreach_")
    ]
    assert not unknown
