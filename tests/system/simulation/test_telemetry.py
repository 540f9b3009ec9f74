"""Telemetry of agents in the virtual world is the same from run to run, and matches the events."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

from sbon.ports import ProcessorUse
from sbon.query.ids import home_of
from sbon.telemetry import rows
from sbon.telemetry.schema import PERIODIC
from sbon_agent.telemetry.spool import spooled
from sbon_testbed.simulator.harness import World
from sbon_testbed.telemetry.files import write_tables
from sbon_testbed.topology import CitiesConfig, build

SETTINGS = {"optimiser": {"interval_s": 1.0, "cooldown_s": 3.0}, "telemetry": {"latency_window_s": 5.0, "flush_interval_s": 1.0}}
SQL = """
CREATE SOURCE readings (ts TIMESTAMP, sensor TEXT, value DOUBLE, WATERMARK FOR ts AS ts)
  WITH (connector = 'datagen', nodes = '{source}', rows_per_second = 500, "fields.sensor.kind" = 'zipf', "fields.sensor.count" = 5);
SELECT window_start, sensor, AVG(value) AS value FROM TUMBLE(readings, ts, INTERVAL '1 second') GROUP BY window_start, sensor"""
RUN_S = 12.0


class Story(NamedTuple):
    """The events of a run, as the agents report them."""

    directory: Path
    query: str
    operator: str
    away_from: str
    to: str
    migrations: list[dict]
    sink: dict
    lost: str


def play(directory: Path, seed: int) -> Story:
    """Runs four agents: a query is dropped at the end, a window is moved away by hand and comes back, and an agent is killed."""
    world = World(build(CitiesConfig(), 4, seed), seed=seed, data_dir=directory, settings=SETTINGS)
    names = world.nodes
    for name in names:
        world.start(name)
    world.run(RUN_S)
    query = world.submit(SQL.format(source=names[1]), at=0)
    world.run(RUN_S)
    operator, here = next((found["id"], node) for node in names for found in world.ask(node, "operators") if found["kind"] == "window")
    to = next(name for name in names[2:] if name != here)
    world.ask(here, "migrate", operator=operator, node=to)
    world.run(RUN_S)
    migrations = [one for node in names for one in world.ask(node, "status")["migrations"]]
    (sink,) = [found for found in world.ask(0, "operators") if found["kind"] == "sink"]
    world.ask(0, "drop", query=query)
    lost = names[-1]
    world.kill(lost, silent=True)
    world.run(RUN_S)
    world.close()
    return Story(directory, query, operator, here, to, migrations, sink, lost)


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Story:
    return play(tmp_path_factory.mktemp("story"), seed=3)


def recorded(story: Story, kind: type[rows.Row]) -> Iterator[tuple[str, rows.Row]]:
    for directory in sorted(story.directory.glob("*/telemetry")):
        yield from ((directory.parent.name, line.row) for line in spooled(directory) if isinstance(line.row, kind))


@pytest.mark.soak
def test_same_seed_records_the_same(story, tmp_path):
    again = play(tmp_path, seed=3)

    def pieces(directory: Path) -> dict[str, bytes]:
        return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.glob("*/telemetry/spool/*"))}

    assert pieces(again.directory) == pieces(story.directory)
    assert len(pieces(story.directory)) == 4


def test_a_migration_is_recorded_with_its_phases_by_who_coordinated_it(story):
    by_hand = [(node, row) for node, row in recorded(story, rows.MigrationRow) if row.operator == story.operator]
    node, row = by_hand[0]

    assert (node, row.from_node, row.to_node) == (story.away_from, story.away_from, story.to)
    assert row.committed
    assert row.queries == (story.query,)
    phases = [row.asked_at, row.locked_at, row.prepared_at, row.copied_at, row.paused_at, row.moved_at, row.ended_at]
    assert None not in phases
    assert phases == sorted(phases)
    assert (row.ended_at - row.asked_at) / 1000 == pytest.approx(row.duration_ms, abs=0.01)
    assert 0 < row.pause_ms < row.duration_ms
    assert len(list(recorded(story, rows.MigrationRow))) == len(story.migrations)


def test_a_migration_of_the_optimiser_tells_the_usages_that_its_review_promised(story):
    migrations = [row for _, row in recorded(story, rows.MigrationRow)]
    wishes = [row for _, row in recorded(story, rows.Review) if row.verdict == "migrate"]

    by_hand = [row for row in migrations if row.usage_before_bytes is None]
    own = [row for row in migrations if row.usage_before_bytes is not None]
    assert [row.operator for row in by_hand] == [story.operator]
    assert own
    for row in own:
        best = [wish.alternatives[0] for wish in wishes if row.operator in wish.operators]
        promised = [(one.node, one.usage_here_bytes, one.usage_bytes) for one in best]
        assert (row.to_node, row.usage_before_bytes, row.usage_after_bytes) in promised
        assert row.usage_after_bytes < row.usage_before_bytes


def test_a_placement_gives_its_alternatives_and_adds_up(story):
    ((node, row),) = recorded(story, rows.Placement)

    assert (node, row.query) == (home_of(story.query), story.query)
    assert row.usage_bytes == pytest.approx(sum(link.bytes_per_s * link.latency_ms / 1000 for link in row.links))
    placed = {one.operator: one for one in row.operators}
    for one in row.operators:
        assert one.pinned == (not one.candidates)
        assert one.pinned or one.node in {candidate.node for candidate in one.candidates}
    assert all(placed[link.source].node == link.source_node and placed[link.target].node == link.target_node for link in row.links)


def test_latencies_count_every_row_that_the_sink_took(story):
    latencies = [row for _, row in recorded(story, rows.Latency)]

    assert {row.query for row in latencies} == {story.query}
    assert sum(row.rows for row in latencies) == story.sink["rows_in"]
    for row in latencies:
        assert row.rows == sum(bucket.rows for bucket in row.buckets)
        assert 0 < row.p50_ms <= row.p90_ms <= row.p99_ms <= row.max_ms
        assert row.max_ms < 5000
    assert len(latencies) > 1


def test_a_link_ends_with_what_it_has_carried_and_its_latency_is_half_the_rtt(story):
    links = [(node, row) for node, row in recorded(story, rows.LinkRate)]
    rtts = {(node, row.peer): row.rtt_ms for node, row in recorded(story, rows.Probe)}

    remote = [(node, row) for node, row in links if row.target_node != node]
    assert remote
    assert all(row.latency_ms == 0 for node, row in links if row.target_node == node)
    assert all(row.latency_measured and row.latency_ms == pytest.approx(rtts[node, row.target_node] / 2, rel=0.2) for node, row in remote)
    into_sink = [row.rows for _, row in links if row.target == story.sink["id"]]
    assert 0 < max(into_sink) <= story.sink["rows_in"]


def test_operators_tell_their_selectivity_beside_the_estimate(story):
    statistics = [row for _, row in recorded(story, rows.OperatorStatistics)]

    measured = [row for row in statistics if row.selectivity is not None]
    assert measured
    assert all(row.selectivity == pytest.approx(row.rows_per_s_out / row.rows_per_s_in) for row in measured)
    assert {"source", "window", "sink"} <= {row.operator_kind for row in statistics}
    assert all(row.queries == (story.query,) for row in statistics)
    assert all(row.estimated_rows_per_s_in is None for row in statistics if row.operator_kind == "source")
    assert max(row.epoch for row in statistics if row.operator == story.operator) >= 1


def test_queries_members_and_agents_tell_their_changes(story):
    queries = [(row.query, row.state) for _, row in recorded(story, rows.QueryChange)]
    agents = [(node, row.event) for node, row in recorded(story, rows.AgentChange)]
    seen = {(node, row.member, row.after) for node, row in recorded(story, rows.MemberChange)}
    living = [node for node, event in agents if event == "stopped"]

    assert queries == [(story.query, "running"), (story.query, "stopping")]
    assert sorted(living) == sorted({node for node, _ in agents} - {story.lost})
    assert all((node, story.lost, "failed") in seen for node in living)


def test_all_of_it_becomes_tables(story, tmp_path):
    directory = tmp_path / "story"  # the other tests read rows that wait to be written
    shutil.copytree(story.directory, directory)
    count = sum(1 for telemetry in directory.glob("*/telemetry") for _ in spooled(telemetry))

    assert write_tables(directory) == count

    for kind in PERIODIC:
        table = pl.read_parquet(sorted(directory.glob(f"*/telemetry/kind={kind}/*/*/*.parquet")), hive_partitioning=False)
        assert table["agent"].n_unique() == 4
    assert [path.name for path in directory.glob("*/telemetry/spool/*")] == [".lock"] * 4


def test_use_of_the_processors_and_what_waits_for_them_are_told_apart(tmp_path, monkeypatch):
    """Their sum, which placement uses, used to be reported as the use: 106 % of the processors."""
    world = World(build(CitiesConfig(), 2, 1), seed=1, data_dir=tmp_path, settings=SETTINGS)
    world.start(0)
    host = world.agents[0].host
    monkeypatch.setattr(host, "processors", lambda: ProcessorUse(1.06, 0.75, 0.25))
    query = world.submit("SELECT cpu FROM sys.load")
    shown = world.rows(query, count=3)
    world.run(RUN_S)
    world.close()

    told = [line.row for line in spooled(next(tmp_path.glob("*/telemetry"))) if isinstance(line.row, rows.Load)]
    assert {(row.cpu, round(row.cpu_waiting, 9)) for row in told} == {(0.75, 0.31)}
    assert set(shown) == {(0.75,)}
