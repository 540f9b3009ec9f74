"""Connector `http` as a source that asks for rows: `url = 'https://...'`, with GET, every `interval`. Its options are in `http_source`.

The source holds one answer at a time, and asks again only after the query has taken its rows. A query that takes nothing holds up the
requests, and versions in between are never seen. A body without a readable row counts as a failure, and is requested again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import polars as pl

from sbon.connectors.http_bodies import FORMATS, BodyError, BodyReader, format_of
from sbon.connectors.interface import BATCH_ROWS, BATCH_ROWS_MAX, Polled
from sbon.connectors.row_batches import Rows, count, cut
from sbon.errors import ConnectorError
from sbon.formats.formatting import LineFormat
from sbon.misfits import Misfits
from sbon.operators.frames import frame_of_values
from sbon.operators.values import Values
from sbon.options import Options
from sbon.query.params.source import SourceParams
from sbon.schema import Schema
from sbon_agent.connectors.addresses import loop_of
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.http_client import HttpClient
from sbon_agent.connectors.http_fetch import Fetched, Fetcher, FetchError

RETRY_S_MIN = 1.0
RETRY_S_MAX = 60.0
"""Pause after a failure: doubles from the least to the most (or to `interval`, if that is longer), less up to a quarter at random."""
INTERVAL_S_MIN = 0.1
INTERVAL_S_MAX = 7 * 86_400.0
BODY_BYTES_MAX = 4 << 20


class PollSource:
    """Sends requests from a task on the event loop; `poll` decodes on an executor thread.

    The task sets `_fetched` only while it is None. `poll` resets it to None, and then wakes the task by `_settled`.
    """

    threaded = True

    def __init__(self, params: SourceParams, context: ConnectorContext, options: Options) -> None:
        what = f"source {params.name}"
        self._what = what
        self._loop = loop_of(what, params.connector, context)
        self._client = HttpClient(what, options, context.reach)
        self._format = options.choice("format", FORMATS, "") or None
        self._interval_s = options.duration_us("interval", 10_000_000) / 1e6
        if not INTERVAL_S_MIN <= self._interval_s <= INTERVAL_S_MAX:
            raise options.refuse("interval", options.text("interval", ""), "a span from 100 ms to 7 days")
        self._earlier = EarlierRows(params.columns) if options.choice("rows", ("all", "new"), "all") == "new" else None
        self._fetcher = Fetcher(self._client, options.integer("body_bytes_max", BODY_BYTES_MAX, 1, 256 << 20))
        self._batch_rows_max = options.integer("batch_rows_max", BATCH_ROWS, 1, 1_000_000)
        self.batch_rows = BATCH_ROWS_MAX
        self.misfits = Misfits()
        self._reader = BodyReader(params, options, self.misfits)
        options.finish()
        self.stalled = ""
        """Why the latest request gave no rows; empty if it gave some, or if nothing has changed."""
        self._jitter = random.Random(context.host.random_bytes(8))
        self._fetched: Fetched | None = None
        self._rows: Rows | None = None
        """Rows of the latest body that have not been given out yet."""
        self._failure = ""
        """Why no row of the latest body could be read."""
        self._settled = asyncio.Event()
        self._ready: Callable[[], None] = lambda: None
        self._error: ConnectorError | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def dropped_rows(self) -> int:
        """Rows that did not fit."""
        return self.misfits.rows

    @property
    def remark(self) -> str:
        """Tells of rows from the future."""
        return self._reader.remark

    def open(self) -> None:
        """Checks the address and reads the files."""
        self._client.open()

    def start(self, ready: Callable[[], None]) -> None:
        """Starts to send requests."""
        self._ready = ready
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Stops sending requests."""
        if self._task is not None:
            self._task.cancel()
        self._client.close()

    # ----------------------------------------------------------------------------------------------- on the event loop

    async def _run(self) -> None:
        """Sends requests for as long as the source runs. An unexpected error fails the source rather than end it in silence."""
        try:
            pause_s = RETRY_S_MIN
            while True:
                began = self._loop.time()
                asked_pause_s = await self._ask()
                if self.stalled:
                    await asyncio.sleep(max(pause_s * (1.0 - 0.25 * self._jitter.random()), asked_pause_s))
                    pause_s = min(max(RETRY_S_MAX, self._interval_s), 2.0 * pause_s)
                else:
                    pause_s = RETRY_S_MIN
                    await asyncio.sleep(began + self._interval_s - self._loop.time())
        except Exception as problem:
            self._error = ConnectorError(f"{self._what}: {type(problem).__name__}: {problem}")
            self._ready()
            raise

    async def _ask(self) -> float:
        """Sends one request, and waits until its rows have been given out. Returns the pause that the server asks for, in seconds."""
        try:
            fetched = await self._fetcher.fetch()
        except FetchError as failure:
            self.stalled = str(failure)
            return failure.retry_after_s
        if fetched is None:
            self.stalled = ""
            return 0.0
        self._settled.clear()
        self._fetched = fetched
        self._ready()
        await self._settled.wait()
        self._fetcher.unchanged_since(None if self._failure else fetched.validators)
        self.stalled = f"{self._client.url}: {self._failure}" if self._failure else ""
        return 0.0

    # --------------------------------------------------------------------------------------- on the thread of `poll`

    def poll(self, now: float, wall: float) -> Polled:
        """Returns rows of the latest answer; after the last of them the next request may be sent."""
        if self._error is not None:
            raise self._error
        if self._rows is None:
            if self._fetched is None:
                return self._reader.polled([], None)
            self._rows = self._read(self._fetched, wall)
        part, rest = cut(self._rows, max(1, min(self.batch_rows, self._batch_rows_max)))
        self._rows = rest if count(rest) else None
        if self._rows is not None:
            return self._reader.polled([part], now)
        self._fetched = None
        with contextlib.suppress(RuntimeError):  # the loop of a stopping agent may be closed already
            self._loop.call_soon_threadsafe(self._settled.set)
        return self._reader.polled([part], None)

    def _read(self, fetched: Fetched, wall: float) -> Rows:
        """Returns the rows of a body; if it cannot be read, sets `_failure` and returns none."""
        self._failure = ""
        try:
            body = self._reader.read(format_of(fetched.content_type, self._format), fetched.body, wall)
        except BodyError as error:
            self._failure = str(error)
            return self._reader.none
        return body.rows if self._earlier is None else self._earlier.new_ones(body.rows)


class EarlierRows:
    """Remembers the rows of one answer, to tell which rows of the next are new. Rows are compared as lines of NDJSON."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._lines = LineFormat("ndjson", schema)
        self._earlier: frozenset[bytes] = frozenset()

    def new_ones(self, rows: Rows) -> Rows:
        """Returns the rows that the previous answer did not have, and remembers `rows` for the next call."""
        frame = frame_of_values(rows, self._schema) if isinstance(rows, Values) else rows
        lines = self._lines.lines(frame).split(b"\n")[: frame.height]
        is_new = [line not in self._earlier for line in lines]
        self._earlier = frozenset(lines)
        return rows if all(is_new) else frame.filter(pl.Series(is_new, dtype=pl.Boolean()))
