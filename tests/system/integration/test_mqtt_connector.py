"""The `mqtt` connector against a real broker."""

import asyncio
import gc
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiomqtt
import msgspec
import polars as pl
import pytest

from sbon.connectors.interface import Congested
from sbon.errors import ConnectorError
from sbon.formats.mqtt_packets import PUBCOMP, PUBREC, PacketReader, answers
from sbon.operators.values import Values
from sbon.query.params.source import SinkParams
from sbon.reach import ConnectorsConfig, FileConfig, TcpConfig
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.reaches import Reaches
from tests.brokers import Broker, certificates, end_all, needs_broker, passwords
from tests.connector_world import columns, context, sink, source, until

pytestmark = needs_broker
SCHEMA = columns(site="text", n="int")


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    made = Broker(tmp_path / "broker", "allow_anonymous true", "max_queued_messages 0", "log_type all")
    made.start()
    return made


def here(directory: Path | str = "/nowhere") -> ConnectorContext:
    return context(directory, asyncio.get_running_loop())


class Source:
    """A started source, and the rows that it has given."""

    def __init__(self, at: Broker, where: ConnectorContext | None = None, *, keep: bool = False, **options: Any) -> None:
        self.keep = keep
        """If True, rows count as processed only when the test marks them."""
        options = {"topics": "plant/#", "broker": f"127.0.0.1:{at.port}", "topic_columns": "_, site", **options}
        self.connector: Any = source("mqtt", SCHEMA, where or here(), **options)
        self.rows: list[tuple[str, int]] = []
        self.upto: int | None = None
        self.connector.start(lambda: None)

    def poll(self) -> list[tuple[str, int]]:
        polled = self.connector.poll(time.monotonic(), time.time())
        self.upto = polled.upto
        if polled.values is not None:
            self.rows += zip(*polled.values.columns, strict=True)
        if polled.frame is not None:
            self.rows += polled.frame.rows()
        if not self.keep:
            self.acknowledge()
        return self.rows

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.poll()]

    @property
    def ready(self) -> bool:
        return self.connector._subscribers[0].connection.is_open

    def acknowledge(self) -> None:
        if self.upto is not None:
            self.connector.acknowledged(self.upto)


def out(at: Broker, where: ConnectorContext | None = None, **options: Any) -> Any:
    return sink("mqtt", SCHEMA, where or here(), **{"topic": "plant/{site}", "broker": f"127.0.0.1:{at.port}", **options})


def values(*numbers: int, site: str = "ams") -> Values:
    return Values(len(numbers), ([site] * len(numbers), numbers))


async def written(to: Any, *numbers: int, site: str = "ams") -> None:
    """Writes rows as the engine does: on another thread, and again if the far end accepts nothing."""
    while True:
        try:
            await asyncio.to_thread(to.write_values, values(*numbers, site=site))
            return
        except Congested as problem:
            await asyncio.sleep(min(problem.retry_after_s, 0.05))


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kind", ["json", "msgpack"])
async def test_rows_of_a_sink_reach_a_source_in_order(broker: Broker, qos: int, kind: str):
    stream = Source(broker, qos=qos, format=kind)
    await until(lambda: stream.ready)
    to = out(broker, qos=qos, format=kind)
    await written(to, *range(100))
    frame = pl.DataFrame({"site": ["a/b"] * 300, "n": list(range(100, 400))})
    await asyncio.to_thread(to.write, frame)
    await until(lambda: len(stream.poll()) == 400)
    assert stream.rows == [("ams", n) for n in range(100)] + [("a%2Fb", n) for n in range(100, 400)]
    to.close()
    stream.connector.stop()


async def published(broker: Broker, topic: str, *payloads: bytes, qos: int = 1, **how: Any) -> None:
    async with aiomqtt.Client("127.0.0.1", broker.port) as client:
        for payload in payloads:
            await client.publish(topic, payload, qos=qos, **how)


