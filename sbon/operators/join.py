"""Equi-join of two streams within a time interval.

Each side keeps its rows until the watermark says that no partner can come. A batch is joined with the other side's rows as it arrives,
so that every pair is given once, by whichever of the two came later. Keys alone would pair all rows of a busy key before the interval
throws most pairs away; rows are therefore joined on keys *and* on slices of time as long as the interval, of which a row's partners
lie in two at most.

A row behind the watermark is late: left out and counted. Rows with a NULL key never match and are not kept; one without an event time
counts as late.

A left outer join marks the left rows that have found a partner. One that has not is given with NULLs when the watermark says that none
can come any more, or at once if its partners would all have been late before it came; so it is given once, and never beside a pair.
"""

from collections.abc import Sequence

import polars as pl

from sbon.errors import QueryError, RemoteProtocolError
from sbon.operators.compile import columns_of, compile_expression
from sbon.operators.frames import polars_type
from sbon.operators.join_side import AT, MATCHED, TIME, Side, least
from sbon.operators.operator import Operator
from sbon.operators.snapshots import Parts, opened, parts_of
from sbon.query.expression import Column, Expression
from sbon.query.functions import common_type
from sbon.query.plan import WATERMARK_END, WATERMARK_MIN, JoinParams
from sbon.query.rewrite import substitute
from sbon.query.schema import ColumnType

SPAN_US_MAX = 2**60
FRAME_ROWS_MAX = 65_536
"""Rows of one frame of output."""
EVICTIONS = 8
"""How often rows are let go within the length of the interval."""

_SLICE = "s"
_SIDES = ("left", "right")


