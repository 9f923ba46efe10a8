"""Whatever Keras lets a user do gives the same numbers on a fast path as by Keras' own way.

Keras' own way is `update_step` for one variable after the other. A subclass that overrides
`update_step`, and only calls super, is run by it.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_adanorm import AdamNorm, AdaNorm, DiffGradNorm, Radam
from tests.support.fast_paths import (
    AVERAGED,
    EVERYTHING,
    SHAPES,
    SUBJECTS,
    state_of,
    use_small_thresholds,
)
from tests.support.optimizers import (
    BACKEND,
    MODES,
    Run,
    floatx,
    swinging_gradients,
    to_numpy,
)

LR = 0.05
PARAMS = {
    name: np.random.default_rng(i).normal(size=shape)
    for i, (name, shape) in enumerate(SHAPES.items())
}
COMPILED = MODES[1:]
every_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=repr)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Gradients do not exist for variables"),
    pytest.mark.filterwarnings("ignore:__array__ implementation"),
]


@pytest.fixture(autouse=True)
def small_thresholds(monkeypatch):
    use_small_thresholds(monkeypatch)


def stream(steps=4, seed=0, shapes=SHAPES):
    return swinging_gradients(shapes, steps, seed)


def assert_same(state, other, roundings=20):
    """To a few roundings of each array's dtype."""
    assert len(state) == len(other)
    for i, (a, b) in enumerate(zip(state, other, strict=True)):
        assert a.dtype == b.dtype
        eps = np.finfo(a.dtype).eps if a.dtype.kind == "f" else 0
        np.testing.assert_allclose(
            a, b, roundings * eps, roundings * eps / 10, err_msg=f"variable {i}"
        )


# ------------------------------------------------------------ what a user does, in any mode


def run_through(optimizer, mode, gradients=None, params=PARAMS, **arguments):
    run = Run(optimizer, params, mode=mode, **arguments)
    for grads in gradients or stream():
        run.step(grads)
    return state_of(optimizer, run.variables)


class Returns(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that returns what a function makes of the number of the step."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def __call__(self, step):
        return self.rate(step)

    def get_config(self):
        return {"rate": self.rate}


RATES = {
    "float": Returns(lambda step: 0.03),
    "numpy_float32": Returns(lambda step: np.float32(0.03)),
    "numpy_float64": Returns(lambda step: np.float64(0.03)),
    "tensor": Returns(lambda step: 0.1 / (ops.cast(step, "float32") + 1.0)),
    "tensor_float64": Returns(lambda step: 0.1 / (ops.cast(step, "float64") + 1.0)),
    "tensor_float16": Returns(lambda step: ops.cast(0.03, "float16")),
    "callable": lambda: 0.03,
    "callable_tensor": lambda: ops.convert_to_tensor(0.03),
    "variable": None,  # made anew by each run
}


def with_rate(name):
    def feature(make, mode):
        rate = RATES[name]
        if rate is None:
            held = keras.Variable(0.03)
            rate = lambda: ops.convert_to_tensor(held)  # noqa: E731
        return run_through(make(rate), mode, stream(3))

    return feature


def everything_around(make, mode):
    optimizer = make(LR, **EVERYTHING)
    optimizer.exclude_from_weight_decay(var_names=["vector", "scalar"])
    return run_through(optimizer, mode, params={name: PARAMS[name] for name in AVERAGED})


def accumulation(make, mode):
    return run_through(make(LR, gradient_accumulation_steps=2, weight_decay=0.1), mode, stream(6))


def missing_gradients(make, mode):
    """Now this variable has no gradient, now that."""
    optimizer = make(LR)
    run = Run(optimizer, PARAMS, mode=mode)
    for number, grads in enumerate(stream(4)):
        missing = list(SHAPES)[number % 2]
        run.apply([None if n == missing else ops.convert_to_tensor(grads[n]) for n in SHAPES])
    return state_of(optimizer, run.variables)


def mixed_dtypes(make, mode):
    dtypes = ["float16", "float32", "bfloat16", "float64", "float32", "float64", "float32"]
    with floatx("float64"):
        named = dict(zip(SHAPES, dtypes, strict=True))
        state = run_through(make(LR), mode, stream(3), dtype=named)
        # The averages of all are kept in float64, those of float32 with roundings of float32.
        return [v.astype("float32") if v.shape == (len(SHAPES),) else v for v in state]


ANYWHERE = {
    "everything_around": everything_around,
    "accumulation": accumulation,
    "missing_gradients": missing_gradients,
    "mixed_dtypes": mixed_dtypes,
    **{f"rate_{name}": with_rate(name) for name in RATES},
}

# ------------------------------------------------------------ eagerly


def other_subsets(make, mode):
    """Only some variables are given, others in each step and in another order."""
    optimizer = make(LR)
    run = Run(optimizer, PARAMS)
    named = dict(zip(run.names, run.variables, strict=True))
    for number, grads in enumerate(stream(5)):
        chosen = list(np.random.default_rng(number).permutation(run.names)[: 2 + number])
        tensors = [ops.convert_to_tensor(grads[name]) for name in chosen]
        optimizer.apply(tensors, [named[name] for name in chosen])
    return state_of(optimizer, run.variables)


def numpy_gradients(make, mode):
    optimizer = make(LR)
    run = Run(optimizer, PARAMS)
    for grads in stream(3):
        optimizer.apply([np.array(grads[name]) for name in SHAPES], run.variables)
    return state_of(optimizer, run.variables)


def as_gradients(variables):
    """On torch Keras itself takes no variable of Keras as a gradient, but a parameter of torch."""
    return [variable.value if BACKEND == "torch" else variable for variable in variables]


def variables_as_gradients(make, mode):
    optimizer = make(LR)
    run = Run(optimizer, PARAMS)
    given = [keras.Variable(np.zeros(shape, "float32")) for shape in SHAPES.values()]
    for grads in stream(3):
        for variable, name in zip(given, SHAPES, strict=True):
            variable.assign(grads[name])
        optimizer.apply(as_gradients(given), run.variables)
    for variable, name in zip(given, SHAPES, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), np.float32(stream(3)[-1][name]))
    return state_of(optimizer, run.variables)


