"""The package as it is shipped: what it depends on, and the versions it is tested with."""

import ast
import pathlib
import sys
import tomllib

from packaging.requirements import Requirement

import keras_adanorm

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BACKENDS = {"tensorflow", "jax", "torch"}


def imported(path):
    """The packages that a file imports, wherever in it, as names."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names


def test_the_core_depends_on_what_it_imports():
    files = pathlib.Path(keras_adanorm.__file__).parent.glob("*.py")
    names = set().union(*map(imported, files)) - BACKENDS - {"keras_adanorm"}
    assert names == {Requirement(text).name for text in PROJECT["dependencies"]}


def test_constraints_meet_the_requirements():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    extras = PROJECT["optional-dependencies"]
    for text in sum(extras.values(), PROJECT["dependencies"]):
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            assert requirement.extras <= set(extras)
        else:
            assert requirement.specifier.contains(pins[requirement.name]), text


def test_every_public_name_exists():
    assert all(hasattr(keras_adanorm, name) for name in keras_adanorm.__all__)
