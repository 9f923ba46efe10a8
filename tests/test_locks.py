"""The lock of a folder: held by one, gone with its process, done without where there is none."""

import errno
import os
import threading

import pytest

from examples.training import locks, run
from examples.training.errors import LockedError
from tests.support import child


def test_a_lock_is_held_by_one_and_leaves_nothing(tmp_path):
    path = tmp_path / "run.lock"
    with locks.hold(path, "training"):
        assert locks.held(path)
        with pytest.raises(LockedError, match=f"Another process is training in {tmp_path}.*{path}"):
            with locks.hold(path, "training"):
                pytest.fail("two are in")
        assert locks.held(path)
    assert not locks.held(path)
    assert list(tmp_path.iterdir()) == []


def test_many_that_want_it_have_it_in_turn(tmp_path):
    path, inside, most = tmp_path / "lock", [], []

    def work():
        for _ in range(200):
            try:
                with locks.hold(path):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except LockedError:
                pass

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert set(most) == {1}
    assert not path.exists()


def test_the_lock_ends_with_a_killed_process(tmp_path):
    path = tmp_path / "lock"
    code = (
        "import time\n"
        "from examples.training import locks\n"
        f"with locks.hold({str(path)!r}):\n"
        "    print('in', flush=True)\n"
        "    time.sleep(1000)"
    )
    process = child.start(["-c", code])
    assert process.stdout.readline() == "in\n"
    assert locks.held(path)
    process.kill()
    process.communicate()
    assert path.exists() and not locks.held(path)
    with locks.hold(path):
        pass
    assert not path.exists()


@pytest.mark.skipif(os.name != "posix", reason="needs flock")
@pytest.mark.parametrize("code", ["ENOLCK", "ENOSYS", "EBADF"])
def test_without_locks_it_goes_on_and_says_so(code, tmp_path, monkeypatch, capsys):
    import fcntl

    def refuse(descriptor, operation):
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with run.exclusive(tmp_path):
        pass
    told = capsys.readouterr().out
    assert told.startswith(f"No lock in {tmp_path}: the file system refuses it")
    assert told.count("\n") == 1
    assert not list(tmp_path.parent.glob(f"{tmp_path.name}/*"))


def test_a_full_disk_is_no_missing_lock(tmp_path, monkeypatch):
    import filelock

    def full(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(filelock.FileLock, "acquire", full)
    with pytest.raises(OSError, match="No space"):
        with locks.hold(tmp_path / "lock"):
            pytest.fail("went on")