def weights_as_gradients(make, mode):
    """The gradient of half the squared norm of the weights is the weights."""
    optimizer = make(LR)
    run = Run(optimizer, PARAMS)
    for _ in range(3):
        optimizer.apply(as_gradients(run.variables), run.variables)
    return state_of(optimizer, run.variables)


def one_gradient_for_all(make, mode):
    optimizer = make(LR)
    run = Run(optimizer, {name: np.full((3, 4), i) for i, name in enumerate("abc")})
    for grads in stream(3):
        tensor = ops.convert_to_tensor(grads["matrix"], "float32")
        before = to_numpy(tensor)
        optimizer.apply([tensor, tensor, tensor], run.variables)
        np.testing.assert_array_equal(to_numpy(tensor), before)
    return state_of(optimizer, run.variables)


def settings_before_each_step(make, mode):
    """Weight decay, learning rate and the decay of an average take effect at once."""
    optimizer = make(LR, weight_decay=0.1)
    run = Run(optimizer, PARAMS)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    decay = "momentum" if hasattr(inner, "momentum") else "beta_1"
    for number, grads in enumerate(stream(4)):
        optimizer.weight_decay = 0.3 * number
        optimizer.learning_rate = LR / (number + 1)
        optimizer.gamma = 0.9 - 0.2 * number
        setattr(inner, decay, 0.9 - 0.1 * number)
        run.step(grads)
    return state_of(optimizer, run.variables)


def other_modes_in_turn(make, mode):
    """Steps of one optimizer in each mode, one after the other."""
    optimizer = make(LR)
    run = Run(optimizer, PARAMS)
    for number, grads in enumerate(stream(1 + len(MODES))):
        run.mode = MODES[number % len(MODES)]
        run._apply = run._compiled_apply()
        run.step(grads)
    return state_of(optimizer, run.variables)


EAGERLY = {
    "other_subsets": other_subsets,
    "variables_as_gradients": variables_as_gradients,
    "weights_as_gradients": weights_as_gradients,
    "one_gradient_for_all": one_gradient_for_all,
    "settings_before_each_step": settings_before_each_step,
}
if BACKEND != "torch":  # there Keras takes no arrays
    EAGERLY["numpy_gradients"] = numpy_gradients


@pytest.mark.parametrize("feature", ANYWHERE | EAGERLY)
@every_subject
def test_eagerly(subject, feature):
    if BACKEND == "jax" and feature == "accumulation":
        pytest.skip("eagerly Keras compiles the branches anew in each step; see test_compiled")
    feature = (ANYWHERE | EAGERLY)[feature]
    assert_same(feature(subject.fast, "eager"), feature(subject.own, "eager"))


@pytest.mark.skipif(BACKEND == "torch", reason="has one mode")
@pytest.mark.parametrize("subject", [SUBJECTS[0], SUBJECTS[-1]], ids=repr)
def test_modes_in_turn(subject):
    states = [other_modes_in_turn(make, None) for make in (subject.fast, subject.own)]
    assert_same(*states)


