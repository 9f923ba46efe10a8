"""Eager, graph and XLA agree; nothing is traced twice; an update keeps no state in Python."""

import math
import re

import keras
import numpy as np
import pytest

from keras_adanorm import AdaBelief, AdamNorm, DiffGradNorm, RadamNorm, execution
from keras_adanorm.engine import norms, stacks
from tests.support.optimizers import (
    BACKEND,
    CLASSES,
    MODES,
    Run,
    assert_bitwise_equal,
    assert_same_state,
    every_class,
    every_mode,
    every_pair,
    run_beside_reference,
    swinging_gradients,
    tensorflow_only,
    to_numpy,
)

one_program_only = pytest.mark.skipif(BACKEND == "torch", reason="torch has no XLA")

SHAPES = {"matrix": (3, 4), "scalar": (), "twin": (3, 4)}
PARAMS = {name: np.ones(shape) for name, shape in SHAPES.items()}


def run_through(optimizer, gradients, params=PARAMS, **arguments):
    run = Run(optimizer, params, **arguments)
    for grads in gradients:
        run.step(grads)
    return run


@every_mode
@every_class
def test_every_mode_follows_the_reference(cls, mode):
    gradients = swinging_gradients(SHAPES, 8)
    pairs = run_beside_reference(cls(0.01, beta_2=0.8), PARAMS, gradients, mode=mode)
    for run, reference in pairs:
        assert_same_state(run, reference, atol=2e-6, rtol=1e-5)
    if mode != "eager":
        assert run.traces == 1


@pytest.mark.parametrize("cls", [AdamNorm, DiffGradNorm])
def test_large_variables(cls):
    """Of sizes that are asked whether they were corrected, and are updated alone."""
    shapes = {"blocks": (2, 2**15), "rest": (2**16 + 3,)}
    assert max(norms.SMALL, stacks.SMALL) <= 2**16
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    pairs = run_beside_reference(cls(0.01, beta_2=0.8), params, swinging_gradients(shapes, 3))
    for run, reference in pairs:
        assert_same_state(run, reference, atol=5e-6, rtol=2e-5)


# Tensors of the variable's size that a jitted update reads or writes; of Adam's it is 10: the three
# loops of momentum, velocity and weight read 2, 2 and 3 and write one each. The norm reads one
# more; AdaBelief's velocity the momentum; DiffGrad's weight two gradients, and it writes one.
TENSORS = {
    "Adam": 10,
    "AdamNorm": 11,
    "RadamNorm": 11,
    "AdaBeliefNorm": 12,
    "DiffGradNorm": 15,
    "Radam": 10,
    "AdaBelief": 11,
    "DiffGrad": 14,
}


@pytest.mark.skipif(BACKEND != "jax", reason="needs JAX to show what it compiled")
@pytest.mark.parametrize("cls", [keras.optimizers.Adam, *CLASSES], ids=lambda c: c.__name__)
def test_tensors_through_memory(cls):
    import jax

    shape, elements = (2**9, 2**10), 2**19
    optimizer = cls()
    variables = Run(optimizer, {"w": np.ones(shape)}).variables
    state, values = ([v.value for v in found] for found in (optimizer.variables, variables))
    step = jax.jit(lambda w, s, g: optimizer.stateless_apply(s, g, w), donate_argnums=(0, 1))
    hlo = step.lower(values, state, values).compile().as_text()
    whole, loops = set(), []
    instruction = re.compile(r"(%\S+) = f32\[([\d,]*)\]\S* ([\w-]+)\(([^)]*)\)")
    for name, dims, kind, operands in instruction.findall(hlo[hlo.index("\nENTRY") :]):
        read = whole.intersection(re.findall(r"%[\w.-]+", operands))
        if math.prod(map(int, filter(None, dims.split(",")))) == elements:
            whole.add(name)
        if kind not in ("parameter", "bitcast"):
            loops.append(len(read) + (name in whole))
    # A state that holds the gradient itself also reads one element of the weight.
    one_element = "previous_gradient" in getattr(cls, "slots", ())
    assert sum(loops) - one_element <= TENSORS[cls.__name__], hlo


@pytest.mark.skipif(BACKEND != "torch", reason="a matter of torch")
@pytest.mark.parametrize("kernel_from", [1, 5, 100])
@every_class
def test_variables_in_groups_and_parts(cls, kernel_from, monkeypatch):
    """Groups of at most five elements: one of two variables, one variable in parts, with a rest."""
    from keras_adanorm.engine import torch_groups, torch_kernels

    monkeypatch.setattr(torch_kernels, "SMALLEST", kernel_from)
    monkeypatch.setattr(torch_groups, "part_size", lambda: 5)
    monkeypatch.setattr(torch_groups, "SMALL", 4)
    shapes = {"pair": (2,), "scalar": (), "matrix": (3, 4), "exact": (5,)}
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-12)):
        gradients = swinging_gradients(shapes, 8)
        for run, reference in run_beside_reference(
            cls(0.01, beta_2=0.8), params, gradients, dtype=dtype
        ):
            assert_same_state(run, reference, atol=tolerance, rtol=tolerance)


