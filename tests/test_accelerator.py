"""What an update is compiled to for an H100 is counted, where the extra `accelerator` is installed.

KERAS_BACKEND=jax python -m pytest tests/test_accelerator.py        (make test-accelerator)
"""

import importlib.util
import json

import pytest

from examples.benchmarks import accelerator
from tests.support.child import output, start

plugin_only = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None, reason="needs the extra `accelerator`"
)


def test_kernels_are_counted_with_what_they_move():
    program = """HloModule update

%fused (x: f32[4]) -> f32[4] {
  ROOT %inside = f32[4]{0} add(%x, %x)
}

ENTRY %main (g: f32[4], w: f32[4]) -> (f32[4], s32[]) {
  %g = f32[4]{0} parameter(0)
  %w = f32[4]{0} parameter(1)
  %t = s32[] parameter(2)
  %first = f32[4]{0} fusion(%g, %w), kind=kLoop, calls=%fused
  %view = f32[2,2]{1,0} bitcast(%first)
  %second = (f32[4]{0}, s32[]) fusion(%first, %t), kind=kLoop, calls=%fused
  ROOT %out = (f32[4]{0}, s32[]) tuple(%first, %t)
}
"""
    assert accelerator.kernels(program) == [("fusion", 48), ("fusion", 40)]


# Of Adam's kernels and bytes on the variables below: what is allowed. Without stacks each small
# variable costs a kernel, without norms in one read a gradient is read twice.
BOUNDS = {
    "AdamNorm": (1.0, 1.16),
    "RadamNorm": (1.0, 1.16),
    "AdaBeliefNorm": (1.0, 1.16),
    "DiffGrad": (1.0, 1.30),
    "DiffGradNorm": (1.0, 1.45),
    "Radam": (1.0, 1.01),
    "AdaBelief": (1.0, 1.01),
}

COUNT = """
import json
from examples.benchmarks import accelerator
shapes = [(256,)] * 24 + [(64, 256)] * 3 + [(3, 3, 64, 64)] * 2 + [(3000, 1000)]
counts = {n: accelerator.count(n, shapes, "h100") for n in ["Adam", *%s]}
print(json.dumps(counts))
"""


@plugin_only
def test_an_update_costs_an_h100_no_more_than_allowed():
    program = start(["-c", COUNT % list(BOUNDS)], backend="jax", JAX_PLATFORMS="cpu")
    printed = output(program)
    counts = json.loads(printed.splitlines()[-1])
    adam = counts["Adam"]
    for name, (kernels, moved) in BOUNDS.items():
        assert counts[name]["kernels"] <= kernels * adam["kernels"], name
        assert counts[name]["bytes"] <= moved * adam["bytes"], name
