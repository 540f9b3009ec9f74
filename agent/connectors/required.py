"""NOT NULL columns of a source: rows with NULL there are left out and counted, whatever the connector."""

from __future__ import annotations

import json

import polars as pl

from sbon.misfits import Misfits
from sbon.operators.frames import frame_of_values
from sbon.operators.values import Values
from sbon.query.plan import SourceParams
from sbon_agent.connectors.base import Polled, SourceConnector
from sbon_agent.connectors.wrapped import WrappedSource


class RequiredColumns(WrappedSource):
    """Another source, without the rows that lack a value in a NOT NULL column. A row counts once, for the first such column."""

    def __init__(self, source: SourceConnector, params: SourceParams) -> None:
        super().__init__(source)
        self._schema = params.columns
        self._places = [place for place, field in enumerate(params.columns) if field.name in params.not_null]
        self._nulls = self.misfits = Misfits(beside=self.misfits)

    @property
    def dropped_rows(self) -> int:
        """Rows that the other source has left out, and those with NULLs."""
        return super().dropped_rows + self._nulls.rows

    def poll(self, now: float, wall: float) -> Polled:
        """What the other source gives, without NULLs in these columns."""
        polled = super().poll(now, wall)
        if polled.values is not None:
            kept = self._kept(polled.values)
            return polled if kept is polled.values else polled._replace(values=kept if kept.rows else None)
        frame = polled.frame
        if frame is None:
            return polled
        for place in self._places:
            values = frame.to_series(place)
            if values.null_count():
                missing = values.is_null()
                self._count(place, values.null_count(), frame, missing.arg_max() or 0)
                frame = frame.filter(~missing)
        return polled._replace(frame=frame if frame.height else None)

    def _kept(self, values: Values) -> Values:
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

    def _count(self, place: int, rows: int, given: pl.DataFrame | Values, first: int) -> None:
        column, line = self._schema[place].name, ""
        if self._nulls.is_new_null(column):
            frame = frame_of_values(given, self._schema) if isinstance(given, Values) else given
            line = json.dumps(frame.row(first, named=True), default=str, ensure_ascii=False)
        self._nulls.null(column, rows=rows, line=line)
