"""The study at convergence: its stages, and the optimizers that only it trains."""

import collections
import dataclasses

import keras
import numpy as np
import pytest

from examples.study import arms, convergence, convergence_results, figures, report, reproduce
from examples.study import series as series_module
from examples.study.experiments import PAIRS
from examples.training import records as records_of_runs
from examples.training import run
from examples.training.recipes import Settings
from keras_adanorm.registry import NORM_VARIANTS
from tests.support import made_records
from tests.support.optimizers import algorithm, floatx, to_numpy
from tests.support.reference import Reference

(DIGITS, CIFAR10) = convergence.STUDIES.values()
SMALL = dataclasses.replace(DIGITS, rates=(1e-3, 1e-2, 1e-1), curve_seeds=2, seeds=3)


class Records(dict):
    """Stands for a series: a record for every run that was asked for, by a rule for accuracies."""

    def __init__(self, accuracy):
        super().__init__()
        self.accuracy = accuracy

    def done(self, planned):
        return planned.path in self

    def record(self, planned):
        return self.get(planned.path)

    def failure(self, planned):
        return "diverged" if self.done(planned) and self.record(planned) is None else None

    def train(self, planned):
        made = made_records.record(planned.settings, self.accuracy(planned))
        if planned.settings.monitor == "step":
            made["corrections"]["first_moment_ratio"] = 1.25
        self[planned.path] = made


def carry_out(accuracy, study=SMALL):
    """All runs of a study in their order, and its plan after them."""
    records, trained = Records(accuracy), []
    plan = convergence.Plan(study, records)
    for stage in plan.stages():
        for planned in stage:
            if not records.done(planned):
                records.train(planned)
                trained.append(planned)
    return trained, plan


def rate_of(planned):
    config = planned.settings.optimizer_config
    return config["config"]["learning_rate"] if config else planned.settings.learning_rate


def best_at(rate, variant=None):
    def accuracy(planned):
        best = variant if variant and planned.arm.name.endswith("Norm") else rate
        return 0.9 - 0.1 * abs(np.log10(rate_of(planned) / best))

    return accuracy


def test_every_side_is_tried_at_every_rate_and_its_best_runs_on_fresh_seeds():
    trained, plan = carry_out(best_at(1e-2))
    seeds = collections.Counter((one.arm.name, rate_of(one), one.settings.seed) for one in trained)
    assert set(seeds.values()) == {1}
    for pair in PAIRS:
        for arm in pair:
            for rate in SMALL.rates:
                assert {(arm.name, rate, 300), (arm.name, rate, 301)} <= seeds.keys()
            fresh = {(rate, seed) for name, rate, seed in seeds if name == arm.name and seed >= 400}
            expected = {(1e-2, 400), (1e-2, 401), (1e-2, 402)}
            assert fresh == expected | ({(1e-2, 500)} if arm is pair[1] else set())
    paths = [one.path for one in trained]
    assert len(set(paths)) == len(paths)


def test_where_the_best_rate_is_at_an_end_both_sides_go_on():
    trained, plan = carry_out(best_at(1e-2, variant=1.0))
    assert all(plan.rates(pair) == (1e-3, 1e-2, 1e-1, 1.0, 10.0) for pair in PAIRS)
    tried = collections.defaultdict(set)
    for one in trained:
        if one.settings.seed < 400:
            tried[one.arm.name].add(rate_of(one))
    assert all(rates == {1e-3, 1e-2, 1e-1, 1.0, 10.0} for rates in tried.values())
    trained, plan = carry_out(best_at(1e-4))
    assert all(plan.rates(pair) == (1e-5, 1e-4, 1e-3, 1e-2, 1e-1) for pair in PAIRS)


def test_a_range_that_never_ends_is_left():
    trained, plan = carry_out(best_at(1e9))
    assert all(len(plan.rates(pair)) == 3 + convergence.EXTENSIONS for pair in PAIRS)


@pytest.mark.parametrize("best, rates", ((1e-2, (0.0322,)), (0.1, (0.0322, 0.104, 0.335))))
def test_the_range_on_cifar10_goes_on(best, rates):
    trained, plan = carry_out(best_at(best), CIFAR10)
    assert all(plan.rates(pair) == (*CIFAR10.rates, *rates) for pair in PAIRS)
    # Both sides of four pairs with two seeds; then the finals, the measured runs and the causes.
    assert len(trained) == 16 * (4 + len(rates)) + 8 * 6 + 4 + 4 * 3 * 6 + 2 * 6


