"""Turns lines of JSON into batches for the engine. The `tcp` source uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sbon.connectors.ahead import AheadGuard
from sbon.connectors.interface import BATCH_ROWS_MAX, Polled
from sbon.connectors.pace import newest_us, times_us
from sbon.connectors.watermark import Watermark
from sbon.formats.json_rows import JsonRows
from sbon.formats.time_format import TimeFormat
from sbon.misfits import Misfits
from sbon.operators.values import Values
from sbon.options import Options
from sbon.query.params.source import SourceParams

if TYPE_CHECKING:
    import polars as pl


class LineBatches:
    """Turns lines into rows, leaves out rows from the future, and keeps the watermark.

    Parameters
    ----------
    options : options with `batch_rows_max`, `time_format`, `time_unit` and `ahead_max`
    misfits : counts rows that are left out
    rows_max : default of `batch_rows_max`
    """

    def __init__(self, params: SourceParams, options: Options, misfits: Misfits, rows_max: int = BATCH_ROWS_MAX) -> None:
        self.rows_max = options.integer("batch_rows_max", rows_max, 1, 1_000_000)
        """Most rows of a batch."""
        self._rows = JsonRows(params.columns, TimeFormat.read(options), misfits)
        self._time_place = next((place for place, field in enumerate(params.columns) if field.name == params.time_column), None)
        self._ahead = AheadGuard(options, params.columns, self._time_place, misfits)
        self._watermark = Watermark(params)

    @property
    def remark(self) -> str:
        """Returns the note about rows from the future; empty if there were none."""
        return self._ahead.remark

    def polled(self, lines: Sequence[bytes], wall: float, next_poll: float | None) -> Polled:
        """Returns the rows of these lines, in the form that suits their number."""
        if not lines:
            return Polled(None, self._watermark.us, next_poll)
        few = self._of_few(self._rows.read_few(lines), wall, next_poll)
        return few if few is not None else self._of_many(self._rows.read_many(lines), wall, next_poll)

    def decoded(self, data: bytes) -> pl.DataFrame:
        """Returns the rows of consecutive lines, each with its end, for `polled_part`."""
        return self._rows.read_block(data)

    def polled_part(self, frame: pl.DataFrame, wall: float, next_poll: float | None) -> Polled:
        """Returns a poll's result from decoded rows."""
        return self._of_many(frame, wall, next_poll)

    def _of_few(self, few: Values | None, wall: float, next_poll: float | None) -> Polled | None:
        if few is None:
            return None
        values = self._ahead.taken(few, wall)
        if self._time_place is not None:
            self._watermark.seen(max((time for time in values.columns[self._time_place] if time is not None), default=None))
        return Polled(None, self._watermark.us, next_poll, values=values if values.rows else None)

    def _of_many(self, many: pl.DataFrame, wall: float, next_poll: float | None) -> Polled:
        frame = self._ahead.taken_of_many(many, wall)
        if self._time_place is not None and frame.height:
            self._watermark.seen(newest_us(times_us(frame.to_series(self._time_place))))
        return Polled(frame if frame.height else None, self._watermark.us, next_poll)
