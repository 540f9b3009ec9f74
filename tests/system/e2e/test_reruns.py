"""The host of a join and of both its files is killed (SIGKILL) while the sink runs elsewhere: the whole query begins again, and its file
has each row once."""

import json
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Process, wait_until
from tests.text_files import whole_lines

SETTINGS = """
[placement]
reuse = false
[optimiser]
enabled = false
[engine]
take_over = false
operators_max = {most}
"""
ROWS, PER_SECOND = 2_000, 400
START = datetime(2026, 1, 1)
PATIENCE_S = 120.0


class Overlay:
    """Agent a is the home, b has the files, c the sink. Only b has room for a join."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agents: dict[str, Process] = {}
        self.addresses: dict[str, str] = {}
        for name in "abc":
            self.start(name)
        wait_until(lambda: all(self.alive(name) == set("abc") for name in "abc"), PATIENCE_S)

    def start(self, name: str) -> None:
        settings = self.folder / f"{name}.toml"
        settings.write_text(SETTINGS.format(most={"a": 0, "b": 10, "c": 1}[name]))
        joins = [option for other, address in self.addresses.items() if other != name for option in ("--join", address)]
        options = ("--bind", self.addresses.get(name, "127.0.0.1:0"), "--config", str(settings), *joins)
        self.agents[name] = Process(self.folder, name, *options).wait_until_ready()
        self.addresses.setdefault(name, self.agents[name].ask("status")["address"])

    def alive(self, name: str) -> set[str]:
        return {member["name"] for member in self.agents[name].ask("members") if member["status"] == "alive"}

    def submit(self, sql: str) -> None:
        self.agents["a"].ask("submit", sql=sql)

    def query(self) -> dict[str, Any]:
        (row,) = self.agents["a"].ask("queries")
        return dict(row)

    @property
    def file(self) -> Path:
        return self.agents["c"].directory / "files" / "k.ndjson"

    @property
    def answers(self) -> list[tuple[int, int]]:
        return [(row["n"], row["m"]) for row in map(json.loads, whole_lines(self.file))]


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Overlay]:
    made = Overlay(tmp_path)
    yield made
    for agent in made.agents.values():
        agent.end(signal.SIGKILL)


def write(path: Path, name: str, every: int, late_ms: int) -> None:
    """Writes every so many rows of the stream to a file, somewhat later than on time."""
    times = ((n, START + timedelta(milliseconds=n * 1000 // PER_SECOND + late_ms)) for n in range(0, ROWS, every))
    path.write_text("\n".join([f"ts,{name}", *(f"{at.isoformat(sep=' ', timespec='milliseconds')},{n}" for n, at in times), ""]))


def test_a_query_begins_again_as_a_whole_and_gives_each_row_once(overlay: Overlay) -> None:
    files = overlay.agents["b"].directory / "files"
    files.mkdir(exist_ok=True)
    write(files / "l.csv", "n", 1, 0)
    write(files / "r.csv", "m", 3, 20)
    for name, column in ("l", "n"), ("r", "m"):
        overlay.submit(
            f"CREATE SOURCE {name} (ts TIMESTAMP, {column} BIGINT, WATERMARK FOR ts AS ts - INTERVAL '0.1 s') "
            f"WITH (connector = 'file', path = '{name}.csv', nodes = 'b', replay = 'event_time')"
        )
    overlay.submit(
        "CREATE SINK k AS SELECT l.n, r.m FROM l JOIN r ON l.n = r.m AND r.ts BETWEEN l.ts AND l.ts + INTERVAL '100 milliseconds' "
        "WITH (connector = 'file', path = 'k.ndjson', node = 'c', mode = 'append')"
    )
    wait_until(lambda: overlay.file.exists() and len(overlay.answers) > ROWS // 30, PATIENCE_S)
    overlay.agents["b"].end(signal.SIGKILL)
    before = overlay.answers
    overlay.start("b")
    wait_until(lambda: overlay.query()["state"] == "finished", PATIENCE_S)

    wanted = [(n, n) for n in range(0, ROWS, 3)]
    assert overlay.answers[: len(before)] == before, "what was written stays"
    assert sorted(overlay.answers) == wanted
    row = overlay.query()
    assert ([(one["rerun"], one["exact"], one["rows"], one["surplus_rows"]) for one in row["lost"]], row["lost_rows"]) == (
        [(True, True, 0, 0)],
        0,
    )
    assert row["reason"] == ""
