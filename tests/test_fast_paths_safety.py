"""What no fast path may do: spread an Inf, make one, move tensors between devices, keep memory."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

from keras_adanorm import (
    AdaBelief,
    AdaBeliefNorm,
    AdamNorm,
    AdaNorm,
    DiffGrad,
    DiffGradNorm,
    Radam,
    RadamNorm,
    StepOptimizer,
)
from tests.support import child
from tests.support.fast_paths import SHAPES, SUBJECTS, state_of, use_small_thresholds
from tests.support.optimizers import (
    BACKEND,
    MODES,
    Run,
    every_mode,
    swinging_gradients,
    tensorflow_only,
    to_numpy,
)

LR = 0.05
PARAMS = {name: np.ones(shape) for name, shape in SHAPES.items()}
every_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=repr)


@pytest.fixture(autouse=True)
def small_thresholds(monkeypatch):
    use_small_thresholds(monkeypatch)


def stream(steps=4, seed=0):
    return swinging_gradients(SHAPES, steps, seed)


# ------------------------------------------------------------ Inf and NaN


@every_mode
@every_subject
def test_inf_and_nan_stay_in_their_variable(subject, mode):
    clean, run = (Run(subject.fast(LR), PARAMS, mode=mode) for _ in range(2))
    bad = {"twin": np.nan, "large": np.inf, "scalar": -np.inf}
    for number, grads in enumerate(stream(3)):
        clean.step(grads)
        infected = dict(grads)
        if number == 1:
            for name, value in bad.items():
                infected[name] = np.full(SHAPES[name], value)
        run.step(infected)
    for name in SHAPES:
        if name not in bad:
            np.testing.assert_array_equal(run.params[name], clean.params[name], name)
        else:
            assert not np.isfinite(run.params[name]).any()


@every_mode
@every_subject
def test_a_ratio_at_its_bound(subject, mode):
    """After large gradients the smallest ones are scaled by the largest number of the dtype."""
    states = []
    for make, how in ((subject.fast, mode), (subject.own, "eager")):
        run = Run(make(LR), PARAMS, mode=how)
        for size in (1e3, 1e3, 5e-38, 2e-38, 1.0):
            run.step({name: np.full(shape, size) for name, shape in SHAPES.items()})
        states.append(state_of(run.optimizer, run.variables))
    for fast, own in zip(*states, strict=True):
        np.testing.assert_allclose(fast, own, rtol=3e-6, atol=1e-7)


PAIRS = [
    (lambda rate: DiffGradNorm(rate, gamma=0.0), DiffGrad),
    (lambda rate: RadamNorm(rate, gamma=0.0), Radam),
    (lambda rate: AdaBeliefNorm(rate, gamma=0.0), AdaBelief),
    (
        lambda rate: AdaNorm(keras.optimizers.SGD(rate, momentum=0.9), gamma=0.0),
        lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    ),
]


@every_mode
@pytest.mark.parametrize("pair", PAIRS, ids=["DiffGrad", "Radam", "AdaBelief", "SGD"])
def test_gamma_zero_is_the_plain_class_bit_for_bit(pair, mode):
    states = []
    for make in pair:
        run = Run(make(LR), PARAMS, mode=mode)
        for grads in stream():
            run.step(grads)
        states.append(state_of(run.optimizer, run.variables))
    corrected, plain = states
    assert len(corrected) == len(plain) + 1  # the averages come last
    for a, b in zip(corrected, plain, strict=False):
        np.testing.assert_array_equal(a, b)


# ------------------------------------------------------------ numeric debuggers


@contextlib.contextmanager
def check_numerics(folder):
    import tensorflow as tf

    tf.debugging.enable_check_numerics()
    try:
        yield
    finally:
        tf.debugging.disable_check_numerics()


@contextlib.contextmanager
def dump(folder):
    import tensorflow as tf

    tf.debugging.experimental.enable_dump_debug_info(
        str(folder), tensor_debug_mode="FULL_HEALTH", circular_buffer_size=-1
    )
    try:
        yield
    finally:
        tf.debugging.experimental.disable_dump_debug_info()


@contextlib.contextmanager
def debug_infs_and_nans(folder):
    import jax

    jax.config.update("jax_debug_infs", True)
    jax.config.update("jax_debug_nans", True)
    try:
        yield
    finally:
        jax.config.update("jax_debug_infs", False)
        jax.config.update("jax_debug_nans", False)


DEBUGGERS = {
    "tensorflow": [(check_numerics, "eager"), (check_numerics, "graph"), (dump, "graph")],
    "jax": [(debug_infs_and_nans, "eager"), (debug_infs_and_nans, "jit")],
    "torch": [],
}[BACKEND]
# From the smallest normal number to the largest, and what a first step has nothing to compare with.
FINITE = [0.0, 1e-38, 1.0, 1e25, 3e38, 1e-25, 0.0, 1e-38]


@pytest.mark.parametrize(("debugger", "mode"), DEBUGGERS, ids=lambda v: getattr(v, "__name__", v))
@every_subject
def test_numeric_debuggers_find_nothing(subject, debugger, mode, tmp_path):
    """No Inf or NaN arises from finite gradients, not even for a moment."""
    with debugger(tmp_path):
        run = Run(subject.fast(1e-3), PARAMS, mode=mode)
        for size in FINITE:
            grads = {name: np.full(shape, size, "float32") for name, shape in SHAPES.items()}
            grads["vector"] = np.float32([size, -size, 0.0, size / 2, 1e-3])
            run.step(grads)
    for value in state_of(run.optimizer, run.variables):
        assert np.isfinite(value).all()


@tensorflow_only
def test_nothing_of_a_debugger_stays_behind(tmp_path):
    """Functions that graphs share are not kept with the debugger's operations in them."""
    from keras_adanorm.engine import tensorflow_kernels

    tensorflow_kernels._push_if_needed.cache_clear()
    with check_numerics(tmp_path):
        run = Run(AdamNorm(LR), PARAMS, mode="graph")
        for grads in stream():
            run.step(grads)
    run = Run(AdamNorm(LR), PARAMS, mode="graph")
    run.step({**stream(1)[0], "large": np.full(SHAPES["large"], np.inf)})
    assert not np.isfinite(run.params["large"]).any()


