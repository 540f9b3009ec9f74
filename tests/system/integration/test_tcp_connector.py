"""The `tcp` connector on real sockets."""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import polars as pl
import pytest

from sbon.connectors.interface import Congested
from sbon.connectors.outside import KEEPALIVE_IDLE_S
from sbon.errors import ConnectorError
from sbon.operators.values import Values
from sbon.query.params.source import SinkParams
from sbon.reach import ConnectorsConfig, TcpConfig
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.reaches import Reaches
from tests.connector_world import DEADLINE_S, columns, context, sink, source, until

SCHEMA = columns(ts="time", n="int")


def lines(*numbers: int) -> bytes:
    return b"".join(json.dumps({"ts": f"2020-01-01T00:00:{n % 60:02}Z", "n": n}).encode() + b"\n" for n in numbers)


class Source:
    """A started source, and the rows that it has given."""

    def __init__(self, **options: Any) -> None:
        where = context(loop=asyncio.get_running_loop())
        self.connector: Any = source("tcp", SCHEMA, where, time="ts", **options)
        self.numbers: list[int] = []
        self.watermark_us = 0
        self.connector.start(lambda: None)

    def poll(self) -> int:
        polled = self.connector.poll(time.monotonic(), time.time())
        self.watermark_us = polled.watermark_us
        if polled.values is not None:
            self.numbers.extend(polled.values.columns[1])
        if polled.frame is not None:
            self.numbers.extend(polled.frame["n"].to_list())
        return len(self.numbers)


async def test_lines_of_many_peers_become_rows():
    stream = Source(port=0)
    host, port = await until(lambda: stream.connector.address)
    peers = [await asyncio.open_connection(host, port) for _ in range(3)]
    for i, (_, writer) in enumerate(peers):
        writer.write(lines(*range(i * 10, i * 10 + 10)))
    await until(lambda: stream.poll() == 30)
    assert sorted(stream.numbers) == list(range(30))
    assert stream.watermark_us == 1_577_836_829_000_000
    for _, writer in peers:
        writer.write(b'{"n": 99}')  # the last line lacks its end
        writer.close()
    await until(lambda: stream.poll() == 33)
    stream.connector.stop()
    stream.connector.stop()


def lines_of_today_and(*texts: str, today: int) -> bytes:
    return b"".join(json.dumps({"ts": ts, "n": n}).encode() + b"\n" for n, ts in enumerate([*texts, *["2020-01-01T00:00:00Z"] * today]))