async def test_filters_choose_and_every_form_of_payload_gives_its_rows(broker: Broker):
    stream = Source(broker, topics="plant/+/temp, lab/#", topic_columns="_, site")
    await until(lambda: stream.ready)
    await published(broker, "plant/ams/temp", b'{"n": 1}', b'[{"n": 2}, {"n": 3}]', b'{"n": 4}\n{"n": "five"}\n{"n": 6}')
    await published(broker, "plant/ams/pressure", b'{"n": 99}')
    await published(broker, "plant/temp", b'{"n": 99}')
    await published(broker, "lab/x/y/z", b'{"n": 7}')
    await until(lambda: len(stream.poll()) == 6)
    assert stream.rows == [("ams", n) for n in (1, 2, 3, 4, 6)] + [("x", 7)]
    assert stream.connector.dropped_rows == 1
    assert stream.connector.misfits.told()[0].text == 'column n: "five" is not an integer (BIGINT)'
    stream.connector.stop()


async def test_a_shared_group_gives_each_message_to_one_of_its_members(broker: Broker):
    members = [Source(broker, shared_group="g", client_id=f"member-{number}") for number in range(2)]
    await until(lambda: all(member.ready for member in members))
    to = out(broker)
    await written(to, *range(200))
    await until(lambda: sum(len(member.poll()) for member in members) == 200)
    assert sorted(members[0].numbers + members[1].numbers) == list(range(200))
    assert all(member.rows for member in members)
    for member in members:
        member.connector.stop()
    to.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_several_connections_of_one_source_share_its_messages(broker: Broker, qos: int):
    stream = Source(broker, shared_connections=3, qos=qos)
    connections = [one.connection for one in stream.connector._subscribers]
    await until(lambda: all(one.is_open for one in connections))
    assert len({one.settings.client_id for one in connections}) == 3
    to = out(broker, qos=qos)
    await written(to, *range(300))
    await until(lambda: len(stream.poll()) == 300)
    assert sorted(stream.numbers) == list(range(300))
    took = [one.acknowledging for one in stream.connector._subscribers]
    await until(lambda: stream.poll() and not any(one.unacknowledged for one in took))
    sent = [broker.log.read_text().count(f"Sending PUBLISH to {one.settings.client_id} ") for one in connections]
    assert all(sent)
    assert sum(sent) == 300
    stream.connector.stop()
    to.close()


async def test_a_broker_that_speaks_no_mqtt_is_left_with_a_reason(tmp_path: Path):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\x30\x02\x00\x09")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    broker = Broker(tmp_path / "broker")
    broker.port = server.sockets[0].getsockname()[1]

    async def refused() -> None:
        stream = Source(broker)
        await until(lambda: "a packet that ends within its head" in stream.connector.remark)
        stream.connector.stop()
        task = stream.connector._subscribers[0].connection._task
        await until(task.done)

    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    await refused()
    gc.collect()
    server.close()
    assert reported == []


async def test_a_large_message_comes_in_pieces_and_in_order(broker: Broker):
    stream = Source(broker)
    await until(lambda: stream.ready)
    large = json.dumps([{"n": n, "pad": "x" * 50} for n in range(12_000)]).encode()
    await published(broker, "plant/ams", b'{"n": -1}', large, b'{"n": 12000}')
    await until(lambda: len(stream.poll()) == 12_002)
    assert stream.numbers == list(range(-1, 12_001))
    stream.connector.stop()


async def test_a_message_counts_as_given_when_its_last_row_is(broker: Broker):
    stream = Source(broker, keep=True, batch_rows_max=10)
    await until(lambda: stream.ready)
    await published(broker, "plant/ams", json.dumps([{"n": n} for n in range(25)]).encode(), b'{"n": 25}')
    given = []

    def polled() -> bool:
        if len(stream.poll()) > (given[-1][0] if given else 0):
            given.append((len(stream.rows), stream.upto))
        return len(stream.rows) == 26

    await until(lambda: len(stream.connector._held) == 2)
    await until(polled)
    assert given == [(10, 0), (20, 0), (26, 2)]
    stream.connector.stop()


async def test_a_source_that_nobody_asks_leaves_messages_with_the_broker(broker: Broker):
    stream = Source(broker, keep=True, receive_max=50)
    await until(lambda: stream.ready)
    to = out(broker)
    await written(to, *range(500))
    await until(lambda: len(stream.connector._held) == 50)
    await published(broker, "other", b"x")  # leaves time for unexpected messages
    assert len(stream.connector._held) == 50
    while len(stream.poll()) < 500:
        stream.acknowledge()
        await asyncio.sleep(0.001)
    assert stream.numbers == list(range(500))
    stream.connector.stop()
    to.close()


