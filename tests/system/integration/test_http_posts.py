"""The `http` connector as a source that accepts POST, on real sockets, with the standard library's client and hand-written bytes."""

import asyncio
import gzip
import json
import socket
import time
import tracemalloc
from typing import Any

import pytest

from sbon.errors import ConnectorError
from sbon.query.params.source import SourceParams
from sbon.reach import ConnectorsConfig, TcpConfig
from sbon_agent.connectors import build_source, http_server
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.reaches import Reaches
from tests.connector_world import columns, context, opened, source, until
from tests.http_world import NDJSON, SCHEMA, Client, Taker, lines, raw

JSON = {"Content-Type": "application/json"}
CSV = {"Content-Type": "text/csv"}
HEAD = b"POST /in HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"


async def taker(**options: Any) -> tuple[Taker, tuple[str, int]]:
    stream = Taker(listen="127.0.0.1:0", path="/in", **options)
    return stream, await until(lambda: stream.source.address)


async def test_bodies_of_each_format_become_rows_in_order():
    stream, address = await taker()
    client = Client(address)
    said = [
        await client.post(lines(1, 2)),
        await client.post(b'[{"n": 3}, {"n": 4,\n "more": [1]}]', JSON),
        await client.post(b'{"n": 5}', JSON),
        await client.post(b"n,ts\r\n6,2020-01-01T00:00:06Z\r\n7,\r\n", CSV | {"Content-Type": "text/csv; charset=utf-8"}),
        await client.post(lines(*range(8, 3008)), {"Content-Type": "application/jsonl"}),
    ]
    assert [(one.status, one.document) for one in said] == [(200, {"rows": rows, "left_out": 0, "why": []}) for rows in (2, 2, 1, 2, 3000)]
    assert await stream.taken() == list(range(1, 3008))
    assert stream.watermark_us == 1_577_836_859_000_000
    client.close()
    await stream.stop()


async def test_rows_that_do_not_fit_are_told_to_the_client_that_sent_them_and_counted():
    stream, address = await taker()
    client = Client(address)
    first = await client.post(b'{"n": "mine"}\n{"n": 1}\nno json\n')
    assert first.status == 200
    assert (first.document["rows"], first.document["left_out"]) == (1, 2)
    assert first.document["why"][1] == 'column n: "mine" is not an integer (BIGINT) (1 row)'
    other = await client.post(b'{"n": "yours"}\n{"n": 2}\n')
    assert other.document["why"] == ['column n: "yours" is not an integer (BIGINT) (1 row)']
    none = await client.post(b"no json\n")
    assert (none.status, none.document["rows"], none.document["left_out"]) == (400, 0, 1)
    assert none.document["error"].startswith("no row fits: the line is not JSON")
    assert await stream.taken() == [1, 2]
    assert stream.source.dropped_rows == 4
    assert {kind.cause: kind.rows for kind in stream.source.misfits.told()} == {"is not an integer (BIGINT)": 2, "is not JSON": 2}
    client.close()
    await stream.stop()


