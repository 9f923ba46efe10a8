"""One process at a time, on one machine or on a file system that several share.

    with locks.hold(folder / "run", "training"):
        ...  # no other process is in here

The lock is the system's, by `filelock`: it ends with the process that holds it, however that ends.
"""

import contextlib
import errno
import os
import pathlib

import filelock

from examples.training.errors import LockedError

FOLDER_LOCK = ".lock"  # its name where a folder is locked
# What file systems answer that know no locks: NFS without a lock daemon, Lustre without `flock`.
_UNKNOWN = {errno.ENOLCK, errno.ENOSYS, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextlib.contextmanager
def hold(path, doing="working"):
    """Holds the lock file `path` while the block runs. Where there are no locks, it says so.

    Args:
        path: Path of the lock file. Its folder must exist. The file is gone afterwards.
        doing: What the holder is doing, for the message. Defaults to `"working"`.

    Raises:
        LockedError: At once, if another process holds it.
        OSError: If the file cannot be made.
    """
    path = pathlib.Path(path)
    lock = filelock.FileLock(path, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise LockedError(
            f"Another process is {doing} in {path.parent} (it holds {path})."
        ) from None
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        print(
            f"No lock in {path.parent}: the file system refuses it ({os.strerror(error.errno)}). "
            "Make sure that no other process uses this folder.",
            flush=True,
        )
        path.unlink(missing_ok=True)
        yield
        return
    try:
        yield
    finally:
        # Removed while it is held: whoever opened it by then finds that it is gone, and tries anew.
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()


def held(path):
    """Whether another process holds the lock file. What cannot be asked is not held."""
    if not pathlib.Path(path).exists():
        return False
    lock = filelock.FileLock(path, blocking=False, fallback_to_soft=False)
    try:
        with lock:
            return False
    except filelock.Timeout:
        return True
    except OSError:
        return False
