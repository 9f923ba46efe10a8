"""What the README says of the results and of the cost is what the records give."""

import pathlib
import re
import statistics

import pytest

from examples.study import experiments, report

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_tables_are_what_the_records_give():
    assert report.main(["--check"]) == 0


@pytest.fixture(scope="module")
def digits():
    """The study at convergence on the digits."""
    return report.Report(report.RECORDS).convergence[0]


@pytest.fixture(scope="module")
def cifar10():
    return report.Report(report.RECORDS).convergence[1]


def section(title):
    """A section of the README, on one line."""
    (told,) = re.findall(rf"^## {re.escape(title)}\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)
    return " ".join(told.split())


def points(value):
    return f"{100 * value:+.2f}".replace("-", "\N{MINUS SIGN}")


def test_the_sentences_on_the_study_at_convergence_are_what_it_found(digits, cifar10):
    told, groups = section("Does it help?"), digits.groups()
    assert len(digits.records) == len(digits.planned) and digits.failed == 0
    assert "trained on scikit-learn's digits until the curves were flat" in told
    for one in groups["tuned"]:
        mean, low, high = map(points, one.together)
        name = one.variant if one.variant == "AdamNorm" else f"{one.variant}"
        assert f"{name} {mean} points ({low} to {high})" in told
    counts = {one.count for group in groups.values() for one in group}
    assert counts == {30} and "30 seeds" in told
    assert {one.verdict for group in groups.values() for one in group} == {"tie"}
    assert "none of the four variants could be told apart from its plain optimizer" in told
    factors = [digits.plan.moment_ratio(pair) for pair in experiments.PAIRS]
    assert f"{min(factors):.2f} to {max(factors):.2f} times" in told
    for name in ("longer", "held", "start"):
        most = max(abs(one.together.mean) for one in groups[name])
        assert f"{100 * most:.2f}" in told
    seen = [100 * one.detectable for one in groups["tuned"]]
    assert f"from {min(seen):.1f} to {max(seen):.1f} points on" in told
    done, planned = len(cifar10.records), len(cifar10.planned)
    assert f"{done} of the first {planned} runs" in told


def test_the_sentence_on_the_results_is_what_the_study_found():
    (told,) = re.findall(r"\*\*What to expect:\*\*(.*?)\n- ", README, flags=re.DOTALL)
    study = report.Report(report.RECORDS).study
    pairs = study.group("pairs")
    ahead = [pair for pair in pairs if pair.verdict == f"{pair.variant} ahead"]
    assert (len(ahead), len(pairs)) == (2, 4) and "two of the four variants" in told
    assert {f"{100 * statistics.mean(pair.differences):.1f}" for pair in ahead} == set(
        re.findall(r"by (\S+) points", told)
    )
    assert study.tuned().verdict == "tie" and "AdamNorm and Adam could not be told apart" in told
