"""Rows that a join keeps of one input, because they may still find partners, with an index to find them by.

Rows lie in runs, in order of arrival. The index of a run is the sorted *codes* of its rows. A code has a hash of the keys in its high bits
and a slice of the event time in its low bits, so that the rows of a key within a range of time are neighbours. A batch finds its candidates
in two binary searches per row and run, however many rows are kept; neighbouring runs of similar size are merged, so that there are few
runs. Candidates match by code only; their times and keys are compared again.
"""

import copy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of, compile_column
from sbon.query.expression import Expression
from sbon.schema import ColumnType

RUN_ROWS_MIN = 8_192
"""Size of a run below which it is always merged with the next one, because searching one more run costs as much as merging so many rows."""
RUN_ROWS_MAX = 524_288
"""Size of a run above which it is not merged any more."""

TIME = "t"
"""Column of the event time, microseconds, in prepared rows."""
MATCHED = "y"
"""Column of the left side of a left join: whether the row has found a partner."""

SLICES = 2**24
"""Number of slices of event time that codes distinguish."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HASH_MASK = np.uint64(2**64 - SLICES)

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


class Coder(NamedTuple):
    """Computes codes from keys and event times. Times outside the range of slices get the nearest slice, which adds candidates but
    loses none."""

    keys: tuple[tuple[str, pl.DataType | None], ...]
    """Names of the keys, and the type that both sides are cast to; None if they have one type already."""
    shift: int
    """Length of a slice as a power of two of microseconds."""
    base: int
    """The first slice."""

    def hashes(self, rows: pl.DataFrame) -> Codes:
        """Returns the upper part of the codes."""
        mixed = np.zeros(rows.height, np.uint64)
        for name, kind in self.keys:
            values = rows[name] if kind is None else rows[name].cast(kind)
            mixed = np.multiply(np.bitwise_xor(mixed, _hashes(values)), _FACTOR)
        return np.bitwise_and(mixed, _HASH_MASK)

    def codes(self, hashes: Codes, times: Ints) -> Codes:
        """Returns the codes from their upper part and the times."""
        slices: Codes = np.clip((times >> self.shift) - self.base, 0, SLICES - 1).astype(np.uint64)
        return hashes | slices


class Index(NamedTuple):
    """The sorted codes of a run, and the place of each row in the run."""

    codes: Codes
    rows: Ints

    def merged(self, other: "Index", rows: int) -> "Index":
        """Merges this index, of a run with `rows` rows, with the index of the next run. A stable sort of two sorted parts is a merge."""
        codes = np.concatenate([self.codes, other.codes])
        order = np.argsort(codes, kind="stable")
        return Index(codes[order], np.concatenate([self.rows, other.rows + rows])[order])

    def only(self, kept: Flags) -> "Index":
        """Returns the index of the kept rows of the run."""
        mine = kept[self.rows]
        return Index(self.codes[mine], (np.cumsum(kept) - 1)[self.rows[mine]])


class Run:
    """Rows of one side that arrived one after the other. Only `matched`, `live`, `first_us` and the index ever change."""

    __slots__ = ("columns", "first_us", "index", "last_us", "live", "matched", "rows", "times")

    def __init__(self, rows: pl.DataFrame, matched: Flags | None, index: Index | None = None) -> None:
        self.rows = rows
        self.columns = dict(zip(rows.columns, rows.get_columns(), strict=True))
        self.times: Ints = rows[TIME].to_numpy()
        self.first_us, self.last_us = int(self.times.min()), int(self.times.max())
        self.matched = matched
        """For each row, whether it has found a partner; None if that is not recorded."""
        self.index = index
        self.live = rows.height
        """Number of rows that may still find partners."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Run":
        """Copies the run; parts that never change are shared."""
        other = copy.copy(self)
        other.matched = None if self.matched is None else self.matched.copy()
        return other

    def only(self, kept: Flags) -> "Run":
        """Returns a run of the kept rows, at least one."""
        matched = None if self.matched is None else self.matched[kept]
        return Run(self.rows.filter(pl.Series(kept)), matched, None if self.index is None else self.index.only(kept))

    def merged(self, other: "Run") -> "Run":
        """Returns one run with the rows of this run and the next one."""
        matched = None if self.matched is None or other.matched is None else np.concatenate([self.matched, other.matched])
        index = None if self.index is None or other.index is None else self.index.merged(other.index, self.rows.height)
        run = Run(pl.concat([self.rows, other.rows], rechunk=True), matched, index)
        run.live = self.live + other.live
        return run

    def indexed(self, coder: Coder) -> Index:
        """Returns the index, built on first use."""
        if self.index is None:
            codes = coder.codes(coder.hashes(self.rows), self.times)
            order = np.argsort(codes)
            self.index = Index(codes[order], order)
        return self.index

    def partners(self, coder: Coder, probe: "Probe") -> tuple[Ints, Ints]:
        """Returns pairs of a row of the batch and a row of the run whose codes and times match."""
        codes, rows = self.indexed(coder)
        first = np.searchsorted(codes, probe.first, side="left")
        some = np.flatnonzero(codes[np.minimum(first, codes.size - 1)] <= probe.last)
        some = some[first[some] < codes.size]
        first = first[some]
        counts = np.searchsorted(codes, probe.last[some], side="right") - first
        asking = np.repeat(some, counts)
        ends = np.cumsum(counts)
        places = np.arange(asking.size) + np.repeat(first - ends + counts, counts)
        found = rows[places]
        times, asked = self.times[found], probe.times[asking]
        near = (times >= asked - probe.behind_us) & (times <= asked + probe.ahead_us)
        return probe.order[asking[near]], found[near]


