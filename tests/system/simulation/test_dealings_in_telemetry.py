"""Telemetry of kind `dealings`: rows that a splitter has dealt, and the copies made of them."""

from pathlib import Path

import pytest

from sbon.telemetry import rows
from sbon_agent.telemetry.spool import spooled
from sbon_testbed.simulator.harness import World
from sbon_testbed.topology import CitiesConfig, build

SETTINGS = {"optimiser": {"enabled": False}, "engine": {"batch_interval_s": 0.5}, "telemetry": {"flush_interval_s": 1.0}}
SQL = """
CREATE SOURCE readings (ts TIMESTAMP, value DOUBLE, WATERMARK FOR ts AS ts)
    WITH (connector = 'datagen', nodes = '{source}', rows_per_second = 50, 'start' = '2026-01-01T00:00:00');
CREATE VIEW v WITH (instances = 3, dealing = 'window', turn = '4 seconds') AS SELECT n FROM readings MATCH_RECOGNIZE (
    ORDER BY ts MEASURES COUNT(*) AS n PATTERN (a b+) WITHIN INTERVAL '1 second' DEFINE a AS value < 0.1, b AS value > 0.4);
SELECT * FROM v"""
BEGIN_US = 1_767_225_600_000_000
"""2026-01-01."""


def test_a_splitter_tells_its_copies_and_turns(tmp_path: Path) -> None:
    world = World(build(CitiesConfig(), 2, 1), seed=1, data_dir=tmp_path, settings=SETTINGS)
    for name in world.nodes:
        world.start(name)
    world.run(3.0)
    query = world.submit(SQL.format(source=world.nodes[1]), at=0)
    world.run(40.0)
    world.close()
    lines = [line.row for path in tmp_path.glob("*/telemetry") for line in spooled(path)]
    told = sorted((row for row in lines if isinstance(row, rows.DealingRow)), key=lambda row: row.rows_dealt)

    assert len(told) >= 3
    assert {(row.queries, row.instances, row.within_s, row.turn_s, round(row.copies_expected, 3)) for row in told} == {
        ((query,), 3, 1.0, 4.0, 1.25)
    }
    assert {(row.dealer, row.used) for row in told} == {(None, None)}
    last = told[-1]
    assert last.rows_dealt > 1_250
    assert last.copies == last.rows_sent / last.rows_dealt == pytest.approx(1.25, rel=0.05)
    turns = [row.turn for row in told if row.turn is not None]
    assert turns == sorted(turns)
    assert turns[-1] - BEGIN_US // 4_000_000 == pytest.approx(last.rows_dealt / 50 / 4, abs=1.5)


def test_a_splitter_tells_what_its_dealer_decides(tmp_path: Path) -> None:
    world = World(build(CitiesConfig(), 2, 1), seed=1, data_dir=tmp_path, settings=SETTINGS)
    for name in world.nodes:
        world.start(name)
    world.run(3.0)
    more = "turn = '500 milliseconds', dealer = 'auto', max_latency = '20 s'"
    world.submit(SQL.format(source=world.nodes[1]).replace("turn = '4 seconds'", more), at=0)
    world.run(40.0)
    world.close()
    lines = [line.row for path in tmp_path.glob("*/telemetry") for line in spooled(path)]
    told = sorted((row for row in lines if isinstance(row, rows.DealingRow)), key=lambda row: row.rows_dealt)

    assert len(told) >= 3
    assert {(row.dealer, row.instances, round(row.copies_expected, 3)) for row in told} == {("auto", 3, 3.0)}
    last = told[-1]
    assert last.decisions is not None
    assert last.decisions == pytest.approx(2 * last.rows_dealt / 50, abs=8)
    assert last.used in (1, 2, 3)
    assert last.copies is not None
    assert 1 <= last.copies <= 3
    assert last.peak_measured_s is not None
