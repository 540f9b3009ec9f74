"""Rows that a window join keeps of one input: rows of open windows, stored in runs ordered by buckets of their keys.

Joining a million rows with a million others is bound by cache misses. Rows are therefore put into buckets by a hash of their keys as they
come, many at a time, so that a window closes as many small joins that fit a cache. Rows of a bucket stay in order of arrival.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of, compile_column
from sbon.operators.hashes import SLICES, HashArray, key_hashes, slices
from sbon.query.expression import Column, Expression
from sbon.schema import ColumnType

BUCKETS = SLICES
"""Number of buckets that the rows of a large window are joined in. One slice of the keys is one bucket, so an instance has whole buckets.
"""
RUN_ROWS = 65_536
"""Rows of a side that are sorted into buckets together."""
TAIL_FRAMES_MAX = 32
"""Most small frames kept before they are combined into one."""


class Run(NamedTuple):
    """Rows of one side, never changed."""

    rows: pl.DataFrame
    first_us: int
    last_us: int
    ends: npt.NDArray[np.int64] | None
    """End of each bucket's rows; None: rows are in order of arrival."""


class HeldRows:
    """The rows of open windows from one input. Columns: the event time, the keys, and the other columns that the output needs.

    Column names begin with the side's prefix, so that the two sides have different names.
    """

    def __init__(self, prefix: str, time_column: str, keys: tuple[Expression, ...], columns: tuple[str, ...]) -> None:
        self.time = f"{prefix}t"
        self.keys = [f"{prefix}k{i}" for i in range(len(keys))]
        self._prefix = prefix
        self._time_column = time_column
        self._key_expressions = keys
        self._columns = columns
        self.input: pl.DataFrame | None = None
        self.prepared: list[pl.Expr] = []
        self.schema = pl.Schema()
        """Schema of prepared rows."""
        self.output: dict[str, pl.Expr] = {}
        """For each output column from this side, the expression over kept rows."""
        self.types: dict[str, ColumnType] = {}
        self.key_types: list[ColumnType] = []
        self.runs: list[Run] = []
        self._tail: list[Run] = []
        self._tail_rows = 0

    @property
    def rows(self) -> int:
        """Returns the number of rows kept."""
        return sum(run.rows.height for run in self.runs) + self._tail_rows

    def compile(self, frame: pl.DataFrame) -> None:
        """Compiles the columns to keep for the types of the first batch, which later batches share. The event time and plain key columns
        are not kept twice.
        """
        columns = columns_of(frame)
        if columns.get(self._time_column) is not ColumnType.TIME:
            raise RemoteProtocolError(f"event time {self._time_column!r} is no time column of the input")
        missing = [name for name in self._columns if name not in columns]
        if missing:
            raise RemoteProtocolError(f"join column {missing[0]!r} is not among the input columns {', '.join(columns)}")
        compiled = [compile_column(key, columns) for key in self._key_expressions]
        self.prepared = [pl.col(self._time_column).cast(pl.Int64).alias(self.time)]
        self.prepared += [value.alias(name) for name, (value, _, _) in zip(self.keys, compiled, strict=True)]
        self.key_types = [kind for _, kind, _ in compiled]
        self.output = {self._time_column: pl.col(self.time).cast(pl.Datetime("us"))}
        # A join drops the keys of the right side.
        plain = zip(self._key_expressions, self.keys, strict=True) if self._prefix == "l" else ()
        self.output |= {key.name: pl.col(name) for key, name in plain if isinstance(key, Column) and key.name != self._time_column}
        for index, name in enumerate(self._columns):
            if name not in self.output:
                own = f"{self._prefix}c{index}"
                self.prepared.append(pl.col(name).alias(own))
                self.output[name] = pl.col(own)
        self.types = {name: columns[name] for name in self._columns}
        self.input = frame.clear()
        self.schema = self.input.select_seq(self.prepared).schema

    def keep(self, rows: pl.DataFrame) -> None:
        """Adds prepared rows, at least one, with event times."""
        run = Run(rows, *_extremes(rows[self.time]), None)
        self._tail.append(run)
        self._tail_rows += rows.height
        if self._tail_rows >= RUN_ROWS:
            self.settle()
        elif len(self._tail) > TAIL_FRAMES_MAX:
            self._tail = [_merged(self._tail)]

    def settle(self) -> None:
        """Sorts the latest rows into buckets."""
        if self._tail:
            self.runs.append(self._bucketed(_merged(self._tail)))
            self._tail, self._tail_rows = [], 0

    @property
    def tail(self) -> pl.DataFrame | None:
        """Returns the rows that are not in buckets yet."""
        return _merged(self._tail).rows if self._tail else None

    def restore(self, runs: list[pl.DataFrame], tail: pl.DataFrame | None) -> None:
        """Restores the rows of a snapshot, prepared by an equal operator, and sorts them into buckets."""
        self._tail, self._tail_rows = [], 0
        self.runs = [self._bucketed(Run(rows, *_extremes(rows[self.time]), None)) for rows in runs]
        if tail is not None:
            self.keep(tail)

    def times(self) -> tuple[int, int] | None:
        """Returns the least and the greatest event time kept."""
        kept = [*self.runs, *self._tail]
        return (min(run.first_us for run in kept), max(run.last_us for run in kept)) if kept else None

    def between(self, first_us: int, end_us: int) -> list[Run]:
        """Returns the rows with event times from `first_us` to below `end_us`."""
        return self._cut([*self.runs, *self._tail], first_us, end_us)

    def in_buckets(self, first_us: int, end_us: int) -> list[Run]:
        """Returns the rows with event times from `first_us` to below `end_us`, all in buckets."""
        return [run if run.ends is not None else self._bucketed(run) for run in self.between(first_us, end_us)]

    def evict(self, below_us: int) -> None:
        """Drops rows with event times below `below_us`."""
        self.runs = self._cut(self.runs, below_us, None)
        self._tail = self._cut(self._tail, below_us, None)
        self._tail_rows = sum(run.rows.height for run in self._tail)

    def buckets(self, rows: pl.DataFrame) -> npt.NDArray[np.uint8]:
        """Returns the bucket of each row; equal keys have equal buckets on both sides."""
        return slices([rows[name] for name in self.keys])

    def apart(self, rows: list[pl.DataFrame], parts: int) -> list[list[pl.DataFrame]]:
        """Splits the rows of a bucket into `parts` smaller buckets, each in the order given."""
        found: list[list[pl.DataFrame]] = [[] for _ in range(parts)]
        if rows:
            whole = pl.concat(rows, rechunk=True)
            of = (self._hashes(whole) % np.uint64(parts)).astype(np.uint16)  # uses bits of the hash that did not choose the bucket
            ordered = whole[pl.Series(np.argsort(of, kind="stable").astype(np.uint32))]
            ends = np.cumsum(np.bincount(of, minlength=parts)).tolist()
            for part, (start, end) in enumerate(pairwise([0, *ends])):
                if end > start:
                    found[part].append(ordered.slice(start, end - start))
        return found

    def _hashes(self, rows: pl.DataFrame) -> HashArray:
        return key_hashes([rows[name] for name in self.keys])

    def _bucketed(self, run: Run) -> Run:
        buckets = self.buckets(run.rows)
        order = pl.Series(np.argsort(buckets, kind="stable").astype(np.uint32))
        ends = np.cumsum(np.bincount(buckets, minlength=BUCKETS))
        return Run(run.rows[order], run.first_us, run.last_us, ends)

    def _cut(self, runs: list[Run], first_us: int, end_us: int | None) -> list[Run]:
        """Returns the parts of runs within a time range; most runs lie inside or outside as a whole."""
        found = []
        for run in runs:
            if run.first_us >= first_us and (end_us is None or run.last_us < end_us):
                found.append(run)
            elif run.last_us >= first_us and (end_us is None or run.first_us < end_us):
                times = run.rows[self.time].to_numpy()
                inside = times >= first_us if end_us is None else (times >= first_us) & (times < end_us)
                rows = run.rows.filter(pl.Series(inside))
                if not rows.is_empty():
                    ends = run.ends
                    if ends is not None:
                        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(inside)])[ends]
                    found.append(Run(rows, *_extremes(rows[self.time]), ends))
        return found

    def restored_like(self, frame: pl.DataFrame, label: str) -> None:
        """Checks that a frame of a snapshot has the columns of this side's rows."""
        if frame.schema != self.schema:
            raise RemoteProtocolError(f"{label} of a join snapshot has columns {dict(frame.schema)}, expected {dict(self.schema)}")
        if frame.is_empty() or frame[self.time].null_count():
            raise RemoteProtocolError(f"{label} of a join snapshot has {frame.height} rows, expected some, all with event times")


def bucket(runs: list[Run], index: int) -> list[pl.DataFrame]:
    """Returns the rows of one bucket, in order of arrival; all runs must be in buckets."""
    found = []
    for run in runs:
        assert run.ends is not None
        start, end = int(run.ends[index - 1]) if index else 0, int(run.ends[index])
        if end > start:
            found.append(run.rows.slice(start, end - start))
    return found


def _merged(runs: list[Run]) -> Run:
    if len(runs) == 1:
        return runs[0]
    rows = pl.concat([run.rows for run in runs], rechunk=True)
    return Run(rows, min(run.first_us for run in runs), max(run.last_us for run in runs), None)


def _extremes(times: pl.Series) -> tuple[int, int]:
    least, greatest = times.min(), times.max()
    assert isinstance(least, int)
    assert isinstance(greatest, int)
    return least, greatest
