"""Links between operators: numbering, acknowledgement, credit, resend. Machines without I/O.

What an acknowledgement means
-----------------------------
The receiving operator has *processed* the batch: its effects are in the operator's state, in its output links, or in the sink. So
whatever a sender may forget is nowhere in flight, and whatever is in flight can be sent again. Three things follow.

* After a reconnect the sender sends everything unacknowledged again, and the receiver drops what it has seen by its number.
* A migrating operator takes along its state, the number of the last batch that it processed on each input, and the output that is not
  acknowledged. Batches still in its input queues are dropped: the senders have them and send them to the new host.
* Credit needs no messages of its own: a slow operator acknowledges late, its senders run out of credit, their operators stop being
  scheduled, and so on up to the sources.

Invariants: a receiver takes the batches of a link exactly once and in the order of their numbers, for any loss, repetition and
reordering below; a sender holds at most `window_batches` batches and, beyond one batch, `window_bytes` bytes.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Protocol

import msgspec

from sbon.errors import LocalProtocolError
from sbon.types import LinkId


class LinkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a link holds. TOML table [links]."""

    window_batches: int = 64
    """Batches sent or waiting on one link and not yet acknowledged. More: longer paths stay full; fewer: less memory."""
    window_bytes: int = 8 * 2**20
    """Bytes likewise. A single larger batch still goes, alone."""

    def __post_init__(self) -> None:
        if not 1 <= self.window_batches <= 65_536:
            raise ValueError(f"window_batches = {self.window_batches}, expected 1 to 65536")
        if self.window_bytes < 1024:
            raise ValueError(f"window_bytes = {self.window_bytes}, expected at least 1024")


class Payload(Protocol):
    """Rows of a batch, in whatever form; the machines only count them."""

    @property
    def rows(self) -> int:
        """How many rows."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes in memory or on the wire."""


class Batch(msgspec.Struct, frozen=True):
    """What travels on a link: rows (or none) with their stimulus time and the watermark that holds after them."""

    sequence: int
    stimulus_s: float
    watermark_us: int
    payload: Payload | None

    @property
    def rows(self) -> int:
        """Rows; 0 for a watermark alone."""
        return self.payload.rows if self.payload is not None else 0

    @property
    def size_bytes(self) -> int:
        """Bytes, counting something for the header, so that watermarks are not free."""
        return 64 + (self.payload.size_bytes if self.payload is not None else 0)


