"""The `websocket` connector on real sockets. The clients here make and read frames by hand, after RFC 6455, section 5.2."""

import asyncio
import base64
import hashlib
import json
import os
import random
import socket
import ssl
import struct
from typing import Any

import pytest

from sbon.connectors.interface import Congested
from sbon.errors import ConnectorError
from sbon_agent.connectors import push_clients
from tests.connector_world import context, sink, until
from tests.http_servers import certificate
from tests.push_world import SCHEMA, Reader, listening, values, write_many

pytest.importorskip("wsproto", reason="the library wsproto is not installed: pip install -e .")
KEY = base64.b64encode(bytes(range(16))).decode()
UPGRADE = (
    "Host: localhost",
    "Upgrade: websocket",
    "Connection: keep-alive, Upgrade",
    "Sec-WebSocket-Version: 13",
    f"Sec-WebSocket-Key: {KEY}",
)
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def frame(opcode: int, payload: bytes = b"", *, last: bool = True, mask: bool = True, length: bytes = b"") -> bytes:
    """Returns a frame of a client."""
    size = len(payload)
    if not length and size < 126:
        length = bytes([size])
    elif not length:
        length = b"\x7e" + struct.pack("!H", size) if size < 65_536 else b"\x7f" + struct.pack("!Q", size)
    head = bytes([opcode | (0x80 if last else 0), length[0] | (0x80 if mask else 0)]) + length[1:]
    if not mask:
        return head + payload
    key = os.urandom(4)
    return head + key + bytes(octet ^ key[place % 4] for place, octet in enumerate(payload))


class SocketReader(Reader):
    """A client that has requested WebSocket."""

    def __init__(
        self, address: tuple[str, int], path: str = "/rows", *headers: str, behind: bytes = b"", buffer_bytes: int | None = None
    ) -> None:
        request = "\r\n".join([f"GET {path} HTTP/1.1", *(headers or UPGRADE), "", ""]).encode()
        super().__init__(address, request + behind, buffer_bytes=buffer_bytes)

    @property
    def status(self) -> int:
        head = self.read().partition(b"\r\n\r\n")
        return int(head[0].split()[1]) if head[1] else 0

    @property
    def frames(self) -> list[tuple[int, bytes]]:
        """Returns opcode and payload of complete frames; checks that none is masked or fragmented."""
        data, place, found = self.read().partition(b"\r\n\r\n")[2], 0, []
        while len(data) >= place + 2:
            assert data[place] & 0xF0 == 0x80, "a server's frame must be complete and have no reserved bits"
            assert data[place + 1] < 128, "a server's frame must have no mask"
            begin = place + 2 + {126: 2, 127: 8}.get(data[place + 1], 0)
            size = int.from_bytes(data[place + 2 : begin], "big") if begin > place + 2 else data[place + 1]
            if len(data) < begin + size:
                break
            found.append((data[place] & 15, data[begin : begin + size]))
            place = begin + size
        return found

    @property
    def rows(self) -> list[int]:
        return [json.loads(payload)["n"] for opcode, payload in self.frames if opcode == TEXT]

    @property
    def closed_with(self) -> tuple[int, str] | None:
        """Returns code and reason of the closing frame."""
        for opcode, payload in self.frames:
            if opcode == CLOSE:
                return int.from_bytes(payload[:2], "big"), payload[2:].decode()
        return None

    async def begun(self) -> "SocketReader":
        await until(lambda: self.status)
        assert self.status == 101, self.got
        return self


