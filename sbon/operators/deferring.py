"""Runs a keyed function whose updates commute, and keeps a log of rows that are put off until nothing else waits; states and log are in
memory.

The engine decides which rows are put off, and when they are worked on. Both are calls of `process`, by a port, so that a copy of the
operator that takes the same calls has the same state and the same log.

Nothing is lost by that. The output watermark, and the windows that it closes, stay where they were when the oldest row of the log came;
rows are late, or not, by the watermark at which they came; and the end of the stream passes only when the log is empty.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.extensions import Extensions
from sbon.operators.frames import polars_schema
from sbon.operators.keyed import Keyed
from sbon.operators.snapshots import Head, Parts
from sbon.query.plan import WATERMARK_END, WATERMARK_MIN, FunctionParams

PUT_OFF, WORK_OFF = 1, 2
"""Ports beside 0: rows for the log; a frame with the number of rows to take out of it (`rows_to_work_off`)."""
SINCE, SEEN = "put off since", "put off at"
"""Columns of the log beside the input's: stimulus time of the batch, which the engine adds, and the watermark before it."""
_LOG, _WATERMARK = "put off", "watermark"


def since(frame: pl.DataFrame, stimulus_s: float) -> pl.DataFrame:
    """Returns rows for `PUT_OFF`, with the stimulus time of their batch."""
    return frame.with_columns_seq(pl.lit(stimulus_s, pl.Float64).alias(SINCE))


class Deferring(Keyed):
    """A keyed function with a log of rows.

    Raises
    ------
    FunctionError
        The same as for `Keyed`.
    """

    def __init__(self, params: FunctionParams, extensions: Extensions) -> None:
        super().__init__(params, extensions)
        self._log: deque[pl.DataFrame] = deque()
        self._sizes: deque[int] = deque()
        """Bytes of each frame in the log."""
        self._seen_us = WATERMARK_MIN
        """Watermark of the input."""
        self.deferred_rows = self.deferred_bytes = 0
        """Rows in the log, and their size in memory."""

    @property
    def state_rows(self) -> int:
        """Returns the number of states and of rows in the log."""
        return super().state_rows + self.deferred_rows

    @property
    def deferred_since_s(self) -> float:
        """Returns the stimulus time of the first rows in the log, of which there must be some."""
        return float(self._log[0].item(0, SINCE))

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Updates states, puts rows off, or updates states by rows that were put off."""
        if port == PUT_OFF:
            self._put_off(frame.with_columns_seq(pl.lit(self._seen_us, pl.Int64).alias(SEEN)))
            return ()
        if port == WORK_OFF:
            return [one for frames in self._worked_off(int(frame.item())) for one in frames]
        self.late_before_us = self._seen_us
        return super().process(port, frame)

    def rows_to_work_off(self, most: int) -> pl.DataFrame:
        """Returns the frame for `WORK_OFF`: the first rows of the log, at most so many."""
        return pl.DataFrame({"rows": [min(most, self._log[0].height)]})

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Finalises windows up to what the log allows; at the end of the stream works off the log first."""
        self._seen_us = max(self._seen_us, watermark_us)
        if watermark_us >= WATERMARK_END and self._log:
            return self._end()
        return super().advance_in_steps(self.output_watermark(watermark_us))

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the input's, or the one at which the first row of the log came."""
        return min(watermark_us, int(self._log[0].item(0, SEEN))) if self._log else watermark_us

    def parts(self) -> Parts:
        """Returns the states and the log."""
        head, frames = super().parts()
        if self._log:
            frames = {**frames, _LOG: pl.concat(self._log), _WATERMARK: pl.DataFrame({_WATERMARK: [self._seen_us]})}
        return Parts(head, frames)

    def pieces(self) -> tuple[Head, Iterator[tuple[str, pl.DataFrame]]]:
        """Returns the states and the log, each in one piece."""
        head, frames = self.parts()
        return head, iter(frames.items())

    def adopting(self, head: Head) -> None:
        """Has the parts adopted as a whole, since the log is read behind the states."""
        return

    def fork(self) -> Self:
        """Returns an operator with the same states and the same log."""
        forked = super().fork()
        forked._log, forked._sizes = deque(self._log), deque(self._sizes)
        return forked

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        frames = dict(parts.frames)
        log, seen = frames.pop(_LOG, None), frames.pop(_WATERMARK, None)
        super().adopt(Parts(parts.head, frames))
        self._log, self._sizes = deque(), deque()
        self.deferred_rows = self.deferred_bytes = 0
        self._seen_us = self._watermark
        if log is None or seen is None or log.is_empty():
            return
        expected = {**polars_schema(self._params.inputs), SINCE: pl.Float64(), SEEN: pl.Int64()}
        if any(log.schema.get(name) != dtype for name, dtype in expected.items()) or seen.shape != (1, 1):
            raise RemoteProtocolError(f"snapshot of {self._what} with a log of other rows than {expected}")
        self._seen_us = int(seen.item())
        lengths = log.select_seq(pl.struct(SEEN, SINCE).rle().struct.field("len")).to_series().to_list()
        for length in lengths:
            self._put_off(log.head(length))
            log = log.slice(length)

    def _put_off(self, frame: pl.DataFrame) -> None:
        self._log.append(frame)
        self._sizes.append(int(frame.estimated_size()))
        self.deferred_rows += frame.height
        self.deferred_bytes += self._sizes[-1]

    def _worked_off(self, count: int) -> Iterator[Sequence[pl.DataFrame]]:
        """Takes the first rows out of the log, and finalises the windows that they held open."""
        first, size = self._log.popleft(), self._sizes.popleft()
        rows, rest = first.head(count), first.slice(count)
        if rest.height:
            self._log.appendleft(rest)
            self._sizes.appendleft(size * rest.height // first.height)
            size -= self._sizes[0]
        self.deferred_rows -= rows.height
        self.deferred_bytes -= size
        self.late_before_us = int(rows.item(0, SEEN))
        yield super().process(0, rows)
        yield from super().advance_in_steps(self.output_watermark(min(self._seen_us, WATERMARK_END - 1)))

    def _end(self) -> Iterator[Sequence[pl.DataFrame]]:
        while self._log:
            yield from self._worked_off(self._log[0].height)
        yield from super().advance_in_steps(WATERMARK_END)
