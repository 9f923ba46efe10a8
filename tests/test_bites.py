"""What must change the result does, and what must not does not; and the tests would notice.

The second half puts one mistake at a time into the optimizers and checks that the comparison with
the NumPy reference then fails: a test that cannot fail shows nothing.
"""

import keras
import numpy as np
import pytest

from keras_adanorm import (
    AdaBeliefNorm,
    AdamNorm,
    DiffGrad,
    DiffGradNorm,
    RadamNorm,
    norm_correction,
)
from keras_adanorm.base import AdaptiveNormCorrection, AdaptiveOptimizer, NormCorrection
from keras_adanorm.engine import averages
from keras_adanorm.engine.step import Step, Update
from tests.support.optimizers import (
    BACKEND,
    MODES,
    NORM_CLASSES,
    Run,
    assert_bitwise_equal,
    assert_same_state,
    every_norm_class,
    every_pair,
    run_beside_reference,
    swinging_gradients,
)

SHAPES = {"w": (2, 3), "b": (3,)}
PARAMS = {name: np.full(shape, 0.5) for name, shape in SHAPES.items()}
# beta_2 = 0.8 takes Radam to its adaptive steps within a few.
ARGUMENTS = dict(learning_rate=0.01, beta_2=0.8, epsilon=1e-2, gamma=0.8)


def stream(factor, steps=5):
    """Gradients of one direction whose norm grows by a factor at every step."""
    random = np.random.default_rng(7)
    first = {name: random.standard_normal(shape) for name, shape in SHAPES.items()}
    return [{name: g * factor**t for name, g in first.items()} for t in range(steps)]


def run_through(optimizer, gradients):
    run = Run(optimizer, PARAMS)
    for grads in gradients:
        run.step(grads)
    return run


# --- what the correction does


@every_pair
def test_rising_gradients_are_not_corrected(norm_cls, plain_cls):
    rising = stream(2.0)
    plain = {name: value for name, value in ARGUMENTS.items() if name != "gamma"}
    assert_bitwise_equal(
        run_through(norm_cls(**ARGUMENTS), rising), run_through(plain_cls(**plain), rising)
    )


@every_norm_class
def test_shrinking_gradients_are_corrected(cls):
    shrinking = stream(0.1)
    corrected = run_through(cls(**ARGUMENTS), shrinking)
    plain = run_through(cls(**{**ARGUMENTS, "gamma": 0.0}), shrinking)
    for name in SHAPES:
        assert np.abs(corrected.m[name]).max() > 1.3 * np.abs(plain.m[name]).max()
        moved = np.abs(corrected.params[name] - plain.params[name])
        assert moved.max() > 1e-4


@every_norm_class
def test_the_first_step_is_not_corrected(cls):
    sizes = {"small": 1e-6, "middle": 1.0, "large": 1e6}
    runs = []
    for gamma in (0.8, 0.0):
        run = Run(cls(**{**ARGUMENTS, "gamma": gamma}), dict.fromkeys(sizes, np.ones(4)))
        run.step({name: np.full(4, size) for name, size in sizes.items()})
        runs.append(run)
    corrected, plain = runs
    assert_bitwise_equal(corrected, plain)
    for name, size in sizes.items():  # and e_1 is not corrected for bias
        np.testing.assert_allclose(corrected.e[name], 0.2 * 2 * size, rtol=1e-5)


@every_norm_class
def test_the_average_moves_at_every_step(cls):
    run = Run(cls(**ARGUMENTS), PARAMS)
    before = dict(run.e)
    for grads in swinging_gradients(SHAPES, 6):
        run.step(grads)
        for name in SHAPES:
            norm = np.linalg.norm(grads[name])
            np.testing.assert_allclose(run.e[name], 0.8 * before[name] + 0.2 * norm, rtol=1e-5)
            assert run.e[name] != before[name]
        before = dict(run.e)