# They reach a compiler as another one does.
ALIKE_UNDER_XLA = ("rate_numpy_float32", "rate_numpy_float64", "rate_callable", "rate_tensor")


def compiled_cases():
    """All classes in one feature, and two classes in each; one in each kind of learning rate."""
    subjects = {subject.name: subject for subject in SUBJECTS}
    for number, feature in enumerate(ANYWHERE):
        if feature == "everything_around":
            chosen = SUBJECTS
        elif feature.startswith("rate_"):
            chosen = [SUBJECTS[number % len(SUBJECTS)]]
        else:
            chosen = [subjects["AdamNorm"], subjects["AdaNorm"]]
        for subject in chosen:
            for mode in COMPILED:
                if mode != "xla" or feature not in ALIKE_UNDER_XLA:
                    yield pytest.param(subject, feature, mode, id=f"{subject}-{feature}-{mode}")


@pytest.mark.parametrize(("subject", "feature", "mode"), list(compiled_cases()))
def test_compiled(subject, feature, mode):
    """A few steps of a compiled program, on TensorFlow beside Keras' own way eagerly."""
    # XLA of TensorFlow 2.16 does not round to bfloat16 between operations that it fuses.
    in_half_precision = mode == "xla" and feature == "mixed_dtypes"
    own_mode = mode if BACKEND == "jax" or in_half_precision else "eager"
    feature = ANYWHERE[feature]
    assert_same(feature(subject.fast, mode), feature(subject.own, own_mode))


@pytest.mark.skipif(BACKEND != "jax", reason="needs JAX")
@pytest.mark.parametrize(
    ("target", "subject"),
    [*(("gpu", subject) for subject in SUBJECTS), ("tpu", SUBJECTS[0]), ("tpu", SUBJECTS[-1])],
    ids=str,
)
def test_program_for_another_device(target, subject, monkeypatch):
    """What JAX compiles for a GPU or TPU computes the same on a CPU."""
    use_small_thresholds(monkeypatch, target)
    runs = [run_through(make(LR), "jit") for make in (subject.fast, subject.own)]
    assert_same(*runs)


def many_steps(optimizer, loop, steps=4):
    """Steps of `stateless_apply` with gradients that depend on the weights, in a loop of JAX.

    They are few: a rounding of the weights grows from step to step.
    """
    import jax

    variables = [keras.Variable(value, name=name) for name, value in PARAMS.items()]
    optimizer.build(variables)
    targets = [jax.numpy.asarray(target) for target in stream(1)[0].values()]

    def step(carry):
        weights, state, number = carry
        swing = 1 + 29 * ((number + 1) % 2)  # the correction fires from the second step on
        pairs = zip(weights, targets, strict=True)
        gradients = [((weight - target) * swing).astype(weight.dtype) for weight, target in pairs]
        weights, state = optimizer.stateless_apply(state, gradients, weights)
        return list(weights), list(state), number + 1

    weights, state = ([v.value for v in part] for part in (variables, optimizer.variables))
    weights, state, _ = loop(step, (weights, state, jax.numpy.zeros((), "int32")), steps)
    return [to_numpy(value) for value in [*weights, *state]]


def python_loop(step, carry, steps):
    for _ in range(steps):
        carry = step(carry)
    return carry


def jit_in_jit(step, carry, steps):
    import jax

    inner = jax.jit(step)
    return python_loop(jax.jit(lambda carry: inner(carry)), carry, steps)


def scan(step, carry, steps):
    import jax

    return jax.lax.scan(lambda carry, _: (step(carry), None), carry, length=steps)[0]


def fori_loop(step, carry, steps):
    import jax

    return jax.jit(lambda carry: jax.lax.fori_loop(0, steps, lambda _, c: step(c), carry))(carry)


def while_loop(step, carry, steps):
    import jax

    return jax.lax.while_loop(lambda carry: carry[2] < steps, step, carry)


@pytest.mark.skipif(BACKEND != "jax", reason="needs JAX")
@pytest.mark.parametrize("loop", [jit_in_jit, scan, fori_loop, while_loop])
@every_subject
def test_loops_of_jax(subject, loop):
    assert_same(many_steps(subject.fast(LR), loop), many_steps(subject.own(LR), python_loop))


