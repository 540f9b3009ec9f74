"""Writes batches of the links' backlogs (`sbon.links.backlog`) to disk and reads them back, on executor threads, within the agent's budget.

`sbon.delivery.outgoing` owns it.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from sbon.delivery.spill_log import SUFFIX, SpillLog
from sbon.errors import LocalProtocolError, SpillError
from sbon.links.backlog import SpillBudget, SpillFetch, SpillWrite
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.sender import LinkSender
from sbon.ports import Disk, Executor, Timer
from sbon.schema import Schema
from sbon.types import LinkId

T = TypeVar("T")

SEGMENT_BYTES_MAX = 16 * 2**20
SEGMENTS_MIN = 16
"""Least number of segments in the budget. A segment's space is freed only when all of it has been read, so few segments would waste it."""


class SpillEvents(Protocol):
    """Callbacks of spilling; `Outgoing` implements them."""

    def disk_done(self, link: LinkId) -> None:
        """Reports that a read, a write or a pause has ended: there may be room, or a batch to send."""

    def disk_lost(self, link: LinkId, reason: str) -> None:
        """Reports that batches on disk cannot be read back."""

    def disk_told(self, link: LinkId, event: str, reason: str) -> None:
        """Reports that a link's spilling `began`, `stopped` (no more can be written, for this reason), `goes_on` or has `drained`."""


class _Store:
    """Disk state of one link."""

    def __init__(self, log: SpillLog) -> None:
        self.log = log
        self.charged_bytes = 0
        """Bytes charged to the budget."""
        self.busy = False
        self.dropped = False


class Spilling:
    """Disk of all links of an agent. Without a budget it does nothing and costs nothing."""

    def __init__(self, host: Executor, disk: Disk, config: LinkConfig, events: SpillEvents) -> None:
        self._host = host
        self._disk = disk
        self._events = events
        self.budget = SpillBudget(config.spill_bytes) if config.spill_bytes else None
        self._segment_bytes = min(SEGMENT_BYTES_MAX, config.spill_bytes // SEGMENTS_MIN)
        self._stores: dict[LinkId, _Store] = {}
        self._timers: dict[LinkId, Timer] = {}
        self._troubled: dict[LinkId, str] = {}
        self._made = 0
        for name in disk.names():
            if name.endswith(SUFFIX):  # left by an agent that was killed: the links they belong to are unknown
                disk.remove(name)

    def look(self, link: LinkId, sender: LinkSender, schema: Schema, *, may_spill: bool) -> None:
        """Starts the disk work that a link needs now. `may_spill`: more batches may be written; those on disk are read back in any case."""
        if self.budget is None or not (may_spill or sender.on_disk):
            return
        begun = sender.on_disk
        match sender.backlog.next_io(self._host.now(), may_spill=may_spill):
            case SpillWrite() as write:
                self._write(link, sender, schema, write)
                if not begun:
                    self._events.disk_told(link, "began", "")
            case SpillFetch() as fetch:
                self._fetch(link, sender, fetch)
            case None:
                self._arm(link, sender)
        self._tell_trouble(link, sender.trouble)

    def drop(self, link: LinkId) -> None:
        """Deletes a link's batches on disk, because the link is gone or its sending end has moved."""
        timer = self._timers.pop(link, None)
        if timer is not None:
            timer.cancel()
        self._troubled.pop(link, None)
        store = self._stores.pop(link, None)
        if store is None:
            return
        store.dropped = True
        if not store.busy:
            self._host.execute(store.log.remove, _ignored, rows=0)
        self._release(store, store.charged_bytes)

    def rename(self, link: LinkId, new: LinkId) -> None:
        """Moves a link's state and batches on disk to another link id.

        Raises
        ------
        LocalProtocolError
            A read or write is under way.
        """
        store = self._stores.get(link)
        if store is not None and store.busy:
            raise LocalProtocolError(f"cannot rename {link}: its batches are being written or read")
        if store is not None:
            self._stores[new] = self._stores.pop(link)
        if link in self._troubled:
            self._troubled[new] = self._troubled.pop(link)
        timer = self._timers.pop(link, None)
        if timer is not None:
            timer.cancel()  # the next look at the link sets another one

    def close(self) -> None:
        """Deletes everything, when the agent stops."""
        for store in self._stores.values():
            store.dropped = True
            store.log.remove()
        for timer in self._timers.values():
            timer.cancel()
        self._stores.clear()
        self._timers.clear()

    # ------------------------------------------------------------------------------------------------------ inside

    def _write(self, link: LinkId, sender: LinkSender, schema: Schema, write: SpillWrite) -> None:
        store = self._stores.get(link)
        if store is None:
            self._made += 1
            store = self._stores[link] = _Store(SpillLog(self._disk, f"{self._made:06}", schema, self._segment_bytes))

        def done(result: int | BaseException) -> None:
            if store.dropped:
                self._give_back(write.reserved_bytes)
            elif isinstance(result, BaseException):
                reason = (result.strerror if isinstance(result, OSError) else "") or f"{type(result).__name__}: {result}"
                sender.write_failed(reason, self._host.now())
                self._tell_trouble(link, sender.trouble)
            else:
                store.charged_bytes += result
                sender.backlog.written(result)

        self._execute(link, store, lambda: store.log.append(write.batches), done)

    def _fetch(self, link: LinkId, sender: LinkSender, fetch: SpillFetch) -> None:
        store = self._stores[link]

        def done(result: tuple[list[Batch], int] | BaseException) -> None:
            if store.dropped:
                return
            try:
                if isinstance(result, BaseException):
                    raise result
                batches, freed_bytes = result
                sender.fetched(batches)
            except SpillError as problem:
                self._events.disk_lost(link, str(problem))
                return
            self._release(store, freed_bytes)
            if not sender.on_disk:
                self._events.disk_told(link, "drained", "")

        self._execute(link, store, lambda: store.log.read(fetch.batches_max, fetch.bytes_max), done)

    def _execute(self, link: LinkId, store: _Store, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        def finished(result: T | BaseException) -> None:
            store.busy = False
            done(result)
            if store.dropped:
                self._host.execute(store.log.remove, _ignored, rows=0)
            else:
                self._events.disk_done(link)

        store.busy = True
        self._host.execute(work, finished, rows=0)

    def _arm(self, link: LinkId, sender: LinkSender) -> None:
        wake, now = sender.backlog.next_wake(), self._host.now()
        if wake is None or wake <= now or link in self._timers:
            return

        def again() -> None:
            self._timers.pop(link, None)
            self._events.disk_done(link)

        self._timers[link] = self._host.call_at(wake, again)

    def _tell_trouble(self, link: LinkId, trouble: str) -> None:
        before = self._troubled.pop(link, "")
        if trouble:
            self._troubled[link] = trouble
        if trouble != before:
            self._events.disk_told(link, "stopped" if trouble else "goes_on", trouble)

    def _release(self, store: _Store, size_bytes: int) -> None:
        store.charged_bytes -= size_bytes
        self._give_back(size_bytes)

    def _give_back(self, size_bytes: int) -> None:
        """Returns bytes to the budget, and lets waiting links try again."""
        if self.budget is None or not size_bytes:
            return
        self.budget.release(size_bytes)
        for link in list(self._troubled):
            self._host.call_soon(partial(self._events.disk_done, link))


def _ignored(result: object) -> None:
    """Ignores the result: files that cannot be removed now are removed when the agent starts again."""
