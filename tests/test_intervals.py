"""What few runs allow to say: intervals, verdicts, and the differences that can be seen."""

import numpy as np
import pytest

from examples.study import intervals

IMAGE = 1 / 360


def test_interval_is_that_of_students_t():
    # Differences 1, 2, 3: mean 2, standard error 1/sqrt(3). With four intervals together at 95 %
    # each one is at 98.75 %, where t with 2 degrees of freedom is 8.8602 (from its closed form).
    p = 0.0125
    t = 2 * (0.5 - p / 2) * np.sqrt(2 / (4 * (p / 2) * (1 - p / 2)))
    mean, low, high = intervals.paired([1, 1, 1], [2, 3, 4], comparisons=4)
    assert mean == 2
    assert np.allclose([low, high], [2 - t / np.sqrt(3), 2 + t / np.sqrt(3)], rtol=1e-6)


def test_equal_differences_of_a_few_images_prove_nothing():
    plain = np.array([0.90, 0.91, 0.92])
    _, low, high = intervals.paired(plain, plain + 2 * IMAGE, 4, resolution=IMAGE)
    assert low < 0 < high


def test_one_seed_tells_nothing():
    found = intervals.paired([0.5], [0.9])
    assert found[1:] == (-np.inf, np.inf)
    assert intervals.verdict("Adam", "AdamNorm", found) == "one seed tells nothing"
    assert intervals.detectable([0.4]) == np.inf


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.1, 0.2, "B ahead"), (-0.2, -0.1, "A ahead"), (-0.1, 0.1, "tie"), (0.0, 0.1, "tie")],
)
def test_verdict(low, high, said):
    assert intervals.verdict("A", "B", intervals.Interval(0.0, low, high)) == said


def share_that_leaves_out_zero(true_difference, seeds, comparisons, studies=2000):
    """Of simulated studies whose runs scatter by 1 in each arm, with luck that both share."""
    random = np.random.default_rng(0)
    luck = random.normal(scale=3, size=(studies, seeds))
    plain, variant = luck + random.normal(size=(2, studies, seeds))
    found = [
        intervals.paired(one, other + true_difference, comparisons)
        for one, other in zip(plain, variant, strict=True)
    ]
    return np.mean([intervals.verdict("A", "B", one) != "tie" for one in found])


@pytest.mark.parametrize("comparisons", [1, 5])
def test_equal_arms_are_told_apart_as_often_as_promised(comparisons):
    promised = 0.05 / comparisons
    found = share_that_leaves_out_zero(0.0, 5, comparisons)
    assert abs(found - promised) < 3 * (promised * (1 - promised) / 2000) ** 0.5


def test_detectable_difference_is_found_four_times_in_five():
    # The differences scatter by sqrt(2), exactly so in this sample.
    sample = np.sqrt(2) * np.array([-1, -1, 0, 1, 1])
    difference = intervals.detectable(sample, comparisons=5)
    assert abs(share_that_leaves_out_zero(difference, 5, 5) - 0.8) < 3 * (0.16 / 2000) ** 0.5


def test_detectable_difference_of_a_textbook():
    # Five pairs see 1.68 standard deviations with 80 %, ten 1.00: tables of the paired t test.
    for count, deviations in ((5, 1.68), (10, 0.996)):
        values = np.arange(count)
        found = intervals.detectable(values) / np.std(values, ddof=1)
        assert found == pytest.approx(deviations, abs=0.005)
