"""The disk of a virtual machine: files in memory, that can be made full, slow, broken or damaged. It outlives the machine's processes."""

import errno
from collections.abc import Sequence

from sbon.link_frames import Buffer


class VirtualDisk:
    """Satisfies `sbon_agent.host.Disk`. Faults are set by whoever runs the world."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.capacity_bytes: float = float("inf")
        """What fits; appending more fails half-way, as on a real disk."""
        self.failing = False
        """Nothing can be written."""
        self.delay_s = 0.0
        """How long each call takes."""
        self.bytes_written = 0
        self.peak_bytes = 0
        self._owed_s = 0.0

    @property
    def used_bytes(self) -> int:
        """What all files take."""
        return sum(map(len, self.files.values()))

    def append(self, name: str, data: Sequence[Buffer]) -> None:
        """Add to the end of a file."""
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
        """Part of a file."""
        self._owed_s += self.delay_s
        if name not in self.files:
            raise OSError(errno.ENOENT, "No such file or directory")
        return bytes(self.files[name][offset : offset + size_bytes])

    def remove(self, name: str) -> None:
        """Delete a file."""
        self.files.pop(name, None)

    def names(self) -> list[str]:
        """All files."""
        return sorted(self.files)

    def take_delay_s(self) -> float:
        """How long the calls since the last time would have taken."""
        owed, self._owed_s = self._owed_s, 0.0
        return owed
