"""The `http` connector as a source that polls a URL, against the standard library's server and hostile servers."""

import asyncio
import contextlib
import email.utils
import json
import time
from typing import Any

import pytest

from sbon.connectors.http_bodies import BodyReader
from sbon.connectors.row_batches import count
from sbon.errors import ConnectorError
from sbon.misfits import Misfits
from sbon.options import Options
from sbon.query.params.source import SourceParams
from sbon.reach import ConnectorsConfig, TcpConfig
from sbon_agent.connectors import http_polls
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.http_client import Response
from sbon_agent.connectors.reaches import Reaches
from tests.connector_world import columns, context, source, until
from tests.http_servers import Server, certificate, serving
from tests.http_world import SCHEMA, Taker, lines

NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}


CUT = b""
"""After this piece a server closes the connection."""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(http_polls, "RETRY_S_MIN", 0.02)
    monkeypatch.setattr(http_polls, "RETRY_S_MAX", 0.05)


def asking(server: Server | str, **options: Any) -> Taker:
    url = server if isinstance(server, str) else f"{server.url}"
    return Taker(url=url, **{"interval": "100 ms"} | options)


async def asked(server: Server, more: int = 1) -> None:
    """Waits for further requests."""
    before = len(server.got)
    await until(lambda: len(server.got) >= before + more)


async def test_every_answer_gives_its_rows_again():
    with serving(
        (200, lines(1, 2), NDJSON), (200, b'[{"n": 3}]', JSON), (200, b"n,ts\r\n4,2020-01-01T00:00:04Z\r\n", {"Content-Type": "text/csv"})
    ) as server:
        server.page = (204, b"", {})
        stream = asking(server)
        await until(lambda: len(stream.rows) >= 4)
        assert await stream.taken() == [1, 2, 3, 4]
        assert stream.watermark_us == 1_577_836_804_000_000
        server.page = (200, lines(5), NDJSON)
        await until(lambda: len(stream.rows) >= 6)
        assert (await stream.taken())[4:6] == [5, 5]
        assert server.connections == 1
        await stream.stop()


