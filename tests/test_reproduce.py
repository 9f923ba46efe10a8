"""The series of runs: what is in it, that each is run once whatever happens, what is refused."""

import collections
import contextlib
import json
import threading
import time

import pytest

from examples.study import experiments, paper, reproduce, simulation
from examples.study import series as series_module
from examples.study.experiments import SCALES, TABLES
from examples.training import callbacks, locks, run
from examples.training.errors import DivergedError, LockedError
from tests.support import child, made_records
from tests.support.command_line import assert_refused


@pytest.fixture
def series(tmp_path):
    return series_module.Series(tmp_path)


@pytest.fixture
def trained(monkeypatch):
    """Trains nothing: the runs that were asked for, in their order. `ends` says how one ends."""
    asked = []

    def train(settings, output_dir, data_dir, verbose, keep_model):
        asked.append(settings)
        time.sleep(0.01)
        return asked.ends(settings)

    asked = Asked()
    monkeypatch.setattr(series_module.run, "train", train)
    monkeypatch.setattr(series_module.keras.utils, "clear_session", lambda: None)  # slow
    return asked


class Asked(list):
    ends = staticmethod(made_records.record)


def diverge(settings):
    raise DivergedError("The loss is nan.")


def smoke(name="table1", **options):
    return experiments.runs(TABLES[name], "smoke", **options)


# What is in it


@pytest.mark.parametrize("scale", SCALES)
def test_a_name_stands_for_one_run(scale):
    settings = collections.defaultdict(list)
    for table in TABLES.values():
        for one in experiments.runs(table, scale):
            settings[one.path].append(one.settings)
    for same in settings.values():
        assert all(one == same[0] for one in same)
    assert len({str(same[0]) for same in settings.values()}) == len(settings)


@pytest.mark.parametrize("name", paper.ACCURACIES)
def test_every_cell_of_the_papers_tables_is_three_runs_of_its_recipe(name):
    cells = collections.Counter()
    for one in experiments.runs(TABLES[name], "paper"):
        cells[one.settings.dataset, one.settings.model, one.arm.name] += 1
        assert (one.settings.epochs, one.settings.drop_epoch) == (100, 80)
        assert one.settings.width is one.settings.train_size is None
    assert set(cells) == set(paper.ACCURACIES[name])
    assert set(cells.values()) == {3}


def test_arms_differ_in_what_the_tables_vary():
    def values(name, read):
        arms = TABLES[name].arms
        return [read(arm) for arm in arms if arm.optimizer == "AdamNorm" and arm.arguments == {}]

    gammas = [arm.arguments.get("gamma", 0.95) for arm in TABLES["table2"].arms]
    assert gammas == [0.9, 0.95, 0.99, 0.999]
    moments = [arm.arguments.get("corrected_moments", "first") for arm in TABLES["table3"].arms]
    assert moments == ["first", "second", "both"]
    assert values("table4", lambda arm: arm.learning_rate) == [0.01, 0.001, 0.0001]
    assert values("table5", lambda arm: arm.batch_size) == [32, 64, 128]
    plain = [arm for arm in TABLES["table5"].arms if arm.arguments == {"gamma": 0.0}]
    assert [arm.batch_size for arm in plain] == [32, 64, 128]


def test_arms_of_the_study_share_their_seeds():
    seeds = collections.defaultdict(list)
    for one in experiments.runs(TABLES["study"], "desk"):
        seeds[one.arm.name].append(one.settings.seed)
    assert seeds.pop("Adam-other-seeds") == [1000, 1001, 1002, 1003, 1004]
    assert set(map(tuple, seeds.values())) == {(0, 1, 2, 3, 4)}
    compared = {name for group in experiments.GROUPS.values() for pair in group for name in pair}
    assert compared == {*seeds, "Adam-other-seeds"}


def test_committed_records_are_of_runs_that_are_declared():
    series = series_module.Series(reproduce.FOLDER)
    found = {str(path.relative_to(series.folder)) for path in series.folder.glob("desk/*/*.json")}
    declared = experiments.runs(TABLES["study"], "desk")
    declared += [one for arm in experiments.trials("desk").values() for one in arm]
    declared += experiments.seed_by_seed(experiments.finals("desk", series).values())
    assert found <= {one.path for one in declared}
    for one in declared:
        series.done(one)  # raises where the settings are others


# Each is run once


def test_a_series_is_trained_once_and_kept(series, trained, capsys):
    planned = smoke(seeds=1)
    series.execute(planned)
    assert trained == [one.settings for one in planned]
    assert [series.record(one)["settings"]["optimizer"] for one in planned] == [
        one.arm.optimizer for one in planned
    ]
    assert "[1/8] smoke/digits-cnn/Adam-seed0: test 50.00%, 60 s; 7 left" in capsys.readouterr().out
    series.execute(planned)
    assert len(trained) == 8


