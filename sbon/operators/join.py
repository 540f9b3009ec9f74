"""Equi-join of two streams within a time interval.

Each side keeps its rows until the watermark says that no partner can come. A batch is joined with the other side's rows as it arrives,
so that every pair is given once, by whichever of the two came later. Keys alone would pair all rows of a busy key before the interval
throws most pairs away; rows are therefore joined on keys *and* on slices of time as long as the interval, of which a row's partners
lie in two at most.

A row behind the watermark is late: left out and counted. Rows with a NULL key never match and are not kept; one without an event time
counts as late.
"""

from collections.abc import Sequence

import polars as pl

from sbon.errors import QueryError, RemoteProtocolError
from sbon.operators.compile import columns_of, compile_column, compile_expression
from sbon.operators.frames import polars_type
from sbon.operators.operator import Operator
from sbon.operators.snapshots import pack, unpack
from sbon.query.expression import Expression
from sbon.query.functions import common_type
from sbon.query.plan import WATERMARK_END, WATERMARK_MIN, JoinParams
from sbon.query.schema import ColumnType

SPAN_US_MAX = 2**60
FRAME_ROWS_MAX = 65_536
"""Rows of one frame of output."""
EVICTIONS = 8
"""How often rows are let go within the length of the interval."""
CHUNKS_MAX = 32
"""Frames of a side before they are made one."""

_TIME = "t"
_SLICE = "s"
_SIDES = ("left", "right")


class _Side:
    """The rows that one input has brought and that may still find partners, in order of arrival."""

    def __init__(self, time_column: str, keys: tuple[Expression, ...], columns: tuple[tuple[str, str], ...]) -> None:
        self.time_column = time_column
        self.keys = keys
        self.columns = columns
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
            pl.col(self.time_column).cast(pl.Int64).alias(_TIME),
            *(value.alias(f"k{i}") for i, (value, _, _) in enumerate(compiled)),
            *(pl.col(name).alias(own) for own, name in self.columns),
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
        time = pl.col(_TIME)
        if len(self.chunks) > 1:
            self.chunks = [pl.concat(self.chunks)]
        return self.chunks[0].filter((time >= first_us) & (time <= last_us))

    def evict(self, before_us: int) -> None:
        """Let rows go whose event time is below this."""
        kept = (chunk.filter(pl.col(_TIME) >= before_us) for chunk in self.chunks)
        self.chunks = [chunk for chunk in kept if not chunk.is_empty()]


