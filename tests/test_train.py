"""The training program: what it writes, what it refuses, and that a kill loses nothing."""

import contextlib
import csv
import dataclasses
import errno
import io
import itertools
import json
import math
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples import train
from examples.training import callbacks, checkpoint, data, models, recipes, records, run
from examples.training.errors import DivergedError, LockedError, RunError, UsageError
from examples.training.recipes import Settings
from tests.support.tiny import TINY as BASE

ROOT = pathlib.Path(__file__).parents[1]
TINY = BASE | dict(width=8, epochs=3, learning_rate=0.01)


def tiny(**changes):
    return Settings(**(TINY | changes))


def options(**changes):
    """The command line of `tiny`; what is None is not given."""
    given = {k: v for k, v in (TINY | changes).items() if v is not None}
    pairs = ((f"--{k.replace('_', '-')}", str(v)) for k, v in given.items())
    return list(itertools.chain.from_iterable(pairs))


# With this gamma the average reaches the gradients' norm within the few steps of a tiny run.
QUICK = {"optimizer_arguments": {"gamma": 0.5}}


def start(arguments=None, code=None):
    """Starts the program, or code that calls it, as a process of its own."""
    command = ["-c", code] if code else ["-m", "examples.train", *arguments]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def without_times(record):
    """What must not depend on when and how often a run was started."""
    curves = {k: v for k, v in record["epochs"].items() if k != "seconds"}
    kept = {k: v for k, v in record.items() if k not in ("seconds", "finished", "commit")}
    return kept | {"epochs": curves}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, its record and its folder."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    settings = tiny(test_every_epoch=True, monitor="step", **QUICK)
    return settings, run.train(settings, folder, verbose=0), folder


def test_record_holds_settings_curves_and_results(finished):
    settings, record, folder = finished
    assert record == records.read(folder / run.RECORD)
    assert record["settings"] == settings.as_dict()
    curves = record["epochs"]
    assert {len(curve) for curve in curves.values()} == {3}
    assert np.allclose(curves["learning_rate"], [0.01, 0.01, 0.001])
    assert record["test"]["accuracy"] == curves["test_accuracy"][-1]
    best = max(curves["test_accuracy"])
    assert record["test"]["best_epoch_accuracy"] == best
    assert curves["test_accuracy"].index(best) + 1 == record["test"]["best_epoch"]
    assert record["validation"]["accuracy"] == curves["val_accuracy"][-1]
    assert record["optimizer"]["config"]["gamma"] == 0.5
    assert record["data"]["train_examples"] == 96
    assert record["versions"]["keras"] == keras.__version__
    assert record["device"]["cores"] >= 1
    assert record["seconds"] == pytest.approx(sum(curves["seconds"]))


