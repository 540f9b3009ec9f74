"""An agent with sources and sinks of every kind is killed (SIGKILL) and restarted: checks which rows each of them loses and repeats."""

import json
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sbon_testbed.processes.local import free_ports
from tests.brokers import MOSQUITTO, Broker, end_all, needs_broker
from tests.http_servers import Server
from tests.processes import Process, wait_until
from tests.push_world import EventReader, Reader
from tests.system.integration.test_websocket_sink import UPGRADE
from tests.text_files import whole_lines

PER_SECOND = 50
BEFORE = AFTER = 60
"""Rows that each query has delivered before the crash, and delivers after it."""
SETTINGS = """
[placement]
reuse = false
[optimiser]
enabled = false
[links]
window_batches = 16
[engine]
position_bytes_min = 1
"""
GEN = """CREATE SOURCE {0} (ts TIMESTAMP, n BIGINT)
    WITH (connector = 'datagen', nodes = '{1}', rows_per_second = 50, fields.n.kind = 'sequence')"""
ROWS_IN_FLIGHT = 1100
"""Number of MQTT messages that may come twice."""


class Kind(NamedTuple):
    """One connector on the agent that crashes, with its feeder or reader elsewhere."""

    sql: tuple[str, ...]
    delivered: Callable[["Story"], list[int]]
    """Returns the numbers that have arrived, in order."""


class Client:
    """Reads from a listening sink, and reconnects with the last event's id after a break."""

    def __init__(self, port: int, kind: str) -> None:
        self.port, self.kind = port, kind
        self.got = b""
        self.reader: Reader | None = None
        self.connections = 0
        self.missed: list[Any] = []

    def read(self) -> list[int]:
        """Returns the numbers of all complete rows received, over all connections."""
        if self.reader is None or self.reader.ended:
            self._keep()
            try:
                self.reader = self._connected()
            except OSError:
                self.reader = None
                return numbers_in(self.got)
            self.connections += 1
        return numbers_in(self.got + self.reader.read())

    def _connected(self) -> Reader:
        address = ("127.0.0.1", self.port)
        if self.kind == "websocket":
            return Reader(address, "\r\n".join(["GET /rows?kept=true HTTP/1.1", *UPGRADE, "", ""]).encode())
        ids = [line for line in self.got.split(b"\n") if line.startswith(b"id: ")]
        last = [f"Last-Event-ID: {ids[-1][4:].decode().strip()}"] if ids else []
        return EventReader(address, "/rows?kept=true", *last)

    def _keep(self) -> None:
        if self.reader is not None:
            self.got += self.reader.read()
            self.reader.close()


def numbers_in(data: bytes) -> list[int]:
    """Returns the numbers of the rows in the bytes of a connection, whatever their framing."""
    return [int(piece.partition(b"}")[0]) for piece in data.split(b'"n":')[1:] if b"}" in piece]


