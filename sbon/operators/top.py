"""Keeps the first rows of each window, or of each partition of a window: ORDER BY ... LIMIT, and ROW_NUMBER.

Rows with equal event times form one window. At most `limit` rows of each window (and partition) are kept, and emitted in order when the
watermark has passed the window. Rows that compare equal are ordered by their other columns, so that the answer does not depend on the order
of arrival.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of
from sbon.operators.frames import computed
from sbon.operators.grouping import Groups, physical
from sbon.operators.measures import plain_numbers, rows_apart
from sbon.operators.operands import one_zero
from sbon.operators.operator import Operator
from sbon.operators.partials import TIME, Table
from sbon.operators.ranges import RANGE_ROWS, in_ranges
from sbon.operators.snapshots import Parts, opened, parts_of
from sbon.operators.windowed import FRAME_ROWS_MAX, PENDING_ROWS_MAX
from sbon.query.params.ordered import TopParams
from sbon.schema import ColumnType
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

CANDIDATE_ROWS_MIN = 64
"""Fewer rows are sorted without selecting candidates first."""

_ROWS = "top"


class TopTable(Table):
    """The first rows of each event time and partition."""

    def __init__(self, params: TopParams, names: dict[str, str]) -> None:
        super().__init__()
        self._limit = params.limit
        self.partition = [names[name] for name in params.partition]
        self._sort = [names[column.name] for column in params.order] + [names[name] for name in params.ties]
        self._descending = [column.descending for column in params.order] + [False] * len(params.ties)
        self._nulls_last = [not column.nulls_first for column in params.order] + [True] * len(params.ties)

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Returns the rows that may be among the first, ordered by time and `order`; rows with partitions may come in any order."""
        return rows_apart(self._merged(partials, by))

    def _merged(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        if not self.partition or not partials.height:
            return self.first(partials, by)
        groups = Groups.of(partials, [*by, *self.partition])
        rows = self._extremes(partials, groups)
        if rows.height == groups.keys.height:
            return rows
        if rows is not partials:
            return self.first(rows, by)
        crowded = (groups.counts > self._limit)[groups.ids]
        if not crowded.any():
            return rows
        return pl.concat([rows.filter(pl.Series(~crowded)), self.first(rows.filter(pl.Series(crowded)), by)], rechunk=True)

    def first(self, rows: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Returns the first rows, by time and partition and in order."""
        by = [*by, *self.partition]
        first = [False] * len(by)
        ordered = (rows if self.partition else self._candidates(rows)).sort(
            [*by, *self._sort], descending=[*first, *self._descending], nulls_last=[*first, *self._nulls_last], maintain_order=True
        )
        return ordered.group_by(by, maintain_order=True).head(self._limit).select_seq(rows.columns)

    def _extremes(self, rows: pl.DataFrame, groups: Groups) -> pl.DataFrame:
        """Returns, if one row of each group is wanted, the group's rows that are least or greatest in the first column of the order;
        otherwise all rows.
        """
        values = plain_numbers(rows[self._sort[0]]) if self._sort else None
        if values is None or self._limit > 1:
            return rows
        best = np.full(groups.size, values.min() if self._descending[0] else values.max())
        (np.maximum if self._descending[0] else np.minimum).at(best, groups.ids, values)
        return rows.filter(pl.Series(values == best[groups.ids]))

    def number(self) -> pl.Expr:
        """Returns the number of each row within its time and partition, for rows as `first` returns them."""
        return pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over([TIME, *self.partition])

    def _candidates(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Returns a superset of the first rows, since sorting all rows would cost more than the rest.

        If rows of one event time are adjacent and the first column of the order has plain numbers, rows beyond the limit by that column
        are dropped.
        """
        if rows.height < CANDIDATE_ROWS_MIN or not self._sort:
            return rows
        values, times = plain_numbers(rows[self._sort[0]]), plain_numbers(rows[TIME])
        if values is None or times is None:
            return rows
        ends = np.append(np.flatnonzero(times[1:] != times[:-1]) + 1, rows.height)
        if ends.size * 2 * self._limit > rows.height:
            return rows
        kept = np.ones(rows.height, np.bool_)
        for start, end in pairwise([0, *ends.tolist()]):
            run, place = values[start:end], end - start - self._limit if self._descending[0] else self._limit - 1
            if end - start > self._limit:
                last = np.partition(run, place)[place]
                kept[start:end] = run >= last if self._descending[0] else run <= last
        return rows.filter(pl.Series(kept))


class Top(Operator):
    """Keeps the first rows of each event time and partition. A row behind the watermark, or without an event time, is late."""

    def __init__(self, params: TopParams) -> None:
        self._params = params
        self._watermark = WATERMARK_MIN
        self._input: pl.DataFrame | None = None
        self._prepared: list[pl.Expr] = []
        self._table: TopTable | None = None
        self._pending: list[pl.DataFrame] = []
        self._pending_rows = 0
        self._least_us = WATERMARK_END
        """The least event time kept; `WATERMARK_END` if no row is kept."""
        self.late_rows = 0

    @property
    def state_rows(self) -> int:
        """Returns the number of rows that may be among the first, and of rows not yet compared with these."""
        return self._pending_rows + (0 if self._table is None else self._table.rows)

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Keeps rows; now and then drops those that are not among the first."""
        if self._input is None or self._table is None:
            self._table = self._compile(frame)
        elif frame.schema != self._input.schema:
            raise RemoteProtocolError(f"input with columns {dict(frame.schema)}, expected {dict(self._input.schema)}")
        times = frame[self._params.time_column]
        if times.null_count() or int(physical(times).min()) < self._watermark or int(physical(times).max()) >= WATERMARK_END:
            time = pl.col(self._params.time_column).cast(pl.Int64)
            rows = frame.filter(((time >= self._watermark) & (time < WATERMARK_END)).fill_null(False))
            self.late_rows += frame.height - rows.height
            self.untimed_rows += times.null_count()
            frame = rows
        if not frame.is_empty():
            self._pending.append(frame)
            self._pending_rows += frame.height
            self._least_us = min(self._least_us, int(physical(frame[self._params.time_column]).min()))
        if self._pending_rows >= PENDING_ROWS_MAX:
            self._compare_pending(self._table)
        return ()

    def _compare_pending(self, table: TopTable) -> None:
        """Compares pending rows and keeps the first."""
        if self._pending:
            rows = computed(pl.concat(self._pending, rechunk=True), self._prepared)
            self._pending, self._pending_rows = [], 0
            table.add(table.merge(rows, [TIME]), [TIME])

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Emits the first rows of the windows behind the watermark, by ranges of windows if there are many rows."""
        self._watermark = max(watermark_us, self._watermark)
        if self._table is None or self._least_us >= self._watermark:
            return ()
        self._compare_pending(self._table)
        rows = [frame.filter(pl.col(TIME) < self._watermark) for frame in self._table.frames]
        self._table.keep(TIME, lambda times: times >= self._watermark)
        self._least_us = _least(self._table)
        if sum(frame.height for frame in rows) <= RANGE_ROWS:
            return (self._answers(self._table, pl.concat(rows, rechunk=True)),)
        return self._close_many(self._table, rows)

    def _close_many(self, table: TopTable, rows: Sequence[pl.DataFrame]) -> Iterator[Sequence[pl.DataFrame]]:
        for part in in_ranges({_ROWS: rows}, [TIME, *table.partition]):
            yield () if part is None else self._answers(table, part[_ROWS])

    def _answers(self, table: TopTable, rows: pl.DataFrame) -> list[pl.DataFrame]:
        """Returns the first rows of some event times, given all their rows."""
        assert self._input is not None
        answer = table.first(rows, [TIME]).sort(TIME, maintain_order=True)
        names = [pl.col(f"c{index}").alias(name) for index, name in enumerate(self._input.columns)]
        if self._params.number is not None:
            names.append(table.number().alias(self._params.number))
        return list(answer.select_seq(names).iter_slices(FRAME_ROWS_MAX))

    def parts(self) -> Parts:
        """Returns the rows kept, with the columns of the input."""
        frames: dict[str, pl.DataFrame] = {}
        if self._table is not None and self._input is not None:
            self._compare_pending(self._table)
            frames["input"] = self._input
            rows = self._table.folded([TIME])
            if rows is not None:
                frames[_ROWS] = self._table.first(rows, [TIME])
        return parts_of(self._params, self._watermark, self.late_rows, frames)

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        snapshot, frames = opened(parts, self._params)
        if set(frames) - {"input", _ROWS} or (frames and "input" not in frames):
            raise RemoteProtocolError(f"snapshot with frames {sorted(frames)}, expected input and {_ROWS}")
        self._input, self._table = None, None
        self._pending, self._pending_rows = [], 0
        if "input" in frames:
            self._table = self._compile(frames["input"])
            expected = frames["input"].clear().select_seq(self._prepared).schema
            if _ROWS in frames:
                if frames[_ROWS].schema != expected:
                    raise RemoteProtocolError(f"rows of a snapshot have columns {dict(frames[_ROWS].schema)}, expected {dict(expected)}")
                self._table.replace(frames[_ROWS])
        self._least_us = WATERMARK_END if self._table is None else _least(self._table)
        self._watermark, self.late_rows = snapshot.watermark_us, snapshot.late_rows

    def _compile(self, frame: pl.DataFrame) -> TopTable:
        """Compiles prepared rows: event time, then the columns as c0, c1, ..."""
        columns = columns_of(frame)
        if columns.get(self._params.time_column) is not ColumnType.TIME:
            raise RemoteProtocolError(f"event time {self._params.time_column!r} is no time column of the input")
        names = {name: f"c{index}" for index, name in enumerate(columns)}
        wanted = (*(column.name for column in self._params.order), *self._params.ties, *self._params.partition)
        missing = [name for name in wanted if name not in names]
        if self._params.number in names:
            raise RemoteProtocolError(f"column {self._params.number!r} for row numbers is already a column of the input")
        if missing:
            raise RemoteProtocolError(f"column {missing[0]!r} of the order is not among the input columns {', '.join(columns)}")
        self._prepared = [
            pl.col(self._params.time_column).cast(pl.Int64).alias(TIME),
            *(one_zero(pl.col(name), kind).alias(names[name]) for name, kind in columns.items()),
        ]
        self._input = frame.clear()
        return TopTable(self._params, names)


def _least(table: TopTable) -> int:
    """Returns the least event time of a table's rows; `WATERMARK_END` if it has no rows."""
    return min((int(piece.to_numpy().min()) for piece in table.pieces(TIME) if piece.len()), default=WATERMARK_END)
