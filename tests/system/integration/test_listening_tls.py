"""Connectors that listen with TLS, on real sockets: posts and lines from the standard library's clients, hostile peers, changed files."""

import asyncio
import http.client
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from sbon.errors import ConnectorError
from sbon.reach import Reach
from sbon_agent.connectors import listening
from sbon_agent.connectors.base import ConnectorContext
from tests.connector_world import DEADLINE_S, context, opened, source, until
from tests.http_servers import certificate
from tests.http_world import NDJSON, SCHEMA, Taker, lines

FILES = {"tls_certificate": "ca.pem", "tls_key": "key.pem"}


@pytest.fixture
def where(tmp_path):
    certificate(tmp_path)
    return lambda: context(tmp_path, loop=asyncio.get_running_loop())


def trusting(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=folder / "ca.pem")


async def posts(where: Any, **options: Any) -> tuple[Taker, tuple[str, int]]:
    stream = Taker(listen="127.0.0.1:0", path="/in", where=where(), **FILES, **options)
    return stream, await until(lambda: stream.source.address)


def post(address: tuple[str, int], tls: ssl.SSLContext, *bodies: bytes) -> list[int]:
    connection = http.client.HTTPSConnection("localhost", address[1], context=tls, timeout=DEADLINE_S)
    statuses = []
    for body in bodies:
        connection.request("POST", "/in", body, NDJSON)
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    connection.close()
    return statuses


async def test_rows_come_by_post_over_tls_and_not_without(tmp_path, where):
    stream, address = await posts(where)
    large = lines(*range(100, 20_000))
    assert await asyncio.to_thread(post, address, trusting(tmp_path), lines(1, 2), b"no json", large) == [200, 400, 200]
    assert await stream.taken() == [1, 2, *range(100, 20_000)]
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.to_thread(post, address, ssl.create_default_context(), lines(3))
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"POST /in HTTP/1.1\r\nHost: x\r\n\r\n")
    said = await asyncio.wait_for(reader.read(), DEADLINE_S)
    assert b"HTTP" not in said
    writer.close()
    assert len(await stream.taken()) == 19_902
    await stream.stop()


async def test_lines_come_over_tls_at_once_behind_the_handshake(tmp_path, where):
    made: Any = source("tcp", SCHEMA, where(), time="ts", port=0, **FILES)
    made.start(lambda: None)
    address = await until(lambda: made.address)
    writers = []
    for n in range(20):
        _, writer = await asyncio.open_connection(*address, ssl=trusting(tmp_path), server_hostname="localhost")
        writer.write(lines(n))
        writers.append(writer)
        if n >= 10:  # clients that leave at once
            writer.close()
        await until(lambda: made.due_rows(0.0) == n + 1)  # noqa: B023 - asked at once
    values = made.poll(0.0, 0.0).values
    assert list(values.columns[1]) == list(range(20))
    await until(lambda: len(made._endpoint.connections) == 10)
    for writer in writers:
        writer.close()
    await until(lambda: not made._endpoint.connections)
    made.stop()


async def test_handshakes_under_way_are_bounded(tmp_path, where, monkeypatch):
    monkeypatch.setattr(listening, "HANDSHAKES_MAX", 3)
    monkeypatch.setattr(listening, "HANDSHAKE_TIMEOUT_S", 600.0)  # no handshake times out
    stream, address = await posts(where)
    listener = stream.source._server._listener
    silent = [await asyncio.open_connection(*address) for _ in range(6)]
    silent[0][1].write(b"\x16\x03\x01\x02\x00")  # the beginning of a ClientHello
    ended = [asyncio.ensure_future(reader.read()) for reader, _ in silent]
    await until(lambda: sum(task.done() for task in ended) == 3)
    assert listener._handshakes == 3
    await stream.stop()
    await until(lambda: all(task.done() for task in ended))
    await asyncio.gather(*ended, return_exceptions=True)
    for _, writer in silent:
        writer.close()


async def test_a_handshake_that_does_not_end_is_given_up(tmp_path, where, monkeypatch):
    monkeypatch.setattr(listening, "HANDSHAKE_TIMEOUT_S", 0.1)
    stream, address = await posts(where)
    listener = stream.source._server._listener
    reader, writer = await asyncio.open_connection(*address)
    assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
    await until(lambda: (listener._handshakes, len(stream.source._server.connections)) == (0, 0))
    monkeypatch.setattr(listening, "HANDSHAKE_TIMEOUT_S", 10.0)
    assert await asyncio.to_thread(post, address, trusting(tmp_path), lines(1)) == [200]
    writer.close()
    await stream.stop()


