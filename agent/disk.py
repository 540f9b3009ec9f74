"""Implements `sbon.ports.Disk` with a folder of the file system."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from sbon.links.frames import Buffer


class FolderDisk:
    """Files of one folder, which is made with its first file; only the agent's user may read them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, name: str, data: Sequence[Buffer]) -> None:
        """Appends to a file without syncing it: the file is useless after a crash of the agent, and so after one of the machine."""
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.writelines(data)

    def read(self, name: str, offset: int, size_bytes: int) -> bytes:
        """Returns part of a file; less if the file ends before."""
        with (self._folder / name).open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read(size_bytes)

    def read_each(self, name: str, offsets: Sequence[int], size_bytes: int) -> bytes:
        """Returns parts of equal size of a file, joined; less if the file ends before."""
        descriptor = os.open(self._folder / name, os.O_RDONLY)
        try:
            return b"".join([os.pread(descriptor, size_bytes, offset) for offset in offsets])
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        """Deletes a file, if it exists."""
        (self._folder / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Returns the names of all files; none if the folder is missing."""
        with contextlib.suppress(OSError):
            return sorted(path.name for path in self._folder.iterdir() if path.is_file())
        return []
