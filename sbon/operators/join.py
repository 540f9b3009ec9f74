"""Equi-join of two streams within a time interval.

Each side keeps its rows until the watermark says that no partner can come. A batch is joined with the other side's rows as it arrives, so
that every pair is emitted once, when the later of its rows arrives. Joining on keys alone would pair all rows of a frequent key before the
interval discards most pairs. Rows are therefore joined on keys *and* on slices of time as long as the interval; a row's partners lie in at
most two slices.

A row behind the watermark is late: left out and counted. Rows with a NULL key never match and are not kept; a row without an event time
counts as late.

A left outer join marks the left rows that have found a partner. A left row without a partner is emitted with NULLs when the watermark says
that no partner can come any more, or at once if all its partners would be late already. So it is emitted once, and never in addition to a
pair.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import and_

import numpy as np
import polars as pl

from sbon.errors import QueryError, RemoteProtocolError
from sbon.operators.compile import columns_of
from sbon.operators.frames import computed, evaluated, polars_type
from sbon.operators.join_side import MATCHED, RUN_ROWS_MAX, SLICES, TIME, Coder, Flags, Side, extremes
from sbon.operators.pairing import in_time, without_null
from sbon.operators.ranges import RANGE_ROWS, in_ranges
from sbon.operators.snapshots import Parts, opened, parts_of
from sbon.operators.two_sided import TwoSidedJoin, condition_on_pairs
from sbon.query.functions import common_type
from sbon.query.params.joined import JoinParams
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

FRAME_ROWS_MAX = 65_536
"""Most rows of one output frame."""
EVICTIONS = 8
"""Rows are evicted this many times per interval length."""

SLICES_OF_INTERVAL = 4
"""Approximate number of time slices per interval. More slices give fewer candidates outside the interval, but more lookups."""
_SIDES = ("left", "right")


class IntervalJoin(TwoSidedJoin[Side]):
    """Joins two streams on equal keys and near event times. Pairs are emitted in the order of the batch that completed them, left rows
    without a partner in the order of their times."""

    def __init__(self, params: JoinParams) -> None:
        self._params = params
        named = [tuple((f"c{i}", column) for i, (_, side, column) in enumerate(params.columns) if side == port) for port in (0, 1)]
        outer = params.outer is not None
        left = Side(params.left_time, params.left_keys, named[0], outer=outer)
        super().__init__(left, Side(params.right_time, params.right_keys, named[1], outer=False), params.apart)
        self._keys = [f"k{i}" for i in range(len(params.left_keys))]
        self._slice_us = max(1, params.before_us + params.after_us)
        self._watermark = WATERMARK_MIN
        self._evicted_at = WATERMARK_MIN
        self._coder: Coder | None = None
        self._residual: pl.Expr | None = None
        self.late_rows = 0

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Pairs new rows of one side with the other side's rows, then keeps them."""
        side = self._side_of(port, frame)
        prepared = computed(frame, side.prepared)
        rows = in_time(prepared, TIME, max(self._watermark, WATERMARK_MIN))
        self.late_rows += frame.height - rows.height
        self.untimed_rows += prepared[TIME].null_count()
        if not side.outer:
            rows = without_null(rows, self._keys)
        if rows.is_empty():
            return ()
        matched = np.zeros(rows.height, np.bool_) if side.outer else None
        found = self._pair(port, rows, matched)
        if extremes(rows[TIME])[0] < self._useless_below(port):
            waits = rows[TIME].to_numpy() >= self._useless_below(port)
            if matched is not None:
                found += self._without_partner([rows.filter(pl.Series(~waits & ~matched))])
                matched = matched[waits]
            rows = rows.filter(pl.Series(waits))
        side.keep(rows, matched, self._coder)
        return found

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Evicts rows whose partners would all be late; a left join emits left rows that found no partner."""
        if watermark_us <= self._watermark:
            return ()
        self._watermark = watermark_us
        left = self._sides[0]
        if not left.outer:
            self._let_go()
            return ()
        below = self._useless_below(0)
        alone = left.alone(below)
        left.evict(below)
        self._let_go()
        if sum(rows.height for rows in alone) > RANGE_ROWS:
            return self._without_partner_in_steps(alone)
        return (self._without_partner(alone),)

    def _let_go(self) -> None:
        """Evicts rows only EVICTIONS times per interval: examining all rows at every watermark would cost more than keeping rows an eighth
        of the interval longer.
        """
        if self._watermark - self._evicted_at >= self._slice_us // EVICTIONS or self._watermark >= WATERMARK_END:
            self._evicted_at = self._watermark
            self._follow(self._watermark)
            for port, side in enumerate(self._sides):
                side.evict(self._useless_below(port))

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the output watermark. Of a later pair, one row is at the watermark or above, and its partner at most the interval behind
        that row.
        """
        if watermark_us <= WATERMARK_MIN or watermark_us >= WATERMARK_END:
            return watermark_us
        return max(WATERMARK_MIN, watermark_us - max(0, self._params.before_us, self._params.after_us))

    def parts(self) -> Parts:
        """Returns the rows of both sides, with the columns of their inputs."""
        frames: dict[str, pl.DataFrame] = {}
        for name, side in zip(_SIDES, self._sides, strict=True):
            if side.input is not None:
                frames[f"{name} input"] = side.input
                held = side.held()
                frames[name] = pl.concat(held, rechunk=True) if held else side.nothing()
        return parts_of(self._params, self._watermark, self.late_rows, frames)

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        snapshot, frames = opened(parts, self._params)
        unknown = set(frames) - {*_SIDES, *(f"{name} input" for name in _SIDES)}
        if unknown:
            raise RemoteProtocolError(f"join snapshot with frames {sorted(unknown)}, expected left and right")
        for name, side in zip(_SIDES, self._sides, strict=True):
            side.input, side.runs = None, []
            if name not in frames and f"{name} input" not in frames:
                continue
            if name not in frames or f"{name} input" not in frames:
                raise RemoteProtocolError(f"join snapshot with frames {sorted(frames)}, expected rows and input of a side together")
            side.compile(frames[f"{name} input"])
            expected = side.nothing().schema
            if frames[name].schema != expected:
                raise RemoteProtocolError(
                    f"{name} side of a join snapshot has columns {dict(frames[name].schema)}, expected {dict(expected)}"
                )
            for rows in frames[name].iter_slices(RUN_ROWS_MAX):  # runs no longer than merging makes them
                matched = rows[MATCHED].fill_null(False).to_numpy().copy() if side.outer else None
                side.keep(rows.drop(MATCHED, strict=False), matched, None)
        self._watermark, self.late_rows, self._coder = snapshot.watermark_us, snapshot.late_rows, None

    def _reach(self, port: int) -> tuple[int, int]:
        """Returns how far ahead of and behind a row of this side its partners may be, in microseconds."""
        before, after = self._params.before_us, self._params.after_us
        return (after, before) if port == 0 else (before, after)

    def _useless_below(self, port: int) -> int:
        """Returns the event time below which rows of this side find no more partners."""
        return self._watermark - self._reach(port)[0] if self._watermark < WATERMARK_END else 2**63 - 1

    def _without_partner_in_steps(self, rows: list[pl.DataFrame]) -> Iterator[Sequence[pl.DataFrame]]:
        """Yields many left rows with NULLs for their partner, in the order of their times."""
        for part in in_ranges({"alone": rows}, [TIME]):
            yield () if part is None else self._without_partner([part["alone"]])

    def _without_partner(self, rows: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """Returns left rows with NULLs for their partner, in the order of their times."""
        alone = pl.concat(rows, rechunk=True) if rows else None
        if alone is None or alone.is_empty():
            return []
        types = iter(self._params.outer or ())
        columns = [
            (pl.col(f"c{i}") if side == 0 else pl.lit(None, polars_type(next(types)))).alias(name)
            for i, (name, side, _) in enumerate(self._params.columns)
        ]
        # `with_columns_seq` gives one row per left row, even if all output columns come from the right side.
        answer = alone.sort(TIME, maintain_order=True).with_columns_seq(columns).select_seq(name for name, _, _ in self._params.columns)
        return list(answer.iter_slices(FRAME_ROWS_MAX))

    def _input_known(self) -> None:
        """Sets the types of the NULLs that stand for the right side's columns."""
        right = self._sides[1]
        if self._params.outer is None or right.input is None:
            return
        found = tuple(columns_of(right.input)[name] for _, name in right.columns)
        if found != self._params.outer:
            raise RemoteProtocolError(f"right side of a left join with types {found}, expected {self._params.outer}")

    def _pair(self, port: int, rows: pl.DataFrame, matched: Flags | None) -> list[pl.DataFrame]:
        """Pairs new rows with the other side's rows. A left join marks left rows that have partners; it marks new rows in `matched`."""
        ahead, behind = self._reach(port)
        other = self._sides[1 - port]
        if not other.runs or ahead + behind < 0:
            return []
        if self._coder is None:
            self._coder = self._prepare()
            self._follow(self._watermark if self._watermark > WATERMARK_MIN else extremes(rows[TIME])[0])
        partners = other.partners(self._coder, rows, behind, ahead)
        if partners is None:
            return []
        places = [pl.Series(numbers.astype(np.uint32)) for numbers in partners]
        equal = reduce(and_, (self._equal(key, kind, port, rows, places) for key, kind in self._coder.keys))
        equal = equal.fill_null(False) if equal.null_count() else equal
        if not equal.all():
            places = [numbers.filter(equal) for numbers in places]
        columns = [self._column(f"c{i}", side, port, rows, places).alias(name) for i, (name, side, _) in enumerate(self._params.columns)]
        answer = pl.DataFrame(columns)
        if self._residual is not None and not answer.is_empty():
            true = evaluated(answer, self._residual.fill_null(False))
            answer, places = answer.filter(true), [numbers.filter(true) for numbers in places]
        if matched is not None:
            matched[places[0].to_numpy()] = True
        elif other.outer:
            other.mark(places[1].to_numpy())
        return list(answer.iter_slices(FRAME_ROWS_MAX)) if not answer.is_empty() else []

    def _column(self, own: str, side: int, port: int, rows: pl.DataFrame, places: list[pl.Series]) -> pl.Series:
        """Returns a column of pairs, from the new rows or from the kept rows of the other side."""
        return rows[own][places[0]] if side == port else self._sides[side].take(places[1], own)

    def _equal(self, key: str, kind: pl.DataType | None, port: int, rows: pl.DataFrame, places: list[pl.Series]) -> pl.Series:
        """Tells for each pair whether a key is the same in both rows."""
        values = [self._column(key, side, port, rows, places) for side in (0, 1)]
        left, right = values if kind is None else (value.cast(kind) for value in values)
        return left == right

    def _follow(self, time_us: int) -> None:
        """Moves the range of time slices around this instant and drops indexes built for another range."""
        coder = self._coder
        if coder is None or not WATERMARK_MIN < time_us < WATERMARK_END:
            return
        at = time_us >> coder.shift
        if not SLICES // 8 <= at - coder.base <= SLICES // 2:
            self._coder = coder._replace(base=at - SLICES // 4)
            for side in self._sides:
                side.forget_index()

    def _prepare(self) -> Coder:
        """Checks the keys' types and compiles the condition on pairs, once both inputs are known."""
        left, right = self._sides
        try:
            kinds = [common_type("=", pair) for pair in zip(left.key_types, right.key_types, strict=True)]
        except QueryError as error:
            raise RemoteProtocolError(f"join keys: {error}") from error

        if self._params.residual is not None:
            assert left.input is not None
            assert right.input is not None
            inputs = (columns_of(left.input), columns_of(right.input))
            types = {name: inputs[side][column] for name, side, column in self._params.columns}
            self._residual = condition_on_pairs(self._params.residual, types)
        keys = tuple((key, None if kind is None else polars_type(kind)) for key, kind in zip(self._keys, kinds, strict=True))
        return Coder(keys, (self._slice_us // SLICES_OF_INTERVAL).bit_length(), 0)
