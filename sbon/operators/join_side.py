"""What a join keeps of one of its inputs: the rows that may still find partners."""

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of, compile_column
from sbon.query.expression import Expression
from sbon.query.schema import ColumnType

CHUNKS_MAX = 32
"""Frames of a side before they are made one."""

TIME = "t"
"""Column of the event time, microseconds, in prepared rows."""
MATCHED = "y"
"""Of the left side of a left join: whether the row has found a partner."""
AT = "at"


class Side:
    """The rows that one input has brought and that may still find partners, in order of arrival."""

    def __init__(self, time_column: str, keys: tuple[Expression, ...], columns: tuple[tuple[str, str], ...], *, outer: bool) -> None:
        self.time_column = time_column
        self.keys = keys
        self.columns = columns
        self.outer = outer
        self.input: pl.DataFrame | None = None
        self.key_types: list[ColumnType] = []
        self.prepared: list[pl.Expr] = []
        self.chunks: list[pl.DataFrame] = []

    @property
    def rows(self) -> int:
        return sum(chunk.height for chunk in self.chunks)

    def compile(self, frame: pl.DataFrame) -> None:
        """Prepared rows: event time, keys, then the columns of the output."""
        columns = columns_of(frame)
        if columns.get(self.time_column) is not ColumnType.TIME:
            raise RemoteProtocolError(f"event time {self.time_column!r} is no time column of the input")
        compiled = [compile_column(key, columns) for key in self.keys]
        missing = [name for _, name in self.columns if name not in columns]
        if missing:
            raise RemoteProtocolError(f"join column {missing[0]!r} is not among the input columns {', '.join(columns)}")
        self.key_types = [kind for _, kind, _ in compiled]
        self.prepared = [
            pl.col(self.time_column).cast(pl.Int64).alias(TIME),
            *(value.alias(f"k{i}") for i, (value, _, _) in enumerate(compiled)),
            *(pl.col(name).alias(own) for own, name in self.columns),
            *([pl.lit(False).alias(MATCHED)] if self.outer else []),
        ]
        self.input = frame.clear()

    def keep(self, rows: pl.DataFrame) -> None:
        """Add rows behind those that are here."""
        if not rows.is_empty():
            self.chunks.append(rows)
            if len(self.chunks) > CHUNKS_MAX:
                self.chunks = [pl.concat(self.chunks)]

    def within(self, first_us: int, last_us: int) -> pl.DataFrame | None:
        """Rows with event times in this range, in order of arrival."""
        if not self.chunks:
            return None
        time = pl.col(TIME)
        if len(self.chunks) > 1:
            self.chunks = [pl.concat(self.chunks)]
        rows = self.chunks[0].with_row_index(AT) if self.outer else self.chunks[0]
        return rows.filter((time >= first_us) & (time <= last_us))

    def mark(self, positions: pl.Series) -> None:
        """Rows at these positions, as `within` has told them, have found partners."""
        (rows,) = self.chunks
        found = pl.int_range(pl.len(), dtype=pl.UInt32).is_in(positions.implode())
        self.chunks = [rows.with_columns(pl.col(MATCHED) | found)]

    def alone(self, before_us: int) -> list[pl.DataFrame]:
        """Rows with an event time below this that have found no partner."""
        if not any(least(chunk[TIME]) < before_us for chunk in self.chunks):
            return []
        return [chunk.filter((pl.col(TIME) < before_us) & ~pl.col(MATCHED)) for chunk in self.chunks]

    def evict(self, before_us: int) -> None:
        """Let rows go whose event time is below this."""
        kept = (chunk.filter(pl.col(TIME) >= before_us) for chunk in self.chunks)
        self.chunks = [chunk for chunk in kept if not chunk.is_empty()]


def least(times: pl.Series) -> int:
    """The least of some times, none NULL."""
    least = times.min()
    assert isinstance(least, int)
    return least
