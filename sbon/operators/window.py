"""Tumbling and hopping windows, aggregated by key.

Rows are aggregated into *panes*, the stretches of time between any two window edges (their length is the greatest common divisor of
size and slide), so that a row is touched once however many windows it belongs to (Li et al., No pane, no gain, SIGMOD Record 34, 2005).
When a window closes, its panes are merged; a pane goes when the last window over it has closed. The answer is the same however rows
were cut into batches and links interleaved (see `aggregates`), as long as they come before the watermark.
"""

import math
from collections.abc import Sequence

import msgspec
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.aggregates import TIME, Aggregates
from sbon.operators.compile import columns_of, compile_column
from sbon.operators.operator import Operator
from sbon.operators.snapshots import pack, unpack
from sbon.query.plan import WATERMARK_END, WATERMARK_MIN, WindowParams
from sbon.query.schema import ColumnType

SPAN_US_MAX = 2**60
"""Longest window and lateness: 36,000 years; keeps sums of times within 64 bits."""
FRAME_ROWS_MAX = 65_536
"""Rows of one frame of output."""
SPREAD_ROWS_MAX = 1_000_000
"""Rows of partials that are merged at once where many hopping windows close together."""

PENDING_ROWS_MAX = 8_192
"""Rows that wait to be aggregated together: a batch of a few rows costs as much as one of thousands."""

_PANE, _WINDOW = "p", "w"