async def test_a_full_buffer_stops_reading_and_the_connection_stands(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    """Without reading, the broker's answers to pings are not read either; they must not count as missing."""
    monkeypatch.setattr("sbon_agent.connectors.mqtt_connection.KEEPALIVE_S", 1)
    monkeypatch.setattr("sbon_agent.connectors.mqtt_connection.CHECK_S", 0.1)
    stream = Source(broker, buffer_bytes_max=20_000, client_id="slow")
    await until(lambda: stream.ready)
    await published(broker, "plant/ams", *[json.dumps({"n": n, "pad": "x" * 2000}).encode() for n in range(100)])
    await until(lambda: not stream.connector._subscribers[0].connection.client.reading)
    held = len(stream.connector._held)
    assert held < 15
    await until(lambda: broker.log.read_text().count("Received PINGREQ from slow") >= 3)
    assert stream.ready
    assert len(stream.connector._held) == held
    await until(lambda: len(stream.poll()) == 100)
    assert stream.numbers == list(range(100))
    assert "Client slow closed" not in broker.log.read_text()
    stream.connector.stop()


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_not_acknowledged_comes_again_and_what_is_does_not(broker: Broker, qos: int):
    first = Source(broker, keep=True, qos=qos)
    await until(lambda: first.ready)
    to = out(broker, qos=qos)
    await written(to, *range(10))
    await until(lambda: len(first.poll()) == 10)
    first.acknowledge()
    await written(to, *range(10, 20))
    await until(lambda: len(first.poll()) == 20)
    first.connector.stop()  # rows 10 to 19 are given, but not processed
    await until(lambda: first.connector._subscribers[0].connection._task.done())
    await written(to, *range(20, 30))  # while no source is connected
    second = Source(broker, qos=qos)
    await until(lambda: len(second.poll()) == 20)
    assert second.numbers == list(range(10, 30))
    second.connector.stop()
    to.close()


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_broken_connection_repeats_nothing_that_is_still_here(broker: Broker, qos: int):
    stream = Source(broker, keep=True, qos=qos)
    await until(lambda: stream.ready)
    to = out(broker, qos=qos)
    await written(to, *range(30))
    await until(lambda: len(stream.poll()) == 30)
    broker.stop()
    await until(lambda: stream.connector.remark)
    assert stream.connector.remark == f"no connection to mqtt://127.0.0.1:{broker.port}: the broker has closed the connection; trying again"
    broker.start()
    await until(lambda: stream.ready)
    await written(to, *range(30, 40))
    await until(lambda: len(stream.poll()) >= 40)
    # The broker has sent the first rows again meanwhile. An acknowledgement that crossed them would make them look new at QoS 1.
    assert sorted(stream.numbers) == list(range(40))
    stream.acknowledge()
    assert not stream.connector._subscribers[0].acknowledging.unacknowledged
    assert stream.connector.remark == ""
    stream.connector.stop()
    to.close()


async def test_a_source_and_a_sink_wait_for_a_broker_that_is_away(tmp_path: Path):
    broker = Broker(tmp_path / "broker", "allow_anonymous true")
    stream, to = Source(broker), out(broker)
    await until(lambda: "Connection refused" in stream.connector.remark)
    with pytest.raises(Congested, match=f"sink out: no connection to mqtt://127.0.0.1:{broker.port}: "):
        await asyncio.to_thread(to.write_values, values(1))
    broker.start()
    await until(lambda: stream.ready)
    await written(to, 1)
    await until(lambda: stream.poll() == [("ams", 1)])
    stream.connector.stop()
    to.close()


async def test_a_batch_that_the_broker_took_in_part_goes_on_where_it_was(broker: Broker):
    """The broker goes away in the middle of a batch: acknowledged rows are not published again when the batch is offered again."""
    stream = Source(broker)
    await until(lambda: stream.ready)
    to = out(broker, in_flight_max=10)
    await written(to, 0)
    batch = values(*range(1, 3001))
    writing = asyncio.create_task(asyncio.to_thread(to.write_values, batch))
    await until(lambda: to._acknowledged > 100)
    broker.stop()
    with pytest.raises(Congested):
        await writing
    taken = to._acknowledged
    assert 100 < taken < 3000
    broker.start()
    await written(to, *range(1, 3001))
    await until(lambda: len(set(stream.numbers)) == 3001)
    assert list(dict.fromkeys(stream.numbers)) == list(range(3001))
    assert to._base == 3001  # each row was published once, except repetitions by the client library in the session
    stream.connector.stop()
    to.close()


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_sink_goes_on_in_its_session_after_a_break(broker: Broker, qos: int):
    to = out(broker, qos=qos)
    await written(to, 1)
    assert not to._connection.client.session_present  # each process of an agent begins a new session
    to._connection.client._client.socket().shutdown(socket.SHUT_RDWR)
    await until(lambda: not to._connection.is_open)
    await written(to, 2)
    assert to._connection.client.session_present
    broker.stop()  # Mosquitto stores sessions that did not begin with a clean start
    await until(lambda: not to._connection.is_open)
    broker.start()
    await written(to, 3)
    assert to._connection.client.session_present
    to.close()


@pytest.mark.parametrize("keeps_session", [True, False])
async def test_a_row_at_qos_2_that_was_not_released_goes_out_again_only_where_the_broker_has_lost_it(tmp_path: Path, keeps_session: bool):
    """A broker forwards a message at QoS 2 when it is released. This broker goes away before the release."""
    came: list[list[str]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, packets = not came, PacketReader(1 << 20)
        said: list[str] = []
        came.append(said)
        while data := await reader.read(4096):
            messages, released, others = packets.take(data)
            if any(one[0] == 0x10 for one in others):
                writer.write(bytes((0x20, 3, int(keeps_session and not first), 0, 0)))
            for one in messages:
                said.append("message")
                writer.write(answers(PUBREC, [one.mid]))
            if released:
                said.append("release")
                if first:
                    break
                writer.write(answers(PUBCOMP, released))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    broker = Broker(tmp_path / "broker")
    broker.port = server.sockets[0].getsockname()[1]
    to = out(broker, qos=2)
    await written(to, 1)
    assert came == [["message", "release"], ["release"] if keeps_session else ["message", "release"]]
    to.close()
    server.close()


async def test_another_batch_than_the_refused_one_is_published_whole(broker: Broker):
    stream = Source(broker)
    await until(lambda: stream.ready)
    to = out(broker, in_flight_max=1)
    await until(lambda: to._connection.is_open)
    to._under_way[0] = -1  # simulates a slow broker: no room for another message
    with pytest.raises(Congested, match="has not yet acknowledged 3 messages"):
        await asyncio.to_thread(to.write_values, values(1, 2, 3))
    del to._under_way[0]
    await written(to, 4, 5)
    await until(lambda: len(stream.poll()) == 2)
    assert stream.numbers == [4, 5]
    await written(to, 4, 5)  # another call with equal rows is not a repetition of the refused one
    await until(lambda: len(stream.poll()) == 4)
    stream.connector.stop()
    to.close()


async def test_a_closed_sink_refuses_and_a_will_is_published_when_it_goes_without_a_word(broker: Broker):
    stream = Source(broker, format="text", topics="gone/#", topic_columns="_, site")
    await until(lambda: stream.ready)
    to = out(broker, will_topic="gone/press", will_payload="7")
    await written(to, 1)
    to._connection.client._client._sock_close()
    await until(lambda: stream.poll() == [("press", 7)])
    to.close()
    with pytest.raises(ConnectorError, match="sink out: is closed"):
        await asyncio.to_thread(to.write_values, values(1))
    stream.connector.stop()


async def test_retained_messages_are_there_for_those_who_come_later(broker: Broker):
    to = out(broker, retain="true")
    await written(to, 1, 2, 3)
    stream = Source(broker)
    await until(lambda: stream.poll() == [("ams", 3)])
    stream.connector.stop()
    to.close()


async def test_a_message_that_is_too_large_is_left_out_and_counted(broker: Broker):
    stream = Source(broker, message_bytes_max=100)
    await until(lambda: stream.ready)
    await published(broker, "plant/ams", b'{"n": 1}', b'{"n": 2, "pad": "' + b"x" * 1000 + b'"}', b'{"n": 3}')
    await until(lambda: len(stream.poll()) == 2)
    assert stream.numbers == [1, 3]
    assert stream.connector.misfits.told()[0].text == "the message is larger than 100 bytes (message_bytes_max)"
    stream.acknowledge()
    assert not stream.connector._subscribers[0].acknowledging.unacknowledged
    stream.connector.stop()


async def test_two_clients_of_one_name_are_told_apart(broker: Broker):
    first = Source(broker, client_id="one")
    await until(lambda: first.ready)
    second = Source(broker, client_id="one")
    await until(lambda: "does another client connect as client_id = 'one'?" in first.connector.remark + second.connector.remark)
    first.connector.stop()
    second.connector.stop()


async def test_tls_with_the_given_certificates_and_a_password_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    certificate, key = certificates(tmp_path)
    users = passwords(tmp_path, "ams", "correct-horse")
    settings = ("allow_anonymous false", f"password_file {users}", f"certfile {certificate}", f"keyfile {key}")
    broker = Broker(tmp_path / "broker", *settings)
    broker.start()
    secret = tmp_path / "secret"
    secret.write_text("correct-horse\n")
    secret.chmod(0o600)
    where = here(tmp_path)
    stranger = Source(broker, where, tls="true", username="ams", password_file="secret", client_id="stranger")
    await until(lambda: "certificate" in stranger.connector.remark.lower())
    wrong = Source(broker, where, tls="true", ca_file="cert.pem", client_id="wrong")
    await until(lambda: "authori" in wrong.connector.remark.lower())
    known = {"tls": "true", "ca_file": str(certificate), "username": "ams", "password_file": "secret"}
    stream, to = Source(broker, where, **known), out(broker, where, **known)
    await until(lambda: stream.ready)
    await written(to, 1)
    await until(lambda: stream.poll() == [("ams", 1)])
    for one in (stranger, wrong, stream):
        assert "correct-horse" not in one.connector.remark
        one.connector.stop()
    to.close()
    said = capsys.readouterr()
    assert "mqtt.connection_lost" in said.out + said.err
    assert "correct-horse" not in said.out + said.err + broker.log.read_text()
    secret.chmod(0o640)
    with pytest.raises(ConnectorError, match=f"others can read the password in {secret} .mode 0640.: write chmod 600"):
        Source(broker, where, **known)


# ------------------------------------------------------------------------------------------------------------- refusals

BAD = [
    ({}, "connector 'mqtt' needs option broker: write broker = '127.0.0.1:1883'"),
    ({"broker": "mqtt://h:1"}, "option broker = 'mqtt://h:1', expected 'host:port', such as 'broker.example:1883', without a scheme"),
    ({"broker": "ams:horse@h:1"}, "option broker = 'h:1', expected 'host:port', such as 'broker.example:1883', without user and password"),
    ({"broker": "h:70000"}, "option broker = 'h:70000', expected a port from 1 to 65535"),
    ({"broker": "h", "password": "horse"}, "option password would be shown to every member of the overlay: write it to a file"),
    ({"broker": "h", "password_file": "f"}, "a password needs option username: write username = 'name'"),
    ({"broker": "h", "username": "u", "password_variable": "A B"}, "the name of an environment variable, such as 'PLANT_PASSWORD'"),
    ({"broker": "h", "ca_file": "f"}, "option ca_file = 'f', expected tls = 'true' as well"),
    ({"broker": "h", "qos": "3"}, "option qos = '3', expected a whole number from 0 to 2"),
    ({"broker": "h", "client_id": ""}, "option client_id = '', expected 1 to 1024 bytes"),
    ({"broker": "h", "clientid": "x"}, "option clientid is unknown to connector 'mqtt'; did you mean client_id?"),
]
BAD_SOURCE = [
    ({"topics": "a/#/b"}, "option topics = 'a/#/b', expected topic filters separated by commas"),
    ({"session": "clean", "session_expiry": "1 h"}, "option session_expiry = '1 h', expected session = 'persistent' as well"),
    ({"shared_group": "a/b"}, "option shared_group = 'a/b', expected a name without '/', '+' and '#'"),
    ({"shared_connections": "17"}, "option shared_connections = '17', expected a whole number from 1 to 16"),
    ({"receive_max": "0"}, "option receive_max = '0', expected a whole number from 1 to 65535"),
]
BAD_SINK = [
    ({"topic": "a/{town}"}, "has {town}, expected a column of the query: site, n"),
    ({"will_payload": "x"}, "option will_payload = 'x', expected will_topic = 'agents/press-7' as well"),
    ({"will_topic": "a/#"}, "option will_topic = 'a/#', expected a topic without '+' and '#'"),
]


@pytest.mark.parametrize(("given", "message"), [*BAD, *[({"broker": "h", **given}, message) for given, message in BAD_SOURCE]])
async def test_bad_options_of_a_source_are_refused(given: dict[str, str], message: str):
    with pytest.raises(ConnectorError) as refused:
        source("mqtt", SCHEMA, here(), **{"topics": "a/+", **given})
    assert message in str(refused.value)
    assert "horse" not in str(refused.value)


@pytest.mark.parametrize(("given", "message"), [*BAD, *[({"broker": "h", **given}, message) for given, message in BAD_SINK]])
async def test_bad_options_of_a_sink_are_refused(given: dict[str, str], message: str):
    with pytest.raises(ConnectorError) as refused:
        sink("mqtt", SCHEMA, here(), **{"topic": "a/{site}", **given})
    assert message in str(refused.value)
    assert "horse" not in str(refused.value)


@pytest.mark.parametrize("kind", ["source", "sink"])
def test_a_world_without_sockets_refuses(kind: str):
    with pytest.raises(ConnectorError, match="connector 'mqtt' needs real sockets"):
        source("mqtt", SCHEMA, broker="h", topics="a") if kind == "source" else sink("mqtt", SCHEMA, broker="h", topic="a")


def others(directory: Path, *allow: str) -> ConnectorContext:
    """Makes the context of a connector that another agent requests."""
    config = ConnectorsConfig(file=FileConfig(allow=("files",)), tcp=TcpConfig(allow=allow or ("127.0.0.0/8",)))
    reach = Reaches(config, str(directory), "n1").of(SinkParams("out", "mqtt", ()))
    return msgspec.structs.replace(here(), reach=reach)


@pytest.mark.parametrize("host", ["192.0.2.1", "10.1.2.3", "[2001:db8::1]", "127.0.0.1"])
async def test_other_agents_reach_allowed_brokers_only(host: str, tmp_path: Path):
    where = others(tmp_path, "127.0.0.0/8:1884")
    for make, option in ((source, "topics"), (sink, "topic")):
        with pytest.raises(ConnectorError) as refused:
            make("mqtt", SCHEMA, where, broker=f"{host}:1883", **{option: "a"})
        wanted = f"may not have n1 connect to {host.strip('[]')}:1883: to allow it, add its address to connectors.tcp.allow"
        assert wanted in str(refused.value)


async def test_other_agents_use_allowed_brokers_and_no_secrets_of_this_machine(broker: Broker, tmp_path: Path):
    where = others(tmp_path)
    stream = Source(broker, where, broker=f"localhost:{broker.port}")
    to = out(broker, where, broker=f"localhost:{broker.port}")
    await until(lambda: stream.ready)
    await written(to, 1)
    await until(lambda: stream.poll() == [("ams", 1)])
    stream.connector.stop()
    to.close()
    secret = tmp_path / "secret"
    secret.write_text("correct-horse")
    secret.chmod(0o600)
    with pytest.raises(ConnectorError, match=r"connectors\.file\.allow"):
        Source(broker, where, username="u", password_file=str(secret))
    with pytest.raises(ConnectorError, match="may not read the environment of n1: write password_file"):
        Source(broker, where, username="u", password_variable="HOME")


async def test_a_password_from_the_environment_that_is_not_there_is_refused(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PLANT_PASSWORD", raising=False)
    with pytest.raises(ConnectorError, match="the agent's environment has no variable PLANT_PASSWORD"):
        Source(broker, username="u", password_variable="PLANT_PASSWORD")


async def test_a_name_that_leads_elsewhere_later_is_not_followed(broker: Broker, tmp_path: Path):
    """A name is resolved and checked for each connection, and the connection uses the checked address."""
    stream = Source(broker, others(tmp_path), broker=f"localhost:{broker.port}")
    connection = stream.connector._subscribers[0].connection
    await until(lambda: stream.ready)
    assert connection.client._hostname == "127.0.0.1"

    async def elsewhere(*name: Any, **how: Any) -> list[Any]:
        return [(0, 0, 0, "", ("192.0.2.1", broker.port))]

    connection.loop = type("Loop", (), {"getaddrinfo": staticmethod(elsewhere)})()
    broker.stop()
    broker.start()
    await until(lambda: connection.error)
    with pytest.raises(ConnectorError, match=r"connectors\.tcp\.allow"):
        stream.poll()
    stream.connector.stop()
