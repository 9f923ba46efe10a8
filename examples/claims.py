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

HEARTBEAT = 30.0
STALE_AFTER = 600.0


@contextlib.contextmanager
def claim(path, stale_after=STALE_AFTER, heartbeat=HEARTBEAT):
    """Holds the claim `<path>.claim` while the block runs, if it is to be had.

    Args:
        path: Path that names what is claimed. Its folder is made.
        stale_after: Positive float, seconds without a sign of life after which a claim is taken
            over. Clocks of the machines should agree better than this. Defaults to 600.
        heartbeat: Positive float, seconds between two signs of life. Defaults to 30.

    Yields:
        Boolean, whether the claim is held.
    """
    file = pathlib.Path(f"{path}.claim")
    file.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(file, stale_after)
    try:
        with open(file, "x") as opened:
            opened.write(f"{socket.gethostname()} process {os.getpid()}\n")
    except FileExistsError:
        yield False
        return
    ended = threading.Event()
    alive = threading.Thread(target=_keep_alive, args=(file, ended, heartbeat), daemon=True)
    alive.start()
    try:
        yield True
    finally:
        ended.set()
        alive.join()
        file.unlink(missing_ok=True)


def _remove_stale(file, stale_after):
    with contextlib.suppress(FileNotFoundError):
        if time.time() - file.stat().st_mtime > stale_after:
            # Of several that see it, one can move it away.
            gone = file.with_name(f"{file.name}.{socket.gethostname()}.{os.getpid()}")
            os.rename(file, gone)
            gone.unlink()


def _keep_alive(file, ended, heartbeat):
    while not ended.wait(heartbeat):
        with contextlib.suppress(OSError):
            os.utime(file)
