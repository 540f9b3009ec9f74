"""Operators of real agents move under load: the sink's rows equal, one by one, those of the same query run by one agent."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbon.cli.client import ControlClient, RefusedError
from tests.examples import seeds
from tests.processes import Process, wait_until

EVENT_ROWS_PER_S = 1000
STATEMENTS = """
CREATE SOURCE l{run} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{left}',
    {flow}, seed = 1, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
CREATE SOURCE r{run} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{right}',
    {flow}, seed = 2, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
CREATE VIEW w{run} AS SELECT window_end, key, count(*) AS n, sum(value) AS total
    FROM TUMBLE(l{run}, ts, INTERVAL '500 milliseconds') GROUP BY window_end, key;
CREATE SINK answers{run} AS SELECT w.window_end, w.key, w.n, w.total, r.value, r.ts FROM w{run} w JOIN r{run} r
    ON w.key = r.key AND r.ts BETWEEN w.window_end - INTERVAL '100 milliseconds' AND w.window_end
    WITH (connector = 'file', path = '{path}');
"""
ENDLESS = f"rows_per_second = {EVENT_ROWS_PER_S}"
"""Rows flow as long as the moves take, even on a busy machine."""
MOVES_S_MAX = 90.0
MIGRATIONS = 6


def start(directory: Path, names: str) -> list[Process]:
    directory.mkdir()
    key = directory / "cluster.key"
    key.write_text("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n")
    key.chmod(0o600)
    config = directory / "agent.toml"
    config.write_text("[optimiser]\nenabled = false\n")
    options = ("--bind", "127.0.0.1:0", "--key-file", str(key), "--config", str(config))
    first = Process(directory, names[0], *options).wait_until_ready()
    address = first.ask("status")["address"]
    agents = [first, *(Process(directory, name, *options, "--join", address).wait_until_ready() for name in names[1:])]
    wait_until(lambda: all(agent.ask("status")["members"]["alive"] == len(names) for agent in agents))
    return agents


Answers = dict[str, list[str]]
"""Written rows, by the end of their window; windows that have ended are complete."""


def answers_in(path: Path) -> Answers:
    found: Answers = {}
    for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
        if line.endswith("\n"):
            found.setdefault(json.loads(line)["window_end"], []).append(line)
    return {end: sorted(found[end]) for end in sorted(found)}


def move_all_about(agents: list[Process]) -> int:
    moved, deadline = 0, time.monotonic() + MOVES_S_MAX
    while moved < MIGRATIONS:
        assert time.monotonic() < deadline, f"{moved} operators have moved in {MOVES_S_MAX:g} s, expected {MIGRATIONS}"
        for agent in agents:
            movable = [row for row in agent.ask("operators") if not row["pinned"] and row["state"] in ("running", "blocked")]
            others = [other.directory.name for other in agents if other is not agent]
            for turn, row in enumerate(movable):
                with ControlClient(agent.directory / "control.sock") as client:
                    record = client.ask("migrate", operator=row["id"], node=others[(moved + turn) % len(others)])
                moved += record["committed"]
    return moved


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Returns the answers of one agent, which gets the rows of the longest possible run at full speed."""
    directory = tmp_path_factory.mktemp("one")
    path = directory / "answers.ndjson"
    rows = int((MOVES_S_MAX + 60) * EVENT_ROWS_PER_S)
    flood = f"rows_per_second = 'max', rows = {rows}, event_rows_per_second = {EVENT_ROWS_PER_S}"
    agents = start(directory / "agents", "a")
    try:
        agents[0].ask("submit", sql=STATEMENTS.format(run=0, left="a", right="a", flow=flood, path=path))
        wait_until(lambda: agents[0].ask("queries")[0]["state"] == "finished")
    finally:
        agents[0].end()
    answers = answers_in(path)
    assert len(answers) == rows / EVENT_ROWS_PER_S * 2
    assert min(map(len, answers.values())) > 50
    return answers


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Process]]:
    agents = start(tmp_path_factory.mktemp("three") / "agents", "abc")
    yield agents
    for agent in agents:
        agent.end()


@pytest.mark.parametrize("run", seeds([0], range(1, 5)))
def test_moving_operators_of_real_agents_changes_no_row(tmp_path: Path, three: list[Process], expected: Answers, run: int):
    path = tmp_path / "answers.ndjson"
    results = three[0].ask("submit", sql=STATEMENTS.format(run=run, left="b", right="c", flow=ENDLESS, path=path))

    wait_until(lambda: bool(answers_in(path)))
    moved = move_all_about(three)
    written = len(answers_in(path))
    wait_until(lambda: len(answers_in(path)) > written + 2)
    three[0].ask("drop", query=results[-1]["query"])

    assert moved >= MIGRATIONS
    # Answers come window by window, so all windows but the last are complete.
    *whole, _last = answers_in(path).items()
    assert whole == list(expected.items())[: len(whole)]


def test_an_agent_that_is_terminated_hands_over_first_and_no_row_changes(tmp_path: Path, three: list[Process], expected: Answers):
    """This test must be the last in the file, as it ends one of the three agents."""
    path = tmp_path / "answers.ndjson"
    first, second, last = three
    results = first.ask("submit", sql=STATEMENTS.format(run=5, left="a", right="b", flow=ENDLESS, path=path))
    wait_until(lambda: bool(answers_in(path)))

    def movable(agent: Process) -> list[str]:
        return [row["id"] for row in agent.ask("operators") if not row["pinned"]]

    for agent in (first, second):
        for operator in movable(agent):
            # A neighbour that has just moved is locked for a moment.
            wait_until(lambda agent=agent, operator=operator: moves(agent, operator, "c"))
    assert len(movable(last)) >= 2
    assert last.end(signal.SIGTERM) == 0
    written = len(answers_in(path))
    wait_until(lambda: len(answers_in(path)) > written + 2)

    assert {"leaving.query_handed_over", "agent.left"} <= set(last.events())
    assert "leaving.query_loses" not in last.events()
    assert [(query["state"], query["reason"]) for query in first.ask("queries")] == [("running", "")]
    first.ask("drop", query=results[-1]["query"])
    *whole, _last = answers_in(path).items()
    assert whole == list(expected.items())[: len(whole)]


def moves(agent: Process, operator: str, there: str) -> bool:
    with ControlClient(agent.directory / "control.sock") as client:
        try:
            return bool(client.ask("migrate", operator=operator, node=there)["committed"])
        except RefusedError:
            return False