def test_a_rate_at_which_a_run_diverged_is_not_chosen():
    records = Records(best_at(1e-2))
    plan = convergence.Plan(SMALL, records)
    pair = PAIRS[0]
    for rate in SMALL.rates:
        for one in plan.curve(pair[0], rate):
            records.train(one)
    records[plan.curve(pair[0], 1e-2)[1].path] = None
    assert plan.best_rate(pair[0], pair) is None  # the other side has not ended
    assert plan._best(pair[0], SMALL.rates) in (1e-3, 1e-1)


def test_causes_are_tried_at_the_rate_of_the_variant():
    trained, plan = carry_out(best_at(1e-2, variant=1e-1), dataclasses.replace(SMALL, seeds=2))
    for plain, variant in PAIRS:
        causes = plan.causes((plain, variant))
        slow = {"gamma0.999", "debiased-gamma0.999"} if variant.name == "AdamNorm" else set()
        assert causes.keys() == {"longer", "held", "debiased"} | slow
        assert {one.settings.seed for runs in causes.values() for one in runs} == {400, 401}
        assert {rate_of(one) for one in causes["longer"]} == {0.125}  # 1.25 times the variant's
        assert {one.settings.optimizer for one in causes["longer"]} == {plain.optimizer}
        rates = {rate_of(o) for name, runs in causes.items() if name != "longer" for o in runs}
        assert rates == {1e-1}
        optimizer = run.recipes.build_optimizer(causes["held"][0].settings)
        assert type(optimizer) is arms.CHANGED[f"Held{variant.optimizer}"]


@pytest.mark.parametrize("study", (DIGITS, CIFAR10), ids=lambda study: study.name)
def test_runs_of_the_study_are_whole_settings(study):
    _, plan = carry_out(best_at(study.rates[1]), dataclasses.replace(study, seeds=2))
    for stage in plan.stages():
        assert stage and all(isinstance(one.settings, Settings) for one in stage)


def test_committed_records_are_of_runs_that_are_declared():
    series = series_module.Series(reproduce.FOLDER)
    for study in (DIGITS, CIFAR10):
        plan = convergence.Plan(study, series)
        declared = {one.path for stage in plan.stages() for one in stage}
        found = {
            str(path.relative_to(series.folder))
            for path in (series.folder / study.folder).glob("*.json")
        }
        assert found <= declared


