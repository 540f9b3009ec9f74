"""Batches that the sending end of a link keeps until they are acknowledged: in memory, and partly on disk if a budget allows.

An absent receiver must cost neither rows nor unbounded memory. Batches that fit into the window stay in memory. When the window has been
full for a while, the backlog *spills*. Its oldest batches (the head, half a window) stay in memory, ready to be sent. Its newest batches
(the tail, half a window) are collected in memory and written to disk in chunks. As the head drains, batches are read back from disk,
oldest first. When none are left on disk, the tail joins the head again.

This is a machine: `next_io` returns what to write or to fetch, and its owner reports the result. Only one such operation is under way at a
time.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec

from sbon.errors import LocalProtocolError, SpillError
from sbon.links.batch import Batch

RECORD_BYTES = 64
"""Bytes counted on disk for each batch besides its rows."""
RETRY_S = 30.0
"""Pause after a failed write, since the disk is unlikely to work again at once."""


class SpillBudget:
    """The bytes that all links of one agent may have on disk."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def reserve(self, size_bytes: int) -> bool:
        """Reserves bytes of the budget; returns False if they are not available."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Returns bytes to the budget."""
        self.used_bytes -= size_bytes


class SpillWrite(msgspec.Struct, frozen=True):
    """Request to append these batches to the link's file; `reserved_bytes` of the budget are reserved for them."""

    batches: tuple[Batch, ...]
    reserved_bytes: int


class SpillFetch(msgspec.Struct, frozen=True):
    """Request to read the oldest batches on disk: at least one, and no more once one of the limits is reached."""

    batches_max: int
    bytes_max: int


