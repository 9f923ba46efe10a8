"""The programs in `examples/loops` run, and train as `fit` does."""

import pathlib
import re
import runpy

import numpy as np
import pytest

from keras_adanorm import AdamNorm
from tests.support.child import ROOT
from tests.support.optimizers import BACKEND, to_numpy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")
PREFIX = {"tensorflow": "tf", "jax": "jax", "torch": "torch"}[BACKEND]
PROGRAMS = sorted(
    path.stem
    for path in (ROOT / "examples" / "loops").glob(f"{PREFIX}_*.py")
    if path.stem != "jax_many_machines"  # see test_jax_distribution
)


def values(model, optimizer):
    return [to_numpy(v) for v in model.trainable_variables + optimizer.norm_averages]


@pytest.fixture(scope="module")
def fitted():
    """The weights and the averages `e_t` after `fit`."""
    problem = runpy.run_module("examples.loops.problem")
    model = problem["new_model"]()
    model.compile(AdamNorm(problem["LEARNING_RATE"]), "mse")
    model.fit(problem["X"], problem["Y"], problem["BATCH"], epochs=2, shuffle=False, verbose=0)
    return values(model, model.optimizer)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_loop_trains_as_fit_does(program, fitted, capsys):
    names = runpy.run_module(f"examples.loops.{program}", run_name="__main__")
    assert re.fullmatch(r"loss 0\.\d{4}\n", capsys.readouterr().out)
    for found, expected in zip(values(names["model"], names["optimizer"]), fitted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_every_loop_is_run():
    """On the backend that its name says, with the command that it says."""
    programs = {path.stem for path in (ROOT / "examples" / "loops").glob("*.py")}
    loops = programs - {"__init__", "problem"}
    assert {name.split("_")[0] for name in loops} == {"tf", "jax", "torch"}
    for name in loops:
        text = pathlib.Path(ROOT, "examples", "loops", f"{name}.py").read_text(encoding="utf-8")
        backend = "" if name.startswith("tf") else f"KERAS_BACKEND={name.split('_')[0]} "
        assert f"{backend}python -m examples.loops.{name}\n" in text.replace("      #", "\n#")
