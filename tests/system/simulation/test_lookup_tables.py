"""Lookup tables in overlays: file, stream and join are on different agents, and the join moves; it gets changes of the file, but no
damaged ones."""

import os
from pathlib import Path
from typing import Any

import duckdb
import pytest

from sbon.errors import SbonError
from sbon.execution.reporting import operator_report
from sbon.operators.lookup import Lookup
from sbon_testbed.simulator.harness import Tail
from tests.worlds import moves_in, settled_world

SQL = """
CREATE SOURCE s (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{stream}',
    rows_per_second = 100, rows = {rows}, seed = 1, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 9);
CREATE TABLE sites (id BIGINT, name TEXT) WITH (connector = 'file', path = 'sites.csv', nodes = '{table}', check_every = '2 s');
"""
BOTH = "SELECT s.ts, s.key, s.value, d.name FROM s LEFT JOIN sites FOR SYSTEM_TIME AS OF s.ts AS d ON s.key = d.id"
COUNTED = """WITH j AS (SELECT s.ts, d.name FROM s JOIN sites FOR SYSTEM_TIME AS OF s.ts AS d ON s.key = d.id)
SELECT window_end, name, COUNT(*) AS n FROM TUMBLE(j, ts, INTERVAL '1 s') GROUP BY window_end, name"""


class Overlay:
    """Four agents; the file is on the third."""

    def __init__(self, folder: Path, seed: int, rows: int = 600, **settings: Any) -> None:
        self.world = settled_world(4, seed=seed, data_dir=folder, settings={"optimiser": {"enabled": False}, **settings})
        place = self.world.data_dir_of(2) / "files"
        place.mkdir(parents=True, exist_ok=True)
        self.file = place / "sites.csv"
        self.sql = SQL.format(stream=self.world.nodes[1], table=self.world.nodes[2], rows=rows)

    def write(self, rows: str) -> None:
        """Replaces the file."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(f"id,name\n{rows}")
        os.replace(fresh, self.file)

    def query(self, sql: str) -> Tail:
        return self.world.tail(self.world.submit(self.sql + sql))

    def reasons(self) -> str:
        return "; ".join(
            operator_report(i, a.name).reason for a in self.world.agents if a is not None for i in a.execution.engine.instances.values()
        )


def names(count: int, suffix: str = "") -> str:
    return "".join(f"{n},name{n}{suffix}\n" for n in range(count)) + f"3,other{suffix}\n"


def oracle(file: Path, sql: str, rows: list[tuple[Any, ...]]) -> list[str]:
    """Returns DuckDB's answer over the rows of the stream."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE s (ts TIMESTAMP, key BIGINT, value DOUBLE)")
        connection.executemany("INSERT INTO s VALUES (?, ?, ?)", rows)
        connection.execute(f"CREATE TABLE sites AS SELECT * FROM read_csv('{file}', columns = {{'id': 'BIGINT', 'name': 'TEXT'}})")
        found = connection.execute(sql).fetchall()
    return sorted(str((row[0].isoformat(), *row[1:])) for row in found)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """Returns the rows of the stream, which depend only on the seed of its source."""
    alone = Overlay(tmp_path_factory.mktemp("alone"), 1)
    tail = alone.query("SELECT ts, key, value FROM s")
    alone.world.run_until(lambda: tail.finished, 60.0)
    assert len(tail.rows) == 600
    return tail.rows


DUCK = {
    BOTH: "SELECT s.ts, s.key, s.value, d.name FROM s LEFT JOIN sites AS d ON s.key = d.id",
    COUNTED: """SELECT time_bucket(INTERVAL 1 SECOND, s.ts) + INTERVAL 1 SECOND AS e, d.name, COUNT(*)
                FROM s JOIN sites AS d ON s.key = d.id GROUP BY 1, 2""",
}


@pytest.mark.parametrize("sql", [BOTH, COUNTED], ids=["rows", "windows"])
def test_answers_are_those_of_duckdb_while_the_join_moves(sql: str, stream: list[tuple[Any, ...]], tmp_path: Path) -> None:
    moves = 0
    for seed in range(2):
        overlay = Overlay(tmp_path / str(seed), seed)
        overlay.write(names(8))
        tail = overlay.query(sql)
        faults = moves_in(overlay.world, seed)
        while not tail.finished and overlay.world.now < 200:
            faults.run(0.3)
        assert tail.finished, f"seed {seed}"
        moves += sum(record["committed"] for agent in overlay.world.agents for record in agent.monitoring.measuring.migrations)
        assert sorted(map(str, tail.rows)) == oracle(overlay.file, DUCK[sql], stream)
    assert moves >= 2