@every_norm_class
def test_a_variable_does_not_see_the_gradient_of_another(cls):
    gradients = stream(0.5)
    others = [{"w": grads["w"], "b": 100 * grads["b"]} for grads in gradients]
    one, other = run_through(cls(**ARGUMENTS), gradients), run_through(cls(**ARGUMENTS), others)
    for kind, values in one.state.items():
        if values:
            np.testing.assert_array_equal(values["w"], other.state[kind]["w"])
            assert kind == "params" or not np.array_equal(values["b"], other.state[kind]["b"])


@pytest.mark.parametrize("moments", ["first", "second", "both"])
@pytest.mark.parametrize("cls", [AdamNorm, DiffGradNorm, RadamNorm])
def test_the_correction_reaches_the_moments_it_is_meant_for(cls, moments):
    arguments = {**ARGUMENTS, "corrected_moments": moments}
    corrected = run_through(cls(**arguments), stream(0.1, 2))
    plain = run_through(cls(**{**arguments, "gamma": 0.0}), stream(0.1, 2))
    for name in SHAPES:
        m_differs = not np.array_equal(corrected.m[name], plain.m[name])
        v_differs = not np.array_equal(corrected.v[name], plain.v[name])
        assert m_differs == (moments != "second")
        assert v_differs == (moments != "first")


@pytest.mark.parametrize("cls", [DiffGrad, DiffGradNorm])
def test_the_previous_gradient_is_a_copy_of_the_uncorrected_one(cls):
    run = Run(cls(0.01), PARAMS)
    for grads in stream(0.1, 3):
        tensors = [keras.ops.convert_to_tensor(grads[name], "float32") for name in SHAPES]
        run.apply(tensors)
        if BACKEND == "torch":  # where tensors can be written to
            for tensor in tensors:
                tensor.zero_()
        for name in SHAPES:
            np.testing.assert_array_equal(run.previous_gradient[name], np.float32(grads[name]))


@pytest.mark.skipif(BACKEND != "torch", reason="elsewhere tensors cannot be written to")
@every_norm_class
def test_the_gradients_of_the_caller_are_left_alone(cls):
    import torch

    run = Run(cls(**ARGUMENTS), PARAMS)
    for grads in stream(0.1, 3):
        tensors = [torch.tensor(grads[name], dtype=torch.float32) for name in SHAPES]
        run.apply(tensors)
        for name, tensor in zip(SHAPES, tensors, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), np.float32(grads[name]))


# --- the mistakes that the comparison with the reference finds


def disagrees_with_reference(cls):
    """Whether a step of an optimizer differs from that of the reference, in one mode or another."""
    gradients = swinging_gradients(SHAPES, 6)
    for mode in MODES:
        pairs = run_beside_reference(cls(**ARGUMENTS), PARAMS, gradients, mode=mode)
        for run, reference in pairs:
            try:
                assert_same_state(run, reference, atol=1e-5, rtol=1e-5)
            except AssertionError:
                return True
    return False


def average_is_not_carried(patch):
    correct = norm_correction.norm_ratio
    patch.setattr(norm_correction, "norm_ratio", lambda norm, e, *rest: correct(norm, 0 * e, *rest))


def average_is_corrected_for_bias(patch):
    correct = norm_correction.norm_ratio

    def corrected_for_bias(norm, e, gamma, *rest):
        return correct(norm, keras.ops.where(e == 0, norm, e), gamma, *rest)

    patch.setattr(norm_correction, "norm_ratio", corrected_for_bias)


def gamma_weighs_the_new_norm(patch):
    correct = norm_correction.norm_ratio
    patch.setattr(
        norm_correction,
        "norm_ratio",
        lambda norm, e, gamma, *rest: correct(norm, e, 1 - gamma, *rest),
    )


def every_gradient_is_corrected(patch):
    correct = norm_correction.norm_ratio

    def always(norm, e, *rest):
        _, e = correct(norm, e, *rest)
        return e / norm, e

    patch.setattr(norm_correction, "norm_ratio", always)


