"""`sbon_agent.host.Disk` in a folder of the machine's file system."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from sbon.link_frames import Buffer


class FolderDisk:
    """Files of one folder, which is made with the first of them; nobody but the agent's user may read them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, name: str, data: Sequence[Buffer]) -> None:
        """Add to the end of a file. Not synchronised: what a crash of the machine would lose, a crash of the agent has lost anyway."""
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.writelines(data)

    def read(self, name: str, offset: int, size_bytes: int) -> bytes:
        """Part of a file; less where it ends."""
        with (self._folder / name).open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read(size_bytes)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        (self._folder / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """All files; none where the folder is missing."""
        with contextlib.suppress(OSError):
            return sorted(path.name for path in self._folder.iterdir() if path.is_file())
        return []
