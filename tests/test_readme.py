"""What the README shows is run."""

import pathlib
import re

import keras
import numpy as np
import pytest

from examples.study import report
from tests.support.reference import norm_correction

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[-1][:30])
def test_python_block_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


def test_variant_of_the_readme_is_momentum_with_the_correction():
    (block,) = [block for block in BLOCKS if "class MomentumNorm" in block]
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    optimizer = names["MomentumNorm"](learning_rate=0.1)
    weight = keras.Variable(np.ones(3, "float32"))
    w, m, e, fired = np.ones(3), np.zeros(3), 0.0, []
    for scale in (3.0, 2.0, 0.02, 1.0):
        g = scale * np.array([1.0, -2.0, 0.5])
        s, e, fires = norm_correction(g, e, 0.95, None)
        m = 0.9 * m + 0.1 * s
        w = w - 0.1 * m
        fired.append(fires)
        optimizer.apply([keras.ops.convert_to_tensor(g.astype("float32"))], [weight])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(weight), w, atol=1e-6)
    assert fired == [False, False, True, False]


def test_commands_exist():
    makefile = (pathlib.Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^make (\w+)", README, flags=re.MULTILINE))
    assert targets == {"demo", "test"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_tables_are_what_the_records_give():
    assert report.main(["--check"]) == 0
