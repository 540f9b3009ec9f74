"""What the sending end of a link holds until it is acknowledged: in memory, and, where a budget allows, in the middle on disk.

A far end that is away must cost neither rows nor memory. While all fits into the window, all is in memory. When the window has been full
for a while, the backlog *spills*: its oldest batches (the head, half a window) stay in memory, ready to be sent; its newest (the tail, half
a window) gather there and leave for the disk in chunks. As the head drains, the oldest come back from the disk, in order; when the disk
holds no more of them, head and tail are one again.

This is a machine: `next_io` says what to write or to fetch, and its owner tells what became of it. One of the two is under way at a time.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec

from sbon.batch import Batch
from sbon.errors import LocalProtocolError, SpillError

RECORD_BYTES = 64
"""Counted on disk for each batch beside its rows."""
RETRY_S = 30.0
"""Pause after a disk that could not be written: what has failed once will hardly work at once."""


class SpillBudget:
    """How many bytes all links of one agent may have on disk."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def reserve(self, size_bytes: int) -> bool:
        """Take so much of the budget, if it is there."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Give so much back."""
        self.used_bytes -= size_bytes


class SpillWrite(msgspec.Struct, frozen=True):
    """Append these batches to what the link has on disk; `reserved_bytes` of the budget are theirs."""

    batches: tuple[Batch, ...]
    reserved_bytes: int


class SpillFetch(msgspec.Struct, frozen=True):
    """Bring back the oldest batches on disk: at least one, and no more once one of the limits is reached."""

    batches_max: int
    bytes_max: int


class Backlog:
    """Batches by number, oldest first. Invariant: head, disk and tail follow one another without a gap.

    Parameters
    ----------
    window_batches, window_bytes : what memory holds; beyond them at most one batch in the head and one in the tail, when they are large
    spill_after_s : how long it must have been full before it spills
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
        """Of the agent; None: nothing spills."""
        self.disk_batches = 0
        """On disk and not fetched yet."""
        self.trouble = ""
        """Why nothing more goes to the disk at present."""

    # ----------------------------------------------------------------------------------------------------- memory

    @property
    def has_room(self) -> bool:
        """Another batch may be appended. One more than this allows is taken as well."""
        if self._spilling:
            return len(self._tail) < self._half_batches and (self._tail_bytes < self._half_bytes or not self._tail)
        return len(self._head) < self._window_batches and (self._head_bytes < self._window_bytes or not self._head)

    @property
    def memory_batches(self) -> int:
        """In memory, those being written included."""
        return len(self._head) + len(self._tail)

    @property
    def memory_bytes(self) -> int:
        """Likewise."""
        return self._head_bytes + self._tail_bytes

    @property
    def on_disk(self) -> bool:
        """Something is on disk, or on its way there."""
        return self.disk_batches > 0 or self._busy is not None

    def append(self, batch: Batch) -> None:
        """The newest."""
        if self._spilling and (self._tail or self.on_disk or not self._head_has_room):
            self._tail.append(batch)
            self._tail_bytes += batch.size_bytes
        else:
            self._head.append(batch)
            self._head_bytes += batch.size_bytes

    def get(self, sequence: int) -> Batch | None:
        """The batch of this number, if it is in the head: what is on disk, or comes after it, has to wait."""
        index = sequence - self._head[0].sequence if self._head else -1
        return self._head[index] if 0 <= index < len(self._head) else None

    def replace(self, batch: Batch) -> Batch | None:
        """Put a batch in the place of the one of its number, which is returned; None, and no effect, where that is not in the head."""
        before = self.get(batch.sequence)
        if before is not None:
            self._head[batch.sequence - self._head[0].sequence] = batch
            self._head_bytes += batch.size_bytes - before.size_bytes
        return before

    def forget(self, processed: int) -> int:
        """Let go of what has been acknowledged, and return its rows. What has gone to the disk is let go when it comes back."""
        self._processed = max(self._processed, processed)
        rows = self._forget_head()
        while self._refill():
            rows += self._forget_head()
        return rows

    def all(self) -> tuple[Batch, ...]:
        """Everything, oldest first.

        Raises
        ------
        LocalProtocolError
            Part of it is on disk.
        """
        if self.on_disk:
            raise LocalProtocolError(f"{max(1, self.disk_batches)} batches that nobody has acknowledged are on disk")
        return (*self._head, *self._tail)

    # ------------------------------------------------------------------------------------------------------- disk

    def next_io(self, now: float, *, may_spill: bool) -> SpillWrite | SpillFetch | None:
        """What to do on disk now; `written`, `write_failed` or `fetched` must follow. `now`: monotonic seconds."""
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
        """When to ask `next_io` again though nothing else has happened; None: not for its own sake."""
        if self._busy is not None or self.budget is None or self.has_room:
            return None
        if self._full_since is not None:  # not yet spilling: a disk that failed during an outage before this one is no reason to wait
            return self._full_since + self._spill_after_s
        return self._retry_at if self._retry_at > float("-inf") else None

    def written(self, size_bytes: int) -> None:
        """The batches of the SpillWrite are on disk and take `size_bytes` there."""
        write, self._busy = self._busy, None
        if not isinstance(write, SpillWrite) or self.budget is None:
            raise LocalProtocolError("batches are said to be on disk, none were to be written")
        self.budget.release(write.reserved_bytes - size_bytes)
        for batch in write.batches:
            self._tail.popleft()
            self._tail_bytes -= batch.size_bytes
        if not self.disk_batches:
            self._fetched = write.batches[0].sequence - 1
        self.disk_batches += len(write.batches)

    def write_failed(self, reason: str, now: float) -> None:
        """They are not: memory keeps them, and takes no more than it can hold."""
        write, self._busy = self._busy, None
        if not isinstance(write, SpillWrite) or self.budget is None:
            raise LocalProtocolError("batches are said not to be on disk, none were to be written")
        self.budget.release(write.reserved_bytes)
        self.trouble, self._retry_at = f"spilling to disk failed: {reason}", now + RETRY_S
        self.forget(self._processed)

    def fetched(self, batches: Sequence[Batch]) -> int:
        """The oldest batches on disk are back. Returns the rows of those that have been acknowledged in the meantime.

        Raises
        ------
        SpillError
            They are not the batches that were written.
        """
        fetch, self._busy = self._busy, None
        if not isinstance(fetch, SpillFetch):
            raise LocalProtocolError("batches are said to be back from disk, none were to be fetched")
        numbers = [batch.sequence for batch in batches]
        expected = list(range(self._fetched + 1, self._fetched + 1 + len(numbers)))
        if not numbers or numbers != expected or len(numbers) > self.disk_batches:
            raise SpillError(f"batch {self._fetched + 1} was expected from disk, {numbers[:3]} came")
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
        """Nothing is on disk: the tail follows the head at once. True if something moved."""
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
