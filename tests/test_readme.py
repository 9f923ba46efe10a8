"""What the README says of the results and of the cost is what the records give."""

import json
import pathlib
import re

import pytest

from examples.benchmarks import accelerator
from examples.study import experiments, report
from examples.training import models

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_tables_are_what_the_records_give():
    assert report.main(["--check"]) == 0


@pytest.fixture(scope="module")
def reported():
    return report.Report(report.RECORDS)


@pytest.fixture
def digits(reported):
    """The study at convergence on the digits."""
    return reported.convergence[0]


@pytest.fixture
def cifar10(reported):
    """The same on CIFAR-10."""
    return reported.convergence[1]


def section(title):
    """A section of the README, on one line."""
    (told,) = re.findall(rf"^## {re.escape(title)}\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)
    return " ".join(told.split())


def points(value):
    return f"{100 * value:+.2f}".replace("-", "\N{MINUS SIGN}")


def differences(tuned):
    """The differences of a group with their widened intervals, as they are written."""
    written = []
    for one in tuned:
        mean, low, high = map(points, one.together)
        written.append(f"{one.variant} {mean} points ({low} to {high})")
    return ", ".join(written)


def detectable(tuned):
    seen = [100 * one.detectable for one in tuned]
    return f"difference of {min(seen):.1f} to {max(seen):.1f} points"


def verdicts(groups):
    """All verdicts, each with its number of seeds."""
    return {(one.count, one.verdict) for group in groups.values() for one in group}


def causes(groups):
    """The largest difference to the three others and the farthest end of an interval, in points."""
    found = [one.together for name in ("longer", "held", "start") for one in groups[name]]
    apart = max(abs(one.mean) for one in found)
    reach = max(max(abs(one.low), abs(one.high)) for one in found)
    return 100 * apart, 100 * reach


def test_the_sentences_on_the_study_at_convergence_are_what_it_found(digits):
    told, groups = section("Does it help?"), digits.groups()
    assert len(digits.records) == len(digits.planned) and digits.failed == 0
    assert verdicts(groups) == {(30, "tie")}
    assert "30 seeds, none of the four variants could be told apart" in told
    assert f"for {digits.study.settings['epochs']} epochs" in told
    assert told.count(differences(groups["tuned"])) == 1
    assert f"A {detectable(groups['tuned'])}, depending on the pair, would have been found" in told
    factors = [digits.plan.moment_ratio(pair) for pair in experiments.PAIRS]
    assert f"the gradients {min(factors):.2f} to {max(factors):.2f} times as long" in told
    apart, reach = causes(groups)
    assert f"differ by at most {apart:.2f} points from the variant's" in told
    assert f"and the intervals reach {reach:.2f} points" in told
    images = digits.records[0]["data"]["test_examples"]
    assert f"on the same {images} test images, of which one is {100 / images:.2f} points" in told
    for picture in ("learning-rates.png", "differences.png"):
        assert f"(examples/study/results/figures/{picture})" in told


def test_the_sentences_on_cifar10_are_what_the_study_found(cifar10):
    told, groups = section("Does it help?"), cifar10.groups()
    tuned = groups["tuned"]
    assert len(cifar10.records) == len(cifar10.planned) and cifar10.failed == 0
    assert verdicts(groups) == {(6, "tie")}
    assert f"with ResNet-8 and 6 seeds, it is the same: {differences(tuned)}." in told
    assert f"so few seeds, only a {detectable(tuned)} would have been found." in told
    apart, reach = causes(groups)
    assert "The three others tie there, too." in told
    assert f"at most {apart:.2f} points, and the intervals reach {reach:.2f} points." in told


def test_the_results_say_that_all_runs_are_done(digits, cifar10):
    told = " ".join((report.RESULTS / "README.md").read_text(encoding="utf-8").split())
    easy, hard = (len(study.records) for study in (digits, cifar10))
    assert (easy, hard) == (len(digits.planned), len(cifar10.planned))
    assert f"are done: {easy} on the digits and {hard} on CIFAR-10." in told
    groups = cifar10.groups()
    assert verdicts(groups) == {(6, "tie")}
    assert "On CIFAR-10 every comparison is a tie, too. With 6 seeds" in told
    alone = [
        (group, f"{100 * abs(one.together.mean):.2f} points")
        for group, compared in groups.items()
        for one in compared
        if one.alone.low > 0 or one.alone.high < 0
    ]
    assert [group for group, _ in alone] == ["held", "start"]
    (_, held), (_, start) = alone
    assert f'both of AdaBeliefNorm: it is ahead of "held" by {held} and of' in told
    assert f"the average that is corrected for bias, by {start}." in told


def test_the_first_screen_says_what_to_expect(digits, cifar10):
    (told,) = re.findall(r"\*\*What to expect:\*\*(.*?)\n- ", README, flags=re.DOTALL)
    told = " ".join(told.split())
    for study, seeds in ((digits, 30), (cifar10, 6)):
        assert {(one.count, one.verdict) for one in study.groups()["tuned"]} == {(seeds, "tie")}
    assert "none of the four variants could be told apart" in told
    assert "digits with 30 seeds and on 10,000 images of CIFAR-10 with 6." in told


def test_what_the_results_say_of_the_digits_is_what_the_records_give(digits):
    told = " ".join((report.RESULTS / "README.md").read_text(encoding="utf-8").split())
    groups = digits.groups()
    alone = [one for one in groups["tuned"] if one.alone.low > 0 or one.alone.high < 0]
    assert [(one.variant, one.plain) for one in alone] == [("DiffGradNorm", "DiffGrad")]
    assert "Taken by itself, the interval of DiffGradNorm - DiffGrad lies above 0" in told
    (longer,) = (
        runs[0].settings.learning_rate
        for pair in experiments.PAIRS
        if pair[1].name == "DiffGradNorm"
        for runs in [digits.plan.causes(pair)["longer"]]
    )
    assert f"DiffGrad at {longer:g}, the variant's rate times its mean factor" in told
    (apart,) = (one.together.mean for one in groups["longer"] if one.variant == "DiffGradNorm")
    assert f"comes within {100 * abs(apart):.2f} points of DiffGradNorm" in told
    (best,) = (digits.best_rates(p)[0] for p in experiments.PAIRS if p[0].name == "DiffGrad")
    assert f"DiffGrad's own chosen rate is {best:g}" in told and best > longer
    assert {one.verdict for group in groups.values() for one in group} == {"tie"}
    assert "On the digits every comparison is a tie." in told


def test_the_words_on_the_cost_are_what_was_counted():
    told = section("What it costs")
    variables = len(models.build("vgg16", 10).trainable_variables)
    assert f"VGG16's {variables} variables" in told
    record = json.loads((accelerator.RESULTS / "h100.json").read_text())
    resnet50, vgg16 = (
        {of: counts[name]["AdamNorm"][of] / counts[name]["Adam"][of] for of in ("kernels", "bytes")}
        for counts in [record["counts"]]
        for name in ("resnet50", "vgg16")
    )
    kernels = f"{resnet50['kernels']:.2f} times the kernels of Adam's for ResNet50"
    assert f"AdamNorm's update has {kernels} and {vgg16['kernels']:.2f} times for VGG16" in told
    assert f"It moves {resnet50['bytes']:.2f} and {vgg16['bytes']:.2f} times the bytes" in told
