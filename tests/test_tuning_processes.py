"""Searches as processes: killed ones go on, full disks stop them, a chief shares one out."""

import contextlib
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest

from examples.training import run

ROOT = pathlib.Path(__file__).parents[1]
TINY = (
    "--dataset synthetic --image-size 8 --width 4 --train-size 96 --validation-size 32 --epochs 2"
).split()
FAKE = """
import pathlib, sys, time
import pytest
from examples.training import run
from tests.support import tuning_fakes
from tuning import search
tuning_fakes.in_this_process(pytest.MonkeyPatch())
train = run.train = tuning_fakes.FakeTrain()
"""


def start(code, **environment):
    """Starts code as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start_search(arguments, before="", **environment):
    code = f"import sys\n{before}\nfrom tuning import search\nsys.exit(search.main({arguments}))"
    return start(code, **environment)


def wait_for(condition, *processes, seconds=300):
    """Waits until `condition()` is true, but not for long, and not if a process ends before."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        ended = [process for process in processes if process.poll() is not None]
        assert not ended, ended[0].communicate()[0]
        time.sleep(0.01)


def finish(process, status=0):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == status, output
    return output


@contextlib.contextmanager
def all_ended(*processes):
    """Leaves no process behind."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def trials(folder):
    (path,) = pathlib.Path(folder).glob("*/trials.json")
    rows = json.loads(path.read_text())["trials"]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def trainer_of(process):
    """The id of the process that trains for a search."""
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return int(children.split()[-1])


def has_ended(process_id):
    try:
        state = pathlib.Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state.startswith("Z")  # nobody has asked for its exit status yet


def test_a_killed_search_ends_as_an_unbroken_one(tmp_path):
    """Same seed, same trials and the same scores; killed in its second trial, still the same."""
    arguments = [*TINY, "--max-trials", "2"]
    killed, whole = ([*arguments, "--directory", str(tmp_path / n)] for n in ("killed", "whole"))
    process = start_search(killed)
    with all_ended(process):
        wait_for(lambda: list(tmp_path.glob("killed/*/trial_1/execution0/checkpoints")), process)
        trainer = trainer_of(process)
    assert process.returncode == -signal.SIGKILL
    wait_for(lambda: has_ended(trainer), seconds=60)
    (first,) = tmp_path.glob(f"killed/*/trial_0/execution0/{run.RECORD}")
    assert not list(tmp_path.glob(f"killed/*/trial_1/execution0/{run.RECORD}"))
    written = first.stat().st_mtime_ns

    code = (
        "import os\n"
        "from tuning import search\n"
        f"assert search.main({killed}) + search.main({whole}) == 0\n"
        "import tensorflow as tf\n"
        # Once the devices are set up this raises.
        "tf.config.threading.set_inter_op_parallelism_threads(3)\n"
        "print('mine:', os.getpid())"
    )
    output = finish(start(code))
    assert "1 of 2 trials are finished" in output
    assert first.stat().st_mtime_ns == written
    rows = trials(tmp_path / "killed")
    assert rows == trials(tmp_path / "whole")
    assert [row["status"] for row in rows] == ["COMPLETED"] * 2

    # The search itself trains nothing: each trial has a process.
    mine = re.search(r"mine: (\d+)", output)[1]
    events = [p.name for p in tmp_path.glob("whole/*/trial_*/execution0/tensorboard/train/*")]
    processes = {re.search(r"\.(\d+)\.\d+\.v2$", name)[1] for name in events}
    assert len(processes) == 2
    assert mine not in processes


@contextlib.contextmanager
def no_room(folder):
    """Leaves too little room for a checkpoint in a folder, until the function it gives is called.

    A disk of 3 MB if this process may mount one; otherwise the processes that it starts may write
    no file over 1 MB, and get an OSError of the system for it too.
    """
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode == 0:
        more = ["mount", "-o", "remount,size=100m", str(folder)]
        try:
            yield lambda: subprocess.run(more, check=True)
        finally:
            subprocess.run(["umount", str(folder)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_stops_a_search_and_with_room_it_goes_on(tmp_path):
    arguments = [*TINY, "--width", "96", "--max-trials", "1"]
    arguments += ["--directory", str(tmp_path / "disk")]
    with no_room(tmp_path / "disk") as make_room:
        output = finish(start_search(arguments), 1)
        (error,) = re.findall("python -m tuning.search: error: .*", output)
        assert "Trial 0 was stopped: Cannot use the output folder" in error
        assert re.search("No space left on device|File too large", error)
        assert "Traceback" not in output
        make_room()
        finish(start_search(arguments))
        (row,) = trials(tmp_path / "disk")
        assert row["status"] == "COMPLETED"


def test_a_trial_that_diverges_is_told_in_a_line(tmp_path):
    arguments = [*TINY, "--optimizer", "SGD", "--learning-rate", "1e30", "1e31"]
    arguments += ["--max-trials", "1", "--directory", str(tmp_path)]
    output = finish(start_search(arguments), 1)
    assert "Traceback" not in output
    assert output.count("DivergedError: The loss is ") == 2  # when it ends, and in the summary
    (row,) = trials(tmp_path)
    assert row["status"] == "FAILED"


@contextlib.contextmanager
def in_training(folder):
    """A search that is in its first trial, and the id of the process that trains."""
    process = start_search([*TINY, "--max-trials", "1", "--directory", str(folder)])
    with all_ended(process):
        wait_for(lambda: list(folder.glob("*/trial_0/execution0/checkpoints")), process)
        yield process, trainer_of(process)


def test_a_process_that_dies_stops_the_search_and_fails_no_trial(tmp_path):
    """The process that trains is killed, as the system does when there is no memory left."""
    with in_training(tmp_path) as (process, trainer):
        os.kill(trainer, signal.SIGKILL)
        output = finish(process, 1)
    assert "Trial 0 was stopped: The process that trained was killed by SIGKILL" in output
    assert "Traceback" not in output
    (trial,) = tmp_path.glob("*/trial_0/trial.json")
    assert json.loads(trial.read_text())["status"] == "RUNNING"


def test_ctrl_c_ends_search_and_training(tmp_path):
    with in_training(tmp_path) as (process, trainer):
        process.send_signal(signal.SIGINT)
        output = finish(process, 130)
        assert has_ended(trainer)
    assert "Traceback" not in output
    assert output.count("error: interrupted; the same command goes on") == 1


class Machines:
    """A chief and its workers, whose runs take no time.

    Args:
        folder: Path of the folder that they share.
        *arguments: Of the search.
    """

    def __init__(self, folder, *arguments):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.folder = folder
        self._arguments = [*TINY, *arguments]

    def start(self, tuner_id, before="", folder=None):
        return start_search(
            [*self._arguments, "--directory", str(folder or self.folder)],
            FAKE + before,
            KERASTUNER_TUNER_ID=tuner_id,
            KERASTUNER_ORACLE_IP="127.0.0.1",
            KERASTUNER_ORACLE_PORT=str(self.port),
        )

    def begun_by(self, tuner_id):
        return sum(tuner_id in names for names in self.begun())

    def begun(self):
        """Who began each trial."""
        return [
            path.read_text().split() for path in sorted(self.folder.glob("*/trial_*/*/started"))
        ]


def until(path):
    """Code that makes a worker's runs wait for a file."""
    return (
        "def wait(settings):\n"
        f"    while not pathlib.Path({str(path)!r}).exists(): time.sleep(0.01)\n"
        "train.failing = wait\n"
    )


