"""The record of a measurement that can be continued, and what is told of it."""

import json

import pytest

from examples.benchmarks import step_time, step_time_tables, updates
from tests.support.command_line import assert_refused


def ratio(value):
    return {"median": value, "lower_quartile": value - 0.1, "upper_quartile": value + 0.1}


def row(milliseconds, first_update, adam=10.0):
    return {
        "milliseconds": ratio(milliseconds),
        "ratio_to_adam": ratio(milliseconds / adam),
        "seconds_to_first_update": first_update,
    }


def rows(ours, first_update):
    return {"Adam": row(10.0, 2.0), "AdamNorm": row(ours, first_update)}


RECORD = {
    "device": {"backend": "tensorflow", "gpus": [], "cores": 2, "processor": "a processor"},
    "rounds": 7,
    "updates": {"vgg16": {"eager": rows(1.0, 9.0), "graph": rows(6.0, 3.0)}},
}


def test_parts_that_are_there_are_not_measured_again(tmp_path):
    path, calls = tmp_path / "records" / "one.json", []

    def measured():
        calls.append(1)
        return len(calls)

    record = step_time.Record(path, rounds=3)
    assert record.part("updates/vgg16/graph", measured) == 1
    assert record.part("updates/vgg16/graph", measured) == 1
    again = step_time.Record(path, rounds=3)
    assert again.part("updates/vgg16/graph", measured) == 1
    assert again.part("updates/vgg16/xla", measured) == 2
    assert step_time.Record(path, rounds=3).part("updates/vgg16/xla", measured) == 2
    other = step_time.Record(path, rounds=5)
    assert other.part("updates/vgg16/graph", measured) == 3


def test_a_record_is_replaced_once_all_is_measured(tmp_path):
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"kind": "step_time", "updates": {"vgg16": {"graph": 1}}, "fit": 2}))
    before = path.read_text()
    record = step_time.Record(path, rounds=3)
    record.part("updates/vgg16/graph", lambda: 3)
    assert path.read_text() == before
    # What the old one has besides would be lost.
    assert "it has parts that were not measured: fit" in record.finish()
    assert path.read_text() == before and record.partial.exists()
    again = step_time.Record(path, rounds=3)
    assert again.part("updates/vgg16/graph", lambda: pytest.fail("measured again")) == 3
    again.part("fit", lambda: 4)
    assert again.finish() == str(path)
    assert not again.partial.exists()
    new = json.loads(path.read_text())
    assert (new["updates"], new["fit"]) == ({"vgg16": {"graph": 3}}, 4)


