"""Searches and comparisons, with runs that take no time: proposals, resuming, failures, files."""

import csv
import dataclasses
import itertools
import json
import math
import os
import re
import socket
import sys

import keras
import keras_tuner
import pytest
import scipy.optimize

from examples import train as train_program
from examples.training import options as command_options
from examples.training import records, run
from examples.training.errors import LockedError, RunError, UsageError
from tests.support import tuning_fakes
from tests.support.command_line import assert_refused
from tests.support.tuning_fakes import TUNERS, FakeTrain, accuracy, in_this_process, plan, tiny
from tuning import compare, memory, oracles, report, search, tables
from tuning.chief import role
from tuning.hypermodel import OBJECTIVES
from tuning.space import OptimizerSpace
from tuning.trials import model_path

DRAW = report.draw


@pytest.fixture
def fake(monkeypatch):
    """Replaces the training, and what a record says of commit and machine."""
    train = FakeTrain()
    in_this_process(monkeypatch)
    monkeypatch.setattr(run, "train", train)
    monkeypatch.setattr(os, "fsync", lambda file: None)
    for name in ("commit", "device", "versions"):
        monkeypatch.setattr(records, name, lambda: None)
    monkeypatch.setattr(report, "draw", lambda document, path: path.touch())
    monkeypatch.setattr(scipy.optimize, "minimize", stay)
    return train


def stay(function, x0, jac=None, **others):
    """A minimizer that takes what it is given: the Gaussian process chooses among random points."""
    value = function(x0)[0] if jac else function(x0)
    return scipy.optimize.OptimizeResult(x=x0, fun=value, success=True, status=0, nit=0)


def proposals(rows):
    return [(row["arguments"], row["epochs"]) for row in rows]


@pytest.mark.parametrize("tuner", TUNERS)
def test_same_seed_same_trials(tuner, fake, tmp_path):
    _, first = search.search(plan(tuner), tmp_path / "first")
    _, second = search.search(plan(tuner), tmp_path / "second")
    assert first == second
    points = [json.dumps(proposal) for proposal in proposals(first)]
    assert len(points) == len(set(points)) > 3
    if tuner != "grid":
        # A seed in the neighbourhood shares nothing, shifted or not.
        for seed in (1, 2):
            _, other = search.search(plan(tuner, seed=seed), tmp_path / "other")
            rates = {row["arguments"]["learning_rate"] for row in first}
            assert not rates & {row["arguments"]["learning_rate"] for row in other}


