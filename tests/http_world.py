"""HTTP clients and started sources, for tests of the `http` connector on real sockets."""

import asyncio
import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from sbon.schema import Schema
from sbon_agent.connectors.base import ConnectorContext
from tests.connector_world import DEADLINE_S, columns, context, source, until

SCHEMA = columns(ts="time", n="int")
_THREADS = ThreadPoolExecutor(64)
"""Has a thread for each client that waits at the same time."""
NDJSON = {"Content-Type": "application/x-ndjson"}


class Said(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    document: Any


class Taker:
    """Starts a source, polls it on a thread as the engine does while `open` is true, and keeps its rows."""

    def __init__(
        self,
        connector: str = "http",
        schema: Schema = SCHEMA,
        *,
        where: ConnectorContext | None = None,
        open_now: bool = True,
        **options: Any,
    ) -> None:
        where = where or context(loop=asyncio.get_running_loop())
        self.source: Any = source(connector, schema, where, time="ts" if schema[0].name == "ts" else None, **options)
        self.open = open_now
        self.rows: list[tuple[Any, ...]] = []
        self.watermark_us = 0
        self.failure: Exception | None = None
        self._polling = False
        self._wake = asyncio.Event()
        self._wake.set()
        self.source.start(self._wake.set)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def taken(self) -> list[int]:
        """Returns the last column of all rows, after the poll under way: an answer may leave before the poll that gave its rows returns."""
        await until(lambda: not self._polling)
        return [row[-1] for row in self.rows]

    def let(self, *, flow: bool) -> None:
        """Sets whether there is room downstream."""
        self.open = flow
        self._wake.set()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.source.stop()
        self.source.stop()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self.open:
                await self._poll()

    async def _poll(self) -> None:
        now = time.monotonic()
        self._polling = True
        try:
            await self._take(now)
        finally:
            self._polling = False

    async def _take(self, now: float) -> None:
        try:
            polled = await asyncio.to_thread(self.source.poll, now, time.time())
        except Exception as problem:
            self.failure = problem
            return
        self.watermark_us = polled.watermark_us
        if polled.values is not None:
            self.rows.extend(zip(*polled.values.columns, strict=True))
        if polled.frame is not None:
            self.rows.extend(polled.frame.rows())
        if polled.next_poll is not None:
            asyncio.get_running_loop().call_at(polled.next_poll, self._wake.set)


class Client:
    """The standard library's client, one connection for all requests."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=DEADLINE_S)

    async def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Said:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, self._ask, method, path, body, headers or {})

    async def post(self, body: Any, headers: dict[str, str] | None = None, path: str = "/in") -> Said:
        return await self.ask("POST", path, body, NDJSON if headers is None else headers)

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Said:
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        data = response.read()
        return Said(response.status, {key.lower(): value for key, value in response.getheaders()}, json.loads(data) if data else None)

    def close(self) -> None:
        self._connection.close()


def lines(*numbers: int) -> bytes:
    """Returns lines of NDJSON with these numbers."""
    return b"".join(json.dumps({"ts": f"2020-01-01T00:00:{n % 60:02}Z", "n": n}).encode() + b"\n" for n in numbers)


async def raw(address: tuple[str, int], data: bytes) -> tuple[int, bytes]:
    """Sends bytes unchanged and reads until the server closes; returns the last status and all bytes."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(data)
    got = await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    status = got.rpartition(b"HTTP/1.1 ")[2][:3]
    return int(status or 0), got
