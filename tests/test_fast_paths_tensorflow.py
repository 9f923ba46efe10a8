"""What TensorFlow lets a user put around an update gives the same as eager steps by Keras' own way.

Functions in functions, branches, loops, several steps in one program, TensorFlow's own variables.
"""

import functools

import keras
import numpy as np
import pytest

from keras_adanorm import AdamNorm
from tests.support.fast_paths import AVERAGED as NAMES
from tests.support.fast_paths import EVERYTHING, SHAPES, SUBJECTS, state_of, use_small_thresholds
from tests.support.optimizers import BACKEND, swinging_gradients
from tests.test_fast_paths import PARAMS, assert_same

if BACKEND != "tensorflow":
    pytest.skip("a matter of TensorFlow", allow_module_level=True)

import tensorflow as tf

LR = 0.05
STEPS = 4
SETTINGS = {
    "plain": {},
    "everything": EVERYTHING,
    "accumulation": dict(gradient_accumulation_steps=2, weight_decay=0.1),
}

every_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=repr)
every_setting = pytest.mark.parametrize("setting", SETTINGS)

pytestmark = pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")


@pytest.fixture(autouse=True)
def small_thresholds(monkeypatch):
    use_small_thresholds(monkeypatch)


def gradients(steps=STEPS):
    stream = swinging_gradients({name: SHAPES[name] for name in NAMES}, steps)
    return [[tf.constant(grads[name], tf.float32) for name in NAMES] for grads in stream]


def keras_variables():
    return [keras.Variable(PARAMS[name], dtype="float32", name=name) for name in NAMES]


def bare_variables():
    return [tf.Variable(PARAMS[name], dtype=tf.float32, name=name) for name in NAMES]


@functools.cache
def expected(subject, setting, numbers=tuple(range(STEPS))):
    """The state after eager steps by Keras' own way, those with these numbers."""
    optimizer, variables = subject.own(LR, **SETTINGS[setting]), keras_variables()
    optimizer.build(variables)
    stream = gradients()
    for number in numbers:
        optimizer.apply(stream[number], variables)
    return state_of(optimizer, variables)


# ------------------------------------------------------------ around one step


def nested(apply):
    inner = tf.function(apply)
    outer = tf.function(lambda grads: inner(grads))
    for grads in gradients():
        outer(grads)


def branch(apply):
    """A step that is skipped where a condition says so, as in loss scaling by hand."""

    @tf.function
    def step(grads, is_taken):
        def take():
            apply(grads)
            return True

        return tf.cond(is_taken, take, lambda: False)

    for number, grads in enumerate(gradients()):
        step(grads, tf.constant(number % 2 == 1))


def nested_branch(apply):
    """A function called in a branch of another function, which AutoGraph makes of `if`."""
    inner = tf.function(apply)

    @tf.function
    def step(grads, is_taken):
        if is_taken:
            inner(grads)

    for number, grads in enumerate(gradients()):
        step(grads, tf.constant(number % 2 == 1))


def loop(apply, jit_compile=None):
    stacked = [tf.stack(of_one) for of_one in zip(*gradients(), strict=True)]

    @tf.function(jit_compile=jit_compile)
    def train():
        def body(i):
            apply([tf.ensure_shape(g[i], g.shape[1:]) for g in stacked])
            return [i + 1]

        tf.while_loop(lambda i: i < STEPS, body, [tf.constant(0)])

    train()


def compiled_loop(apply):
    loop(apply, jit_compile=True)


def unknown_shapes(apply):
    """Gradients of which a graph does not know the shapes."""
    signature = [tf.TensorSpec(None, tf.float32)] * len(NAMES)
    step = tf.function(lambda *grads: apply(list(grads)), input_signature=signature)
    for grads in gradients():
        step(*grads)


def variables_in_a_graph(apply):
    given = [tf.Variable(g) for g in gradients()[0]]
    step = tf.function(lambda: apply(given))
    for grads in gradients():
        for variable, gradient in zip(given, grads, strict=True):
            variable.assign(gradient)
        step()
    for variable, gradient in zip(given, gradients()[-1], strict=True):
        np.testing.assert_array_equal(variable.numpy(), gradient.numpy())