@pytest.mark.parametrize("today", [3, 300], ids=["values", "frame"])
async def test_rows_too_far_ahead_of_the_clock_are_left_out_and_counted(today: int):
    stream = Source(port=0, ahead_max="1 hour")
    host, port = await until(lambda: stream.connector.address)
    _, writer = await asyncio.open_connection(host, port)
    soon = datetime.fromtimestamp(time.time() + 1800, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    writer.write(lines_of_today_and("9999-01-01T00:00:00Z", soon, today=today) + b'{"n": 77}\n')
    await until(lambda: stream.poll() == today + 2)

    assert sorted(stream.numbers) == [*range(1, today + 2), 77] if today < 76 else 0 not in stream.numbers
    assert stream.connector.dropped_rows == 1
    (misfit,) = stream.connector.misfits.told()
    assert misfit.text == "column ts: 9999-01-01 00:00:00 is farther ahead of this machine's clock than ahead_max"
    assert misfit.line == '{"ts": "9999-01-01 00:00:00", "n": 0}'
    assert stream.watermark_us == int(datetime.fromisoformat(soon).timestamp()) * 1_000_000
    assert stream.connector.remark == ""
    writer.close()
    stream.connector.stop()


async def test_the_first_row_a_day_ahead_is_told_of_where_all_are_taken():
    stream = Source(port=0)
    host, port = await until(lambda: stream.connector.address)
    _, writer = await asyncio.open_connection(host, port)
    writer.write(lines_of_today_and(today=2))
    await until(lambda: stream.poll() == 2)
    assert stream.connector.remark == ""
    writer.write(lines_of_today_and("9999-12-31T00:00:00Z", today=0))
    await until(lambda: stream.poll() == 3)

    assert "a row of 9999-12-31T00:00:00 has come, ahead of this machine's clock" in stream.connector.remark
    assert stream.connector.dropped_rows == 0
    writer.close()
    stream.connector.stop()


async def test_without_event_time_there_is_nothing_to_be_ahead():
    where = context(loop=asyncio.get_running_loop())
    with pytest.raises(ConnectorError, match="ahead_max = '1 hour', expected none: the source has no event time"):
        source("tcp", SCHEMA, where, port=0, ahead_max="1 hour")


async def test_lines_that_came_at_once_are_cut_into_batches():
    stream = Source(port=0, batch_rows_max=7, line_bytes_max=100)
    host, port = await until(lambda: stream.connector.address)
    _, writer = await asyncio.open_connection(host, port)
    writer.write(lines(*range(20)) + b"z" * 101 + b"\n" + lines(*range(20, 40)) + b'{"n": 4')
    await until(lambda: stream.connector.due_rows(0.0) == 40)

    counts = [stream.poll() for _ in range(3)]
    writer.write(b"0}\n")
    await until(lambda: stream.poll() == 41)

    assert counts == [7, 14, 21]
    assert stream.numbers == list(range(41))
    assert stream.connector.dropped_rows == 1
    assert stream.connector.due_rows(0.0) == 0
    writer.close()
    stream.connector.stop()


async def test_bad_and_endless_lines_are_counted_and_the_others_come_through():
    stream = Source(port=0, line_bytes_max=100)
    host, port = await until(lambda: stream.connector.address)
    _, writer = await asyncio.open_connection(host, port)
    writer.write(lines(1) + b"nonsense\n\n" + b"x" * 150 + b"\n" + lines(2))
    await until(lambda: stream.poll() == 2)
    writer.write(b"y" * 100_000)
    await writer.drain()
    writer.write(b"y" * 50 + b"\n" + lines(3))
    await until(lambda: stream.poll() == 3)
    assert stream.connector.dropped_rows == 3
    assert {kind.text: kind.rows for kind in stream.connector.misfits.told()} == {
        "the line is not JSON: invalid character (byte 4)": 1,
        "the line is longer than 100 bytes (line_bytes_max)": 2,
    }
    writer.close()
    stream.connector.stop()


async def test_a_full_buffer_reaches_back_to_the_peer():
    stream = Source(port=0, buffer_bytes_max=10_000, batch_rows_max=50)
    host, port = await until(lambda: stream.connector.address)
    _, writer = await asyncio.open_connection(host, port)
    numbers = list(range(200_000))

    async def send() -> None:
        for at in range(0, len(numbers), 1000):
            writer.write(lines(*numbers[at : at + 1000]))
            await writer.drain()

    sending = asyncio.create_task(send())
    await until(lambda: stream.connector._paused)
    held = stream.connector._buffer.size_bytes
    assert held < 10_000 + 2**18  # one read beyond the limit
    assert not sending.done()

    def fast() -> bool:
        stream.connector._batches.rows_max = 100_000
        stream.connector._buffer_bytes_max = 1 << 20
        return stream.poll() == len(numbers)

    await until(fast)
    assert stream.numbers == numbers
    await sending
    writer.close()
    stream.connector.stop()


async def test_a_flood_is_decoded_on_a_thread_and_a_row_alone_at_once():
    """No row is lost, reordered or repeated while lines come in on the event loop and a poll decodes others on a thread."""
    stream = Source(port=0, line_bytes_max=100)
    host, port = await until(lambda: stream.connector.address)
    _, writer = await asyncio.open_connection(host, port)
    writer.write(lines(0))
    await until(lambda: stream.connector.due_rows(0.0))
    assert not stream.connector.threaded
    stream.poll()

    async def send() -> None:
        for at in range(1, 100_001, 1000):
            writer.write(lines(*range(at, at + 1000)) + b'{"n": "' + str(at).encode() + b'x"}\n' + b"z" * 101 + b"\n")
            await writer.drain()
        writer.write(b'{"n": 1')  # cut in the middle of a line
        writer.close()

    sending = asyncio.create_task(send())
    await until(lambda: stream.connector.threaded)
    stream.connector.batch_rows = 10_000
    deadline = time.monotonic() + DEADLINE_S
    while len(stream.numbers) < 100_001 or stream.connector.dropped_rows < 201:
        assert time.monotonic() < deadline, "the condition does not hold in time"
        await (asyncio.to_thread(stream.poll) if stream.connector.threaded else asyncio.sleep(0, stream.poll()))
    await sending

    assert stream.numbers == list(range(100_001))
    assert {kind.text: (kind.rows, kind.line) for kind in stream.connector.misfits.told()} == {
        'column n: "1x" is not an integer (BIGINT)': (100, '{"n": "1x"}'),
        "the line is longer than 100 bytes (line_bytes_max)": (100, "z" * 101),
        "the line is not JSON: Input data was truncated": (1, '{"n": 1'),
    }
    stream.connector.stop()


async def test_a_poll_that_may_give_few_rows_takes_few_lines():
    """The engine asks for few rows on the event loop; only as many lines are decoded there, instead of a block of some MiB."""
    stream = Source(port=0)
    host, port = await until(lambda: stream.connector.address)
    _, writer = await asyncio.open_connection(host, port)
    writer.write(lines(*range(3000)))
    await until(lambda: stream.connector.due_rows(0.0) == 3000)

    stream.connector.batch_rows = 100
    stream.poll()
    assert stream.connector._buffer.lines == 2900
    stream.connector.batch_rows = 2000
    stream.poll()
    assert (stream.connector._buffer.lines, stream.connector.due_rows(0.0)) == (0, 900)

    stream.poll()
    assert stream.numbers == list(range(3000))
    writer.close()
    stream.connector.stop()


async def test_a_connecting_source_comes_back_when_its_peer_does():
    served = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        writer.write(lines(len(served)))
        await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    stream = Source(mode="connect", port=port)
    await until(lambda: stream.poll() == 1)
    served[0].close()
    await until(lambda: stream.poll() == 2)
    assert stream.numbers == [1, 2]
    stream.connector.stop()
    server.close()


async def test_an_idle_peer_holds_the_watermark_only_as_long_as_it_may():
    stream = Source(port=0, idle_us=60_000_000)
    connector = stream.connector
    assert connector.poll(100.0, 1000.0).watermark_us < 0
    assert connector.poll(159.0, 1059.0).watermark_us < 0
    polled = connector.poll(160.0, 1060.0)
    assert polled.watermark_us == 1_000_000_000
    assert polled.next_poll == 161.0
    connector.stop()


async def test_the_kernel_probes_peers_that_are_silent():
    """A source never writes, so nothing else would tell it that the machine of its peer has gone."""
    listening = Source(port=0)
    host, port = await until(lambda: listening.connector.address)
    out: Any = sink("tcp", SCHEMA, context(loop=asyncio.get_running_loop()), host=host, port=port)
    for endpoint in (listening.connector._endpoint, out._endpoint):
        (connection,) = await until(lambda: endpoint.connections)  # noqa: B023 - asked at once
        connected = connection.stream._transport.get_extra_info("socket")
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE_IDLE_S
    out.close()
    listening.connector.stop()


async def test_a_taken_port_is_one_clear_error():
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    stream = Source(port=port)
    await until(lambda: stream.connector._endpoint.error)
    with pytest.raises(ConnectorError, match=rf"source s: cannot listen on 127\.0\.0\.1:{port}: "):
        stream.poll()
    stream.connector.stop()
    server.close()


@pytest.mark.parametrize("kind", ["source", "sink"])
def test_a_world_without_sockets_refuses(kind: str):
    with pytest.raises(ConnectorError, match="needs real sockets"):
        source("tcp", SCHEMA, port=9000) if kind == "source" else sink("tcp", SCHEMA, port=9000)


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "needs option port"), ({"port": "x"}, "port = 'x'"), ({"port": 1, "mode": "ask"}, "expected one of connect, listen")],
)
async def test_bad_options_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConnectorError, match=message):
        source("tcp", SCHEMA, context(loop=asyncio.get_running_loop()), **options)


