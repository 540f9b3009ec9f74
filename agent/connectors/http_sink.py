"""Connector `http` as a sink: sends rows in batches by POST over HTTP/1.1, one batch at a time until it is accepted.

Statements of other agents may connect to the addresses of the setting `connectors.tcp.allow`, by default those of loopback.

Options
-------
url, token_file, headers_file, ca_file, timeout : see `http_client.HttpClient`
format : `ndjson` (default), `json` (an array of objects) or `csv` (with a header)
batch_rows_max : most rows of a batch, default 1000
batch_interval : longest time from a batch's first row until it is sent; default '1 s'
buffer_bytes_max : memory for waiting rows; when it is full, the query waits; default 4 MiB

A batch is sent with the same `Idempotency-Key` until an answer has a status from 200 to 299. Without an answer, or after status 408, 425,
429 or 500 and above, it is sent again after a pause that doubles up to 30 s, or after the answer's `Retry-After`. Any other status fails
the sink; the reason shows the beginning of the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import h11

from sbon.connectors.interface import Congested
from sbon.errors import ConnectorError
from sbon.formats.formatting import LineFormat
from sbon.misfits import cut
from sbon.operators.frames import frame_of_values
from sbon.operators.values import Values
from sbon.options import Options
from sbon.query.params.source import SinkParams
from sbon.schema import Schema
from sbon_agent.connectors.addresses import loop_of
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.http_client import AnswerTooLargeError, HttpClient

if TYPE_CHECKING:
    import polars as pl

RETRY_S_MIN = 0.2
RETRY_S_MAX = 30.0
"""Pause between attempts: doubles from the least to the most, less up to a quarter at random."""
FLUSH_ON_CLOSE_S = 5.0
"""Time that a closing sink has to deliver its waiting rows."""
ANSWER_BYTES_MAX = 64 * 1024
_AGAIN = (408, 425, 429)
_TYPES = {"ndjson": "application/x-ndjson", "json": "application/json", "csv": "text/csv; charset=utf-8"}


class _Piece(NamedTuple):
    """Encoded rows that wait."""

    data: bytes
    rows: int


class _HttpSinkOptions(NamedTuple):
    client: HttpClient
    format: str
    batch_rows_max: int
    batch_interval_s: float
    buffer_bytes_max: int


def check_http_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> None:
    """Refuses options as `HttpSink` would, without connecting."""
    _read_options(params, context)


def _read_options(params: SinkParams, context: ConnectorContext) -> _HttpSinkOptions:
    what = f"sink {params.name}"
    options = Options(what, params.connector, params.options)
    found = _HttpSinkOptions(
        HttpClient(what, options, context.reach),
        options.choice("format", tuple(_TYPES), "ndjson"),
        options.integer("batch_rows_max", 1000, 1, 1_000_000),
        options.duration_us("batch_interval", 1_000_000) / 1e6,
        options.integer("buffer_bytes_max", 4 << 20, 1024, 1 << 30),
    )
    options.finish()
    return found


class HttpSink:
    """Queues rows and sends them from a task on the event loop. `write` runs on an executor thread; `_lock` guards the shared
    attributes."""

    def __init__(self, params: SinkParams, schema: Schema, context: ConnectorContext) -> None:
        self._what = f"sink {params.name}"
        self._options = _read_options(params, context)
        self._schema = schema
        self._lines = LineFormat("csv" if self._options.format == "csv" else "ndjson", schema)
        self._loop = loop_of(self._what, params.connector, context)
        self._key = context.host.random_bytes(16).hex()
        self._batches = 0
        self._jitter = random.Random(self._key)
        self.dropped_rows = 0
        self._lock = threading.Lock()
        self._held: deque[_Piece] = deque()
        self._held_bytes = self._held_rows = 0
        """Bytes and rows that wait, including the batch that is being sent."""
        self._error: ConnectorError | None = None
        self._problem = ""
        """Why the latest attempt failed, while the batch waits for the next one."""
        self._asked_pause_s = 0.0
        """Pause that the latest answer asked for."""
        self._closing = self._hurry = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Checks the address and reads the files, then starts to send."""
        self._options.client.open()
        self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if not self._closing or self._held_rows:
            self._task = self._loop.create_task(self._run())

    # ------------------------------------------------------------------------------------------ on an executor thread

    def write(self, frame: pl.DataFrame) -> None:
        """Queues the rows, or raises Congested; a frame larger than the buffer is queued when the buffer is empty."""
        self._expect_room()
        most = self._options.batch_rows_max
        parts = [frame.slice(first, most) for first in range(0, frame.height, most)]
        self._queue([_Piece(self._lines.lines(part), part.height) for part in parts])

    def write_values(self, values: Values) -> None:
        """Does the same for a few rows."""
        if values.rows > self._options.batch_rows_max:
            self.write(frame_of_values(values, self._schema))
            return
        self._expect_room()
        self._queue([_Piece(self._lines.lines_of_values(values), values.rows)])

    def finish(self) -> None:
        """Returns if every row has been accepted.

        Raises
        ------
        Congested
            Some rows have not been accepted yet; call again.
        """
        if self._error is not None:
            raise self._error
        if self._held_rows:
            self._hurry = True
            self._loop.call_soon_threadsafe(self._changed.set)
            raise Congested(self._waiting(), 0.1)

    def close(self) -> None:
        """Delivers waiting rows in the background, for `FLUSH_ON_CLOSE_S` at most."""
        if not self._closing:
            self._closing = self._hurry = True
            with contextlib.suppress(RuntimeError):  # the loop of a stopping agent may be closed already
                self._loop.call_soon_threadsafe(self._finish)

    def _expect_room(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closing:
            raise ConnectorError(f"{self._what}: is closed")
        if self._held_bytes >= self._options.buffer_bytes_max:
            raise Congested(self._waiting())

    def _queue(self, pieces: list[_Piece]) -> None:
        size = sum(len(piece.data) for piece in pieces)
        with self._lock:
            if self._held_bytes and self._held_bytes + size > self._options.buffer_bytes_max:
                raise Congested(self._waiting())
            self._held.extend(pieces)
            self._held_bytes += size
            self._held_rows += sum(piece.rows for piece in pieces)
        self._loop.call_soon_threadsafe(self._changed.set)

    def _waiting(self) -> str:
        return f"{self._what}: {self._held_rows} rows wait, {self._problem or f'{self._options.client.url} has not answered yet'}"

    # ----------------------------------------------------------------------------------------------- on the event loop

    def _finish(self) -> None:
        self._changed.set()
        if self._task is None or not self._held_rows or self._error is not None:
            self._give_up()
        else:
            self._loop.call_later(FLUSH_ON_CLOSE_S, self._give_up)

    def _give_up(self) -> None:
        with self._lock:
            self.dropped_rows += self._held_rows
            self._held.clear()
            self._held_bytes = self._held_rows = 0
        if self._task is not None:
            self._task.cancel()
        self._options.client.close()

    async def _run(self) -> None:
        try:
            while not (self._closing and not self._held_rows):
                pieces = await self._next()
                if pieces:
                    await self._deliver(pieces)
        except ConnectorError as error:
            self._error = error
        self._options.client.close()

    async def _next(self) -> list[_Piece]:
        """Waits for a batch and removes it from the queue; its rows and bytes count as held until they are delivered."""
        while not self._held and not self._closing:
            self._changed.clear()
            await self._changed.wait()
        most = self._options.batch_rows_max
        ends_at = self._loop.time() + self._options.batch_interval_s
        while not self._hurry and sum(piece.rows for piece in self._held) < most and self._loop.time() < ends_at:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), ends_at - self._loop.time())
        pieces: list[_Piece] = []
        rows = 0
        with self._lock:
            while self._held and rows + self._held[0].rows <= most:
                pieces.append(self._held.popleft())
                rows += pieces[-1].rows
        return pieces

    async def _deliver(self, pieces: list[_Piece]) -> None:
        """Sends a batch until it is accepted.

        Raises
        ------
        ConnectorError
            The batch has been refused.
        """
        self._batches += 1
        key = f"{self._key}-{self._batches}"
        body = self._body(b"".join(piece.data for piece in pieces))
        pause_s = RETRY_S_MIN
        while not await self._sent(body, key):
            await asyncio.sleep(max(pause_s * (1.0 - 0.25 * self._jitter.random()), self._asked_pause_s))
            pause_s = min(RETRY_S_MAX, 2.0 * pause_s)
        self._problem = ""
        with self._lock:
            self._held_bytes -= sum(len(piece.data) for piece in pieces)
            self._held_rows -= sum(piece.rows for piece in pieces)

    async def _sent(self, body: bytes, key: str) -> bool:
        """Sends a batch once. Returns whether it was accepted; `_problem` says why not."""
        self._asked_pause_s = 0.0
        url = self._options.client.url
        headers = (("Content-Type", _TYPES[self._options.format]), ("Idempotency-Key", key))
        try:
            response = await self._options.client.ask("POST", url, headers, body, ANSWER_BYTES_MAX)
        except ssl.SSLCertVerificationError as error:
            raise ConnectorError(f"{self._what}: {url}: the certificate is not trusted: {error.verify_message}") from error
        except TimeoutError:
            self._problem = f"{url} has not answered within {self._options.client.timeout_s:g} s"
            return False
        except (OSError, h11.RemoteProtocolError, AnswerTooLargeError) as error:
            self._problem = f"{url}: {error}"
            return False
        if 200 <= response.status < 300:
            return True
        if response.status in _AGAIN or response.status >= 500:
            self._problem = f"{url} has answered {response.shown}"
            self._asked_pause_s = response.retry_after_s
            return False
        location = cut(response.headers.get("location", ""), 200) if 300 <= response.status < 400 else ""
        where = f", write url = '{location}'" if location else ""
        raise ConnectorError(f"{self._what}: {url} has answered {response.shown}{where}")

    def _body(self, data: bytes) -> bytes:
        if self._options.format == "json":
            return b"[" + data.removesuffix(b"\n").replace(b"\n", b",") + b"]"
        return self._lines.header + data