def test_processes_share_a_series(series, trained):
    planned = smoke()
    sharing = [
        threading.Thread(target=series.execute, args=(planned,), kwargs={"patience": 0.01})
        for _ in range(4)
    ]
    for one in sharing:
        one.start()
    for one in sharing:
        one.join()
    assert collections.Counter(map(str, trained)) == {str(one.settings): 1 for one in planned}
    assert all(series.record(one) for one in planned)
    assert list(series.folder.rglob("*.lock")) == []


@contextlib.contextmanager
def busy(series, one):
    """Another process trains a run."""
    lock = series._lock(one)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with locks.hold(lock):
        yield


def test_a_run_in_other_hands_is_waited_for(series, trained, capsys):
    one, *others = smoke(seeds=1)

    def elsewhere(settings):
        """The other process ends its run while the last one of this process is trained."""
        if settings == others[-1].settings:
            series._write(one, made_records.record(one.settings, accuracy=0.9))
        return made_records.record(settings)

    trained.ends = elsewhere
    with busy(series, one):
        assert series.state(one) == "running"
        series.execute([one, *others], patience=0.01)
    assert trained == [other.settings for other in others]
    assert series.record(one)["test"]["accuracy"] == 0.9
    told = capsys.readouterr().out
    assert "Waiting" not in told  # it was done by then


def test_what_is_waited_for_is_named_once(series, trained, capsys, monkeypatch):
    (one,) = smoke(seeds=1)[:1]
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            series._write(one, made_records.record(one.settings))

    monkeypatch.setattr(series_module.time, "sleep", sleep)
    with busy(series, one):
        series.execute([one])
    told = capsys.readouterr().out
    assert told.count("Waiting for other processes to end 1 run, first smoke/digits-cnn/Adam") == 1
    assert f"lock: {series._lock(one)}" in told


def test_two_that_meet_in_a_folder_do_not_stop_the_series(series, trained):
    met = []

    def busy_at_first(settings):
        if not met:
            met.append(settings)
            raise LockedError("Another process is in it.")
        return made_records.record(settings)

    trained.ends = busy_at_first
    series.execute(smoke(seeds=1)[:1], patience=0.01)
    assert len(trained) == 2


def test_a_diverged_run_is_kept_as_failed_and_the_series_goes_on(series, trained):
    planned = smoke(seeds=1)
    trained.ends = lambda settings: (
        diverge(settings) if settings.optimizer == "Radam" else made_records.record(settings)
    )
    series.execute(planned)
    series.execute(planned)
    assert len(trained) == 8
    states = {one.arm.name: series.state(one) for one in planned}
    assert [name for name, state in states.items() if state == "failed"] == ["Radam"]
    (failed,) = [one for one in planned if one.arm.name == "Radam"]
    assert series.record(failed) is None
    assert series.failure(failed) == "The loss is nan."


WAITS_IN_SECOND_EPOCH = """
import pathlib, sys, time
import keras
from examples.study import reproduce, series
from examples.training import run

train = run.train

def watched(settings, output_dir, *rest, **options):
    def wait(epoch, logs):
        if (settings.optimizer, epoch) == ("RadamNorm", 1):
            pathlib.Path(output_dir, "waits").touch()
            time.sleep(1000)

    observer = keras.callbacks.LambdaCallback(on_epoch_begin=wait)
    return train(settings, output_dir, *rest, observers=[observer], **options)

series.run.train = watched
sys.exit(reproduce.main(sys.argv[1:]))
"""


def test_a_killed_series_goes_on_where_it_stopped(tmp_path):
    """A process is killed in the second epoch of its second run; another one takes over."""
    arguments = ["--scale", "smoke", "--folder", str(tmp_path), "--seeds", "1", "--only", "Radam"]
    killed = child.start(["-c", WAITS_IN_SECOND_EPOCH, "table1", *arguments])
    first, second = smoke(seeds=1)[4:6]
    series = series_module.Series(tmp_path)
    try:
        wait_for((series._working_folder(second) / "waits").exists, killed)
    finally:
        killed.kill()
        killed.communicate()
    before = (tmp_path / first.path).read_bytes()
    assert series.state(second) == "open"  # the lock went with the process

    epochs = []
    train = run.train

    def watched(settings, *rest, **options):
        count = callbacks.keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: epochs.append((settings.optimizer, epoch))
        )
        return train(settings, *rest, **options, observers=[count])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series_module.run, "train", watched)
        assert reproduce.main(["table1", *arguments]) == 0
    assert ("RadamNorm", 0) not in epochs  # nothing twice
    assert {name for name, _ in epochs} <= {"RadamNorm"}
    assert (tmp_path / first.path).read_bytes() == before
    assert len(series.record(second)["epochs"]["loss"]) == 2  # nothing lost
    assert list((tmp_path / "work").iterdir()) == []