def test_record_holds_the_bounds_on_threads(monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = records.device()["threads"]
    assert threads["TF_NUM_INTRAOP_THREADS"] == "1" and "OMP_NUM_THREADS" not in threads


def test_record_holds_what_the_correction_did(finished):
    _, record, folder = finished
    corrections = record["corrections"]
    assert 0 < corrections["corrections_fired"] < 1
    assert 0 < corrections["gradient_norm"] < corrections["corrected_gradient_norm"]
    with np.load(folder / "gradient_norms.npz") as steps:
        assert steps["iterations"].tolist() == list(range(1, 10))
        assert steps["gradient_norms"].shape == (9, len(steps["variable_names"]))
        assert corrections["gradient_norm"] == pytest.approx(steps["gradient_norms"].mean())


def test_metrics_go_to_csv_and_tensorboard(finished):
    _, record, folder = finished
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    for name, curve in record["epochs"].items():
        assert [float(row[name]) for row in rows] == curve
    assert len(list(folder.glob("tensorboard/*/events*"))) == 2


def test_trained_model_loads_with_its_optimizer(finished):
    settings, record, folder = finished
    model = keras.models.load_model(folder / "model.keras")
    assert int(model.optimizer.iterations) == 9
    dataset = data.load("synthetic", 32, image_size=8, train_size=96, validation_size=32)
    accuracy = model.evaluate(dataset.test, verbose=0, return_dict=True)["accuracy"]
    assert accuracy == pytest.approx(record["test"]["accuracy"])
    assert not (folder / "checkpoints").exists()


def test_finished_run_is_left_as_it_is(finished, capsys):
    settings, record, folder = finished
    before = (folder / run.RECORD).stat().st_mtime_ns
    arguments = options(output_dir=folder, monitor="step", gamma=0.5) + ["--test-every-epoch"]
    assert train.main(arguments) == 0
    assert "Done already" in capsys.readouterr().out
    assert (folder / run.RECORD).stat().st_mtime_ns == before


def test_folder_of_another_finished_run_is_refused(finished):
    settings, _, folder = finished
    with pytest.raises(RunError, match=r"another run: its seed is 0, not 1"):
        run.train(tiny(test_every_epoch=True, monitor="step", seed=1, **QUICK), folder)


def test_a_killed_run_ends_as_an_unbroken_one(tmp_path):
    """Same seed, same weights; killed twice, still the same."""
    arguments = options(epochs=4, monitor="step") + ["--deterministic"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    unbroken = start([*arguments, "--output-dir", str(whole)])

    # From outside, when an epoch is finished. It waits there, so that it can't end before.
    process = start(
        code="import time\n"
        "from examples import train\n"
        "from examples.training import records\n"
        "settle = records.settle\n"
        "def wait(old, new):\n"
        "    settle(old, new)\n"
        "    if new.suffix == '.keras': time.sleep(1000)\n"
        "records.settle = wait\n"
        f"train.main({[*arguments, '--output-dir', str(broken)]!r})"
    )
    while not list(broken.glob("checkpoints/epoch-*")) and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output

    # From inside, when a checkpoint is written but not under its name yet.
    process = start(
        code="import os, signal\n"
        "from examples import train\n"
        "from examples.training import records\n"
        "settle = records.settle\n"
        "def die(old, new):\n"
        "    if new.suffix == '.keras': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    settle(old, new)\n"
        "records.settle = die\n"
        f"train.main({[*arguments, '--output-dir', str(broken)]!r})"
    )
    output, _ = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, output
    assert "Going on after epoch" in output

    process = start([*arguments, "--output-dir", str(broken)])
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    unbroken.communicate(timeout=300)
    assert unbroken.returncode == 0

    expected, found = records.read(whole / run.RECORD), records.read(broken / run.RECORD)
    assert without_times(found) == without_times(expected)
    with np.load(whole / "gradient_norms.npz") as a, np.load(broken / "gradient_norms.npz") as b:
        assert all(np.array_equal(a[name], b[name]) for name in a)
    rows = (broken / "metrics.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["epoch", "1", "2", "3", "4"]
    left = {path.name for path in broken.iterdir()}
    assert left == {path.name for path in whole.iterdir()}


def interrupt(settings, folder, epoch):
    """Runs until an epoch has begun, then stops as Ctrl-C would."""

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, number, logs=None):
            if number == epoch:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.train(settings, folder, verbose=0, observers=[Interrupt()])


def test_a_run_stopped_before_its_record_needs_no_training(tmp_path, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(records, "write", stop)
        run.train(tiny(optimizer="Adam"), tmp_path, verbose=0)
    monkeypatch.setattr(keras.Model, "train_step", stop)
    record = run.train(tiny(optimizer="Adam"), tmp_path, verbose=0)
    assert len(record["epochs"]["loss"]) == 3


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped after its second epoch: its settings and its folder."""
    settings = tiny(optimizer="Adam")
    folder = tmp_path_factory.mktemp("stopped") / "run"
    interrupt(settings, folder, epoch=2)
    return settings, folder


@pytest.fixture
def broken(stopped, tmp_path):
    """A copy of it, and its two checkpoints."""
    settings, folder = stopped
    shutil.copytree(folder, tmp_path / "run")
    return settings, *(path for _, path in checkpoint.list_all(tmp_path / "run" / "checkpoints"))


def test_a_checkpoint_of_another_run_is_refused(broken):
    _, first, second = broken
    with pytest.raises(RunError, match=r"another run: its batch_size is 32, not 16"):
        run.train(tiny(optimizer="Adam", batch_size=16), first.parents[1])
    assert first.exists() and second.exists()


def renamed(path, content, epoch):
    """Puts content under the name that a checkpoint of this epoch with it would have."""
    path.write_bytes(content)
    digest = checkpoint._digest(path)
    return path.rename(path.with_name(f"epoch-{epoch:04d}-{digest}.keras"))


def rewritten(content, change):
    """The bytes of a checkpoint after a change of what it says of its run."""

    def changed(text):
        state = json.loads(text)
        return json.dumps(change(state) or state)

    return with_member(content, "run.json", changed)


def with_member(content, name, change):
    """The bytes of a checkpoint after a change of the bytes of one member."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[name] = change(members.get(name))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return buffer.getvalue()


def foreign():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("something", "else")
    return buffer.getvalue()


def lengthened(state):
    """A whole state of nine epochs, of a run that has three."""
    state["epoch"] = 9
    for curve in state["run"]["curves"].values():
        curve += [0.5] * 7


DAMAGES = {
    "a changed byte": lambda path, whole: path.write_bytes(
        whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]
    ),
    "cut short": lambda path, whole: path.write_bytes(whole[:-100]),
    "empty": lambda path, whole: path.write_bytes(b""),
    "another program's": lambda path, whole: renamed(path, b"something else", 2),
    "another archive": lambda path, whole: renamed(path, foreign(), 2),
    "a renamed epoch": lambda path, whole: renamed(path, whole, 9),
    "an epoch too many": lambda path, whole: renamed(path, rewritten(whole, lengthened), 9),
    "no curves": lambda path, whole: renamed(
        path, rewritten(whole, lambda state: state["run"].pop("curves") and None), 2
    ),
    "a list": lambda path, whole: renamed(path, rewritten(whole, lambda state: [state]), 2),
    "curves of text": lambda path, whole: renamed(
        path, rewritten(whole, lambda state: state["run"]["curves"].update(loss=["a", "b"])), 2
    ),
    "a curve missing": lambda path, whole: renamed(
        path, rewritten(whole, lambda state: state["run"]["curves"].pop("loss") and None), 2
    ),
    "empty arrays": lambda path, whole: renamed(
        path, with_member(whole, "run.npz", lambda member: b""), 2
    ),
    "short curves": lambda path, whole: renamed(
        path, rewritten(whole, lambda state: state["run"]["curves"]["loss"].pop() and None), 2
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_a_damaged_checkpoint_the_one_before_is_taken(damage, broken, capsys):
    settings, first, second = broken
    DAMAGES[damage](second, second.read_bytes())
    begun = []
    count = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch))
    record = run.train(settings, first.parents[1], verbose=0, observers=[count])
    assert begun == [1, 2]
    assert len(record["epochs"]["loss"]) == 3
    told = capsys.readouterr().out
    assert told.count(" is damaged: ") == 1
    assert "Going on after epoch 1 of 3" in told


@pytest.mark.parametrize("content", [b"", b"no weights"])
def test_of_a_checkpoint_without_weights_the_one_before_is_taken(content, broken, capsys):
    settings, first, second = broken
    whole = second.read_bytes()
    path = renamed(second, with_member(whole, "model.weights.h5", lambda member: content), 2)
    record = run.train(settings, first.parents[1], verbose=0)
    assert len(record["epochs"]["loss"]) == 3
    told = capsys.readouterr().out
    assert told.count(f"The checkpoint {path} does not fit the model: ") == 1
    assert "Going on after epoch 1 of 3" in told


def test_a_checkpoint_that_cannot_be_read_is_not_passed_over(broken, monkeypatch):
    settings, first, second = broken

    def load(self, path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(keras.Model, "load_weights", load)
    with pytest.raises(RunError, match="Input/output error") as caught:
        run.train(settings, first.parents[1], verbose=0)
    assert str(second) in str(caught.value)
    assert first.exists() and second.exists()


@pytest.mark.parametrize("damage", ["missing", "other", "short", "text"])
def test_norms_of_all_steps_that_are_damaged_are_noticed(damage, tmp_path, capsys):
    settings = tiny(monitor="step", epochs=3)
    interrupt(settings, tmp_path, epoch=2)
    path = checkpoint.list_all(tmp_path / "checkpoints")[-1][1]

    def change(member):
        with np.load(io.BytesIO(member)) as saved:
            arrays = dict(saved)
        if damage == "missing":
            arrays.pop("iterations")
        elif damage == "other":
            arrays = {"other": np.ones(3)}
        elif damage == "short":
            arrays["iterations"] = arrays["iterations"][1:]
        else:
            arrays["gradient_norms"] = np.full(arrays["gradient_norms"].shape, "x")
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    renamed(path, with_member(path.read_bytes(), "run.npz", change), 2)
    run.train(settings, tmp_path, verbose=0)
    told = capsys.readouterr().out
    assert "is damaged: it lacks the norms of all steps" in told
    with np.load(tmp_path / "gradient_norms.npz") as saved:
        assert saved["iterations"].tolist() == list(range(1, 10))


def test_without_a_sound_checkpoint_the_run_starts_anew(broken, capsys):
    settings, first, second = broken
    for path in (first, second):
        path.write_bytes(b"")
    record = run.train(settings, first.parents[1], verbose=0)
    assert len(record["epochs"]["loss"]) == 3
    assert capsys.readouterr().out.count(" is damaged: ") == 2


def test_a_run_is_not_resumed_on_another_backend(broken, monkeypatch):
    settings, first, _ = broken
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with zipfile.ZipFile(first) as archive:
        identity = json.loads(archive.read("run.json"))["run"]
    identity = {name: identity[name] for name in ("settings", "data")} | {"backend": "jax"}
    keeper = callbacks.Keeper(first.parents[1], identity)
    with pytest.raises(RunError, match="another run: its backend is tensorflow, not jax"):
        keeper.restore(None)


def test_checkpoint_of_other_data_is_refused(tmp_path, monkeypatch):
    settings = tiny(optimizer="Adam")
    interrupt(settings, tmp_path, epoch=1)
    load = data.load

    def load_other(*args, **kwargs):
        return dataclasses.replace(load(*args, **kwargs), fingerprint="other")

    monkeypatch.setattr(data, "load", load_other)
    with pytest.raises(RunError, match="another run: its data is synthetic.*, not other"):
        run.train(settings, tmp_path)


@contextlib.contextmanager
def full_disk():
    """A callback after which no file can grow beyond some bytes, whoever writes it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Full(keras.callbacks.Callback):
        def __init__(self, epoch, room):
            super().__init__()
            self.epoch, self.room = epoch, room

        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations == 3 * self.epoch + 3:
                resource.setrlimit(resource.RLIMIT_FSIZE, (self.room, limits[1]))

    try:
        yield Full
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_full_disk_is_told_by_the_event_files_too(tmp_path):
    with full_disk() as full, pytest.raises(RunError, match="Cannot write event files.*No epoch"):
        run.train(tiny(optimizer="Adam"), tmp_path, verbose=0, observers=[full(epoch=0, room=8)])


def test_full_disk_keeps_the_last_good_state(tmp_path):
    settings = tiny(optimizer="Adam")
    with full_disk() as full:
        with pytest.raises(RunError, match=r"File too large\. The state after epoch 1 is kept in"):
            run.train(settings, tmp_path, verbose=0, observers=[full(epoch=1, room=20_000)])
    assert [epoch for epoch, _ in checkpoint.list_all(tmp_path / "checkpoints")] == [1]
    assert not list(tmp_path.rglob(".*"))
    assert len(run.train(settings, tmp_path, verbose=0)["epochs"]["loss"]) == 3


def test_loss_that_is_no_number_keeps_the_last_good_state(tmp_path, capsys):
    arguments = options(
        optimizer="SGD", output_dir=tmp_path / "run", drop_epoch=1, drop_factor=1e30
    )
    assert train.main(arguments) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "of epoch 2. A smaller learning rate may help. The state after epoch 1 is kept" in error
    assert [epoch for epoch, _ in checkpoint.list_all(tmp_path / "run" / "checkpoints")] == [1]


def test_a_loss_beyond_all_numbers_is_no_result(tmp_path, capsys):
    folder = tmp_path / "run"
    arguments = options(optimizer="SGD", output_dir=folder, learning_rate=1e30, epochs=1)
    assert train.main(arguments) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "A smaller learning rate may help. No epoch was finished before." in error
    assert not (folder / run.RECORD).exists()


def test_the_validation_loss_counts_too(tmp_path):
    class Spoil(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            self.model.trainable_variables[-1].assign([3e38, -3e38] * 5)

    with pytest.raises(DivergedError, match="The validation loss is (inf|nan) after epoch 1"):
        run.train(tiny(optimizer="Adam"), tmp_path, verbose=0, observers=[Spoil()])


def test_weights_that_are_no_numbers_are_not_saved(tmp_path):
    # The last step of an epoch can spoil the weights after the last loss was taken.
    class Spoil(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.model.trainable_variables[0].assign_add([[[[math.nan] * 8] * 3] * 3] * 3)

    with pytest.raises(RunError, match="is not finite after epoch 1.*No epoch was finished"):
        run.train(tiny(optimizer="Adam"), tmp_path, verbose=0, observers=[Spoil()])
    assert not checkpoint.list_all(tmp_path / "checkpoints")


def test_a_folder_where_a_file_belongs_is_named(tmp_path, capsys):
    (tmp_path / "record.json").mkdir()
    assert train.main(options(output_dir=tmp_path)) == 1
    error = capsys.readouterr().err
    assert f"Is a directory ({tmp_path / 'record.json'})" in error and error.count("\n") == 1


def test_of_a_file_that_cannot_be_written_the_name_is_told(tmp_path):
    path = tmp_path / "none" / "record.json"
    with pytest.raises(OSError, match="No such file") as caught:
        with records.replacing(path) as temporary:
            temporary.write_text("something")
    assert str(caught.value.filename) == str(path)


def test_of_a_folder_that_is_read_only_the_folder_is_named(tmp_path, monkeypatch):
    def refuse(dir):
        raise OSError(errno.EROFS, "Read-only file system", f"{dir}/tmp123")

    monkeypatch.setattr(records.tempfile, "TemporaryFile", refuse)
    with pytest.raises(OSError, match="Read-only") as caught:
        records.make_folder(tmp_path)
    assert caught.value.filename == str(tmp_path)


def test_folder_that_cannot_be_written_is_reported_before_training(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert train.main(options(output_dir=tmp_path / "file" / "run")) == 1
    assert "Cannot use the output folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x" * 300, "with\0null"])
def test_a_folder_that_no_system_takes_is_refused_before_anything(name, tmp_path, capsys):
    assert train.main(options(output_dir=tmp_path / name)) == 2
    error = capsys.readouterr().err
    assert "`output_dir` must be a valid path" in error
    assert error.count("\n") == 1


def test_a_finished_run_without_its_model_says_so(tmp_path, capsys):
    settings = tiny(optimizer="Adam", epochs=1)
    run.train(settings, tmp_path, verbose=0, keep_model=False)
    assert "1 epoch into" in capsys.readouterr().out
    run.train(settings, tmp_path, keep_model=False)
    assert "not kept" not in capsys.readouterr().out
    run.train(settings, tmp_path, keep_model=True)
    told = capsys.readouterr().out
    assert "Its model was not kept" in told and "train again" in told


def test_a_run_is_told_by_its_optimizer_and_its_arguments():
    assert recipes.named_optimizer(tiny(**QUICK)) == "AdamNorm(gamma=0.5)"
    assert recipes.named_optimizer(tiny(optimizer="Adam")) == "Adam"


def test_too_little_memory_is_told_on_one_line(tmp_path, monkeypatch, capsys):
    def build(*arguments):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(run, "_build", build)
    assert train.main(options(output_dir=tmp_path / "run")) == 1
    error = capsys.readouterr().err
    assert "not enough memory. A smaller batch size" in error and error.count("\n") == 1


def test_two_processes_do_not_share_a_folder(tmp_path):
    with run.exclusive(tmp_path), pytest.raises(LockedError, match="Another process is training"):
        run.train(tiny(), tmp_path)
    assert list(tmp_path.parent.glob(f"{tmp_path.name}/*")) == []


WRONG = {
    "--epochs 0": "`epochs` must be an integer of at least 1. Received: epochs=0",
    "--batch-size -1": "`batch_size` must be an integer of at least 1",
    "--batch-size 1000000": "Received: batch_size=1000000",
    "--learning-rate nan": "`learning_rate` must be a number above 0. Received: learning_rate=nan",
    "--drop-factor 0": "`drop_factor` must be a number above 0",
    "--seed -1": "`seed` must be an integer from 0 to 4294967295",
    "--width 0": "`width` must be an integer from 1 to 4096",
    "--steps-per-execution 0": "`steps_per_execution` must be an integer of at least 1",
    "--steps-per-execution 2 --monitor step": "`monitor` must be 'auto' or 'off'",
    "--deterministic --jit-compile on": "`jit_compile` must be 'auto' or 'off'",
    "--model alexnet": "`model` must be one of vgg16, resnet18, resnet50, resnet8, cnn",
    "--dataset mnist": "`dataset` must be one of cifar10, cifar100, tiny_imagenet, digits",
    "--optimizer Sgd": "`optimizer` must be one of AdaBelief",
    "--optimizer NormCorrection": "`optimizer` must be one of AdaBelief",
    "--gamma 1": "`gamma`",
    "--beta-1 1.5": "`beta_1`",
    "--corrected-moments all": "`corrected_moments`",
    "--clipnorm strong": "`clipnorm` must be a number above 0. Received: clipnorm='strong'",
    "--clipnorm 1 --clipvalue 1": "Only one of `clipnorm`, `clipvalue`",
    "--optimizer Adam --gamma 0.9": "there is no option --gamma 0.9 with optimizer Adam",
    "--epoch 3": "there is no option --epoch 3",
    "--epochs three": "`epochs` must be an integer of at least 1. Received: epochs='three'",
    "--epochs": "Missing value for argument '--epochs'.",
    "--monitor always": "`monitor` must be one of auto, epoch, step, off. Received",
    "--seed 4294967296": "`seed` must be an integer from 0 to 4294967295. Received: seed=42949672",
    "--seed 99999999999999999999": "`seed` must be an integer from 0 to 4294967295",
    "--monitor-every 99999999999999999999": "`monitor_every` must be at most 2147483647",
    "--gradient-accumulation-steps 2.5": "`gradient_accumulation_steps` must be an integer of at",
    "--gradient-accumulation-steps inf": "`gradient_accumulation_steps` must be an integer of at",
    "--gradient-accumulation-steps 1e9": "`gradient_accumulation_steps` must be an integer of at",
    "--ema-overwrite-frequency 0": "`ema_overwrite_frequency` must be an integer of at least 1",
    "--weight-decay nan": "`weight_decay` must be a number of at least 0",
    "--distribute --gradient-accumulation-steps 2": "`distribute` must be false with `gradient_acc",
    "--optimizer-config accumulates.json --distribute": "`distribute` must be false with `grad",
    "--optimizer-config deep.json": "`optimizer_config` must be nested at most 50 deep",
    "--optimizer-config deeper.json": "`optimizer_config` must be a JSON file",
    "--optimizer-config /nowhere.json": "`optimizer_config` must be a JSON file",
    "--optimizer-config config.json --optimizer Adam": "--optimizer cannot be given beside",
    "--optimizer-config unknown.json": "Nonsense",
    "--optimizer-config list.json": "`class_name`",
    "--optimizer-config .": "`optimizer_config` must be a file, not a folder",
    "--optimizer-config layer.json": "Keras cannot take the optimizer's config: it makes no opt",
    "--optimizer-config text.json": "Keras cannot take the optimizer's config: ",
    "--output-dir=": "`output_dir` must be a valid path. Received: output_dir=",
    "--dataset tiny_imagenet --data-dir /dev/null/nowhere": "/dev/null/nowhere",
    "--model vgg16": "vgg16",
    "--distribute --batch-size 0": "`batch_size`",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_input_is_one_line_before_training(wrong, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = keras.optimizers.serialize(keras.optimizers.SGD(0.1))
    pathlib.Path("config.json").write_text(json.dumps(config))
    config["config"]["gradient_accumulation_steps"] = 2
    pathlib.Path("accumulates.json").write_text(json.dumps(config))
    config["config"] |= {"gradient_accumulation_steps": None, "clipnorm": "strong"}
    pathlib.Path("text.json").write_text(json.dumps(config))
    pathlib.Path("layer.json").write_text('{"class_name": "Dense", "config": {"units": 3}}')
    for name, depth in (("deep", 500), ("deeper", 100_000)):
        text = f'{{"class_name": "SGD", "config": {{"name": {"[" * depth}{"]" * depth}}}}}'
        pathlib.Path(f"{name}.json").write_text(text)
    pathlib.Path("list.json").write_text("[]")
    pathlib.Path("unknown.json").write_text('{"class_name": "Nonsense", "config": {}}')
    monkeypatch.setattr(keras.Model, "fit", None)
    try:
        rate = {"learning_rate": None} if "config" in wrong else {}
        status = train.main([*options(output_dir="run", **rate), *wrong.split()])
    except SystemExit as leaving:
        status = leaving.code
    error = capsys.readouterr().err
    assert status == 2, error
    assert WRONG[wrong] in error and error.count("\n") == 1
    assert not pathlib.Path("run").exists()


def test_numbers_are_checked_before_anything_slow_is_imported():
    code = (
        "import sys; from examples import train\n"
        "try: train.main(['--epochs', '0'])\n"
        "except SystemExit as leaving: assert leaving.code == 2\n"
        "assert 'keras' not in sys.modules and 'tensorflow' not in sys.modules"
    )
    process = start(code=code)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


@pytest.mark.parametrize("name", ["AdamNorm", "RadamNorm", "AdaBelief", "SGD", "Lion"])
def test_every_argument_of_an_optimizer_is_an_option(name, capsys):
    with pytest.raises(SystemExit):
        train.main(["--optimizer", name, "--help"])
    text = capsys.readouterr().out
    cls = recipes.optimizer_classes()[name]
    config = cls(learning_rate=0.1).get_config()
    for argument in config:
        if argument != "name":
            assert f"--{argument.replace('_', '-')}" in text
    for name in [*models.MODELS, *data.DATASETS]:
        assert name in text


def test_options_reach_the_optimizer():
    arguments = "--gamma 0.5 --beta-1 0 --clipnorm 2 --use-ema --corrected-moments both"
    settings, _ = train.parse(arguments.split())
    config = recipes.build_optimizer(settings).get_config()
    assert config["gamma"] == 0.5 and config["beta_1"] == 0.0 and config["clipnorm"] == 2
    assert config["use_ema"] is True and config["corrected_moments"] == "both"
    plain, _ = train.parse([])
    assert plain.optimizer_arguments == {}
    assert train.default_output_dir(plain) != train.default_output_dir(settings)
    assert train.default_output_dir(plain) == train.default_output_dir(train.parse([])[0])


def test_defaults_are_the_papers():
    settings, _ = train.parse([])
    config = recipes.build_optimizer(settings).get_config()
    assert (settings.epochs, settings.batch_size, settings.learning_rate) == (100, 64, 1e-3)
    rates = [
        recipes.learning_rate_at(epoch, 1e-3, settings.drop_epoch, settings.drop_factor)
        for epoch in (0, 79, 80, 99)
    ]
    assert np.allclose(rates, [1e-3, 1e-3, 1e-4, 1e-4], rtol=1e-12)
    assert (config["beta_1"], config["beta_2"], config["gamma"]) == (0.9, 0.999, 0.95)


@pytest.mark.parametrize("epochs, drop", [(1, 1), (2, 2), (3, 2), (10, 8), (100, 80)])
def test_learning_rate_drops_after_four_fifths(epochs, drop):
    assert Settings(epochs=epochs).drop_epoch == drop
    assert Settings(epochs=epochs, drop_epoch=1).drop_epoch == 1


def test_optimizer_config_brings_its_own_learning_rate(tmp_path):
    path = tmp_path / "best.json"
    path.write_text(json.dumps(keras.optimizers.serialize(keras.optimizers.SGD(0.5))))
    arguments = options(epochs=2, drop_epoch=1, learning_rate=None, output_dir=tmp_path / "run")
    assert train.main([*arguments, "--optimizer-config", str(path)]) == 0
    record = records.read(tmp_path / "run" / run.RECORD)
    assert record["settings"]["optimizer"] == "SGD"
    assert np.allclose(record["epochs"]["learning_rate"], [0.5, 0.05])


def test_optimizer_config_may_hold_a_schedule(tmp_path):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 3, 0.5)
    config = keras.optimizers.serialize(keras.optimizers.SGD(schedule))
    record = run.train(tiny(optimizer_config=config, epochs=2), tmp_path, verbose=0)
    assert np.allclose(record["epochs"]["learning_rate"], [0.25, 0.125])


def test_steps_per_execution_does_not_run_over_an_epoch(tmp_path):
    assert run.steps_per_execution(32, 782) == 23
    assert run.steps_per_execution(5, 3) == 3
    record = run.train(tiny(steps_per_execution=2, train_size=128, epochs=2), tmp_path, verbose=0)
    model = keras.models.load_model(tmp_path / "model.keras")
    assert int(model.optimizer.iterations) == 8
    assert record["corrections"] is None


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision(precision, finished, tmp_path):
    _, full, _ = finished
    record = run.train(tiny(mixed_precision=precision, epochs=2, **QUICK), tmp_path, verbose=0)
    assert np.allclose(record["epochs"]["loss"], full["epochs"]["loss"][:2], rtol=0.02)
    assert record["epochs"]["loss"] != full["epochs"]["loss"][:2]
    assert record["corrections"]["gradient_norm"] > 0
    assert keras.config.dtype_policy().name == "float32"


def test_two_devices(finished, tmp_path):
    _, one, _ = finished
    arguments = [*options(output_dir=tmp_path / "run", epochs=2, gamma=0.5), "--distribute"]
    code = (
        "import tensorflow as tf\n"
        "cpu = tf.config.list_physical_devices('CPU')[0]\n"
        "two = [tf.config.LogicalDeviceConfiguration()] * 2\n"
        "tf.config.set_logical_device_configuration(cpu, two)\n"
        "from examples import train\n"
        "from examples.training import records, run\n"
        "strategies = []\n"
        "build = run._build\n"
        "def spy(*args):\n"
        "    strategies.append(tf.distribute.get_strategy().num_replicas_in_sync)\n"
        "    return build(*args)\n"
        "run._build = spy\n"
        "write = records.write\n"
        "def stop(*args):\n"
        "    raise KeyboardInterrupt\n"
        "records.write = stop\n"
        f"assert train.main({arguments!r}) == 130\n"
        "records.write = write\n"
        f"assert train.main({arguments!r}) == 0\n"
        "assert strategies == [2, 2]"
    )
    process = start(code=code)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "Going on after epoch 2 of 2" in output
    record = records.read(tmp_path / "run" / run.RECORD)
    # Each device normalises its half of the batch, so the numbers are not quite the same.
    assert np.allclose(record["epochs"]["loss"], one["epochs"]["loss"][:2], rtol=0.1)
    assert record["corrections"]["gradient_norm"] > 0


def test_other_seeds_give_other_weights(finished, tmp_path):
    _, record, _ = finished
    other = run.train(tiny(seed=1, monitor="off"), tmp_path, verbose=0, keep_model=False)
    assert other["weights"] != record["weights"]
    assert other["corrections"] is None
    assert not (tmp_path / "model.keras").exists()


def test_without_validation(tmp_path):
    record = run.train(tiny(validation_size=0, epochs=1, monitor="off"), tmp_path, verbose=0)
    assert record["validation"] is None


def test_averaged_weights_are_what_is_tested_and_kept(tmp_path):
    settings = tiny(
        optimizer="SGD", optimizer_arguments={"use_ema": True, "ema_momentum": 0.9}, epochs=2
    )
    record = run.train(settings, tmp_path, verbose=0)
    model = keras.models.load_model(tmp_path / "model.keras")
    averages = model.optimizer._model_variables_moving_average
    for weight, average in zip(model.trainable_variables, averages, strict=True):
        assert np.array_equal(weight, average)
    dataset = data.load("synthetic", 32, image_size=8, train_size=96, validation_size=32)
    loss = model.evaluate(dataset.test, verbose=0, return_dict=True)["loss"]
    assert loss == pytest.approx(record["test"]["loss"], rel=1e-5)


def test_checkpoint_restores_the_state_of_random_layers(tmp_path):
    def build():
        layers = [keras.Input((4,)), keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile("adam", "mse")
        return model

    x = np.ones((8, 4))
    model = build()
    model.fit(x, x[:, :1], epochs=2, verbose=0)
    checkpoint.save(tmp_path, model, 2, {"a": 1}, {"b": np.arange(3)})
    again = build()
    again.optimizer.build(again.trainable_variables)
    epoch, saved, arrays = checkpoint.load(tmp_path, again, lambda epoch, saved, arrays: None)
    assert (epoch, saved, arrays["b"].tolist()) == (2, {"a": 1}, [0, 1, 2])
    for one, other in zip(model.variables, again.variables, strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(model(x, training=True), again(x, training=True))
    # It is an ordinary model file, too.
    [(_, path)] = checkpoint.list_all(tmp_path)
    loaded = keras.models.load_model(path)
    assert np.array_equal(model.predict(x, verbose=0), loaded.predict(x, verbose=0))


def test_only_the_last_checkpoints_are_kept(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for epoch in (1, 2, 3, 4):
        checkpoint.save(tmp_path, model, epoch, {})
    assert [epoch for epoch, _ in checkpoint.list_all(tmp_path)] == [3, 4]


def test_records_are_whole_or_refused(finished, tmp_path):
    _, record, _ = finished
    path = tmp_path / "record.json"
    records.write(path, record | {"corrections": {"gradient_norm": math.nan}})
    assert records.read(path)["corrections"] == {"gradient_norm": None}
    good = path.read_text()
    for wrong, message in [
        ({k: v for k, v in record.items() if k != "weights"}, "`weights` is missing"),
        (record | {"seconds": "many"}, "`seconds` is 'many'"),
        (record | {"schema": 99}, "schema 99"),
        (record | {"epochs": {"loss": [1.0]}}, "`loss` does not have 3 values"),
        (record | {"test": {"accuracy": 70.0, "loss": 1.0}}, "`test.accuracy` is 70.0"),
        ([record], "an object is expected"),
    ]:
        with pytest.raises(records.RecordError, match=message):
            records.write(path, wrong)
        assert path.read_text() == good
    path.write_text(good[:-10])
    with pytest.raises(records.RecordError, match="record.json is not a record"):
        records.read(path)


def test_settings_are_checked_in_code_too():
    with pytest.raises(ValueError, match="Argument `epochs`"):
        Settings(epochs=1.5)
    with pytest.raises(UsageError, match="SGD has no argument `gamma`"):
        run.check(Settings(optimizer="SGD", optimizer_arguments={"gamma": 0.5}))
