"""Opens files of connectors: resolves paths, checks whether the statement may access them, and opens them without following further links.

All symbolic links are resolved first and the result is checked (`sbon.reach.is_within`). Then the resolved path is walked from the root by
descriptors, and any link on it is refused, so that a link put there after the check has no effect. Only regular files are opened; a pipe or
device is refused before, and opening never waits for a pipe or device that has taken the file's place in the meantime.

All functions may block if a file system does not answer: call them from `open` of a connector, which has a thread of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sbon.errors import ConnectorError
from sbon.reach import Reach, is_within

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link that was put there just now",
}


def path_of(what: str, text: str, reach: Reach) -> Path:
    """Returns the absolute path that an option gives, without accessing the file system.

    Parameters
    ----------
    what : the connector's name in messages, such as `source trades`

    Raises
    ------
    ConnectorError
        The text cannot be a path.
    """
    try:
        return Path(os.path.abspath(Path(reach.base) / Path(text).expanduser()))
    except (RuntimeError, ValueError) as problem:  # there is no home folder of that name
        raise ConnectorError(f"{what}: option path = {text!r}: {problem}", option="path") from problem


@contextlib.contextmanager
def told(what: str, path: Path, cannot: str) -> Iterator[None]:
    """Turns errors of the operating system into a ConnectorError of one line.

    Parameters
    ----------
    cannot : what failed, such as `cannot be read`
    """
    try:
        yield
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the path
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
        raise ConnectorError(f"{what}: {path} {cannot}: {reason}", option="path") from problem


def resolved(what: str, path: Path, reach: Reach) -> Path:
    """Returns the path without symbolic links, if it may be accessed.

    Raises
    ------
    ConnectorError
        The path may not be accessed; the message names the setting to change.
    OSError
        The links lead in a circle.
    """
    real = os.path.realpath(path)
    if reach.folders is not None and not is_within(real, map(os.path.realpath, reach.folders)):
        folders = ", ".join(reach.folders) or "none"
        raise ConnectorError(
            f"{what}: {path} is, or leads, outside the folders that other agents may use on {reach.node} ({folders}): to allow it, add its "
            f"folder to connectors.file.allow in the configuration of {reach.node}",
            option="path",
        )
    return Path(real)


def open_to_read(what: str, path: Path, reach: Reach) -> IO[bytes]:
    """Opens a regular file for reading.

    Raises
    ------
    ConnectorError
        The file does not exist, is not a regular file, or may not be accessed.
    """
    with told(what, path, "cannot be read"):
        real = resolved(what, path, reach)
        folder = Folder(real.parent, make=False)
        try:
            return folder.open(real.name, os.O_RDONLY)
        finally:
            folder.close()


class Folder:
    """An open folder. Names in it refer to its own files, whatever happens to its path.

    Parameters
    ----------
    real : path without symbolic links; a path with one is refused
    make : whether to make missing folders

    Raises
    ------
    OSError
        The folder cannot be opened or made.
    """

    def __init__(self, real: Path, *, make: bool) -> None:
        self._fd = os.open("/", _FOLDER)
        try:
            for part in real.parts[1:]:
                above, self._fd = self._fd, _opened(part, self._fd, make=make)
                os.close(above)
        except BaseException:
            os.close(self._fd)
            raise

    def open(self, name: str, flags: int) -> IO[bytes]:
        """Opens a regular file of the folder, unbuffered.

        Raises
        ------
        OSError
            The file cannot be opened, or is not a regular file.
        """
        with contextlib.suppress(FileNotFoundError):
            _expect_regular(os.stat(name, dir_fd=self._fd, follow_symlinks=False))
        fd = os.open(name, flags | _FILE, 0o666, dir_fd=self._fd)
        try:
            _expect_regular(os.fstat(fd))
            mode = "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "ab" if flags & os.O_APPEND else "wb"
            return os.fdopen(fd, mode, buffering=0)
        except BaseException:
            os.close(fd)
            raise

    def create(self, name: str) -> IO[bytes]:
        """Creates an empty file for appending; an existing one of this name is deleted first.

        Raises
        ------
        OSError
            The file cannot be created.
        """
        self.remove(name)
        return self.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)

    def expect_replaceable(self, name: str) -> None:
        """Raises OSError if this name exists and is not a regular file."""
        with contextlib.suppress(FileNotFoundError):
            _expect_regular(os.stat(name, dir_fd=self._fd, follow_symlinks=False))

    def replace(self, name: str, by: str) -> None:
        """Puts the file `by` in the place of the file `name`."""
        os.replace(by, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Deletes a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def names(self) -> list[str]:
        """Returns the names in the folder, sorted."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def close(self) -> None:
        """Closes the folder. May be called twice."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _opened(part: str, above: int, *, make: bool) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=above)
    return os.open(part, _FOLDER, dir_fd=above)


def _expect_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, expected a regular file")