def test_chief_and_two_workers(tmp_path):
    """One worker is killed in its second trial and stays away: the other one takes that over."""
    machines = Machines(tmp_path, "--max-trials", "6", "--worker-timeout", "10")
    go = tmp_path / "go"
    hang = "train.failing = lambda settings: len(train.trained) == 2 and time.sleep(1000)"
    wait = f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    # Longer than the time after which a worker would be given up.
    slow = "train.failing = lambda settings: len(train.trained) == 1 and time.sleep(13)"
    chief = machines.start("chief")
    lost = machines.start("lost", hang)
    busy = machines.start("busy", f"{wait}\n{slow}")
    with all_ended(chief, lost, busy):
        wait_for(lambda: machines.begun_by("lost") == 2, chief, lost, busy)
        go.touch()
        wait_for(lambda: machines.begun_by("busy"), chief, lost, busy)
        lost.kill()
        finish(busy)
        output = finish(chief)
    rows = trials(tmp_path)
    assert [row["trial"] for row in rows] == list("012345")
    assert [row["status"] for row in rows] == ["COMPLETED"] * 6
    assert machines.begun() == [["lost"], ["lost", "busy"], *[["busy"]] * 4]
    assert output.count("is silent for") == output.count("lost is silent for") == 1
    assert output.count("/6] trial ") == 6  # the chief shows all of it
    assert "Best: " in output


