"""The package as it is shipped: what it depends on, and the versions it is tested with."""

import ast
import pathlib
import re
import sys

import pytest
from packaging.requirements import Requirement

import keras_adanorm

tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
ROOT = pathlib.Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
TOX = tomllib.loads((ROOT / "tox.toml").read_text())["env"]
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
    files = pathlib.Path(keras_adanorm.__file__).parent.rglob("*.py")
    names = set().union(*map(imported, files)) - BACKENDS - {"keras_adanorm"}
    assert names == {Requirement(text).name for text in PROJECT["dependencies"]}


def pins(lines):
    return dict(line.split("==") for line in lines if "==" in line)


def test_constraints_meet_the_requirements():
    newest = pins((ROOT / "constraints.txt").read_text().splitlines())
    for text in sum(EXTRAS.values(), PROJECT["dependencies"]):
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            assert requirement.extras <= set(EXTRAS)
        else:
            assert requirement.specifier.contains(newest[requirement.name]), text


def test_the_oldest_versions_are_tested():
    oldest = {}
    for name in ("oldest-tensorflow", "oldest-jax", "oldest-torch"):
        found = pins(text for text in TOX[name]["deps"] if isinstance(text, str))
        oldest |= {package: version for package, version in found.items()}
    for text in PROJECT["dependencies"] + [EXTRAS[backend][0] for backend in BACKENDS]:
        requirement = Requirement(text)
        (lowest,) = [spec for spec in requirement.specifier if spec.operator == ">="]
        assert oldest[requirement.name].startswith(lowest.version), text
        assert requirement.specifier.contains(oldest[requirement.name])


def test_every_public_name_exists():
    assert all(hasattr(keras_adanorm, name) for name in keras_adanorm.__all__)


def test_the_package_is_typed():
    assert (pathlib.Path(keras_adanorm.__file__).parent / "py.typed").exists()


def test_the_page_of_an_index_links_to_nothing_that_is_not_there():
    hook = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / hook["fragments"][0]["path"]).read_text(encoding="utf-8")
    for rule in hook["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if not link.startswith(("http", "#"))] == []
    assert "Guide (`docs/guide.md`)" in text and "<!--" not in text


def test_the_version_is_stated_once():
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    assert keras_adanorm.__version__.removesuffix(".dev0") == cited
    assert f"## {cited}" in (ROOT / "CHANGELOG.md").read_text()