class Window(Operator):
    """Windowed aggregation. A row without an event time counts as late."""

    def __init__(self, params: WindowParams) -> None:
        if not (0 < params.size_us <= SPAN_US_MAX and 0 < params.slide_us <= SPAN_US_MAX):
            raise RemoteProtocolError(f"window of {params.size_us} µs every {params.slide_us} µs, expected 1 to {SPAN_US_MAX}")
        if not 0 <= params.allowed_lateness_us <= SPAN_US_MAX:
            raise RemoteProtocolError(f"allowed lateness of {params.allowed_lateness_us} µs, expected 0 to {SPAN_US_MAX}")
        self._params = params
        self._pane_us = math.gcd(params.size_us, params.slide_us)
        self._keys = [f"k{i}" for i in range(len(params.keys))]
        self._watermark = WATERMARK_MIN
        self._input = pl.DataFrame()
        self._columns: list[pl.Expr] = []
        self._aggregates: Aggregates | None = None
        self._pending: list[pl.DataFrame] = []
        self._pending_rows = 0
        self.late_rows = 0

    @property
    def state_rows(self) -> int:
        """Partials kept, and rows that are not yet part of one."""
        return self._partials + self._pending_rows

    @property
    def _partials(self) -> int:
        return sum(table.rows for table in self._aggregates.tables.values()) if self._aggregates else 0

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Keep rows until there are many, or a window closes. Until then nothing can become late that is not already."""
        if self._aggregates is None:
            self._aggregates = self._compile(frame)
        elif frame.schema != self._input.schema:
            raise RemoteProtocolError(f"window input with columns {dict(frame.schema)}, expected {dict(self._input.schema)}")
        self._pending.append(frame)
        self._pending_rows += frame.height
        times = frame[self._params.time_column].to_physical()
        earliest = times.min()
        late = times.null_count() > 0 or (isinstance(earliest, int) and earliest < self._open_from(self._watermark))
        if late or self._pending_rows >= PENDING_ROWS_MAX:
            self._aggregate_pending()  # what is late is counted at once
        return ()

    def _aggregate_pending(self) -> None:
        """Add the rows that wait to their panes."""
        if self._aggregates is None or not self._pending:
            return
        frame = self._pending[0] if len(self._pending) == 1 else pl.concat(self._pending)
        self._pending, self._pending_rows = [], 0
        rows = self._in_time(frame.select(self._columns))
        if not rows.is_empty():
            by = [_PANE, *self._keys]
            rows = rows.with_columns((pl.col(TIME) // self._pane_us * self._pane_us).alias(_PANE))
            for table in self._aggregates.tables.values():
                table.add(table.partial(rows, by), by)

    def advance(self, watermark_us: int) -> Sequence[pl.DataFrame]:
        """Give the windows that have closed."""
        before = self._open_from(self._watermark)
        after = self._open_from(max(watermark_us, self._watermark))
        if before != after:
            self._aggregate_pending()
        self._watermark = max(watermark_us, self._watermark)
        if self._aggregates is None or before == after or not self._partials:
            return ()
        by = [_PANE, *self._keys]
        tables = {name: frame for name, table in self._aggregates.tables.items() if (frame := table.folded(by)) is not None}
        frames = self._close(self._aggregates, tables, before, after)
        for name, frame in tables.items():
            slide = self._params.slide_us
            self._aggregates.tables[name].replace(frame.filter(pl.col(_PANE) // slide * slide >= after))
        return frames

    def output_watermark(self, watermark_us: int) -> int:
        """The end of the first window that is still open."""
        if watermark_us <= WATERMARK_MIN or watermark_us >= WATERMARK_END:
            return watermark_us
        return max(WATERMARK_MIN, self._open_from(watermark_us) + self._params.size_us)

    def snapshot(self) -> bytes:
        """The partials and the watermark, with the input's columns, so that a restored window can close before its next row comes."""
        self._aggregate_pending()
        frames: dict[str, pl.DataFrame] = {}
        if self._aggregates is not None:
            frames["input"] = self._input
            for name, table in self._aggregates.tables.items():
                folded = table.folded([_PANE, *self._keys])
                if folded is not None:
                    frames[name] = table.ordered(folded, [_PANE, *self._keys])
        return pack(self._params, self._watermark, self.late_rows, frames)

    def restore(self, state: bytes) -> None:
        """Continue from a snapshot."""
        snapshot, frames = unpack(state, self._params)
        aggregates = None
        if frames:
            if "input" not in frames:
                raise RemoteProtocolError(f"window snapshot with frames {sorted(frames)}, expected input")
            aggregates = self._compile(frames.pop("input"))
            self._check(frames, aggregates)
            for name, frame in frames.items():
                aggregates.tables[name].replace(frame)
        self._aggregates, self._watermark, self.late_rows = aggregates, snapshot.watermark_us, snapshot.late_rows

    def _check(self, frames: dict[str, pl.DataFrame], aggregates: Aggregates) -> None:
        """The tables of a snapshot have the columns that this window's own would have."""
        if frames and set(frames) != set(aggregates.tables):
            raise RemoteProtocolError(f"window snapshot with tables {sorted(frames)}, expected {sorted(aggregates.tables)}")
        by = [_PANE, *self._keys]
        nothing = self._input.select(self._columns).with_columns(pl.col(TIME).alias(_PANE))
        for name, frame in frames.items():
            expected = aggregates.tables[name].partial(nothing, by).schema
            if frame.schema != expected:
                raise RemoteProtocolError(f"table {name} of a window snapshot has columns {dict(frame.schema)}, expected {dict(expected)}")

    def _compile(self, frame: pl.DataFrame) -> Aggregates:
        """Types are known with the first batch; they stay."""
        columns = columns_of(frame)
        if columns.get(self._params.time_column) is not ColumnType.TIME:
            raise RemoteProtocolError(f"event time {self._params.time_column!r} is no time column of the input")
        prepared = [pl.col(self._params.time_column).cast(pl.Int64).alias(TIME)]
        for name, (_, expression) in zip(self._keys, self._params.keys, strict=True):
            value, kind, _ = compile_column(expression, columns)
            prepared.append(_one_zero(value, kind).alias(name))
        operands: dict[bytes, str] = {}
        types: dict[str, ColumnType] = {}
        names: list[str | None] = []
        for aggregate in self._params.aggregates:
            if aggregate.operand is None:
                names.append(None)
                continue
            value, kind, _ = compile_column(aggregate.operand, columns)
            if aggregate.function == "stddev" and kind is ColumnType.INT:
                value, kind = value.cast(pl.Float64), ColumnType.FLOAT
            name = operands.setdefault(msgspec.msgpack.encode(aggregate.operand) + kind.value.encode(), f"x{len(operands)}")
            if name not in types:
                types[name] = kind
                prepared.append(_one_zero(value, kind).alias(name))
            names.append(name)
        self._input, self._columns = frame.clear(), prepared
        return Aggregates(self._params.aggregates, names, types)

    def _open_from(self, watermark_us: int) -> int:
        """Start of the first window that has not closed."""
        if watermark_us >= WATERMARK_END:
            return WATERMARK_END + SPAN_US_MAX
        slide = self._params.slide_us
        return (watermark_us - self._params.size_us - self._params.allowed_lateness_us) // slide * slide + slide

    def _in_time(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows that belong to a window that is open; those for which all have closed are counted."""
        time, slide = pl.col(TIME), self._params.slide_us
        start = time // slide * slide  # of the last window that can hold the row
        sane = (time >= WATERMARK_MIN) & (time < WATERMARK_END)
        fits = (sane & (start >= self._open_from(self._watermark))).fill_null(False)
        kept = rows.filter(fits)
        self.late_rows += rows.height - kept.height
        if slide > self._params.size_us:
            kept = kept.filter(time - start < self._params.size_us)
        return kept

    def _close(self, aggregates: Aggregates, tables: dict[str, pl.DataFrame], first: int, end: int) -> list[pl.DataFrame]:
        """Answers of the windows that start from `first` up to before `end`."""
        slide = self._params.slide_us
        starts = self._spread(tables["main"].select(_PANE).unique(), first, end - slide)[_WINDOW].unique().sort()
        overlap = -(-self._params.size_us // slide)
        rounds = -(-self._partials * min(overlap, max(1, starts.len())) // SPREAD_ROWS_MAX)
        step = -(-starts.len() // max(1, rounds)) or 1
        by = [_WINDOW, *self._keys]
        frames: list[pl.DataFrame] = []
        for at in range(0, starts.len(), step):
            block = starts.slice(at, step)
            merged = {}
            for name, frame in tables.items():
                spread = self._spread(frame, int(block[0]), int(block[-1]))
                merged[name] = spread if self._params.size_us == slide else aggregates.tables[name].merge(spread, by)
            answers = self._named(aggregates.answers(merged, by))
            frames.extend(answers.iter_slices(FRAME_ROWS_MAX))
        return frames

    def _spread(self, partials: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
        """Partials of panes, each once for every window that starts within `first` to `last` and holds the pane."""
        slide, size, pane = self._params.slide_us, self._params.size_us, pl.col(_PANE)
        earliest = ((pane - size) // slide * slide + slide).clip(lower_bound=first)
        latest = (pane // slide * slide).clip(upper_bound=last)
        held = partials.filter(earliest <= latest)
        if size == slide:
            return held.rename({_PANE: _WINDOW})
        windows = pl.int_ranges(earliest, latest + 1, slide).alias(_WINDOW)
        return held.select(windows, pl.all().exclude(_PANE)).explode(_WINDOW)

    def _named(self, answers: pl.DataFrame) -> pl.DataFrame:
        start = pl.col(_WINDOW)
        keys = [pl.col(own).alias(name) for own, (name, _) in zip(self._keys, self._params.keys, strict=True)]
        values = [pl.col(f"a{i}").alias(aggregate.name) for i, aggregate in enumerate(self._params.aggregates)]
        return answers.select(
            start.cast(pl.Datetime("us")).alias("window_start"),
            (start + self._params.size_us).cast(pl.Datetime("us")).alias("window_end"),
            *keys,
            *values,
        )


def _one_zero(value: pl.Expr, kind: ColumnType) -> pl.Expr:
    """0.0 and -0.0 are one key and one extreme; which of them came first is an accident."""
    # Not value + 0.0: polars knows that this changes nothing.
    return pl.when(value == 0.0).then(0.0).otherwise(value) if kind is ColumnType.FLOAT else value