# --------------------------------------------------------------------------------------------------------------- sinks


def frame(*numbers: int) -> pl.DataFrame:
    return pl.DataFrame({"ts": pl.Series([0] * len(numbers)).cast(pl.Datetime("us")), "n": list(numbers)})


async def write(out: Any, *numbers: int) -> None:
    """Writes rows as the engine does: on another thread."""
    await asyncio.to_thread(out.write, frame(*numbers))


async def test_a_sink_delivers_every_row_before_it_goes():
    received: list[dict[str, Any]] = []
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend([json.loads(line) async for line in reader])
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    out: Any = sink("tcp", SCHEMA, context(loop=asyncio.get_running_loop()), port=server.sockets[0].getsockname()[1])
    for i in range(50):
        await write(out, *range(i * 100, i * 100 + 100))
    await asyncio.to_thread(out.close)
    await asyncio.wait_for(ended.wait(), DEADLINE_S)
    assert [row["n"] for row in received] == list(range(5000))
    assert received[0]["ts"] == "1970-01-01T00:00:00.000000Z"
    server.close()


async def test_a_sink_without_a_peer_asks_for_patience_and_then_delivers():
    out: Any = sink("tcp", SCHEMA, context(loop=asyncio.get_running_loop()), mode="listen", port=0, buffer_bytes_max=2048)
    host, port = await until(lambda: out.address)
    taken = 0
    while out._held_bytes < 2000:
        await write(out, taken)
        taken += 1
    with pytest.raises(Congested, match="no peer is connected"):
        await write(out, taken, taken)
    assert 10 < taken < 100
    reader, writer = await asyncio.open_connection(host, port)
    got = [json.loads(await asyncio.wait_for(reader.readline(), DEADLINE_S))["n"] for _ in range(taken)]
    assert got == list(range(taken))
    await write(out, taken)
    assert json.loads(await asyncio.wait_for(reader.readline(), DEADLINE_S))["n"] == taken
    await asyncio.to_thread(out.close)
    assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
    writer.close()


