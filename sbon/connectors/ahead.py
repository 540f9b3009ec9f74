"""Guards a source against event times from the future.

A single row of the year 9999 would move the source's watermark there, and all later rows would be late. Sources that other programs write
to use this guard.

The option `ahead_max` of such a source says how far ahead of this machine's clock an event time may be; rows beyond it are left out and
counted. Without the option nothing is left out, since a machine may have no correct clock, and test streams may lie in the future. The
first row that is more than a day ahead is then reported in `remark`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import polars as pl

from sbon.connectors.pace import newest_us, times_us
from sbon.connectors.watermark import TIME_MAX_US
from sbon.misfits import Misfits
from sbon.operators.frames import frame_of_values
from sbon.operators.values import Values
from sbon.options import Options
from sbon.schema import Schema

TOLD_AHEAD_US = 86_400_000_000
"""An event time at least this far ahead of the clock is reported, in microseconds."""


class AheadGuard:
    """Checks the event times of one source.

    Parameters
    ----------
    options : options with `ahead_max`
    schema : columns of the rows
    place : index of the event time among the columns; None if the source has none
    misfits : counts the rows that are left out

    Raises
    ------
    ConnectorError
        `ahead_max` is not a duration, or the source has no event time.
    """

    def __init__(self, options: Options, schema: Schema, place: int | None, misfits: Misfits) -> None:
        self.remark = ""
        """Note about a row that is far ahead, if that is allowed; otherwise empty."""
        self._place = place
        self._schema = schema
        self._misfits = misfits
        self._max_us = options.duration_us("ahead_max", 0) if options.given("ahead_max") else None
        if self._max_us is not None and place is None:
            raise options.refuse("ahead_max", options.text("ahead_max", ""), "none: the source has no event time (WATERMARK FOR)")

    def taken(self, values: Values, wall: float) -> Values:
        """Returns the rows that are not too far ahead of the clock (Unix seconds)."""
        if self._place is None:
            return values
        times = values.columns[self._place]
        limit_us = self._limit_us(max((time for time in times if time is not None), default=None), wall)
        if limit_us is None:
            return values
        kept = [row for row, time in enumerate(times) if time is None or time <= limit_us]
        self._count(frame_of_values(values, self._schema), limit_us)
        return Values(len(kept), tuple([column[row] for row in kept] for column in values.columns))

    def taken_of_many(self, frame: pl.DataFrame, wall: float) -> pl.DataFrame:
        """Returns the rows of a frame that are not too far ahead of the clock (Unix seconds)."""
        if self._place is None or frame.is_empty():
            return frame
        times = times_us(frame.to_series(self._place))
        limit_us = self._limit_us(newest_us(times), wall)
        if limit_us is None:
            return frame
        self._count(frame, limit_us)
        return frame.filter(pl.Series(times <= limit_us))

    def _count(self, frame: pl.DataFrame, limit_us: int) -> None:
        """Counts the rows beyond the limit."""
        assert self._place is not None
        times = frame.to_series(self._place)
        beyond = (times.to_physical() > limit_us).fill_null(False)
        column = self._schema[self._place].name
        first = frame.row(beyond.arg_max() or 0, named=True)
        value, line = str(first[column]), json.dumps(first, default=str, ensure_ascii=False)
        self._misfits.add(column, "is farther ahead of this machine's clock than ahead_max", rows=int(beyond.sum()), value=value, line=line)

    def _limit_us(self, newest_us: int | None, wall: float) -> int | None:
        """Returns the latest permitted time if some row is later, else None."""
        if newest_us is None:
            return None
        wall_us = round(wall * 1e6)
        if self._max_us is not None:
            return wall_us + self._max_us if newest_us > wall_us + self._max_us else None
        # A time beyond the year 9999 does not move the watermark.
        if not self.remark and wall_us + TOLD_AHEAD_US < newest_us <= TIME_MAX_US:
            said = datetime.fromtimestamp(newest_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self.remark = (
                f"a row of {said} has come, ahead of this machine's clock: windows and joins count rows of the present as late after it; "
                "set ahead_max = '1 hour' in the source's options to leave such rows out"
            )
        return None