class LinkSender:
    """The sending end of one link."""

    def __init__(self, link: LinkId, config: LinkConfig) -> None:
        self.link = link
        self._config = config
        self._held: deque[Batch] = deque()  # not acknowledged, by sequence
        self._next_sequence = 1
        self._sent = 0  # highest sequence handed out since the last rewind
        self._credit_end = config.window_batches
        self._held_bytes = 0
        self.rows_offered = 0
        self.rows_acknowledged = 0
        self.batches_resent = 0
        self._highest_sent = 0

    @property
    def has_credit(self) -> bool:
        """Another batch may be offered."""
        return self._next_sequence <= self._credit_end and (self._held_bytes < self._config.window_bytes or not self._held)

    @property
    def held(self) -> int:
        """Batches not acknowledged."""
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        """Bytes not acknowledged."""
        return self._held_bytes

    def offer(self, stimulus_s: float, watermark_us: int, payload: Payload | None) -> Batch:
        """Number a batch and keep it until it is acknowledged.

        An operator that had credit when it started may produce one batch too many for it; that one is taken too.
        """
        batch = Batch(self._next_sequence, stimulus_s, watermark_us, payload)
        self._next_sequence += 1
        self._held.append(batch)
        self._held_bytes += batch.size_bytes
        self.rows_offered += batch.rows
        return batch

    def peek(self) -> Batch | None:
        """The next batch to transmit, or None. It is only counted as sent by `sent()`."""
        index = self._sent + 1 - (self._next_sequence - len(self._held))
        if 0 <= index < len(self._held):
            return self._held[index]
        return None

    def sent(self, batch: Batch) -> None:
        """`batch`, which `peek` gave, is on its way."""
        if batch.sequence != self._sent + 1:
            raise LocalProtocolError(f"link {self.link}: sent batch {batch.sequence}, expected {self._sent + 1}")
        self._sent = batch.sequence
        if batch.sequence <= self._highest_sent:
            self.batches_resent += 1
        self._highest_sent = max(self._highest_sent, batch.sequence)

    def acknowledge(self, processed: int, credit: int) -> bool:
        """Forget what has been processed. Returns False, with no effect, for a number never sent: a peer's nonsense."""
        if processed >= self._next_sequence or processed < 0 or credit < 0:
            return False
        while self._held and self._held[0].sequence <= processed:
            batch = self._held.popleft()
            self._held_bytes -= batch.size_bytes
            self.rows_acknowledged += batch.rows
        self._sent = max(self._sent, processed)
        self._highest_sent = max(self._highest_sent, processed)
        # Never shrink by an acknowledgement that was overtaken by a later one, never beyond our own bound on memory.
        self._credit_end = max(self._credit_end, processed + min(credit, self._config.window_batches))
        return True

    def rewind(self) -> None:
        """Send everything unacknowledged again: the connection, or the other end, is new."""
        self._sent = self._next_sequence - len(self._held) - 1

    def export(self) -> tuple[int, int, int, tuple[Batch, ...]]:
        """What a migrating operator takes along: next number, rows offered and acknowledged, batches held."""
        return self._next_sequence, self.rows_offered, self.rows_acknowledged, tuple(self._held)

    @classmethod
    def restored(cls, link: LinkId, config: LinkConfig, exported: tuple[int, int, int, Iterable[Batch]]) -> "LinkSender":
        """The sender that continues where an exported one stopped, with everything held to be sent again.

        Raises
        ------
        LocalProtocolError
            The batches are not the unbroken end of the sequence.
        """
        sender = cls(link, config)
        next_sequence, offered, acknowledged, held = exported
        sender._held.extend(held)
        numbers = [batch.sequence for batch in sender._held]
        if next_sequence < 1 or numbers != list(range(next_sequence - len(numbers), next_sequence)) or (numbers and numbers[0] < 1):
            raise LocalProtocolError(f"link {link}: batches {numbers} do not end before {next_sequence}")
        sender._next_sequence = next_sequence
        sender._held_bytes = sum(batch.size_bytes for batch in sender._held)
        sender.rows_offered, sender.rows_acknowledged = offered, acknowledged
        sender._sent = sender._highest_sent = next_sequence - len(numbers) - 1
        sender._credit_end = sender._sent + config.window_batches
        return sender


class Verdict(Enum):
    """What became of an arriving batch."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """Seen already. Acknowledge again: the first word may have been lost."""
    GAP = "gap"
    """Something before it is missing. Ask the sender, once, to resume after `processed`."""
    GAP_TOLD = "gap told"
    """Missing as before, and asked for already."""


class LinkReceiver:
    """The receiving end of one link."""

    def __init__(self, link: LinkId, config: LinkConfig, processed: int = 0, rows_processed: int = 0) -> None:
        self.link = link
        self._config = config
        self.processed = processed
        """Highest sequence whose effects are in the operator's state or output."""
        self.received = processed
        """Highest sequence accepted."""
        self.rows_processed = rows_processed
        self._gap_told = False

    def accept(self, sequence: int) -> Verdict:
        """Judge an arriving batch; ACCEPTED ones must be processed in the order of acceptance."""
        if sequence <= self.received:
            return Verdict.DUPLICATE
        if sequence > self.received + 1:
            if self._gap_told:
                return Verdict.GAP_TOLD
            self._gap_told = True
            return Verdict.GAP
        if self.received - self.processed >= 2 * self._config.window_batches:
            # An honest sender stops at the window (and one batch); without this, memory is at the mercy of a dishonest one.
            return Verdict.GAP_TOLD
        self._gap_told = False
        self.received = sequence
        return Verdict.ACCEPTED

    def process(self, sequence: int, rows: int) -> None:
        """The next accepted batch has been processed."""
        if sequence != self.processed + 1 or sequence > self.received:
            raise LocalProtocolError(f"link {self.link}: processed batch {sequence}, expected {self.processed + 1}")
        self.processed = sequence
        self.rows_processed += rows

    def forget_queue(self) -> None:
        """Accepted batches that were not processed have been thrown away: the sender will send them again."""
        self.received = self.processed
        self._gap_told = False

    @property
    def credit(self) -> int:
        """Batches beyond `processed` that will be held."""
        return self._config.window_batches