async def test_peers_that_go_during_or_right_behind_the_handshake_leave_nothing(tmp_path, where):
    stream, address = await posts(where)
    listener = stream.source._server._listener
    for cut in range(20):
        _, writer = await asyncio.open_connection(*address, ssl=trusting(tmp_path), server_hostname="localhost")
        writer.write(b"POST /in HTTP/1.1\r\n" * (cut % 2))
        writer.transport.abort()
        plain = (await asyncio.open_connection(*address))[1]
        plain.write(b"\x16\x03\x01" * cut)
        plain.transport.abort()
    assert await asyncio.to_thread(post, address, trusting(tmp_path), lines(1)) == [200]
    await until(lambda: (listener._handshakes, len(stream.source._server.connections), stream.source.held_bytes) == (0, 0, 0))
    await stream.stop()


async def test_files_that_have_changed_are_taken_and_bad_ones_are_not(tmp_path, where, monkeypatch):
    monkeypatch.setattr(listening, "REFRESH_S", 0.02)
    stream, address = await posts(where)
    before = trusting(tmp_path)
    assert await asyncio.to_thread(post, address, before, lines(1)) == [200]
    (tmp_path / "key.pem").write_text("no key\n")
    await until(lambda: stream.source.remark)
    assert stream.source.remark.startswith("the previous certificate stays in use: source s: ")
    assert await asyncio.to_thread(post, address, before, lines(2)) == [200]
    certificate(tmp_path)
    await until(lambda: not stream.source.remark)
    assert await asyncio.to_thread(post, address, trusting(tmp_path), lines(3)) == [200]
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.to_thread(post, address, before, lines(4))
    await stream.stop()


def encrypted(folder: Path) -> None:
    key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"word"))
    (folder / "key.pem").write_bytes(key.private_bytes(*form))


def of_another(folder: Path) -> None:
    (folder / "other").mkdir()
    certificate(folder / "other")
    (folder / "other" / "key.pem").rename(folder / "key.pem")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: (folder / "key.pem").chmod(0o644), "others can read the key in "),
        (lambda folder: (folder / "key.pem").unlink(), "key.pem cannot be read: No such file"),
        (lambda folder: (folder / "ca.pem").write_text("x"), "are no certificate with its key (PEM, without a passphrase)"),
        (encrypted, "are no certificate with its key (PEM, without a passphrase)"),
        (of_another, "are no certificate with its key (PEM, without a passphrase)"),
        (lambda folder: (folder / "ca.pem").write_bytes(b"x" * (1 << 20) + b"x"), "is larger than 1048576 bytes"),
    ],
    ids=["open-key", "no-key", "no-certificate", "passphrase", "other-key", "large"],
)
@pytest.mark.parametrize("kind", ["http", "tcp"])
async def test_files_of_no_use_are_refused_in_one_line(tmp_path, where, spoil, told, kind):
    spoil(tmp_path)
    options = {"listen": "127.0.0.1:0"} if kind == "http" else {"port": 0}
    with pytest.raises(ConnectorError) as refused:
        source(kind, SCHEMA, where(), time="ts", **options, **FILES)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("connector", "options", "told"),
    [
        ("http", {"listen": "127.0.0.1:0", "tls_key": "k"}, "TLS needs option tls_certificate, too: write tls_certificate = 'path' (PEM)"),
        ("http", {"listen": "127.0.0.1:0", "tls_certificate": "c"}, "TLS needs option tls_key, too"),
        ("tcp", {"port": 9, "mode": "connect", "tls_key": "k"}, "option tls_key = 'k', expected tls = 'true' as well"),
        ("http", {"url": "https://x/", "tls_key": "k"}, "option tls_key is unknown to connector 'http'"),
    ],
)
async def test_options_are_checked(connector, options, told):
    with pytest.raises(ConnectorError) as refused:
        source(connector, SCHEMA, context(loop=asyncio.get_running_loop()), time="ts", **options)
    assert told in str(refused.value)


async def test_statements_of_others_read_certificates_from_the_allowed_folders_only(tmp_path, where):
    own = where()
    (tmp_path / "files").mkdir()
    reach = Reach("n1", str(tmp_path / "files"), (str(tmp_path / "files"),), None)
    theirs = ConnectorContext(host=own.host, node="n1", labels={}, data_dir=str(tmp_path), reach=reach, system=own.system)
    for path in (str(tmp_path / "ca.pem"), "../ca.pem"):
        with pytest.raises(ConnectorError, match=r"outside the folders that other agents may use on n1"):
            source("http", SCHEMA, theirs, time="ts", listen="127.0.0.1:0", tls_certificate=path, tls_key="key.pem")
    certificate(tmp_path / "files")
    opened(source("http", SCHEMA, theirs, time="ts", listen="127.0.0.1:0", **FILES)).stop()
