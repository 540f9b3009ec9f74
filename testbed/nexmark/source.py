"""Connector `nexmark` (source): one kind of the events of an auction house, as fast as the overlay takes them.

A pool of events is generated when the source is created, and repeated with shifted ids and times, so that measurements do not include the
generation of texts.

Options
-------
kind : `person`, `auction` or `bid`
events : the sources of the three kinds together stand for this many events; default: no end
seed : whole number, default 0
events_per_second : events per second of event time, all kinds together; default 100000
pool_events : events of the pool, a multiple of 50; default 1000000
batch_rows_max : largest number of rows in a batch; default: as many as the engine asks for

The columns are those of `sbon_testbed.nexmark.events.SCHEMAS`, all or some.
"""

from collections.abc import Callable

import polars as pl

from sbon.connectors.watermark import Watermark
from sbon.errors import ConnectorError
from sbon.options import Options
from sbon.query.params.source import SourceParams
from sbon_agent.connectors import Connector, ConnectorContext, Polled
from sbon_testbed.nexmark.events import CYCLE, KINDS, SCHEMAS, START_US, Events
from sbon_testbed.nexmark.stream import POOL_EVENTS, Stream

BATCH_ROWS = 65_536
"""Rows of a batch until the engine asks for another number."""
EVENTS_MAX = 10**12


class NexmarkSource:
    """Emits the rows of one kind without pause."""

    dropped_rows = 0
    threaded = True

    def __init__(self, params: SourceParams, context: ConnectorContext) -> None:
        what = f"source {params.name}"
        options = Options(what, params.connector, params.options)
        kind = options.choice("kind", KINDS, params.name)
        events = options.integer("events", EVENTS_MAX, 0, EVENTS_MAX)
        seed = options.integer("seed", 0, 0, 2**63 - 1)
        per_s = options.integer("events_per_second", 100_000, 1, 10**7)
        pool = options.integer("pool_events", POOL_EVENTS, CYCLE, 10**8)
        self._batch_rows_max = options.integer("batch_rows_max", 10**7, 1, 10**7)
        self.batch_rows = BATCH_ROWS
        options.finish()
        if kind not in KINDS:
            raise ConnectorError(f"{what}: the source's name is no kind of event: set the option kind, such as kind = 'bid'")
        if pool % CYCLE:
            raise ConnectorError(f"{what}: option pool_events = {pool}, expected a multiple of {CYCLE}")
        unknown = [column.name for column in params.columns if column not in SCHEMAS[kind]]
        if unknown:
            offered = ", ".join(f"{column.name} {column.type.value}" for column in SCHEMAS[kind])
            raise ConnectorError(f"{what}: no {kind} has this column {unknown[0]}, expected some of {offered}")
        self._stream = Stream(kind, Events(seed, per_s), pool, tuple(column.name for column in params.columns))
        self._total = self._stream.total(events)
        self._time_column = params.time_column
        self._watermark = Watermark(params)
        self._watermark.seen(START_US)
        self._sent = 0

    def start(self, ready: Callable[[], None]) -> None:
        """Does nothing, as nothing needs to be opened."""

    def poll(self, now: float, wall: float) -> Polled:
        """Returns the next batch."""
        count = min(self.batch_rows, self._batch_rows_max, self._total - self._sent)
        frame: pl.DataFrame | None = None
        if count > 0:
            frame = self._stream.rows(self._sent, count)
            self._sent += frame.height
            self._watermark.seen(self._newest_us(frame))
        if self._sent >= self._total:
            return Polled(frame, self._watermark.end(), None, True)
        return Polled(frame, self._watermark.us, now)

    def _newest_us(self, frame: pl.DataFrame) -> int | None:
        """Returns the newest event time. It is not always the last: ends of auctions do not rise from row to row."""
        if self._time_column is None:
            return None
        newest = frame[self._time_column].to_physical().max()
        return newest if isinstance(newest, int) else None

    def stop(self) -> None:
        """Does nothing, as no resource is held."""


CONNECTOR = Connector(source=NexmarkSource)