async def test_rows_with_null_where_none_may_be_and_from_the_future_are_in_the_answer():
    schema = columns(ts="time", n="int")
    options = (("ahead_max", "1 hour"), ("listen", "127.0.0.1:0"))
    params = SourceParams("s", "http", options, schema, "ts", not_null=("n",))
    made: Any = opened(build_source(params, context(loop=asyncio.get_running_loop())))
    made.start(lambda: None)
    inner = made._source
    client = Client(await until(lambda: inner.address))
    asked = asyncio.ensure_future(client.post(lines(1) + b'{"n": null}\n{"n": 2, "ts": "2999-01-01T00:00:00Z"}\n', path="/"))
    got: list[Any] = []

    def polled() -> bool:
        values = made.poll(time.monotonic(), time.time()).values
        got.extend([] if values is None else values.columns[1])
        return bool(got)

    await until(polled)
    said = await asked
    assert got == [1]
    assert (said.document["rows"], said.document["left_out"]) == (1, 2)
    assert sorted(said.document["why"])[0] == "column n is NULL, declared NOT NULL (1 row)"
    assert made.dropped_rows == 2
    client.close()
    made.stop()


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "error"),
    [
        ("POST", "/out", b"", NDJSON, 404, "there is nothing at this path, expected /in"),
        ("GET", "/in", None, {}, 405, "the method is GET, expected POST"),
        ("POST", "/in", b"x", {"Content-Type": "text/plain"}, 415, "Content-Type is 'text/plain', expected application/x-ndjson, "),
        ("POST", "/in", b"x", {}, 415, "there is no Content-Type, expected application/x-ndjson, "),
        (
            "POST",
            "/in",
            b"x",
            {"Content-Type": "application/x-www-form-urlencoded"},
            415,
            "Content-Type is 'application/x-www-form-urlencoded' (the default of curl: add -H 'Content-Type: ",
        ),
        ("POST", "/in", b"x", {"Content-Type": "text/csv; charset=latin1"}, 415, "charset is latin1, expected utf-8"),
        ("POST", "/in", b"x", NDJSON | {"Content-Encoding": "br"}, 415, "Content-Encoding is 'br', expected gzip or none"),
        ("POST", "/in", b"x", NDJSON | {"Content-Encoding": "gzip"}, 400, "the body is not gzip: "),
        (
            "POST",
            "/in",
            gzip.compress(lines(1), mtime=0)[:-4],
            NDJSON | {"Content-Encoding": "gzip"},
            400,
            "the body is not gzip: it ends in the middle",
        ),
        ("POST", "/in", b'[{"n": 1}', JSON, 400, "the body is not JSON: "),
        ("POST", "/in", b'{"n": 1}\n{"n": 2}', JSON, 400, "the body is not JSON: trailing characters"),
        ("POST", "/in", b"17", JSON, 400, "the body is neither a JSON array nor a JSON object"),
        ("POST", "/in", b"a,ts\n1,\n", CSV, 400, "the CSV header has no column n, it has a, ts"),
        ("POST", "/in", b"x" * 2000, NDJSON, 413, "the body is larger than 1000 bytes (body_bytes_max)"),
        ("POST", "/in", iter([b"x" * 600, b"x" * 600]), NDJSON, 413, "the body is larger than 1000 bytes (body_bytes_max)"),
        (
            "POST",
            "/in",
            gzip.compress(b"x" * 2000, mtime=0),
            NDJSON | {"Content-Encoding": "gzip"},
            413,
            "the body is larger than 1000 bytes",
        ),
        ("POST", "/in", b"", NDJSON | {"Idempotency-Key": "k" * 256}, 400, "Idempotency-Key must come once, with 1 to 255 characters"),
        ("POST", "/in", b"", NDJSON | {"Origin": "http://evil.example"}, 403, "this request comes from a web page (Origin)"),
    ],
)
async def test_what_cannot_be_taken_is_refused_in_one_line(method, path, body, headers, status, error):
    stream, address = await taker(body_bytes_max=1000)
    client = Client(address)
    said = await client.ask(method, path, body, headers)
    assert (said.status, said.document["error"][: len(error)]) == (status, error)
    assert "\n" not in said.document["error"]
    after = Client(address)
    assert (await after.post(lines(7))).status == 200
    assert await stream.taken() == [7]
    await until(lambda: stream.source.held_bytes == 0)
    client.close()
    after.close()
    await stream.stop()


