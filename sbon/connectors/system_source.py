"""Connector `system` (source): the agent's own measurements, as `sys.probes`, `sys.load` and `sys.links`. No options.

The columns are in `sbon.query.system`. The watermark follows the wall clock, so that a quiet stream holds up no window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import polars as pl

from sbon.connectors.interface import BATCH_ROWS_MAX, Polled
from sbon.connectors.system_streams import SystemStreams
from sbon.connectors.watermark import Watermark
from sbon.errors import ConnectorError
from sbon.operators.frames import polars_schema, polars_type
from sbon.options import Options
from sbon.query.params.source import SourceParams
from sbon.query.system import SYSTEM_STREAMS
from sbon.schema import ColumnType

WATERMARK_INTERVAL_S = 1.0
"""Seconds between moves of a quiet stream's watermark. Shorter: windows over quiet streams close sooner, more messages."""


class Measured(Protocol):
    """The part of a connector's context that the source uses."""

    @property
    def system(self) -> SystemStreams: ...


class SystemSource:
    """Source that takes rows out of its own queue of `SystemStreams`."""

    def __init__(self, params: SourceParams, context: Measured) -> None:
        definition = SYSTEM_STREAMS.get(params.name)
        if definition is None:
            raise ConnectorError(f"source {params.name}: there is no such system stream, expected one of {', '.join(SYSTEM_STREAMS)}")
        Options(f"source {params.name}", params.connector, params.options).finish()
        self._row = {field.name: polars_type(field.type) for field in definition.columns}
        wanted = polars_schema(params.columns)
        unknown = [name for name, dtype in wanted.items() if self._row.get(name) != dtype]
        if unknown:
            raise ConnectorError(f"source {params.name}: no column {unknown[0]}, expected {', '.join(self._row)}")
        self._times = [name for name, dtype in self._row.items() if dtype == polars_type(ColumnType.TIME)]
        self._wanted = tuple(wanted)
        self._params = params
        self._streams = context.system
        self._subscription = context.system.subscribe(params.name)
        self._watermark = Watermark(params)

    @property
    def dropped_rows(self) -> int:
        """Returns the number of rows for which the queue had no room."""
        return self._subscription.dropped_rows

    def start(self, ready: Callable[[], None]) -> None:
        """Registers `ready` with the subscription."""
        self._subscription.ready = ready

    def poll(self, now: float, wall: float) -> Polled:
        """Returns the measurements since the last poll."""
        rows = self._subscription.take(BATCH_ROWS_MAX)
        frame = None
        newest = None
        if rows:
            try:
                frame, newest = self._frame(rows)
            except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
                raise ConnectorError(f"source {self._params.name}: a measurement does not fit its columns: {error}") from error
        if not len(self._subscription):
            newest = max(newest or 0, int(wall * 1_000_000))
        watermark = self._watermark.seen(newest)
        return Polled(frame, watermark, now if len(self._subscription) else now + WATERMARK_INTERVAL_S)

    def _frame(self, rows: list[tuple[Any, ...]]) -> tuple[pl.DataFrame, int | None]:
        """Returns a frame of rows, and their newest event time.

        The frame is built column by column, because most batches have one row, for which a polars query would cost more.
        """
        columns = dict(zip(self._row, zip(*rows, strict=True), strict=True))
        series = []
        for name in self._wanted:
            values = pl.Series(name, columns[name], dtype=pl.Int64() if name in self._times else self._row[name])
            series.append(values.cast(pl.Datetime("us")) if name in self._times else values)
        time_column = self._params.time_column
        return pl.DataFrame(series), max(columns[time_column]) if time_column is not None else None

    def stop(self) -> None:
        """Ends the subscription."""
        self._subscription.close()
