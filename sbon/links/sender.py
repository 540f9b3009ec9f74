"""The sending end of a link: it numbers batches, keeps them until they are acknowledged, and sends again what may be lost."""

from collections.abc import Iterable, Sequence

import msgspec

from sbon.compression import Compression
from sbon.errors import LocalProtocolError
from sbon.links.backlog import Backlog
from sbon.links.batch import Batch, Payload
from sbon.links.config import LinkConfig
from sbon.types import LinkId
from sbon.watermarks import WATERMARK_MIN


class LinkSender:
    """The sending end of one link."""

    def __init__(self, link: LinkId, config: LinkConfig) -> None:
        self.link = link
        self._config = config
        self.backlog = Backlog(config.window_batches, config.window_bytes, config.spill_after_s)
        """The batches that it holds, in memory and on disk."""
        self._next_sequence = 1
        self._processed = 0  # highest sequence acknowledged
        self.safe = 0
        """Highest number of a batch whose effects outlive the receiver, as far as it has said: it keeps state, or has passed on all that it
        made."""
        self.forgotten = 0
        """Highest number of the batches that have been dropped, as they are safe, or have been processed on this host."""
        self._sent = 0  # highest sequence handed out since the last rewind
        self._credit_end = config.window_batches
        self.before: tuple[int, int] = (0, WATERMARK_MIN)
        """Rows that the operator had given when it got this output, and the watermark after them."""
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
        return self.backlog.has_room

    @property
    def held(self) -> int:
        """Returns the number of batches not processed."""
        return self._next_sequence - 1 - self._processed

    @property
    def rows_held(self) -> int:
        """Returns the rows not safe (or safe so recently that they are still on disk)."""
        return self.rows_offered - self.rows_acknowledged - self.rows_left_out

    @property
    def memory_batches(self) -> int:
        """Returns the number of unacknowledged batches in memory."""
        return self.backlog.memory_batches

    @property
    def memory_bytes(self) -> int:
        """Returns the bytes of the batches in memory."""
        return self.backlog.memory_bytes

    @property
    def spilled_batches(self) -> int:
        """Returns the number of batches on disk (at most a window of them may be acknowledged already)."""
        return self.backlog.disk_batches

    @property
    def on_disk(self) -> bool:
        """Tells whether batches are on disk or being written, so that the operator must stay on this host."""
        return self.backlog.on_disk

    @property
    def trouble(self) -> str:
        """Returns the reason why no more batches are written to disk at present; empty if there is none."""
        return self.backlog.trouble

    @property
    def is_settled(self) -> bool:
        """Tells whether all that was offered is safe, and nothing is left in memory or on disk."""
        return self.forgotten == self._next_sequence - 1 and not self.backlog.on_disk

    @property
    def offered(self) -> int:
        """Returns the number of the last batch offered; 0 before the first."""
        return self._next_sequence - 1

    @property
    def oldest_watermark_us(self) -> int | None:
        """Returns the watermark of the oldest batch that is not safe; None if there is none in memory."""
        oldest = self.backlog.get(self.forgotten + 1)
        return None if oldest is None else oldest.watermark_us

    def offer(self, stimulus_s: float, watermark_us: int, payload: Payload | None, path: int = 0, origin: int = 0) -> Batch:
        """Numbers a batch and keeps it until it is acknowledged.

        An operator that had credit when it started may exceed it by one batch, which is accepted, too.
        """
        batch = Batch(self._next_sequence, stimulus_s, watermark_us, payload, path, origin)
        self._next_sequence += 1
        self.backlog.append(batch)
        self.rows_offered += batch.rows
        return batch

    def kept(self) -> tuple[Batch, ...] | None:
        """Returns the batches that have not been dropped; None if some are on disk."""
        return None if self.backlog.on_disk else self.backlog.all()

    def peek(self) -> Batch | None:
        """Returns the next batch to transmit, or None. Only `sent()` counts it as sent."""
        return self.backlog.get(self._sent + 1) if self._sent < self._credit_end else None

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
        batch = self.backlog.get(sequence)
        if batch is None:
            return 0
        self.backlog.replace(msgspec.structs.replace(batch, payload=None))
        self.rows_left_out += batch.rows
        return batch.rows

    def acknowledge(self, processed: int, credit: int, safe: int | None = None, *, keeps: bool = True) -> bool:
        """Drops batches that are safe. Returns False, without effect, for a number that was never sent, which is an error of the peer's.

        Parameters
        ----------
        safe : up to where they are safe; None: all that have been processed
        keeps : False if processed ones are dropped at once, since the receiver's host is this one, and both would be lost
        """
        safe = processed if safe is None else safe
        if processed >= self._next_sequence or not 0 <= safe <= processed or credit < 0:
            return False
        if processed > self._processed:
            self._processed = processed
        if safe > self.safe:
            self.safe = safe
        if not keeps:
            safe = processed
        if safe > self.forgotten:
            self.forgotten = safe
            self.rows_acknowledged += self.backlog.forget(safe)
        self._sent = max(self._sent, processed)
        self._highest_sent = max(self._highest_sent, processed)
        # Credit never shrinks by an acknowledgement that a later one overtook, and never exceeds our own bound on memory.
        self._credit_end = max(self._credit_end, processed + min(credit, self._config.window_batches))
        return True

    def rewind(self) -> None:
        """Restarts sending from the first batch that has not been processed, because the connection, or the other end, is new.

        Word that processed ones are safe may be lost: the last of these goes once more, and the receiver answers where it stands. Where
        that one is on disk, the oldest goes: nothing comes back from disk before there is room for it.
        """
        if self.forgotten >= self._processed:
            self._sent = self._processed
        else:
            self._sent = (self._processed if self.backlog.get(self._processed) is not None else self.forgotten + 1) - 1

    def begins_anew(self) -> None:
        """Restarts sending from the first batch that is not safe: the operator at the other end begins anew."""
        self._sent = self._processed = self.forgotten
        self._credit_end = self.forgotten + self._config.window_batches

    def export(self) -> tuple[int, int, int, tuple[Batch, ...]]:
        """Returns the state for a migration: next number, rows offered and acknowledged, batches held.

        Raises
        ------
        LocalProtocolError
            Some batches are on disk.
        """
        return self._next_sequence, self.rows_offered - self.rows_left_out, self.rows_acknowledged, self.backlog.all()

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
            sender.backlog.append(batch)
        sender.rows_offered, sender.rows_acknowledged = offered, acknowledged
        sender._processed = sender._sent = sender._highest_sent = next_sequence - len(numbers) - 1
        sender.safe = sender.forgotten = sender._processed
        sender._credit_end = sender._sent + config.window_batches
        return sender

    # ------------------------------------------------------------------------------- the disk (see `sbon.links.backlog`)

    def fetched(self, batches: Sequence[Batch]) -> None:
        """Takes back the oldest batches from disk.

        Raises
        ------
        SpillError
            They are not the batches that were written.
        """
        self.rows_acknowledged += self.backlog.fetched(batches)