async def test_a_frame_larger_than_the_buffer_still_goes():
    out: Any = sink("tcp", SCHEMA, context(loop=asyncio.get_running_loop()), mode="listen", port=0, buffer_bytes_max=1024)
    host, port = await until(lambda: out.address)
    await write(out, *range(10_000))
    with pytest.raises(Congested):
        await write(out, 1)
    reader, writer = await asyncio.open_connection(host, port)
    out.close()
    text = await asyncio.wait_for(reader.read(), DEADLINE_S)
    assert [json.loads(line)["n"] for line in text.splitlines()] == list(range(10_000))
    writer.close()


async def test_a_slow_peer_slows_the_query_and_no_row_is_lost():
    out: Any = sink("tcp", SCHEMA, context(loop=asyncio.get_running_loop()), mode="listen", port=0, buffer_bytes_max=100_000)
    host, port = await until(lambda: out.address)
    reader, writer = await asyncio.open_connection(host, port, limit=2**14)
    total, refused = 0, 0
    while refused < 3:
        try:
            await write(out, *range(total, total + 2000))
            total += 2000
        except Congested:
            refused += 1
            await asyncio.sleep(0.01)
    out.close()
    text = await asyncio.wait_for(reader.read(), DEADLINE_S)
    assert [json.loads(line)["n"] for line in text.splitlines()] == list(range(total))
    assert out.dropped_rows == 0
    writer.close()


