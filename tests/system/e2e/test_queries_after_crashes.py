"""Agents in separate processes are killed (SIGKILL): queries never mix, can be ended from any agent, and stop no other query."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbon.cli.client import ControlClient, RefusedError
from tests.processes import Process, wait_until

SETTINGS = """
[engine]
take_over = {take_over}
lost_consumer_s = 2.0
[links]
window_batches = 16
[optimiser]
enabled = false
"""
SOURCE = """CREATE SOURCE {0} (ts TIMESTAMP, number BIGINT, stream TEXT) WITH (connector = 'datagen', nodes = 'b', rows_per_second = 200,
    fields.number.kind = 'sequence', fields.stream.kind = 'choice', fields.stream.values = '{0}')"""


class Overlay:
    """Agents a, b and c; a is the home of the queries, b has the sources.

    Parameters
    ----------
    take_over : whether b and c keep the queries' records and take queries over
    """

    def __init__(self, directory: Path, *, take_over: bool = True) -> None:
        self.directory = directory
        self.settings = directory / "agent.toml"
        self.settings.write_text(SETTINGS.format(take_over=str(take_over).lower()))
        self.agents: dict[str, Process] = {}
        self.start("b")
        self.addresses = {"b": self.ask("b", "status")["address"]}
        for name in "ac":
            self.start(name, "--join", self.addresses["b"])
            self.addresses[name] = self.ask(name, "status")["address"]
        wait_until(lambda: all(self.alive(name) == set("abc") for name in "abc"))

    def start(self, name: str, *options: str) -> None:
        bind = self.addresses[name] if name in self.agents else "127.0.0.1:0"
        self.agents[name] = Process(self.directory, name, "--bind", bind, "--config", str(self.settings), *options).wait_until_ready()

    def kill(self, name: str) -> None:
        self.agents[name].end(signal.SIGKILL)

    def ask(self, name: str, command: str, **arguments: Any) -> Any:
        return self.agents[name].ask(command, **arguments)

    def submit(self, name: str, sql: str) -> str:
        return str(self.ask(name, "submit", sql=sql)[-1]["query"])

    def alive(self, name: str) -> set[str]:
        return {member["name"] for member in self.ask(name, "members") if member["status"] == "alive"}

    def status(self, seen_by: str, name: str) -> str:
        return str(next(member["status"] for member in self.ask(seen_by, "members") if member["name"] == name))

    def queries(self, seen_by: str) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in self.ask(seen_by, "queries")}

    def served(self, name: str) -> set[str]:
        return {query for operator in self.ask(name, "operators") for query in operator["queries"]}

    def rows(self, name: str, query: str, limit: int) -> list[list[Any]]:
        with ControlClient(self.agents[name].directory / "control.sock") as client:
            return [row for batch in client.stream("tail", query=query, limit=limit) for row in batch["rows"]]


@pytest.fixture
def overlay(tmp_path: Path, story: Any) -> Iterator[Overlay]:
    made = Overlay(tmp_path, take_over=story is not a_query_without_a_home_ends_from_anywhere)
    yield made
    for agent in made.agents.values():
        agent.end(signal.SIGKILL)


def names_do_not_come_again(overlay: Overlay) -> dict[str, Any]:
    """Kills a home a second after it got a file of twelve statements, restarts it, and submits three sinks over another source there.

    The other agents continue to run the eleven queries.
    """
    overlay.submit("b", SOURCE.format("new"))
    before = overlay.ask("a", "submit", sql=";".join([SOURCE.format("old"), *["SELECT number, stream FROM old"] * 11]))
    former = {row["query"] for row in before if row["query"]}
    wait_until(lambda: overlay.served("b") == former)
    overlay.kill("a")
    overlay.start("a", "--forget", "--join", overlay.addresses["b"])
    wait_until(lambda: "b" in overlay.alive("a") and any(row["name"] == "new" for row in overlay.ask("a", "names")))
    files = [overlay.directory / f"{number}.ndjson" for number in range(3)]
    sinks = ";".join(
        f"CREATE SINK k{number} AS SELECT number, stream FROM new WITH (connector = 'file', path = '{file}')"
        for number, file in enumerate(files)
    )
    after = {row["query"] for row in overlay.ask("a", "submit", sql=sinks)}
    wait_until(lambda: overlay.served("b") == former | after)
    wait_until(lambda: {row["owner"] for query, row in overlay.queries("b").items() if query in former} <= {"b", "c"})
    wait_until(lambda: all(file.exists() and file.read_text().count("\n") > 100 for file in files))
    found = [[json.loads(line) for line in file.read_text().splitlines()[:100]] for file in files]
    assert not former & after
    assert set(overlay.queries("c")) == former | after
    for rows in found:
        assert {row["stream"] for row in rows} == {"new"}
        assert [row["number"] for row in rows] == list(range(rows[0]["number"], rows[0]["number"] + 100))
    return {"former": len(former), "sinks": len(after), "rows of the former queries in the new sinks": 0}


def a_query_without_a_home_ends_from_anywhere(overlay: Overlay, form: int = 0) -> dict[str, Any]:
    """Kills a home; its sink is listed, ended in one of four forms, and recreated elsewhere; then the home comes back."""
    overlay.submit("b", SOURCE.format("s"))
    sink = "CREATE SINK {} k AS SELECT number, stream FROM s WITH (connector = 'file', path = 'k.ndjson', node = 'c', mode = 'append')"
    wait_until(lambda: any(row["name"] == "s" for row in overlay.ask("a", "names")))
    query = overlay.submit("a", sink.format(""))
    overlay.kill("a")
    wait_until(lambda: overlay.status("b", "a") == overlay.status("c", "a") == "failed")
    wait_until(lambda: query in overlay.queries("b"))
    row = overlay.queries("b")[query]
    assert (row["name"], row["state"], row["owner"], row["sink_node"]) == ("k", "orphaned", "a", "c")
    assert "its home a failed" in row["reason"]
    assert "DROP SINK k ends them" in row["reason"]

    def taken() -> int:
        return sum(operator["rows_in"] for operator in overlay.ask("c", "operators") if operator["kind"] == "sink")

    before = taken()
    wait_until(lambda: taken() > before)  # the query continues
    ends = ("drop k", f"drop {query}", "DROP SINK k", "DROP QUERY k")[form % 4]
    if ends.startswith("drop"):
        overlay.ask("b", "drop", query=ends.removeprefix("drop "))
    else:
        overlay.submit("b", ends)
    assert overlay.served("b") == overlay.served("c") == set()
    assert overlay.queries("b") == {}

    second = overlay.submit("b", sink.format("IF NOT EXISTS"))
    wait_until(lambda: taken() > 0)
    overlay.kill("b")
    overlay.start("b", "--forget", "--join", overlay.addresses["c"])
    wait_until(lambda: overlay.status("c", "b") == "alive" and "k" in {row["name"] for row in overlay.ask("b", "names")})
    wait_until(lambda: overlay.served("c") == set())  # the home is back, and does not know the query
    assert overlay.queries("c")[second]["state"] == "orphaned"
    assert "nothing of it runs: CREATE SINK k makes it again" in overlay.queries("c")[second]["reason"]
    wait_until(lambda: overlay.alive("b") == overlay.alive("c") == set("bc"))
    third = overlay.submit("b" if form % 2 else "c", sink.format("IF NOT EXISTS"))
    wait_until(lambda: taken() > 0)
    wait_until(lambda: {name: row["state"] for name, row in overlay.queries("c").items()} == {third: "running"})
    wait_until(lambda: third in {row["query"] for row in overlay.ask("b", "names")})
    with pytest.raises(RefusedError, match="there is a sink k already"):
        overlay.submit("b", sink.format(""))
    return {"ended by": ends.split()[0] + " " + ends.split()[1], "operators left": 0, "made anew": 2}


def a_dead_host_stops_nobody_else(overlay: Overlay) -> dict[str, Any]:
    """Kills the host of the sink of one of two queries that share a source."""
    overlay.submit("a", SOURCE.format("s"))
    living = overlay.submit("a", "SELECT number FROM s")
    dying = overlay.submit("a", "CREATE SINK k AS SELECT number FROM s WHERE number % 2 = 0 WITH (connector = 'discard', node = 'c')")
    wait_until(lambda: overlay.queries("a")[dying]["rows_out"] > 0)
    overlay.kill("c")
    wait_until(lambda: "has given up its link" in overlay.queries("a")[dying]["reason"])
    wait_until(lambda: overlay.queries("a")[living]["state"] == "running")
    stopped = overlay.queries("a")[living]["rows_out"]
    wait_until(lambda: overlay.queries("a")[living]["rows_out"] > stopped + 500)
    numbers = [number for (number,) in overlay.rows("a", living, stopped + 500)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    row = overlay.queries("a")[dying]
    assert row["state"] == "degraded"
    assert "was on c, which failed; if c stays away: DROP SINK k, then submit it again" in row["reason"]
    return {"rows of the other query, without a gap": len(numbers), "state of the stalled one": row["state"]}


STORIES = [names_do_not_come_again, a_query_without_a_home_ends_from_anywhere, a_dead_host_stops_nobody_else]
"""The last one runs only with `--soak`; `tests/system/simulation/test_dead_ends.py` has the same story in virtual time."""


@pytest.mark.parametrize("story", STORIES[:2])
def test_after_a_crash(story: Any, overlay: Overlay) -> None:
    assert story(overlay), "each story asserts, and tells what it has found"


@pytest.mark.soak
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("story", STORIES)
def test_after_ten_crashes(story: Any, number: int, overlay: Overlay) -> None:
    told = story(overlay, number) if story is a_query_without_a_home_ends_from_anywhere else story(overlay)
    assert told, "each story asserts, and tells what it has found"
    print(f"{story.__name__} {number}: {told}")