def test_rows_meet_the_version_of_the_file_that_has_come(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path, 3, rows=3000)
    overlay.write(names(10, " old"))
    tail = overlay.query(BOTH)
    overlay.world.run_until(lambda: len(tail.rows) > 300)
    overlay.write(names(10, " new"))
    overlay.world.run_until(lambda: bool(tail.rows) and str(tail.rows[-1][3]).endswith("new"), 10.0, "the new version")
    suffixes = [str(row[3]).split()[-1] for row in tail.rows]
    assert suffixes == sorted(suffixes, reverse=True), "rows after the first with the new version met the old one"
    overlay.file.unlink()
    overlay.world.run_until(lambda: "sites.csv cannot be read: No such file" in overlay.reasons(), 10.0, "the word that it is gone")
    overlay.write("x,broken\n")
    overlay.world.run_until(lambda: "1 rows that cannot be read" in overlay.reasons(), 10.0, "the word that it is damaged")
    overlay.world.run_until(lambda: tail.finished, 60.0)
    assert all(str(row[3]).endswith("new") for row in tail.rows[len(suffixes) :])
    assert len({str(row[:3]) for row in tail.rows}) == 3000


def test_the_last_version_stays_in_force_when_the_node_of_the_file_is_killed(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path, 6, rows=1500)
    overlay.write(names(10))
    tail = overlay.query(BOTH)
    overlay.world.run_until(lambda: len(tail.rows) > 300)
    join = next(
        i for a in overlay.world.agents if a is not None for i in a.execution.engine.instances.values() if isinstance(i.operator, Lookup)
    )
    there = overlay.world.agents[2]
    assert there is not None
    assert join.id not in there.execution.engine.instances, "the join must not be on the file's node"
    overlay.world.kill(2)
    overlay.world.run_until(lambda: len(tail.rows) >= 1500 and len({str(row[:3]) for row in tail.rows}) == 1500, 120.0, "all rows")
    assert all(row[3] is not None for row in tail.rows)


def test_a_later_query_gets_the_whole_table_too(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path, 4, rows=2000)
    overlay.write(names(10))
    first = overlay.query(BOTH)
    overlay.world.run_until(lambda: len(first.rows) > 100)
    second = overlay.world.tail(overlay.world.submit(BOTH))
    overlay.world.run_until(lambda: len(second.rows) > 100)
    assert all(row[3] is not None for row in second.rows)


def test_a_query_whose_table_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path, 5)
    with pytest.raises(SbonError, match=r"sites\.csv cannot be read: No such file"):
        overlay.query(BOTH)


@pytest.mark.parametrize("where", [0, 2], ids=["the join lives", "the join is lost, too"])
def test_a_table_is_read_again_after_a_crash_of_its_host_and_changes_reach_the_join(tmp_path: Path, where: int) -> None:
    """The table's source has sent its last watermark long before, but is still needed."""
    overlay = Overlay(tmp_path, 3, rows=100_000, engine={"heal": True})
    overlay.write(names(10))
    world, tail = overlay.world, overlay.query(BOTH)
    world.run_until(lambda: len(tail.rows) > 100, 60.0)
    record = world.agents[0].queries.owned.find(tail.query)
    lookup = next(one for one in record.specs if record.kind_of(one) == "lookup")
    if record.nodes[lookup] != world.nodes[where]:
        assert world.ask(record.nodes[lookup], "migrate", operator=lookup, node=world.nodes[where])["committed"]
    world.run(3.0)
    world.kill(2)
    world.run(2.0)
    world.start(2)
    world.run_until(lambda: record.health.healing.account.recoveries > 0, 20.0, "the query is recovered")
    overlay.write(names(10, "-new"))
    came = len(tail.rows)
    world.run_until(lambda: any((row[3] or "").endswith("-new") for row in tail.rows[came:]), 20.0, "the change arrives")
    [source] = [one for one in record.specs if record.kind_of(one) == "source" and "sites" in record.text_of(one)]
    assert f"{source} (" not in record.reason, "no row of the table counts as lost"