class IntervalJoin(Operator):
    """Join of two streams on equal keys and near event times. Pairs come in the order of the batch that completed them, left rows without
    a partner in that of their times."""

    def __init__(self, params: JoinParams) -> None:
        if not (abs(params.before_us) <= SPAN_US_MAX and abs(params.after_us) <= SPAN_US_MAX):
            raise RemoteProtocolError(f"join within -{params.before_us} to {params.after_us} µs, expected at most {SPAN_US_MAX}")
        if len(params.left_keys) != len(params.right_keys) or not params.left_keys:
            raise RemoteProtocolError(f"join on {len(params.left_keys)} and {len(params.right_keys)} keys, expected as many, at least one")
        self._params = params
        named = [tuple((f"c{i}", column) for i, (_, side, column) in enumerate(params.columns) if side == port) for port in (0, 1)]
        outer = params.outer is not None
        if params.outer is not None and len(params.outer) != len(named[1]):
            raise RemoteProtocolError(f"left join with types of {len(params.outer)} right columns, expected {len(named[1])}")
        left = Side(params.left_time, params.left_keys, named[0], outer=outer)
        self._sides = (left, Side(params.right_time, params.right_keys, named[1], outer=False))
        self._keys = [f"k{i}" for i in range(len(params.left_keys))]
        self._slice_us = max(1, params.before_us + params.after_us)
        self._watermark = WATERMARK_MIN
        self._evicted_at = WATERMARK_MIN
        self._casts: list[pl.Expr] = []
        self._residual: pl.Expr | None = None
        self._ready = False
        self.late_rows = 0

    @property
    def state_rows(self) -> int:
        """Rows of both sides that wait for partners."""
        return self._sides[0].rows + self._sides[1].rows

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Pair new rows of one side with the other side's, then keep them."""
        if port not in (0, 1):
            raise RemoteProtocolError(f"join input on port {port}, expected 0 or 1")
        side, other = self._sides[port], self._sides[1 - port]
        if side.input is None:
            side.compile(frame)
            self._check_types()
        elif side.input.schema != frame.schema:
            raise RemoteProtocolError(f"join input with columns {dict(frame.schema)}, expected {dict(side.input.schema)}")
        rows = frame.select(side.prepared)
        time = pl.col(TIME)
        rows = rows.filter(((time >= max(self._watermark, WATERMARK_MIN)) & (time < WATERMARK_END)).fill_null(False))
        self.late_rows += frame.height - rows.height
        if not side.outer:
            rows = rows.drop_nulls(self._keys)
        if rows.is_empty():
            return ()
        found, rows = self._pair(port, rows, other)
        waits = time + self._reach(port)[0] >= self._watermark
        side.keep(rows.filter(waits))
        if side.outer:
            found += self._without_partner([rows.filter(~waits & ~pl.col(MATCHED))])
        return found

    def advance(self, watermark_us: int) -> Sequence[pl.DataFrame]:
        """Let rows go whose partners would all be late; of a left join, give those that have found none."""
        if watermark_us > self._watermark:
            self._watermark = watermark_us
            left, answer = self._sides[0], list[pl.DataFrame]()
            if left.outer:
                below = self._useless_below(0)
                answer = self._without_partner(left.alone(below))
                left.evict(below)
            # Looking through everything kept for each batch's watermark costs more than keeping an eighth of it for longer.
            if watermark_us - self._evicted_at < self._slice_us // EVICTIONS and watermark_us < WATERMARK_END:
                return answer
            self._evicted_at = watermark_us
            for port, side in enumerate(self._sides):
                side.evict(self._useless_below(port))
            return answer
        return ()

    def output_watermark(self, watermark_us: int) -> int:
        """One row of a later pair is at the watermark or above, its partner at most the interval behind it."""
        if watermark_us <= WATERMARK_MIN or watermark_us >= WATERMARK_END:
            return watermark_us
        return max(WATERMARK_MIN, watermark_us - max(0, self._params.before_us, self._params.after_us))

    def parts(self) -> Parts:
        """The rows of both sides, with the columns of their inputs."""
        frames: dict[str, pl.DataFrame] = {}
        for name, side in zip(_SIDES, self._sides, strict=True):
            if side.input is not None:
                frames[f"{name} input"] = side.input
                frames[name] = pl.concat(side.chunks) if side.chunks else side.input.select(side.prepared)
        return parts_of(self._params, self._watermark, self.late_rows, frames)

    def adopt(self, parts: Parts) -> None:
        """Continue from a snapshot."""
        snapshot, frames = opened(parts, self._params)
        unknown = set(frames) - {*_SIDES, *(f"{name} input" for name in _SIDES)}
        if unknown:
            raise RemoteProtocolError(f"join snapshot with frames {sorted(unknown)}, expected left and right")
        for name, side in zip(_SIDES, self._sides, strict=True):
            side.input, side.chunks = None, []
            if name not in frames and f"{name} input" not in frames:
                continue
            if name not in frames or f"{name} input" not in frames:
                raise RemoteProtocolError(f"join snapshot with frames {sorted(frames)}, expected rows and input of a side together")
            side.compile(frames[f"{name} input"])
            assert side.input is not None
            expected = side.input.select(side.prepared).schema
            if frames[name].schema != expected:
                raise RemoteProtocolError(
                    f"{name} side of a join snapshot has columns {dict(frames[name].schema)}, expected {dict(expected)}"
                )
            side.keep(frames[name])
        self._watermark, self.late_rows, self._ready = snapshot.watermark_us, snapshot.late_rows, False

    def _reach(self, port: int) -> tuple[int, int]:
        """How far ahead of and behind a row of this side its partners may be."""
        before, after = self._params.before_us, self._params.after_us
        return (after, before) if port == 0 else (before, after)

    def _useless_below(self, port: int) -> int:
        """Rows of this side with an event time below this find no more partners."""
        return self._watermark - self._reach(port)[0] if self._watermark < WATERMARK_END else 2**63 - 1

    def _without_partner(self, rows: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """Left rows with NULLs for their partner, in the order of their times."""
        alone = pl.concat(rows) if rows else None
        if alone is None or alone.is_empty():
            return []
        types = iter(self._params.outer or ())
        columns = [
            (pl.col(f"c{i}") if side == 0 else pl.lit(None, polars_type(next(types)))).alias(name)
            for i, (name, side, _) in enumerate(self._params.columns)
        ]
        # A plan of the right side's columns alone still has a row for each left one.
        answer = alone.sort(TIME, maintain_order=True).with_columns(columns).select(name for name, _, _ in self._params.columns)
        return list(answer.iter_slices(FRAME_ROWS_MAX))

    def _check_types(self) -> None:
        """The right side has the types that NULLs in its place are given."""
        right = self._sides[1]
        if self._params.outer is None or right.input is None:
            return
        found = tuple(columns_of(right.input)[name] for _, name in right.columns)
        if found != self._params.outer:
            raise RemoteProtocolError(f"right side of a left join with types {found}, expected {self._params.outer}")

    def _pair(self, port: int, rows: pl.DataFrame, other: Side) -> tuple[list[pl.DataFrame], pl.DataFrame]:
        """Pairs of new rows with the other side's, and the rows, of a left join's left side those with partners marked."""
        ahead, behind = self._reach(port)
        times = rows[TIME]
        partners = other.within(least(times) - behind, _greatest(times) + ahead)
        if partners is None or partners.is_empty() or ahead + behind < 0:
            return [], rows
        if not self._ready:
            self._prepare_residual()
        # Partners of a row lie in the slice of the earliest possible one and, unless they coincide, that of the latest.
        # One lazy query: for small batches each step of its own would cost as much as the whole.
        time, length = pl.col(TIME), self._slice_us
        earliest, latest = (time - behind) // length, (time + ahead) // length
        indexed = rows.lazy().with_row_index("n").with_columns(self._casts)
        spread = indexed.with_columns(earliest.alias(_SLICE))
        if length > 1 or ahead + behind > 0:
            spread = pl.concat([spread, indexed.filter(latest != earliest).with_columns(latest.alias(_SLICE))])
        held = partners.lazy().with_row_index("m").with_columns(*self._casts, (time // length).alias(_SLICE))
        pairs = spread.join(held, on=[*self._keys, _SLICE], how="inner", suffix="_2")
        pairs = pairs.filter(pl.col("t_2").is_between(time - behind, time + ahead)).sort("n", "m")
        if self._residual is not None:
            pairs = pairs.filter(self._residual)
        named = [pl.col(f"c{i}").alias(name) for i, (name, _, _) in enumerate(self._params.columns)]
        if self._params.outer is None:
            answer = pairs.select(named).collect()
        else:
            matched = pairs.select("n" if port == 0 else AT, pl.struct(named).alias("pair")).collect()
            answer = matched["pair"].struct.unnest()
            if port == 0:
                found = pl.int_range(pl.len(), dtype=pl.UInt32).is_in(matched["n"].implode())
                rows = rows.with_columns(found.alias(MATCHED))
            elif not matched.is_empty():
                other.mark(matched[AT].unique())
        return (list(answer.iter_slices(FRAME_ROWS_MAX)) if not answer.is_empty() else []), rows

    def _prepare_residual(self) -> None:
        """Both inputs are known now: check the keys' types, compile the residual predicate."""
        left, right = self._sides
        try:
            kinds = [common_type("=", pair) for pair in zip(left.key_types, right.key_types, strict=True)]
        except QueryError as error:
            raise RemoteProtocolError(f"join keys: {error}") from error
        self._casts = [pl.col(name).cast(polars_type(kind)) for name, kind in zip(self._keys, kinds, strict=True) if kind is not None]
        if self._params.residual is not None:
            assert left.input is not None
            assert right.input is not None
            inputs = (columns_of(left.input), columns_of(right.input))
            columns = {f"c{i}": inputs[side][column] for i, (_, side, column) in enumerate(self._params.columns)}
            own: dict[str, Expression] = {name: Column(f"c{i}") for i, (name, _, _) in enumerate(self._params.columns)}
            try:
                residual = compile_expression(substitute(self._params.residual, own), columns)
            except QueryError as error:
                raise RemoteProtocolError(f"residual: {error}") from error
            if residual.type not in (ColumnType.BOOL, None):
                raise RemoteProtocolError(f"residual of type {residual.type}, expected a condition")
            self._residual = residual.value.cast(pl.Boolean)
        self._ready = True


def _greatest(times: pl.Series) -> int:
    greatest = times.max()
    assert isinstance(greatest, int)
    return greatest
