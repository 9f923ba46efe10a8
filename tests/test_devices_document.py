"""`DEVICES.md` says what the tests run, and shows what was run."""

import ast
import re

import pytest

from tests.support import coverage_table
from tests.support.child import ROOT
from tests.support.optimizers import BACKEND, CLASSES

pytestmark = pytest.mark.skipif(BACKEND != "tensorflow", reason="the same on all backends")

TEXT = coverage_table.DOCUMENT.read_text(encoding="utf-8")


def test_the_table_is_what_the_tests_run():
    assert f"\n{coverage_table.table()}\n" in TEXT
    assert coverage_table.render(TEXT) == TEXT
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


def test_what_is_shown_was_run():
    blocks = re.findall(r"```(\w+)\n(.*?)```", TEXT, flags=re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "console"]
    sources = ("tests/support/jax_devices.py", "examples/loops/jax_many_machines.py")
    for (_, block), path in zip(blocks, sources, strict=True):
        source = (ROOT / path).read_text(encoding="utf-8")
        lines = {line.strip().removeprefix("return ") for line in source.splitlines()}
        assert set(block.splitlines()) <= lines


def test_every_loop_is_listed():
    loops = {path.name for path in (ROOT / "examples" / "loops").glob("*_*.py")} - {"__init__.py"}
    assert set(re.findall(r"^\| \[(\w+\.py)\]", TEXT, flags=re.MULTILINE)) == loops
