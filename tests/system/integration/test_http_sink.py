"""The `http` connector as a sink, against the standard library's server."""

import asyncio
import csv
import io
import json
import time
from typing import Any

import pytest

from sbon.connectors.interface import Congested
from sbon.errors import ConnectorError
from sbon.operators.frames import frame_of_values
from sbon.operators.values import Values
from sbon.query.params.source import SinkParams
from sbon.reach import ConnectorsConfig, TcpConfig
from sbon_agent.connectors import http_sink
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.reaches import Reaches
from tests.connector_world import columns, context, sink, until
from tests.http_servers import certificate, serving

SCHEMA = columns(n="int", t="text")


def values(*numbers: int) -> Values:
    return Values(len(numbers), ([*numbers], ['a "b"\n' if n % 2 else None for n in numbers]))


def made(url: str, where: ConnectorContext | None = None, **options: Any) -> Any:
    options = {"batch_interval": "10 ms"} | options
    return sink("http", SCHEMA, where or context(loop=asyncio.get_running_loop()), url=url, **options)


async def written(out: Any, rows: Values) -> None:
    """Writes rows as the engine does: rows that are not accepted are offered again."""

    def taken() -> bool:
        try:
            out.write_values(rows)
        except Congested:
            return False
        return True

    await until(taken)


async def finished(out: Any) -> None:
    def done() -> bool:
        try:
            out.finish()
        except Congested:
            return False
        return True

    await until(done)


async def test_rows_leave_in_batches_in_order_over_one_connection():
    with serving() as server:
        out = made(server.url, batch_rows_max=10, batch_interval="60 s")
        out.write(frame_of_values(values(*range(25)), SCHEMA))
        for n in range(25, 30):
            await written(out, values(n))
        await until(lambda: len(server.got) >= 2)  # full batches leave before the interval ends
        await finished(out)
        assert server.rows == list(range(30))
        assert max(len(got.body.splitlines()) for got in server.got) == 10
        assert server.connections == 1
        assert {(got.path, got.headers["content-type"]) for got in server.got} == {("/out?x=1", "application/x-ndjson")}
        assert len({got.headers["idempotency-key"] for got in server.got}) == len(server.got)
        out.close()


async def test_a_batch_that_is_not_full_leaves_after_its_interval():
    with serving() as server:
        out = made(server.url, batch_interval="50 ms")
        out.write_values(values(1, 2))
        await until(lambda: server.rows == [1, 2])
        await until(lambda: out._held_rows == 0)
        out.close()


@pytest.mark.parametrize("form", ["json", "csv"])
async def test_other_formats_say_what_ndjson_says(form):
    with serving() as server:
        out = made(server.url, format=form)
        out.write_values(values(1, 2, 3))
        await finished(out)
        body = b"".join(got.body for got in server.got).decode()
        if form == "json":
            found = [(row["n"], row["t"]) for row in json.loads(body)]
        else:
            header, *records = csv.reader(io.StringIO(body))
            assert header == ["n", "t"]
            found = [(int(n), t or None) for n, t in records]
        assert found == [(1, 'a "b"\n'), (2, None), (3, 'a "b"\n')]
        out.close()


async def test_a_server_that_is_down_for_a_while_gets_every_batch_once_more_with_the_same_key(monkeypatch):
    """After 503, 429 with a pause, or a connection that breaks without an answer, the batch is sent again, and later batches wait."""
    monkeypatch.setattr(http_sink, "RETRY_S_MIN", 0.01)
    with serving(200, (503, b"restarting", {}), (429, b"", {"Retry-After": "1"}), None, 408) as server:
        out = made(server.url, batch_rows_max=2)
        out.write(frame_of_values(values(*range(6)), SCHEMA))
        began = time.monotonic()
        await finished(out)
        assert time.monotonic() - began >= 1.0
        assert server.rows == [0, 1, *[2, 3] * 5, 4, 5]
        keys = [got.headers["idempotency-key"] for got in server.got]
        assert (len(set(keys)), set(keys[1:6])) == (3, {keys[1]})
        assert out.dropped_rows == 0
        out.close()


async def test_a_sink_that_nobody_answers_holds_a_bounded_number_of_rows_and_says_why(monkeypatch):
    monkeypatch.setattr(http_sink, "RETRY_S_MIN", 0.01)
    with serving(*[(503, b"closed\ntoday", {})] * 6) as server:
        out = made(server.url, buffer_bytes_max=4096)
        sent = 0
        told = ""
        for n in range(10_000):
            try:
                out.write_values(values(n))
            except Congested as full:
                told = str(full)
                break
            sent += 1
        assert 0 < sent < 1000
        assert out._held_bytes <= 4096
        await until(lambda: out._problem)
        with pytest.raises(Congested, match=r"rows wait, http://127\.0\.0\.1:\d+/out\?x=1 has answered 503: closed today"):
            out.write_values(values(*range(1000)))
        assert told
        await finished(out)
        assert sorted(set(server.rows)) == list(range(sent))
        out.close()