class Story:
    """Agent a is the home of the queries and has the far ends; b has the connectors, is killed, and restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "agent.toml").write_text(SETTINGS)
        self.server = Server()
        self.server.page = (200, b'{"n": 1}\n{"n": 2}\n', {"Content-Type": "application/x-ndjson", "ETag": '"1"'})
        self.broker: Broker | None = None
        if MOSQUITTO is not None:
            self.broker = Broker(folder / "broker", "allow_anonymous true", "max_queued_messages 0")
            self.broker.start()
        ports = free_ports(6)
        self.ports = dict(zip(("tcp in", "tcp out", "http in", "sse", "websocket", "b"), ports, strict=True))
        self.clients = {kind: Client(self.ports[kind], kind) for kind in ("sse", "websocket")}
        self.a = self.start("a", "127.0.0.1:0")
        self.join = self.a.ask("status")["address"]
        self.b = self.start("b", f"127.0.0.1:{self.ports['b']}", "--join", self.join)
        wait_until(lambda: all(self.alive(agent) == {"a", "b"} for agent in (self.a, self.b)))
        files = self.b.directory / "files"
        files.mkdir(exist_ok=True)
        times = (f"2026-01-01T00:{n // 3000:02d}:{n // PER_SECOND % 60:02d}.{n % PER_SECOND * 20:03d},{n}" for n in range(150_000))
        (files / "r.csv").write_text("\n".join(["ts,n", *times, ""]))
        (files / "t.csv").write_text("id,name\n1,old\n")
        self.kinds = kinds(self)
        self.before: dict[str, list[int]] = {}
        self.after: dict[str, list[int]] = {}
        for kind in self.kinds.values():
            for statement in kind.sql:
                self.a.ask("submit", sql=statement)

    def start(self, name: str, bind: str, *options: str) -> Process:
        return Process(self.folder, name, "--bind", bind, "--config", str(self.folder / "agent.toml"), *options).wait_until_ready()

    def alive(self, agent: Process) -> set[str]:
        return {member["name"] for member in agent.ask("members") if member["status"] == "alive"}

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Returns the complete lines of a file of agent a, or of b."""
        found = [path for path in (self.folder / name, self.b.directory / "files" / name) if path.exists()]
        return [json.loads(line) for line in whole_lines(found[0])] if found else []

    def numbers(self, name: str) -> list[int]:
        return [row["n"] for row in self.rows(name)]

    def polled(self) -> list[int]:
        """Returns the rows of the source that polls a URL, each `BEFORE` times, because they are few."""
        return [number for number in self.numbers("polled.ndjson") for _ in range(BEFORE)]

    def play(self) -> None:
        """Kills b once all queries have delivered rows, restarts it, and waits until all have delivered more."""
        self._wait(dict.fromkeys(self.kinds, BEFORE))
        wait_until(lambda: any((self.b.directory / "positions").glob("*.json")))
        self.b.end(signal.SIGKILL)
        self.before = {name: kind.delivered(self) for name, kind in self.kinds.items()}
        self.b = self.start("b", f"127.0.0.1:{self.ports['b']}", "--join", self.join)
        self._wait({name: len(self.before[name]) + AFTER for name in self.kinds})
        files = self.b.directory / "files"
        (files / "new.csv").write_text("id,name\n1,new\n")
        (files / "new.csv").rename(files / "t.csv")
        wait_until(lambda: any(row["name"] == "new" for row in self.rows("looked.ndjson")))
        self.after = {name: kind.delivered(self) for name, kind in self.kinds.items()}

    def _wait(self, least: dict[str, int]) -> None:
        def missing() -> list[str]:
            return [name for name, rows in least.items() if len(self.kinds[name].delivered(self)) < rows]

        try:
            wait_until(lambda: not missing())
        except AssertionError:
            states = {row["name"]: (row["state"], row["reason"]) for row in self.a.ask("queries")}
            raise AssertionError(f"no rows come from {missing()}: {states}") from None

    def events(self, name: str) -> list[str]:
        """Returns the events of a sink's query."""
        row = next(row for row in self.a.ask("queries", history=True) if row["name"] == name)
        return [one["event"] for one in row["history"]]

    def close(self) -> None:
        for agent in (self.a, self.b):
            agent.end(signal.SIGKILL)
        self.server.stop()
        end_all()