async def test_every_client_gets_every_row_in_order_as_a_text_message():
    out, address = await listening("websocket")
    clients = [await SocketReader(address).begun() for _ in range(10)]
    accepted = base64.b64encode(hashlib.sha1(KEY.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    assert b": " + accepted + b"\r\n" in clients[0].got
    out.write_values(values(1, 2, text='a "b"\n\u2028é'))
    write_many(out, range(3, 1000), "x" * 200)
    out.write_values(values(1000, text="y" * 70_000))
    for client in clients:
        await until(lambda: client.read().count(b'"n":') == 1000)  # noqa: B023 - asked at once
        await until(lambda: client.rows == list(range(1, 1001)))  # noqa: B023 - asked at once
    assert json.loads(clients[0].frames[0][1]) == {"n": 1, "t": 'a "b"\n\u2028é'}
    kept = await SocketReader(address, "/rows?kept=true").begun()
    await until(lambda: len(kept.rows) == 1000)
    out.close()
    for client in [*clients, kept]:
        await until(lambda: client.closed_with)  # noqa: B023 - asked at once
        assert client.closed_with == (1000, "the query has ended, or the agent stops")
        client.socket.send(frame(CLOSE, struct.pack("!H", 1000)))
        await until(lambda: client.read() and client.ended)  # noqa: B023 - asked at once
        client.close()
    await until(lambda: not out._server.connections)
    assert not out.clients


async def test_pings_are_answered_and_the_client_may_close():
    out, address = await listening("websocket")
    client = await SocketReader(address, behind=frame(PING, b"early")).begun()
    await until(lambda: client.frames == [(PONG, b"early")])
    client.socket.send(frame(PING, b"a" * 125) + frame(TEXT, b"hello") + frame(BINARY, b"\0", last=False) + frame(PING) + frame(0, b"\1"))
    await until(lambda: client.frames == [(PONG, b"early"), (PONG, b"a" * 125), (PONG, b"")])
    client.socket.send(frame(CLOSE, struct.pack("!H", 1001) + b"bye"))
    await until(lambda: client.read() and client.ended)
    assert client.closed_with == (1001, "bye")
    await until(lambda: not out._server.connections)
    client.close()
    silent = await SocketReader(address).begun()
    silent.socket.send(frame(CLOSE))
    await until(lambda: silent.read() and silent.ended)
    assert silent.frames == [(CLOSE, b"")]
    silent.close()
    out.close()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (frame(TEXT, b"x", mask=False), 1002),
        (frame(PING, b"x", last=False), 1002),
        (frame(CLOSE, b"", last=False), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(3), 1002),
        (frame(11), 1002),
        (bytes([frame(TEXT)[0] | 0x40]) + frame(TEXT)[1:], 1002),
        (frame(0, b"x"), 1002),
        (frame(TEXT, b"x", last=False) + frame(TEXT, b"y"), 1002),
        (frame(TEXT, b"\xff\xfe"), 1007),
        (frame(CLOSE, b"x"), 1002),
        (frame(CLOSE, struct.pack("!H", 999)), 1002),
        (frame(CLOSE, struct.pack("!H", 1000) + b"\xff"), 1007),
        (frame(TEXT, length=b"\x7e\x00\x01") + b"x", 1002),
        (frame(TEXT, length=b"\x7f" + b"\xff" * 8), 1002),
        (frame(TEXT, b"x" * 65_537), 1008),
        (frame(BINARY, b"x" * 60_000, last=False) + frame(0, b"x" * 60_000, last=False), 1008),
        (frame(BINARY, length=b"\x7f" + struct.pack("!Q", 1 << 62)) + b"x" * 100_000, 1008),
    ],
    ids=[
        "unmasked",
        "ping-in-parts",
        "close-in-parts",
        "large-ping",
        "opcode-3",
        "opcode-11",
        "reserved-bit",
        "part-of-nothing",
        "text-in-text",
        "not-utf-8",
        "short-close",
        "close-999",
        "close-not-utf-8",
        "long-form",
        "negative-length",
        "talks",
        "talks-in-parts",
        "endless-message",
    ],
)
async def test_clients_that_do_not_keep_to_the_protocol_are_closed_with_a_code_and_others_go_on(said, code):
    out, address = await listening("websocket")
    good = await SocketReader(address).begun()
    bad = await SocketReader(address).begun()
    bad.socket.setblocking(True)
    bad.socket.sendall(said)
    bad.socket.setblocking(False)
    await until(lambda: bad.closed_with)
    assert bad.closed_with[0] == code
    bad.close()
    await until(lambda: len(out.clients) == 1)
    out.write_values(values(7))
    await until(lambda: good.rows == [7])
    good.close()
    out.close()


async def test_a_client_that_never_reads_is_closed_and_holds_up_nobody():
    out, address = await listening("websocket", buffer_bytes_max=300_000)
    slow = await SocketReader(address, buffer_bytes=4096).begun()
    quick = await SocketReader(address).begun()
    count = 0
    while not any(client._ending for client in out.clients):
        count += 100
        try:
            write_many(out, range(count - 99, count + 1), "x" * 2000)
        except Congested:
            count -= 100
        await until(lambda: quick.read().count(b'"n":') == count)  # noqa: B023 - asked at once
        assert out._feed.size_bytes <= 300_000
        assert count < 20_000
    await until(lambda: slow.closed_with)
    assert slow.closed_with == (1008, push_clients.LATE)
    assert slow.rows == list(range(1, len(slow.rows) + 1))
    slow.socket.send(frame(CLOSE, struct.pack("!H", 1008)))
    await until(lambda: slow.read() and slow.ended)
    assert quick.rows == list(range(1, count + 1))
    slow.close()
    quick.close()
    out.close()


