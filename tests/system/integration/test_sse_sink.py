"""The `sse` connector: server-sent events on real sockets, to clients of every kind."""

import asyncio
import json
import random
import socket
import ssl

import pytest

from sbon.connectors.interface import Congested
from sbon.connectors.push_feed import Feed
from sbon.errors import ConnectorError
from sbon.query.params.source import SinkParams
from sbon.reach import ConnectorsConfig, TcpConfig
from sbon_agent.connectors import push_clients
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.reaches import Reaches
from tests.connector_world import context, sink, until
from tests.http_servers import certificate
from tests.push_world import SCHEMA, EventReader, Reader, listening, values, write_many


async def test_every_client_gets_every_row_in_order_as_json():
    out, address = await listening("sse")
    clients = [await EventReader(address).begun() for _ in range(20)]
    out.write_values(values(1, 2, text='a "b"\n\u2028é'))
    write_many(out, range(3, 3000), "x")
    for client in clients:
        await until(lambda: client.count == 2999)  # noqa: B023 - asked at once
        assert client.rows == list(range(1, 3000))
    first = clients[0].events[0]
    assert json.loads(first["data"]) == {"n": 1, "t": 'a "b"\n\u2028é'}
    assert clients[0].headers["content-type"] == "text/event-stream"
    assert clients[0].headers["cache-control"] == "no-store"
    assert len({event["id"] for event in clients[0].events}) == 2999
    out.close()
    out.close()
    for client in clients:
        await until(lambda: client.read() and client.ended)  # noqa: B023 - asked at once
        assert client.events[-1] == {"event": "end", "data": '{"reason":"the query has ended, or the agent stops"}'}
        assert client.got.endswith(b"0\r\n\r\n")
        client.close()
    assert not out.clients
    with pytest.raises(ConnectorError, match="is closed"):
        out.write_values(values(1))


async def test_rows_go_on_without_a_client_and_a_later_one_gets_those_that_follow_or_the_kept_ones():
    out, address = await listening("sse", kept_rows_max=3)
    out.write_values(values(1, 2, 3, 4, 5))
    await until(lambda: out._feed.last == 5)
    later, kept = await EventReader(address).begun(), await EventReader(address, "/rows?kept=true").begun()
    out.write_values(values(6))
    await until(lambda: later.rows and len(kept.rows) == 4)
    assert (later.rows, kept.rows) == ([6], [3, 4, 5, 6])
    later.close()
    kept.close()
    out.close()


async def test_a_client_that_comes_back_gets_what_it_has_missed_as_far_as_it_is_kept():
    out, address = await listening("sse", kept_rows_max=10)
    first = await EventReader(address).begun()
    out.write_values(values(1, 2, 3))
    await until(lambda: len(first.rows) == 3)
    seen = first.events[0]["id"]
    first.close()
    out.write_values(values(4, 5))
    await until(lambda: out._feed.last == 5)
    second = await EventReader(address, "/rows", f"Last-Event-ID: {seen}").begun()
    await until(lambda: len(second.rows) == 4)
    assert second.rows == [2, 3, 4, 5]
    out.write_values(values(*range(6, 31)))
    await until(lambda: len(second.rows) == 29)
    third = await EventReader(address, "/rows", f"Last-Event-ID: {seen}").begun()
    await until(lambda: len(third.rows) == 10)
    assert third.events[0] == {"event": "missed", "data": '{"rows":19}'}
    assert third.rows == list(range(21, 31))
    for odd in ("elsewhere-3", "x", seen.replace("-1", "-99"), seen.replace("-1", "-" + "9" * 30), "-", seen.replace("-1", "--1")):
        other = await EventReader(address, "/rows", f"Last-Event-ID: {odd}").begun()
        await until(lambda: len(other.rows) == 10)  # noqa: B023 - asked at once
        assert other.events[0] == {"event": "missed", "data": '{"rows":null}'}
        other.close()
    up_to_date = await EventReader(address, "/rows", f"Last-Event-ID: {third.events[-1]['id']}").begun()
    out.write_values(values(31))
    await until(lambda: up_to_date.rows)
    assert [event.get("event") for event in up_to_date.events] == [None]
    assert up_to_date.rows == [31]
    for client in (second, third, up_to_date):
        client.close()
    out.close()


