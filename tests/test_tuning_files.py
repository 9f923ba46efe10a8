"""Searches whose files are missing or damaged: what is whole is kept, and the rest is named."""

import json
import shutil

import pytest

from examples.training import checkpoint, records, run
from tests.support.tuning_fakes import FakeTrain, in_this_process, plan
from tuning import report, search, trial_process
from tuning.project import SearchError


@pytest.fixture
def fake(monkeypatch):
    train = FakeTrain()
    in_this_process(monkeypatch)
    monkeypatch.setattr(run, "train", train)
    monkeypatch.setattr(report, "draw", lambda document, path: path.touch())
    return train


def rewrite(path, **changes):
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))


def nest(path):
    path.write_text("[" * 100_000)


DAMAGES = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_text(""),
    "cut short": lambda path: path.write_text(path.read_text()[:-20]),
    "bytes": lambda path: path.write_bytes(b"\xff\xfe\x00" * 50),
    "a list": lambda path: path.write_text("[1, 2]"),
    "null": lambda path: path.write_text("null"),
    "without content": lambda path: path.write_text("{}"),
    "nested": nest,
}
TRIAL_DAMAGES = DAMAGES | {
    "an unknown status": lambda path: rewrite(path, status="ABANDONED"),
    "no score": lambda path: rewrite(path, score=None),
    "a score that is no number": lambda path: rewrite(path, score=float("nan")),
    "another score": lambda path: rewrite(path, score=0.99),
    "another trial": lambda path: rewrite(path, trial_id="3"),
    "other settings": lambda path: rewrite(path, hyperparameters={"space": [], "values": {}}),
    "metrics that are a text": lambda path: rewrite(path, metrics="all"),
}


@pytest.mark.parametrize("damage", TRIAL_DAMAGES)
def test_a_trial_whose_file_is_damaged_is_made_again_from_its_record(
    damage, fake, tmp_path, capsys
):
    folder, rows = search.search(plan(), tmp_path)
    path = folder / "trial_1" / "trial.json"
    before = json.loads(path.read_text())
    TRIAL_DAMAGES[damage](path)
    fake.trained.clear()
    capsys.readouterr()
    assert search.search(plan(), tmp_path)[1] == rows
    assert fake.trained == []
    printed = capsys.readouterr().out
    assert printed.count("Trial 1 is run again: ") == 1
    assert str(path) in printed
    assert json.loads(path.read_text()) == before


def test_a_trial_whose_folder_is_missing_is_trained_again(fake, tmp_path, capsys):
    folder, rows = search.search(plan(), tmp_path)
    shutil.rmtree(folder / "trial_1")
    fake.trained.clear()
    assert search.search(plan(), tmp_path)[1] == rows
    assert [path.parent.name for _, path in fake.trained] == ["trial_1"]
    assert f"{folder}/trial_1/trial.json is missing" in capsys.readouterr().out


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_trial_whose_record_is_damaged_is_trained_again(damage, fake, tmp_path, capsys):
    folder, rows = search.search(plan(executions_per_trial=2), tmp_path)
    path = folder / "trial_1" / "execution1" / run.RECORD
    DAMAGES[damage](path)
    fake.trained.clear()
    assert search.search(plan(executions_per_trial=2), tmp_path)[1] == rows
    assert [trained for _, trained in fake.trained] == [path.parent]
    printed = capsys.readouterr().out
    assert printed.count("Trial 1 is run again: ") == 1
    assert str(path) in printed
    assert path.with_name("record.json.damaged").exists() == (damage != "missing")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_failed_trial_whose_reason_is_damaged_stays_failed(damage, fake, tmp_path):
    fake.failing = lambda settings: len(fake.trained) == 2
    folder, rows = search.search(plan(), tmp_path)
    path = folder / "trial_1" / "failed.json"
    DAMAGES[damage](path)
    _, again = search.search(plan(), tmp_path)
    assert again[1].pop("reason") == f"unknown, {path} is missing or damaged"
    rows[1].pop("reason")
    assert again == rows


PROPOSED = {"learning_rate": 0.001, "one_minus_gamma": 0.01}


def change_proposal(path, values):
    proposals = json.loads(path.read_text())["proposals"]
    rewrite(path, proposals=proposals | {"1": values})


