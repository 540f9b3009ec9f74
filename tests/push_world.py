"""Sinks that clients listen to, and clients of the standard library's sockets, for tests of `sse` and `websocket`."""

import asyncio
import contextlib
import json
import socket
from typing import Any

from sbon.operators.frames import frame_of_values
from sbon.operators.values import Values
from sbon_agent.connectors.base import ConnectorContext
from tests.connector_world import columns, context, sink, until

SCHEMA = columns(n="int", t="text")


async def listening(kind: str, where: ConnectorContext | None = None, **options: Any) -> tuple[Any, tuple[str, int]]:
    """Returns a listening sink and its address."""
    out: Any = sink(kind, SCHEMA, where or context(loop=asyncio.get_running_loop()), **{"listen": "127.0.0.1:0", "path": "/rows"} | options)
    return out, await until(lambda: out.address)


def values(*numbers: int, text: str | None = None) -> Values:
    return Values(len(numbers), ([*numbers], [text] * len(numbers)))


def write_many(out: Any, numbers: range, text: str) -> None:
    out.write(frame_of_values(values(*numbers, text=text), SCHEMA))


class Reader:
    """A client that sends a request and keeps the bytes of the answer."""

    def __init__(self, address: tuple[str, int], request: bytes, *, buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.connect(address)
        self.socket.sendall(request)
        self.socket.setblocking(False)
        self.got = b""
        self.ended = False

    def read(self) -> bytes:
        """Returns all bytes that have come so far."""
        with contextlib.suppress(BlockingIOError):
            while not self.ended:
                try:
                    piece = self.socket.recv(1 << 20)
                except ConnectionError:
                    piece = b""
                self.ended = not piece
                self.got += piece
        return self.got

    def close(self) -> None:
        self.socket.close()


class EventReader(Reader):
    """A client of server-sent events."""

    def __init__(self, address: tuple[str, int], path: str = "/rows", *headers: str, buffer_bytes: int | None = None) -> None:
        lines = [f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]
        super().__init__(address, "\r\n".join(lines).encode(), buffer_bytes=buffer_bytes)

    @property
    def status(self) -> int:
        """Returns the status of the answer; 0 before it has come."""
        head = self.read().partition(b"\r\n\r\n")
        return int(head[0].split()[1]) if head[1] else 0

    @property
    def headers(self) -> dict[str, str]:
        lines = self.read().partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @property
    def body(self) -> bytes:
        """Returns the body of the answer, without the framing of its chunks."""
        rest, body = self.read().partition(b"\r\n\r\n")[2], b""
        while b"\r\n" in rest:
            size, _, rest = rest.partition(b"\r\n")
            if not size or int(size, 16) > len(rest) - 2:
                break
            body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        return body

    @property
    def events(self) -> list[dict[str, str]]:
        """Returns the fields of each event by the rules of the standard, without comments."""
        found = []
        for block in self.body.decode().split("\n\n")[:-1]:
            fields = [line.split(": ", 1) for line in block.split("\n") if not line.startswith(":")]
            if fields:
                found.append(dict(fields))
        return found

    @property
    def count(self) -> int:
        """Returns an upper bound of the number of events that have come, without parsing them."""
        return self.read().count(b"data: ")

    @property
    def rows(self) -> list[int]:
        return [json.loads(event["data"])["n"] for event in self.events if "event" not in event]

    async def begun(self) -> "EventReader":
        """Waits until the answer has begun; the client gets all rows that are written later."""
        await until(lambda: self.status)
        assert self.status == 200, self.got
        return self