@tensorflow_only
@pytest.mark.parametrize("modes", [("eager", "xla"), ("graph", "eager"), ("xla", "graph")])
def test_a_gradient_is_left_as_it_was(modes):
    """The state that holds the last gradient shares its memory, and must not write to it."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    shape = (2**8, 2**9)
    values = [rng.standard_normal(shape).astype("float32") for _ in range(4)]
    gradients = [tf.constant(value) for value in values]
    runs = [Run(DiffGradNorm(0.01), {"w": np.ones(shape)}, mode=mode) for mode in modes]
    runs[1].optimizer, runs[1].variables = runs[0].optimizer, runs[0].variables
    for i, gradient in enumerate(gradients):
        runs[i % 2].apply([gradient])
        state = dict(zip(("m", "v", "previous"), runs[0].optimizer.variables[2:5], strict=True))
        np.testing.assert_array_equal(to_numpy(state["previous"]), values[i])
    for gradient, value in zip(gradients, values, strict=True):
        np.testing.assert_array_equal(gradient.numpy(), value)


@every_mode
@every_pair
def test_gamma_zero_is_the_plain_optimizer_bit_for_bit(norm_cls, plain_cls, mode, monkeypatch):
    """Weights and state, in float32 and bfloat16, small and large, stacked and single."""
    monkeypatch.setattr(norms, "SMALL", 12)
    monkeypatch.setattr(execution, "target", lambda: "gpu")
    shapes = {"small": (4,), "large": (5, 5), "small_half": (4,), "large_half": (5, 5)}
    shapes |= {"twin": (4,), "twin_half": (4,), "single": (3,)}
    dtype = {name: "bfloat16" if "half" in name else "float32" for name in shapes}
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    gradients = swinging_gradients(shapes, 8)
    arguments = dict(learning_rate=0.01, beta_2=0.8)
    norm = run_through(norm_cls(**arguments, gamma=0.0), gradients, params, dtype=dtype, mode=mode)
    plain = run_through(plain_cls(**arguments), gradients, params, dtype=dtype, mode=mode)
    assert_bitwise_equal(norm, plain)


@pytest.mark.skipif(BACKEND != "jax", reason="needs JAX")
@every_class
def test_nothing_is_traced_after_the_first_step(cls, monkeypatch):
    calls = []
    algorithm = cls.algorithm
    monkeypatch.setattr(cls, "algorithm", lambda self, s: (calls.append(1), algorithm(self, s))[1])
    run = Run(cls(0.01), PARAMS, mode="jit")
    gradients = swinging_gradients(SHAPES, 5)
    run.step(gradients[0])
    traced = len(calls)
    run.optimizer.learning_rate = 0.5
    for grads in gradients[1:]:
        run.step(grads)
    run.optimizer.iterations.assign(1_000_000)
    run.step(gradients[0])
    assert len(calls) == traced == len(SHAPES)


@every_mode
@pytest.mark.parametrize("cls", [DiffGradNorm, RadamNorm, AdaBelief])
def test_no_state_is_kept_in_python(cls, mode):
    """With the variables put back, the same steps give the same bits."""
    gradients = swinging_gradients(SHAPES, 6)
    run = run_through(cls(0.01, beta_2=0.8), gradients[:3], mode=mode)
    variables = run.variables + run.optimizer.variables
    snapshot = [to_numpy(variable) for variable in variables]

    def go_on():
        for grads in gradients[3:]:
            run.step(grads)
        return [to_numpy(variable) for variable in variables]

    first = go_on()
    for variable, value in zip(variables, snapshot, strict=True):
        variable.assign(value)
    for one, other in zip(first, go_on(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(BACKEND != "jax", reason="needs JAX")
@every_class
def test_a_pure_step_leaks_nothing(cls):
    import jax

    run = Run(cls(0.01), PARAMS)
    values = [v.value for v in run.variables]
    state = [v.value for v in run.optimizer.variables]
    gradients = [jax.numpy.ones(v.shape) for v in run.variables]
    with jax.checking_leaks():
        jax.jit(run.optimizer.stateless_apply)(state, gradients, values)
    for before, variable in zip(
        state + values, run.optimizer.variables + run.variables, strict=True
    ):
        np.testing.assert_array_equal(before, variable.value)


def test_two_optimizers_share_nothing():
    gradients = swinging_gradients(SHAPES, 4)
    alone = run_through(AdamNorm(0.01), gradients)
    one, other = Run(AdamNorm(0.01), PARAMS), Run(AdamNorm(0.5, beta_1=0.1, gamma=0.1), PARAMS)
    for grads in gradients:
        other.step(grads)
        one.step(grads)
    assert_bitwise_equal(one, alone, ("params", "m", "v", "e"))


@pytest.mark.skipif(len(MODES) == 1, reason="one mode only")
def test_the_mode_may_change_between_steps():
    gradients = swinging_gradients(SHAPES, 6)
    run = Run(AdamNorm(0.01), PARAMS, mode=MODES[1])
    steady = Run(AdamNorm(0.01), PARAMS)
    for t, grads in enumerate(gradients):
        if t % 2:
            run.step(grads)
        else:
            tensors = [keras.ops.convert_to_tensor(grads[name], "float32") for name in SHAPES]
            run.optimizer.apply(tensors, run.variables)
        steady.step(grads)
    assert_same_state(run, steady, atol=1e-6, rtol=1e-5)