async def test_chunked_compressed_kept_alive_and_pipelined_requests():
    stream, address = await taker()
    client = Client(address)
    assert (await client.post(iter([b'{"n"', b": 1}\n", b'{"n": 2}']))).document["rows"] == 2
    zipped = NDJSON | {"Content-Encoding": "gzip"}
    assert (await client.post(gzip.compress(lines(3), mtime=0), zipped)).document["rows"] == 1
    assert len(stream.source._server.connections) == 1
    client.close()
    one = HEAD + b"Content-Length: %d\r\n\r\n%s"
    many = b"".join(one % (len(lines(n)), lines(n)) for n in range(4, 1504))
    status, got = await raw(address, many + HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n")
    assert (status, got.count(b"HTTP/1.1 200 OK")) == (200, 1501)
    assert await stream.taken() == list(range(1, 1504))
    await stream.stop()


async def test_a_client_that_waits_for_100_continue_is_told_to_go_on_only_if_the_head_is_right():
    stream, address = await taker(body_bytes_max=1000)
    reader, writer = await asyncio.open_connection(*address)
    body = lines(1)
    writer.write(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
    writer.write(body)
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")
    writer.close()
    status, got = await raw(address, HEAD + b"Expect: 100-continue\r\nContent-Length: 2000\r\n\r\n")
    assert (status, b"HTTP/1.1 100" in got) == (413, False)
    assert await stream.taken() == [1]
    await stream.stop()


async def test_what_is_not_http_is_refused_and_closed():
    stream, address = await taker()
    status, got = await raw(address, b"\x16\x03\x01 hello\r\n\r\n")
    assert (status, b"the request is not HTTP/1.1" in got) == (400, True)
    assert (await raw(address, b"POST /in HTTP/1.1\r\nX: " + b"x" * 60_000))[0] == 431
    assert (await raw(address, HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"))[0] == 400
    assert (await raw(address, HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"))[0] == 400
    assert stream.rows == []
    await stream.stop()


async def test_token_is_wanted_first_and_never_told(tmp_path, capfd):
    secret = "correct-horse-battery"
    (tmp_path / "token").write_text(f"{secret}\n")
    where = context(tmp_path, loop=asyncio.get_running_loop())
    stream, address = await taker(where=where, token_file="token")
    client = Client(address)
    refused = [
        await client.post(lines(1)),
        await Client(address).post(lines(1), NDJSON | {"Authorization": "Bearer wrong"}),
        await Client(address).post(lines(1), NDJSON | {"Authorization": f"Basic {secret}"}),
        await Client(address).post(lines(1), path="/elsewhere"),
    ]
    assert [(one.status, one.headers["www-authenticate"]) for one in refused] == [(401, "Bearer")] * 4
    right = NDJSON | {"Authorization": f"Bearer {secret}", "Origin": "http://a.page"}
    assert (await Client(address).post(lines(2), right)).status == 200
    assert await stream.taken() == [2]
    told = repr([one.document for one in refused]) + "".join(capfd.readouterr()) + repr(stream.source._token.__dict__["_path"])
    assert secret not in told
    await stream.stop()


@pytest.mark.parametrize(("text", "told"), [("", "has no secret in it"), ("two words", "has no secret in it"), (None, "cannot be read")])
async def test_token_files_without_a_token_are_refused_before_it_listens(tmp_path, text, told):
    if text is not None:
        (tmp_path / "token").write_text(text)
    where = context(tmp_path, loop=asyncio.get_running_loop())
    with pytest.raises(ConnectorError, match=told) as refused:
        source("http", SCHEMA, where, listen="127.0.0.1:0", token_file="token")
    assert text is None or not text or text not in str(refused.value)


async def test_a_repeated_key_is_answered_as_before_and_adds_no_rows():
    stream, address = await taker(idempotency_keys_max=2)
    client = Client(address)
    keyed = NDJSON | {"Idempotency-Key": "a"}
    body = lines(1, 2) + b"no json\n"
    first, again = await client.post(body, keyed), await client.post(body, keyed)
    assert (first.status, first.document["rows"]) == (200, 2)
    assert (again.status, again.document) == (200, first.document)
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
    assert (await client.post(lines(9), keyed)).status == 422
    for key in "bc":  # two keys more than are remembered: the first is forgotten
        assert (await client.post(lines(3), NDJSON | {"Idempotency-Key": key})).status == 200
    assert len(stream.source._repeats) == 2
    assert (await client.post(lines(4), keyed)).status == 200
    assert await stream.taken() == [1, 2, 3, 3, 4]
    client.close()
    await stream.stop()


async def test_a_key_that_is_being_worked_on_is_not_taken_twice():
    stream, address = await taker(open_now=False)
    keyed = NDJSON | {"Idempotency-Key": "a"}
    first = asyncio.ensure_future(Client(address).post(lines(1), keyed))
    await until(lambda: stream.source._waiting)
    second = await Client(address).post(lines(1), keyed)
    assert (second.status, second.headers["retry-after"]) == (409, "1")
    stream.let(flow=True)
    assert (await first).status == 200
    assert await stream.taken() == [1]
    await stream.stop()


async def test_what_a_slow_query_does_not_take_in_time_is_given_back():
    """The client must retry: none of its rows is taken at first, and all are taken by the retry."""
    stream, address = await taker(open_now=False, answer_within="200 ms")
    keyed = NDJSON | {"Idempotency-Key": "a"}
    late = await Client(address).post(lines(1), keyed)
    assert (late.status, late.headers["retry-after"]) == (429, "1")
    assert late.document == {"error": "the query is slow, none of these rows was taken: try again later"}
    stream.let(flow=True)
    assert (await Client(address).post(lines(1), keyed)).status == 200
    assert await stream.taken() == [1]
    await stream.stop()


async def test_a_flood_holds_a_bounded_number_of_bytes():
    """Forty clients send 8 MiB to a query that reads nothing; 1 MiB is held, the other clients must retry."""
    limit = 1 << 20
    stream, address = await taker(open_now=False, buffer_bytes_max=limit, body_bytes_max=200_000, answer_within="60 s")
    body = lines(*range(4000))
    assert 150_000 < len(body) <= 200_000
    said = [asyncio.ensure_future(Client(address).post(body)) for _ in range(40)]
    most = 0

    def refused() -> int:
        nonlocal most
        most = max(most, stream.source.held_bytes)
        return sum(one.done() for one in said)

    fit = limit // (len(body) + http_server.REQUEST_OVERHEAD_BYTES)
    await until(lambda: refused() >= 40 - fit)
    assert most <= limit
    stream.let(flow=True)
    answers = await asyncio.gather(*said)
    assert {one.status for one in answers} == {200, 429}
    taken = sum(one.status == 200 for one in answers)
    assert len(await stream.taken()) == 4000 * taken
    await until(lambda: stream.source.held_bytes == 0)
    await stream.stop()


async def test_a_compressed_body_is_not_decompressed_beyond_its_limit():
    stream, address = await taker(body_bytes_max=100_000)
    bomb = gzip.compress(bytes(64 << 20), mtime=0)
    tracemalloc.start()
    try:
        said = await Client(address).post(bomb, NDJSON | {"Content-Encoding": "gzip"})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said.status == 413
    assert peak < 8 << 20
    await stream.stop()


async def test_small_bodies_count_with_what_each_request_takes():
    stream, address = await taker(open_now=False, buffer_bytes_max=10_000, body_bytes_max=1000, answer_within="60 s")
    said = [asyncio.ensure_future(Client(address).post(b"{}")) for _ in range(20)]
    await until(lambda: sum(one.done() for one in said) >= 11)
    stream.let(flow=True)
    assert sorted({one.status for one in await asyncio.gather(*said)}) == [200, 429]
    await stream.stop()


async def test_a_body_larger_than_a_batch_comes_in_batches_and_is_answered_after_the_last():
    stream, address = await taker(batch_rows_max=7)
    assert (await Client(address).post(lines(*range(30)))).document["rows"] == 30
    assert await stream.taken() == list(range(30))
    await stream.stop()


async def waiting_bodies(stream: Taker, address: tuple[str, int], *bodies: bytes) -> list[asyncio.Future[Any]]:
    """Posts bodies that wait in this order; returns their pending answers."""
    said = []
    for body in bodies:
        said.append(asyncio.ensure_future(Client(address).post(body)))
        await until(lambda: len(stream.source._waiting) == len(said))
    return said


@pytest.mark.parametrize("each", [1, 40])
@pytest.mark.parametrize("batch_rows_max", [7, 1000])
async def test_small_bodies_that_wait_are_decoded_at_once_and_answered_each_with_its_own_rows(each, batch_rows_max, monkeypatch):
    stream, address = await taker(open_now=False, batch_rows_max=batch_rows_max)
    decoded = []
    monkeypatch.setattr(stream.source._reader, "read", lambda *given: decoded.append(given))
    bodies = [lines(*range(each)), b"\n \n", b"\xef\xbb\xbf" + lines(*range(each, 3 * each)).replace(b"\n", b"\r\n\n"), lines(3 * each)]
    said = await waiting_bodies(stream, address, *bodies)
    stream.let(flow=True)
    answers = await asyncio.gather(*said)
    rows = [each, 0, 2 * each, 1]
    assert [(one.status, one.document) for one in answers] == [(200, {"rows": count, "left_out": 0, "why": []}) for count in rows]
    assert await stream.taken() == list(range(3 * each + 1))
    assert decoded == []
    await stream.stop()


async def test_one_body_of_several_that_wait_has_rows_that_do_not_fit_and_only_its_answer_says_so():
    stream, address = await taker(open_now=False)
    said = await waiting_bodies(stream, address, lines(*range(50)), lines(50) + b'{"n": "x"}\n', b"no json\n", lines(51, 52))
    stream.let(flow=True)
    answers = await asyncio.gather(*said)
    counts = [(one.status, one.document["rows"], one.document["left_out"]) for one in answers]
    assert counts == [(200, 50, 0), (200, 1, 1), (400, 0, 1), (200, 2, 0)]
    assert answers[1].document["why"] == ['column n: "x" is not an integer (BIGINT) (1 row)']
    assert await stream.taken() == list(range(53))
    assert stream.source.dropped_rows == 2
    await stream.stop()


async def test_slow_clients_are_cut_off(monkeypatch):
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", 0.3)
    stream, address = await taker(body_timeout="300 ms")
    began = time.monotonic()

    async def trickle(head: bytes) -> bytes:
        """Sends a byte from time to time, which must not extend the timeout."""
        reader, writer = await asyncio.open_connection(*address)
        writer.write(head)
        reading = asyncio.ensure_future(reader.read())
        while not reading.done():
            assert time.monotonic() < began + 20, "the client was not disconnected in time"
            writer.write(b"x")
            await asyncio.sleep(0.02)
        writer.close()
        try:
            return await reading
        except ConnectionError:
            return b""

    in_head, in_body = await asyncio.gather(trickle(b"POST /in HT"), trickle(HEAD + b"Content-Length: 100000\r\n\r\n"))
    assert in_head == b""
    assert in_body.startswith(b"HTTP/1.1 408 ")
    await until(lambda: not stream.source._server.connections)
    assert stream.source.held_bytes == 0
    await stream.stop()


async def test_a_client_that_never_reads_its_answers_is_cut_off():
    """The server stops processing its requests as soon as answers cannot be sent, and closes the connection after a while."""
    stream, address = await taker(body_timeout="300 ms")
    silent = socket.socket()
    silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    silent.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(silent, address)
    connection = (await until(lambda: list(stream.source._server.connections)))[0]
    connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    one = (HEAD + b"Content-Length: 2\r\n\r\n{}") * 50
    sending = asyncio.ensure_future(loop.sock_sendall(silent, one * 200))
    await until(lambda: connection._full)
    await until(lambda: not stream.source._server.connections)
    taken = len(await stream.taken())
    assert 0 < taken < 50 * 200
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    silent.close()
    assert stream.source.held_bytes == 0
    assert (await Client(address).post(lines(1))).status == 200
    assert len(await stream.taken()) == taken + 1
    await stream.stop()


async def test_more_connections_than_allowed_are_refused_and_places_come_free():
    stream, address = await taker(connections_max=2)
    kept = [await asyncio.open_connection(*address) for _ in range(2)]
    await until(lambda: len(stream.source._server.connections) == 2)
    status, got = await raw(address, b"")
    assert (status, b"connections_max" in got) == (503, True)
    for _, writer in kept:
        writer.close()
    await until(lambda: not stream.source._server.connections)
    assert (await Client(address).post(lines(1))).status == 200
    await stream.stop()


async def test_the_end_gives_back_what_waits():
    stream, address = await taker(open_now=False)
    waiting = asyncio.ensure_future(Client(address).post(lines(1)))
    await until(lambda: stream.source._waiting)
    await stream.stop()
    said = await waiting
    assert (said.status, said.document["error"]) == (503, "the query has ended or the agent stops: none of these rows was taken")
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection(*address)


def others(*allow: str) -> ConnectorContext:
    """Returns the context of a statement from another agent."""
    where = context(loop=asyncio.get_running_loop())
    config = ConnectorsConfig(tcp=TcpConfig(allow=allow)) if allow else ConnectorsConfig()
    reach = Reaches(config, "/nowhere", "n1").of(SourceParams("s", "http", (), SCHEMA, None))
    return ConnectorContext(host=where.host, node="n1", labels={}, data_dir="/nowhere", reach=reach, system=where.system)


async def test_others_may_have_it_listen_only_where_it_is_allowed():
    for listen in ("0.0.0.0:0", "127.0.0.1:8080", "[::]:0"):
        with pytest.raises(ConnectorError, match=r"other agents may not have n1 listen on .*connectors\.tcp\.allow") as refused:
            source("http", SCHEMA, others("127.0.0.1:9000-9999"), listen=listen)
        assert refused.value.option == "listen"
    stream = Taker(where=others(), listen="127.0.0.1:0")
    assert await until(lambda: stream.source.address)
    await stream.stop()


async def test_others_may_have_it_read_a_token_only_where_files_are_allowed(tmp_path):
    (tmp_path / "token").write_text("secret")
    with pytest.raises(ConnectorError, match=r"connectors\.file\.allow"):
        source("http", SCHEMA, others(), listen="127.0.0.1:0", token_file=str(tmp_path / "token"))


async def test_an_address_that_is_in_use_fails_the_source_with_its_name():
    first, address = await taker()
    second = Taker(listen=f"127.0.0.1:{address[1]}")
    await until(lambda: second.failure)
    assert str(second.failure).startswith(f"source s: cannot listen on 127.0.0.1:{address[1]}: ")
    await second.stop()
    await first.stop()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "needs option listen or url: write listen = '127.0.0.1:8080'"),
        ({"listen": "8080"}, "option listen = '8080', expected an address and a port such as"),
        ({"listen": "::1:80"}, "option listen = '::1:80', expected an address and a port such as"),
        ({"listen": "a:99999"}, "option listen = 'a:99999', expected"),
        ({"listen": "a:1", "path": "in"}, "option path = 'in', expected a path such as '/in'"),
        ({"listen": "a:1", "format": "xml"}, "option format = 'xml', expected one of ndjson, json, csv"),
        ({"listen": "a:1", "buffer_bytes_max": "5000"}, "option buffer_bytes_max = 5000, expected at least 1049600"),
        ({"listen": "a:1", "tokenfile": "x"}, "did you mean token_file?"),
    ],
)
async def test_options_are_checked(options, told):
    with pytest.raises(ConnectorError) as refused:
        source("http", SCHEMA, context(loop=asyncio.get_running_loop()), **options)
    assert told in str(refused.value)


def test_answers_are_json():
    assert json.loads(http_server.refusal(404, 'a "word"').document) == {"error": 'a "word"'}
