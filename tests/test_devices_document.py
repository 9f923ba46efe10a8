"""The page on devices says what the tests run."""

import ast
import re

import pytest

from tests.support import coverage_table
from tests.support.child import ROOT
from tests.support.optimizers import BACKEND, CLASSES

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow" or not coverage_table.DOCUMENT.exists(),
    reason="the same on all backends, and in a clone only",
)


def text():
    return coverage_table.DOCUMENT.read_text(encoding="utf-8")


def test_the_table_is_what_the_tests_run():
    assert f"\n{coverage_table.table()}\n" in text()
    assert coverage_table.render(text()) == text()
    assert coverage_table.OPTIMIZERS == (*(cls.__name__ for cls in CLASSES), "AdaNorm")
    for key, setup in coverage_table.SETUPS.items():
        tree = ast.parse((ROOT / "tests" / setup.test).read_text(encoding="utf-8"))
        keys = {
            ast.unparse(node.slice)
            for node in ast.walk(tree)
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "SETUPS"
        }
        patterns = {"BACKEND": "tensorflow|jax|torch", "f'{BACKEND} {p}'": r"\w+ \w+"}
        assert any(re.fullmatch(patterns.get(k, k.strip("'")), key) for k in keys), key


def test_every_loop_is_listed_with_its_command():
    loops = {path.stem for path in (ROOT / "examples" / "loops").glob("*_*.py")} - {"__init__"}
    assert set(re.findall(r"^\| \[(\w+)\.py\]", text(), flags=re.MULTILINE)) == loops
    command = r"^KERAS_BACKEND=(\w+) python -m examples\.loops\.(\w+)$"
    commands = {loop: backend for backend, loop in re.findall(command, text(), re.MULTILINE)}
    assert set(commands) == loops
    for loop, backend in commands.items():
        assert loop.startswith({"tensorflow": "tf_"}.get(backend, f"{backend}_"))