async def test_a_flood_of_pings_that_nobody_reads_the_answers_of_is_read_no_more():
    """Each message of a client is answered; a client that does not read the answers must not fill the agent's memory."""
    out, address = await listening("websocket")
    client = await SocketReader(address, buffer_bytes=4096).begun()
    (one,) = out.clients
    one._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    flood, sent, idle = frame(PING, b"x" * 125) * 200, 0, 0
    while idle < 50 and sent < 200 << 20:
        try:
            sent += client.socket.send(flood)
            idle = 0
        except BlockingIOError:
            idle += 1
        await asyncio.sleep(0.001)
    assert idle == 50, "the agent went on reading"
    assert one._transport.get_write_buffer_size() < 1 << 20
    client.close()
    await until(lambda: not out.clients)
    out.close()


async def test_a_client_that_does_not_answer_pings_is_given_up(monkeypatch):
    monkeypatch.setattr(push_clients, "END_TIMEOUT_S", 0.1)
    out, address = await listening("websocket", heartbeat="100 ms")
    gone, there = await SocketReader(address).begun(), await SocketReader(address).begun()
    answered = 0

    def over() -> bool:
        nonlocal answered
        pings = [payload for opcode, payload in there.frames if opcode == PING]
        for payload in pings[answered:]:
            there.socket.send(frame(PONG, payload))
        answered = len(pings)
        return gone.read() != b"" and gone.ended and answered >= 5

    await until(over)
    assert gone.closed_with == (1008, push_clients.SILENT)
    assert there.closed_with is None
    assert len(out.clients) == 1
    gone.close()
    there.close()
    out.close()


def without(name: str) -> tuple[str, ...]:
    return tuple(line for line in UPGRADE if not line.startswith(name))


@pytest.mark.parametrize(
    ("headers", "status", "told"),
    [
        (without("Upgrade"), 426, "the request does not ask for WebSocket"),
        (without("Connection"), 426, "the request does not ask for WebSocket"),
        ((*without("Sec-WebSocket-Version"), "Sec-WebSocket-Version: 8"), 426, "expected Upgrade: websocket and Sec-WebSocket-Version: 13"),
        (without("Sec-WebSocket-Key"), 400, "Sec-WebSocket-Key is no key of 16 bytes"),
        ((*without("Sec-WebSocket-Key"), "Sec-WebSocket-Key: c2hvcnQ="), 400, "Sec-WebSocket-Key is no key of 16 bytes"),
        ((*without("Sec-WebSocket-Key"), "Sec-WebSocket-Key: ***"), 400, "Sec-WebSocket-Key is no key of 16 bytes"),
        ((*UPGRADE, "Origin: https://evil.example"), 403, "a web page (https://evil.example)"),
        ((*without("Host"), "Host: evil.example"), 403, "the Host header has a name"),
    ],
    ids=["upgrade", "connection", "version", "no-key", "short-key", "odd-key", "origin", "rebinding"],
)
async def test_what_is_no_request_for_a_websocket_is_refused_in_one_line(headers, status, told):
    out, address = await listening("websocket")
    client = SocketReader(address, "/rows", *headers)
    await until(lambda: b"}" in client.read())
    assert client.status == status
    assert told in client.got.decode()
    if status == 426:
        assert b"sec-websocket-version: 13" in client.got.lower()
    assert not out.clients
    client.close()
    out.close()


async def test_random_bytes_after_the_handshake_leave_nothing():
    out, address = await listening("websocket")
    rng = random.Random(0)
    for _ in range(60):
        client = SocketReader(address, behind=rng.randbytes(rng.randrange(200)))
        await until(lambda: client.status)  # noqa: B023 - asked at once
        client.close()
    await until(lambda: not out._server.connections and not out.clients)
    assert out.dropped_rows == 0
    out.close()


async def test_messages_come_over_tls(tmp_path):
    certificate(tmp_path)
    files: dict[str, Any] = {"tls_certificate": "ca.pem", "tls_key": "key.pem"}
    out, address = await listening("websocket", context(tmp_path, loop=asyncio.get_running_loop()), **files)
    tls = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    reader, writer = await asyncio.open_connection(*address, ssl=tls, server_hostname="localhost", limit=64 << 20)
    writer.write("\r\n".join(["GET /rows HTTP/1.1", *UPGRADE, "", ""]).encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    write_many(out, range(3000), "x" * 1000)
    assert (await asyncio.wait_for(reader.readuntil(b'{"n":2999,'), 60)).count(b'"n":') == 3000
    writer.write(frame(CLOSE))
    await asyncio.wait_for(reader.read(), 60)
    writer.close()
    out.close()


async def test_options_are_those_of_the_sink_for_events():
    with pytest.raises(ConnectorError, match="option url is unknown to connector 'websocket'"):
        sink("websocket", SCHEMA, context(loop=asyncio.get_running_loop()), listen="127.0.0.1:0", url="x")