async def test_a_client_that_never_reads_is_closed_with_the_reason_and_holds_up_nobody():
    out, address = await listening("sse", buffer_bytes_max=300_000)
    slow = await EventReader(address, buffer_bytes=4096).begun()
    quick = await EventReader(address).begun()
    count, text = 0, "x" * 2000
    while not any(client._ending for client in out.clients):
        count += 100
        try:
            write_many(out, range(count - 99, count + 1), text)
        except Congested:
            count -= 100
        await until(lambda: quick.count == count)  # noqa: B023 - asked at once
        assert out._feed.size_bytes <= 300_000
        assert all(client._transport.get_write_buffer_size() <= 4 * 64 * 1024 for client in out.clients)
        assert count < 20_000
    assert quick.rows == list(range(1, count + 1))
    await until(lambda: slow.read() and slow.ended)  # sent rows arrive, with the reason if there was room for it in time
    assert slow.rows == list(range(1, len(slow.rows) + 1))
    assert len(slow.rows) < count
    assert slow.events[-1] == {"event": "end", "data": json.dumps({"reason": push_clients.LATE}, separators=(",", ":"))}
    slow.close()
    quick.close()
    out.close()


async def test_a_client_that_reads_nothing_is_given_up_even_where_few_rows_come(monkeypatch):
    monkeypatch.setattr(push_clients, "END_TIMEOUT_S", 0.1)
    out, address = await listening("sse", buffer_bytes_max=64 << 20, heartbeat="100 ms")
    slow = await EventReader(address, buffer_bytes=4096).begun()
    write_many(out, range(6000), "x" * 2000)
    await until(lambda: not out.clients)
    assert not out._server.connections
    slow.close()
    out.close()


async def test_an_idle_client_hears_a_heartbeat():
    out, address = await listening("sse", heartbeat="100 ms")
    client = await EventReader(address).begun()
    await until(lambda: client.body.count(b":\n\n") >= 3)
    assert client.events == []
    client.close()
    out.close()


async def test_many_rows_at_once_wait_for_the_event_loop_in_bounded_memory():
    out, address = await listening("sse", buffer_bytes_max=100_000)
    client = await EventReader(address).begun()
    write_many(out, range(2000), "x" * 100)
    with pytest.raises(Congested, match="bytes wait for the agent's event loop"):
        out.write_values(values(2000))
    await until(lambda: out._pieces_bytes == 0)
    out.write_values(values(2000))
    await until(lambda: client.count == 2001)
    assert client.rows == list(range(2001))
    client.close()
    out.close()


async def test_the_token_comes_as_a_header_or_a_parameter_and_must_be_right(tmp_path):
    (tmp_path / "token").write_text("s3cret+word\n")
    out, address = await listening("sse", context(tmp_path, loop=asyncio.get_running_loop()), token_file="token")
    right = [("/rows", "Authorization: Bearer s3cret+word"), ("/rows?token=s3cret%2Bword", "Host: board.example")]
    wrong = [
        ("/rows", "X: y"),
        ("/rows", "Authorization: Bearer s3cret"),
        ("/rows?token=", "X: y"),
        ("/rows?token=s3cret%2Bword&token=s3cret%2Bword", "X: y"),
        ("/rows?" + "a=b&" * 40 + "token=s3cret%2Bword", "X: y"),
        ("/nowhere", "X: y"),
    ]
    for path, header in right:
        lines = [f"GET {path} HTTP/1.1", *(["Host: localhost"] if "Host" not in header else []), header, "", ""]
        client = Reader(address, "\r\n".join(lines).encode())
        await until(lambda: b"\r\n\r\n" in client.read())  # noqa: B023 - asked at once
        assert client.got.startswith(b"HTTP/1.1 200 ")
        client.close()
    for path, header in wrong:
        refused = EventReader(address, path, header)
        await until(lambda: refused.status)  # noqa: B023 - asked at once
        assert refused.status == 401
        assert b"s3cret" not in refused.got
        refused.close()
    out.close()


