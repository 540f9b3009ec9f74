"""The disk for the states of one host: names of files, the bytes that they take, and what is left of a former process."""

import errno
import weakref
from collections.abc import Sequence
from typing import Any

import msgspec

from sbon.ports import Disk

SUFFIX = ".state"
"""Suffix of the files' names."""


class StateRoom(msgspec.Struct, eq=False):
    """Memory and disk for states; it measures nothing itself, so that it counts for no operator."""

    disk: Disk
    memory_bytes_max: int
    """Memory for the states of one operator."""
    memory_bytes_all: int
    """Memory for the states of all operators that may go to disk; each has an equal share at most."""
    disk_bytes: int
    """Disk for the states of all operators together."""
    batch_rows: int = 1
    """Most rows of a batch: a state for each must fit into the memory."""
    process: str = ""
    """Text that no former process of this host has used, so that its files have other names."""
    log_bytes: int = 64 * 2**20
    """Memory for the rows that one operator has put off (`sbon.state.log`)."""
    sizes: dict[str, int] = msgspec.field(default_factory=dict)
    """Bytes of each file. Threads of several operators change it, an entry at a time."""
    made: int = 0
    users: "weakref.WeakSet[Any]" = msgspec.field(default_factory=weakref.WeakSet)
    """States that share the memory."""

    @property
    def memory_bytes(self) -> int:
        """Returns the memory that each operator's states may take."""
        return min(self.memory_bytes_max, self.memory_bytes_all // max(1, len(self.users)))

    @property
    def used_bytes(self) -> int:
        """Returns the bytes of all files."""
        return sum(list(self.sizes.values()))

    @property
    def left_bytes(self) -> int:
        """Returns the bytes of disk that no file takes."""
        return max(0, self.disk_bytes - self.used_bytes)

    def clear(self) -> None:
        """Removes what a process that was killed has left."""
        for name in self.disk.names():
            if name.endswith(SUFFIX):
                self.disk.remove(name)

    def close(self) -> None:
        """Removes all files."""
        for name in list(self.sizes):
            self.remove(name)

    def name(self) -> str:
        """Returns the name of a new file."""
        self.made += 1
        return f"{self.process}{self.made:06}{SUFFIX}"

    def append(self, name: str, data: Sequence[bytes | bytearray | memoryview]) -> None:
        """Appends to a file.

        Raises
        ------
        OSError
            The disk, or what states may take of it, is full. Part of the data may have been written.
        """
        size_bytes = sum(map(len, data))
        if self.used_bytes + size_bytes > self.disk_bytes:
            used = f"{self.used_bytes / 1e6:,.1f} MB of {self.disk_bytes / 1e6:,.1f} MB"
            raise OSError(errno.ENOSPC, f"states there take {used} (engine.state_disk_max)")
        self.sizes[name] = self.sizes.get(name, 0) + size_bytes
        self.disk.append(name, data)

    def remove(self, name: str) -> None:
        """Deletes a file. One that cannot be removed now is removed when the agent starts again."""
        if self.sizes.pop(name, None) is not None:
            try:
                self.disk.remove(name)
            except OSError:
                return
