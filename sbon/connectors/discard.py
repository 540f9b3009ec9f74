"""Connector `discard` (sink): counts rows and drops them; on request it measures how long they took to get here.

Options
-------
latency_column : a column that holds an event time. `sbon operators` shows how far it is behind the wall clock when the sink takes a row
    (`sbon operators --json` shows every bucket): the time from creation to sink if rows carry when they were made, the time from the end
    of a window to its answer if the column is `window_end`. Differences between the clocks of both machines are included. Default: nothing
    is measured
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from sbon.digest import LEAST_MS, MOST_MS, PER_LOG, RecentDigest, bucket_of
from sbon.errors import ConnectorError
from sbon.operators.values import Values
from sbon.options import Options
from sbon.query.params.source import SinkParams
from sbon.schema import ColumnType, Schema

if TYPE_CHECKING:
    import polars as pl

_ONE_BY_ONE = 16
"""Number of rows up to which Python is faster than numpy."""


class Clock(Protocol):
    """Instants as seconds: monotonic, and since 1970."""

    def now(self) -> float: ...
    def wall(self) -> float: ...


class Timed(Protocol):
    """The part of a connector's context that the sink uses."""

    @property
    def host(self) -> Clock: ...


class DiscardSink:
    """Sink that drops everything; `rows` is the number of rows so far."""

    brief = True

    def __init__(self, params: SinkParams, schema: Schema, context: Timed) -> None:
        what = f"sink {params.name}"
        options = Options(what, params.connector, params.options)
        self._latency_column = options.optional("latency_column")
        options.finish()
        self.rows = 0
        self.dropped_rows = 0
        self.latency: RecentDigest | None = None
        self._host = context.host
        if self._latency_column is not None:
            times = [field.name for field in schema if field.type is ColumnType.TIME]
            if self._latency_column not in times:
                raise ConnectorError(
                    f"{what}: option latency_column = '{self._latency_column}', expected a column that holds a time: "
                    f"{', '.join(times) or 'the query has none'}",
                    option="latency_column",
                )
            self.latency = RecentDigest()
            self._place = [field.name for field in schema].index(self._latency_column)

    def write(self, frame: pl.DataFrame) -> None:
        """Counts the rows, and measures how old they are."""
        self.rows += frame.height
        if self.latency is not None and self._latency_column is not None:
            _note(self.latency, frame.get_column(self._latency_column), self._host.wall(), self._host.now())

    def write_values(self, values: Values) -> None:
        """Counts a few rows, and measures how old they are."""
        self.rows += values.rows
        if self.latency is not None:
            _note_few(self.latency, values.columns[self._place], self._host.wall(), self._host.now())

    def close(self) -> None:
        """Does nothing: no files or sockets are open."""


def _note(latency: RecentDigest, times: pl.Series, wall_s: float, now: float) -> None:
    """Counts each row of a batch in its bucket; rows without a time are left out."""
    # This code runs for each batch, a thousand times a second: Series.to_physical alone took as long as all other calls together.
    us = (times.drop_nulls() if times.null_count() else times).to_numpy().view("int64")
    if len(us) <= _ONE_BY_ONE:
        _note_few(latency, us.tolist(), wall_s, now)
        return
    import numpy as np

    ages_ms = (wall_s * 1e6 - us) / 1000
    np.minimum(np.maximum(ages_ms, LEAST_MS, out=ages_ms), MOST_MS, out=ages_ms)
    longest_ms = float(ages_ms.max())
    np.log(ages_ms, out=ages_ms)
    ages_ms *= PER_LOG
    numbers = np.floor(ages_ms, out=ages_ms).astype(np.int64)  # as `sbon.digest.bucket_of` does
    first = int(numbers.min())
    numbers -= first
    latency.add_buckets(now, enumerate(np.bincount(numbers).tolist(), first), longest_ms)


def _note_few(latency: RecentDigest, times_us: Sequence[int | None], wall_s: float, now: float) -> None:
    """Counts a few rows in their buckets, one by one; rows without a time are left out."""
    wall_us = wall_s * 1e6
    ages_ms = [min(max((wall_us - us) / 1000, LEAST_MS), MOST_MS) for us in times_us if us is not None]
    if ages_ms:
        latency.add_buckets(now, [(bucket_of(age_ms), 1) for age_ms in ages_ms], max(ages_ms))
