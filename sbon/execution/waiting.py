"""The batches that wait at the inputs of one operator, and the reasons for which the operator waits."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sbon.execution.ends import Input
from sbon.links.batch import Batch
from sbon.links.origins import short
from sbon.scheduling import EarliestStimulusFirst
from sbon.types import LinkId, NodeId
from sbon.watermarks import WATERMARK_END

if TYPE_CHECKING:
    from sbon.deadline_scheduling.on_miss import LateRows
    from sbon.execution.crossing import PlanChange


class Waiting:
    """Batches at the inputs of an operator, and the reasons why it does nothing while it runs.

    Parameters
    ----------
    inputs : the inputs of the operator; other modules add and remove them
    misses : chooses rows that are left out, or put off, because they would be late; None: none ever
    """

    __slots__ = ("_heads", "_inputs", "blocked", "blocked_samples", "change", "held_port", "is_found", "lost_rows", "misses", "starved")

    def __init__(self, inputs: dict[LinkId, Input], misses: "LateRows | None" = None) -> None:
        self.misses = misses
        self._inputs = inputs
        self._heads = EarliestStimulusFirst[LinkId]()
        self.change: PlanChange | None = None
        """The latest change of a sink from one plan of its query to another, with the rows that wait for it; None if there was none."""
        self.lost_rows = 0
        """Rows that had waited in former copies of a sink when their hosts crashed."""
        self.is_found = False
        """True for a sink that has found which rows of each input and origin its former copies have written."""
        self.held_port: int | None = None
        """The input port that is ahead of another in event time, and is held back until that one has caught up."""
        self.blocked = False
        """True if the operator has something to do, but no credit on some output."""
        self.blocked_samples = 0
        """Number of successive samples at which it was blocked."""
        self.starved = ""
        """The reason if all inputs are gone for good before they ended; otherwise empty."""

    def had_written(self, rows: int, lost: int, by_origin: Mapping[tuple[int, int], int] | None) -> None:
        """Compares the rows that former copies of a sink have written with those that they had acknowledged.

        Rows that were written and not acknowledged come again, and are skipped. Rows that were acknowledged and not written are lost.

        Parameters
        ----------
        rows : the rows written
        lost : the rows that were lost in earlier crashes
        by_origin : the rows written, by input (`sbon.links.origins.short`; 0: the only one) and origin; None if unknown
        """
        self.is_found = False
        inputs = {short(link) if len(self._inputs) > 1 else 0: incoming for link, incoming in self._inputs.items()}
        if by_origin is not None and not lost and {link for link, _ in by_origin} <= inputs.keys():
            written = {link: {origin: number for (by, origin), number in by_origin.items() if by == link} for link in inputs}
            ahead = {link: _ahead(incoming, written[link]) for link, incoming in inputs.items()}
            found = {link: numbers for link, numbers in ahead.items() if numbers is not None}
            if len(found) == len(inputs):
                for link, incoming in inputs.items():
                    incoming.written.rows, incoming.written.by_origin = max(0, found[link][0]), [max(0, n) for n in found[link][1:]]
                self.lost_rows = sum(max(0, -number) for numbers in found.values() for number in numbers)
                self.is_found = True
                return
        if len(inputs) == 1:
            [incoming] = inputs.values()
            more = rows + lost - incoming.receiver.rows_processed
            incoming.written.rows, self.lost_rows = max(0, more), lost + max(0, -more)

    @property
    def held_back(self) -> bool:
        """True if all batches that wait are of an input that is held back."""
        return self.held_port is not None and not self._heads

    @property
    def earliest_s(self) -> float:
        """Earliest stimulus time of all waiting batches; infinite if none waits."""
        link = self._heads.first()
        return math.inf if link is None else self._inputs[link].queue.earliest_s

    def enqueue(self, incoming: Input, batch: Batch) -> None:
        """Appends a batch to the queue of an input."""
        incoming.queue.append(batch)
        incoming.queued_rows += batch.rows
        if incoming.link.port != self.held_port:
            self._heads.push(incoming.link.id, incoming.queue.earliest_s)

    def dequeue(self, incoming: Input) -> Batch:
        """Takes out the first batch of an input."""
        batch = incoming.queue.popleft()
        incoming.queued_rows -= batch.rows
        if incoming.queue and incoming.link.port != self.held_port:
            self._heads.push(incoming.link.id, incoming.queue.earliest_s)
        else:
            self._heads.remove(incoming.link.id)
        return batch

    def earliest(self, *, begun: bool) -> Input | None:
        """Returns the input to process next: the one with the earliest stimulus time; of equals, the one that has waited longest. With
        `begun`, one whose batch has been begun comes first. None if nothing waits.
        """
        if begun:
            found = next((incoming for incoming in self._inputs.values() if incoming.sliced), None)
            if found is not None:
                return found
        link = self._heads.first()
        return None if link is None else self._inputs[link]

    def renamed(self, before: LinkId, incoming: Input) -> None:
        """Replaces the former id of an input's link; the input itself has its new id already."""
        self._heads.remove(before)
        if incoming.queue and incoming.link.port != self.held_port:
            self._heads.push(incoming.link.id, incoming.queue.earliest_s)

    def align(self, kept: Sequence[int], rows_max: int, leading: int | None = None) -> None:
        """Holds back an input port that is ahead of another, while the operator keeps more than `rows_max` of its rows for the other.

        Batches that wait on its links then use up their credit, which slows down the sources.

        Parameters
        ----------
        kept : rows that the operator keeps of each port for another one
        leading : port to hold back if no more than `rows_max` rows of any port are kept; None: no port
        """
        held = self._port_ahead(kept, rows_max) if max(kept, default=0) > rows_max else None
        held = leading if held is None else held
        if held == self.held_port:
            return
        self.held_port = held
        for incoming in self._inputs.values():
            if incoming.queue and incoming.link.port != held:
                self._heads.push(incoming.link.id, incoming.queue.earliest_s)
            else:
                self._heads.remove(incoming.link.id)

    def watermarks(self, ports: int) -> list[int]:
        """Returns the least watermark of each port, in microseconds, without lost inputs."""
        watermarks = [WATERMARK_END] * ports
        for incoming in self._inputs.values():
            if not incoming.lost:
                watermarks[incoming.link.port] = min(watermarks[incoming.link.port], incoming.watermark_us)
        return watermarks

    def _port_ahead(self, kept: Sequence[int], rows_max: int) -> int | None:
        watermarks = self.watermarks(len(kept))
        ahead = (port for port, rows in enumerate(kept) if rows > rows_max and watermarks[port] > min(watermarks))
        return next(ahead, None)

    def look_for_input(self, for_good: Callable[[NodeId], bool], *, wants_more: bool) -> None:
        """Sets `starved` if no input can ever bring anything again, and the operator still wants input."""
        gone = [incoming for incoming in self._inputs.values() if incoming.told_lost or for_good(incoming.node)]
        if self._heads or not wants_more or not gone or len(gone) < len(self._inputs):
            self.starved = ""
            return
        sources = ", ".join(f"{incoming.link.source} on {incoming.node}" for incoming in gone)
        self.starved = f"nothing feeds it any more: {sources} {'is' if len(gone) == 1 else 'are'} gone for good"


def _ahead(incoming: Input, written: Mapping[int, int]) -> list[int] | None:
    """Returns how many rows of an input a sink has written beyond those acknowledged: one number if the rows have no origins, otherwise 0
    and a number for each origin. None if unknown.

    Parameters
    ----------
    written : rows written, by origin
    """
    taken = incoming.origin.taken
    if not any(written):
        # Rows without origins come in the same order again.
        return [sum(written.values()) - incoming.receiver.rows_processed] if written or not any(taken or ()) else None
    if 0 in written or taken is None:
        return None
    count = max(len(taken), *written)
    return [0, *(written.get(number, 0) - (taken[number - 1] if number <= len(taken) else 0) for number in range(1, count + 1))]
