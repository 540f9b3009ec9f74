"""The disk of a virtual machine: files in memory, which can be made full, slow, broken or damaged. It outlives the machine's processes."""

import errno
from collections.abc import Sequence

from sbon.links.frames import Buffer


class VirtualDisk:
    """Satisfies `sbon.ports.Disk`. The caller sets its faults."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.capacity_bytes: float = float("inf")
        """Capacity; an append beyond it writes the part that fits and fails, as on a real disk."""
        self.failing = False
        """Makes every write fail."""
        self.delay_s = 0.0
        """Seconds that each write takes, and each read of a part."""
        self.bytes_written = 0
        self.peak_bytes = 0
        self._owed_s = 0.0

    @property
    def used_bytes(self) -> int:
        """Returns the bytes of all files."""
        return sum(map(len, self.files.values()))

    def append(self, name: str, data: Sequence[Buffer]) -> None:
        """Appends to a file."""
        self._owed_s += self.delay_s
        if self.failing:
            raise OSError(errno.EIO, "Input/output error")
        joined = b"".join(data)
        fits = int(min(len(joined), max(0.0, self.capacity_bytes - self.used_bytes)))
        self.files.setdefault(name, bytearray()).extend(joined[:fits])
        self.bytes_written += fits
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        if fits < len(joined):
            raise OSError(errno.ENOSPC, "No space left on device")

    def read(self, name: str, offset: int, size_bytes: int) -> bytes:
        """Returns part of a file."""
        return self.read_each(name, [offset], size_bytes)

    def read_each(self, name: str, offsets: Sequence[int], size_bytes: int) -> bytes:
        """Returns parts of equal size of a file, joined."""
        self._owed_s += self.delay_s * len(offsets)
        if name not in self.files:
            raise OSError(errno.ENOENT, "No such file or directory")
        return b"".join([bytes(self.files[name][offset : offset + size_bytes]) for offset in offsets])

    def remove(self, name: str) -> None:
        """Deletes a file."""
        self.files.pop(name, None)

    def names(self) -> list[str]:
        """Returns the names of all files."""
        return sorted(self.files)

    def take_delay_s(self) -> float:
        """Returns the seconds that calls since the previous `take_delay_s` would have taken."""
        owed, self._owed_s = self._owed_s, 0.0
        return owed
