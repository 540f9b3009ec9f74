"""Base of windows of all kinds: waiting rows, partial aggregates by pane and key, and snapshots."""

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import polars as pl

from sbon.errors import RemoteProtocolError, StateError
from sbon.operators.aggregates import Aggregates
from sbon.operators.cold_partials import ColdPartials
from sbon.operators.compile import columns_of, compile_column
from sbon.operators.frames import computed, stacked
from sbon.operators.grouping import Groups, in_order, physical, positions
from sbon.operators.operands import one_zero, prepared
from sbon.operators.operator import Operator
from sbon.operators.partials import TIME
from sbon.operators.snapshots import Head, Parts, opened, parts_of
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.schema import ColumnType
from sbon.state.room import StateRoom
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

PENDING_ROWS_MAX = 32_768
"""Rows that wait to be processed together, because a batch of a few rows costs as much as one of thousands."""
TOGETHER_ROWS_MAX = 32_768
TOGETHER_BYTES_MAX = 8 << 20
"""Most rows that wait to be aggregated together, and most bytes of these. A window that closes first aggregates the waiting rows. With four
times as many, its answers came 25 ms after its end instead of 5 ms, at 100,000 rows/s.
"""
ROWS_AT_ONCE = 65_536
"""Most partials, of all tables together, from which windows are closed in one step; more are processed range by range."""
FRAME_ROWS_MAX = 65_536
"""Most rows of one output frame."""

PANE = "p"
"""Column of the pane in partials: its number, or its start in microseconds, as the subclass defines."""


