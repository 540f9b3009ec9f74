"""Creates the folders of runs, and removes those of killed runs.

Processes, namespaces and devices die with the testbed, however it ends; folders do not. Each folder has a file that the run keeps locked:
the kernel unlocks it when the run ends, and the next run, or `sbon testbed clean`, removes the folder.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sbon.errors import SbonError

PREFIX = "sbon-testbed-"
_LOCK = "owner.lock"
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 2**30


def memory_folder() -> str:
    """Returns a folder in memory for runs with virtual disks, whose files need not survive a crash of this machine.
    Empty (the temporary folder) if there is none with room."""
    try:
        room = os.statvfs(MEMORY)
    except OSError:
        return ""
    return str(MEMORY) if os.access(MEMORY, os.W_OK) and room.f_bavail * room.f_frsize >= MEMORY_BYTES_MIN else ""


@contextmanager
def run_directory(within: str = "") -> Iterator[Path]:
    """Yields a new folder that is removed after the block, or, if this process is killed, by the next call of `remove_leftovers`.

    Parameters
    ----------
    within : parent folder: `memory_folder()`, or a folder on the disk that a run measures (`remove_leftovers` skips it); empty: the
            temporary folder
    """
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=within or None))
    # The file is renamed after it is locked, so no other process finds it unlocked while this one lives or removes the folder.
    with (directory / (_LOCK + ".part")).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (directory / (_LOCK + ".part")).rename(directory / _LOCK)
        try:
            yield directory
        finally:
            shutil.rmtree(directory)


def remove_leftovers() -> list[Path]:
    """Removes this user's folders of runs that ended without removing them, and returns their paths.

    Raises
    ------
    SbonError
        A folder cannot be removed.
    """
    removed = []
    for directory in sorted(found for place in {Path(tempfile.gettempdir()), MEMORY} for found in place.glob(PREFIX + "*")):
        if directory.is_symlink() or not directory.is_dir() or directory.stat().st_uid != os.geteuid():
            continue
        try:
            with (directory / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory)
        except (BlockingIOError, FileNotFoundError):
            continue  # its run is active or just starting, or another process removes it
        except OSError as problem:
            raise SbonError(f"cannot remove {directory}, left by a killed run: {problem.strerror}; remove it by hand") from problem
        removed.append(directory)
    return removed