async def test_a_closed_sink_without_peer_gives_up_and_says_how_many_rows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sbon.connectors.line_sink.FLUSH_ON_CLOSE_S", 0.01)
    out: Any = sink("tcp", SCHEMA, context(loop=asyncio.get_running_loop()), mode="listen", port=0)
    await write(out, 1, 2, 3)
    out.close()
    await until(lambda: out.dropped_rows == 3)
    with pytest.raises(ConnectorError, match="closed"):
        await write(out, 1)


def values(*numbers: int) -> Values:
    return Values(len(numbers), ([0] * len(numbers), numbers))


async def test_rows_of_either_form_from_any_thread_reach_every_peer_in_order():
    out: Any = sink("tcp", SCHEMA, context(loop=asyncio.get_running_loop()), mode="listen", port=0)
    host, port = await until(lambda: out.address)
    peers = [await asyncio.open_connection(host, port) for _ in range(2)]
    await until(lambda: len(out._endpoint.connections) == 2)
    for n in range(0, 400, 4):
        await write(out, n)  # its flush must wait for the event loop
        out.write_values(values(n + 1))
        out.write(frame(n + 2))
        await asyncio.to_thread(out.write_values, values(n + 3))
    out.close()
    for reader, writer in peers:
        text = await asyncio.wait_for(reader.read(), DEADLINE_S)
        assert [json.loads(line)["n"] for line in text.splitlines()] == list(range(400))
        writer.close()


async def test_a_row_from_the_loops_own_thread_waits_for_no_turn_of_it():
    out: Any = sink("tcp", SCHEMA, context(loop=asyncio.get_running_loop()), mode="listen", port=0)
    host, port = await until(lambda: out.address)
    reader, writer = await asyncio.open_connection(host, port)
    await until(lambda: out._endpoint.connections)
    out.write_values(values(7))
    assert not out._held
    assert json.loads(await asyncio.wait_for(reader.readline(), DEADLINE_S)) == {"ts": "1970-01-01T00:00:00.000000Z", "n": 7}
    out.close()
    writer.close()


async def test_values_are_refused_and_taken_as_frames_are():
    out: Any = sink("tcp", SCHEMA, context(loop=asyncio.get_running_loop()), mode="listen", port=0, buffer_bytes_max=1024)
    host, port = await until(lambda: out.address)
    taken = 0
    while out._held_bytes < 1000:
        out.write_values(values(taken))
        taken += 1
    held = out._held_bytes
    for _ in range(2):
        with pytest.raises(Congested, match="no peer is connected"):
            out.write_values(values(taken))
    assert out._held_bytes == held <= 1024
    reader, writer = await asyncio.open_connection(host, port)
    await until(lambda: not out._held)
    out.write_values(values(taken))
    out.close()
    with pytest.raises(ConnectorError, match="closed"):
        out.write_values(values(taken))
    text = await asyncio.wait_for(reader.read(), DEADLINE_S)
    assert [json.loads(line)["n"] for line in text.splitlines()] == list(range(taken + 1))
    writer.close()


class Peer:
    """A connection, or its stream, that reports room from inside `write`, or that has broken without a report."""

    def __init__(self, out: Any) -> None:
        self.out, self.got, self.full, self.broken = out, [], False, False
        self.stream = self

    @property
    def is_open(self) -> bool:
        return not self.broken

    def close(self) -> None:
        self.broken = True

    def write(self, data: bytes) -> None:
        self.got.append(json.loads(data)["n"])
        self.out.writable()