# ------------------------------------------------------------ complex variables


def new_complex():
    start = np.array([1 + 1j, 2 - 1j], "complex64")
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.Variable(start)
    return keras.Variable(start, dtype="complex64")


class Descent(StepOptimizer):
    def algorithm(self, step):
        step.descend(step.learning_rate * step.gradient)


@pytest.mark.parametrize(
    "make",
    [*(subject.fast for subject in SUBJECTS), Descent],
    ids=[*(subject.name for subject in SUBJECTS), "StepOptimizer"],
)
def test_complex_variables_are_refused_before_anything_changes(make):
    optimizer = make(LR)
    real, complex_ = keras.Variable(np.ones(2, "float32")), new_complex()
    gradients = [ops.convert_to_tensor(np.ones(2, "float32")), ops.convert_to_tensor(complex_)]
    for _ in range(2):
        with pytest.raises(ValueError, match="real variables.*complex64"):
            optimizer.apply(gradients, [real, complex_])
    assert int(optimizer.iterations) == 0
    assert not optimizer.built
    np.testing.assert_array_equal(to_numpy(real), [1, 1])
    optimizer.apply(gradients[:1], [real])  # nothing of the refused variables is left
    assert int(optimizer.iterations) == 1


# ------------------------------------------------------------ devices by hand

TWO_DEVICES = """
import keras, numpy as np, sys
import tensorflow as tf
from tests.support.fast_paths import SUBJECTS, state_of

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
SIZES = (3, 130)  # a matrix of 9 and one of 16,900 elements on each device

def train(optimizer, devices, compiled):
    variables = []
    for i, device in enumerate(devices):
        for size in SIZES:
            with tf.device(device):
                value = np.random.default_rng(i).normal(size=(size, size)).astype("float32")
                variables.append(keras.Variable(value))
    optimizer.build(variables)
    def step(scale):
        grads = []
        for variable, device in zip(variables, np.repeat(devices, len(SIZES)), strict=True):
            with tf.device(str(device)):
                grads.append(scale * tf.convert_to_tensor(variable))
        optimizer.apply(grads, variables)
    if compiled:
        step = tf.function(step)
    for scale in (1.0, 0.1, 2.0):
        step(tf.constant(scale))
    for variable, device in zip(variables, np.repeat(devices, len(SIZES)), strict=True):
        assert variable.value.device.endswith(str(device)), variable.value.device
    if hasattr(optimizer, "state_of"):
        for variable in variables:
            for state in optimizer.state_of(variable).values():
                assert state.value.device == variable.value.device, state.value.device
    return state_of(optimizer, variables)

for subject in SUBJECTS:
    for compiled in (False, True):
        two = train(subject.fast(0.05), ["CPU:0", "CPU:1"], compiled)
        one = train(subject.fast(0.05), ["CPU:0", "CPU:0"], compiled)
        for a, b in zip(two, one, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7, err_msg=f"{subject} {compiled}")
        print(subject, compiled)
"""


