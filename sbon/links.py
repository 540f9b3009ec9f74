"""Links between operators: numbering, acknowledgement, credit, resend. Machines without I/O.

What an acknowledgement means ----------------------------- The receiving operator has *processed* the batch: its effects are in the
operator's state, in its output links, or in the sink. So whatever a sender may drop is nowhere in flight, and whatever is in flight can be
sent again. Four consequences follow.

* After a reconnect the sender sends everything unacknowledged again, and the receiver drops what it has seen by its number. * A migrating
operator transfers its state, the number of the last batch that it processed on each input, and the output that is not acknowledged.
Batches still in its input queues are dropped: the senders have them and send them to the new host. * A batch that cannot be encoded would
block all later ones: it is sent without its rows, with its number and watermark (`LinkSender.leave_out`). The rows are lost, and counted.
* Credit needs no messages of its own: a slow operator acknowledges late, its senders run out of credit, their operators stop being
  scheduled, and so on up to the sources.

Invariants: a receiver takes the batches of a link exactly once and in the order of their numbers, for any loss, repetition and
reordering below; a sender holds at most `window_batches` batches and, beyond one batch, `window_bytes` bytes in memory. With a budget
(`spill_bytes`) it stores more on disk and forwards it later (`sbon.backlog`); what is under way never exceeds the window all the same.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec

from sbon.backlog import Backlog, SpillBudget, SpillFetch, SpillWrite
from sbon.batch import Batch as Batch
from sbon.batch import Payload
from sbon.compression import Compression
from sbon.errors import LocalProtocolError
from sbon.types import LinkId


class LinkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a link holds. TOML table [links]."""

    window_batches: int = 512
    """Batches sent or waiting on one link and not yet acknowledged. More: longer paths stay full; fewer: less memory."""
    window_bytes: int = 8 * 2**20
    """Bytes likewise, before any packing. A single larger batch still goes, alone. A link carries at most so much in a round trip: over
    100 ms, 80 MiB/s."""
    compression: Compression = "auto"
    """How batches between hosts are packed: `none`, `lz4`, `zstd`, or `auto`, by the bandwidth that the connection shows when it is full. A
    codec saves bytes on the way and costs processor time at both ends."""
    spill_bytes: int = 0
    """Disk that all links of this agent may fill, together, with what far ends cannot take; 0: none, sources wait instead. More: longer
    outages are bridged. The files lie unencrypted in the data directory, for its owner's eyes only, and do not outlive the agent."""
    spill_after_s: float = 1.0
    """How long a link must have been full, without a moment's room, before it goes to disk. Shorter: sources are held up less when a far
    end goes away; 0: far ends that are merely slower than their sources fill the disk as well, where otherwise the sources would wait."""

    def __post_init__(self) -> None:
        if not 1 <= self.window_batches <= 65_536:
            raise ValueError(f"window_batches = {self.window_batches}, expected 1 to 65536")
        if self.window_bytes < 1024:
            raise ValueError(f"window_bytes = {self.window_bytes}, expected at least 1024")
        if self.spill_bytes < 0 or 0 < self.spill_bytes < 2**20:
            raise ValueError(f"spill_bytes = {self.spill_bytes}, expected 0 or at least 1048576")
        if not 0 <= self.spill_after_s <= 3600:
            raise ValueError(f"spill_after_s = {self.spill_after_s}, expected 0 to 3600")


