"""The connecting `tcp` connector with TLS, against real TLS servers: certificates of servers and of clients, names, changed files."""

import asyncio
import json
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sbon.errors import ConnectorError
from sbon.operators.values import Values
from tests.connector_world import columns, context, sink, source, until
from tests.http_servers import certificate

SCHEMA = columns(n="int")


class Server:
    """A TLS server on loopback that keeps the lines of its peers, and sends each peer some lines."""

    def __init__(self, tls: ssl.SSLContext, gives: bytes = b"") -> None:
        self.tls = tls
        self.gives = gives
        self.lines: list[int] = []
        self.peers = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def start(self) -> "Server":
        self.server = await asyncio.start_server(self._peer, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def _peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peers += 1
        self.writers.append(writer)
        writer.write(self.gives)
        try:
            while line := await reader.readline():
                self.lines.append(json.loads(line)["n"])
        except OSError:
            pass

    def stop(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.close()


@pytest.fixture
async def serve() -> AsyncIterator[Any]:
    made: list[Server] = []

    async def start(tls: ssl.SSLContext, gives: bytes = b"") -> Server:
        made.append(await Server(tls, gives).start())
        return made[-1]

    yield start
    for server in made:
        server.stop()


def own(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """Makes a certificate for localhost in a separate folder; returns a context with it, and the folder."""
    (folder / name).mkdir()
    return certificate(folder / name), folder / name


def connecting(make: Any, kind: str, folder: Path, server: Server, **options: Any) -> Any:
    where = context(folder, loop=asyncio.get_running_loop())
    return make(kind, SCHEMA, where, host="localhost", port=server.port, mode="connect", tls="true", **options)


def reading(folder: Path, server: Server, **options: Any) -> Any:
    made = connecting(source, "tcp", folder, server, **options)
    made.start(lambda: None)
    return made


async def test_a_source_reads_from_a_server_whose_certificate_is_trusted(tmp_path, serve):
    tls, _ = own(tmp_path, "server")
    server = await serve(tls, b'{"n": 1}\n{"n": 2}\n')
    made = reading(tmp_path, server, ca_file="server/ca.pem")
    await until(lambda: made.due_rows(0.0) == 2)
    assert list(made.poll(0.0, 0.0).values.columns[0]) == [1, 2]
    assert made.remark == ""
    made.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "self-signed certificate"),
        ({"ca_file": "other/ca.pem"}, "self-signed certificate"),
        ({"ca_file": "server/ca.pem", "server_name": "elsewhere"}, "hostname mismatch"),
    ],
)
async def test_a_source_takes_nothing_from_a_server_that_is_not_trusted_and_says_why(options, said, tmp_path, serve):
    tls, _ = own(tmp_path, "server")
    own(tmp_path, "other")
    server = await serve(tls, b'{"n": 1}\n')
    made = reading(tmp_path, server, **options)
    await until(lambda: made.remark)
    assert f"no TLS with localhost:{server.port}: " in made.remark
    assert said in made.remark
    assert made.due_rows(0.0) == 0
    made.stop()


async def test_a_server_without_tls_is_told_nothing(tmp_path):
    said = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.append(await reader.read(3))
        writer.write(b'{"n": 1}\n')
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    where = context(tmp_path, loop=asyncio.get_running_loop())
    port = server.sockets[0].getsockname()[1]
    out = sink("tcp", SCHEMA, where, host="localhost", port=port, tls="true")
    out.write_values(Values(1, ([7],)))
    await until(lambda: len(said) > 1)
    assert set(said) == {b"\x16\x03\x01"}, "each client must begin a TLS handshake"
    out.close()
    server.close()


async def test_no_row_goes_to_a_server_that_refuses_the_certificate_and_all_go_once_it_is_changed(tmp_path, serve):
    """With TLS 1.3 the client's handshake ends before the server has checked its certificate."""
    tls, server_folder = own(tmp_path, "server")
    _, trusted = own(tmp_path, "trusted")
    _, mine = own(tmp_path, "mine")
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations(trusted / "ca.pem")
    server = await serve(tls)
    out = connecting(
        sink, "tcp", tmp_path, server, ca_file=server_folder / "ca.pem", tls_certificate=mine / "ca.pem", tls_key=mine / "key.pem"
    )
    out.write_values(Values(3, ([1, 2, 3],)))
    await until(lambda: out._endpoint.remark)
    assert "no TLS with localhost" in out._endpoint.remark
    assert (server.lines, out._held_bytes > 0) == ([], True)
    for name in ("ca.pem", "key.pem"):
        shutil.copy(trusted / name, mine / name)
    await until(lambda: server.lines == [1, 2, 3])
    out.write_values(Values(1, ([4],)))
    await until(lambda: server.lines == [1, 2, 3, 4])
    assert out._endpoint.remark == ""
    out.close()


async def test_a_sink_connects_again_when_the_server_is_back(tmp_path, serve):
    tls, _ = own(tmp_path, "server")
    server = await serve(tls)
    out = connecting(sink, "tcp", tmp_path, server, ca_file="server/ca.pem")
    out.write_values(Values(1, ([1],)))
    await until(lambda: server.lines == [1])
    server.stop()
    await until(lambda: not out._endpoint.connections)
    out.write_values(Values(1, ([2],)))
    await server.start()
    await until(lambda: server.lines == [1, 2])
    out.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "connect", "ca_file": "c"}, "option ca_file = 'c', expected tls = 'true' as well"),
        ({"mode": "connect", "server_name": "x"}, "expected tls = 'true' as well"),
        ({"mode": "connect", "tls": "true", "tls_key": "k"}, "TLS needs option tls_certificate, too"),
        ({"mode": "connect", "tls": "true", "ca_file": "mine/key.pem"}, "key.pem has no certificates in PEM"),
        ({"mode": "connect", "tls": "true", "ca_file": "none"}, "none"),
        ({"mode": "listen", "tls": "true"}, "option tls = 'true', expected mode = 'connect' as well"),
        ({"mode": "listen", "ca_file": "c"}, "expected mode = 'connect' as well"),
    ],
)
async def test_options_that_do_not_fit_are_refused(options, said, tmp_path):
    own(tmp_path, "mine")
    with pytest.raises(ConnectorError, match=said):
        source("tcp", SCHEMA, context(tmp_path, loop=asyncio.get_running_loop()), port=9, **options)