def wait_for(happened, process):
    for _ in range(2000):
        if happened():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    pytest.fail("it did not happen")


# Shards


def test_shards_share_the_runs_without_a_lock(tmp_path, trained):
    arguments = ["table1", "--scale", "smoke", "--folder", str(tmp_path), "--shard"]
    parts = []
    for shard in ("1/3", "2/3", "3/3"):
        before = len(trained)
        assert reproduce.main([*arguments, shard]) == 0
        parts.append(trained[before:])
    assert [len(part) for part in parts] == [6, 5, 5]
    assert collections.Counter(map(str, trained)) == {str(one.settings): 1 for one in smoke()}


# The tuned pair


def tune(tmp_path, *more):
    return reproduce.main(["tuned", "--scale", "smoke", "--folder", str(tmp_path), *more])


def test_the_rate_that_was_best_on_validation_images_runs_on_fresh_seeds(tmp_path, trained):
    def ends(settings):
        validated = {4.64e-4: 0.8, 2.15e-3: 0.7}.get(settings.learning_rate, 0.1)
        return made_records.record(settings, 1 - validated, validation=[0.9, validated])

    trained.ends = ends
    assert tune(tmp_path) == 0
    trials, finals = trained[:14], trained[14:]
    assert {one.seed for one in trials} == {100}
    assert collections.Counter(one.learning_rate for one in trials) == dict.fromkeys(
        experiments.TUNED_RATES, 2
    )
    assert [(one.seed, one.learning_rate) for one in finals] == [
        (200, 4.64e-4),
        (200, 4.64e-4),
        (201, 4.64e-4),
        (201, 4.64e-4),
    ]


def test_a_side_of_which_nothing_ended_well_is_left_out(tmp_path, trained, capsys):
    trained.ends = lambda settings: (
        made_records.record(settings) if settings.optimizer_arguments else diverge(settings)
    )
    assert tune(tmp_path) == 0
    assert "AdamNorm: the runs on fresh seeds are left out: none of 7 trials succeeded" in (
        capsys.readouterr().out
    )
    assert [one.optimizer_arguments for one in trained[14:]] == [{"gamma": 0.0}] * 2


def test_no_rate_is_best_before_all_were_tried(tmp_path, trained, capsys):
    assert tune(tmp_path, "--only", "AdamNorm-lr0.01-seed100") == 0
    assert len(trained) == 1
    told = capsys.readouterr().out
    assert (
        "AdamNorm: the runs on fresh seeds follow when all trials have ended; 1 of 7 have" in told
    )


# The command line


def test_dry_run_tells_states_and_time(tmp_path, trained, capsys):
    series = series_module.Series(tmp_path)
    planned = smoke("table5")  # Adam and AdamNorm at batches of 32, 64, 128; two seeds
    trained.ends = lambda settings: (
        diverge(settings) if settings.optimizer_arguments else made_records.record(settings)
    )
    series.execute([one for one in planned if one.arm.batch_size == 64])
    arguments = ["table5", "--scale", "smoke", "--folder", str(tmp_path), "--dry-run"]
    with busy(series, planned[0]):
        assert reproduce.main(arguments) == 0
    told = capsys.readouterr().out
    assert "running smoke/digits-cnn/Adam-batch32-seed0\n" in told
    assert "failed  smoke/digits-cnn/Adam-seed0\n" in told
    assert "done    smoke/digits-cnn/AdamNorm-seed1\n" in told
    assert "open    smoke/digits-cnn/AdamNorm-batch128-seed1\n" in told
    assert "12 runs: 2 done, 2 failed, 1 running, 7 open" in told
    # 11,680 multiply-adds an image (see study/cost.py), 320 images, 2 epochs, 8 runs, 1e8 a second.
    seconds = 3 * 11_680 * 320 * 2 * 8 / 1e8
    told_time = f"8 runs of a size that was never run: {seconds:.0f} s, computed and not measured"
    assert told_time in told
    assert "at its median" not in told
    assert len(trained) == 4