async def test_rows_stay_in_order_when_there_is_room_again_and_none_is_given_to_a_broken_connection():
    out: Any = sink("tcp", SCHEMA, context(loop=asyncio.get_running_loop()), mode="listen", port=0)
    await until(lambda: out.address)
    peers = [Peer(out), Peer(out)]
    out._endpoint.connections[:] = peers
    peers[1].full = True
    for n in range(5):
        out.write_values(values(n))
    assert not peers[0].got  # the slowest peer sets the pace
    peers[1].full = False
    out.writable()
    assert [peer.got for peer in peers] == [list(range(5))] * 2
    peers[0].broken = peers[1].broken = True
    out.write_values(values(5))
    assert len(out._held) == 1
    out._endpoint.connections[:] = [Peer(out)]
    out.connected(out._endpoint.connections[0])
    assert out._endpoint.connections[0].got == [5]
    out.close()


def others(*allow: str) -> ConnectorContext:
    """Returns the context of a connector that another agent requests."""
    config = ConnectorsConfig(tcp=TcpConfig(allow=allow)) if allow else ConnectorsConfig()
    reach = Reaches(config, "/nowhere", "n1").of(SinkParams("out", "tcp", ()))
    return msgspec.structs.replace(context(loop=asyncio.get_running_loop()), reach=reach)


@pytest.mark.parametrize("mode", ["listen", "connect"])
@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "10.1.2.3"])
async def test_other_agents_reach_loopback_alone_unless_the_settings_say_more(mode: str, host: str):
    for make in (source, sink):
        with pytest.raises(ConnectorError) as refused:
            make("tcp", SCHEMA, others(), mode=mode, host=host, port=9000)
        verb = "listen on" if mode == "listen" else "connect to"
        assert f"may not have n1 {verb} {host}:9000: to allow it, add its address to connectors.tcp.allow" in str(refused.value)
    # connecting to 0.0.0.0 reaches this machine, so it is refused unless allowed, and so is a port that is not allowed
    with pytest.raises(ConnectorError, match=r"connectors\.tcp\.allow"):
        sink("tcp", SCHEMA, others("127.0.0.0/8:9001"), mode=mode, port=9000)


async def test_what_is_allowed_carries_rows_for_other_agents():
    listening: Any = source("tcp", SCHEMA, others("127.0.0.0/8"), port=0, host="localhost")
    listening.start(lambda: None)
    _, port = await until(lambda: listening.address)
    out: Any = sink("tcp", SCHEMA, others("127.0.0.0/8", f"[::1]:{port}"), host="localhost", port=port)
    out.write_values(values(7))
    got: list[Any] = []

    def row() -> bool:
        polled = listening.poll(time.monotonic(), time.time())
        got.extend(polled.values.columns[1] if polled.values is not None else [])
        return bool(got)

    await until(row)
    assert got == [7]
    out.close()
    listening.stop()


async def test_a_name_that_leads_elsewhere_later_is_not_followed():
    """A name is resolved and checked for each connection, and the connection uses the checked address."""
    out: Any = sink("tcp", SCHEMA, others(), host="localhost", port=9)
    sockets = out._endpoint.outside
    (await until(lambda: sockets._task)).cancel()
    sockets._loop = SimpleNamespace(getaddrinfo=answering("192.0.2.1", "127.0.0.1"), create_connection=None)
    assert await sockets._place.addresses(sockets._loop) == ["127.0.0.1"]
    sockets._loop = SimpleNamespace(getaddrinfo=answering("192.0.2.1"), create_connection=None)
    await sockets._connect(None, out._endpoint._fail)
    assert "connectors.tcp.allow" in str(out._endpoint.error)
    with pytest.raises(ConnectorError, match=r"connectors\.tcp\.allow"):
        out.write_values(values(1))


def answering(*addresses: str) -> Callable[..., Any]:
    """Returns a resolver that gives these addresses."""

    async def getaddrinfo(host: str, port: int, **how: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, port)) for address in addresses]

    return getaddrinfo