def kinds(story: Story) -> dict[str, Kind]:
    """Returns a query for each connector, with a function that gives its delivered rows."""
    ports, folder = story.ports, story.folder

    def from_b(name: str, columns: str, options: str) -> tuple[str, ...]:
        """Returns statements for a source on b whose rows go to a file on a."""
        return (
            f"CREATE SOURCE s_{name} ({columns}) WITH (nodes = 'b', {options})",
            f"CREATE SINK k_{name} AS SELECT n FROM s_{name} WITH (connector = 'file', path = '{folder}/{name}.ndjson', node = 'a')",
        )

    def to_b(name: str, options: str) -> tuple[str, ...]:
        """Returns statements for a sink on b that gets rows generated on a."""
        return GEN.format(f"g_{name}", "a"), f"CREATE SINK k_{name} AS SELECT n FROM g_{name} WITH (node = 'b', {options})"

    def on_a(name: str, options: str) -> tuple[str, ...]:
        """Returns statements for rows that are generated and sent by a, for a source on b."""
        return GEN.format(f"g_{name}", "a"), f"CREATE SINK f_{name} AS SELECT n FROM g_{name} WITH (node = 'a', {options})"

    def back(name: str, options: str) -> tuple[str, ...]:
        """Returns statements for a source on a that reads from a sink on b, and a file for its rows."""
        return (
            f"CREATE SOURCE s_{name} (n BIGINT) WITH (nodes = 'a', {options})",
            f"CREATE SINK b_{name} AS SELECT n FROM s_{name} WITH (connector = 'file', path = '{folder}/{name}.ndjson', node = 'a')",
        )

    def numbers(name: str) -> Callable[[Story], list[int]]:
        return lambda story: story.numbers(f"{name}.ndjson")

    found = {
        "file source": Kind(
            from_b("read", "ts TIMESTAMP, n BIGINT, WATERMARK FOR ts AS ts", "connector = 'file', path = 'r.csv', replay = 'event_time'"),
            numbers("read"),
        ),
        "file sink": Kind(to_b("written", "connector = 'file', path = 'written.ndjson'"), numbers("written")),
        "tcp source": Kind(
            from_b("heard", "n BIGINT", f"connector = 'tcp', port = {ports['tcp in']}")
            + on_a("heard", f"connector = 'tcp', port = {ports['tcp in']}"),
            numbers("heard"),
        ),
        "tcp sink": Kind(
            to_b("told", f"connector = 'tcp', mode = 'listen', port = {ports['tcp out']}")
            + back("told", f"connector = 'tcp', mode = 'connect', port = {ports['tcp out']}"),
            numbers("told"),
        ),
        "http source": Kind(
            from_b("posted", "n BIGINT", f"connector = 'http', listen = '127.0.0.1:{ports['http in']}'")
            + on_a("posted", f"connector = 'http', url = 'http://127.0.0.1:{ports['http in']}/', batch_interval = '100 ms'"),
            numbers("posted"),
        ),
        "http polls": Kind(
            from_b("polled", "n BIGINT", f"connector = 'http', url = '{story.server.url}', interval = '100 ms'"), Story.polled
        ),
        "http sink": Kind(
            to_b("sent", f"connector = 'http', url = '{story.server.url}', batch_interval = '100 ms'"), lambda story: story.server.rows
        ),
        "sse": Kind(
            to_b("sse", f"connector = 'sse', listen = '127.0.0.1:{ports['sse']}', path = '/rows'"),
            lambda story: story.clients["sse"].read(),
        ),
        "websocket": Kind(
            to_b("websocket", f"connector = 'websocket', listen = '127.0.0.1:{ports['websocket']}', path = '/rows'"),
            lambda story: story.clients["websocket"].read(),
        ),
        "lookup table": Kind(
            (
                GEN.format("g_looked", "a"),
                "CREATE TABLE t (id BIGINT, name TEXT) WITH (connector = 'file', path = 't.csv', nodes = 'b', check_every = '100 ms')",
                "CREATE SINK k_looked AS SELECT g_looked.n, t.name FROM g_looked JOIN t FOR SYSTEM_TIME AS OF g_looked.ts "
                f"ON g_looked.n / g_looked.n = t.id WITH (connector = 'file', path = '{folder}/looked.ndjson', node = 'a')",
            ),
            numbers("looked"),
        ),
    }
    if story.broker is not None:
        where = f"connector = 'mqtt', broker = '127.0.0.1:{story.broker.port}'"
        found["mqtt source"] = Kind(
            from_b("received", "n BIGINT", f"{where}, topics = 'received'") + on_a("received", f"{where}, topic = 'received'"),
            numbers("received"),
        )
        found["mqtt sink"] = Kind(
            back("published", f"{where}, topics = 'published'") + to_b("published", f"{where}, topic = 'published'"), numbers("published")
        )
    return found


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("crash")
    told = Story(folder)
    try:
        told.play()
        yield told
    finally:
        told.close()
        shutil.rmtree(folder, ignore_errors=True)


def gaps(numbers: list[int]) -> list[tuple[int, int]]:
    """Returns the numbers before and after each place where numbers do not rise by one."""
    return [(before, after) for before, after in pairwise(numbers) if after != before + 1]


