"""Operators of real agents move under load: the sink's rows equal those of the same query run by one agent, row by row."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbon.cli.client import ControlClient
from tests.processes import Process, wait_until

ROWS = 6_000
STATEMENTS = f"""
CREATE SOURCE l{{run}} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{left}}',
    rows_per_second = 1000, rows = {ROWS}, seed = 1, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
CREATE SOURCE r{{run}} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{right}}',
    rows_per_second = 1000, rows = {ROWS}, seed = 2, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
CREATE VIEW w{{run}} AS SELECT window_end, key, count(*) AS n, sum(value) AS total
    FROM TUMBLE(l{{run}}, ts, INTERVAL '500 milliseconds') GROUP BY window_end, key;
CREATE SINK answers{{run}} AS SELECT w.window_end, w.key, w.n, w.total, r.value, r.ts FROM w{{run}} w JOIN r{{run}} r
    ON w.key = r.key AND r.ts BETWEEN w.window_end - INTERVAL '100 milliseconds' AND w.window_end
    WITH (connector = 'file', path = '{{path}}');
"""
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


def answers_of(agents: list[Process], run: int, left: str, right: str, path: Path, move: bool) -> tuple[list[str], int]:
    results = agents[0].ask("submit", sql=STATEMENTS.format(run=run, left=left, right=right, path=path))
    query = results[-1]["query"]
    moved = 0
    while move and moved < MIGRATIONS:
        for agent in agents:
            movable = [row for row in agent.ask("operators") if not row["pinned"] and row["state"] in ("running", "blocked")]
            others = [other.directory.name for other in agents if other is not agent]
            for turn, row in enumerate(movable):
                with ControlClient(agent.directory / "control.sock") as client:
                    record = client.ask("migrate", operator=row["id"], node=others[(moved + turn) % len(others)])
                moved += record["committed"]
        state = next(row for row in agents[0].ask("queries") if row["id"] == query)["state"]
        assert state == "running", "the stream ended before enough operators had moved"

    def finished() -> bool:
        return next(row for row in agents[0].ask("queries") if row["id"] == query)["state"] == "finished"

    wait_until(finished, timeout_s=60)
    return sorted(path.read_text().splitlines()), moved


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("one")
    agents = start(directory / "agents", "a")
    try:
        answers, _ = answers_of(agents, 0, "a", "a", directory / "answers.ndjson", move=False)
    finally:
        agents[0].end()
    assert len(answers) > 1000
    assert json.loads(answers[0])
    return answers


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Process]]:
    agents = start(tmp_path_factory.mktemp("three") / "agents", "abc")
    yield agents
    for agent in agents:
        agent.end()


@pytest.mark.parametrize("run", range(5))
def test_moving_operators_of_real_agents_changes_no_row(tmp_path: Path, three: list[Process], expected: list[str], run: int):
    answers, moved = answers_of(three, run, "b", "c", tmp_path / "answers.ndjson", move=True)
    assert moved >= MIGRATIONS
    assert answers == expected
