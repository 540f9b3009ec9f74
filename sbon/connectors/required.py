"""Handles NOT NULL columns of a source: leaves out and counts rows with NULL in them, for every connector."""

from __future__ import annotations

import json

import polars as pl

from sbon.connectors.interface import Polled, SourceConnector
from sbon.connectors.wrapped import WrappedSource
from sbon.misfits import Misfits
from sbon.operators.frames import frame_of_values
from sbon.operators.values import Values
from sbon.query.params.source import SourceParams


class NullFilter:
    """Leaves out rows with NULL in columns that are declared NOT NULL, and counts each once, for the first such column.

    Parameters
    ----------
    misfits : counts rows that are left out
    """

    def __init__(self, params: SourceParams, misfits: Misfits) -> None:
        self._schema = params.columns
        self._places = [place for place, field in enumerate(params.columns) if field.name in params.not_null]
        self._misfits = misfits

    def kept(self, values: Values) -> Values:
        """Returns the rows without NULLs in these columns; the same object if no row is left out."""
        kept = list(range(values.rows))
        for place in self._places:
            column = values.columns[place]
            missing = [row for row in kept if column[row] is None]
            if missing:
                self._count(place, len(missing), values, missing[0])
                kept = [row for row in kept if column[row] is not None]
        if len(kept) == values.rows:
            return values
        return Values(len(kept), tuple([column[row] for row in kept] for column in values.columns))

    def kept_of_many(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Returns the rows of a frame without NULLs in these columns."""
        for place in self._places:
            values = frame.to_series(place)
            if values.null_count():
                missing = values.is_null()
                self._count(place, values.null_count(), frame, missing.arg_max() or 0)
                frame = frame.filter(~missing)
        return frame

    def _count(self, place: int, rows: int, given: pl.DataFrame | Values, first: int) -> None:
        column, line = self._schema[place].name, ""
        if self._misfits.is_new_null(column):
            frame = frame_of_values(given, self._schema) if isinstance(given, Values) else given
            line = json.dumps(frame.row(first, named=True), default=str, ensure_ascii=False)
        self._misfits.null(column, rows=rows, line=line)


class RequiredColumns(WrappedSource):
    """Wraps a source; leaves out rows that lack a value in a NOT NULL column."""

    def __init__(self, source: SourceConnector, params: SourceParams) -> None:
        super().__init__(source)
        self._nulls = self.misfits = Misfits(beside=self.misfits)
        self._filter = NullFilter(params, self._nulls)

    @property
    def dropped_rows(self) -> int:
        """Returns the number of rows that the wrapped source has left out, plus those with NULLs."""
        return super().dropped_rows + self._nulls.rows

    def poll(self, now: float, wall: float) -> Polled:
        """Polls the wrapped source, and leaves out rows with NULL in these columns."""
        polled = super().poll(now, wall)
        if polled.values is not None:
            kept = self._filter.kept(polled.values)
            return polled if kept is polled.values else polled._replace(values=kept if kept.rows else None)
        if polled.frame is None:
            return polled
        frame = self._filter.kept_of_many(polled.frame)
        return polled._replace(frame=frame if frame.height else None)