async def test_a_refused_batch_fails_the_sink_with_the_beginning_of_the_answer():
    with serving((422, b"no such\x1b[31m table\n" + b"x" * 5000, {})) as server:
        out = made(server.url)
        out.write_values(values(1))
        await until(lambda: out._error)
        for ask in (out.finish, lambda: out.write_values(values(2))):
            with pytest.raises(ConnectorError, match=r"sink out: http://127\.0\.0\.1:\d+/out\?x=1 has answered 422: no such") as failed:
                ask()
            assert len(str(failed.value)) < 400
            assert "\x1b" not in str(failed.value)
        out.close()
        await until(lambda: out.dropped_rows == 1)
        assert len(server.got) == 1


async def test_a_redirected_batch_fails_the_sink_with_where_it_leads():
    with serving((308, b"", {"Location": "http://192.0.2.1/in"})) as server:
        out = made(server.url)
        out.write_values(values(1))
        await until(lambda: out._error)
        assert "has answered 308, write url = 'http://192.0.2.1/in'" in str(out._error)
        out.close()


async def test_a_server_that_never_answers_is_given_up_and_asked_again(monkeypatch):
    monkeypatch.setattr(http_sink, "RETRY_S_MIN", 0.01)
    with serving("silent") as server:
        out = made(server.url, timeout="200 ms")
        out.write_values(values(1))
        await until(lambda: "has not answered within 0.2 s" in out._problem)
        await finished(out)
        assert set(server.rows) == {1}  # on a busy machine the answer to the second request may be late, too
        out.close()


async def test_close_gives_up_after_a_while_and_counts(monkeypatch):
    monkeypatch.setattr(http_sink, "FLUSH_ON_CLOSE_S", 0.1)
    out = made("http://127.0.0.1:9/")
    out.write_values(values(1, 2, 3))
    await until(lambda: out._problem)
    out.close()
    out.close()
    await until(lambda: out.dropped_rows == 3)
    await until(lambda: out._task.done())


async def test_secrets_come_from_files_and_are_told_nowhere(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("s3cret-word\n")
    (tmp_path / "headers").write_text("X-Tenant: blue\n\nX-Key: 0ther-secret\n")
    where = context(tmp_path, loop=asyncio.get_running_loop())
    with serving((400, b"bad", {})) as server:
        out = made(server.url, where, token_file="token", headers_file="headers")
        out.write_values(values(1))
        await until(lambda: out._error)
        headers = server.got[0].headers
        assert (headers["authorization"], headers["x-tenant"], headers["x-key"]) == ("Bearer s3cret-word", "blue", "0ther-secret")
        assert "secret" not in str(out._error)
        assert "s3cret" not in str(out._error)
        out.close()
    (tmp_path / "headers").write_text("no header\n")
    with pytest.raises(ConnectorError, match="headers: line 1 is no header, expected Name: value"):
        made("http://127.0.0.1:9/", where, headers_file="headers")


async def test_tls_takes_the_given_authority_and_no_other(tmp_path):
    where = context(tmp_path, loop=asyncio.get_running_loop())
    with serving(tls=certificate(tmp_path)) as server:
        url = f"https://localhost:{server.port}/"
        out = made(url, where, ca_file="ca.pem")
        out.write_values(values(1))
        await finished(out)
        assert server.rows == [1]
        out.close()
        stranger = made(url, where)
        stranger.write_values(values(2))
        await until(lambda: stranger._error)
        assert "the certificate is not trusted: self-signed certificate" in str(stranger._error)
        stranger.close()
        assert server.rows == [1]


async def test_others_may_have_it_connect_only_where_it_is_allowed():
    where = context(loop=asyncio.get_running_loop())
    config = ConnectorsConfig(tcp=TcpConfig(allow=("127.0.0.1:9000-9999",)))
    reach = Reaches(config, "/nowhere", "n1").of(SinkParams("out", "http", ()))
    others = ConnectorContext(host=where.host, node="n1", labels={}, data_dir="/nowhere", reach=reach, system=where.system)
    for url in ("http://127.0.0.1:8080/", "http://192.0.2.1:9000/", "https://127.0.0.1/"):
        with pytest.raises(ConnectorError, match=r"other agents may not have n1 connect to .*connectors\.tcp\.allow") as refused:
            made(url, others)
        assert refused.value.option == "url"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": "ftp://x/"}, "option url = 'ftp://x/', expected a URL such as 'https://example.org/in'"),
        ({"url": "http://x:99999/"}, "expected a URL such as"),
        ({"url": "http://u:hunter2@x/"}, "expected a URL without user and password: put a token into a file (token_file)"),
        ({"url": "http://x/", "format": "xml"}, "option format = 'xml', expected one of ndjson, json, csv"),
        ({"url": "http://x/", "ca_file": "a"}, "none: the url is not https"),
        ({"url": "http://x/", "batchrows": "1"}, "option batchrows is unknown"),
    ],
)
async def test_options_are_checked(options, told):
    with pytest.raises(ConnectorError) as refused:
        made(**options)
    assert told in str(refused.value)
    assert "hunter2" not in str(refused.value)
