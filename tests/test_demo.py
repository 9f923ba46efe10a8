"""The demo: what it concludes from few runs, what it writes, what it refuses."""

import sys

import numpy as np
import pytest

from examples import demo
from examples.training import data, models
from tests.support.command_line import assert_refused


def some_runs(seeds=3, epochs=4, **shifts):
    """Made-up curves; `shifts` moves the accuracies of the optimizers that it names."""
    random = np.random.default_rng(0)
    noise = 0.01 * random.random(seeds)  # within a seed all optimizers meet the same luck
    runs = {}
    for name in [name for pair in demo.PAIRS.items() for name in pair]:
        runs[name] = [
            {
                "loss": list(np.geomspace(2, 0.2, epochs)),
                "val_accuracy": list(np.linspace(0.3, 0.9, epochs) + luck + shifts.get(name, 0)),
            }
            for luck in noise
        ]
        if name not in demo.PAIRS:
            for run in runs[name]:
                run["corrections_fired"] = list(np.linspace(0, 0.5, epochs))
    return runs


def test_the_intervals_of_four_pairs_hold_together(monkeypatch):
    monkeypatch.setattr(demo, "PAIRS", dict(list(demo.PAIRS.items())[:4]))
    # Differences of 1, 2 and 3 %: at 98.75 % each, t with 2 degrees of freedom is 8.8602.
    runs = some_runs()
    for run, gain in zip(runs["AdamNorm"], (0.01, 0.02, 0.03), strict=True):
        run["val_accuracy"][-1] += gain
    row = next(line for line in demo.table(runs).splitlines() if line.startswith("AdamNorm - Adam"))
    assert f"{2 - 8.8602 / 3**0.5:+.2f} to {2 + 8.8602 / 3**0.5:+.2f}" in row


@pytest.mark.parametrize(
    ("shift", "said"), [(0.0, "tie"), (0.05, "AdamNorm ahead"), (-0.05, "Adam ahead")]
)
def test_verdict_in_the_table(shift, said):
    lines = demo.table(some_runs(AdamNorm=shift)).splitlines()
    row = next(line for line in lines if line.startswith("AdamNorm - Adam"))
    assert row.endswith(said)
    assert f"{100 * shift:+.2f}" in row


def test_table_rows():
    lines = demo.table(some_runs()).splitlines()
    rows = {line.split()[0]: line.split() for line in lines[1 : 1 + 2 * len(demo.PAIRS)]}
    assert set(rows) == {*demo.PAIRS, *demo.PAIRS.values()}
    accuracies = 100 * np.array([r["val_accuracy"][-1] for r in some_runs()["Radam"]])
    expected = [f"{accuracies.mean():.2f}", f"{accuracies.std(ddof=1):.2f}", "3"]
    assert rows["Radam"][1:] == [*expected, "-"]
    assert rows["RadamNorm"][1:] == [*expected, "25", "%"]


@pytest.mark.parametrize(("seeds", "epochs"), [(1, 1), (3, 4)])
def test_picture_shows_every_curve(tmp_path, seeds, epochs):
    figure = demo._figure(some_runs(seeds, epochs))
    lines = [line for axes in figure.axes for line in axes.lines]
    assert len(figure.axes) == 3 * len(demo.PAIRS)
    # Of a pair: loss and accuracy of both, corrections of one.
    assert len(lines) == len(demo.PAIRS) * (2 + 2 + 1)
    assert all(len(line.get_ydata()) == epochs for line in lines)
    demo.draw(some_runs(seeds, epochs), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_program(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "PAIRS", {"Adam": "AdamNorm"})
    path = tmp_path / "new" / "curves.png"
    assert demo.main(["--seeds", "1", "--epochs", "1", "--output", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "AdamNorm, seed 0 (run 1 of 1)" in printed
    assert "45/45" in printed  # Keras' own progress
    assert "one seed tells nothing" in printed
    assert path.exists()


def test_runs_of_a_seed_differ_by_the_optimizer_alone():
    # e_0 = 0 corrects nothing at first: a first epoch that starts from the same weights and sees
    # the same batches ends nearly where the plain optimizer's does.
    (plain,), (variant,) = (demo.train(name, 1, 1, 0) for name in ("Adam", "AdamNorm"))
    assert plain["loss"] == pytest.approx(variant["loss"], rel=0.02)
    assert plain["loss"] != variant["loss"]
    assert 0 < variant["corrections_fired"][0] < 1


def test_a_run_keeps_nothing_of_the_run_before(monkeypatch):
    def without_a_seed(*arguments, seed, **others):
        return build_or_load[arguments[0]](*arguments, seed=0, **others)

    build_or_load = {"cnn": models.build, "digits": data.load}
    monkeypatch.setattr(models, "build", without_a_seed)
    monkeypatch.setattr(data, "load", without_a_seed)
    first, second = demo.train("AdamNorm", 2, 1, 0)
    assert second["loss"] == pytest.approx(first["loss"], rel=1e-5)
    assert second["corrections_fired"] == pytest.approx(first["corrections_fired"], abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seeds", "0"], "Argument `seeds` must be an integer from 1 to 1000. Received: seeds=0"),
        (["--epochs", "-1"], "Argument `epochs` must be an integer of at least 1"),
        (["--output", "curves.doc"], "Argument `output` must be a file that ends in one of"),
        (
            ["--epochs", "many"],
            "`epochs` must be an integer of at least 1. Received: epochs='many'",
        ),
        (["--seed", "x", "--what"], "--seed"),
    ],
)
def test_mistakes_are_one_line_before_any_training(arguments, complaint, capsys, monkeypatch):
    monkeypatch.setattr(demo, "train", lambda *_: pytest.fail("trained"))
    assert_refused(demo.main, arguments, capsys, "examples.demo", complaint)


def test_a_picture_that_cannot_be_written_is_told_before_any_training(capsys, monkeypatch):
    monkeypatch.setattr(demo, "train", lambda *_: pytest.fail("trained"))
    assert demo.main(["--output", "/dev/null/x.png"]) == 1
    error = capsys.readouterr().err
    assert "/dev/null" in error and error.count("\n") == 1


def test_missing_package_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert demo.main([]) == 1
    assert "pip install -e '.[examples]'" in capsys.readouterr().err