@tensorflow_only
def test_variables_on_devices_chosen_by_hand():
    said = child.output(child.start(["-c", TWO_DEVICES], backend="tensorflow"))
    assert len(said.splitlines()) == 2 * len(SUBJECTS)


# ------------------------------------------------------------ memory, traces


MEMORY = """
import gc, sys, weakref
import numpy as np
from tests.support.fast_paths import SHAPES, SUBJECTS
from tests.support.optimizers import BACKEND, Run

mode, count = sys.argv[1], int(sys.argv[2])

def collect():
    for _ in range(3):  # graphs of TensorFlow free each other in several rounds
        gc.collect()

def kinds():
    import tensorflow as tf
    from tensorflow.python.framework.func_graph import FuncGraph
    return FuncGraph, tf.Variable

def alive():
    collect()
    if BACKEND != "tensorflow":
        return []
    return [sum(isinstance(o, kind) for o in gc.get_objects()) for kind in kinds()]

def train(subject):
    run = Run(subject.fast(0.05), {n: np.ones(shape) for n, shape in SHAPES.items()}, mode=mode)
    for scale in (1.0, 0.1):
        run.step({n: np.full(shape, scale) for n, shape in SHAPES.items()})
    return [weakref.ref(v) for v in (run.optimizer, *run.optimizer.variables, *run.variables)]

# Of an optimizer that Keras updates itself, Adam too, a graph stays behind: not of these.
ours = [subject for subject in SUBJECTS if subject.name != "AdaNorm"]
if BACKEND == "tensorflow":
    for subject in SUBJECTS:  # what is recorded once, for all
        train(subject)
collect()
gc.freeze()  # to look at what comes from here on alone
counts = []
for number in range(count):
    kept = train(ours[number % len(ours)])
    collect()
    left = [reference() for reference in kept if reference() is not None]
    assert not left, left
    if number + 1 in (5, count):
        counts.append(alive())
assert counts[0] == counts[-1], counts
print("freed")
"""


@every_mode
def test_deleted_optimizers_free_their_memory(mode):
    """One per task, say: all that was kept or recorded for one goes with it.

    Two rounds over all classes: what TensorFlow keeps beyond them would be more after the second.
    """
    count = 10 if BACKEND == "tensorflow" else 5
    process = child.start(["-c", MEMORY, mode, count], backend=BACKEND)
    assert child.output(process).split()[-1] == "freed"


@pytest.fixture
def graphs(monkeypatch):
    """A list that grows by one with each graph that TensorFlow records."""
    from tensorflow.python.framework.func_graph import FuncGraph

    made = []
    init = FuncGraph.__init__

    def counted(self, name, *arguments, **options):
        made.append(str(name))
        init(self, name, *arguments, **options)

    monkeypatch.setattr(FuncGraph, "__init__", counted)
    return made


@tensorflow_only
@every_subject
def test_nothing_is_recorded_eagerly(subject, graphs):
    """With other variables, and settings that change, from one step to the next."""
    optimizer = subject.fast(LR, weight_decay=0.1)
    run = Run(optimizer, PARAMS)
    for number, grads in enumerate(stream(6)):
        optimizer.weight_decay = 0.1 * number
        optimizer.learning_rate = LR / (1 + number)
        chosen = list(range(len(SHAPES)))[number % 3 :: 2]
        pairs = list(zip(SHAPES, run.variables, strict=True))
        tensors = [ops.convert_to_tensor(grads[pairs[i][0]]) for i in chosen]
        optimizer.apply(tensors, [pairs[i][1] for i in chosen])
    assert graphs == []


@tensorflow_only
@every_subject
def test_other_variables_record_their_own_graph_alone(subject, graphs):
    """What graphs share is recorded once, for whatever variables."""
    import tensorflow as tf

    def train(names):
        run = Run(
            subject.fast(LR), {name: np.ones(shape) for name, shape in names.items()}, mode="graph"
        )
        before = len(graphs)
        run.step({name: np.ones(shape) for name, shape in names.items()})
        assert isinstance(run._apply, tf.types.experimental.PolymorphicFunction)
        return len(graphs) - before

    train({"a": (20,)})
    first = train({"b": (21,)})
    assert train({"c": (22,)}) == first
    grown = train({name: (23 + i,) for i, name in enumerate("defghijk")})
    assert grown <= first + 14  # no more than two branches for each variable


@tensorflow_only
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "eager"])
@every_subject
def test_a_program_is_recorded_once(subject, mode):
    run = Run(subject.fast(LR), PARAMS, mode=mode)
    for grads in stream(4):
        run.step(grads)
    assert run.traces == 1
