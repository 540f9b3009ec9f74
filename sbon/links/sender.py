"""The sending end of a link: it numbers batches, keeps them until they are safe, and resends those that may be lost."""

from collections.abc import Iterable, Sequence

import msgspec

from sbon.compression import Compression
from sbon.errors import LocalProtocolError
from sbon.links.backlog import Backlog
from sbon.links.batch import Batch, Payload
from sbon.links.config import LinkConfig
from sbon.links.row_times import RowTimes
from sbon.types import LinkId
from sbon.watermarks import WATERMARK_MIN


class LinkSender:
    """The sending end of one link."""

    def __init__(self, link: LinkId, config: LinkConfig) -> None:
        self.link = link
        self._config = config
        self.backlog = Backlog(config.window_batches, config.window_bytes, config.spill_after_s)
        """The batches held, in memory and on disk."""
        self._next_sequence = 1
        self._processed = 0  # highest sequence acknowledged
        self.safe = 0
        """All batches up to this number are safe, by the receiver's last acknowledgement: they are in a state, or all rows made of them are
        safe further on."""
        self.former_us = WATERMARK_MIN
        """A watermark, in microseconds, that the rows given by copies of the operator that have crashed had been made for."""
        self.forgotten = 0
        """All batches up to this number have been dropped, because they are safe, or were processed on this host."""
        self._row_times = RowTimes(is_first=True)  # of the batches dropped
        self._sent = 0  # highest sequence handed out since the last rewind
        self._credit_end = config.window_batches
        self.before: tuple[int, int] = (0, WATERMARK_MIN)
        """Number of rows that the operator had given when it got this output, and the watermark after them."""
        self.rows_offered = 0
        self.rows_acknowledged = 0
        self.rows_left_out = 0
        """Rows of batches that could not be encoded."""
        self.batches_resent = 0
        self.highest_sent = 0
        """Highest number of the batches that may have arrived."""

    @property
    def compression(self) -> Compression:
        """Returns the configured compression of batches."""
        return self._config.compression

    @property
    def has_credit(self) -> bool:
        """Tells whether there is room for another batch, even if it cannot be sent at once."""
        return self.backlog.has_room

    @property
    def held(self) -> int:
        """Returns the number of batches not processed."""
        return self._next_sequence - 1 - self._processed

    @property
    def rows_held(self) -> int:
        """Returns the number of rows that are not safe, or are safe but still on disk."""
        return self.rows_offered - self.rows_acknowledged - self.rows_left_out

    @property
    def memory_batches(self) -> int:
        """Returns the number of unacknowledged batches in memory."""
        return self.backlog.memory_batches

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
        """Tells whether all offered batches have been dropped, and none is on disk."""
        return self.forgotten == self._next_sequence - 1 and not self.backlog.on_disk

    @property
    def offered(self) -> int:
        """Returns the number of the last batch offered; 0 before the first."""
        return self._next_sequence - 1

    def made_for(self, sequence: int) -> int | None:
        """Returns a watermark, in microseconds, that the rows of all batches up to `sequence` had been made for.

        `WATERMARK_MIN` if there are none; None if that may be any watermark up to the operator's present one.
        """
        times, number = self._row_times.copy(), self.forgotten + 1
        while (number <= sequence or times.until_us is None) and (batch := self.backlog.get(number)) is not None:
            times.take(batch)
            number += 1
        return times.until_us if number > sequence else None

    def watermark_of(self, sequence: int) -> int | None:
        """Returns the watermark of a batch, in microseconds: `WATERMARK_MIN` for number 0, None if unknown."""
        if sequence == self.forgotten:
            return self._row_times.last_us
        batch = self.backlog.get(sequence)
        return None if batch is None else batch.watermark_us

    def offer(self, stimulus_s: float, watermark_us: int, payload: Payload | None, path: int = 0, origin: int = 0) -> Batch:
        """Numbers a batch and keeps it until it is safe.

        Accepts one batch beyond the credit, because an operator checks its credit before it makes a batch.
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
        """Returns the next batch to transmit, or None. Call `sent()` once it has been sent."""
        return self.backlog.get(self._sent + 1) if self._sent < self._credit_end else None

    def sent(self, batch: Batch) -> None:
        """Records that `batch`, which `peek` returned, has been sent."""
        if batch.sequence != self._sent + 1:
            raise LocalProtocolError(f"link {self.link}: sent batch {batch.sequence}, expected {self._sent + 1}")
        self._sent = batch.sequence
        if batch.sequence <= self.highest_sent:
            self.batches_resent += 1
        self.highest_sent = max(self.highest_sent, batch.sequence)

    def leave_out(self, sequence: int) -> int:
        """Removes the rows of a batch that cannot be encoded; number and watermark stay. Returns the number of lost rows.

        Returns 0 if the batch is no longer held, or is on disk.
        """
        batch = self.backlog.get(sequence)
        if batch is None:
            return 0
        self.backlog.replace(msgspec.structs.replace(batch, payload=None))
        self.rows_left_out += batch.rows
        return batch.rows

    def acknowledge(self, processed: int, credit: int, safe: int | None = None, *, keeps: bool = True) -> bool:
        """Drops batches that are safe. Returns False, without effect, if the numbers are impossible: an error of the peer.

        Parameters
        ----------
        safe : number of the last safe batch; None: all processed batches are safe
        keeps : False to drop processed batches at once: the receiver is on this host, so a crash would lose both ends
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
            for sequence in range(self.forgotten + 1, safe + 1):
                batch = self.backlog.get(sequence)
                if batch is None:  # on disk
                    self._row_times = RowTimes(is_first=False)
                    break
                self._row_times.take(batch)
            self.forgotten = safe
            self.rows_acknowledged += self.backlog.forget(safe)
        self._sent = max(self._sent, processed)
        self.highest_sent = max(self.highest_sent, processed)
        # An acknowledgement that arrives after a later one does not shrink the credit. The credit never exceeds our own bound on memory.
        self._credit_end = max(self._credit_end, processed + min(credit, self._config.window_batches))
        return True

    def rewind(self) -> None:
        """Restarts sending from the first unprocessed batch, because the connection, or the other end, is new.

        If processed batches are not known to be safe, the message about that may be lost. So the last processed batch is sent once more,
        and the receiver answers with its present numbers. If that batch is on disk, the oldest batch held is sent instead: no batch comes
        back from disk before there is room for it.
        """
        if self.forgotten >= self._processed:
            self._sent = self._processed
        else:
            self._sent = (self._processed if self.backlog.get(self._processed) is not None else self.forgotten + 1) - 1

    def begins_anew(self) -> None:
        """Restarts sending from the first batch that has not been dropped, because the operator at the other end starts again."""
        self._sent = self._processed = self.forgotten
        self._credit_end = self.forgotten + self._config.window_batches

    def export(self) -> tuple[int, int, int, tuple[Batch, ...]]:
        """Returns the state for a migration: next number, rows offered (without those left out), rows acknowledged, batches held.

        Raises
        ------
        LocalProtocolError
            Some batches are on disk.
        """
        return self._next_sequence, self.rows_offered - self.rows_left_out, self.rows_acknowledged, self.backlog.all()

    @classmethod
    def restored(cls, link: LinkId, config: LinkConfig, exported: tuple[int, int, int, Iterable[Batch]]) -> "LinkSender":
        """Returns a sender that continues where an exported one stopped, and resends all batches held.

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
        sender._processed = sender._sent = next_sequence - len(numbers) - 1
        sender.highest_sent = next_sequence - 1  # the former host may have sent all of them
        sender.safe = sender.forgotten = sender._processed
        sender._row_times = RowTimes(is_first=not sender.forgotten)
        sender._credit_end = sender._sent + config.window_batches
        return sender

    # ------------------------------------------------------------------------------- the disk (see `sbon.links.backlog`)

    def write_failed(self, reason: str, now: float) -> None:
        """Records that batches could not be written to disk, and stay in memory."""
        self.rows_acknowledged += self.backlog.write_failed(reason, now)

    def fetched(self, batches: Sequence[Batch]) -> None:
        """Takes back the oldest batches from disk.

        Raises
        ------
        SpillError
            The batches are not those that were written.
        """
        self.rows_acknowledged += self.backlog.fetched(batches)
