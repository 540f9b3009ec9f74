"""From rows to lines: NDJSON and CSV as the `file` and `tcp` sources read them.

Times are ISO 8601 in UTC (`2018-01-31T01:49:59.650000Z`), intervals numbers of seconds. NULL is `null` in NDJSON and nothing between two
separators in CSV. NDJSON has no form for NaN and the infinities: they become `null`.
"""

from __future__ import annotations

import polars as pl

from sbon.operators.times import format_time
from sbon.query.schema import ColumnType, Schema


class LineFormat:
    """Rows of one schema as bytes."""

    def __init__(self, kind: str, schema: Schema) -> None:
        self._kind = kind
        self._names = [field.name for field in schema]
        self._columns: list[pl.Expr] = []
        for field in schema:
            value = pl.col(field.name)
            if field.type is ColumnType.TIME:
                value = format_time(value)
            elif field.type is ColumnType.INTERVAL:
                value = value.cast(pl.Int64) / 1_000_000
            self._columns.append(value.alias(field.name))

    @property
    def header(self) -> bytes:
        """What stands before the first row."""
        return pl.DataFrame(schema=dict.fromkeys(self._names, pl.String())).write_csv().encode() if self._kind == "csv" else b""

    def lines(self, frame: pl.DataFrame) -> bytes:
        """One line a row, each ended."""
        texts = frame.select(self._columns)
        return (texts.write_csv(include_header=False) if self._kind == "csv" else texts.write_ndjson()).encode()
