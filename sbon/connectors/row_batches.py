"""Turns rows of a source into poll results, as plain values if they are few, with the watermark. The `http` and `mqtt` sources use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import polars as pl

from sbon.connectors.interface import Polled
from sbon.connectors.pace import newest_us, times_us
from sbon.connectors.watermark import Watermark
from sbon.operators.frames import frame_of_values
from sbon.operators.values import FEW_ROWS, Values
from sbon.query.params.source import SourceParams
from sbon.schema import Schema

Rows: TypeAlias = Values | pl.DataFrame


class RowBatches:
    """Turns parts of one source's rows into poll results, and keeps the watermark."""

    def __init__(self, params: SourceParams) -> None:
        self._schema = params.columns
        self._time_place = next((place for place, field in enumerate(params.columns) if field.name == params.time_column), None)
        self._watermark = Watermark(params)

    def polled(self, parts: Sequence[Rows], next_poll: float | None) -> Polled:
        """Returns rows as the result of a poll; there may be none."""
        parts = [part for part in parts if count(part)]
        if not parts:
            return Polled(None, self._watermark.us, next_poll)
        rows = joined(parts, self._schema)
        self._watermark.seen(_newest_us(rows, self._time_place))
        if isinstance(rows, Values):
            return Polled(None, self._watermark.us, next_poll, values=rows)
        return Polled(rows, self._watermark.us, next_poll)


def no_rows(schema: Schema) -> Rows:
    """Returns an empty batch."""
    return Values(0, tuple(() for _ in schema))


def _newest_us(rows: Rows, time_place: int | None) -> int | None:
    """Returns the latest event time of rows in microseconds, None if they have none."""
    if time_place is None:
        return None
    if isinstance(rows, Values):
        return max((time for time in rows.columns[time_place] if time is not None), default=None)
    return newest_us(times_us(rows.to_series(time_place)))


def count(rows: Rows) -> int:
    """Returns the number of rows."""
    return rows.rows if isinstance(rows, Values) else rows.height


def cut(rows: Rows, first: int) -> tuple[Rows, Rows]:
    """Splits rows after the first `first` ones; returns both parts."""
    if isinstance(rows, Values):
        head, tail = (tuple(column[part] for column in rows.columns) for part in (slice(first), slice(first, None)))
        return Values(min(first, rows.rows), head), Values(max(0, rows.rows - first), tail)
    return rows.head(first), rows.slice(first)


def joined(parts: Sequence[Rows], schema: Schema) -> Rows:
    """Returns the rows of several parts as one batch; as plain values if they are few and all parts are plain values."""
    if len(parts) == 1:
        return parts[0]
    values = [part for part in parts if isinstance(part, Values)]
    if len(values) == len(parts) and sum(part.rows for part in values) <= FEW_ROWS:
        columns = tuple([value for part in values for value in part.columns[place]] for place in range(len(schema)))
        return Values(sum(part.rows for part in values), columns)
    return pl.concat([frame_of_values(part, schema) if isinstance(part, Values) else part for part in parts])