@pytest.mark.parametrize("tuner", TUNERS)
def test_killed_at_any_write_it_goes_on_as_if_nothing_had_been(tuner, fake, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    writes = itertools.count()
    settle = records.settle

    def counted(temporary, path):
        if next(writes) == deadline:
            raise Killed
        settle(temporary, path)

    monkeypatch.setattr(records, "settle", counted)
    deadline = None
    _, unbroken = search.search(plan(tuner), tmp_path / "unbroken")
    total = next(writes)
    trained = len(fake.trained)
    assert trained == len(unbroken)
    # All writes of the first trial and of the begin of the second, and some of the rest.
    for deadline in [*range(14), total - 1] if tuner == "random" else range(1, total, total // 6):
        fake.trained.clear()
        writes = itertools.count()
        folder = tmp_path / str(deadline)
        with pytest.raises(Killed):
            search.search(plan(tuner), folder)
        writes = itertools.count(deadline + 1)
        _, rows = search.search(plan(tuner), folder)
        assert rows == unbroken
        # At most the run that was killed is trained again.
        assert trained <= len(fake.trained) <= trained + 1


def test_grid_visits_every_point_once(fake, tmp_path):
    _, rows = search.search(plan("grid"), tmp_path)
    points = {tuple(row["arguments"].values()) for row in rows}
    assert points == set(itertools.product((1e-4, 1e-2), (0.8, 0.999)))
    assert len(rows) == 4


def test_hyperband_trains_as_long_as_it_is_told(fake, tmp_path):
    _, rows = search.search(plan("hyperband", epochs=9), tmp_path)
    assert {row["epochs"] for row in rows} == {1, 3, 9}
    assert {settings.epochs for settings, _ in fake.trained} == {1, 3, 9}


def test_bayesian_search_proposes_nothing_twice(fake, tmp_path, monkeypatch):
    # One that is sure of its optimum would stay there.
    once = {"learning_rate": 0.001, "one_minus_gamma": 0.05}
    monkeypatch.setattr(
        keras_tuner.oracles.BayesianOptimizationOracle,
        "populate_space",
        lambda self, trial_id: {"status": "RUNNING", "values": dict(once)},
    )
    _, rows = search.search(plan("bayesian"), tmp_path)
    points = {tuple(row["arguments"].values()) for row in rows}
    assert len(points) == len(rows) == 8


def test_bayesian_search_comes_closer(fake, tmp_path):
    _, rows = search.search(plan("bayesian", max_trials=12), tmp_path)
    scores = [row["last_epoch_val_accuracy"] for row in rows]
    assert sum(scores[6:]) > sum(scores[:6])  # the first 6 are random


def test_score_is_the_mean_of_the_last_epochs_over_recorded_seeds(fake, tmp_path):
    folder, rows = search.search(plan(seed=3, executions_per_trial=3), tmp_path)
    for row in rows:
        runs = [
            records.read(folder / f"trial_{row['trial']}" / f"execution{i}" / run.RECORD)
            for i in range(3)
        ]
        assert [r["settings"]["seed"] for r in runs] == row["seeds"] == [3, 4, 5]
        last = [r["epochs"]["val_accuracy"][-1] for r in runs]
        assert row["val_accuracies"] == last
        assert len(set(last)) == 3
        assert row["last_epoch_val_accuracy"] == pytest.approx(sum(last) / 3)
    oracle = json.loads((folder / f"trial_{rows[0]['trial']}" / "trial.json").read_text())
    assert oracle["score"] == pytest.approx(rows[0]["last_epoch_val_accuracy"])


def test_loss_is_an_objective_to_be_made_small(fake, tmp_path):
    folder, rows = search.search(plan(objective="last_epoch_val_loss"), tmp_path)
    best = report.ranked(rows, "last_epoch_val_loss")[0]
    assert best["last_epoch_val_loss"] == min(row["last_epoch_val_loss"] for row in rows)
    assert json.loads((folder / report.BEST).read_text()) == best["optimizer"]


def test_failed_trials_are_recorded_and_the_search_goes_on(fake, tmp_path, capsys):
    fake.failing = lambda settings: len(fake.trained) <= 4  # keras-tuner gives up after three
    folder, rows = search.search(plan(), tmp_path)
    assert [row["status"] for row in rows] == ["FAILED"] * 4 + ["COMPLETED"]
    assert rows[0]["reason"] == "DivergedError: The loss is nan at step 3 of epoch 1."
    with open(folder / "trials.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["reason"] for line in lines] == [rows[0]["reason"]] * 4 + [""]
    assert lines[0]["last_epoch_val_accuracy"] == ""
    assert "[4/5] trial 3: learning_rate=" in (printed := capsys.readouterr().out)
    assert "failed: DivergedError: The loss is nan" in printed
    # They stay failed: nothing is tried again.
    fake.trained.clear()
    assert search.search(plan(), tmp_path)[1] == rows
    assert fake.trained == []


def test_a_validation_loss_that_is_no_number_is_a_failure(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(
        tuning_fakes, "accuracy", lambda settings: math.nan if len(fake.trained) == 1 else 0.5
    )
    monkeypatch.setattr(records, "validate", lambda record, path: None)
    changed = plan(objective="last_epoch_val_loss")
    _, rows = search.search(changed, tmp_path)
    assert [row["status"] for row in rows] == ["FAILED"] + ["COMPLETED"] * 4
    assert "validation accuracy after the last epoch is not finite" in rows[0]["reason"]


def test_a_full_disk_is_no_failed_trial(fake, tmp_path, monkeypatch, capsys):
    def full(*arguments, **others):
        raise RunError("Cannot use the output folder: full") from OSError("full")

    arguments = [*options(), "--directory", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(run, "train", full)
        assert search.main(arguments) == 1
    assert capsys.readouterr().err.count("Cannot use the output folder: full") == 1
    assert search.main(arguments) == 0
    (folder,) = tmp_path.iterdir()
    assert all(row["status"] == "COMPLETED" for row in trials(folder))


def trials(folder):
    return json.loads((folder / "trials.json").read_text())["trials"]


def options(**changes):
    """A command line of a tiny search."""
    given = {
        "dataset": "synthetic",
        "image-size": 8,
        "train-size": 96,
        "validation-size": 32,
        "max-trials": 3,
    } | changes
    pairs = ((f"--{k}", *(v if isinstance(v, list) else [v])) for k, v in given.items())
    return [str(part) for pair in pairs for part in pair]


def test_the_program(fake, tmp_path, capsys):
    arguments = [*options(), "--directory", str(tmp_path)]
    assert search.main(arguments) == 0
    first = capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("synthetic-cnn-AdamNorm-random-")
    assert f"Starting afresh in {folder}: 0 of 3 trials" in first
    assert first.count("; best 0.") == 3
    rows = trials(folder)
    with open(folder / "trials.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["gamma"]) for line in lines] == [row["arguments"]["gamma"] for row in rows]
    best = max(rows, key=lambda row: row["last_epoch_val_accuracy"])
    assert f"Best: learning_rate={best['arguments']['learning_rate']} " in first
    kept = {path.parents[1].name for path in folder.rglob("model.keras")}
    assert kept == {f"trial_{best['trial']}"}
    assert (folder / report.PICTURE).exists()
    assert all(settings.deterministic for settings, _ in fake.trained)

    # More trials go on from there; the name is the same.
    assert search.main([*options(**{"max-trials": 5}), "--directory", str(tmp_path)]) == 0
    assert f"Resuming {folder}: 3 of 5 trials" in capsys.readouterr().out
    assert trials(folder)[:3] == rows
    assert len(trials(folder)) == len(fake.trained) == 5


def test_no_success_is_said(fake, tmp_path, capsys):
    fake.failing = lambda settings: True
    assert search.main([*options(), "--directory", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "No trial succeeded" in printed
    assert printed.count("trial 1 failed: DivergedError: The loss is nan") == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"optimizer": "RadamNorm"}, "space.optimizer is AdamNorm, not RadamNorm"),
        ({"gamma": [0.5, 0.999]}, "space.searched.gamma.high is 0.2, not 0.5"),
        ({"tune": ["gamma"]}, "space.searched.learning_rate.low is 0.0001, not None"),
        ({"model": "resnet8"}, "settings.model is cnn, not resnet8"),
        ({"dataset": "digits"}, "data is synthetic-8x8x3-96+32+200-"),
        ({"train-size": 64}, "data is synthetic-8x8x3-96+32+200-"),
        ({"epochs": 6}, "settings.epochs is 5, not 6"),
        ({"seed": 1}, "settings.seed is 0, not 1"),
        ({"tuner": "bayesian"}, "tuner is random, not bayesian"),
        ({"objective": "last_epoch_val_loss"}, "objective is last_epoch_val_accuracy, not"),
        ({"executions-per-trial": 2}, "executions_per_trial is 1, not 2"),
    ],
)
def test_folder_of_another_search_is_refused(change, complaint, fake, tmp_path, capsys):
    where = ["--directory", str(tmp_path), "--project-name", "mine"]
    assert search.main([*options(**{"max-trials": 1}), *where]) == 0
    fake.trained.clear()
    capsys.readouterr()
    assert search.main([*options(**{"max-trials": 1} | change), *where]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert complaint in error
    assert fake.trained == []
    # Left to themselves they have folders of their own.
    assert search.main([*options(**{"max-trials": 1} | change), *where[:2]]) == 0
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"max-trials": 0}, "Argument `max_trials` must be an integer of at least 1"),
        ({"max-trials": "many"}, "Argument `max_trials` must be an integer of at least 1"),
        ({"worker-timeout": "nan"}, "Argument `worker_timeout` must be a number from 1 to"),
        ({"worker-timeout": 0}, "Argument `worker_timeout` must be a number from 1 to"),
        ({"worker-timeout": -1}, "Argument `worker_timeout` must be a number from 1 to"),
        ({"chief-timeout": "inf"}, "Argument `chief_timeout` must be a number from 1 to"),
        ({"seed": 2**32}, "Argument `seed` must be an integer from 0 to 4294967295"),
        (
            {"seed": 2**32 - 1, "executions-per-trial": 2},
            "Argument `seed` must be at most 4294967294, for all executions",
        ),
        ({"project-name": "a/b"}, "Argument `project_name` must be the name of a folder"),
        ({"project-name": ".."}, "Argument `project_name` must be the name of a folder"),
        ({"tune": []}, "an empty space"),
        ({"gamma": [0.9, 0.8]}, "The range of `gamma` must start below its end"),
        ({"learning-rate": [1e-2, 1e-4]}, "The range of `learning_rate` must start below"),
        ({"tuner": "annealing"}, "must be one of random, bayesian, hyperband, grid"),
        ({"tuner": "hyperband"}, "Argument `max_trials` must be left out with the hyperband tuner"),
        ({"tuner": "grid"}, "`max_trials` must be an integer of at least 16"),
        ({"optimizer": "AdamNrom"}, "Argument `optimizer` must be one of"),
        ({"dataset": "cifar11"}, "Argument `dataset` must be one of cifar10"),
        ({"model": "resnet9"}, "Argument `model` must be one of vgg16"),
        ({"data-dir": "/dev/null/nowhere"}, "Argument `data_dir` must be an existing folder"),
        ({"objective": "val_accuracy"}, "must be one of last_epoch_val_accuracy, last"),
        ({"validation-size": 0}, "needs validation images. Received: validation_size=0"),
        ({"epochs": 0}, "Argument `epochs` must be an integer of at least 1"),
        ({"executions-per-trial": 0}, "Argument `executions_per_trial` must be"),
        ({"optimzer": "Adam"}, "there is no option --optimzer Adam: see --help"),
    ],
)
def test_mistakes_are_one_line_before_any_training(change, complaint, fake, capsys, tmp_path):
    arguments = options(**{"directory": tmp_path} | change)
    assert_refused(search.main, arguments, capsys, "tuning.search", complaint)
    assert fake.trained == []
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_is_told(fake, tmp_path, capsys):
    # A name that no file can have is a wrong option; what else keeps a folder from being is not.
    for folder, status in (("/dev/null/x", 1), (tmp_path / ("long" * 100), 2)):
        assert search.main([*options(), "--directory", str(folder)]) == status
        error = capsys.readouterr().err
        assert error.startswith("python -m tuning.search: error: ")
        assert str(folder) in error
        assert error.count("\n") == 1


def test_home_folder_is_meant_by_a_tilde(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert search.main([*options(), "--directory=~/searches"]) == 0
    assert (tmp_path / "searches").is_dir()


@pytest.mark.parametrize("port", ["0", "99999", "-1", "8a", "٣", "9" * 5000])
def test_port_that_is_none_is_refused(port, monkeypatch, capsys):
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "worker")
    monkeypatch.setenv("KERASTUNER_ORACLE_IP", "127.0.0.1")
    monkeypatch.setenv("KERASTUNER_ORACLE_PORT", port)
    complaint = "KERASTUNER_ORACLE_PORT must be a number from 1 to 65535"
    for main, name in ((search.main, "tuning.search"), (compare.main, "tuning.compare")):
        assert_refused(main, [], capsys, name, complaint)


def test_folder_with_other_things_is_refused(fake, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="is not empty and holds no search"):
        search.search(plan(), tmp_path, "mine")


def test_two_processes_do_not_share_a_folder(fake, tmp_path):
    folder, _ = search.search(plan(max_trials=1), tmp_path)
    with run.exclusive(folder), pytest.raises(LockedError, match="Another process"):
        search.search(plan(max_trials=2), tmp_path)


@pytest.mark.parametrize("given", list(itertools.product((False, True), repeat=3)))
def test_variables_of_a_distributed_search_go_together(given, monkeypatch):
    values = ("chief", "127.0.0.1", "8000")
    names = ("KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT")
    for name, value, is_given in zip(names, values, given, strict=True):
        monkeypatch.setenv(name, value) if is_given else monkeypatch.delenv(name, raising=False)
    if any(given) and not all(given):
        with pytest.raises(UsageError, match="must be set together"):
            role()
    else:
        assert role() == ("chief" if all(given) else "alone")


def test_chief_without_a_port_is_told(fake, tmp_path, monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("KERASTUNER_TUNER_ID", "chief")
        monkeypatch.setenv("KERASTUNER_ORACLE_IP", "127.0.0.1")
        monkeypatch.setenv("KERASTUNER_ORACLE_PORT", str(taken.getsockname()[1]))
        assert search.main([*options(), "--directory", str(tmp_path)]) == 2
        assert compare.main([*options(), "--directory", str(tmp_path)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "The chief cannot listen at 127.0.0.1:" in first
    assert "A comparison runs on one machine" in second


def make_oracle(folder, **changes):
    oracle = oracles.RandomOracle(
        objective=OBJECTIVES["last_epoch_val_accuracy"], max_trials=3, **changes
    )
    OptimizerSpace().declare(oracle.hyperparameters)
    oracle.verbose = 0
    oracle._set_project_dir(str(folder), "search")
    return oracle


def finish(oracle, trial, value=0.5):
    oracle.update_trial(trial.trial_id, {"last_epoch_val_accuracy": value})
    trial.status = "COMPLETED"
    oracle.end_trial(trial)


def test_trial_of_a_silent_worker_is_handed_on(tmp_path, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(oracles.time, "monotonic", lambda: now[0])
    oracle = make_oracle(tmp_path, worker_timeout=60)
    lost = oracle.create_trial("lost")
    for _ in range(2):
        finish(oracle, oracle.create_trial("busy"))
    assert oracle.create_trial("busy").status == "IDLE"  # the lost one's may come to it
    now[0] = 59.0
    oracle.get_trial(lost.trial_id)  # a sign of life
    now[0] = 100.0
    oracle.create_trial("busy")
    oracle.release_silent_workers()
    assert oracle.create_trial("busy").status == "IDLE"
    now[0] = 120.0
    oracle.release_silent_workers()
    assert "lost is silent for 61 s: trial 0 is given to another worker" in capsys.readouterr().out
    taken = oracle.create_trial("busy")
    assert taken.trial_id == lost.trial_id
    assert taken.hyperparameters.values == lost.hyperparameters.values
    finish(oracle, taken, 0.7)
    # The lost one was only slow, and comes back.
    lost.status = "COMPLETED"
    oracle.end_trial(lost)
    assert oracle.end_order.count("0") == 1
    assert oracle.trials["0"].score == 0.7
    assert oracle.create_trial("busy").status == "STOPPED"
    assert oracle.create_trial("lost").status == "STOPPED"
    assert not oracle.tuner_ids and not oracle.ongoing_trials  # the chief may end


def test_worker_of_the_same_name_takes_up_its_trial(tmp_path):
    oracle = make_oracle(tmp_path)
    first = oracle.create_trial("worker")
    oracle.create_trial("other")
    assert oracle.create_trial("worker").trial_id == first.trial_id


def test_compare(fake, tmp_path, capsys):
    arguments = [*options(), "--seeds", "3", "--directory", str(tmp_path)]
    assert compare.main(arguments) == 0
    printed = capsys.readouterr().out
    (path,) = tmp_path.glob("*/comparison.json")
    comparison = json.loads(path.read_text())
    assert list(comparison["optimizers"]) == ["Adam", "AdamNorm"]
    used = {
        seed for row in trials(next(tmp_path.glob("synthetic-cnn-Adam-*"))) for seed in row["seeds"]
    }
    assert not used & set(comparison["seeds"])
    finals = [settings for settings, folder in fake.trained if "against" in str(folder)]
    assert len(finals) == 6
    for name, side in comparison["optimizers"].items():
        mine = [settings for settings in finals if settings.optimizer == name]
        assert [settings.seed for settings in mine] == comparison["seeds"] == [1000, 1001, 1002]
        assert side["trials"] == 3
        assert side["test_accuracies"] == [accuracy(settings) - 0.01 for settings in mine]
        assert {settings.learning_rate for settings in mine} == {side["arguments"]["learning_rate"]}
    assert "AdamNorm - Adam" in printed

    # Started again it trains nothing, and with more seeds only those.
    fake.trained.clear()
    assert compare.main(arguments) == 0
    assert fake.trained == []
    assert compare.main([*options(), "--seeds", "4", "--directory", str(tmp_path)]) == 0
    assert [settings.seed for settings, _ in fake.trained] == [1003, 1003]


def test_plain_optimizer_is_searched_for_what_it_has(fake, tmp_path):
    arguments = options(gamma=[0.9, 0.99], tune=["gamma", "learning_rate", "max_correction"])
    assert compare.main([*arguments, "--seeds", "1", "--directory", str(tmp_path)]) == 0
    for optimizer in ("Adam", "AdamNorm"):
        (folder,) = [f for f in tmp_path.glob(f"synthetic-cnn-{optimizer}-*") if "ag" not in f.name]
        searched = set(trials(folder)[0]["arguments"])
        assert searched == {"learning_rate"} | (
            {"gamma", "max_correction"} if optimizer == "AdamNorm" else set()
        )


@pytest.mark.parametrize(
    ("plain", "variant", "said"),
    [
        ([0.5, 0.6, 0.7], [0.55, 0.65, 0.76], "AdamNorm ahead"),
        ([0.55, 0.65, 0.76], [0.5, 0.6, 0.7], "Adam ahead"),
        ([0.5, 0.6, 0.7], [0.6, 0.6, 0.65], "tie"),
        ([0.5, 0.6], [0.505, 0.605], "tie"),  # an image's worth, twice, proves nothing
        ([0.5], [0.9], "one seed tells nothing"),
    ],
)
def test_what_a_comparison_says(plain, variant, said):
    side = {"trials": 3, "arguments": {"learning_rate": 0.001}, "last_epoch_val_accuracy": 0.5}
    comparison = {
        "data": {"test_examples": 200},
        "optimizers": {
            "Adam": side | {"test_accuracies": plain},
            "AdamNorm": side | {"test_accuracies": variant},
        },
    }
    _, first, second, last = compare.rows(comparison)
    assert first[:4] == ("Adam", "3", "learning rate 0.001", "50.00")
    mean = 100 * sum(variant) / len(variant)
    assert second[4] == f"{mean:.2f}"
    assert last[2] == said
    assert last[4] == f"{mean - 100 * sum(plain) / len(plain):+.2f}"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--variant", "Adam"], "Argument `variant` must be one of AdamNorm, DiffGradNorm"),
        (["--seed", "4294966295"], "Argument `seed` must be at most 4294966291, for the fresh"),
        (["--seeds", "0"], "Argument `seeds` must be an integer from 1 to 1000"),
        (["--max-trials", "0"], "Argument `max_trials` must be an integer of at least 1"),
    ],
)
def test_mistakes_of_a_comparison_are_one_line(arguments, complaint, fake, tmp_path, capsys):
    assert compare.main([*arguments, "--directory", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert complaint in error
    assert fake.trained == []


README = tables.README.read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL))
def test_readme_code_runs_without_the_clone_and_searches(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "tuning"):  # what an installed package does not have
        monkeypatch.setitem(sys.modules, name, None)
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    oracle = names["tuner"].oracle
    assert {part.name for part in oracle.get_space().space} == {"learning_rate", "one_minus_gamma"}
    assert [trial.status for trial in oracle.trials.values()] == ["COMPLETED"] * 3
    assert "learning rate" in capsys.readouterr().out


def test_readme_commands_are_understood():
    text = README.replace("\\\n", "")
    commands = re.findall(r"python -m tuning\.(search|compare)([^#\n`]*)", text)
    assert len(commands) >= 6
    for program, arguments in commands:
        groups = {"search": search.SEARCH_GROUPS, "compare": compare.GROUPS}[program]
        values = command_options.read(program, "", groups, arguments.split())
        search.make_plan(values, "AdamNorm")


def test_tables_are_what_the_records_give():
    assert tables.render(README) == README


def test_the_memory_of_a_search_is_taken_after_each_trial(fake, monkeypatch):
    monkeypatch.setattr(records, "device", lambda: {"system": "Linux"})
    monkeypatch.setattr(records, "versions", lambda: {"tensorflow": "2.21"})
    record = memory.measure(plan(max_trials=3))
    assert len(fake.trained) == 3 == len(record["search_mb"])
    assert 0 < record["search_mb"][0] <= record["search_mb"][-1]
    assert memory.sentence(record).startswith("Over 3 trials of `cnn` on `synthetic`, the peak")


def test_a_search_of_thirty_trials_did_not_grow():
    peaks = json.loads(memory.RECORD.read_text())["search_mb"]
    assert len(peaks) == 30 and peaks[-1] < peaks[0] + 10


def test_tables_of_collected_records(fake, tmp_path):
    arguments = [*options(), "--seeds", "2", "--directory", str(tmp_path)]
    assert compare.main(arguments) == 0
    (path,) = tmp_path.glob("*/comparison.json")
    folder = tables.collect(path.parent, tmp_path / "results")
    assert folder.name == "synthetic-cnn-AdamNorm"
    kept = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert kept == {"comparison.json"} | {
        f"{name}/{file}" for name in ("Adam", "AdamNorm") for file in tables.KEPT
    }
    name = folder.name
    text = f"<!-- comparison: {name} -->\nold\n<!-- end -->\n<!-- trials: {name} -->\n<!-- end -->"
    rendered = tables.render(text, tmp_path / "results")
    assert tables.render(rendered, tmp_path / "results") == rendered
    assert "old" not in rendered
    side = json.loads(path.read_text())["optimizers"]["AdamNorm"]
    assert f"| AdamNorm | 3 | learning rate {side['arguments']['learning_rate']}, " in rendered
    best = f"{100 * side['last_epoch_val_accuracy']:.2f}"
    (row,) = [line for line in rendered.splitlines() if line.endswith(f"| {best} |")]
    assert f"gamma={side['arguments']['gamma']}" in row
    assert rendered.count("| AdamNorm | ") == 1 + 3


@pytest.mark.parametrize("content", [b"{}", b"[]", b"\xff", b'{"settings": {}, "optimizers": [1]}'])
def test_a_comparison_that_is_damaged_is_named(content, tmp_path, monkeypatch, capsys):
    path = tmp_path / "results" / "one" / compare.RECORD
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    (tmp_path / "README.md").write_text("<!-- comparison: one -->\n<!-- end -->\n")
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(tables, "README", tmp_path / "README.md")
    for arguments in ([], ["--collect", str(path.parent)]):
        assert tables.main(arguments) == 1
        error = capsys.readouterr().err
        assert str(path) in error and error.count("\n") == 1
    assert (tmp_path / "README.md").read_text() == "<!-- comparison: one -->\n<!-- end -->\n"


def test_a_comparison_puts_nothing_outside_of_the_results(tmp_path, capsys):
    settings = {"dataset": "digits", "model": "cnn"}
    sides = {"Adam": {"search": "a"}, "../AdamNorm": {"search": "b"}}
    (tmp_path / compare.RECORD).write_text(json.dumps({"settings": settings, "optimizers": sides}))
    assert tables.main(["--collect", str(tmp_path)]) == 1
    assert "'../AdamNorm' is no name" in capsys.readouterr().err


@pytest.mark.parametrize("optimizer", ["AdamNorm", "Adam"])
def test_picture_shows_every_trial(optimizer, fake, tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn = []
    scatter = Axes.scatter

    def counted(self, x, y, **others):
        drawn.append((list(x), list(y), others.get("c")))
        return scatter(self, x, y, **others)

    monkeypatch.setattr(Axes, "scatter", counted)
    monkeypatch.setattr(report, "draw", DRAW)
    folder, rows = search.search(plan(optimizer=optimizer), tmp_path)
    record, again = str(folder / "trials.json"), str(tmp_path / "again.png")
    assert report.main([record, "--output", again]) == 0
    assert (tmp_path / "again.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "again.png").read_bytes() == (folder / report.PICTURE).read_bytes()
    x, y, colour = max(drawn, key=lambda points: len(points[0]))
    ranked = report.ranked(rows, "last_epoch_val_accuracy")
    accuracies = [100 * row["last_epoch_val_accuracy"] for row in ranked]
    assert x == [row["arguments"]["learning_rate"] for row in ranked]
    if optimizer == "AdamNorm":
        assert y == [1 - row["arguments"]["gamma"] for row in ranked]
        assert colour == accuracies
    else:
        assert y == accuracies
    best = next(points for points in drawn if len(points[0]) == 1)
    assert best[0] == [ranked[0]["arguments"]["learning_rate"]]


def test_picture_without_a_success(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "draw", DRAW)
    fake.failing = lambda settings: True
    folder, _ = search.search(plan(max_trials=2), tmp_path)
    assert (folder / report.PICTURE).exists()


def test_the_best_model_and_its_optimizer_are_of_use(tmp_path):
    """Two real trials: the best model trains on, and its optimizer goes into a run."""
    small = dataclasses.replace(plan(max_trials=2), settings=tiny(epochs=1))
    folder, rows = search.search(small, tmp_path)
    best = report.ranked(rows, "last_epoch_val_accuracy")[0]
    model = keras.models.load_model(model_path(folder, best["trial"]))
    assert int(model.optimizer.iterations) == 3
    assert float(model.optimizer.norm_averages[0]) > 0
    config = json.loads((folder / report.BEST).read_text())
    optimizer = keras.optimizers.deserialize(config)
    assert type(optimizer).__name__ == "AdamNorm"
    assert optimizer.gamma == best["arguments"]["gamma"]
    settings, _ = train_program.parse(["--optimizer-config", str(folder / report.BEST)])
    run.check(settings)
    assert settings.optimizer_config == config
    record = records.read(folder / f"trial_{best['trial']}" / "execution0" / run.RECORD)
    assert best["last_epoch_val_accuracy"] == record["epochs"]["val_accuracy"][-1]
