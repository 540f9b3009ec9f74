"""The receiving end of a link: it takes each batch once, in order, and gives credit."""

from collections import deque
from enum import Enum

from sbon.errors import LocalProtocolError
from sbon.links.config import LinkConfig
from sbon.types import LinkId


class Verdict(Enum):
    """The result for an arriving batch."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """It was accepted before. Acknowledge it again, as the first acknowledgement may have been lost."""
    GAP = "gap"
    """An earlier batch is missing. Ask the sender, once, to resume after `processed`."""
    GAP_TOLD = "gap told"
    """An earlier batch is still missing, and the sender has been asked already."""
    FULL = "full"
    """The sender exceeds the receiver's window. The batch is dropped; `LinkReceiver.wants_more` says when to ask for it again."""


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
        """Returns the receiving end of a link that replaces this one and starts at batch 1."""
        return LinkReceiver(link, self._config)

    def go_on(self, processed: int, rows_processed: int) -> None:
        """Continues after the last batch that another copy of the operator has processed.

        Raises
        ------
        LocalProtocolError
            A batch has been received already.
        """
        if self.received:
            raise LocalProtocolError(f"link {self.link}: cannot continue after batch {processed}: batch {self.received} has come already")
        self.processed = self.received = processed
        self.rows_processed = rows_processed

    def accept(self, sequence: int, size_bytes: int = 0) -> Verdict:
        """Judges an arriving batch. Process ACCEPTED batches in the order of acceptance."""
        if sequence <= self.received:
            return Verdict.DUPLICATE
        if sequence > self.received + 1:
            if self._gap_told:
                return Verdict.GAP_TOLD
            self._gap_told = True
            return Verdict.GAP
        if not self._has_room:
            # An honest sender stops one batch beyond the window; this limit protects memory from a dishonest one. A sender whose window is
            # larger than ours is asked to resume when there is room; until then, the batches that it sends count as missing.
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
        """Returns True once when there is room again for dropped batches. Then ask the sender to resume after `processed`."""
        below = len(self._queued) <= self._config.window_batches and self._queued_bytes <= self._config.window_bytes
        due = self._turned_away and below
        if due:
            self._turned_away = self._gap_told = False
        return due

    def is_share(self, batches: int, size_bytes: int, parts: int) -> bool:
        """Tells whether so many batches, or so many bytes, are at least 1/`parts` of the window."""
        return batches * parts >= self._config.window_batches or size_bytes * parts >= self._config.window_bytes

    @property
    def _has_room(self) -> bool:
        return len(self._queued) < 2 * self._config.window_batches and self._queued_bytes < 2 * self._config.window_bytes

    @property
    def credit(self) -> int:
        """Returns the number of batches beyond `processed` that will be accepted."""
        return self._config.window_batches