CONSTRUCTS = {
    function.__name__: function
    for function in (
        nested,
        branch,
        nested_branch,
        loop,
        compiled_loop,
        unknown_shapes,
        variables_in_a_graph,
    )
}
TAKEN = {branch: (1, 3), nested_branch: (1, 3)}


def run_inside(construct, optimizer, variables):
    optimizer.build(variables)  # as Keras wants it, outside of functions that record
    construct(lambda grads: optimizer.apply(grads, variables))
    return state_of(optimizer, variables)


@pytest.mark.parametrize("construct", CONSTRUCTS)
@every_subject
def test_around_a_step(subject, construct):
    construct = CONSTRUCTS[construct]
    state = run_inside(construct, subject.fast(LR), keras_variables())
    assert_same(state, expected(subject, "plain", TAKEN.get(construct, tuple(range(STEPS)))))


@pytest.mark.parametrize("construct", ["nested", "branch", "loop"])
@pytest.mark.parametrize("setting", ["everything", "accumulation"])
@pytest.mark.parametrize("subject", [SUBJECTS[0], SUBJECTS[-1]], ids=repr)
def test_around_a_step_with_settings(subject, setting, construct):
    construct = CONSTRUCTS[construct]
    state = run_inside(construct, subject.fast(LR, **SETTINGS[setting]), keras_variables())
    assert_same(state, expected(subject, setting, TAKEN.get(construct, tuple(range(STEPS)))))


@pytest.mark.parametrize("construct", ["nested", "branch", "loop"])
def test_around_a_step_as_with_adam(construct):
    """Without the correction, and with Keras' epsilon, the numbers are Adam's."""
    ours, adam = (
        run_inside(CONSTRUCTS[construct], optimizer, keras_variables())
        for optimizer in (
            AdamNorm(LR, gamma=0.0, epsilon_hat=True),
            keras.optimizers.Adam(LR, epsilon=1e-8),
        )
    )
    for weight, of_adam in zip(ours[: len(NAMES)], adam[: len(NAMES)], strict=True):
        # In float32 Adam's `1 - beta_2 ** t` is off by 6e-5 of itself in the first steps.
        np.testing.assert_allclose(weight, of_adam, rtol=0, atol=1e-4 * LR)


# ------------------------------------------------------------ variables of TensorFlow's own


@every_setting
@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("subject", [SUBJECTS[0], SUBJECTS[-1]], ids=repr)
def test_variables_without_keras(subject, setting, mode):
    optimizer, variables = subject.fast(LR, **SETTINGS[setting]), bare_variables()
    optimizer.build(variables)
    apply = lambda grads: optimizer.apply(grads, variables)  # noqa: E731
    step = tf.function(apply) if mode == "graph" else apply
    for grads in gradients():
        step(grads)
    assert_same(state_of(optimizer, variables), expected(subject, setting))


# ------------------------------------------------------------ `fit`


def fit(optimizer, **compile_arguments):
    """A model after an epoch of six batches with swinging targets, and its optimizer's state."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(units, "tanh") for units in (5, 4)] + [keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(optimizer, "mse", **{"jit_compile": False} | compile_arguments)
    random = np.random.default_rng(0)
    x = random.normal(size=(24, 3)).astype("float32")
    y = np.repeat([1.0, 9.0, 0.1, 0.01, 5.0, 0.1], 4).astype("float32")[:, None]
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    return state_of(optimizer, model.trainable_variables)


@every_setting
@every_subject
def test_several_steps_in_one_program(subject, setting):
    state = fit(subject.fast(LR / 50, **SETTINGS[setting]), steps_per_execution=3)
    own = fit(subject.own(LR / 50, **SETTINGS[setting]), run_eagerly=True)
    assert_same(state, own, roundings=500)


def test_several_steps_in_one_program_for_xla():
    compiled = dict(steps_per_execution=3, jit_compile=True)
    state = fit(AdamNorm(LR / 50, **EVERYTHING), **compiled)
    assert_same(state, fit(AdamNorm(LR / 50, **EVERYTHING)), roundings=500)
