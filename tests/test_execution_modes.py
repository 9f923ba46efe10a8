"""Eager, graph and XLA agree; nothing is traced twice; an update keeps no state in Python."""

import math
import re

import keras
import numpy as np
import pytest

from keras_adanorm import AdaBelief, AdamNorm, DiffGradNorm, RadamNorm, acceleration
from tests.support.optimizers import (
    BACKEND,
    CLASSES,
    MODES,
    Run,
    assert_bitwise_equal,
    assert_same_state,
    every_class,
    every_mode,
    every_norm_class,
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


@tensorflow_only
@every_class
def test_programs_compiled_per_shape(cls, monkeypatch):
    """Small variables as if they were large, and among them one that is left to the graph."""
    monkeypatch.setattr(acceleration, "XLA_MINIMUM_SIZE", 4)
    gradients = swinging_gradients(SHAPES, 8)
    for run, reference in run_beside_reference(cls(0.01, beta_2=0.8), PARAMS, gradients):
        assert_same_state(run, reference, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("cls", [AdamNorm, DiffGradNorm])
def test_large_variables(cls):
    """Of sizes that are compiled, and whose norm is summed in blocks and not."""
    shapes = {"blocks": (2, 2**15), "rest": (2**16 + 3,)}
    assert acceleration.XLA_MINIMUM_SIZE <= 2**16
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    pairs = run_beside_reference(cls(0.01, beta_2=0.8), params, swinging_gradients(shapes, 3))
    for run, reference in pairs:
        assert_same_state(run, reference, atol=5e-6, rtol=2e-5)


@pytest.fixture
def in_turn(monkeypatch):
    """Small variables updated as large ones are where XLA compiles a step; counts them."""
    ties = []
    one_after = acceleration._one_after

    def counted(*arguments):
        ties.append(arguments)
        return one_after(*arguments)

    monkeypatch.setattr(acceleration, "IN_TURN_MINIMUM_SIZE", 1)
    monkeypatch.setattr(acceleration, "_one_after", counted)
    return ties


@one_program_only
@every_class
def test_variables_in_turn(cls, in_turn):
    gradients = swinging_gradients(SHAPES, 8)
    pairs = run_beside_reference(cls(0.01, beta_2=0.8), PARAMS, gradients, mode=MODES[-1])
    for run, reference in pairs:
        assert_same_state(run, reference, atol=2e-6, rtol=1e-5)
    # Each variable after the one before, without a norm after the one before that; DiffGrad's
    # previous gradients after their variables.
    at_a_time = 1 if "Norm" in cls.__name__ else 2
    assert len(in_turn) == len(PARAMS) - at_a_time + len(PARAMS) * ("DiffGrad" in cls.__name__)


@one_program_only
@pytest.mark.parametrize("cls", [AdamNorm, DiffGradNorm])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_variables_in_turn_do_not_infect_each_other(cls, bad, in_turn):
    params = {name: np.ones((2, 2)) for name in "abc"}
    run = Run(cls(0.01), params, mode=MODES[-1])
    gradients = {name: np.full((2, 2), 0.1) for name in params}
    clean = run_through(cls(0.01), [gradients] * 3, params, mode=MODES[-1])
    for _ in range(3):
        run.step({**gradients, "b": np.full((2, 2), bad)})
    assert in_turn
    assert not np.isfinite(run.params["b"]).any()
    for name in "ac":
        np.testing.assert_array_equal(run.params[name], clean.params[name])


@one_program_only
@every_pair
def test_gamma_zero_in_turn_is_the_plain_optimizer_bit_for_bit(norm_cls, plain_cls, in_turn):
    gradients = swinging_gradients(SHAPES, 8)
    arguments = dict(learning_rate=0.01, beta_2=0.8)
    norm = run_through(norm_cls(**arguments, gamma=0.0), gradients, mode=MODES[-1])
    plain = run_through(plain_cls(**arguments), gradients, mode=MODES[-1])
    assert_bitwise_equal(norm, plain)
    assert in_turn


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
    one_element_of_the_weight = "DiffGrad" in cls.__name__
    assert sum(loops) - one_element_of_the_weight <= TENSORS[cls.__name__], hlo


@pytest.fixture
def stacked(monkeypatch):
    """The sizes of the stacks in which variables are updated."""
    if BACKEND != "tensorflow":
        pytest.skip("a matter of TensorFlow")
    from keras_adanorm import tensor_stack

    sizes = []
    begin = tensor_stack.StackedStep.__init__

    def counted(self, optimizer, gradients, *arguments):
        sizes.append(len(gradients))
        begin(self, optimizer, gradients, *arguments)

    monkeypatch.setattr(tensor_stack.StackedStep, "__init__", counted)
    return sizes


STACKS = {f"{kind}_{i}": (3, 2) for kind in ("float32", "float64", "bfloat16") for i in range(3)}
STACKS |= {f"scalar_{i}": () for i in range(2)} | {f"empty_{i}": (0, 3) for i in range(2)}


@pytest.mark.parametrize("mode", ["eager", "graph"])
@every_class
def test_variables_in_stacks(cls, mode, stacked, monkeypatch):
    """Stacked or not, all dtypes follow the reference; at most two of the matrices in a stack."""
    from keras_adanorm import tensor_stack

    monkeypatch.setattr(tensor_stack, "STACK_MAXIMUM_SIZE", 17)
    params = {name: np.ones(shape) for name, shape in STACKS.items()}
    kinds = {name: name.split("_")[0] for name in STACKS}
    dtype = {n: kind if "float" in kind else "float32" for n, kind in kinds.items()}
    gradients = swinging_gradients(STACKS, 8)
    halves = {name for name, kind in kinds.items() if kind == "bfloat16"}
    for grads in gradients:  # numbers that all dtypes hold
        grads.update({name: np.round(8 * grads[name]) / 8 for name in halves})
    arguments = dict(params=params, gradients=gradients, dtype=dtype, mode=mode)
    for run, reference in run_beside_reference(cls(2**-6, beta_2=0.8), **arguments):
        for kind, values in run.state.items():
            for name, value in values.items():
                half = kind == "params" and name in halves
                tolerance = dict(rtol=0.02, atol=0.02) if half else dict(rtol=1e-5, atol=2e-6)
                expected = getattr(reference, kind)[name]
                np.testing.assert_allclose(value, expected, **tolerance, err_msg=name)
    # Two and one of each kind of matrix but float64; scalars; empty ones.
    assert sorted(stacked) == [2, 2, 2, 2]


@every_norm_class
def test_variables_in_a_stack_do_not_infect_each_other(cls, stacked):
    params = {name: np.ones((2, 2)) for name in "abcd"}
    gradients = {name: np.full((2, 2), 0.1) for name in params}
    gradients |= {"b": np.full((2, 2), np.nan), "d": np.array([[np.inf, 0.1], [0.1, 0.1]])}
    run = run_through(cls(0.01), [gradients] * 3, params)
    assert stacked == [4]
    alone = run_through(cls(0.01), [{"a": gradients["a"]}] * 3, {"a": params["a"]})
    for name in "ac":
        np.testing.assert_array_equal(run.params[name], alone.params["a"])
        np.testing.assert_array_equal(run.e[name], alone.e["a"])
    assert not np.isfinite(run.params["b"]).any()
    assert run.e["b"] == run.e["d"] == 0


@pytest.mark.skipif(BACKEND != "torch", reason="a matter of torch")
@every_class
def test_variables_in_groups_and_parts(cls, monkeypatch):
    """Groups of at most five elements: one of two variables, one variable in parts, with a rest."""
    from keras_adanorm import tensor_list

    monkeypatch.setattr(tensor_list, "_GROUP_SIZE", {"cpu": 5, "other": 5})
    shapes = {"pair": (2,), "scalar": (), "matrix": (3, 4), "exact": (5,)}
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-12)):
        gradients = swinging_gradients(shapes, 8)
        for run, reference in run_beside_reference(
            cls(0.01, beta_2=0.8), params, gradients, dtype=dtype
        ):
            assert_same_state(run, reference, atol=tolerance, rtol=tolerance)