@pytest.mark.parametrize(
    ("request_line", "headers", "status", "told"),
    [
        ("GET /else HTTP/1.1", ("Host: localhost",), 404, "there is nothing at this path, expected /rows"),
        ("POST /rows HTTP/1.1", ("Host: localhost", "Content-Length: 0"), 405, "the method is POST, expected GET"),
        ("HEAD /rows HTTP/1.1", ("Host: localhost",), 405, ""),
        (
            "GET /rows HTTP/1.1",
            ("Host: localhost", "Origin: https://evil.example"),
            403,
            "a web page (https://evil.example) that",
        ),
        ("GET /rows HTTP/1.1", ("Host: localhost", "Origin: null"), 403, "a web page (null)"),
        ("GET /rows HTTP/1.1", ("Host: evil.example:80",), 403, "the Host header has a name, expected an address or localhost"),
        ("GET /rows HTTP/1.1", ("Host: [x",), 403, "the Host header has a name"),
        ("GET /rows HTTP/1.1", (), 400, "the request is not HTTP/1.1"),
        ("GET /rows HTTP/1.1", ("Host: localhost", "X: " + "a" * 400_000), 431, "the request is not HTTP/1.1"),
        ("GET /rows HTTP/1.1", ("Host: localhost", "Content-Length: 5000"), 413, "the body is larger than 1024 bytes"),
        ("garbage", (), 400, "the request is not HTTP/1.1"),
    ],
    ids=["path", "method", "head", "origin", "null", "rebinding", "bad-host", "no-host", "huge-header", "body", "garbage"],
)
async def test_what_is_no_request_for_rows_is_refused_in_one_line(request_line, headers, status, told):
    out, address = await listening("sse", origins="https://board.example")
    client = Reader(address, "\r\n".join([request_line, *headers, "", ""]).encode())
    await until(lambda: (client.read() and client.ended) or b"}" in client.got)
    assert int(client.got.split()[1]) == status
    assert told in client.got.decode()
    assert not out.clients
    client.close()
    out.close()


@pytest.mark.parametrize("origins", ["https://other.example, https://board.example", "*"])
async def test_a_web_page_that_is_named_may_read(origins):
    out, address = await listening("sse", origins=origins)
    client = await EventReader(address, "/rows", "Origin: https://board.example").begun()
    assert (client.headers["access-control-allow-origin"], client.headers["vary"]) == ("https://board.example", "Origin")
    client.close()
    out.close()


