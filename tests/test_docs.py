"""What the pages show is run, what they link to is there, and each page is part of the site."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_adanorm
from tests.support.reference import norm_correction

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(ROOT / folder / "README.md" for folder in ("examples", "examples/study/results", "tuning")),
]
pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "torch" or not PAGES[0].exists(), reason="the pages are of a clone"
)
# `# KERAS_BACKEND=jax NAME=VALUE` as the first line of a block: it is run with these settings.
SETTINGS = re.compile(r"# (KERAS_BACKEND=.*)\n")


def blocks(page, language):
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


SHOWN = [
    pytest.param(block, id=f"{page.relative_to(ROOT).as_posix()}-{number}")
    for page in PAGES
    if page.parent.name != "tuning"  # that one searches, and is run by the tests of tuning
    for number, block in enumerate(blocks(page, "python"))
]


@pytest.mark.parametrize("block", SHOWN)
def test_python_block_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = SETTINGS.match(block)
    if settings is None:
        exec(compile(block, "page", "exec"), {"__name__": "page"})
        return
    environment = dict(setting.split("=", 1) for setting in settings[1].split())
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", block],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def shown(name):
    """What a block of the page on variants defines."""
    (block,) = [b for b in blocks(ROOT / "docs" / "variants.md", "python") if f"class {name}" in b]
    names = {}
    exec(compile(block, "variants.md", "exec"), names)
    return names[name]


def steps(optimizer, gradients, start):
    """The weight after each gradient."""
    weight, seen = keras.Variable(np.array(start, "float32")), []
    for g in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(g.astype("float32"))], [weight])
        seen.append(keras.ops.convert_to_numpy(weight.value).copy())
    return seen


GRADIENTS = [scale * np.array([[1.0, -2.0], [0.5, 3.0]]) for scale in (3.0, 2.0, 0.02, 1.0)]


def test_the_elementwise_variant_is_momentum_with_the_correction():
    w, m, e, fired, expected = np.ones((2, 2)), 0.0, 0.0, [], []
    for g in GRADIENTS:
        s, e, fires = norm_correction(g, e, 0.95, None)
        m = 0.9 * m + 0.1 * s
        w = w - 0.1 * m
        fired.append(fires)
        expected.append(w)
    found = steps(shown("MomentumNorm")(learning_rate=0.1), GRADIENTS, np.ones((2, 2)))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert fired == [False, False, True, False]


def test_the_variant_with_state_of_another_shape():
    w, rows, e, expected = np.ones((2, 2)), np.zeros(2), 0.0, []
    for t, g in enumerate(GRADIENTS, start=1):
        s, e, _ = norm_correction(g, e, 0.95, None)
        rows = 0.99 * rows + 0.01 * np.linalg.norm(s, axis=1)
        w = w - 0.1 * s / (rows[:, None] / (1 - 0.99**t) + 1e-8)
        expected.append(w)
    optimizer = shown("RowScaled")(learning_rate=0.1)
    np.testing.assert_allclose(steps(optimizer, GRADIENTS, np.ones((2, 2))), expected, rtol=1e-5)


def test_the_variant_with_random_numbers_draws_new_ones_and_repeats_them():
    cls = shown("NoisyNorm")
    zeros = [np.zeros((2, 2))] * 2
    first, second = steps(cls(0.1, noise=1.0, seed=1), zeros, np.zeros((2, 2)))
    assert np.all(first != 0) and np.all(second - first != first)
    again = cls.from_config(cls(0.1, noise=1.0, seed=1).get_config())
    np.testing.assert_array_equal(steps(again, zeros, np.zeros((2, 2))), [first, second])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith(("http", "#", "mailto:")):
            assert (page.parent / link.partition("#")[0]).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_exist(page):
    text = page.read_text(encoding="utf-8")
    for module in re.findall(r"python -m ((?:examples|tuning|tests)\.[\w.]+\w)", text):
        assert importlib.util.find_spec(module) is not None, module
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make ([\w-]+)", text, flags=re.MULTILINE):
        assert re.search(rf"^[\w -]*\b{target}\b[\w -]*:", makefile, flags=re.MULTILINE), target


def test_every_page_is_in_the_site():
    listed = re.findall(r"^  - .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert {page.relative_to(ROOT).as_posix() for page in PAGES} <= set(listed)


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text()
    assert sorted(re.findall(r"^::: keras_adanorm\.(\w+)", text, re.MULTILINE)) == sorted(
        keras_adanorm.__all__
    )


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150