@tensorflow_only
def test_an_empty_variable_in_turn(in_turn):
    params = {"empty": np.ones((0, 3)), "full": np.ones((2, 3))}
    acceleration.IN_TURN_MINIMUM_SIZE = 4
    run = Run(DiffGradNorm(0.01), params, mode="xla")
    run.step({name: 0.5 * value for name, value in params.items()})
    assert (run.params["full"] < 1).all()


@tensorflow_only
@pytest.mark.parametrize("modes", [("eager", "xla"), ("graph", "eager"), ("xla", "graph")])
def test_a_gradient_is_left_as_it_was(modes, in_turn):
    """The state that holds the last gradient shares its memory, and must not write to it."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    shape = (2**8, 2**9)  # large enough to be compiled
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
    """Weights and state, in float32 and bfloat16, compiled per shape, stacked and single."""
    monkeypatch.setattr(acceleration, "XLA_MINIMUM_SIZE", 12)
    shapes = {"small": (4,), "large": (5, 5), "small_half": (4,), "large_half": (5, 5)}
    shapes |= {"twin": (4,), "twin_half": (4,), "single": (3,)}
    dtype = {name: "bfloat16" if "half" in name else "float32" for name in shapes}
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    gradients = swinging_gradients(shapes, 8)
    arguments = dict(learning_rate=0.01, beta_2=0.8)
    norm = run_through(norm_cls(**arguments, gamma=0.0), gradients, params, dtype=dtype, mode=mode)
    plain = run_through(plain_cls(**arguments), gradients, params, dtype=dtype, mode=mode)
    assert_bitwise_equal(norm, plain)


@every_class
def test_nothing_is_traced_after_the_first_step(cls, monkeypatch):
    calls = []
    update_step = cls.update_step
    monkeypatch.setattr(
        cls, "update_step", lambda self, *a: (calls.append(1), update_step(self, *a))[1]
    )
    mode = {"tensorflow": "eager", "jax": "jit", "torch": None}[BACKEND]
    if mode is None:
        pytest.skip("torch runs the update as it stands")
    run = Run(cls(0.01), PARAMS, mode=mode)
    gradients = swinging_gradients(SHAPES, 5)
    run.step(gradients[0])
    traced = len(calls)
    run.optimizer.learning_rate = 0.5
    for grads in gradients[1:]:
        run.step(grads)
    run.optimizer.iterations.assign(1_000_000)
    run.step(gradients[0])
    # On TensorFlow, variables of one shape share what is traced.
    once = len(set(SHAPES.values())) if BACKEND == "tensorflow" else len(SHAPES)
    assert len(calls) == traced == once


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