async def test_hostile_clients_are_bounded_and_others_go_on():
    """Clients open too many connections, pipeline requests, send half of a head, or break at any time."""
    out, address = await listening("sse", connections_max=10)
    good = await EventReader(address).begun()
    half = Reader(address, b"GET /rows HTTP/1.1\r\n")
    flood = await EventReader(address).begun()
    for _ in range(100):
        try:
            flood.socket.send(b"GET /rows HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        except (BlockingIOError, ConnectionError):
            await asyncio.sleep(0.001)
        if flood.read() and flood.ended:
            break
    await until(lambda: flood.read() and flood.ended)
    await until(lambda: len(out.clients) == 1)
    rng = random.Random(0)
    for _ in range(6):
        for _ in range(6):
            broken = Reader(address, b"GET /rows HTTP/1.1\r\nHost: localhost\r\n\r\n"[: rng.randrange(60)])
            broken.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            broken.close()
        behind = await EventReader(address, "/rows").begun()  # earlier connections have been accepted, too
        behind.close()
        await until(lambda: len(out._server.connections) == 2)
    many = [EventReader(address) for _ in range(30)]
    await until(lambda: all(one.status for one in many))
    assert sorted(one.status for one in many) == [200] * 8 + [503] * 22
    out.write_values(values(7))
    await until(lambda: good.rows == [7] and sum(one.rows == [7] for one in many) == 8)
    for one in [good, half, flood, *many]:
        one.close()
    await until(lambda: not out._server.connections)
    assert not out.clients
    out.close()


async def test_rows_come_over_tls(tmp_path):
    certificate(tmp_path)
    files = {"tls_certificate": "ca.pem", "tls_key": "key.pem"}
    out, address = await listening("sse", context(tmp_path, loop=asyncio.get_running_loop()), **files)
    tls = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    reader, writer = await asyncio.open_connection(*address, ssl=tls, server_hostname="localhost", limit=64 << 20)
    writer.write(b"GET /rows HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b":\n\n")
    write_many(out, range(3000), "x" * 1000)
    last = await asyncio.wait_for(reader.readuntil(b'{"n":2999,'), 60)
    assert last.count(b"data: ") == 3000
    out.close()
    await asyncio.wait_for(reader.read(), 60)
    writer.close()


async def test_a_place_that_is_taken_fails_the_sink_and_one_that_is_not_allowed_is_refused():
    out, address = await listening("sse")
    second = sink("sse", SCHEMA, context(loop=asyncio.get_running_loop()), listen=f"127.0.0.1:{address[1]}")
    await until(lambda: second._error)
    with pytest.raises(ConnectorError, match=rf"sink out: cannot listen on 127\.0\.0\.1:{address[1]}: "):
        second.write_values(values(1))
    second.close()
    where = context(loop=asyncio.get_running_loop())
    reach = Reaches(ConnectorsConfig(tcp=TcpConfig()), "/nowhere", "n1").of(SinkParams("out", "sse", ()))
    others = ConnectorContext(host=where.host, node="n1", labels={}, data_dir="/nowhere", reach=reach, system=where.system)
    with pytest.raises(ConnectorError, match=r"other agents may not have n1 listen on 0\.0\.0\.0:8090: .*connectors\.tcp\.allow"):
        sink("sse", SCHEMA, others, listen="0.0.0.0:8090")
    out.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"listen": "8090"}, "option listen = '8090', expected an address and a port such as"),
        ({"path": "rows"}, "option path = 'rows', expected a path such as '/in'"),
        ({"origins": "board.example"}, "option origins = 'board.example', expected origins such as 'https://board.example', or '*'"),
        ({"origins": "https://board.example/"}, "expected origins such as"),
        ({"heartbeat": "1 ms"}, "option heartbeat = '1 ms', expected a span from 100 ms to 1 hour"),
        ({"kept_rows_max": "0"}, "option kept_rows_max = '0', expected a whole number from 1 to"),
        ({"tls_key": "k"}, "TLS needs option tls_certificate, too"),
        ({"url": "http://x/"}, "option url is unknown to connector 'sse'"),
    ],
)
async def test_options_are_checked(options, told):
    with pytest.raises(ConnectorError) as refused:
        await listening("sse", **options)
    assert told in str(refused.value)


def test_the_feed_keeps_the_newest_rows_as_a_list_would():
    """The plain twin keeps all frames, and applies the limits to them each time."""
    rng = random.Random(1)
    for _ in range(50):
        rows_max, bytes_max = rng.randrange(1, 20), rng.randrange(1, 200)
        feed, every = Feed(rows_max, bytes_max), []
        for _ in range(rng.randrange(1, 40)):
            frames = [b"%d," % (len(every) + i) * rng.randrange(1, 6) for i in range(rng.randrange(0, 8))]
            feed.add(frames)
            feed.trim()
            every += frames
            kept = every[-rows_max:]
            while len(kept) > 1 and sum(map(len, kept)) > bytes_max:
                kept = kept[1:]
            assert (feed.first, feed.last) == (len(every) - len(kept) + 1, len(every))
            assert feed.size_bytes == sum(map(len, kept))
            got, number = [], feed.first
            while number <= feed.last:
                data, number = feed.since(number, rng.randrange(1, 60))
                got.append(data)
            assert b"".join(got) == b"".join(kept)