def has_one_gap(numbers: list[int], before: list[int]) -> None:
    """Checks that rows arrive in order, each at most once, and that missing rows are consecutive, at the crash."""
    print(f"lost: {[after - last - 1 for last, after in gaps(numbers)]}")
    assert numbers[0] == 0
    assert len(gaps(numbers)) <= 1
    for last, after in gaps(numbers):
        assert after > last
        assert last >= before[-1]


def lacks_nothing(numbers: list[int], repeated_max: int) -> None:
    """Checks that each row has arrived, some twice."""
    print(f"repeated: {len(numbers) - len(set(numbers))}")
    assert set(numbers) == set(range(max(numbers) + 1))
    assert len(numbers) - len(set(numbers)) <= repeated_max


@pytest.mark.parametrize(("name", "sink"), [("file source", "k_read"), ("file sink", "k_written")])
def test_files_lose_and_repeat_nothing(story: Story, name: str, sink: str) -> None:
    assert story.after[name] == list(range(len(story.after[name])))
    assert story.events(sink)[:1] == ["placed"]
    assert story.events(sink)[-1] == "recovered"


@needs_broker
@pytest.mark.parametrize("name", ["mqtt source", "mqtt sink"])
def test_mqtt_loses_nothing(story: Story, name: str) -> None:
    lacks_nothing(story.after[name], ROWS_IN_FLIGHT)


@pytest.mark.parametrize("name", ["tcp source", "tcp sink"])
def test_tcp_listens_again_and_loses_what_was_in_its_buffers(story: Story, name: str) -> None:
    has_one_gap(story.after[name], story.before[name])


def test_http_listens_again_and_loses_what_it_had_answered_and_not_passed_on(story: Story) -> None:
    has_one_gap(story.after["http source"], story.before["http source"])


def test_a_source_that_asks_a_url_gives_the_rows_of_its_first_answer_again(story: Story) -> None:
    assert story.numbers("polled.ndjson") == [1, 2, 1, 2]


def test_http_posts_go_on_and_lose_what_was_in_the_buffer(story: Story) -> None:
    numbers = story.after["http sink"]
    once = list(dict.fromkeys(numbers))
    assert len(numbers) - len(once) <= 1000, "one batch may come twice"
    has_one_gap(once, story.before["http sink"])


@pytest.mark.parametrize("name", ["sse", "websocket"])
def test_clients_find_the_sink_again_where_it_listened(story: Story, name: str) -> None:
    numbers = story.after[name]
    assert story.clients[name].connections >= 2
    has_one_gap(numbers, story.before[name])


def test_clients_of_events_are_told_that_something_may_be_missing(story: Story) -> None:
    assert b"event: missed\ndata: " in story.clients["sse"].got + story.clients["sse"].reader.read()  # type: ignore[union-attr]


def test_a_lookup_table_is_read_again(story: Story) -> None:
    names = [row["name"] for row in story.rows("looked.ndjson")]
    assert set(names) == {"old", "new"}
    assert names == sorted(names, reverse=True)
    numbers = story.after["lookup table"]
    assert numbers == sorted(set(numbers))


def test_every_query_says_what_the_crash_was(story: Story) -> None:
    def rows() -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in story.a.ask("queries")}

    try:
        wait_until(lambda: {row["state"] for row in rows().values()} == {"running"}, timeout_s=30)
    except AssertionError:
        raise AssertionError([row["reason"] for row in rows().values() if row["state"] != "running"]) from None
    assert {name for name, row in rows().items() if row["lost"]} >= {name for name in rows() if name.startswith("k_")}
    for name, row in sorted(rows().items()):
        print(name, [(one["rows"], one["exact"], one["seconds"], one["attempts"]) for one in row["lost"]])


def test_nobody_else_can_take_the_place_of_a_sink_that_is_back(story: Story) -> None:
    """The restarted agent has bound the port, which is not a remainder of the killed process."""
    for name in ("tcp in", "tcp out", "http in", "sse", "websocket"):
        with socket.socket() as probe, pytest.raises(OSError, match="Address already in use"):
            probe.bind(("127.0.0.1", story.ports[name]))