async def test_an_unchanged_body_is_not_sent_again_and_gives_no_rows():
    tags = {"ETag": '"one"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
    with serving() as server:
        server.page = (200, lines(1, 2), NDJSON | tags)
        stream = asking(server)
        await asked(server, 4)
        assert await stream.taken() == [1, 2]
        assert "if-none-match" not in server.got[0].headers
        later = [(got.headers["if-none-match"], got.headers["if-modified-since"]) for got in server.got[1:]]
        assert set(later) == {('"one"', "Mon, 01 Jan 2024 00:00:00 GMT")}
        server.page = (200, lines(1, 2, 3), NDJSON | {"ETag": '"two"'})
        await until(lambda: len(stream.rows) >= 5)
        await asked(server, 2)
        assert await stream.taken() == [1, 2, 1, 2, 3]
        assert stream.source.stalled == ""
        await stream.stop()


async def test_of_each_answer_only_the_rows_that_the_one_before_had_not():
    answers = [lines(1, 2), lines(1, 2), lines(2, 3, 3), b"", lines(3, 2)]
    with serving(*[(200, answer, NDJSON) for answer in answers]) as server:
        server.page = (204, b"", {})
        stream = asking(server, rows="new")
        await until(lambda: len(server.got) > len(answers))
        assert await stream.taken() == [1, 2, 3, 3, 3, 2]
        await stream.stop()


async def test_many_rows_come_in_batches_and_the_url_is_not_asked_while_the_query_takes_none():
    with serving() as server:
        server.page = (200, lines(*range(5000)), NDJSON | {"ETag": '"x"'})
        stream = asking(server, open_now=False, batch_rows_max=1000)
        await until(lambda: len(server.got) == 1)
        for _ in range(3):
            await asyncio.sleep(0.1)  # longer than the interval
        assert len(server.got) == 1
        stream.let(flow=True)
        await until(lambda: len(stream.rows) >= 5000)
        assert await stream.taken() == list(range(5000))
        await asked(server)
        await stream.stop()


async def test_failures_stall_the_source_with_the_reason_and_do_not_end_it():
    """After no answer, an error status, a wrong type or an invalid body the source asks again, and continues with the next good answer."""
    told: list[str] = []
    with serving(
        (503, b"closed\ntoday", {}),
        None,  # a close of a kept connection is no failure: the source asks again at once
        None,
        (404, b"", {}),
        (200, b"x", {"Content-Type": "text/html"}),
        (200, b"[1", JSON | {"ETag": '"bad"'}),
        (200, b"x" * 5000, NDJSON),
        (200, b"\x1f\x8b", NDJSON | {"Content-Encoding": "gzip"}),
        (302, b"", {"Location": "ftp://x/"}),
        (304, b"", {}),
        (200, lines(7), NDJSON),
    ) as server:
        server.page = (204, b"", {})
        stream = asking(server, body_bytes_max=4096)

        def seen() -> bool:
            if stream.source.stalled and stream.source.stalled not in told:
                told.append(stream.source.stalled)
            return bool(stream.rows)

        await until(seen)
        assert await stream.taken() == [7]
        await until(lambda: stream.source.stalled == "")
        url = server.url
        assert [text.replace(url, "URL") for text in told] == [
            "URL has answered 503: closed today",
            "URL: the connection was closed without an answer",
            "URL has answered 404",
            "URL: Content-Type is 'text/html', expected application/x-ndjson, application/json or text/csv (or set the source's option "
            "format)",
            "URL: the body is not JSON: Input data was truncated",
            "URL has answered 200, with more than 4096 bytes (body_bytes_max)",
            "URL has answered with Content-Encoding 'gzip', which was not asked for",
            "URL has answered 302 and redirects to 'ftp://x/', expected a URL such as 'https://example.org/in'",
            "URL has answered 304",
        ]
        assert "if-none-match" not in server.got[6].headers  # an invalid body is not remembered
        assert stream.failure is None
        await stream.stop()


async def test_a_server_that_asks_for_a_pause_gets_it():
    date = email.utils.formatdate(time.time() + 2.5, usegmt=True)
    with serving((429, b"", {"Retry-After": "1"}), (503, b"", {"Retry-After": date}), (200, lines(1), NDJSON)) as server:
        server.page = (204, b"", {})
        times: list[float] = []

        def came() -> bool:
            times.extend([time.time()] * (len(server.got) - len(times)))
            return len(times) >= 3

        stream = asking(server)
        await until(came)
        assert times[1] - times[0] >= 0.9
        assert times[2] >= email.utils.parsedate_to_datetime(date).timestamp() - 0.1
        await stream.stop()


@pytest.mark.parametrize(
    ("said", "pause_s"),
    [("7", 7.0), ("100000", 600.0), ("9" * 5000, 600.0), ("soon", 0.0), ("", 0.0), ("-1", 0.0), ("Mon, 01 Jan 2024 00:00:00 GMT", 0.0)],
    ids=["seconds", "long", "endless", "word", "nothing", "negative", "past"],
)
def test_a_pause_is_read_from_a_number_or_a_date_and_bounded(said, pause_s):
    assert Response(503, {"retry-after": said}, b"").retry_after_s == pause_s


async def test_secrets_go_to_the_url_and_not_where_it_leads(tmp_path):
    (tmp_path / "token").write_text("s3cret-word\n")
    (tmp_path / "headers").write_text("X-Key: 0ther-secret\n")
    where = context(tmp_path, loop=asyncio.get_running_loop())
    with serving() as other, serving((302, b"", {"Location": "/moved"})) as server:
        other.page = (200, lines(5), NDJSON | {"ETag": '"o"'})
        server.page = (307, b"", {"Location": other.url})
        (tmp_path / "unread").touch()
        stream = asking(server, where=where, token_file="token", headers_file="headers")
        await asked(other, 3)
        assert await stream.taken() == [5]
        assert [got.path for got in server.got][:2] == ["/out?x=1", "/moved"]
        assert all((got.headers["authorization"], got.headers["x-key"]) == ("Bearer s3cret-word", "0ther-secret") for got in server.got)
        assert all("authorization" not in got.headers and "x-key" not in got.headers for got in other.got)
        assert [got.headers.get("if-none-match") for got in other.got[:3]] == [None, '"o"', '"o"']
        assert all("if-none-match" not in got.headers for got in server.got)  # the tag belongs to the other URL
        await stream.stop()


async def test_redirections_in_a_circle_are_given_up():
    with serving() as server:
        server.page = (301, b"", {"Location": server.url})
        stream = asking(server)
        await until(lambda: stream.source.stalled)
        assert stream.source.stalled == f"{server.url} redirects more than 5 times, last to {server.url}"
        assert len(server.got) % 6 == 0
        await stream.stop()


def others(allow: str) -> ConnectorContext:
    where = context(loop=asyncio.get_running_loop())
    reaches = Reaches(ConnectorsConfig(tcp=TcpConfig(allow=(allow,))), "/nowhere", "n1")
    reach = reaches.of(SourceParams("s", "http", (), SCHEMA, None))
    return ConnectorContext(host=where.host, node="n1", labels={}, data_dir="/nowhere", reach=reach, system=where.system)


async def test_statements_of_others_ask_only_where_they_may_and_no_server_leads_them_elsewhere():
    with serving() as secret, serving() as server:
        where = others(f"127.0.0.1:{server.port}")
        with pytest.raises(ConnectorError, match=r"other agents may not have n1 connect to .*connectors\.tcp\.allow") as refused:
            asking(secret, where=where)
        assert refused.value.option == "url"
        server.page = (302, b"", {"Location": secret.url})
        stream = asking(server, where=where)
        await until(lambda: stream.source.stalled)
        assert f"other agents may not have n1 connect to 127.0.0.1:{secret.port}" in stream.source.stalled
        server.page = (302, b"", {"Location": f"http://localhost:{secret.port}/"})  # the redirect uses a name instead of an address
        await until(lambda: "connect to localhost:" in stream.source.stalled)
        server.page = (200, lines(1), NDJSON | {"ETag": '"1"'})
        await until(lambda: stream.rows)
        assert (secret.got, secret.connections) == ([], 0)
        await stream.stop()


async def test_tls_takes_the_given_authority_no_other_and_no_way_back_to_plain_text(tmp_path):
    where = context(tmp_path, loop=asyncio.get_running_loop())
    with serving(tls=certificate(tmp_path)) as server:
        server.page = (200, lines(1), NDJSON | {"ETag": '"1"'})
        url = f"https://localhost:{server.port}/"
        stream = asking(url, where=where, ca_file="ca.pem")
        await until(lambda: stream.rows)
        stranger = asking(url, where=where)
        await until(lambda: stranger.source.stalled)
        assert stranger.source.stalled == f"{url}: the certificate is not trusted: self-signed certificate"
        server.page = (302, b"", {"Location": "http://localhost:1/"})
        await until(lambda: stream.source.stalled)
        assert stream.source.stalled == f"{url} has answered 302 and redirects to 'http://localhost:1/', expected a URL with https again"
        assert stranger.rows == []
        await stream.stop()
        await stranger.stop()


@contextlib.asynccontextmanager
async def raw_server(*pieces: bytes, endless: bytes = b""):
    """Answers every connection with `pieces`, then sends `endless` repeatedly as long as the client reads."""
    sent = [0]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                if piece is CUT:
                    writer.close()
                    return
            while True:
                writer.write(endless)
                sent[0] += len(endless)
                await writer.drain()
                await asyncio.sleep(0 if len(endless) > 100 else 0.01)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", sent
    finally:
        server.close()


@pytest.mark.parametrize(
    ("pieces", "endless", "told"),
    [
        ((), b"", "has not answered within 0.3 s"),
        ((b"HTTP/1.1 200 OK\r\n",), b"X-A: b\r\n", "has not answered within 0.3 s"),
        ((b"HTTP/1.1 200 OK\r\n",), b"X: " + b"a" * 60_000, "Receive buffer too long"),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",), b"4000\r\n" + b"x" * 0x4000 + b"\r\n", "with more than 100000 bytes"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 900000000\r\n\r\n",), b"x" * 20_000, "with more than 100000 bytes"),
        ((b"220 mail.example ESMTP\r\n\r\n",), b"", "illegal status line"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", CUT), b"", "the connection was closed in the midst of an answer"),
        ((), b"HTTP/1.1 103 Early Hints\r\n\r\n", "has not answered within 0.3 s"),
    ],
    ids=["silent", "trickle", "huge-header", "endless-chunks", "huge-length", "not-http", "cut", "endless-hints"],
)
async def test_hostile_servers_take_bounded_time_and_memory(pieces, endless, told):
    async with raw_server(*pieces, endless=endless) as (url, sent):
        stream = asking(url, timeout="300 ms", body_bytes_max=100_000, format="ndjson")
        await until(lambda: told in stream.source.stalled)
        assert stream.rows == []
        assert sent[0] < 20 << 20  # including the system's buffers
        await stream.stop()