def test_time_is_that_of_runs_of_the_same_size(tmp_path, trained, capsys):
    arguments = ["--scale", "smoke", "--folder", str(tmp_path)]
    seconds = iter((50, 70))
    trained.ends = lambda settings: made_records.record(settings, seconds=next(seconds))
    assert reproduce.main(["table2", *arguments, "--only", "gamma0.9-seed"]) == 0
    assert reproduce.main(["table2", *arguments, "--dry-run", "--seeds", "3"]) == 0
    assert "10 runs of a size that was run before: 10 min, at its median" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["tabel1"], "Argument `targets` must be one of table1"),
        (["table1", "--scale", "huge"], "Argument `scale` must be one of paper, desk"),
        (["table1", "--seeds", "0"], "Argument `seeds` must be an integer from 1 to 1000"),
        (["table1", "--seeds", "few"], "must be an integer from 1 to 1000. Received: seeds='few'"),
        (["table1", "--only", "Adan"], "name of a run of table1, such as paper/cifar10-vgg16"),
        (["regret", "--only", "Adam"], "name of a run of regret. Received: Adam"),
        (["tuned"], "Argument `scale` must be one of desk, smoke. Received: scale=paper"),
        (["table1", "--shard", "0/2"], "must be I/N with I from 1 to N, such as 2/8"),
        (["table1", "--shard", "3/2"], "Received: shard='3/2'"),
        (["table1", "--shard", "2"], "Received: shard='2'"),
        ([], "regret, at least 1. Received none"),
    ],
)
def test_mistakes_are_one_line(arguments, complaint, capsys):
    assert_refused(reproduce.main, arguments, capsys, "examples.study.reproduce", complaint)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda record: record["settings"].update(width=5), "its width is 5, not 4"),
        (lambda record: record.pop("test"), "`test` is missing"),
        (None, "is not a record"),
    ],
)
def test_what_is_no_record_of_the_run_is_refused(damage, complaint, tmp_path, trained, capsys):
    (one,) = smoke(seeds=1)[:1]
    record = made_records.record(one.settings)
    text = "half a rec"
    if damage:
        damage(record)
        text = json.dumps(record)
    path = tmp_path / one.path
    path.parent.mkdir(parents=True)
    path.write_text(text)
    arguments = ["table1", "--scale", "smoke", "--folder", str(tmp_path)]
    assert reproduce.main(arguments) == 1
    error = capsys.readouterr().err
    assert complaint in error and str(path) in error
    assert trained == []
    assert path.read_text() == text


@pytest.mark.parametrize("target", ["table1", "figure1"])
@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_folder_that_cannot_be_used_is_told_before_any_work(
    target, folder, tmp_path, trained, monkeypatch, capsys
):
    monkeypatch.setattr(simulation, "record", lambda name: pytest.fail("computed"))
    (tmp_path / "file").write_text("")
    arguments = [target, "--scale", "smoke", "--folder", str(tmp_path / folder)]
    assert reproduce.main(arguments) == 1
    error = capsys.readouterr().err
    assert f"Cannot use the output folder {tmp_path / folder}" in error
    assert error.count("\n") == 1
    assert trained == []


def test_foreign_files_beside_the_records_are_nobodys_runs(tmp_path, trained, capsys):
    beside = tmp_path / "smoke" / "digits-cnn"
    beside.mkdir(parents=True)
    for name, text in {"a": "[1, 2]", "b": '{"seconds": 3}', "c": "{", "d": "[" * 100_000}.items():
        (beside / f"{name}.json").write_text(text)
    arguments = ["table1", "--scale", "smoke", "--folder", str(tmp_path)]
    assert reproduce.main([*arguments, "--dry-run"]) == 0
    assert "16 runs of a size that was never run" in capsys.readouterr().out
    assert reproduce.main([*arguments, "--seeds", "1"]) == 0
    assert len(trained) == 8


def test_simulation_is_computed_once(tmp_path, monkeypatch, capsys):
    computed = []

    def figure1(settings):
        computed.append(settings)
        return {"S1": [1 / 3]}

    monkeypatch.setitem(simulation.SIMULATIONS, "figure1", (figure1, {"steps": 2}))
    arguments = ["figure1", "--folder", str(tmp_path)]
    assert reproduce.main([*arguments, "--dry-run"]) == 0
    assert "open    simulation/figure1" in capsys.readouterr().out
    for _ in range(2):
        assert reproduce.main(arguments) == 0
    record = json.loads((tmp_path / "simulation" / "figure1.json").read_text())
    assert record["settings"] == {"steps": 2}
    assert record["results"] == {"S1": [0.33333]}
    assert computed == [{"steps": 2}]
    monkeypatch.setitem(simulation.SIMULATIONS, "figure1", (figure1, {"steps": 3}))
    assert reproduce.main(arguments) == 0
    assert len(computed) == 2
