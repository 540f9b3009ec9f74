"""Agents in separate processes: a query outlives its home, and all agents may restart one after the other."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Process, wait_until
from tests.text_files import whole_lines

SETTINGS = """
[engine]
take_over = true
batch_interval_s = 0.1
report_interval_s = 1.0
[optimiser]
enabled = false
[telemetry]
enabled = false
"""
PATIENCE_S = 90.0


class Overlay:
    """Agents a, b, c ...; each has its own data directory, and keeps its address."""

    def __init__(self, directory: Path, names: str) -> None:
        self.directory = directory
        self.settings = directory / "agent.toml"
        self.settings.write_text(SETTINGS)
        self.agents: dict[str, Process] = {}
        self.addresses: dict[str, str] = {}
        for name in names:
            self.start(name)
        wait_until(lambda: all(self.alive(name) == set(names) for name in names), PATIENCE_S)

    def start(self, name: str) -> None:
        joins = [option for other, address in self.addresses.items() if other != name for option in ("--join", address)]
        bind = self.addresses.get(name, "127.0.0.1:0")
        options = ("--bind", bind, "--config", str(self.settings), *joins)
        self.agents[name] = Process(self.directory, name, *options).wait_until_ready()
        self.addresses.setdefault(name, self.ask(name, "status")["address"])

    def ask(self, name: str, command: str, **arguments: Any) -> Any:
        return self.agents[name].ask(command, **arguments)

    def alive(self, name: str) -> set[str]:
        return {member["name"] for member in self.ask(name, "members") if member["status"] == "alive"}

    def knows(self, name: str, entry: str) -> bool:
        return any(row["name"] == entry for row in self.ask(name, "names"))

    def rows(self, seen_by: str) -> list[tuple[str, str, str]]:
        return [(row["id"], row["owner"], row["state"]) for row in self.ask(seen_by, "queries")]

    def query(self, at: str, number: int, source_on: str, sink_on: str) -> str:
        """Submits a query over a separate file, replayed at its pace, whose answers go to a file."""
        path = self.directory / source_on / "files" / f"r{number}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (f"2026-01-01T00:{i // PER_SECOND // 60:02d}:{i // PER_SECOND % 60:02d}.{i % PER_SECOND * 50:03d},{i}" for i in range(ROWS))
        path.write_text("\n".join(["ts,v", *lines, ""]))
        self.ask(
            source_on,
            "submit",
            sql=f"CREATE SOURCE r{number} (ts TIMESTAMP, v BIGINT, WATERMARK FOR ts AS ts - INTERVAL '0.2 s') WITH (connector = 'file', "
            f"path = '{path}', nodes = '{source_on}', replay = 'event_time')",
        )
        wait_until(lambda: self.knows(at, f"r{number}"), PATIENCE_S)
        sink = f"(connector = 'file', path = 'k{number}.ndjson', node = '{sink_on}')"
        return str(self.ask(at, "submit", sql=f"CREATE SINK k{number} AS SELECT v FROM r{number} WHERE v % 2 = 0 WITH {sink}")[-1]["query"])

    def answers(self, sink_on: str, number: int) -> list[int]:
        found = [*(self.directory / sink_on).rglob(f"k{number}.ndjson")]
        return [json.loads(line)["v"] for file in found for line in whole_lines(file)]


ROWS, PER_SECOND = 1200, 20


@pytest.fixture
def overlays(tmp_path: Path) -> Iterator[Any]:
    made: list[Overlay] = []

    def make(names: str) -> Overlay:
        made.append(Overlay(tmp_path, names))
        return made[-1]

    yield make
    for overlay in made:
        for agent in overlay.agents.values():
            agent.end(signal.SIGKILL)


def test_a_query_outlives_the_agent_that_took_it_and_is_dropped_elsewhere(overlays: Any) -> None:
    overlay = overlays("abcd")
    query = overlay.query("a", 0, "b", "c")
    (row,) = overlay.ask("a", "queries")
    wait_until(lambda: len(overlay.ask("a", "queries")[0]["keepers"]) == 2, PATIENCE_S)
    assert row["owner"] == "a"
    overlay.agents["a"].end(signal.SIGKILL)
    wait_until(lambda: [(one, state) for one, owner, state in overlay.rows("d") if owner != "a"] == [(query, "running")], PATIENCE_S)

    before = len(overlay.answers("c", 0))
    wait_until(lambda: len(overlay.answers("c", 0)) > before, PATIENCE_S)
    answers = overlay.answers("c", 0)
    assert answers == list(range(0, 2 * len(answers), 2))
    assert {overlay.rows(name)[0][1] for name in "bcd"} == {overlay.rows("b")[0][1]}
    asked = next(name for name in "bcd" if name != overlay.rows("b")[0][1])
    overlay.ask(asked, "drop", query=query)
    wait_until(lambda: all(not overlay.ask(name, "operators") for name in "bcd"), PATIENCE_S)
    assert overlay.rows("b") == []


@pytest.mark.soak
def test_a_rolling_restart_of_eight_agents_loses_nothing(overlays: Any) -> None:
    names = "abcdefgh"
    overlay = overlays(names)
    places = (("a", "b", "c"), ("d", "e", "f"), ("g", "h", "a"))
    queries = {overlay.query(*place[:1], number, *place[1:]) for number, place in enumerate(places)}
    for name in names:
        overlay.agents[name].end(signal.SIGTERM)
        overlay.start(name)
        wait_until(lambda: all(overlay.alive(other) == set(names) for other in names), PATIENCE_S)
        wait_until(lambda: {one for one, _, state in overlay.rows("a") if state in ("running", "finished")} == queries, PATIENCE_S)

    for number, (_, _, sink_on) in enumerate(places):
        wait_until(lambda: len(overlay.answers(sink_on, number)) == ROWS // 2, 2 * PATIENCE_S)  # noqa: B023
        assert overlay.answers(sink_on, number) == list(range(0, ROWS, 2))