def norm_is_a_mean(patch):
    norms_of = averages.l2_norms
    patch.setattr(averages, "l2_norms", lambda *a: 0.5 * norms_of(*a))
    way = {"tensorflow": "tensorflow_kernels", "torch": "torch_groups", "jax": "one_program"}[
        BACKEND
    ]
    patch.setattr(f"keras_adanorm.engine.{way}.l2_norms", lambda *a: 0.5 * norms_of(*a))


def average_is_global(patch):
    correct = norm_correction.norm_ratio

    def of_the_first(norm, e, *rest):
        return correct(norm, keras.ops.zeros_like(e) + e[0], *rest)

    patch.setattr(norm_correction, "norm_ratio", of_the_first)


def first_step_is_corrected(patch):
    build = NormCorrection.build

    def build_with_large_averages(self, variables):
        build(self, variables)
        self.norm_vector.assign(keras.ops.full((len(variables),), 100.0))

    patch.setattr(NormCorrection, "build", build_with_large_averages)


def correction_reaches_the_wrong_moment(patch):
    gradients = AdaptiveNormCorrection.moment_gradients
    patch.setattr(AdaptiveNormCorrection, "moment_gradients", lambda *a: gradients(*a)[::-1])


def correction_reaches_both_moments(patch):
    gradients = AdaptiveNormCorrection.moment_gradients
    patch.setattr(AdaptiveNormCorrection, "moment_gradients", lambda *a: gradients(*a)[:1] * 2)


def no_moment_is_corrected(patch):
    gradients = AdaptiveNormCorrection.moment_gradients
    patch.setattr(AdaptiveNormCorrection, "moment_gradients", lambda *a: gradients(*a)[1:] * 2)


def patch_reading(patch, name, value_of):
    """Has all kinds of `Step` read something else for a state."""
    for step_class in (Step, *Step.__subclasses__()):
        read = step_class.read

        def read_wrongly(self, state, read=read):
            return value_of(self, read) if state == name else read(self, state)

        patch.setattr(step_class, "read", read_wrongly)


def previous_gradient_is_aliased(patch):
    patch_reading(patch, "previous_gradient", lambda step, read: step.gradient)


def previous_gradient_is_the_momentum(patch):
    patch_reading(patch, "previous_gradient", lambda step, read: read(step, "momentum"))


def bias_is_not_corrected(patch):
    patch.setattr(Update, "bias_correction", lambda self, decay, dtype: 1.0)


def epsilon_stands_in_the_corrected_root(patch):
    denominator = AdaptiveOptimizer.denominator
    patch.setattr(
        AdaptiveOptimizer,
        "denominator",
        lambda self, step, v, scale=1.0: denominator(self, step, v),
    )


MISTAKES_OF_ALL = (
    average_is_not_carried,
    average_is_corrected_for_bias,
    average_is_global,
    first_step_is_corrected,
    gamma_weighs_the_new_norm,
    every_gradient_is_corrected,
    norm_is_a_mean,
    correction_reaches_the_wrong_moment,
    correction_reaches_both_moments,
    no_moment_is_corrected,
    bias_is_not_corrected,
)
MISTAKES_OF_ONE = (
    (DiffGradNorm, previous_gradient_is_aliased),
    (DiffGradNorm, previous_gradient_is_the_momentum),
    (AdamNorm, epsilon_stands_in_the_corrected_root),
    (AdaBeliefNorm, epsilon_stands_in_the_corrected_root),
)
# Each mistake is made in one class; which of the four it is makes no difference to the code.
MISTAKES = [
    (NORM_CLASSES[i % len(NORM_CLASSES)], mistake) for i, mistake in enumerate(MISTAKES_OF_ALL)
] + list(MISTAKES_OF_ONE)


@every_norm_class
def test_the_reference_agrees_with_the_code_as_it_is(cls):
    assert not disagrees_with_reference(cls)


@pytest.mark.parametrize(("cls", "mistake"), MISTAKES, ids=lambda value: value.__name__)
def test_the_reference_finds(cls, mistake, monkeypatch):
    mistake(monkeypatch)
    assert disagrees_with_reference(cls)
