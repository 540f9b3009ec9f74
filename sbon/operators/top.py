"""The first rows of each window: ORDER BY ... LIMIT by event time.

Rows of one event time are one window. No more than the limit is kept of each, and given, in order, when the watermark has passed it. Rows
that the order does not tell apart are taken by their other columns, so that the answer does not depend on who came first.
"""

from collections.abc import Sequence

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of
from sbon.operators.operator import Operator
from sbon.operators.partials import TIME, Table
from sbon.operators.snapshots import Parts, opened, parts_of
from sbon.operators.windowed import FRAME_ROWS_MAX, one_zero
from sbon.query.plan import WATERMARK_END, WATERMARK_MIN, TopParams
from sbon.query.schema import ColumnType

LIMIT_MAX = 10_000
_ROWS = "top"


class TopTable(Table):
    """The first rows of each event time."""

    def __init__(self, params: TopParams, names: dict[str, str]) -> None:
        super().__init__()
        self._limit = params.limit
        self._sort = [names[column.name] for column in params.order] + [names[name] for name in params.ties]
        self._descending = [column.descending for column in params.order] + [False] * len(params.ties)
        self._nulls_last = [not column.nulls_first for column in params.order] + [True] * len(params.ties)

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """The first ones, by time and in order."""
        first = [False] * len(by)
        ordered = partials.sort(
            [*by, *self._sort], descending=[*first, *self._descending], nulls_last=[*first, *self._nulls_last], maintain_order=True
        )
        return ordered.group_by(by, maintain_order=True).head(self._limit).select(partials.columns)


class Top(Operator):
    """Keeps the first rows of each event time. A row behind the watermark, or without an event time, is late."""

    def __init__(self, params: TopParams) -> None:
        if not 1 <= params.limit <= LIMIT_MAX:
            raise RemoteProtocolError(f"limit of {params.limit} rows, expected 1 to {LIMIT_MAX}")
        self._params = params
        self._watermark = WATERMARK_MIN
        self._input: pl.DataFrame | None = None
        self._prepared: list[pl.Expr] = []
        self._table: TopTable | None = None
        self.late_rows = 0

    @property
    def state_rows(self) -> int:
        """Rows that may be among the first, and those not yet compared with them."""
        return 0 if self._table is None else self._table.rows

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Keep rows; those that are not among the first go now and then."""
        if self._input is None or self._table is None:
            self._table = self._compile(frame)
        elif frame.schema != self._input.schema:
            raise RemoteProtocolError(f"input with columns {dict(frame.schema)}, expected {dict(self._input.schema)}")
        time = pl.col(TIME)
        rows = frame.select(self._prepared).filter(((time >= self._watermark) & (time < WATERMARK_END)).fill_null(False))
        self.late_rows += frame.height - rows.height
        if not rows.is_empty():
            self._table.add(self._table.merge(rows, [TIME]), [TIME])
        return ()

    def advance(self, watermark_us: int) -> Sequence[pl.DataFrame]:
        """Give the first rows of the windows behind the watermark."""
        self._watermark = max(watermark_us, self._watermark)
        if self._table is None or self._input is None:
            return ()
        closed = pl.col(TIME) < self._watermark
        if not any((times < self._watermark).any() for times in self._table.pieces(TIME)):
            return ()
        rows = self._table.folded([TIME])
        assert rows is not None
        self._table.replace(rows.filter(~closed))
        answer = rows.filter(closed).sort(TIME, maintain_order=True)
        names = [pl.col(f"c{index}").alias(name) for index, name in enumerate(self._input.columns)]
        return list(answer.select(names).iter_slices(FRAME_ROWS_MAX))

    def parts(self) -> Parts:
        """The rows kept, with the columns of the input."""
        frames: dict[str, pl.DataFrame] = {}
        if self._table is not None and self._input is not None:
            frames["input"] = self._input
            rows = self._table.folded([TIME])
            if rows is not None:
                frames[_ROWS] = self._table.merge(rows, [TIME])
        return parts_of(self._params, self._watermark, self.late_rows, frames)

    def adopt(self, parts: Parts) -> None:
        """Continue from a snapshot."""
        snapshot, frames = opened(parts, self._params)
        if set(frames) - {"input", _ROWS} or (frames and "input" not in frames):
            raise RemoteProtocolError(f"snapshot with frames {sorted(frames)}, expected input and {_ROWS}")
        self._input, self._table = None, None
        if "input" in frames:
            self._table = self._compile(frames["input"])
            expected = frames["input"].clear().select(self._prepared).schema
            if _ROWS in frames:
                if frames[_ROWS].schema != expected:
                    raise RemoteProtocolError(f"rows of a snapshot have columns {dict(frames[_ROWS].schema)}, expected {dict(expected)}")
                self._table.replace(frames[_ROWS])
        self._watermark, self.late_rows = snapshot.watermark_us, snapshot.late_rows

    def _compile(self, frame: pl.DataFrame) -> TopTable:
        """Prepared rows: event time, then the columns as c0, c1, ..."""
        columns = columns_of(frame)
        if columns.get(self._params.time_column) is not ColumnType.TIME:
            raise RemoteProtocolError(f"event time {self._params.time_column!r} is no time column of the input")
        names = {name: f"c{index}" for index, name in enumerate(columns)}
        missing = [name for name in (*(column.name for column in self._params.order), *self._params.ties) if name not in names]
        if missing:
            raise RemoteProtocolError(f"column {missing[0]!r} of the order is not among the input columns {', '.join(columns)}")
        self._prepared = [
            pl.col(self._params.time_column).cast(pl.Int64).alias(TIME),
            *(one_zero(pl.col(name), kind).alias(names[name]) for name, kind in columns.items()),
        ]
        self._input = frame.clear()
        return TopTable(self._params, names)