class Windowed(Operator):
    """Aggregates by key and by time ranges that a subclass defines. A row without an event time counts as late.

    Parameters
    ----------
    room : memory and disk for partials; None: all are in memory

    Raises
    ------
    StateError
        The memory cannot hold the partials of one batch.
    """

    def __init__(self, params: WindowParams | SessionParams, room: StateRoom | None = None) -> None:
        self._shared, self._room = params, room
        self._keys = [f"k{i}" for i in range(len(params.keys))]
        self._by = [PANE, *self._keys]
        self._watermark = WATERMARK_MIN
        self._input = pl.DataFrame()
        self._columns: list[pl.Expr] = []
        self._aggregates: Aggregates | None = None
        self._cold = self._none_cold()
        if self._cold is not None:
            self._cold.check_batch(len(params.keys) + len(params.aggregates))
        self._pending: list[pl.DataFrame] = []
        self._pending_rows = self._pending_bytes = 0
        self.late_rows = 0

    @abc.abstractmethod
    def _late_below(self) -> int:
        """Returns the event time below which rows are late."""

    @abc.abstractmethod
    def _add(self, aggregates: Aggregates, rows: pl.DataFrame) -> None:
        """Adds prepared rows, at least one and none late, to their panes."""

    @property
    def state_rows(self) -> int:
        """Returns the number of partials kept, and of rows not yet aggregated. A group may have several partials on disk."""
        return self._partials + self._pending_rows + (self._cold.rows if self._cold else 0)

    @property
    def _partials(self) -> int:
        return sum(table.rows for table in self._aggregates.tables.values()) if self._aggregates else 0

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Keeps rows until there are many, or a window closes. Until then no further row can become late.

        Raises
        ------
        StateFullError
            Partials must go to disk, and the disk is full. No answer has changed.
        """
        if self._cold and self._aggregates:
            self._cold.make_room(self._aggregates.tables, self._passed_pane())
        if self._aggregates is None:
            self._aggregates = self._compile(frame)
        elif frame.schema != self._input.schema:
            raise RemoteProtocolError(f"window input with columns {dict(frame.schema)}, expected {dict(self._input.schema)}")
        self._pending.append(frame)
        self._pending_rows += frame.height
        times = frame[self._shared.time_column]
        late = times.null_count() > 0 or int(physical(times).min()) < self._late_below()
        self._pending_bytes += int(frame.estimated_size())
        bytes_max = TOGETHER_BYTES_MAX if self._cold is None else min(TOGETHER_BYTES_MAX, self._cold.pending_bytes_max)
        if late or self._pending_rows >= TOGETHER_ROWS_MAX or self._pending_bytes >= bytes_max:
            self._aggregate_pending()  # counts late rows at once
        return ()

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Emits windows that have closed, then folds tables whose folding was put off, and moves partials to disk if they are many."""
        steps = self._close_up_to(watermark_us)
        if self._aggregates is not None and any(table.is_due for table in self._aggregates.tables.values()):
            steps = chain(steps, self._fold(self._aggregates))
        if self._aggregates is not None and self._cold and self._cold.has_work(self._aggregates.tables):
            steps = chain(steps, self._use_disk(self._cold, self._aggregates))
        return steps

    @abc.abstractmethod
    def _close_up_to(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Implements `Operator.advance_in_steps` in a subclass."""

    def _fold(self, aggregates: Aggregates) -> Iterator[Sequence[pl.DataFrame]]:
        for table in aggregates.tables.values():
            if table.is_due:
                for _ in table.fold_in_steps(self._by):
                    yield ()

    def _use_disk(self, cold: ColdPartials, aggregates: Aggregates) -> Iterator[Sequence[pl.DataFrame]]:
        for _ in cold.work(aggregates.tables, self._passed_pane()):
            yield ()

    def _passed_pane(self) -> int:
        """Returns the first pane that does not end before the watermark. Only for operators whose partials may go to disk."""
        return 0

    def _none_cold(self) -> ColdPartials | None:
        return None if self._room is None else ColdPartials(self._by, self._room)

    def _aggregate_pending(self) -> None:
        """Adds the waiting rows to their panes."""
        if self._aggregates is None or not self._pending:
            return
        frame = self._pending[0] if len(self._pending) == 1 else stacked(self._pending)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        rows = self._in_time(computed(frame, self._columns))
        if not rows.is_empty():
            self._add(self._aggregates, rows)

    def _in_time(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Returns rows that are not late, and counts the others."""
        times = rows[TIME]
        below = max(WATERMARK_MIN, self._late_below())
        least, greatest = times.min(), times.max()
        if not times.null_count() and isinstance(least, int) and isinstance(greatest, int) and below <= least and greatest < WATERMARK_END:
            return rows
        time = pl.col(TIME)
        kept = rows.filter(((time >= below) & (time < WATERMARK_END)).fill_null(False))
        self.late_rows += rows.height - kept.height
        self.untimed_rows += times.null_count()
        return kept

    def parts(self) -> Parts:
        """Returns the partials and the watermark, with the input's columns, so that a restored window can close before its next row
        comes."""
        if self._cold and self._cold.rows:
            head, pieces = self.pieces()
            found: dict[str, list[pl.DataFrame]] = {}
            for name, piece in pieces:
                found.setdefault(name, []).append(piece)
            return Parts(head, {name: pl.concat(frames, rechunk=True) for name, frames in found.items()})
        self._aggregate_pending()
        frames: dict[str, pl.DataFrame] = {}
        if self._aggregates is not None:
            frames["input"] = self._input
            for name, table in self._aggregates.tables.items():
                folded = table.folded(self._by)
                if folded is not None:
                    frames[name] = table.ordered(folded, self._by)
                    table.replace(frames[name])
        return parts_of(self._shared, self._watermark, self.late_rows, frames)

    def pieces(self) -> tuple[Head, Iterator[tuple[str, pl.DataFrame]]]:
        """Returns the state, with partials on disk read a piece at a time."""
        self._aggregate_pending()
        if not self._cold or not self._cold.rows or self._aggregates is None:
            parts = self.parts()
            return parts.head, iter(parts.frames.items())
        tables = self._aggregates.tables
        head = parts_of(self._shared, self._watermark, self.late_rows, {}).head
        return head, chain([("input", self._input)], self._cold.pieces(tables))

    def adopting(self, head: Head) -> Callable[[str, pl.DataFrame], None] | None:
        """Continues from a snapshot that comes in pieces, if partials may go to disk."""
        if self._cold is None:
            return None
        self.adopt(Parts(head, {}))
        return self._take

    def _take(self, name: str, rows: pl.DataFrame) -> None:
        """Adds a piece of a snapshot."""
        if self._aggregates is None:
            if name != "input":
                raise RemoteProtocolError(f"window snapshot that begins with {name!r}, expected input")
            self._aggregates = self._compile(rows)
            return
        tables = self._aggregates.tables
        if name not in tables:
            raise RemoteProtocolError(f"window snapshot with table {name!r}, expected {sorted(tables)}")
        self._check_table(name, rows, self._aggregates)
        for one, empty in self._empty(self._aggregates).items():
            if not tables[one].frames:
                tables[one].replace(empty)
        tables[name].add(rows, self._by)
        assert self._cold is not None
        try:
            self._cold.make_room(tables, self._passed_pane())
        except StateError as problem:
            raise RemoteProtocolError(f"window snapshot: {problem}") from problem

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        snapshot, frames = opened(parts, self._shared)
        aggregates = None
        if frames:
            if "input" not in frames:
                raise RemoteProtocolError(f"window snapshot with frames {sorted(frames)}, expected input")
            aggregates = self._compile(frames.pop("input"))
            self._check(frames, aggregates)
            for name, frame in frames.items():
                aggregates.tables[name].replace(in_order(frame, self._by) if self._cold else frame)
        self._aggregates, self._watermark, self.late_rows = aggregates, snapshot.watermark_us, snapshot.late_rows
        self._cold = self._none_cold()

    def _check(self, frames: dict[str, pl.DataFrame], aggregates: Aggregates) -> None:
        """Checks that the tables of a snapshot have the columns of this window's own."""
        if frames and set(frames) != set(aggregates.tables):
            raise RemoteProtocolError(f"window snapshot with tables {sorted(frames)}, expected {sorted(aggregates.tables)}")
        for name, frame in frames.items():
            self._check_table(name, frame, aggregates)
            if (positions(frames["main"], frame, self._by) < 0).any():
                raise RemoteProtocolError(f"table {name} of a window snapshot has groups that the main table does not have")

    def _check_table(self, name: str, frame: pl.DataFrame, aggregates: Aggregates) -> None:
        expected = self._empty(aggregates)[name].schema
        if frame.schema != expected:
            raise RemoteProtocolError(f"table {name} of a window snapshot has columns {dict(frame.schema)}, expected {dict(expected)}")
        aggregates.tables[name].check(frame)

    def _empty(self, aggregates: Aggregates) -> dict[str, pl.DataFrame]:
        """Returns each table's partials of no rows."""
        nothing = self._input.select_seq(self._columns).with_columns_seq(pl.col(TIME).alias(PANE))
        groups = Groups.of(nothing, self._by)
        return {name: table.partial(nothing, groups) for name, table in aggregates.tables.items()}

    def _compile(self, frame: pl.DataFrame) -> Aggregates:
        """Compiles expressions for the column types of the first batch, which later batches share."""
        columns = columns_of(frame)
        if columns.get(self._shared.time_column) is not ColumnType.TIME:
            raise RemoteProtocolError(f"event time {self._shared.time_column!r} is no time column of the input")
        own = [pl.col(self._shared.time_column).cast(pl.Int64).alias(TIME)]
        for name, (_, expression) in zip(self._keys, self._shared.keys, strict=True):
            value, kind, _ = compile_column(expression, columns)
            own.append(one_zero(value, kind).alias(name))
        operands = prepared(self._shared.aggregates, columns)
        self._input, self._columns = frame.clear(), [*own, *operands.columns]
        aggregates = Aggregates(self._shared.aggregates, operands.operands, operands.types)
        for table in aggregates.tables.values():
            table.is_sorted = self._room is not None
        return aggregates

    def _named(self, answers: pl.DataFrame, start: pl.Series, end: pl.Series) -> pl.DataFrame:
        """Returns answers with the columns of the output. `start` and `end` are the bounds of their windows in microseconds."""
        keys = [answers[own].alias(name) for own, (name, _) in zip(self._keys, self._shared.keys, strict=True)]
        values = [answers[f"a{i}"].alias(aggregate.name) for i, aggregate in enumerate(self._shared.aggregates)]
        bounds = [start.cast(pl.Datetime("us")).alias("window_start"), end.cast(pl.Datetime("us")).alias("window_end")]
        return pl.DataFrame([*bounds, *keys, *values])