def test_a_worker_finds_the_chief_that_was_started_again(tmp_path):
    """Killed while a worker trains, the chief comes back with another worker: all end well."""
    machines = Machines(tmp_path, "--max-trials", "3")
    go = tmp_path / "go"
    chief, first = machines.start("chief"), machines.start("first", until(go))
    with all_ended(chief, first):
        wait_for(lambda: machines.begun_by("first"), chief, first)
        chief.kill()
        go.touch()
        wait_for(lambda: "does not answer; still trying" in first.stdout.readline(), first)
        go.unlink()  # or the first one may do all the rest before the second one has started
        again, second = machines.start("chief"), machines.start("second")
        with all_ended(again, second):
            wait_for(lambda: machines.begun_by("second"), again, first, second)
            go.touch()
            assert "answers again" in finish(first)
            finish(second)
            output = finish(again)
    assert "Resuming" in output
    assert [row["status"] for row in trials(tmp_path)] == ["COMPLETED"] * 3
    assert machines.begun()[0] == ["first"]  # the chief knew who had it


@pytest.mark.parametrize("chief_was_there", [False, True])
def test_a_worker_gives_a_chief_up_that_does_not_answer(chief_was_there, tmp_path):
    machines = Machines(tmp_path, "--max-trials", "3", "--chief-timeout", "10")
    go = tmp_path / "go"
    chief = machines.start("chief") if chief_was_there else None
    worker = machines.start("worker", until(go))
    with all_ended(worker):
        if chief_was_there:
            with all_ended(chief):
                wait_for(lambda: machines.begun_by("worker"), chief, worker)
        go.touch()
        output = finish(worker, 1)
    assert "giving up if it does not answer for 10 s" in output
    (error,) = re.findall("python -m tuning.search: error: .*", output)
    assert f"The chief at 127.0.0.1:{machines.port} has not answered for 10 s." in error
    assert "Traceback" not in output


def test_a_worker_with_another_folder_is_refused(tmp_path):
    machines = Machines(tmp_path / "chief", "--max-trials", "1")
    chief = machines.start("chief")
    # It has the same search there, begun before.
    own = [*TINY, "--max-trials", "1", "--directory", str(tmp_path / "own")]
    finish(start_search(own, FAKE))
    with all_ended(chief):
        output = finish(machines.start("worker", folder=tmp_path / "own"), 1)
        assert "is not the folder of the chief at 127.0.0.1:" in output
        assert "Traceback" not in output
        finish(machines.start("good"))
        finish(chief)


def test_a_chief_that_cannot_go_on_ends_and_tells_its_workers(tmp_path):
    full = (
        "from tuning import report\n"
        "def write(*arguments): raise OSError(28, 'No space left on device')\n"
        "report.write = write"
    )
    machines = Machines(tmp_path, "--max-trials", "3")
    chief, worker = machines.start("chief", full), machines.start("worker")
    with all_ended(chief, worker):
        assert "The chief has stopped: [Errno 28] No space left on device" in finish(worker, 1)
        output = finish(chief, 1)
    assert "error: Cannot go on: [Errno 28] No space left on device" in output
    # With room it goes on, and loses nothing.
    chief, worker = machines.start("chief"), machines.start("worker")
    with all_ended(chief, worker):
        finish(worker)
        finish(chief)
    assert machines.begun() == [["worker"]] * 3
