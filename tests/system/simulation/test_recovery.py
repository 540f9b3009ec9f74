"""Queries heal: operators of a crashed host run again, and the losses are reported and counted."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sbon.config import Layer
from sbon.supervision.record import QueryRecord, QueryState
from sbon.telemetry.rows import RecoveryRow
from sbon.types import QueryId
from sbon_agent.telemetry.spool import spooled
from sbon_testbed.simulator.harness import World

HOME, SOURCE, SINK, MIDDLE, OTHER = 0, 1, 2, 3, 4
ROWS, PER_SECOND = 400, 20
FILTER = "SELECT v, v * 2 AS d FROM r WHERE v % 3 = 0"
WINDOW = "SELECT window_start, COUNT(*) AS n, SUM(v) AS s FROM TUMBLE(r, ts, INTERVAL '1 second') GROUP BY window_start"

SESSION = "SELECT window_start, COUNT(*) AS n, SUM(v) AS s FROM SESSION(half, ts, INTERVAL '200 milliseconds') GROUP BY window_start"
SESSION = f"WITH half AS (SELECT ts, v FROM r WHERE v % {PER_SECOND} < {PER_SECOND // 2}) {SESSION}"
"""One session in the first half of each second."""
BOTH = WINDOW.replace("FROM TUMBLE(r", "FROM TUMBLE(both").replace(
    "SELECT", "WITH both AS (SELECT ts, v FROM r UNION ALL SELECT ts, v FROM other) SELECT", 1
)

NESTED = (
    "WITH w AS (SELECT window_end, COUNT(*) AS n FROM TUMBLE(r, ts, INTERVAL '1 second') GROUP BY window_end) "
    "SELECT window_start, SUM(n) AS n, COUNT(*) AS s FROM TUMBLE(w, window_end, INTERVAL '2 seconds') GROUP BY window_start"
)


class Story:
    """A file is replayed on one host, its answers are written to a file on another one, and hosts crash."""

    OPTIONS = ""
    """Additional options of the sink."""
    LINKS: ClassVar[Layer] = {}
    """Settings of links."""
    RUNS_S = 2.0
    """Seconds that the query has run when the story begins, so that its home has had a report."""

    def __init__(self, folder: Path, sql: str, *, records: bool = False, **engine: Any) -> None:
        settings = {
            "telemetry": {"enabled": records, "parquet": False},
            "optimiser": {"enabled": False},
            "placement": {"reuse": False},
            "engine": {"batch_interval_s": 0.1, **engine},
            "links": self.LINKS,
        }
        self.world = world = World(5, seed=3, data_dir=folder, settings=settings)
        world.start_all()
        world.settle()
        for name, number, first in (("r", SOURCE, 0), ("other", OTHER, ROWS)):
            path = world.data_dir_of(number) / "files" / f"{name}.csv"
            path.parent.mkdir(parents=True)
            rows = (f"2026-01-01T00:00:{i // PER_SECOND:02d}.{i % PER_SECOND * 50:03d},{first + i}" for i in range(ROWS))
            path.write_text("\n".join(["ts,v", *rows, ""]))
            world.submit(
                f"CREATE SOURCE {name} (ts TIMESTAMP, v BIGINT, WATERMARK FOR ts AS ts - INTERVAL '0.2 s') WITH "
                f"(connector = 'file', path = '{path}', nodes = '{world.nodes[number]}', replay = 'event_time')"
            )
        world.run(3.0)
        query = world.submit(
            f"CREATE SINK k AS {sql} WITH (connector = 'file', path = 'k.csv', node = '{world.nodes[SINK]}'{self.OPTIONS})"
        )
        self.record: QueryRecord = self._agent(HOME).queries.owned.find(query)
        world.run(self.RUNS_S)

    def _agent(self, number: int) -> Any:
        found = self.world.agents[number]
        assert found is not None
        return found

    def move(self, kind: str = "window", number: int = MIDDLE) -> str:
        """Moves the operator of this kind to another host."""
        operator = next(one for one, spec in self.record.specs.items() if spec.params.__struct_config__.tag == kind)
        there = self.world.nodes[number]
        if self.record.nodes[operator] == there:
            return operator
        result = self.world.ask(self.record.nodes[operator], "migrate", operator=operator, node=there)
        assert result["committed"]
        self.world.run(3.0)
        return operator

    def without_movable(self, host: int) -> set[str]:
        """Moves all movable operators of a host to the middle; returns the kinds of the operators that stay."""
        here = self.world.nodes[host]
        for operator, spec in self.record.specs.items():
            if spec.pinned is None and self.record.nodes[operator] == here:
                assert self.world.ask(here, "migrate", operator=operator, node=self.world.nodes[MIDDLE])["committed"]
                self.world.run(1.0)
        return {
            str(spec.params.__struct_config__.tag) for operator, spec in self.record.specs.items() if self.record.nodes[operator] == here
        }

    def crash(self, number: int, *, silent: bool = False, back_s: float | None = 2.0) -> None:
        """Kills a host, lets it come back, and waits until the query runs again."""
        before = self.record.health.healing.account.recoveries
        self.world.kill(number, silent=silent)
        if back_s is not None:
            self.world.run(back_s)
            self.world.start(number)
        self.world.run_until(lambda: self.record.health.healing.account.recoveries > before, 20.0, "the query is recovered")

    def answers(self) -> list[list[str]]:
        """Returns the answers in the file, once the query has ended."""
        self.world.run_until(lambda: self.record.state is QueryState.FINISHED, 120.0, "the query ends")
        file = next(self.world.data_dir_of(SINK).rglob("k.csv"))
        return [line.split(",") for line in file.read_text().splitlines()[1:]]

    def state_lost_until(self) -> str:
        """Returns the event time until which the only operator that began empty lacks rows."""
        told = [one["state_lost_until"] for lost in self.record.row(None)["lost"] for one in lost["operators"]]
        [until] = filter(None, told)
        return str(until)


class Incomplete(Story):
    """The story of a query that also answers windows that lost rows in a crash."""

    OPTIONS = ", after_crash = 'incomplete'"


class AtOnce(Story):
    """The story of a query that has just begun; its home has not asked for reports yet."""

    RUNS_S = 0.7


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Any]:
    made: list[Story] = []

    def make(sql: str, **options: Any) -> Story:
        made.append(Story(tmp_path, sql, **options))
        return made[-1]

    yield make
    for one in made:
        one.world.close()


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("host", [SOURCE, SINK])
def test_a_filter_between_files_loses_and_repeats_nothing_when_a_host_crashes(story: Any, host: int, silent: bool) -> None:
    told = story(FILTER)
    told.crash(host, silent=silent)
    assert [int(v) for v, _ in told.answers()] == list(range(0, ROWS, 3))
    assert told.record.health.healing.account.rows == 0


def test_a_sink_knows_its_rows_though_its_host_crashes_before_anybody_has_asked_it(tmp_path: Path) -> None:
    told = AtOnce(tmp_path, FILTER)
    assert next(tmp_path.rglob("k.csv")).read_text().count("\n") > 1
    told.crash(SINK, silent=True)
    assert [int(v) for v, _ in told.answers()] == list(range(0, ROWS, 3))
    told.world.close()


def test_both_hosts_may_crash_one_after_the_other(story: Any) -> None:
    told = story(FILTER)
    told.crash(SOURCE)
    told.crash(SINK)
    told.crash(SOURCE, silent=True)
    assert [int(v) for v, _ in told.answers()] == list(range(0, ROWS, 3))


def test_a_window_runs_elsewhere_and_leaves_out_what_it_had_begun(story: Any) -> None:
    told = story(WINDOW)
    operator = told.move()
    told.crash(MIDDLE, back_s=None)

    assert told.record.nodes[operator] != told.world.nodes[MIDDLE]
    assert told.record.state is QueryState.RUNNING
    [lost] = told.record.row(None)["lost"]
    until = datetime.fromisoformat(lost["operators"][0]["state_lost_until"]).replace(tzinfo=None)
    answers = told.answers()
    assert {n for _, n, _ in answers} == {str(PER_SECOND)}, "no window is answered with fewer rows"
    starts = [datetime.fromisoformat(start).replace(tzinfo=None) for start, _, _ in answers]
    assert len(set(starts)) == len(starts)
    missing = {datetime(2026, 1, 1, 0, 0, second) for second in range(ROWS // PER_SECOND)} - set(starts)
    assert all(start < until for start in missing)
    assert len(missing) <= 2
    assert len(missing) <= lost["windows"] <= len(missing) + 1, "only the last window may be counted without rows"
    assert "began empty" in told.record.reason


def test_a_sink_that_is_lost_with_the_window_before_it_takes_all_later_answers(story: Any) -> None:
    """It once skipped as many answers as there were rows in its file."""
    told = story(WINDOW)
    told.move(number=SINK)
    told.world.run(4.0)
    for _ in range(2):
        told.crash(SINK)
        told.world.run(2.0)
    lost = told.record.row(None)["lost"]
    assert all(one["exact"] for one in lost)
    answers = told.answers()
    assert {n for _, n, _ in answers} == {str(PER_SECOND)}
    starts = [datetime.fromisoformat(start).replace(tzinfo=UTC) for start, _, _ in answers]
    assert len(set(starts)) == len(starts)
    until = max(datetime.fromisoformat(done["left_out_before"]) for one in lost for done in one["operators"] if done["left_out_before"])
    assert {datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in range(until.second, ROWS // PER_SECOND)} <= set(starts)


def test_a_window_over_windows_that_are_left_out_leaves_its_own_out(story: Any) -> None:
    told = story(NESTED)
    inner, outer = [one for one, spec in told.record.specs.items() if spec.params.__struct_config__.tag == "window"]
    assert told.move() == inner
    told.world.ask(told.record.nodes[outer], "migrate", operator=outer, node=told.world.nodes[OTHER])
    told.world.run(1.0)
    told.crash(MIDDLE, back_s=None)
    assert told.record.nodes[outer] == told.world.nodes[OTHER]
    [lost] = told.record.row(None)["lost"]
    assert lost["exact"]
    [told_by] = [one for one in lost["operators"] if one["id"] == inner]
    until = datetime.fromisoformat(told_by["left_out_behind"][outer])
    answers = told.answers()
    ends = (0, ROWS // PER_SECOND)  # of the stream: these windows have one row
    assert {(n, windows) for start, n, windows in answers if int(start[17:19]) not in ends} == {(str(2 * PER_SECOND), "2")}
    starts = {datetime.fromisoformat(start).replace(tzinfo=UTC) for start, _, _ in answers}
    assert {datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in range(until.second, ROWS // PER_SECOND, 2)} <= starts


def test_windows_that_lack_rows_are_answered_if_the_query_wants_that_and_it_says_which(tmp_path: Path) -> None:
    told = Incomplete(tmp_path, WINDOW)
    told.move()
    told.crash(MIDDLE, back_s=None)
    assert told.record.row(None)["after_crash"] == "incomplete"
    [lost] = told.record.row(None)["lost"]
    until = told.state_lost_until()
    answers = told.answers()
    starts = [start for start, _, _ in answers]
    assert len(set(starts)) == len(starts)
    incomplete = [start for start, n, _ in answers if n != str(PER_SECOND)]
    assert incomplete, "a window that lacks rows must be answered"
    assert all(start < until for start in incomplete), "a window is silently wrong"
    assert len(incomplete) <= lost["windows"]
    told.world.close()


def test_sessions_that_may_lack_rows_are_left_out(story: Any) -> None:
    told = story(SESSION)
    operator = told.move("session")
    figures = told.world.agents[MIDDLE].execution.operators.instances[operator].figures
    told.world.run_until(lambda: 3 <= figures.rows_in % 10 <= 5, 5.0, "a session has begun")
    told.crash(MIDDLE, back_s=None)
    [lost] = told.record.row(None)["lost"]
    [before] = filter(None, (one["left_out_before"] for one in lost["operators"]))
    assert before > told.state_lost_until()
    answers = told.answers()
    assert {int(n) for _, n, _ in answers} == {PER_SECOND // 2}, "no session is answered with fewer rows"
    assert len({start for start, _, _ in answers}) == len(answers) >= ROWS // PER_SECOND - 3


def test_a_query_says_that_it_is_recovering_and_then_what_it_cost(story: Any) -> None:
    told = story(WINDOW)
    told.move()
    states = []
    told.world.kill(MIDDLE)
    told.world.run_until(lambda: states.append(told.record.state) or told.record.health.healing.account.recoveries > 0, 20.0)
    assert QueryState.RECOVERING in states
    told.world.run(0.1)
    assert told.record.state is QueryState.RUNNING


def test_a_query_remembers_what_has_happened_to_it(story: Any) -> None:
    told = story(WINDOW)
    operator = told.move()
    told.crash(MIDDLE, back_s=None)
    there = told.record.nodes[operator]
    told.world.run(1.0)
    [row] = told.world.ask(told.world.nodes[SINK], "queries", history=True)
    assert [one["event"] for one in row["history"]] == ["placed", "moved", "recovering", "recovered"]
    _, moved, recovering, recovered = row["history"]
    middle = told.world.nodes[MIDDLE]
    assert [(one["id"], one["node"]) for one in moved["operators"]] == [(operator, middle)]
    assert [(one["id"], one["from"], one["node"]) for one in recovering["operators"]] == [(operator, middle, None)]
    assert [(one["id"], one["from"], one["node"]) for one in recovered["operators"]] == [(operator, middle, there)]
    assert 0 < recovered["seconds"] < 5
    assert recovered["at_wall_s"] >= recovering["at_wall_s"]
    [cost] = row["lost"]
    assert {name: cost[name] for name in ("rows", "windows", "seconds")} == {
        name: recovered[name] for name in ("rows", "windows", "seconds")
    }
    assert row["migrations"] == 1
    told.answers()
    told.world.run(1.0)
    [row] = told.world.ask(told.world.nodes[HOME], "queries", history=True)
    assert (row["history"][-1]["event"], row["history"][-1]["reason"]) == ("ended", "finished")
    [row] = told.world.ask(told.world.nodes[HOME], "queries")
    assert "history" not in row


def test_telemetry_has_a_row_for_each_recovery(story: Any) -> None:
    told = story(WINDOW, records=True)
    operator = told.move()
    began_us = int(told.world.agents[HOME].host.wall() * 1e6)
    told.crash(MIDDLE, back_s=None)
    there = told.record.nodes[operator]
    [cost] = told.record.row(None)["lost"]
    told.world.agents[HOME].monitoring.telemetry.close()
    spool = told.world.data_dir_of(HOME) / "telemetry"
    [row] = [line.row for line in spooled(spool) if isinstance(line.row, RecoveryRow)]

    [lost] = row.operators
    assert (lost.operator, lost.operator_kind, lost.from_node, lost.to_node) == (operator, "window", told.world.nodes[MIDDLE], there)
    assert (lost.state_lost, row.windows_lost, row.rows_lost) == (True, cost["windows"], cost["rows"])
    assert row.query == told.record.id
    assert row.duration_ms / 1000 == pytest.approx(cost["seconds"], abs=0.001)
    phases = [began_us, row.lost_at, row.placing_at, row.fencing_at, row.making_at, row.recovered_at]
    assert phases == sorted(phases)
    assert row.recovered_at - row.lost_at == pytest.approx(row.duration_ms * 1000, abs=2)


def test_what_is_pinned_to_a_host_waits_for_it_and_says_so(story: Any) -> None:
    told = story(FILTER)
    told.world.kill(SINK)
    told.world.run(20.0)
    assert told.record.state is QueryState.DEGRADED
    assert f"waits for {told.world.nodes[SINK]}" in told.record.reason
    told.world.start(SINK)
    assert [int(v) for v, _ in told.answers()] == list(range(0, ROWS, 3))


def test_a_neighbour_dials_a_host_at_once_that_is_back_after_long(story: Any) -> None:
    told = story(FILTER)
    world = told.world
    world.kill(SINK)
    world.run(40.0)
    world.start(SINK)
    neighbour, sink = world.agents[SOURCE], world.nodes[SINK]
    world.run_until(lambda: sink in neighbour.network.gossip.alive_labels(), 20.0, "the neighbour hears of it")
    world.run(neighbour.config.peers.dial_backoff_s_min + 0.3)
    assert neighbour.network.peers.is_connected(neighbour.network.gossip.address_of(sink)), "it still waits before it dials again"


def test_a_host_loads_libraries_as_soon_as_it_is_asked_for_what_it_has_lost(story: Any) -> None:
    told = story(FILTER)
    told.world.kill(SINK)
    told.world.run(2.0)
    told.world.start(SINK)
    told.world.run_until(lambda: told.record.state is QueryState.RECOVERING, 20.0, "the sink is about to be made again")
    loading = [agent.name for agent in told.world.agents if agent.execution.engine._is_loading]
    assert loading == [told.world.nodes[SINK]]


def test_an_old_copy_behind_a_partition_ends_itself_and_no_row_comes_twice(story: Any) -> None:
    told = story(WINDOW, wanted_interval_s=3.0)
    operator = told.move()
    told.world.partition([[MIDDLE]])
    told.world.run_until(lambda: told.record.health.healing.account.recoveries > 0, 20.0)
    copies = [agent.name for agent in told.world.agents if operator in agent.execution.operators.instances]
    assert len(copies) == 2
    told.world.heal()
    told.world.run_until(lambda: operator not in told.world.agents[MIDDLE].execution.operators.instances, 30.0, "the old copy ends")
    starts = [start for start, _, _ in told.answers()]
    assert len(set(starts)) == len(starts)


def test_without_healing_a_query_stays_degraded(story: Any) -> None:
    told = story(WINDOW, heal=False)
    told.move()
    told.world.kill(MIDDLE)
    told.world.run(15.0)
    assert told.record.state is QueryState.DEGRADED
    assert told.record.health.healing.account.recoveries == 0


@pytest.mark.parametrize("host", [SOURCE, SINK])
def test_a_host_that_is_back_from_a_partition_goes_on_as_it_was(story: Any, host: int) -> None:
    told = story(FILTER)
    told.world.partition([[host]])
    told.world.run(25.0)
    assert told.record.state is QueryState.DEGRADED
    told.world.heal()
    assert [int(v) for v, _ in told.answers()] == list(range(0, ROWS, 3))
    assert told.record.health.healing.account.recoveries == 0
    assert told.record.reason == ""


def test_a_partition_that_is_shorter_than_the_time_to_heal_costs_nothing(story: Any) -> None:
    told = story(WINDOW, heal_after_s=15.0)
    operator = told.move()
    told.world.partition([[MIDDLE]])
    told.world.run_until(lambda: operator in told.record.lost, 20.0, "the host is declared failed")
    told.world.run(10.0)
    told.world.heal()
    assert [int(n) for _, n, _ in told.answers()] == [PER_SECOND] * (ROWS // PER_SECOND)
    assert told.record.health.healing.account.recoveries == 0


def test_a_source_that_was_away_feeds_what_began_anew_meanwhile_where_it_had_stopped(story: Any) -> None:
    told = story(f"SELECT r.v, other.v AS w FROM r JOIN other ON r.ts = other.ts AND r.v + {ROWS} = other.v", rerun_rows_max=0)
    told.move("join")
    told.world.partition([[OTHER]])
    told.world.run_until(lambda: told.record.lost != frozenset(), 20.0, "the source is away")
    told.crash(MIDDLE, back_s=None)
    told.world.run(3.0)
    told.world.heal()
    found = [int(v) for v, _ in told.answers()]
    assert told.record.health.healing.account.recoveries == 1, "the source must continue unchanged"
    until = told.state_lost_until()
    missing = set(range(ROWS)) - set(found)
    lacking = datetime.fromisoformat(until).replace(tzinfo=None) - datetime(2026, 1, 1)
    assert all(number <= lacking.total_seconds() * PER_SECOND for number in missing)
    assert len(found) == len(set(found))
    assert found[-1] == ROWS - 1


def test_a_window_that_began_anew_while_a_source_was_away_says_what_it_lacks_of_that(story: Any) -> None:
    told = story(BOTH)
    told.move()
    told.world.partition([[OTHER]])
    told.world.run_until(lambda: told.record.lost != frozenset(), 20.0, "the source is away")
    told.crash(MIDDLE, back_s=None)
    told.world.heal()
    answers = told.answers()
    until = told.state_lost_until()
    for start, n, _ in answers:
        assert int(n) == 2 * PER_SECOND or start < until, "an answer is silently wrong"


def test_a_neighbour_cannot_move_before_the_new_operator_is_there(story: Any) -> None:
    told = story(BOTH)
    window = told.move()
    consumer = told.move("map", SINK)
    world = told.world
    slow_s = 8.0
    for agent in filter(None, world.agents):
        make = agent.execution.operators.instantiate
        agent.execution.operators.instantiate = lambda *told, make=make, host=agent.host, **more: host.call_at(
            host.now() + slow_s, lambda: make(*told, **more)
        )
    told.world.kill(MIDDLE)
    world.run_until(lambda: "are being made again" in told.record.reason, 20.0, "its neighbours have answered")
    began = world.now
    refused: list[str] = []
    while not told.record.health.healing.account.recoveries:
        moved = world.ask(SINK, "migrate", operator=consumer, node=world.nodes[HOME])
        if not moved["committed"]:
            refused.append(str(moved))
        world.run(0.5)
    assert world.now - began >= slow_s
    assert len(refused) >= 5
    assert f"{window} is not on" in refused[0]
    assert world.ask(SINK, "migrate", operator=consumer, node=world.nodes[HOME])["committed"]
    until = told.state_lost_until()
    starts = {start for start, n, _ in told.answers() if int(n) == 2 * PER_SECOND}
    assert all(start < until for start in {f"2026-01-01T00:00:{second:02d}.000000Z" for second in range(20)} - starts)


SHARED = "SELECT window_end, COUNT(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 second') GROUP BY window_end"


def shared_world(**engine: float) -> tuple[World, QueryId]:
    """Makes a world with a source and the first of the queries that share a window; returns world and query."""
    settings = {"telemetry": {"enabled": False}, "optimiser": {"enabled": False}, "engine": {"lost_consumer_s": 5.0, **engine}}
    world = World(5, seed=3, settings=settings)
    world.start_all()
    world.settle()
    world.submit(
        "CREATE SOURCE s (ts TIMESTAMP, v BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', rows_per_second = 20, "
        f"nodes = '{world.nodes[SOURCE]}')"
    )
    world.run(3.0)
    first = world.submit(SHARED, HOME)
    world.run(3.0)
    return world, first


@pytest.mark.parametrize("partition", [False, True])
def test_an_operator_that_two_queries_use_is_made_again_once_for_both(partition: bool) -> None:
    world, first = shared_world(wanted_interval_s=3.0)
    second = world.submit(f"SELECT window_end, n + 100 AS n FROM ({SHARED}) WHERE n > 0", OTHER)
    tails = [world.tail(first, HOME), world.tail(second, OTHER)]
    world.run_until(lambda: all(len(tail.rows) > 3 for tail in tails))
    agents: Any = world.agents
    records = [agents[home].queries.owned.find(query) for home, query in ((HOME, first), (OTHER, second))]
    [window] = [one for one, spec in records[0].specs.items() if spec.params.__struct_config__.tag == "window"]
    assert window in records[1].nodes
    assert window not in records[1].specs, "the second query must use the first query's operator"
    assert world.ask(records[0].nodes[window], "migrate", operator=window, node=world.nodes[MIDDLE])["committed"]
    world.run(3.0)

    if partition:
        world.partition([[MIDDLE]])
    else:
        world.kill(MIDDLE)
    before = [len(tail.rows) for tail in tails]
    world.run_until(lambda: all(len(tail.rows) > count + 5 for tail, count in zip(tails, before, strict=True)), 30.0, "both go on")
    assert records[0].health.healing.account.recoveries == 1
    if partition:
        world.heal()
        world.run(15.0)
    world.run_until(lambda: records[0].nodes[window] == records[1].nodes[window], 10.0, "both know where it is")
    hosts = [agent.name for agent in world.agents if agent is not None and window in agent.execution.operators.instances]
    assert hosts == [records[0].nodes[window]] == [records[1].nodes[window]]
    for tail, right in zip(tails, (20, 120), strict=True):
        assert len({row[0] for row in tail.rows}) == len(tail.rows), "no answer comes twice"
        assert {row[1] for row in tail.rows[1:]} == {right}, "no answer is wrong"
    for record in records:
        assert record.state is QueryState.RUNNING
        assert record.reason, "the reason must name the losses"
    world.close()


@pytest.mark.parametrize("is_back", [False, True])
def test_who_shares_an_operator_whose_first_query_ended_where_queries_do_not_heal_hears_what_to_do(is_back: bool) -> None:
    world, first = shared_world(heal=False)
    over = f"SELECT window_end, n + 100 AS n FROM ({SHARED}) WHERE n > 0"
    second = world.submit(over, OTHER)
    agents: Any = world.agents
    record = agents[HOME].queries.owned.find(first)
    [window] = [one for one, spec in record.specs.items() if spec.params.__struct_config__.tag == "window"]
    world.run(3.0)
    assert world.ask(record.nodes[window], "migrate", operator=window, node=world.nodes[MIDDLE])["committed"]
    world.run(3.0)

    world.kill(MIDDLE)
    world.run(1.0)
    world.ask(HOME, "drop", query=first)
    left = agents[OTHER].queries.owned.find(second)
    world.run_until(lambda: window in left.reason, 60.0, "it is known that nobody makes the operator again")
    assert left.state is QueryState.DEGRADED
    assert f"was on {world.nodes[MIDDLE]}, which failed" in left.reason
    if is_back:
        world.start(MIDDLE)
        world.run_until(lambda: f"{window} (shared with another query) is not on {world.nodes[MIDDLE]} any more" in left.reason, 60.0)
        assert left.state is QueryState.DEGRADED
    assert f"`sbon drop {second}`, then submit it again" in left.reason
    world.ask(OTHER, "drop", query=second)
    tail = world.tail(world.submit(over, OTHER), OTHER)
    world.run_until(lambda: len(tail.rows) > 5, 60.0, "submitted again, it answers")
    assert {row[1] for row in tail.rows[1:]} == {120}
    world.close()
