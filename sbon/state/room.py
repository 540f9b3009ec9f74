"""The disk for the states of one host: names and sizes of files, and the removal of a former process's files."""

import errno
import weakref
from collections.abc import Sequence
from typing import Any

import msgspec

from sbon.errors import StateError
from sbon.ports import Disk

SUFFIX = ".state"
"""Suffix of the files' names."""


class StateRoom(msgspec.Struct, eq=False):
    """Memory and disk for states, shared by all operators. A Struct, so that `sbon.operators.sizes` counts it for no operator."""

    disk: Disk
    memory_bytes_max: int
    """Memory for the states of one operator."""
    memory_bytes_all: int
    """Memory for all states that may go to disk; each operator gets at most an equal share."""
    disk_bytes: int
    """Disk for the states of all operators together."""
    batch_rows: int = 1
    """Most rows of a batch: the states of so many keys must fit into the memory."""
    process: str = ""
    """Prefix of file names, different for each process of this host."""
    log_bytes: int = 64 * 2**20
    """Memory for the rows that one operator has put off (`sbon.state.log`)."""
    sizes: dict[str, int] = msgspec.field(default_factory=dict)
    """Bytes of each file. Several threads change this, one entry at a time."""
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
        """Returns the bytes of disk that are still free for states."""
        return max(0, self.disk_bytes - self.used_bytes)

    def clear(self) -> None:
        """Removes the files of former processes that were killed."""
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
            The disk is full, or states have used up their share of it. Part of the data may have been written.
        """
        size_bytes = sum(map(len, data))
        if self.used_bytes + size_bytes > self.disk_bytes:
            used = f"{self.used_bytes / 1e6:,.1f} MB of {self.disk_bytes / 1e6:,.1f} MB"
            raise OSError(errno.ENOSPC, f"states on disk take {used} (engine.state_disk_max)")
        self.sizes[name] = self.sizes.get(name, 0) + size_bytes
        self.disk.append(name, data)

    def remove(self, name: str) -> None:
        """Deletes a file. A file that cannot be deleted now is deleted when the agent starts again."""
        if self.sizes.pop(name, None) is not None:
            try:
                self.disk.remove(name)
            except OSError:
                return


def to_merge(rows: list[int]) -> int:
    """Returns how many of the newest runs to merge: adds the next older run while it is at most twice as large as those before it."""
    total, count = rows[0] if rows else 0, min(1, len(rows))
    while count < len(rows) and rows[count] <= 2 * total:
        total += rows[count]
        count += 1
    return count


def check_batch(room: StateRoom, rows: int, entry_bytes: float) -> None:
    """Refuses memory that cannot hold the states of one batch.

    Parameters
    ----------
    entry_bytes : bytes of a state

    Raises
    ------
    StateError
        The memory is too small; the message names the settings that help.
    """
    there, needed = room.memory_bytes, rows * entry_bytes
    if there < needed:
        raise StateError(
            f"the memory for states, {there / 1e6:,.3f} MB, cannot hold the states of one batch of {rows:,} keys, "
            f"{needed / 1e6:,.3f} MB; raise engine.state_memory_max, or lower engine.quantum_rows"
        )