class Probe(NamedTuple):
    """New rows of one side, sorted for looking up their partners on the other."""

    first: Codes
    last: Codes
    """Codes between which partners lie."""
    times: Ints
    order: Ints
    """Place of each row in the batch."""
    behind_us: int
    ahead_us: int

    @classmethod
    def of(cls, coder: Coder, rows: pl.DataFrame, behind_us: int, ahead_us: int) -> "Probe":
        """Prepares a lookup of the partners from `behind_us` before each row to `ahead_us` after it."""
        times: Ints = rows[TIME].to_numpy()
        hashes = coder.hashes(rows)
        first = coder.codes(hashes, times - behind_us)
        order = np.argsort(first)  # neighbouring lookups touch memory that is in the cache already
        last = coder.codes(hashes[order], times[order] + ahead_us)
        return cls(first[order], last, times[order], order, behind_us, ahead_us)


class Side:
    """The rows of one input that may still find partners, in order of arrival."""

    def __init__(self, time_column: str, keys: tuple[Expression, ...], columns: tuple[tuple[str, str], ...], *, outer: bool) -> None:
        self.time_column = time_column
        self.keys = keys
        self.columns = columns
        self.outer = outer
        self.input: pl.DataFrame | None = None
        self.key_types: list[ColumnType] = []
        self.prepared: list[pl.Expr] = []
        self.runs: list[Run] = []
        self._live_from = -(2**63)

    @property
    def rows(self) -> int:
        """Returns the number of rows that may still find partners."""
        return sum(run.live for run in self.runs)

    def compile(self, frame: pl.DataFrame) -> None:
        """Compiles prepared rows: event time, keys, then the columns of the output."""
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
        ]
        self.input = frame.clear()

    def keep(self, rows: pl.DataFrame, matched: Flags | None, coder: Coder | None) -> None:
        """Appends prepared rows; without a coder, their index is built on first use."""
        if rows.is_empty():
            return
        self.runs.append(Run(rows.rechunk(), matched))
        while len(self.runs) > 1:
            before, last = self.runs[-2:]
            # Runs at least halve in size from one to the next, so a row is merged only about log2(rows) times.
            if before.rows.height > max(last.rows.height, RUN_ROWS_MIN) or before.rows.height + last.rows.height > RUN_ROWS_MAX:
                break
            if coder is not None:
                before.indexed(coder)
                last.indexed(coder)
            self.runs[-2:] = [before.merged(last)]

    def nothing(self) -> pl.DataFrame:
        """Returns an empty frame with the columns of `held`."""
        assert self.input is not None
        rows = self.input.select_seq(self.prepared)
        return rows.with_columns_seq(pl.lit(False).alias(MATCHED)) if self.outer else rows

    def held(self) -> list[pl.DataFrame]:
        """Returns the rows that may still find partners, with `MATCHED` if that is recorded."""
        frames = []
        for run in self.runs:
            run = run if run.live == run.rows.height else run.only(run.times >= self._live_from)
            frames.append(run.rows if run.matched is None else run.rows.with_columns_seq(pl.Series(MATCHED, run.matched)))
        return frames

    def partners(self, coder: Coder, rows: pl.DataFrame, behind_us: int, ahead_us: int) -> tuple[Ints, Ints] | None:
        """Returns pairs of a row of the batch and a kept row, numbered in order of arrival and sorted. The caller compares the keys.

        None: no pair.
        """
        times = rows[TIME]
        first, last = extremes(times)
        asking: list[Ints] = []
        found: list[Ints] = []
        probe: Probe | None = None
        start = 0
        for run in self.runs:
            if run.first_us <= last + ahead_us and run.last_us >= first - behind_us:
                if probe is None:
                    probe = Probe.of(coder, rows, behind_us, ahead_us)
                pairs = run.partners(coder, probe)
                asking.append(pairs[0])
                found.append(pairs[1] + start)
            start += run.rows.height
        if not asking or not sum(part.size for part in asking):
            return None
        left, right = np.concatenate(asking), np.concatenate(found)
        order = np.argsort(left * start + right)
        return left[order], right[order]

    def take(self, places: pl.Series, column: str) -> pl.Series:
        """Returns a column of kept rows, by the numbers that `partners` returns."""
        parts = [run.columns[column] for run in self.runs]
        return (parts[0] if len(parts) == 1 else pl.concat(parts))[places]  # kept in chunks: combining them would copy everything

    def mark(self, places: Ints) -> None:
        """Marks rows that have found partners."""
        start = 0
        for run in self.runs:
            end = start + run.rows.height
            assert run.matched is not None
            run.matched[places[(places >= start) & (places < end)] - start] = True
            start = end

    def alone(self, before_us: int) -> list[pl.DataFrame]:
        """Returns the rows with event times below `before_us` that have found no partner and have not been evicted."""
        found = []
        for run in self.runs:
            if run.first_us < before_us:
                assert run.matched is not None
                mine = (run.times < before_us) & (run.times >= self._live_from) & ~run.matched
                found.append(run.rows.filter(pl.Series(mine)))
        return found

    def evict(self, before_us: int) -> None:
        """Evicts rows with event times below `before_us`; a run frees them only once they are at least half of it."""
        self._live_from = max(self._live_from, before_us)
        runs = []
        for run in self.runs:
            if run.last_us < before_us:
                continue
            if run.first_us < before_us:
                live = run.times >= before_us
                run.live = int(np.count_nonzero(live))
                if 2 * run.live > run.rows.height:
                    run.first_us = int(run.times.min(initial=run.last_us, where=live))  # of live rows only
                else:
                    run = run.only(live)
            runs.append(run)
        self.runs = runs

    def forget_index(self) -> None:
        """Drops the indexes, because codes will change."""
        for run in self.runs:
            run.index = None


def _hashes(values: pl.Series) -> Codes:
    """Hashes a key's values. Integers are hashed without a polars query, which would cost more than a small batch itself."""
    if values.dtype != pl.Int64():
        hashed: Codes = values.hash().to_numpy()
        return hashed
    numbers = (values.fill_null(0) if values.null_count() else values).to_numpy().view(np.uint64)
    mixed = numbers * _FACTOR
    return (mixed ^ (mixed >> np.uint64(32))) * _FACTOR


def extremes(times: pl.Series) -> tuple[int, int]:
    """Returns the least and the greatest of some times, none NULL."""
    least, greatest = times.min(), times.max()
    assert isinstance(least, int)
    assert isinstance(greatest, int)
    return least, greatest
