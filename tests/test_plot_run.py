"""The picture of a run: what it shows, and what is refused."""

import json

import pytest
from matplotlib import image

from examples import plot_run
from examples.training.recipes import Settings
from tests.support import made_records
from tests.support.command_line import assert_refused
from tests.support.tiny import TINY

NAME = "examples.plot_run"


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(made_records.record(Settings(**TINY))))
    return path


def test_a_picture_is_drawn_and_named(record, capsys):
    assert plot_run.main([str(record)]) == 0
    picture = record.with_name("curves.png")
    assert capsys.readouterr().out == f"{picture}\n"
    assert image.imread(picture).shape[2] == 4
    other = record.with_name("other.svg")
    assert plot_run.main([str(record), "--output", str(other)]) == 0
    assert other.read_text().startswith("<?xml")


def test_an_epoch_of_which_nothing_was_observed_is_a_gap(record, capsys):
    content = json.loads(record.read_text())
    content["epochs"]["gradient_norm"][0] = None
    record.write_text(json.dumps(content))
    assert plot_run.main([str(record)]) == 0


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda r: r["settings"].pop("model"), "`settings.model` is missing"),
        (lambda r: r.pop("settings"), "`settings` is missing"),
        (lambda r: r["test"].pop("accuracy"), "`test.accuracy` is missing"),
        (lambda r: r["test"].update(accuracy=float("nan")), "`test.accuracy` is nan"),
        (lambda r: r["device"].update(gpus=[1]), "`device.gpus` is [1]"),
        (lambda r: r.update(validation={}), "`validation.accuracy` is missing"),
        (lambda r: r["epochs"]["loss"].pop(), "the curve `loss` does not have"),
        (lambda r: r["epochs"]["loss"].__setitem__(0, {}), "the curve `loss` has a value that"),
        (lambda r: r.update(schema=2), "has schema 2, this program reads 1"),
    ],
)
def test_what_is_no_record_is_named(damage, complaint, record, capsys):
    content = json.loads(record.read_text())
    damage(content)
    record.write_text(json.dumps(content))
    assert plot_run.main([str(record)]) == 1
    error = capsys.readouterr().err
    assert complaint in error and str(record) in error and error.count("\n") == 1
    assert not record.with_name("curves.png").exists()


def test_wrong_options_are_refused_on_one_line(record, capsys):
    for arguments, complaint in {
        f"{record} --output curves.xyz": "`output` must be a file that ends in one of",
        f"{record.parent}": "`record` must be a file, not a folder",
        "": "`record` must be a file, not a folder or a device, at least 1. Received none",
        "/dev/null": "`record` must be a file, not a folder or a device. Received: record=/dev/n",
    }.items():
        assert_refused(plot_run.main, arguments.split(), capsys, NAME, complaint)
    assert plot_run.main([f"{record.parent}/none.json"]) == 1
    assert "none.json" in capsys.readouterr().err
