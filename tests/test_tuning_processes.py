"""Searches as processes: killed ones go on, and a chief with two workers shares one out."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from examples.training import run

ROOT = pathlib.Path(__file__).parents[1]
TINY = (
    "--dataset synthetic --image-size 8 --width 4 --train-size 96 --validation-size 32 --epochs 2"
).split()


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


def wait_for(found, *processes):
    """Waits until `found()`, unless a process ends before."""
    while not found():
        ended = [process for process in processes if process.poll() is not None]
        assert not ended, ended[0].communicate()[0]
        time.sleep(0.01)


def finish(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def trials(folder):
    (path,) = pathlib.Path(folder).glob("*/trials.json")
    found = json.loads(path.read_text())["trials"]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in found]


def test_a_killed_search_ends_as_an_unbroken_one(tmp_path):
    """Same seed, same trials and the same scores; killed in its second trial, still the same."""
    arguments = [*TINY, "--max-trials", "2"]
    killed, whole = ([*arguments, "--directory", str(tmp_path / n)] for n in ("killed", "whole"))
    process = start(f"from tuning import search; search.main({killed})")
    wait_for(lambda: list(tmp_path.glob("killed/*/trial_1/execution0/checkpoints")), process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    (first,) = tmp_path.glob(f"killed/*/trial_0/execution0/{run.RECORD}")
    written = first.stat().st_mtime_ns

    code = f"from tuning import search; exit(search.main({killed}) + search.main({whole}))"
    output = finish(start(code))
    assert "1 of 2 trials are finished" in output
    assert first.stat().st_mtime_ns == written
    found = trials(tmp_path / "killed")
    assert found == trials(tmp_path / "whole")
    assert [row["status"] for row in found] == ["COMPLETED"] * 2


def test_chief_and_two_workers(tmp_path):
    """One worker is killed in its second trial and stays away: the other one takes that over."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [*TINY, "--max-trials", "6", "--directory", str(tmp_path), "--worker-timeout", "5"]
    go = tmp_path / "go"

    def code(before):
        return (
            "import pathlib, sys, time\n"
            "from examples.training import run\n"
            "from tests.support.tuning_fakes import FakeTrain\n"
            "from tuning import search\n"
            "train = run.train = FakeTrain()\n"
            f"{before}\n"
            f"sys.exit(search.main({arguments}))"
        )

    def begin(tuner_id, before=""):
        address = {"KERASTUNER_ORACLE_IP": "127.0.0.1", "KERASTUNER_ORACLE_PORT": str(port)}
        return start(code(before), KERASTUNER_TUNER_ID=tuner_id, **address)

    def begun_by(tuner_id):
        names = [path.read_text().split() for path in tmp_path.glob("*/trial_*/*/started")]
        return sum(tuner_id in line for line in names)

    hang = "train.failing = lambda settings: len(train.trained) == 2 and time.sleep(1000)"
    wait = f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    # Longer than the time after which a worker would be given up.
    slow = "train.failing = lambda settings: len(train.trained) == 1 and time.sleep(7)"
    processes = [begin("chief"), begin("lost", hang), begin("busy", f"{wait}\n{slow}")]
    chief, lost, busy = processes
    try:
        wait_for(lambda: begun_by("lost") == 2, *processes)
        go.touch()
        wait_for(lambda: begun_by("busy"), *processes)
        lost.kill()
        finish(busy)
        output = finish(chief)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found = trials(tmp_path)
    assert [row["trial"] for row in found] == list("012345")
    assert [row["status"] for row in found] == ["COMPLETED"] * 6
    runs = [path.read_text().split() for path in sorted(tmp_path.glob("*/trial_*/*/started"))]
    assert runs == [["lost"], ["lost", "busy"], *[["busy"]] * 4]
    assert output.count("is silent for") == output.count("lost is silent for") == 1
    assert output.count("/6] trial ") == 6  # the chief shows all of it
    assert "Best: " in output