ORACLE_DAMAGES = {name: DAMAGES[name] for name in DAMAGES if name != "missing"} | {
    "another version": lambda path: rewrite(path, seed_state=None),
    "a trial too many": lambda path: rewrite(path, start_order=["0", "1", "2", "3", "4", "7"]),
    "a trial twice": lambda path: rewrite(path, start_order=["0", "1", "2", "3", "4", "4"]),
    "a trial elsewhere": lambda path: rewrite(path, start_order=["../0"], proposals={"../0": {}}),
    "a worker at a trial that is not there": lambda path: rewrite(path, ongoing_trials={"a": "7"}),
    "no proposals": lambda path: rewrite(path, proposals=[]),
    "a proposal of nothing": lambda path: change_proposal(path, {}),
    "a proposal of text": lambda path: change_proposal(path, PROPOSED | {"learning_rate": "x"}),
    "a proposal outside": lambda path: change_proposal(path, PROPOSED | {"one_minus_gamma": -1}),
    "times that are none": lambda path: rewrite(
        path, display={"search_start": "soon", "trial_start": {}, "trial_number": {}}
    ),
}


@pytest.mark.parametrize("damage", ORACLE_DAMAGES)
def test_a_damaged_oracle_is_named_and_deleting_it_loses_no_trial(damage, fake, tmp_path):
    folder, rows = search.search(plan(), tmp_path)
    path = folder / "oracle.json"
    ORACLE_DAMAGES[damage](path)
    with pytest.raises(SearchError) as caught:
        search.search(plan(), tmp_path)
    assert str(path) in str(caught.value)
    assert "Delete it and start the same command again" in str(caught.value)
    path.unlink()
    fake.trained.clear()
    assert search.search(plan(), tmp_path)[1] == rows
    assert fake.trained == []


def test_a_trial_that_had_other_settings_is_put_aside(fake, tmp_path, capsys):
    """As when `oracle.json` was deleted, and workers now come back in another order."""
    folder, rows = search.search(plan(), tmp_path)
    (folder / "oracle.json").unlink()
    path = folder / "trial_1" / "trial.json"
    hyperparameters = json.loads(path.read_text())["hyperparameters"]
    hyperparameters["values"] = {"learning_rate": 0.005, "one_minus_gamma": 0.01}
    rewrite(path, hyperparameters=hyperparameters)
    assert search.search(plan(), tmp_path)[1] == rows
    assert (folder / "old-1-trial_1" / "execution0" / run.RECORD).exists()
    assert "old-1-trial_1 is what trial_1 was before" in capsys.readouterr().out


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "missing"])
def test_a_folder_that_does_not_say_whose_it_is(damage, fake, tmp_path):
    folder, rows = search.search(plan(), tmp_path)
    path = folder / "search.json"
    DAMAGES[damage](path)
    if damage == "without content":  # whole, but another's
        expected = pytest.raises(Exception, match="holds another search")
    else:
        expected = pytest.raises(SearchError, match="Delete it, and the same command goes on")
    with expected as caught:
        search.search(plan(), tmp_path)
    assert str(folder) in str(caught.value)
    path.unlink()
    fake.trained.clear()
    assert search.search(plan(), tmp_path)[1] == rows
    assert fake.trained == []


def test_a_record_that_is_lost_while_the_search_runs_is_named(fake, tmp_path):
    folder, _ = search.search(plan(max_trials=1), tmp_path)
    path = folder / "trial_0" / "execution0" / run.RECORD
    fake.failing = lambda settings: path.unlink()
    with pytest.raises(SearchError, match="record.json is missing") as caught:
        search.search(plan(max_trials=2), tmp_path)
    assert str(path) in str(caught.value)


def test_damaged_checkpoints_are_put_aside(tmp_path, monkeypatch):
    """The one before is taken, and without one the run begins anew."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for number, content in ((1, b"one"), (2, b"two"), (3, b"three")):
        temporary = folder / "temporary"
        temporary.write_bytes(content)
        temporary.rename(folder / f"epoch-{number:04d}-{checkpoint._digest(temporary)}.keras")
    for number in (3, 2, 1):
        last = checkpoint.list_all(folder)[-1]
        assert last[0] == number
        last[1].write_bytes(b"damaged")
        trial_process.set_aside_damaged(tmp_path)
    assert checkpoint.list_all(folder) == []
    assert len(list(folder.glob("*.damaged"))) == 3


def test_a_whole_record_stays(tmp_path, fake):
    folder, _ = search.search(plan(max_trials=1), tmp_path)
    run_folder = folder / "trial_0" / "execution0"
    before = records.read(run_folder / run.RECORD)
    trial_process.set_aside_damaged(run_folder)
    assert records.read(run_folder / run.RECORD) == before
