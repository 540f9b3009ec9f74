"""Connector `datagen` (source): makes rows from a seed. Row i depends only on the seed and on i, not on the time or batch in which it
leaves.

Options
-------
rows_per_second : a number, or `max` for as fast as the overlay takes them; default 10
rows : number of rows, after which the stream ends; default: no end
seed : whole number, default 0. Rows of another seed, and columns of one seed, are independent of each other
start : event time of the first row, ISO 8601 in UTC; default: the wall clock when the source starts
event_rows_per_second : number of rows in a second of event time; default rows_per_second, a million with `max`
disorder : every row's event time is up to this span (`2 s`) behind its place in the sequence; default none
per_node : `true` mixes the node's name into the seed, so that each node of a logical source has rows of its own; default `false`
pool_rows : number of rows that are made once, kept in memory and repeated: row i has the values of row i modulo `pool_rows`, and its own
    event time. For load tests: a row then costs almost nothing to make. Default: every row is made
batch_rows_max : most rows of a batch, default 524288; fewer if they would take longer than the engine's quantum
fields.COLUMN.kind : what fills a column
    `random`    INT, FLOAT: min (0), max (1000; 1 for FLOAT). BOOL: probability (0.5). INTERVAL: min, max in seconds (0, 60)
    `sequence`  INT, FLOAT: start (0) plus i * step (1), modulo `modulo` if given. TEXT: prefix, then that number
    `normal`    INT, FLOAT: mean (0), stddev (1)
    `zipf`      rank among `count` (100) with `exponent` (1); rank 0 most often. INT: min (0) plus rank. TEXT: prefix, then the rank
    `choice`    one of `values` (a,b,c), by `weights` (5,1,1) if given; any type but TIME and INTERVAL
    `node`      TEXT: the name of the node that makes the row
    `label`     TEXT: the node's label `label`; NULL if it has none
fields.COLUMN.null_fraction : share of NULLs, default 0

Without a kind: INT and FLOAT `random`, TEXT `zipf`, BOOL and INTERVAL `random`. TIME columns hold the event time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import polars as pl

from sbon.connectors.fields import Chance, Column, Index, NodeWithLabels, build_column, node_seed
from sbon.connectors.interface import BATCH_ROWS_MAX, Polled
from sbon.connectors.watermark import Watermark
from sbon.operators.times import parse_time
from sbon.options import Options
from sbon.query.params.source import SourceParams

RATE_MAX = 1e9
ROWS_MAX = 10**15
FLOOD_ROWS_MAX = 524_288
"""Most rows of a batch, however little they cost, unless the option `batch_rows_max` says otherwise."""
POOL_ROWS_MAX = 2**22
"""Most rows that `pool_rows` keeps in memory; a row of three numbers takes 24 bytes."""


class DatagenSource:
    """Source that gives the rows that are due by the clock, or rows without pause."""

    threaded = True
    dropped_rows = 0

    def __init__(self, params: SourceParams, context: NodeWithLabels) -> None:
        options = Options(f"source {params.name}", params.connector, params.options)
        self._params = params
        self._rate = self._read_rate(options)
        self._limit = options.integer("rows", ROWS_MAX, 0, ROWS_MAX)
        seed = options.integer("seed", 0, 0, 2**63 - 1)
        if options.flag("per_node", False):
            seed = node_seed(seed, context.node)
        default = 1_000_000.0 if math.isinf(self._rate) else self._rate
        self._event_step_us = 1e6 / options.number("event_rows_per_second", default, 1e-6, 1e9)
        self._start_us = self._read_start(options)
        self._disorder_us = options.duration_us("disorder", 0)
        self._pool_rows = options.integer("pool_rows", 0, 0, POOL_ROWS_MAX)
        self._batch_rows_max = options.integer("batch_rows_max", FLOOD_ROWS_MAX, 1, 1_000_000)
        self.batch_rows = BATCH_ROWS_MAX
        self._columns: list[tuple[str, Column | None]] = []
        for field in params.columns:
            self._columns.append((field.name, build_column(field, options, seed, context)))
        self._time_places = [(place, name) for place, (name, column) in enumerate(self._columns) if column is None]
        self._disorder = Chance(seed, "disorder")
        options.finish()
        self._watermark = Watermark(params)
        self._pool: pl.DataFrame | None = None
        self._steps: pl.Series | None = None
        self._sent = 0
        self._began: float | None = None

    @staticmethod
    def _read_rate(options: Options) -> float:
        if options.text("rows_per_second", "").strip().lower() == "max":
            return math.inf
        return options.number("rows_per_second", 10.0, 1e-6, RATE_MAX)

    @staticmethod
    def _read_start(options: Options) -> int | None:
        text = options.optional("start")
        if text is None:
            return None
        start = pl.select(parse_time(pl.lit(text)).cast(pl.Int64)).item()
        if not isinstance(start, int):
            raise options.refuse("start", text, "a time such as '2026-01-31T12:00:00Z'")
        return start

    def start(self, ready: Callable[[], None]) -> None:
        """Does nothing: the clock starts with the first poll."""

    def poll(self, now: float, wall: float) -> Polled:
        """Returns the rows that are due."""
        if self._began is None:
            self._began = now
            if self._start_us is None:
                self._start_us = round(wall * 1_000_000)
        due = self._due(now)
        count = min(self.batch_rows, self._batch_rows_max, due - self._sent)
        frame = None
        if count > 0:
            frame, newest = self._rows(self._sent, count)
            self._sent += count
            self._watermark.seen(newest if self._params.time_column is not None else None)
        if self._sent >= self._limit:
            return Polled(frame, self._watermark.end(), None, True)
        if math.isinf(self._rate) or self._sent < due:
            return Polled(frame, self._watermark.us, now)
        return Polled(frame, self._watermark.us, self._began + self._sent / self._rate)

    def prefetch(self, now: float, wall: float) -> Callable[[], Polled] | None:
        """Promises the next batch if it is due in full, else returns None. Only `poll` reports the end."""
        count = min(self.batch_rows, self._batch_rows_max)
        first = self._sent
        if self._began is None or self._pool_rows or first + count > self._due(now):
            return None
        self._sent += count
        return partial(self._promised, first, count, now)

    def _promised(self, first: int, count: int, promised_at: float) -> Polled:
        """Makes promised rows, on any thread, at the same time as others."""
        frame, newest = self._rows(first, count)
        return Polled(frame, self._watermark.after(newest if self._params.time_column is not None else None), promised_at)

    def due_rows(self, now: float) -> int:
        """Returns the number of rows that a poll would give now if batches had no limit."""
        return max(0, self._due(now) - self._sent)

    def sample(self, rows: int) -> pl.DataFrame:
        """Returns the first rows, with event times from 1970 on if the source has no start. Only for a source that is never started."""
        self._start_us, self._pool_rows = self._start_us or 0, 0
        return self._rows(0, min(rows, self._limit))[0]

    def stop(self) -> None:
        """Does nothing: no files or sockets are open."""

    def _due(self, now: float) -> int:
        """Returns the number of rows that should have left since the beginning."""
        if math.isinf(self._rate):
            return self._limit
        return min(self._limit, math.floor((now - (now if self._began is None else self._began)) * self._rate + 1e-6) + 1)

    def _rows(self, first: int, count: int) -> tuple[pl.DataFrame, int]:
        times, newest_us = self._times(first, count)
        event_time = times.cast(pl.Datetime("us"))
        if len(self._time_places) == len(self._columns):
            return pl.DataFrame({name: event_time for _, name in self._time_places}), newest_us
        frame = self._values(first, count)
        for (
            place,
            name,
        ) in self._time_places:  # inserted in place: the cost of a small batch depends on the number of polars calls, not of rows
            frame.insert_column(place, event_time.alias(name))
        return frame, newest_us

    def _times(self, first: int, count: int) -> tuple[pl.Series, int]:
        """Returns the event times of these rows, and the latest in microseconds."""
        assert self._start_us is not None
        if self._disorder_us or not self._event_step_us.is_integer():
            index = np.arange(first, first + count, dtype=np.int64)
            offsets = np.floor(index * self._event_step_us)
            if self._disorder_us:
                offsets = np.floor(offsets - self._disorder(first, count) * self._disorder_us)
            scattered: Index = self._start_us + offsets.astype(np.int64)
            return pl.Series(scattered), int(scattered.max())
        step_us = int(self._event_step_us)
        steps = self._steps
        if steps is None or len(steps) < count:
            self._steps = steps = pl.Series(np.arange(count, dtype=np.int64) * step_us)
        first_us = self._start_us + first * step_us
        return steps.slice(0, count) + first_us, first_us + (count - 1) * step_us

    def _values(self, first: int, count: int) -> pl.DataFrame:
        """Returns all columns except the event time."""
        if not self._pool_rows:
            return self._made(first, count)
        if self._pool is None:
            # A batch may reach beyond the end of the pool: the beginning is repeated after the end, so that a slice is enough.
            index: Index = np.arange(self._pool_rows + self._batch_rows_max, dtype=np.int64) % self._pool_rows
            self._pool = self._made(0, self._pool_rows)[index]
        return self._pool.slice(first % self._pool_rows, count)

    def _made(self, first: int, count: int) -> pl.DataFrame:
        return pl.DataFrame({name: column(first, count) for name, column in self._columns if column is not None})
