"""A pattern with `instances = 'auto'` whose windows are dealt, on agents in virtual time: its number, turns and answers."""

from pathlib import Path

import pytest

from sbon.planning import window_sizing
from sbon_testbed.simulator.harness import World
from tests.system.simulation.test_sizing import HOME, make_world, row, wait_for

ROWS = 15_000
SOURCE = (
    "CREATE SOURCE s (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'a', "
    f"rows_per_second = 2000, rows = {ROWS}, seed = 5, 'start' = '2026-01-01T00:00:00')"
)
QUERY = """
CREATE SINK {name} WITH (connector = 'file', path = '{path}'{more}) AS
SELECT number, low, high, n FROM s MATCH_RECOGNIZE (ORDER BY ts, value
    MEASURES MATCH_NUMBER() AS number, FIRST(value) AS low, LAST(value) AS high, COUNT(*) AS n
    PATTERN (a b{{2,}} c) WITHIN INTERVAL '200 ms' DEFINE a AS value < 0.3, b AS value < a.value + 0.5, c AS value > 0.95)
"""


def answers(world: World, name: str, path: Path, more: str = "") -> tuple[str, list[str]]:
    """Runs a query to its end; returns its line on instances and its answers."""
    query = world.submit(QUERY.format(name=name, path=path, more=more), at=HOME)
    (*_, told) = ["", *(one["text"] for one in row(world, query)["instances"])]
    wait_for(world, lambda: row(world, query)["state"] == "finished")
    return told, path.read_text().splitlines()


def test_a_pattern_whose_cost_is_known_gets_the_instances_that_it_needs_and_answers_as_one_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(window_sizing, "USE_MAX", 0.4)
    world = make_world(pace_s=0.2)
    world.submit(SOURCE, at=HOME)
    alone, expected = answers(world, "alone", tmp_path / "alone.csv")
    assert alone == ""
    assert len(expected) > 100

    told, found = answers(world, "several", tmp_path / "several.csv", ", instances = 'auto', dealing = 'window'")

    assert told.startswith("match: 2 by windows of 200 ms in turns of 25 ms, 2.00 copies of a row ("), told
    assert "; auto: rate 4,00" in told
    assert found == expected