@pytest.mark.skipif(BACKEND != "jax", reason="needs JAX")
@every_subject
def test_several_steps_per_execution(subject):
    """`fit` with all steps in one program, and with one step after the other."""
    states = []
    for make, together in ((subject.fast, 3), (subject.own, 1)):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(4, "tanh")]
        )
        model.compile(make(LR), "mse", steps_per_execution=together)
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(12, 3)), rng.normal(size=(12, 4))
        y[:4] *= 30  # so that the correction fires after the first batch
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        states.append(state_of(model.optimizer, model.trainable_variables))
    assert_same(*states)


# ------------------------------------------------------------ a subclass's `update_step`


def gentle(cls):
    """A subclass with a rate by shape, a variable that stays, and a changed gradient."""

    class Gentle(cls):
        def update_step(self, gradient, variable, learning_rate):
            if variable.name.startswith("twin"):  # TensorFlow adds ":0"
                return
            if len(variable.shape) == 1:
                learning_rate = learning_rate * 0.25
            if len(variable.shape) == 2 and variable.shape[0]:
                gradient = 2.0 * gradient
            super().update_step(gradient, variable, learning_rate)

    return Gentle


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cls", [AdamNorm, DiffGradNorm, Radam], ids=lambda cls: cls.__name__)
def test_update_step_of_a_subclass(cls, mode):
    """As several optimizers without such a subclass, each for some of the variables."""
    run = Run(gentle(cls)(LR), PARAMS, mode=mode)
    for grads in stream():
        run.step(grads)
    rates = {"vector": LR / 4, "medium": LR / 4, "matrix": LR, "large": LR, "scalar": LR}
    for name, rate in rates.items():
        alone = Run(cls(rate), {name: PARAMS[name]})
        for grads in stream():
            alone.step({name: grads[name] * (2 if name in ("matrix", "large") else 1)})
        assert_same([run.params[name]], [alone.params[name]])
    np.testing.assert_array_equal(run.params["twin"], np.float32(PARAMS["twin"]))


@pytest.mark.parametrize("mode", MODES)
def test_update_step_of_a_wrapped_subclass(mode):
    run = Run(AdaNorm(gentle(keras.optimizers.SGD)(LR, momentum=0.9)), PARAMS, mode=mode)
    expected = Run(AdaNorm(keras.optimizers.SGD(LR / 4, momentum=0.9)), PARAMS)
    for grads in stream():
        run.step(grads)
        expected.step(grads)
    assert_same([run.params["vector"]], [expected.params["vector"]])
    np.testing.assert_array_equal(run.params["twin"], np.float32(PARAMS["twin"]))


class Scaled(AdamNorm):
    """An algorithm with an attribute of its own that is set while it trains."""

    scale = 1.0

    def algorithm(self, step):
        step.gradient = step.gradient * self.scale
        super().algorithm(step)


def test_attribute_of_a_subclass_takes_effect_at_once():
    optimizer = Scaled(LR, gamma=0.0)
    run, plain = Run(optimizer, PARAMS), Run(AdamNorm(LR, gamma=0.0), PARAMS)
    for number, grads in enumerate(stream()):
        optimizer.scale = 0.5 + number
        run.step(grads)
        plain.step({name: (0.5 + number) * g for name, g in grads.items()})
    assert_same(list(run.params.values()), list(plain.params.values()))


# ------------------------------------------------------------ sizes at the thresholds as they are


def sizes_at_thresholds():
    from keras_adanorm.engine import norms

    sizes = {norms.SMALL - 1, norms.SMALL}
    if BACKEND == "torch":
        from keras_adanorm.engine import torch_groups, torch_kernels

        sizes |= {torch_kernels.SMALLEST - 1, torch_kernels.SMALLEST}
        sizes |= {torch_groups.SMALL, torch_groups.SMALL + 1, torch_groups.part_size() + 1}
    if BACKEND == "jax":
        from keras_adanorm.engine import stacks

        sizes |= {stacks.SMALL - 1, stacks.SMALL}
    return sorted(sizes)


@pytest.mark.parametrize(
    ("subject", "mode"),
    [(subject, "eager") for subject in SUBJECTS]
    + [(subject, mode) for subject in (SUBJECTS[1], SUBJECTS[-1]) for mode in COMPILED],
    ids=str,
)
def test_sizes_at_the_thresholds(subject, mode, monkeypatch):
    monkeypatch.undo()
    shapes = {f"v{size}": (size,) for size in sizes_at_thresholds()}
    shapes |= {f"w{i}": (64, 3) for i in range(3)}
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    states = []
    for make in (subject.fast, subject.own):
        run = Run(make(LR), params, mode=mode)
        for grads in stream(3, shapes=shapes):
            run.step(grads)
        states.append(state_of(run.optimizer, run.variables))
    assert_same(*states, roundings=60)
