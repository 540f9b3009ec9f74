"""Files of connectors: paths are resolved, checked against what the statement may touch, and opened without following links again.

All symbolic links are resolved first and the result is checked (`sbon.reach.is_within`). Then the resolved path is walked from the root by
descriptors, and a link anywhere on it is refused: whoever puts one there after the check gains nothing. What is opened is a regular file;
a pipe or device is refused before it is opened, and opening never waits for one that takes its place in between.

Everything here may block where a file system does not answer: call it from `open` of a connector, which has a thread of its own.
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
    """The path that an option gives, absolute; nothing outside is asked for.

    Parameters
    ----------
    what : `source trades`, for messages

    Raises
    ------
    ConnectorError
        It cannot be a path.
    """
    try:
        return Path(os.path.abspath(Path(reach.base) / Path(text).expanduser()))
    except (RuntimeError, ValueError) as problem:  # no home of that name
        raise ConnectorError(f"{what}: option path = {text!r}: {problem}", option="path") from problem


@contextlib.contextmanager
def told(what: str, path: Path, cannot: str) -> Iterator[None]:
    """Turns errors of the operating system into one line.

    Parameters
    ----------
    cannot : `cannot be read`
    """
    try:
        yield
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the path
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
        raise ConnectorError(f"{what}: {path} {cannot}: {reason}", option="path") from problem


def resolved(what: str, path: Path, reach: Reach) -> Path:
    """The path without symbolic links, if it may be touched.

    Raises
    ------
    ConnectorError
        It may not; the line names the setting to change.
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
    """A regular file, from its beginning.

    Raises
    ------
    ConnectorError
        It is not there, is none, or may not be touched.
    """
    with told(what, path, "cannot be read"):
        real = resolved(what, path, reach)
        folder = Folder(real.parent, make=False)
        try:
            return folder.open(real.name, os.O_RDONLY)
        finally:
            folder.close()


class Folder:
    """An open folder; the names in it are files of its own, whatever becomes of its path.

    Parameters
    ----------
    real : free of symbolic links; one is refused
    make : missing folders are made

    Raises
    ------
    OSError
        It cannot be opened or made.
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
        """A regular file of the folder, unbuffered.

        Raises
        ------
        OSError
            It cannot be opened, or is none.
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
        """A new, empty file that grows at its end; one that has this name is deleted first.

        Raises
        ------
        OSError
            It cannot be made.
        """
        self.remove(name)
        return self.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)

    def expect_replaceable(self, name: str) -> None:
        """Raise OSError if a file of this name is there and is not a regular one."""
        with contextlib.suppress(FileNotFoundError):
            _expect_regular(os.stat(name, dir_fd=self._fd, follow_symlinks=False))

    def replace(self, name: str, by: str) -> None:
        """Put the file `by` in the place of the file `name`."""
        os.replace(by, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def names(self) -> list[str]:
        """All files in it, sorted."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go of it. May be called twice."""
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
