"""The share of a training step that the optimizer takes: what is timed, recorded and told."""

import json

import numpy as np
import pytest

from examples.benchmarks import step_share
from examples.training import models
from examples.training.errors import RecordError
from examples.training.recipes import Settings
from tests.support.command_line import assert_refused
from tests.support.optimizers import to_numpy

NAMES = [
    *("Adam", "AdamNorm", "DiffGradNorm", "RadamNorm", "AdaBeliefNorm"),
    *("DiffGrad", "Radam", "AdaBelief"),
]
TINY = Settings(dataset="digits", model="cnn", width=2, batch_size=2)


def test_the_share_is_what_the_update_adds(monkeypatch):
    """With steps whose length is known: 4 ms with an optimizer, 3 ms without."""

    def step(settings, name):
        return lambda times: times * (0.003 if name == step_share.WITHOUT else 0.004)

    monkeypatch.setattr(step_share, "_step", step)
    part = step_share.measure(TINY, rounds=3, seconds_per_round=0.1)
    assert list(part["share"]) == NAMES
    assert part["milliseconds_without"] == pytest.approx(3)
    for share in part["share"].values():
        assert list(share.values()) == pytest.approx([0.25] * 3)


@pytest.mark.parametrize("name", [step_share.WITHOUT, "AdamNorm"])
def test_a_step_trains_and_the_one_without_an_optimizer_does_not(name, monkeypatch):
    built, build = [], models.build

    def kept(*arguments, **options):
        built.append(build(*arguments, **options))
        return built[-1]

    monkeypatch.setattr(models, "build", kept)
    run = step_share._step(TINY, name)
    (model,) = built
    before = list(map(to_numpy, model.trainable_variables))
    assert run(2) > 0
    after = map(to_numpy, model.trainable_variables)
    changed = {not np.array_equal(*pair) for pair in zip(before, after, strict=True)}
    assert changed == {name != step_share.WITHOUT}


def test_a_record_is_written_and_told(tmp_path, capsys):
    path = tmp_path / "share.json"
    assert step_share.main(["--quick", "--output", str(path)]) == 0
    assert f"{path}" in capsys.readouterr().out
    record = json.loads(path.read_text())
    assert record["versions"]["keras"] and record["device"]["cores"]
    record["studies"]["digits-convergence"] |= {"milliseconds_without": 2.04}
    record["studies"]["digits-convergence"]["share"]["AdamNorm"] |= {
        "median": 0.123,
        "lower_quartile": -0.01,
        "upper_quartile": 0.2,
    }
    path.write_text(json.dumps(record))
    header, _, digits, *_ = step_share.table(path).splitlines()
    assert header == f"|  | batch | without | {' | '.join(NAMES)} |"
    assert digits.startswith("| three convolutions, 2 filters | 2 | 2.0 ms | ")
    assert digits.split(" | ")[4] == "12% (-1 to 20)"


@pytest.mark.parametrize("content", ["", "[]", '{"kind": "step_share"}'])
def test_a_damaged_record_is_named(content, tmp_path):
    path = tmp_path / "share.json"
    path.write_text(content)
    with pytest.raises(RecordError, match="share.json"):
        step_share.table(path)


def test_a_file_of_another_kind_is_not_overwritten(tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text("{}")
    arguments = ["--quick", "--output", str(path)]
    complaint = f"of {step_share.PROGRAM} or a new file"
    assert_refused(step_share.main, arguments, capsys, "examples.benchmarks.step_share", complaint)
    assert path.read_text() == "{}"


def test_another_backend_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    assert step_share.main(["--quick"]) != 0
    assert "The study runs on tensorflow. Received: jax" in capsys.readouterr().err
