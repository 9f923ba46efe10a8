"""Who does what, among processes and machines that share a folder.

    with claims.claim(folder / "AdamNorm-seed0") as mine:
        if mine:
            ...  # nobody else is in here

A claim is a file whose owner touches it now and then. One that nobody has touched for a while
was left behind by a process that is gone, and is taken over.
"""

import contextlib
import os
import pathlib
import socket
import threading
import time
import uuid

HEARTBEAT = 30.0
STALE_AFTER = 300.0


@contextlib.contextmanager
def claim(path, stale_after=STALE_AFTER, heartbeat=HEARTBEAT):
    """Holds the claim `<path>.claim` while the block runs, if it is to be had.

    Args:
        path: Path that names what is claimed. Its folder is made.
        stale_after: Positive float, seconds without a sign of life after which a claim is taken
            over. Clocks of the machines should agree better than this. Defaults to 300.
        heartbeat: Positive float, seconds between two signs of life. Defaults to 30.

    Yields:
        Boolean, whether the claim is held.
    """
    file = _file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    owner = f"{socket.gethostname()} process {os.getpid()} {uuid.uuid4().hex}"
    _remove_stale(file, stale_after, owner)
    try:
        with open(file, "x") as opened:
            opened.write(owner)
    except FileExistsError:
        yield False
        return
    ended = threading.Event()
    arguments = (file, owner, ended, heartbeat)
    alive = threading.Thread(target=_keep_alive, args=arguments, daemon=True)
    alive.start()
    try:
        yield True
    finally:
        ended.set()
        alive.join()
        # It may have been taken over from a process that slept for long.
        if _owner(file) == owner:
            file.unlink(missing_ok=True)


def held(path, stale_after=STALE_AFTER):
    """Whether somebody holds the claim, and gave a sign of life lately."""
    return not _is_stale(_file(path), stale_after, missing=True)


def _file(path):
    return pathlib.Path(f"{path}.claim")


def _owner(file):
    try:
        return file.read_text()
    except FileNotFoundError:
        return None


def _is_stale(file, stale_after, missing):
    try:
        return time.time() - file.stat().st_mtime > stale_after
    except FileNotFoundError:
        return missing


def _remove_stale(file, stale_after, remover):
    if not _is_stale(file, stale_after, missing=False):
        return
    # Of several that see it, one can move it away. A slower one may move away the fresh claim
    # that stands there by then, and puts it back.
    aside = file.with_name(f"{file.name}.{remover.rpartition(' ')[2]}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(file, aside)
        if not _is_stale(aside, stale_after, missing=True):
            with contextlib.suppress(FileExistsError):
                os.link(aside, file)
        aside.unlink()


def _keep_alive(file, owner, ended, heartbeat):
    while not ended.wait(heartbeat):
        with contextlib.suppress(OSError):
            if _owner(file) == owner:
                os.utime(file)
