"""Queries from and to MQTT brokers that restart, on an agent that is killed: at QoS 1 no row is lost."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Broker, end_all, needs_broker, passwords
from tests.processes import Process, wait_until
from tests.text_files import whole_lines

pytestmark = needs_broker
ROWS = 3000
IN_FLIGHT, HELD = 100, 1000
"""Limits of unacknowledged messages of the sink and the source: about as many may repeat after each break."""


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
    yield made
    made.end(signal.SIGKILL)


def made_broker(directory: Path, *settings: str) -> Broker:
    return Broker(directory, *(settings or ("allow_anonymous true",)), "autosave_interval 1", "max_queued_messages 0")


def numbers(path: Path) -> list[int]:
    """Returns the numbers of complete lines."""
    return [json.loads(line)["n"] for line in whole_lines(path)]


def nothing_is_lost_through_restarts(agent: Process, directory: Path, restarts: int) -> None:
    """Checks file -> query -> broker -> query -> file, with a broker that restarts meanwhile."""
    broker = made_broker(directory / "broker")
    broker.start()
    given, found = directory / "given.ndjson", directory / "found.ndjson"
    given.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(ROWS)))
    where = f"broker = '127.0.0.1:{broker.port}'"
    agent.ask(
        "submit",
        sql=f"CREATE SOURCE back (n BIGINT, site TEXT) WITH (connector = 'mqtt', {where}, topics = 'plant/+', topic_columns = '_, site');"
        f"CREATE SINK found FROM (SELECT n, site FROM back) WITH (connector = 'file', path = '{found}', mode = 'append')",
    )
    wait_until(lambda: "mqtt.connected" in agent.events())
    agent.ask(
        "submit",
        sql=f"CREATE SOURCE given (n BIGINT) WITH (connector = 'file', path = '{given}', batch_rows_max = 50);"
        f"CREATE SINK forth FROM (SELECT n, 'ams' AS site FROM given) WITH (connector = 'mqtt', {where}, topic = 'plant/{{site}}')",
    )
    for number in range(1, restarts + 1):
        wait_until(lambda number=number: len(set(numbers(found))) >= number * ROWS // (restarts + 2))
        broker.stop()
        broker.start()
    wait_until(lambda: len(set(numbers(found))) == ROWS)
    # The order is not checked: if more messages wait than may be unacknowledged, Mosquitto sends a new message before them.
    came = Counter(numbers(found))
    log = agent.events()
    # Twice the limit, because a broker that has just started sometimes exceeds it (by 64 of 3,300).
    assert came.total() - ROWS <= 2 * restarts * (IN_FLIGHT + HELD), (Counter(came.values()), log.count("mqtt.connection_lost"))
    assert log.count("mqtt.connection_lost") <= 2 * restarts  # source and sink each log it once a break


def test_nothing_is_lost_through_three_restarts_of_the_broker(agent: Process, tmp_path: Path):
    nothing_is_lost_through_restarts(agent, tmp_path, 3)


@pytest.mark.soak
def test_nothing_is_lost_through_twenty_restarts_of_the_broker(agent: Process, tmp_path: Path):
    nothing_is_lost_through_restarts(agent, tmp_path, 20)


def test_rows_that_no_sink_has_taken_come_again_after_the_agent_was_killed(agent: Process, tmp_path: Path):
    """The sink's broker is away, so that rows wait in the agent; the source's broker must not count them as delivered."""
    near = made_broker(tmp_path / "near")
    near.start()
    far = made_broker(tmp_path / "far")
    far.start()
    arrived = tmp_path / "arrived.ndjson"
    at_near, at_far = f"broker = '127.0.0.1:{near.port}'", f"broker = '127.0.0.1:{far.port}'"
    sql = f"""CREATE SOURCE here (n BIGINT) WITH (connector = 'mqtt', {at_near}, topics = 'plant/#');
        CREATE SINK there FROM (SELECT n FROM here WHERE n >= 0) WITH (connector = 'mqtt', {at_far}, topic = 'plant');
        CREATE SOURCE beyond (n BIGINT) WITH (connector = 'mqtt', {at_far}, topics = 'plant');
        CREATE SINK arrived FROM (SELECT n FROM beyond) WITH (connector = 'file', path = '{arrived}', mode = 'append')"""
    there = next(answer["query"] for answer in agent.ask("submit", sql=sql) if answer["query"])
    wait_until(lambda: agent.events().count("mqtt.connected") == 3)
    far.stop()  # the broker keeps the session of `beyond`
    wait_until(lambda: agent.events().count("mqtt.connection_lost") == 2)
    given = tmp_path / "given.ndjson"
    given.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(100)))
    agent.ask(
        "submit",
        sql=f"CREATE SOURCE given (n BIGINT) WITH (connector = 'file', path = '{given}');"
        f"CREATE SINK give FROM (SELECT n FROM given) WITH (connector = 'mqtt', {at_near}, topic = 'plant/ams')",
    )

    def its(kind: str) -> dict[str, Any]:
        return next(one for one in agent.ask("operators") if there in one["queries"] and one["kind"] == kind)

    wait_until(lambda: its("source")["rows_out"] == 100)
    wait_until(lambda: its("sink")["state"] == "stalled")
    wait_until(lambda: next(row for row in agent.ask("queries") if row["name"] == "give")["state"] == "finished")
    agent.end(signal.SIGKILL)
    far.start()
    again = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
    try:
        wait_until(lambda: set(numbers(arrived)) == set(range(100)))
    finally:
        again.end(signal.SIGKILL)


def test_a_password_is_in_no_log_and_no_answer(agent: Process, tmp_path: Path):
    users = passwords(tmp_path, "ams", "correct-horse")
    broker = made_broker(tmp_path / "broker", "allow_anonymous false", f"password_file {users}")
    broker.start()
    secret = tmp_path / "secret"
    secret.write_text("correct-horse\n")
    secret.chmod(0o600)
    who = f"broker = '127.0.0.1:{broker.port}', username = 'ams', password_file = '{secret}'"
    agent.ask("submit", sql=f"CREATE SOURCE s (n BIGINT) WITH (connector = 'mqtt', {who}, topics = 'a/#'); SELECT n FROM s")
    wait_until(lambda: "mqtt.connected" in agent.events())
    told = [agent.ask(what) for what in ("names", "queries", "operators", "status")]
    kept = (agent.directory / "statements.json").read_text()
    assert "password_file" in kept
    assert "correct-horse" not in json.dumps(told) + agent.log.read_text() + kept