class LinkSender:
    """The sending end of one link."""

    def __init__(self, link: LinkId, config: LinkConfig) -> None:
        self.link = link
        self._config = config
        self._backlog = Backlog(config.window_batches, config.window_bytes, config.spill_after_s)
        self._next_sequence = 1
        self._processed = 0  # highest sequence acknowledged
        self._sent = 0  # highest sequence handed out since the last rewind
        self._credit_end = config.window_batches
        self.rows_offered = 0
        self.rows_acknowledged = 0
        self.rows_left_out = 0
        """Rows of batches that could not be encoded."""
        self.batches_resent = 0
        self._highest_sent = 0

    @property
    def compression(self) -> Compression:
        """Returns the configured compression of its batches."""
        return self._config.compression

    @property
    def has_credit(self) -> bool:
        """Tells whether there is room for another batch, whether or not it may be sent at once."""
        return self._backlog.has_room

    @property
    def held(self) -> int:
        """Returns the number of batches not acknowledged."""
        return self._next_sequence - 1 - self._processed

    @property
    def rows_held(self) -> int:
        """Returns the rows not acknowledged (or acknowledged so recently that they are still on disk)."""
        return self.rows_offered - self.rows_acknowledged - self.rows_left_out

    @property
    def memory_batches(self) -> int:
        """Returns the number of unacknowledged batches in memory."""
        return self._backlog.memory_batches

    @property
    def memory_bytes(self) -> int:
        """Returns the bytes of the batches in memory."""
        return self._backlog.memory_bytes

    @property
    def spilled_batches(self) -> int:
        """Returns the number of batches on disk (at most a window of them may be acknowledged already)."""
        return self._backlog.disk_batches

    @property
    def on_disk(self) -> bool:
        """Tells whether batches are on disk or being written, so that the operator must stay on this host."""
        return self._backlog.on_disk

    @property
    def trouble(self) -> str:
        """Returns the reason why no more batches are written to disk at present; empty if there is none."""
        return self._backlog.trouble

    @property
    def is_settled(self) -> bool:
        """Tells whether all that was offered has been acknowledged, and nothing is left in memory or on disk."""
        return self._processed == self._next_sequence - 1 and not self._backlog.on_disk

    @property
    def offered(self) -> int:
        """Returns the number of the last batch offered; 0 before the first."""
        return self._next_sequence - 1

    def offer(self, stimulus_s: float, watermark_us: int, payload: Payload | None, path: int = 0) -> Batch:
        """Numbers a batch and keeps it until it is acknowledged.

        An operator that had credit when it started may exceed it by one batch, which is accepted, too.
        """
        batch = Batch(self._next_sequence, stimulus_s, watermark_us, payload, path)
        self._next_sequence += 1
        self._backlog.append(batch)
        self.rows_offered += batch.rows
        return batch

    def peek(self) -> Batch | None:
        """Returns the next batch to transmit, or None. Only `sent()` counts it as sent."""
        return self._backlog.get(self._sent + 1) if self._sent < self._credit_end else None

    def sent(self, batch: Batch) -> None:
        """Records that `batch`, which `peek` returned, has been sent."""
        if batch.sequence != self._sent + 1:
            raise LocalProtocolError(f"link {self.link}: sent batch {batch.sequence}, expected {self._sent + 1}")
        self._sent = batch.sequence
        if batch.sequence <= self._highest_sent:
            self.batches_resent += 1
        self._highest_sent = max(self._highest_sent, batch.sequence)

    def leave_out(self, sequence: int) -> int:
        """Replaces a batch that cannot be encoded by one without rows, with the same number and watermark; returns the number of lost rows.

        Returns 0 if the batch is no longer held, or is on disk.
        """
        batch = self._backlog.get(sequence)
        if batch is None:
            return 0
        self._backlog.replace(msgspec.structs.replace(batch, payload=None))
        self.rows_left_out += batch.rows
        return batch.rows

    def acknowledge(self, processed: int, credit: int) -> bool:
        """Drops processed batches. Returns False, without effect, for a number that was never sent, which is an error of the peer's."""
        if processed >= self._next_sequence or processed < 0 or credit < 0:
            return False
        self._processed = max(self._processed, processed)
        self.rows_acknowledged += self._backlog.forget(processed)
        self._sent = max(self._sent, processed)
        self._highest_sent = max(self._highest_sent, processed)
        # Credit never shrinks by an acknowledgement that a later one overtook, and never exceeds our own bound on memory.
        self._credit_end = max(self._credit_end, processed + min(credit, self._config.window_batches))
        return True

    def rewind(self) -> None:
        """Restarts sending from the first unacknowledged batch, because the connection, or the other end, is new."""
        self._sent = self._processed

    def export(self) -> tuple[int, int, int, tuple[Batch, ...]]:
        """Returns the state for a migration: next number, rows offered and acknowledged, batches held.

        Raises
        ------
        LocalProtocolError
            Some batches are on disk.
        """
        return self._next_sequence, self.rows_offered - self.rows_left_out, self.rows_acknowledged, self._backlog.all()

    @classmethod
    def restored(cls, link: LinkId, config: LinkConfig, exported: tuple[int, int, int, Iterable[Batch]]) -> "LinkSender":
        """Returns a sender that continues where an exported one stopped, and sends everything held again.

        Raises
        ------
        LocalProtocolError
            The batches are not the contiguous end of the sequence.
        """
        sender = cls(link, config)
        next_sequence, offered, acknowledged, held = exported
        batches = tuple(held)
        numbers = [batch.sequence for batch in batches]
        if next_sequence < 1 or numbers != list(range(next_sequence - len(numbers), next_sequence)) or (numbers and numbers[0] < 1):
            raise LocalProtocolError(f"link {link}: batches {numbers} do not end before {next_sequence}")
        sender._next_sequence = next_sequence
        for batch in batches:
            sender._backlog.append(batch)
        sender.rows_offered, sender.rows_acknowledged = offered, acknowledged
        sender._processed = sender._sent = sender._highest_sent = next_sequence - len(numbers) - 1
        sender._credit_end = sender._sent + config.window_batches
        return sender

    # ------------------------------------------------------------------------------- the disk (see `sbon.backlog`)

    def may_spill(self, budget: SpillBudget | None) -> None:
        """Lets batches that do not fit into memory go to disk, within this budget."""
        self._backlog.budget = budget

    def next_io(self, now: float, *, may_spill: bool) -> SpillWrite | SpillFetch | None:
        """Returns what to write or to fetch now."""
        return self._backlog.next_io(now, may_spill=may_spill)

    def next_wake(self) -> float | None:
        """Returns when to call `next_io` again if nothing else happens."""
        return self._backlog.next_wake()

    def written(self, size_bytes: int) -> None:
        """Records that the batches are on disk, and their size there."""
        self._backlog.written(size_bytes)

    def write_failed(self, reason: str, now: float) -> None:
        """Records that the write failed."""
        self._backlog.write_failed(reason, now)

    def fetched(self, batches: Sequence[Batch]) -> None:
        """Takes back the oldest batches from disk.

        Raises
        ------
        SpillError
            They are not the batches that were written.
        """
        self.rows_acknowledged += self._backlog.fetched(batches)