class Backlog:
    """Batches by number, oldest first. Invariant: head, disk and tail follow one another without a gap.

    Parameters
    ----------
    window_batches, window_bytes : limits of memory; large batches may exceed them by one in the head and one in the tail
    spill_after_s : time that the window must have been full before spilling begins
    """

    def __init__(self, window_batches: int, window_bytes: int, spill_after_s: float) -> None:
        self._window_batches, self._window_bytes = window_batches, window_bytes
        self._half_batches, self._half_bytes = max(1, window_batches // 2), window_bytes // 2
        self._spill_after_s = spill_after_s
        self._head: deque[Batch] = deque()
        self._tail: deque[Batch] = deque()
        self._head_bytes = self._tail_bytes = 0
        self._processed = 0
        self._fetched = 0
        self._spilling = False
        self._busy: SpillWrite | SpillFetch | None = None
        self._full_since: float | None = None
        self._retry_at = float("-inf")
        self.budget: SpillBudget | None = None
        """The agent's budget; None: nothing spills."""
        self.disk_batches = 0
        """Batches on disk that have not been fetched yet."""
        self.trouble = ""
        """Reason why no more batches are written to disk at present; empty if there is none."""

    # ----------------------------------------------------------------------------------------------------- memory

    @property
    def has_room(self) -> bool:
        """Tells whether another batch may be appended. `append` accepts one more batch even if this is False."""
        if self._spilling:
            return len(self._tail) < self._half_batches and (self._tail_bytes < self._half_bytes or not self._tail)
        return len(self._head) < self._window_batches and (self._head_bytes < self._window_bytes or not self._head)

    @property
    def memory_batches(self) -> int:
        """Returns the number of batches in memory, including those being written."""
        return len(self._head) + len(self._tail)

    @property
    def memory_bytes(self) -> int:
        """Returns the bytes in memory, including those being written."""
        return self._head_bytes + self._tail_bytes

    @property
    def on_disk(self) -> bool:
        """Tells whether batches are on disk or being written."""
        return self.disk_batches > 0 or self._busy is not None

    def append(self, batch: Batch) -> None:
        """Appends the newest batch."""
        if self._spilling and (self._tail or self.on_disk or not self._head_has_room):
            self._tail.append(batch)
            self._tail_bytes += batch.size_bytes
        else:
            self._head.append(batch)
            self._head_bytes += batch.size_bytes

    def get(self, sequence: int) -> Batch | None:
        """Returns the batch of this number if it is in the head; batches on disk, or after them, must wait."""
        index = sequence - self._head[0].sequence if self._head else -1
        return self._head[index] if 0 <= index < len(self._head) else None

    def replace(self, batch: Batch) -> Batch | None:
        """Replaces the head's batch of the same number and returns the old one; returns None, without effect, if it is not in the head."""
        before = self.get(batch.sequence)
        if before is not None:
            self._head[batch.sequence - self._head[0].sequence] = batch
            self._head_bytes += batch.size_bytes - before.size_bytes
        return before

    def forget(self, processed: int) -> int:
        """Drops acknowledged batches and returns their rows. Batches on disk are dropped when they are read back."""
        self._processed = max(self._processed, processed)
        rows = self._forget_head()
        while self._refill():
            rows += self._forget_head()
        return rows

    def all(self) -> tuple[Batch, ...]:
        """Returns all batches, oldest first.

        Raises
        ------
        LocalProtocolError
            Some batches are on disk.
        """
        if self.on_disk:
            raise LocalProtocolError(f"{max(1, self.disk_batches)} unacknowledged batches are on disk, expected none")
        return (*self._head, *self._tail)

    # ------------------------------------------------------------------------------------------------------- disk

    def next_io(self, now: float, *, may_spill: bool) -> SpillWrite | SpillFetch | None:
        """Returns the next disk operation; `written`, `write_failed` or `fetched` must follow. `now`: monotonic seconds."""
        if self._busy is not None or self.budget is None:
            return None
        if self.disk_batches:
            if len(self._head) <= self._half_batches // 2 and self._head_bytes < self._half_bytes:
                self._busy = SpillFetch(self._half_batches - len(self._head), self._half_bytes - self._head_bytes)
                return self._busy
        elif not self._spilling and not self._begins_to_spill(now, may_spill):
            return None
        if now < self._retry_at or not may_spill:
            return None
        self._retry_at = float("-inf")
        if not self._tail or (2 * len(self._tail) < self._half_batches and 2 * self._tail_bytes < self._half_bytes):
            return None
        size_bytes = sum(batch.size_bytes + RECORD_BYTES for batch in self._tail)
        if not self.budget.reserve(size_bytes):
            self.trouble = f"the spill budget of {self.budget.limit_bytes / 2**20:g} MiB (links.spill_bytes) is used up"
            return None
        self.trouble = ""
        self._busy = SpillWrite(tuple(self._tail), size_bytes)
        return self._busy

    def next_wake(self) -> float | None:
        """Returns when to call `next_io` again if nothing else happens; None if that is not needed."""
        if self._busy is not None or self.budget is None or self.has_room:
            return None
        if self._full_since is not None:  # not spilling yet: do not wait because the disk failed in an earlier outage
            return self._full_since + self._spill_after_s
        return self._retry_at if self._retry_at > float("-inf") else None

    def written(self, size_bytes: int) -> None:
        """Records that the batches of the SpillWrite are on disk and take `size_bytes` there."""
        write, self._busy = self._busy, None
        if not isinstance(write, SpillWrite) or self.budget is None:
            raise LocalProtocolError("written() was called, but no write is under way")
        self.budget.release(write.reserved_bytes - size_bytes)
        for batch in write.batches:
            self._tail.popleft()
            self._tail_bytes -= batch.size_bytes
        if not self.disk_batches:
            self._fetched = write.batches[0].sequence - 1
        self.disk_batches += len(write.batches)

    def write_failed(self, reason: str, now: float) -> int:
        """Records that the write failed: the batches stay in memory, which accepts no more than it can hold.

        Returns the number of rows that were acknowledged during the write.
        """
        write, self._busy = self._busy, None
        if not isinstance(write, SpillWrite) or self.budget is None:
            raise LocalProtocolError("write_failed() was called, but no write is under way")
        self.budget.release(write.reserved_bytes)
        self.trouble, self._retry_at = f"spilling to disk failed: {reason}", now + RETRY_S
        return self.forget(self._processed)

    def fetched(self, batches: Sequence[Batch]) -> int:
        """Takes back the oldest batches from disk. Returns the number of rows that were acknowledged during the read.

        Raises
        ------
        SpillError
            The batches are not those that were written.
        """
        fetch, self._busy = self._busy, None
        if not isinstance(fetch, SpillFetch):
            raise LocalProtocolError("fetched() was called, but no read is under way")
        numbers = [batch.sequence for batch in batches]
        expected = list(range(self._fetched + 1, self._fetched + 1 + len(numbers)))
        if not numbers or numbers != expected or len(numbers) > self.disk_batches:
            raise SpillError(f"read batches {numbers[:3]} from disk, expected batch {self._fetched + 1} first")
        self.disk_batches -= len(numbers)
        self._fetched = numbers[-1]
        self._head.extend(batches)
        self._head_bytes += sum(batch.size_bytes for batch in batches)
        return self.forget(self._processed)

    # ------------------------------------------------------------------------------------------------------ inside

    @property
    def _head_has_room(self) -> bool:
        return len(self._head) < self._half_batches and (self._head_bytes < self._half_bytes or not self._head)

    def _begins_to_spill(self, now: float, may_spill: bool) -> bool:
        if self.has_room or not may_spill:
            self._full_since = None
            return False
        if self._full_since is None:
            self._full_since = now
        if now < self._full_since + self._spill_after_s:
            return False
        self._spilling, self._full_since = True, None
        kept = kept_bytes = 0
        for batch in self._head:
            if kept >= self._half_batches or (kept and kept_bytes >= self._half_bytes):
                break
            kept, kept_bytes = kept + 1, kept_bytes + batch.size_bytes
        self._tail.extend(islice(self._head, kept, None))
        while len(self._head) > kept:
            self._head.pop()
        self._tail_bytes, self._head_bytes = self._head_bytes - kept_bytes, kept_bytes
        return True

    def _forget_head(self) -> int:
        rows = 0
        while self._head and self._head[0].sequence <= self._processed:
            batch = self._head.popleft()
            self._head_bytes -= batch.size_bytes
            rows += batch.rows
        return rows

    def _refill(self) -> bool:
        """Joins the tail to the head when nothing is on disk; returns True if something moved."""
        if not self._spilling or self.on_disk:
            return False
        moved = False
        while self._tail and self._head_has_room:
            batch = self._tail.popleft()
            self._tail_bytes -= batch.size_bytes
            self._head.append(batch)
            self._head_bytes += batch.size_bytes
            moved = True
        if not self._tail:
            self._spilling, self.trouble = False, ""
        return moved
