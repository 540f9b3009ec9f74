"""Runs a keyed function whose updates commute, and keeps a log of rows that are put off until nothing else waits. States are in memory. The
log is in memory as far as it fits; the rest goes to disk if the operator has a `StateRoom`.

The engine decides which rows are put off, and when they are worked on. It does both by calling `process` with a special port, so that a
copy of the operator that takes the same calls has the same state and log.

Putting rows off makes no row late. While the log has rows, the output watermark is the one at which its oldest row came, and no later
window closes. Whether a row is late depends on the watermark at which it came. The stream ends only when the log is empty.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.extensions import Extensions
from sbon.operators.frames import polars_schema
from sbon.operators.keyed import Keyed
from sbon.operators.snapshots import Head, Parts
from sbon.query.params.rowwise import FunctionParams
from sbon.state.log import RowLog
from sbon.state.room import StateRoom
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

PUT_OFF, WORK_OFF = 1, 2
"""Ports in addition to 0: one takes rows for the log, the other the number of rows to take out of it (`rows_to_work_off`)."""
SINCE, SEEN = "put off since", "put off at"
"""Columns of the log in addition to the input's: the stimulus time of the batch, which the engine adds, and the watermark before the batch.
"""
_LOG, _WATERMARK = "put off", "watermark"


def since(frame: pl.DataFrame, stimulus_s: float) -> pl.DataFrame:
    """Returns rows for `PUT_OFF`, with the stimulus time of their batch."""
    return frame.with_columns_seq(pl.lit(stimulus_s, pl.Float64).alias(SINCE))


class Deferring(Keyed):
    """A keyed function with a log of rows.

    Parameters
    ----------
    room : disk for the log; None: it is in memory

    Raises
    ------
    FunctionError
        See `Keyed`.
    """

    def __init__(self, params: FunctionParams, extensions: Extensions, room: StateRoom | None = None) -> None:
        super().__init__(params, extensions)
        self._log_room = room
        self._log = RowLog((SEEN, SINCE), room)
        self._seen_us = WATERMARK_MIN
        """Watermark of the input."""

    @property
    def deferred_rows(self) -> int:
        """Returns the number of rows in the log."""
        return self._log.rows

    @property
    def deferred_bytes(self) -> int:
        """Returns the size in memory of the rows in the log."""
        return self._log.memory_bytes

    @property
    def state_rows(self) -> int:
        """Returns the number of states and of rows in the log."""
        return super().state_rows + self.deferred_rows

    @property
    def deferred_since_s(self) -> float:
        """Returns the stimulus time of the oldest rows in the log, which must not be empty."""
        return float(self._log.first.item(0, SINCE))

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Updates states with new rows, puts rows off, or updates states with rows that were put off."""
        if port == PUT_OFF:
            self._log.append(frame.with_columns_seq(pl.lit(self._seen_us, pl.Int64).alias(SEEN)))
            return ()
        if port == WORK_OFF:
            return [one for frames in self._worked_off(int(frame.item())) for one in frames]
        self._log.relieve()
        self.late_before_us = self._seen_us
        return super().process(port, frame)

    def rows_to_work_off(self, most: int) -> pl.DataFrame:
        """Returns the frame for `WORK_OFF`: the number of rows to take from the log, at most `most`."""
        return pl.DataFrame({"rows": [min(most, self._log.first.height)]})

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Finalises windows as far as the log allows; at the end of the stream, processes the log first."""
        self._seen_us = max(self._seen_us, watermark_us)
        if watermark_us >= WATERMARK_END and self._log:
            return self._end()
        return super().advance_in_steps(self.output_watermark(watermark_us))

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the input's watermark, or the watermark at which the oldest row of the log came."""
        return min(watermark_us, int(self._log.first.item(0, SEEN))) if self._log else watermark_us

    def parts(self) -> Parts:
        """Returns the states and the log."""
        head, frames = super().parts()
        if self._log:
            frames = {**frames, _WATERMARK: self._seen, _LOG: pl.concat(self._log.frames())}
        return Parts(head, frames)

    def pieces(self) -> tuple[Head, Iterator[tuple[str, pl.DataFrame]]]:
        """Returns the states and the log in pieces; rows on disk are read a piece at a time."""
        head, states = super().pieces()

        def pieces() -> Iterator[tuple[str, pl.DataFrame]]:
            yield from states
            if self._log:
                yield _WATERMARK, self._seen
                yield from ((_LOG, frame) for frame in self._log.frames())

        return head, pieces()

    def fork(self) -> Self:
        """Returns an operator with the same states and the same log."""
        forked = super().fork()
        forked._log = self._log.fork()
        return forked

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        states = {name: frame for name, frame in parts.frames.items() if name not in {_LOG, _WATERMARK}}
        super().adopt(Parts(parts.head, states))
        for name in (_WATERMARK, _LOG):
            if name in parts.frames:
                self._take(name, parts.frames[name])

    @property
    def _seen(self) -> pl.DataFrame:
        return pl.DataFrame({_WATERMARK: [self._seen_us]})

    def _begin_adopting(self, head: Head) -> None:
        super()._begin_adopting(head)
        self._log, self._seen_us = RowLog((SEEN, SINCE), self._log_room), self._watermark

    def _take(self, name: str, states: pl.DataFrame) -> None:
        """Adds a piece of a snapshot: states, the input's watermark, or rows of the log."""
        if name == _WATERMARK and dict(states.schema) == {_WATERMARK: pl.Int64()} and states.height == 1:
            self._seen_us = int(states.item())
        elif name == _LOG:
            expected = {**polars_schema(self._params.inputs), SINCE: pl.Float64(), SEEN: pl.Int64()}
            if any(states.schema.get(column) != dtype for column, dtype in expected.items()):
                raise RemoteProtocolError(f"snapshot of {self._what} has a log with other columns than {expected}")
            self._log.take(states)
        else:
            super()._take(name, states)

    def _worked_off(self, count: int) -> Iterator[Sequence[pl.DataFrame]]:
        """Processes the oldest rows of the log, and finalises the windows that they held open."""
        rows = self._log.first.head(count)
        self._log.drop(count)
        self.late_before_us = int(rows.item(0, SEEN))
        yield super().process(0, rows)
        yield from super().advance_in_steps(self.output_watermark(min(self._seen_us, WATERMARK_END - 1)))

    def _end(self) -> Iterator[Sequence[pl.DataFrame]]:
        while self._log:
            yield from self._worked_off(self._log.first.height)
        yield from super().advance_in_steps(WATERMARK_END)