def test_a_measured_run_keeps_the_mean_factor(tmp_path, monkeypatch):
    """The real training, small."""
    settings = {**DIGITS.settings, "width": 2, "train_size": 64, "epochs": 8}
    monkeypatch.setattr(run.keras.utils, "clear_session", lambda: None)  # slow
    plan = convergence.Plan(dataclasses.replace(DIGITS, settings=settings), Records(best_at(1e-2)))
    planned = plan._run(PAIRS[0][1], 1e-2, 500, "-measured", monitor="step")
    series = series_module.Series(tmp_path)
    series.execute([planned])
    assert 1 < series.record(planned)["corrections"]["first_moment_ratio"] < 3


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The results of a small study, all of whose records are made up."""
    monkeypatch.setattr(convergence, "STUDIES", {"small": SMALL})

    def accuracy(planned):
        gain = {"AdamNorm": 0.03, "Adam-longer": 0.02}.get(planned.arm.name, 0.0)
        return best_at(1e-2)(planned) + gain + 0.001 * (planned.settings.seed % 7)

    records = Records(accuracy)
    series = series_module.Series(tmp_path)
    plan = convergence.Plan(SMALL, series)
    for stage in plan.stages():
        for planned in stage:
            if not series.done(planned):
                records.train(planned)
                series._write(planned, records[planned.path])
    results = convergence_results.Results(SMALL, series)
    results.folder = tmp_path

    def failing(planned):
        """The results where a run failed."""
        failed = {"settings": planned.settings.as_dict(), "failed": "diverged"}
        series._write(planned, failed | {"commit": None, "finished": records_of_runs.now()})
        return convergence_results.Results(SMALL, series)

    results.failing = failing
    return results


def test_differences_are_those_of_the_records(results):
    groups = results.groups()
    assert {name: len(group) for name, group in groups.items()} == {
        "tuned": 4, "longer": 4, "held": 4, "start": 5,
    }  # fmt: skip
    means = {
        (one.variant, one.plain): 100 * one.together.mean
        for group in groups.values()
        for one in group
    }
    assert means["AdamNorm", "Adam"] == pytest.approx(3)
    assert means["AdamNorm", "Adam at 0.0125"] == pytest.approx(
        3 - 2 + 10 * np.log10(1.25)  # the longer one is at 1.25 times the best rate
    )
    assert means["RadamNorm", "Radam"] == pytest.approx(0)
    assert all(one.count == 3 for group in groups.values() for one in group)


def test_tables_and_figures_tell_the_records(results):
    text = report.Report(results.folder).render(report.TEMPLATE)
    assert "| AdamNorm - Adam | +3.00 |" in text
    assert "| AdamNorm | 83.30 | **93.30** | 83.30 |" in text
    assert "| AdamNorm | 0.01 | 93.20 |" in text and "| 1.250 |" in text
    assert "Test accuracy in percent at each learning rate" in text
    figures = report.Report(results.folder).figures()
    drawn = {name: figures[name]() for name in ("learning-rates.png", "differences.png")}
    rates, forest = drawn.values()
    assert [axes.get_legend_handles_labels()[1] for axes in rates.axes] == [
        [plain.name, variant.name] for plain, variant in PAIRS
    ]
    (line,) = [line for line in rates.axes[0].lines if line.get_label() == "AdamNorm"]
    np.testing.assert_allclose(line.get_xdata(), SMALL.rates)
    np.testing.assert_allclose(line.get_ydata(), [83.3, 93.3, 83.3], rtol=1e-3)
    best = [line.get_xdata() for line in rates.axes[0].lines if line.get_marker() == "o"]
    assert best == [[1e-2], [1e-2]]  # the chosen rates
    assert len(forest.axes[0].lines) == 2 * 17 + 1
    rows = [label.get_text() for label in forest.axes[0].get_yticklabels()]
    assert rows[:3] == [*convergence_results.QUESTIONS["tuned"], "AdamNorm"]
    assert forest.axes[0].get_title() == "The digits, 3 seeds"
    assert "end of the range" not in text


def test_failed_runs_are_told_and_their_arm_is_not_ahead(results):
    tuned = results.groups()["tuned"][0]
    assert tuned.verdict == "AdamNorm ahead" and not tuned.failed
    (plain, variant), *_ = PAIRS
    (lost, *_) = results.plan.finals(variant, PAIRS[0])
    failed = results.failing(lost)
    tuned = failed.groups()["tuned"][0]
    assert (tuned.count, tuned.failed) == (2, {"AdamNorm": 1})
    assert tuned.verdict == "none, since runs of AdamNorm failed"
    text = report.Report(results.folder).convergence_table()
    assert "| 2, 1 of AdamNorm failed |" in text
    forest = figures.forest([failed], convergence_results.QUESTIONS)
    assert "1 of AdamNorm failed" in [text.get_text() for text in forest.axes[0].texts]
    for one in results.plan.finals(variant, PAIRS[0]):
        failed = results.failing(one)
    assert failed.groups()["tuned"][0].verdict == "failed"
    assert "| AdamNorm - Adam | - | - | - | 0, 3 of AdamNorm failed | - | failed |" in (
        report.Report(results.folder).convergence_table()
    )


def test_a_best_rate_at_the_end_of_the_range_is_told(tmp_path):
    records = Records(best_at(1e9))
    results = convergence_results.Results(SMALL, records)
    while new := [one for one in results.planned if not records.done(one)]:
        list(map(records.train, new))
        results = convergence_results.Results(SMALL, records)
    (told,) = results._ends()
    assert "end of the range" in told and "Adam at 100, AdamNorm at 100" in told


def test_a_study_that_has_not_begun_is_said_so(tmp_path):
    text = report.Report(tmp_path).render(report.TEMPLATE)
    assert "Not run: 280 runs of the first stage are planned" in text
    assert "differences.png" not in report.Report(tmp_path).figures()


def test_first_moment_ratio():
    norms = np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 2.0]])
    corrected = np.array([[1.0, 2.0], [2.0, 2.0], [0.0, 2.0]])
    # m = 0.5 m + 0.5 x: norms 0.5, 0.75, 0.375; corrected 0.5, 1.25, 0.625
    expected = (1 + 1 + 1.25 / 0.75 + 1 + 0.625 / 0.375 + 1) / 6
    assert arms.first_moment_ratio(norms, corrected, 0.5) == pytest.approx(expected)
    assert arms.first_moment_ratio(norms, norms) == pytest.approx(1)


# The optimizers

SHAPES = ((3, 2), (4,))


def gradients(steps=12):
    random = np.random.default_rng(0)
    scales = random.choice([0.1, 1.0, 3.0], size=(steps, 2))
    made = [
        [scale * random.normal(size=shape) for scale, shape in zip(row, SHAPES, strict=True)]
        for row in scales
    ]
    made[5][1][:] = 0.0
    return made


def stepped(cls):
    with floatx("float64"):
        variables = [keras.Variable(np.ones(shape)) for shape in SHAPES]
        optimizer = cls(learning_rate=0.01)
        optimizer.build(variables)
        for grads in gradients():
            optimizer.apply([keras.ops.convert_to_tensor(g) for g in grads])
        return [to_numpy(variable) for variable in variables]


class Changed(Reference):
    """An algorithm of the tests whose corrected gradient comes from a function."""

    correct = None

    def _gradients_of_the_moments(self, name, g):
        return self.correct(g), g


def expected(cls, factory):
    weights = []
    for index, shape in enumerate(SHAPES):
        reference = Changed(algorithm(cls), {"w": np.ones(shape)}, learning_rate=0.01)
        reference.correct = factory()
        for grads in gradients():
            reference.step({"w": grads[index]})
        weights.append(reference.params["w"])
    return weights


def held(gamma=0.95):
    e, factors = 0.0, []

    def correct(g):
        nonlocal e
        norm = np.linalg.norm(g)
        e = gamma * e + (1 - gamma) * norm
        factors.append(max(1.0, e / norm) if norm else 1.0)
        return np.mean(factors) * g

    return correct


def debiased(gamma=0.95):
    e, t = 0.0, 0

    def correct(g):
        nonlocal e, t
        t += 1
        norm = np.linalg.norm(g)
        e = gamma * e + (1 - gamma) * norm
        return max(1.0, e / (1 - gamma**t) / norm) * g if norm else g

    return correct


@pytest.mark.parametrize("variant", NORM_VARIANTS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize(("name", "factory"), (("Held", held), ("Debiased", debiased)))
def test_a_changed_variant_is_what_it_says(name, factory, variant):
    found = stepped(arms.CHANGED[f"{name}{variant.__name__}"])
    wanted, unchanged = expected(variant, factory), stepped(variant)
    for one, other, before in zip(found, wanted, unchanged, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
        assert np.abs(one - before).max() > 1e-5


def test_a_changed_variant_is_saved_with_its_state(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(arms.CHANGED["HeldAdamNorm"](0.01), "mse")
    x = np.random.default_rng(0).normal(size=(8, 2))
    model.fit(x, x[:, :1], verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras").optimizer
    for one, other in zip(model.optimizer.variables, again.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))


def test_figures_leave_out_what_is_not_run(results, tmp_path):
    """Beside a study that is done, one that has a run of the first pair alone."""
    series = series_module.Series(tmp_path / "begun")
    one = next(convergence.Plan(CIFAR10, series).stages())[0]
    series._write(one, made_records.record(one.settings))
    begun = convergence_results.Results(CIFAR10, series)
    rates = figures.rates([results, begun])
    told = [[text.get_text() for text in axes.texts] for axes in rates.axes]
    assert told[:5] == [[]] * 5
    assert told[5] == ["DiffGrad and DiffGradNorm:\nnot run"]
    assert "(the digits: 2, CIFAR-10: 1)" in rates.texts[0].get_text()
    forest = figures.forest([results, begun], convergence_results.QUESTIONS)
    assert [axes.get_title() for axes in forest.axes] == ["The digits, 3 seeds"]
    longer = begun.groups()["longer"][0]
    assert (longer.variant, longer.plain) == ("AdamNorm", "Adam at a larger rate")