async def test_rows_that_do_not_fit_are_counted_and_the_others_taken():
    with serving() as server:
        server.page = (200, b'{"n": "x"}\n{"n": 1}\n', NDJSON | {"ETag": '"1"'})
        stream = asking(server)
        await until(lambda: stream.rows)
        assert await stream.taken() == [1]
        assert stream.source.dropped_rows == 1
        assert [kind.text for kind in stream.source.misfits.told()] == ['column n: "x" is not an integer (BIGINT)']
        await stream.stop()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "needs option listen or url"),
        ({"url": "ftp://x/"}, "expected a URL such as 'https://example.org/in'"),
        ({"url": "http://x/", "listen": "127.0.0.1:0"}, "none together with url: a source either listens or asks"),
        ({"url": "http://x/", "interval": "1 ms"}, "option interval = '1 ms', expected a span from 100 ms to 7 days"),
        ({"url": "http://x/", "interval": "often"}, "option interval = 'often', expected a span such as"),
        ({"url": "http://x/", "rows": "some"}, "option rows = 'some', expected one of all, new"),
        ({"url": "http://x/", "connections_max": "1"}, "option connections_max is unknown to connector 'http'"),
    ],
)
async def test_options_are_checked(options, told):
    with pytest.raises(ConnectorError) as refused:
        source("http", columns(n="int"), context(loop=asyncio.get_running_loop()), **options)
    assert told in str(refused.value)


def test_new_rows_are_told_by_their_values_of_every_type():
    """Equal rows in lines with other blanks or another order of members are not new; a NULL differs from an empty text."""
    schema = columns(n="int", t="text", x="float", ts="time", i="interval", b="bool")
    reader = BodyReader(SourceParams("s", "http", (), schema, None), Options("s", "http", ()), Misfits())
    first = {"n": 1, "t": "", "x": 0.5, "ts": "2020-01-01T00:00:00Z", "i": 90, "b": True}
    others = [
        first | {"t": None},
        first | {"ts": "2020-01-01T00:00:01Z"},
        first | {"i": 91},
        first | {"b": None},
        first | {"n": 2},
        first | {"x": 0.25},
    ]
    earlier = http_polls.EarlierRows(schema)

    def new(*rows: dict[str, Any]) -> int:
        return count(earlier.new_ones(reader.read("json", json.dumps(rows, indent=2).encode(), 0.0).rows))

    assert new(first) == 1
    assert new(dict(reversed(first.items()))) == 0
    assert new(first, *others) == len(others)
    assert new(*others, first) == 0
    assert new() == 0
    assert new(first, first) == 2
