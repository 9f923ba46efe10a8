"""The NumPy reference against hand-computed values, exact arithmetic and the golden figures."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from tests.support.golden_data import (
    FLOAT32_TOLERANCE,
    FLOAT64_TOLERANCE,
    GOLDEN_ALGORITHMS,
    STEPS,
    TENSORS,
    all_goldens,
    official_arguments,
)
from tests.support.reference import ALGORITHMS, Reference, norm_correction, one_minus_power, rho

NORM_ALGORITHMS = tuple(name for name in ALGORITHMS if name.endswith("norm"))
GOLDEN_NORM_ALGORITHMS = tuple(name for name in GOLDEN_ALGORITHMS if name.endswith("norm"))
GOLDENS = list(all_goldens())

every_golden = pytest.mark.parametrize("golden", GOLDENS, ids=repr)
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
every_norm_algorithm = pytest.mark.parametrize("algorithm", NORM_ALGORITHMS)


def run(golden, reference, before_step=lambda reference: None):
    """Steps through a golden task. Returns dicts of weights (31 rows), e and fired (30 rows)."""
    params = {name: [value] for name, value in reference.params.items()}
    e = {name: [] for name in reference.params}
    fired = {name: [] for name in reference.params}
    for t in range(1, STEPS + 1):
        before_step(reference)
        reference.step(golden.gradients(t, reference.params))
        for name in reference.params:
            params[name].append(reference.params[name])
            e[name].append(reference.e[name])
            fired[name].append(reference.fired[name])
    return params, e, fired


def reference_for(golden, algorithm, **arguments):
    return Reference(algorithm, golden.initial, **{**golden.hyperparameters, **arguments})


def assert_follows(actual, expected, tolerance=FLOAT64_TOLERANCE):
    assert set(actual) == set(expected) == set(TENSORS)
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=0, atol=tolerance)


def farthest(actual, expected):
    return max(np.abs(np.array(actual[name]) - expected[name]).max() for name in expected)


# --- golden figures


@every_golden
@pytest.mark.parametrize("algorithm", GOLDEN_ALGORITHMS)
def test_paper(golden, algorithm):
    params, e, fired = run(golden, reference_for(golden, algorithm))
    assert_follows(params, golden.trajectory("paper", algorithm))
    assert_follows(e, golden.e(algorithm))
    for name in TENSORS:
        np.testing.assert_array_equal(fired[name], golden.fired(algorithm)[name])


@pytest.mark.parametrize("algorithm", GOLDEN_NORM_ALGORITHMS)
@pytest.mark.parametrize("golden", [g for g in GOLDENS if g.task == "fixed"], ids=repr)
def test_fixed_gradients_are_corrected_at_some_steps_only(golden, algorithm):
    for fired in golden.fired(algorithm).values():
        assert 0 < fired.sum() < STEPS


@every_golden
@pytest.mark.parametrize(
    "algorithm", [a for a in GOLDEN_ALGORITHMS if not a.startswith("diffgrad")]
)
def test_released_code(golden, algorithm):
    beta_2, epsilon = golden.hyperparameters["beta_2"], golden.hyperparameters["epsilon"]
    arguments = official_arguments(algorithm, beta_2, epsilon)
    params, _, _ = run(golden, reference_for(golden, algorithm, **arguments))
    assert_follows(params, golden.trajectory("official", algorithm))


@every_golden
@pytest.mark.parametrize("algorithm", ["diffgrad", "diffgradnorm"])
def test_released_diffgrad_adds_epsilon_before_the_bias_correction(golden, algorithm):
    def rescale_epsilon(reference):
        correction = one_minus_power(reference.beta_2, reference.t + 1)
        reference.epsilon = golden.hyperparameters["epsilon"] / math.sqrt(correction)

    params, _, _ = run(golden, reference_for(golden, algorithm), before_step=rescale_epsilon)
    assert_follows(params, golden.trajectory("official", algorithm))


@every_golden
@pytest.mark.parametrize("algorithm", ["adabelief", "adabeliefnorm"])
def test_epsilon_kept_inside_the_second_moment(golden, algorithm):
    beta_2, epsilon = golden.hyperparameters["beta_2"], golden.hyperparameters["epsilon"]
    reference = reference_for(golden, algorithm, epsilon_root=epsilon / (1 - beta_2))
    params, _, _ = run(golden, reference)
    assert_follows(params, golden.trajectory("paper_belief_inner_eps", algorithm))


@every_golden
@pytest.mark.parametrize("algorithm", ["radam", "radamnorm"])
def test_released_radam_casts_to_float32(golden, algorithm):
    params, _, _ = run(golden, reference_for(golden, algorithm, gamma=0.0))
    shipped = golden.trajectory("official_fp32cast", algorithm)
    assert_follows(params, shipped, FLOAT32_TOLERANCE)
    assert farthest(params, shipped) > FLOAT64_TOLERANCE


@every_golden
@pytest.mark.parametrize("algorithm", ["radam", "radamnorm"])
def test_radam_is_not_as_printed(golden, algorithm):
    params, _, _ = run(golden, reference_for(golden, algorithm))
    literal = golden.trajectory("paper_radam_literal", algorithm)
    assert farthest(params, literal) > 1e-4


def test_logreg_gradients_are_those_of_the_cross_entropy():
    golden = next(g for g in GOLDENS if g.task == "logreg")
    batch = golden._inputs["batches"][4]
    x, y = golden._inputs["X"][batch], golden._inputs["y"][batch]

    def loss(params):
        logits = x @ params["a"] + params["b"]
        return np.mean(np.logaddexp(0, logits) - y * logits)

    params, h = golden.initial, 1e-6
    gradients = golden.gradients(5, params)
    for name in TENSORS:
        assert gradients[name].shape == params[name].shape
        for index in np.ndindex(params[name].shape):
            higher, lower = ({k: v.copy() for k, v in params.items()} for _ in range(2))
            higher[name][index] += h
            lower[name][index] -= h
            slope = (loss(higher) - loss(lower)) / (2 * h)
            assert gradients[name][index] == pytest.approx(slope, abs=1e-8)


# --- values worked out by hand

# One weight, 10 at the start, learning rate 1, beta_1 = gamma = 1/2, beta_2 = 3/4, epsilon 1.
# The gradients are 4 and 1, so e_1 = 2 (no correction) and e_2 = 3/2 > 1, s_2 = 3/2.
BY_HAND = dict(learning_rate=1.0, beta_1=0.5, beta_2=0.75, epsilon=1.0, gamma=0.5)
BIAS_1 = 3 / 4  # 1 - beta_1^2
BIAS_2 = 7 / 16  # 1 - beta_2^2
XI_1 = 1 / (1 + math.exp(-4))  # |4 - 0|
XI_2 = 1 / (1 + math.exp(-3))  # |1 - 4|: the uncorrected previous gradient


@pytest.mark.parametrize(
    ("algorithm", "corrected_moments", "step_1", "m", "v", "step_2"),
    [
        ("adam", "first", 4 / 5, 1.5, 3.25, 2 / (math.sqrt(3.25 / BIAS_2) + 1)),
        ("adamnorm", "first", 4 / 5, 1.75, 3.25, 7 / 3 / (math.sqrt(3.25 / BIAS_2) + 1)),
        ("adamnorm", "second", 4 / 5, 1.5, 3.5625, 2 / (math.sqrt(3.5625 / BIAS_2) + 1)),
        ("adamnorm", "both", 4 / 5, 1.75, 3.5625, 7 / 3 / (math.sqrt(3.5625 / BIAS_2) + 1)),
        (
            "diffgrad", "first",
            XI_1 * 4 / 5, 1.5, 3.25, XI_2 * 2 / (math.sqrt(3.25 / BIAS_2) + 1),
        ),
        (
            "diffgradnorm", "first",
            XI_1 * 4 / 5, 1.75, 3.25, XI_2 * 7 / 3 / (math.sqrt(3.25 / BIAS_2) + 1),
        ),
        ("radam", "first", 4, 1.5, 3.25, 2),  # rho_1 = 1, rho_2 = 13/7: momentum only
        ("radamnorm", "first", 4, 1.75, 3.25, 7 / 3),
        ("radamnorm", "both", 4, 1.75, 3.5625, 7 / 3),
        # m_1 = 2, v_1 = (4 - 2)^2 / 4, so the first denominator is sqrt(4) + 1
        ("adabelief", "first", 4 / 3, 1.5, 0.8125, 2 / (math.sqrt(0.8125 / BIAS_2) + 1)),
        (  # v_2 = 3/4 + (g - m)^2 / 4 with g - m = -3/4
            "adabeliefnorm", "first",
            4 / 3, 1.75, 0.890625, 7 / 3 / (math.sqrt(0.890625 / BIAS_2) + 1),
        ),
        (  # s - m = 3/2 - 3/2
            "adabeliefnorm", "second",
            4 / 3, 1.5, 0.75, 2 / (math.sqrt(0.75 / BIAS_2) + 1),
        ),
        (  # s - m = 3/2 - 7/4
            "adabeliefnorm", "both",
            4 / 3, 1.75, 0.765625, 7 / 3 / (math.sqrt(0.765625 / BIAS_2) + 1),
        ),
    ],
)  # fmt: skip
def test_two_steps_by_hand(algorithm, corrected_moments, step_1, m, v, step_2):
    reference = Reference(
        algorithm, {"w": np.array(10.0)}, **BY_HAND, corrected_moments=corrected_moments
    )
    has_norm = algorithm.endswith("norm")

    reference.step({"w": np.array(4.0)})
    assert reference.params["w"] == pytest.approx(10 - step_1, abs=1e-15)
    assert reference.e["w"] == (2.0 if has_norm else 0.0)
    assert reference.fired["w"] is False

    reference.step({"w": np.array(1.0)})
    assert reference.params["w"] == pytest.approx(10 - step_1 - step_2, abs=1e-14)
    assert reference.m["w"] == m
    assert reference.v["w"] == v
    assert reference.e["w"] == (1.5 if has_norm else 0.0)
    assert reference.fired["w"] is has_norm
    assert reference.previous_gradient == ({"w": 1.0} if "diffgrad" in algorithm else {})
    assert reference.t == 2


@pytest.mark.parametrize("algorithm", ["radam", "radamnorm"])
@pytest.mark.parametrize("epsilon_root", [0.0, 9.0])
def test_rectified_step_by_hand(algorithm, epsilon_root):
    """With beta_2 = 3/4 rho_inf is 7 and rho_8 = 5.22 the first to reach 5 (rho_7 = 4.84)."""
    reference = Reference(algorithm, {"w": np.array(10.0)}, **BY_HAND, epsilon_root=epsilon_root)
    for _ in range(7):
        reference.step({"w": np.array(4.0)})
    # equal gradients: bias-corrected, m is 4 at every step
    assert reference.params["w"] == pytest.approx(10 - 7 * 4, abs=1e-13)

    reference.step({"w": np.array(4.0)})
    power = Fraction(3, 4) ** 8
    rho_8 = 7 - 16 * power / (1 - power)
    rectification = (1 - power) * (rho_8 - 4) * (rho_8 - 2) * 7 / (3 * 5 * rho_8)
    denominator = math.sqrt(16 * (1 - power) + Fraction(epsilon_root)) + 1
    expected = 10 - 7 * 4 - math.sqrt(rectification) * 4 / denominator
    assert reference.params["w"] == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("algorithm", ["adam", "diffgrad", "adabelief"])
def test_epsilon_root_is_added_after_the_bias_correction(algorithm):
    reference = Reference(algorithm, {"w": np.array(10.0)}, **BY_HAND, epsilon_root=9.0)
    reference.step({"w": np.array(4.0)})
    v_hat = {"adam": 16, "diffgrad": 16, "adabelief": 4}[algorithm]
    xi = {"adam": 1, "diffgrad": XI_1, "adabelief": 1}[algorithm]
    assert reference.params["w"] == pytest.approx(10 - xi * 4 / (math.sqrt(v_hat + 9) + 1))


# --- the correction


def test_correction_takes_the_norm_of_the_whole_tensor():
    g = np.array([[3.0, 0.0], [0.0, -4.0]])
    s, e, fired = norm_correction(g, e=15.0, gamma=0.5)
    assert (e, fired) == (10.0, True)
    np.testing.assert_allclose(s, 2 * g, rtol=1e-15)


def test_no_correction_of_a_gradient_as_large_as_its_history():
    g = np.array([3.0, 4.0])
    for history in (0.0, 5.0):
        s, _, fired = norm_correction(g, e=history, gamma=0.5)
        assert s is g and fired is False


@pytest.mark.parametrize(("bound", "ratio"), [(None, 10.0), (20.0, 10.0), (3.0, 3.0), (1.0, 1.0)])
def test_max_correction_bounds_the_ratio(bound, ratio):
    g = np.array([3.0, 4.0])
    s, e, fired = norm_correction(g, e=95.0, gamma=0.5, max_correction=bound)
    assert (e, fired) == (50.0, True)
    np.testing.assert_allclose(s, ratio * g, rtol=1e-15)


def test_zero_gradient_stays_zero_while_the_history_decays():
    s, e, fired = norm_correction(np.zeros(3), e=4.0, gamma=0.75)
    assert (e, fired) == (3.0, False)
    np.testing.assert_array_equal(s, np.zeros(3))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_gradient_without_a_finite_norm_leaves_the_history_alone(value):
    g = np.array([1.0, value])
    s, e, fired = norm_correction(g, e=4.0, gamma=0.75)
    assert s is g and (e, fired) == (4.0, False)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200, 1e307])
def test_norm_of_gradients_whose_squares_leave_the_range(scale):
    _, e, _ = norm_correction(np.array([3.0, 4.0]) * scale, e=0.0, gamma=0.0)
    assert e == pytest.approx(5 * scale, rel=1e-3 if scale < 1e-300 else 1e-15)


def test_corrected_gradient_is_finite_where_the_ratio_is_not():
    g = np.array([3.0, 0.0]) * 1e-310
    s, e, fired = norm_correction(g, e=1e10, gamma=0.5)
    assert fired and e == 5e9
    np.testing.assert_allclose(s, [5e9, 0.0], rtol=1e-12)


# --- the optimizers around it


@every_golden
@every_norm_algorithm
def test_gamma_zero_is_the_plain_algorithm_bit_for_bit(golden, algorithm):
    with_norm, _, fired = run(golden, reference_for(golden, algorithm, gamma=0.0))
    plain, _, _ = run(golden, reference_for(golden, algorithm.removesuffix("norm")))
    for name in TENSORS:
        np.testing.assert_array_equal(with_norm[name], plain[name])
        assert not any(fired[name])


@every_algorithm
def test_a_tensor_without_a_gradient_is_left_alone_and_time_goes_on(algorithm):
    start = {"a": np.array([1.0, 2.0]), "b": np.array([3.0])}
    gradients = {"a": np.array([0.5, -1.0]), "b": np.array([2.0])}
    reference = Reference(algorithm, start)
    reference.step(gradients)
    states = (reference.params, reference.m, reference.v, reference.e, reference.fired)
    before = [state["a"] for state in states]
    moved = reference.params["b"]

    reference.step({"b": gradients["b"]})
    reference.step({"a": None, "b": gradients["b"]})
    for state, value in zip(states, before, strict=True):
        np.testing.assert_array_equal(state["a"], value)
    assert reference.params["b"] != moved
    assert reference.t == 3

    # the next gradient of "a" is bias-corrected for the fourth step, as that of "b" is
    reference.step(gradients)
    beside = Reference(algorithm, {"a": start["a"]})
    beside.step({"a": gradients["a"]})
    beside.t = 3
    beside.step({"a": gradients["a"]})
    np.testing.assert_array_equal(reference.params["a"], beside.params["a"])


@every_algorithm
def test_each_tensor_has_a_history_of_its_own(algorithm):
    golden = GOLDENS[0]
    together, _, _ = run(golden, reference_for(golden, algorithm))
    alone = Reference(algorithm, {"b": golden.initial["b"]}, **golden.hyperparameters)
    alone_params, _, _ = run(golden, alone)
    np.testing.assert_array_equal(together["b"], alone_params["b"])


@every_algorithm
def test_caller_keeps_its_arrays(algorithm):
    start, gradient = np.array([1.0, 2.0]), np.array([4.0, 4.0])
    reference = Reference(algorithm, {"w": start})
    reference.step({"w": gradient})
    kept = reference.params["w"]
    copy = kept.copy()
    gradient[:] = 1.0  # reusing the buffer must not rewrite the previous gradient
    reference.step({"w": gradient})

    np.testing.assert_array_equal(start, [1.0, 2.0])
    np.testing.assert_array_equal(kept, copy)
    fresh = Reference(algorithm, {"w": start})
    fresh.step({"w": np.array([4.0, 4.0])})
    fresh.step({"w": np.array([1.0, 1.0])})
    np.testing.assert_array_equal(reference.params["w"], fresh.params["w"])


@every_algorithm
def test_arithmetic_is_in_float64_whatever_comes_in(algorithm):
    start, gradients = np.array([1.0, 2.0]), [np.array([4.0, 4.0]), np.array([0.5, 1.0])]
    wide = Reference(algorithm, {"w": start})
    narrow = Reference(algorithm, {"w": start.astype("float32")})
    for gradient in gradients:
        wide.step({"w": gradient})
        narrow.step({"w": gradient.astype("float16")})
    np.testing.assert_array_equal(narrow.params["w"], wide.params["w"])


@every_algorithm
def test_a_gradient_that_is_not_a_number_spoils_its_own_coordinate_only(algorithm, recwarn):
    reference = Reference(algorithm, {"w": np.array([1.0, 2.0])})
    for gradient in ([4.0, 4.0], [np.inf, 1.0], [np.nan, 1.0], [0.0, 0.1]):
        reference.step({"w": np.array(gradient)})
    assert np.isnan(reference.params["w"][0])
    assert np.isfinite(reference.params["w"][1])
    assert reference.fired["w"] is algorithm.endswith("norm")
    assert math.isfinite(reference.e["w"])
    assert not recwarn.list


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="`algorithm` must be one of .* Received: 'sgdnorm'"):
        Reference("sgdnorm", {})
    with pytest.raises(ValueError, match="`corrected_moments` must be .* Received: 'none'"):
        Reference("adamnorm", {}, corrected_moments="none")


# --- rho_t and 1 - beta^t in exact arithmetic

BETAS = (0.9, 0.99, 0.999, 0.9999, 0.99999)


def rho_by_summing(t, beta):
    """`rho_t = 1 + 2 sum(k beta^k) / sum(beta^k)`, k = 0..t-1: all terms positive, none cancel.

    The average of the squares weights the gradient of k steps ago with beta^k, and rho_t is one
    plus twice the mean of k. The sums are built by doubling the number of terms, from the
    leading binary digit of t on. Exact for a Fraction.
    """
    terms, weights, ages, power = 0, 0 * beta, 0 * beta, 1 + 0 * beta
    for digit in f"{t:b}":
        ages += power * (ages + terms * weights)
        weights += power * weights
        terms, power = 2 * terms, power * power
        if digit == "1":
            ages, weights = ages + terms * power, weights + power
            terms, power = terms + 1, power * beta
    return 1 + 2 * ages / weights


def test_rho_by_summing_is_the_plain_sum():
    beta = Fraction(0.99)
    for t in range(1, 20):
        weights = [beta**k for k in range(t)]
        plain = 1 + 2 * sum(k * weight for k, weight in enumerate(weights)) / sum(weights)
        assert rho_by_summing(t, beta) == plain


@pytest.mark.parametrize("beta_2", [0.0, 0.5, *BETAS, 1 - 1e-12])
def test_rho_at_the_first_steps_is_exact(beta_2):
    for t in range(1, 65):
        assert rho(t, beta_2) == float(rho_by_summing(t, Fraction(beta_2)))


@pytest.mark.parametrize("beta_2", BETAS)
def test_rho_at_any_step(beta_2):
    powers = [2**k for k in range(6, 32)]
    steps = sorted({*range(65, 2000, 37), *(p - 1 for p in powers), *powers, 2**31 - 1})
    with localcontext() as context:
        context.prec = 80
        expected = [float(rho_by_summing(t, Decimal(beta_2))) for t in steps]
    assert [rho(t, beta_2) for t in steps] == expected
    assert rho(2**31 - 1, beta_2) == pytest.approx((1 + beta_2) / (1 - beta_2), rel=1e-15)


@pytest.mark.parametrize("beta_2", BETAS)
def test_rho_rises_and_passes_five_at_the_sixth_step(beta_2):
    assert rho(1, beta_2) == 1.0
    values = [rho(t, beta_2) for t in range(1, 200)]
    assert all(earlier < later for earlier, later in zip(values, values[1:], strict=False))
    first = next(t for t, value in enumerate(values, start=1) if value >= 5)
    assert first == 6


@pytest.mark.parametrize("beta", [0.0, 0.5, *BETAS, 1 - 1e-12])
def test_one_minus_power_is_exact(beta):
    for t in range(1, 65):
        assert one_minus_power(beta, t) == float(1 - Fraction(beta) ** t)
    assert one_minus_power(beta, 2**62) == 1.0