class IntervalJoin(Operator):
    """Inner join of two streams on equal keys and near event times. Pairs come in the order of the batch that completed them."""

    def __init__(self, params: JoinParams) -> None:
        if not (abs(params.before_us) <= SPAN_US_MAX and abs(params.after_us) <= SPAN_US_MAX):
            raise RemoteProtocolError(f"join within -{params.before_us} to {params.after_us} µs, expected at most {SPAN_US_MAX}")
        if len(params.left_keys) != len(params.right_keys) or not params.left_keys:
            raise RemoteProtocolError(f"join on {len(params.left_keys)} and {len(params.right_keys)} keys, expected as many, at least one")
        self._params = params
        named = [tuple((f"c{i}", column) for i, (_, side, column) in enumerate(params.columns) if side == port) for port in (0, 1)]
        self._sides = (_Side(params.left_time, params.left_keys, named[0]), _Side(params.right_time, params.right_keys, named[1]))
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
        elif side.input.schema != frame.schema:
            raise RemoteProtocolError(f"join input with columns {dict(frame.schema)}, expected {dict(side.input.schema)}")
        rows = frame.select(side.prepared)
        time = pl.col(_TIME)
        rows = rows.filter(((time >= max(self._watermark, WATERMARK_MIN)) & (time < WATERMARK_END)).fill_null(False))
        self.late_rows += frame.height - rows.height
        rows = rows.drop_nulls(self._keys)
        if rows.is_empty():
            return ()
        found = self._pair(port, rows, other)
        ahead, _ = self._reach(port)
        side.keep(rows.filter(time + ahead >= self._watermark))
        return found

    def advance(self, watermark_us: int) -> Sequence[pl.DataFrame]:
        """Let rows go whose partners would all be late."""
        if watermark_us > self._watermark:
            self._watermark = watermark_us
            # Looking through everything kept for each batch's watermark costs more than keeping an eighth of it for longer.
            if watermark_us - self._evicted_at < self._slice_us // EVICTIONS and watermark_us < WATERMARK_END:
                return ()
            self._evicted_at = watermark_us
            for port, side in enumerate(self._sides):
                side.evict(watermark_us - self._reach(port)[0] if watermark_us < WATERMARK_END else 2**63 - 1)
        return ()

    def output_watermark(self, watermark_us: int) -> int:
        """One row of a later pair is at the watermark or above, its partner at most the interval behind it."""
        if watermark_us <= WATERMARK_MIN or watermark_us >= WATERMARK_END:
            return watermark_us
        return max(WATERMARK_MIN, watermark_us - max(0, self._params.before_us, self._params.after_us))

    def snapshot(self) -> bytes:
        """The rows of both sides, with the columns of their inputs."""
        frames: dict[str, pl.DataFrame] = {}
        for name, side in zip(_SIDES, self._sides, strict=True):
            if side.input is not None:
                frames[f"{name} input"] = side.input
                frames[name] = pl.concat(side.chunks) if side.chunks else side.input.select(side.prepared)
        return pack(self._params, self._watermark, self.late_rows, frames)

    def restore(self, state: bytes) -> None:
        """Continue from a snapshot."""
        snapshot, frames = unpack(state, self._params)
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

    def _pair(self, port: int, rows: pl.DataFrame, other: _Side) -> list[pl.DataFrame]:
        ahead, behind = self._reach(port)
        times = rows[_TIME]
        partners = other.within(_least(times) - behind, _greatest(times) + ahead)
        if partners is None or partners.is_empty() or ahead + behind < 0:
            return []
        if not self._ready:
            self._prepare_residual()
        # Partners of a row lie in the slice of the earliest possible one and, unless they coincide, that of the latest.
        # One lazy query: for small batches each step of its own would cost as much as the whole.
        time, length = pl.col(_TIME), self._slice_us
        earliest, latest = (time - behind) // length, (time + ahead) // length
        indexed = rows.lazy().with_row_index("n").with_columns(self._casts)
        spread = indexed.with_columns(earliest.alias(_SLICE))
        if length > 1 or ahead + behind > 0:
            spread = pl.concat([spread, indexed.filter(latest != earliest).with_columns(latest.alias(_SLICE))])
        held = partners.lazy().with_row_index("m").with_columns(*self._casts, (time // length).alias(_SLICE))
        pairs = spread.join(held, on=[*self._keys, _SLICE], how="inner", suffix="_2")
        pairs = pairs.filter(pl.col("t_2").is_between(time - behind, time + ahead)).sort("n", "m")
        pairs = pairs.select(pl.col(f"c{i}").alias(name) for i, (name, _, _) in enumerate(self._params.columns))
        if self._residual is not None:
            pairs = pairs.filter(self._residual)
        answer = pairs.collect()
        return list(answer.iter_slices(FRAME_ROWS_MAX)) if not answer.is_empty() else []

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
            columns = {name: inputs[side][column] for name, side, column in self._params.columns}
            residual = compile_expression(self._params.residual, columns)
            if residual.type not in (ColumnType.BOOL, None):
                raise RemoteProtocolError(f"residual of type {residual.type}, expected a condition")
            self._residual = residual.value.cast(pl.Boolean)
        self._ready = True


def _least(times: pl.Series) -> int:
    least = times.min()
    assert isinstance(least, int)
    return least


def _greatest(times: pl.Series) -> int:
    greatest = times.max()
    assert isinstance(greatest, int)
    return greatest