def test_a_stopped_measurement_leaves_the_record_alone(tmp_path, monkeypatch, capsys):
    path = tmp_path / "one.json"
    path.write_text('{"kind": "step_time", "updates": {}}')
    before = path.read_text()

    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(updates, "model_shapes", lambda name: [(2, 2)])
    monkeypatch.setattr(updates, "measure", lambda *arguments: rows(6.0, 3.0))
    monkeypatch.setattr(updates, "memory_speed", stop)
    arguments = ["--models", "cnn", "--modes", "graph", "--output", str(path)]
    assert step_time.main(arguments) == 130
    assert capsys.readouterr().err.endswith("interrupted; the same command goes on\n")
    assert path.read_text() == before
    assert "graph" in path.with_name("one.json.partial").read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--rounds 0", "`rounds` must be an integer from 1 to 10000. Received: rounds=0"),
        ("--models", "Argument `models` must be one of vgg16, resnet18, resnet50, resnet8, cnn"),
        ("--models --modes graph", "cnn, at least 1. Received none"),
        ("--models alexnet", "Argument `models` must be one of vgg16"),
        ("--modes jit", "`modes` must be of eager, graph, xla, with the backend tensorflow"),
        ("--skip all", "Argument `skip` must be one of fit, scaling, memory"),
        ("--output odd.json", "odd.json is damaged or of another program"),
        ("--output .", "Argument `output` must be a file, not a folder"),
        ("--output foreign.json", "`output` must be a record of python -m examples.benchmarks"),
        ("--output broken.json", "broken.json is not a record"),
    ],
)
def test_wrong_options_are_refused_on_one_line(arguments, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign.json").write_text('{"kind": "other"}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "odd.json").write_text('{"kind": "step_time", "updates": [1]}')
    name = "examples.benchmarks.step_time"
    assert_refused(step_time.main, arguments.split(), capsys, name, complaint)


def test_a_place_that_takes_no_record_is_told_before_anything_is_measured(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(updates, "measure", lambda *arguments: pytest.fail("measured"))
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "one.json"
    assert step_time.main(["--models", "cnn", "--output", str(path)]) == 1
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error and error.count("\n") == 1


def test_no_path_keeps_nothing():
    assert step_time.Record(None, rounds=1).part("fit", lambda: 4) == 4


def test_ratios_and_compilation():
    told = step_time_tables.tables(RECORD, "one.json")
    assert "tensorflow on 2 cores of a processor; medians of 7 rounds with quartiles; one" in told
    assert "|  | vgg16, eager | vgg16, graph |" in told
    assert "| Adam | 10.0 ms | 10.0 ms |" in told
    assert "| AdamNorm | 0.10 (0.00 to 0.20) | 0.60 (0.50 to 0.70) |" in told
    # One second more, four milliseconds less at each step.
    assert "AdamNorm 3.0 s, Adam 2.0 s, saved by later updates after 250 steps." in told
    assert "MB" not in told and "Fitted" not in told and "model.fit" not in told


@pytest.mark.parametrize(
    ("ours", "first_update", "complaint"),
    [(12.0, 3.0, "later updates save nothing."), (6.0, 2.0, "Adam 2.0 s.")],
)
def test_compilation_that_does_not_pay_or_costs_nothing(ours, first_update, complaint):
    record = RECORD | {"updates": {"vgg16": {"graph": rows(ours, first_update)}}}
    assert step_time_tables.tables(record, "one.json").endswith(complaint)


def test_memory_growth_and_fit():
    memory = {"state_bytes": 2_000_000, "scalars": 3, "update_bytes": 500_000}
    growth = {
        "mode": "graph",
        "rows": [{"parameters": 10_000, "variables": 10, "optimizers": rows(6.0, 3.0)}],
        "fitted_cost": {
            "AdamNorm": {"nanoseconds_per_parameter": 1.5, "microseconds_per_variable": 20.0}
        },
    }
    told = step_time_tables.tables(
        RECORD
        | {
            "memory": {"eager": {"Adam": memory}, "graph": {"Adam": memory | {"update_bytes": 0}}},
            "scaling": growth,
            "fit": {"parameters": 1000, "batch_size": 4, "ratio_to_adam": ratio(0.9)},
            "memory_gigabytes_per_second": 28.0,
        },
        "one.json",
    )
    assert "| Adam | 2.0 | 3 | 0.5 | 0.0 |" in told
    assert "| 10,000 | 10 | 10.000 ms | 0.60 (0.50 to 0.70) |" in told
    assert "Fitted (graph): AdamNorm 1.50 ns a parameter and 20 µs a variable." in told
    assert "28.0 GB/s: 1.00 ns" in told
    assert "1,000 parameters and batches of 4: AdamNorm takes 0.90 (0.80 to 1.00)" in told


LOOP = "AdamNorm, a plain loop"


def test_plain_loops_are_told_where_they_were_measured():
    measured = rows(1.0, 9.0) | {LOOP: row(4.0, 1.0)}
    measured["AdamNorm"]["ratio_to_plain_loop"] = ratio(0.25)
    record = RECORD | {"updates": {"vgg16": {"eager": measured}}}
    told = step_time_tables.tables(record, "one.json")
    assert f"| {LOOP} | 0.40 (0.30 to 0.50) |" in told
    assert "Beside a plain loop over the variables, written in torch:" in told
    assert "| AdamNorm | 0.25 (0.15 to 0.35) |" in told
    assert "plain loop" not in step_time_tables.tables(RECORD, "one.json")


def test_the_ratio_to_a_plain_loop_is_of_the_same_round(monkeypatch):
    times = {"Adam": 1.0, "AdamNorm": 1.0, LOOP: 4.0}

    class Candidate:
        seconds_to_first_update = 0.0

        def __init__(self, make, *rest):
            self._time, self._runs = make, 0

        def run(self, number):
            self._runs += 1
            return self._time * self._runs * number

    monkeypatch.setattr(updates, "Candidate", Candidate)
    measured = updates.measure(times, [(2, 2)], "eager", 3, 1e-9)
    assert measured["AdamNorm"]["ratio_to_plain_loop"]["lower_quartile"] == 0.25
    assert [name for name, row in measured.items() if "ratio_to_plain_loop" in row] == ["AdamNorm"]