class Verdict(Enum):
    """The result for an arriving batch."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """Seen already. Acknowledge again: the first acknowledgement may have been lost."""
    GAP = "gap"
    """An earlier batch is missing. Ask the sender, once, to resume after `processed`."""
    GAP_TOLD = "gap told"
    """An earlier batch is still missing, and the sender has been asked already."""
    FULL = "full"
    """The sender exceeds our window. The batch is dropped; `LinkReceiver.wants_more` says when to ask for it again."""


class LinkReceiver:
    """The receiving end of one link."""

    def __init__(self, link: LinkId, config: LinkConfig, processed: int = 0, rows_processed: int = 0) -> None:
        self.link = link
        self._config = config
        self.processed = processed
        """Highest sequence number whose effects are in the operator's state or output."""
        self.received = processed
        """Highest sequence number accepted."""
        self.rows_processed = rows_processed
        self._gap_told = False
        self._turned_away = False
        self._queued: deque[int] = deque()
        self._queued_bytes = 0

    def anew(self, link: LinkId) -> "LinkReceiver":
        """Returns the receiving end of a link that replaces this one, from its first batch on."""
        return LinkReceiver(link, self._config)

    def accept(self, sequence: int, size_bytes: int = 0) -> Verdict:
        """Judges an arriving batch; ACCEPTED ones must be processed in the order of acceptance."""
        if sequence <= self.received:
            return Verdict.DUPLICATE
        if sequence > self.received + 1:
            if self._gap_told:
                return Verdict.GAP_TOLD
            self._gap_told = True
            return Verdict.GAP
        if not self._has_room:
            # An honest sender stops at the window (and one batch); without this, memory is at the mercy of a dishonest one. One whose
            # window is set larger than ours is asked again when there is room: what it sends meanwhile counts as missing.
            self._gap_told = self._turned_away = True
            return Verdict.FULL
        self._gap_told = False
        self.received = sequence
        self._queued.append(size_bytes)
        self._queued_bytes += size_bytes
        return Verdict.ACCEPTED

    def process(self, sequence: int, rows: int) -> None:
        """Records that the next accepted batch has been processed."""
        if sequence != self.processed + 1 or sequence > self.received:
            raise LocalProtocolError(f"link {self.link}: processed batch {sequence}, expected {self.processed + 1}")
        self.processed = sequence
        self.rows_processed += rows
        self._queued_bytes -= self._queued.popleft()

    def wants_more(self) -> bool:
        """Returns True, once, when there is room again for dropped batches: ask the sender to resume after `processed`."""
        below = len(self._queued) <= self._config.window_batches and self._queued_bytes <= self._config.window_bytes
        due = self._turned_away and below
        if due:
            self._turned_away = self._gap_told = False
        return due

    @property
    def _has_room(self) -> bool:
        return len(self._queued) < 2 * self._config.window_batches and self._queued_bytes < 2 * self._config.window_bytes

    @property
    def credit(self) -> int:
        """Returns the number of batches beyond `processed` that will be accepted."""
        return self._config.window_batches
