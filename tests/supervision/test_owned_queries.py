"""The queries that an agent has taken, from their placement to their end, without hosts."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sbon.cost.store import CostStore
from sbon.errors import LinkError, PlacementError, QueryError
from sbon.execution.settings import EngineConfig
from sbon.extensions import Extensions
from sbon.membership.members import MemberStatus
from sbon.optimiser.config import OptimiserConfig
from sbon.queries.parts import QueryParts
from sbon.queries.queries import OwnedQueries
from sbon.queries.replication import Replication
from sbon.query.ids import query_id
from sbon.query.instances import sets_of
from sbon.query.plan import Changed, Sizing
from sbon.supervision.health import News
from sbon.supervision.history import History
from sbon.supervision.homes import HomeState
from sbon.supervision.kept_record import left_of
from sbon.supervision.owners import Owners
from sbon.supervision.record import QueryRecord, QueryState
from sbon.supervision.register import kept_of, with_record
from sbon.supervision.resumption import KeptQuery
from sbon.types import QueryId
from sbon.wire.deployment import Release, Use, User
from sbon.wire.messages import Done
from sbon.wire.replanning import Retire, Retired
from sbon.wire.replication import Drop
from sbon.wire.reports import OperatorReport, OperatorReports, OperatorsAsk
from tests.query_worlds import make_catalog, plan_of
from tests.recorder import FakeGossip, FakeHost, Recorder

MINE = query_id("b", 1, 1)
THEIRS = query_id("a", 1, 1)
FAR = "CREATE SOURCE far (ts TIMESTAMP, k TEXT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'a')"
SELECT = "SELECT window_end, count(*) AS n FROM TUMBLE(far, ts, INTERVAL '10 s') GROUP BY window_end"
SINK = f"CREATE SINK out WITH (connector = 'discard') AS {SELECT}"


class World:
    """Agent b, with members a and c; the test plays placement, hosts and homes."""

    def __init__(self) -> None:
        self.host = FakeHost()
        self.directory = Recorder(me="b")
        self.gossip = FakeGossip("b", "a", "c")
        self.placing = Recorder(cost_of=lambda links: 1.0)
        self.homes = Recorder(state=lambda query, home: self.home_state)
        self.home_state = HomeState.PRESENT
        self.events, self.reaches = Recorder(), Recorder()
        self.waiting: dict[str, KeptQuery] = {}
        self.resuming = Recorder(
            find=self.waiting.get,
            find_short=lambda name: None,
            forget=lambda query: self.waiting.pop(query, None) is not None,
            runs=lambda query: self.waiting.pop(query, None) is not None,
            rows=list,
            keep=self.keep,
        )
        self.kept = 0
        self.tables = Replication(self.directory, self.gossip, self.host.wall, lambda why: None)
        self.tables.catalog = make_catalog(f"{FAR}; CREATE VIEW fast AS SELECT k FROM far")
        connectors = Recorder(extensions=Extensions)
        parts = QueryParts(
            self.host, self.directory, self.gossip, self.placing, self.tables, self.homes, connectors, self.reaches, self.resuming
        )
        self.owners = Owners()
        self.queries = OwnedQueries(parts, self.events, CostStore("b", 1e6), self.owners, EngineConfig(take_over=False), OptimiserConfig)
        self.results: list[Any] = []

    def keep(self, done: Any = lambda problem: None) -> None:
        self.kept += 1
        done("")

    def deploy(self, sql: str = SELECT, query: str = MINE) -> Any:
        """Deploys a query, accepts all requests to hosts, and returns the record."""
        self.queries.deploy(plan_of(sql, self.tables.catalog, query=query), self.results.append)
        self.place()
        return self.agree()

    def place(self) -> None:
        """Places all operators on their pinned nodes, the others on a."""
        place = self.placing.pop("place")
        plan = place.given[0]
        nodes = {spec.id: spec.pinned or "a" for spec in plan.operators}
        decision = SimpleNamespace(delay_bound_ms=None, delay_ms=5.0, assignment=nodes, reused={}, begun_ms={}, candidates=())
        place.done(SimpleNamespace(plan=plan, nodes=nodes, reused={}, unpinned_nodes=frozenset({"a"}), decision=decision, note=""))

    def agree(self) -> Any:
        while self.directory.calls_of("request"):
            self.directory.pop("request").done(Done())
        return self.results[-1]

    def told(self, kind: type) -> list[str]:
        """Returns the nodes that were sent messages of this kind."""
        return [node for node, message in self.directory.calls_of("tell") if isinstance(message, kind)]

    def drop(self, name: str, *users: QueryId) -> Any:
        """Drops a query. Its hosts report `users` as users of its window, before the drop and when asked again."""
        answers: list[Any] = []
        if users:
            self.hear(*users)
        self.queries.dropping.drop(name, answers.append)
        if record := self.queries.records.get(MINE):
            self.report(record, users=users)
        return answers

    def hear(self, *users: QueryId) -> None:
        """Has the hosts of the query report `users` as users of its window."""
        record = self.queries.records[MINE]
        self.queries.watching.ask(record, lambda record: None)
        self.report(record, users=users)

    def report(self, record: QueryRecord, state: str = "running", users: tuple[QueryId, ...] = ()) -> None:
        """Answers all questions to hosts: all operators are in `state`, and `users` use the window, too."""
        for node, message, *_ in self.directory.calls_of("request"):
            assert isinstance(message, OperatorsAsk)
            reports = tuple(
                OperatorReport(
                    operator,
                    state,
                    node,
                    links=tuple((link.id, 0, 0, 0.0, 0.0) for link in record.links if link.source == operator),
                    users=tuple(User(query, "c") for query in (message.query, *(users if record.kind_of(operator) == "window" else ()))),
                )
                for operator in message.operators
            )
            self.directory.pop("request", node).done(OperatorReports(reports=reports))


@pytest.fixture
def world() -> World:
    return World()


def names(world: World) -> set[str]:
    return {entry.name for entry in world.tables.catalog.living.values()}


# ------------------------------------------------------------------------------------------------------------ running


def test_a_query_that_is_deployed_is_entered_shown_and_listed(world: World) -> None:
    record = world.deploy()
    assert world.queries.records == {MINE: record}
    assert (record.state, record.owner, record.health.healing.is_on) == (QueryState.RUNNING, "b", True)
    assert [name for name in ("placed", "query_changed") if world.events.calls_of(name)] == ["placed", "query_changed"]
    assert [row["id"] for row in world.queries.rows()] == [MINE]
    assert [sink.query for (sink,) in world.reaches.calls_of("given")] == [MINE]


def test_a_query_that_is_refused_leaves_nothing(world: World) -> None:
    world.queries.deploy(plan_of(SELECT, world.tables.catalog, query=MINE), world.results.append)
    world.placing.pop("place").done(PlacementError("full"))
    assert [str(result) for result in world.results] == ["full"]
    assert world.reaches.calls_of("ended") == [(MINE,)]
    assert (world.queries.records, world.events.calls) == ({}, [])


def test_each_query_has_an_id_of_its_own(world: World) -> None:
    assert (world.queries.new_id(), world.queries.new_id()) == (MINE, query_id("b", 1, 2))


# ------------------------------------------------------------------------------------------------------------- ending


def test_a_dropped_query_is_released_everywhere_and_its_name_is_free(world: World) -> None:
    record = world.deploy(SINK)
    world.tables.put("sink", "out", sql=SINK, stamp=1, query=MINE)
    assert world.drop("out") == [None]
    assert world.told(Release) == sorted(set(record.nodes.values()))
    assert record.state is QueryState.STOPPING
    assert (world.queries.records, world.queries.register.ended) == ({}, {})
    assert "out" not in names(world)
    assert world.reaches.calls_of("ended") == [(MINE,)]
    assert world.kept == 1


def test_what_others_use_of_a_dropped_query_lives_on_until_nobody_does(world: World) -> None:
    record = world.deploy(SINK + " HAVING count(*) > 1")
    world.tables.put("sink", "out", sql=SINK, stamp=1, query=MINE)
    known, kinds = [*record.specs], [record.kind_of(operator) for operator in record.specs]
    used, behind = known[: kinds.index("window") + 1], known[kinds.index("window") + 1 :]
    assert world.drop("out", MINE, THEIRS) == [None]
    assert (record.state, record.name, record.sink_node) == (QueryState.SHARED, MINE, "")
    assert {*record.nodes} == {*record.specs} == {*used}, "keeps the window and its feeders"
    assert "out" not in names(world)
    assert not world.told(Release)
    while asked := world.directory.calls_of("request"):
        node, message, *_ = asked[0]
        assert isinstance(message, Retire)
        assert set(message.operators) == {*behind}
        world.directory.pop("request", node).done(Retired())
    assert world.queries.kept_queries() == [with_record(record)]
    assert kept_of(record).dropped

    world.queries.node_alive("a")
    world.report(record, users=(MINE, THEIRS))
    assert MINE in world.queries.records
    world.queries.node_alive("a")
    world.report(record)
    assert MINE not in world.queries.records, "no other query uses the window"
    assert world.told(Release) == ["a"]


def test_who_else_uses_a_query_is_written_to_disk_when_that_changes(world: World) -> None:
    world.deploy()
    before = world.kept
    world.hear(THEIRS)
    assert (known := world.kept) > before
    kept = {MINE: world.queries.kept_queries()[0].record}
    left = left_of(kept, (), {}, "b", 0.0, 0.0)[MINE]
    assert isinstance(left, QueryRecord)
    assert left.specs.keys() < world.queries.records[MINE].specs.keys()
    assert not left_of(kept, {THEIRS}, {}, "b", 0.0, 0.0), "nobody runs the other query any more"
    world.hear(THEIRS)
    assert world.kept == known
    world.hear()
    assert world.kept > known
    assert not world.queries.kept_queries()[0].record


def test_bounds_of_a_dropped_query_count_no_more_for_what_others_use(world: World) -> None:
    record = world.deploy()
    record.plan = msgspec.structs.replace(record.plan, max_latency_ms=50.0)
    assert world.drop(MINE, THEIRS) == [None]
    told = [(node, message) for node, message, *_ in world.directory.calls_of("request") if isinstance(message, Use)]
    assert told == [(record.nodes[operator], Use(operator=operator, user=User(MINE, "b"))) for operator in record.specs]
    assert record.plan.max_latency_ms is None


def test_too_few_keepers_hear_of_a_drop_and_all_of_the_query_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    record = world.deploy()
    everywhere = sorted(set(record.nodes.values()))
    monkeypatch.setattr(world.queries.ownership, "permit", lambda record, done: done(PlacementError("too few keepers answer")))
    assert world.drop(MINE, THEIRS) == [None]
    assert (world.queries.records, world.told(Release)) == ({}, everywhere)


@pytest.mark.parametrize("users", [(), (THEIRS,)])
@pytest.mark.parametrize("others", [False, True])
def test_a_tombstone_tells_former_owners_of_a_drop(
    world: World, monkeypatch: pytest.MonkeyPatch, others: bool, users: tuple[QueryId, ...]
) -> None:
    """One of two agents dropped a query that it had taken over from the other, and left: the other one came back and ran it again."""
    world.deploy()
    monkeypatch.setattr(world.queries.ownership, "had_other_owners", lambda query: others)
    assert world.drop(MINE, *users) == [None]
    grave = world.tables.catalog.latest(MINE)
    assert (grave is not None and grave.dropped) is others
    assert (MINE in world.queries.records) is bool(users)
    if users:
        world.queries.names_changed(filter(None, [grave]))
        world.queries.dropping.drop(MINE, world.results.append)
        assert (world.tables.catalog.latest(MINE), MINE in world.queries.records) == (grave, False)


def test_nothing_is_made_again_of_a_query_while_it_is_being_dropped(world: World) -> None:
    record = world.deploy()
    world.hear(THEIRS)
    window = next(operator for operator in record.specs if record.kind_of(operator) == "window")
    record.nodes[window], world.gossip.members["c"].status = "c", MemberStatus.FAILED
    world.queries.dropping.drop(MINE, world.results.append)
    world.queries.node_failed("c", left=False)
    assert record.lost == {window}
    assert not world.placing.calls_of("replace")
    assert record.state is QueryState.STOPPING


def test_a_dropped_query_that_is_dropped_again_ends(world: World) -> None:
    world.deploy()
    twice: list[Any] = []
    world.hear(THEIRS)
    world.queries.dropping.drop(MINE, twice.append)
    second: list[Any] = []
    world.queries.dropping.drop(MINE, second.append)
    world.report(world.queries.records[MINE], users=(THEIRS,))
    assert second == [None]
    assert twice == [None]
    assert MINE in world.queries.records, "the two drops counted as one"
    world.queries.dropping.drop(MINE, twice.append)
    assert twice == [None, None]
    assert MINE not in world.queries.records


@pytest.mark.parametrize("state", ["running", "finished"])
def test_a_query_has_ended_when_its_sink_has_finished(world: World, state: str) -> None:
    record = world.deploy()
    world.queries.node_alive("a")
    world.report(record, state)
    if state == "finished":
        assert record.state is QueryState.FINISHED
        assert MINE in world.queries.records  # the last figures are asked for first
        world.report(record, state)
    assert (MINE in world.queries.records) is (state == "running")
    assert (MINE in world.queries.register.ended) is (state == "finished")
    assert bool(world.told(Release)) is (state == "finished")


@pytest.mark.parametrize("problem", [None, PlacementError("too few keepers answer")])
def test_a_query_ends_once_its_keepers_know_of_it(world: World, monkeypatch: pytest.MonkeyPatch, problem: PlacementError | None) -> None:
    """A keeper that does not know of the end would take the query over and run it again."""
    record, asked = world.deploy(), list[Any]()
    monkeypatch.setattr(world.queries.ownership, "permit", lambda record, done: asked.append(done))
    world.queries.node_alive("a")
    world.report(record, "finished")
    world.report(record, "finished")
    assert MINE in world.queries.records
    asked.pop()(problem)
    assert (MINE in world.queries.records) is (problem is not None)


def test_the_end_is_handled_once_however_often_it_is_reported(world: World) -> None:
    record = world.deploy()
    world.queries.finished(record.sink)
    asked = len(world.directory.calls_of("request"))
    assert asked > 0
    world.queries.finished(record.sink)
    assert len(world.directory.calls_of("request")) == asked


def test_a_query_that_is_dropped_while_its_last_figures_are_asked_for_is_not_kept(world: World) -> None:
    record = world.deploy()
    world.queries.finished(record.sink)
    assert world.drop(MINE) == [None]
    world.report(record, "finished")
    assert (world.queries.records, world.queries.register.ended) == ({}, {})


def test_a_finished_query_keeps_its_rows_until_it_is_dropped(world: World) -> None:
    record = world.deploy()
    tail = world.queries.register.tails[MINE] = Recorder(kept_bytes=0)
    world.queries.finished(record.sink)
    world.report(record, "finished")
    assert world.queries.register.tails == {MINE: tail}
    assert world.drop(MINE) == [None]
    assert (world.queries.register.ended, world.queries.register.tails) == ({}, {})


def test_what_others_have_dropped_is_ended_and_a_finished_one_forgotten_with_its_rows(world: World) -> None:
    finished = world.deploy()
    world.queries.register.tails[MINE] = Recorder(kept_bytes=0)
    world.queries.finished(finished.sink)
    world.report(finished, "finished")
    running = world.deploy(query=query_id("b", 1, 2))
    for record in (finished, running):
        world.tables.catalog.bury(record.id, owner="a", stamp=9)
    world.queries.names_changed(filter(None, (world.tables.catalog.latest(record.id) for record in (finished, running))))
    world.report(running)
    assert (world.queries.records, world.queries.register.ended, world.queries.register.tails) == ({}, {}, {})
    assert running.state is QueryState.STOPPING


def test_a_query_that_waits_for_a_restart_is_forgotten_and_its_tombstone_tells_others(world: World) -> None:
    world.waiting[MINE] = KeptQuery(MINE, SELECT, "", ())
    assert world.drop(MINE) == [None]
    grave = world.tables.catalog.latest(MINE)
    assert grave is not None
    assert grave.dropped
    assert (world.waiting, world.kept) == ({}, 1)
    # The record of another query may name it as a user of operators that are made again: hosts ask all agents whether it has ended.
    assert world.queries.ownership.inheriting.promises.is_over(MINE)


def test_the_home_of_another_query_is_asked_to_end_it(world: World) -> None:
    answers = world.drop(THEIRS)
    request = world.directory.pop("request", "a")
    assert request.given[1] == Drop(query=THEIRS)
    request.done(Done())
    assert answers == [None]


def test_without_an_answer_of_the_home_nothing_is_known(world: World) -> None:
    answers = world.drop(THEIRS)
    world.directory.pop("request").done(LinkError("no answer"))
    [problem] = answers
    assert isinstance(problem, LinkError)
    assert "may still drop it; drop it again once" in str(problem)
    assert world.homes.calls_of("all_rows") == []


def orphans(*ids: str) -> list[dict[str, Any]]:
    return [{"id": one, "name": one, "state": "orphaned"} for one in ids]


@pytest.mark.parametrize("state", [HomeState.FAILED, HomeState.LEFT, HomeState.UNKNOWN, HomeState.RESTARTED])
def test_a_query_whose_home_is_gone_or_does_not_know_it_is_ended_on_its_hosts(world: World, state: HomeState) -> None:
    world.home_state = state
    answers = world.drop(THEIRS)
    if state is HomeState.RESTARTED:  # the home may know the query by its former id
        world.directory.pop("request", "a").done(QueryError("there is no query"))
    world.homes.pop("all_rows").done(orphans(THEIRS))
    end = world.homes.pop("end", THEIRS)
    assert answers == []
    end.done(None)
    assert answers == [None]
    grave = world.tables.catalog.latest(THEIRS)
    assert grave is not None
    assert grave.dropped
    assert world.queries.ownership.inheriting.promises.is_over(THEIRS)


def test_a_query_that_has_finished_advises_nobody_to_submit_it_again(world: World) -> None:
    record = world.deploy()
    record.health.heard(record.sink, News.HOST_FAILED, "the sink was on x, which failed")
    assert "stays away" in record.reason
    record.state = QueryState.FINISHED
    assert record.reason == "the sink was on x, which failed"


def test_a_query_that_its_restarted_owner_waits_to_go_on_with_is_dropped_there(world: World) -> None:
    """This agent has restarted, too, and does not know that another one had taken the query over."""
    world.home_state = HomeState.RESTARTED
    waiting = [{"id": THEIRS, "name": THEIRS, "state": "waiting", "owner": "c"}]
    answers = world.drop(THEIRS)
    world.directory.pop("request", "a").done(QueryError("there is no query"))
    world.homes.pop("all_rows").done(waiting)
    there = world.directory.pop("request", "c")
    assert there.given[1] == Drop(query=THEIRS)
    there.done(Done())
    assert answers == [None]

    world.queries.dropping.drop(THEIRS, answers.append, is_asked=True)
    world.directory.pop("request", "a").done(QueryError("there is no query"))
    world.homes.pop("all_rows").done(waiting)
    assert isinstance(answers[-1], QueryError), "two agents do not ask each other for ever"


def test_an_orphan_that_a_host_does_not_release_keeps_its_name(world: World) -> None:
    world.home_state = HomeState.FAILED
    world.tables.catalog.put("sink", "out", sql=SINK, owner="a", stamp=1, query=THEIRS)
    answers = world.drop("out")
    world.homes.pop("all_rows").done([{"id": THEIRS, "name": "out", "state": "orphaned"}])
    world.homes.pop("end").done(problem := PlacementError("a answers for it"))
    assert answers == [problem]
    assert "out" in names(world)


def test_a_prefix_that_fits_two_orphans_ends_neither(world: World) -> None:
    world.home_state = HomeState.FAILED
    answers = world.drop("a.000")
    world.homes.pop("all_rows").done(orphans(THEIRS, query_id("a", 1, 2)))
    assert [type(answer) for answer in answers] == [QueryError]
    assert world.homes.calls_of("end") == []


def test_a_name_whose_query_nobody_knows_is_freed(world: World) -> None:
    world.home_state = HomeState.FAILED
    world.tables.catalog.put("sink", "out", sql=SINK, owner="a", stamp=1, query=THEIRS)
    answers = world.drop("out")
    world.homes.pop("all_rows").done([])
    assert answers == [None]
    assert "out" not in names(world)


def test_a_sink_is_forgotten_only_for_the_query_that_has_its_name(world: World) -> None:
    world.tables.catalog.put("sink", "out", sql=SINK, owner="b", stamp=1, query=MINE)
    assert not world.queries.dropping.forget_sink("out", THEIRS)
    assert not world.queries.dropping.forget_sink("fast", "")
    assert not world.queries.dropping.forget_sink("unheard", MINE)
    assert world.queries.dropping.forget_sink("out", MINE)
    assert "out" not in names(world)


# ------------------------------------------------------------------------------------------------------ after a restart

FORMER = query_id("b", 0, 1)


def run_again(world: World, sql: str = SELECT, **more: Any) -> Any:
    kept = KeptQuery(MINE, sql, "", ("a",), FORMER, **more)
    world.waiting[MINE] = kept
    world.queries.run_again(kept, world.results.append)
    assert world.queries.register.knows(MINE)
    world.host.run()
    return kept


def test_a_kept_query_runs_again_once_its_former_sinks_take_no_rows(world: World) -> None:
    run_again(world)
    assert world.placing.calls == []
    end = world.homes.pop("end", FORMER)
    assert end.given[2] == ("a",)
    end.done(None)
    world.place()
    assert world.agree() is None
    record = world.queries.records[MINE]
    assert (record.former, world.waiting) == (FORMER, {})
    assert world.reaches.calls_of("ended") == [(FORMER,)]


@pytest.mark.parametrize("is_over", [False, True])
def test_a_kept_query_waits_until_what_others_do_not_use_of_the_former_one_has_ended(world: World, is_over: bool) -> None:
    left = world.deploy()
    world.queries.records[FORMER] = left
    left.health.healing.plans.retiring = {} if is_over else {left.sink: "a"}
    run_again(world)
    assert not world.homes.calls_of("end"), "the former query lives on for others"
    assert [str(result) for result in world.results[1:]] == ([] if is_over else ["unused operators of the former query have not ended"])


def test_a_kept_query_waits_while_a_host_does_not_release_the_former_one(world: World) -> None:
    run_again(world)
    world.homes.pop("end").done(problem := PlacementError("c answers for it"))
    assert world.results == [problem]
    assert not world.queries.register.knows(MINE)
    assert (world.placing.calls, list(world.waiting)) == ([], [MINE])


KEYED = "SELECT window_end, k, count(*) AS n FROM TUMBLE(far, ts, INTERVAL '10 s') GROUP BY window_end, k"
AUTO = f"CREATE SINK out WITH (connector = 'discard', instances = 'auto') AS {KEYED}"
SIZINGS = (Sizing(("q.1", "q.2", "q.3"), 40_000.0, 1.4, 4),)


def test_a_kept_query_gets_the_numbers_of_instances_that_the_planner_had_chosen_and_what_they_rest_on(world: World) -> None:
    run_again(world, AUTO, sizings=SIZINGS)
    world.homes.pop("end").done(None)
    world.place()
    world.agree()
    [sizing] = world.queries.records[MINE].plan.sizings
    assert (len(sizing.operators), sizing.rate_rows_per_s, sizing.cores, sizing.most) == (3, 40_000.0, 1.4, 4)
    assert world.queries.register.kept()[0].sizings == (sizing,)


def test_instances_are_chosen_anew_where_there_is_no_room_for_those_of_before(world: World) -> None:
    run_again(world, AUTO, sizings=SIZINGS)
    world.homes.pop("end").done(None)
    world.placing.pop("place").done(PlacementError("no room"))
    placing = world.placing.pop("place")
    assert [len(one.operators) for one in placing.given[0].sizings] == [1]
    assert world.queries.register.knows(MINE)


def test_instances_that_somebody_has_asked_for_are_those_of_every_later_plan(world: World) -> None:
    run_again(world, AUTO, changed=Changed(instances=2), sizings=SIZINGS)
    world.homes.pop("end").done(None)
    world.place()
    world.agree()
    plan = world.queries.records[MINE].plan
    assert [len(one.operators) for one in sets_of(plan)] == [2]
    assert world.queries.register.kept()[0].changed == Changed(instances=2)


@pytest.mark.parametrize("sql", ["SELECT nothing FROM far", "DROP VIEW fast", f"{SELECT}; {SELECT}"])
def test_a_kept_text_that_is_no_query_any_more_is_refused(world: World, sql: str) -> None:
    run_again(world, sql)
    assert [type(result) for result in world.results] == [QueryError]
    assert not world.queries.register.knows(MINE)
    assert (world.homes.calls, world.placing.calls) == ([], [])


def test_a_query_dropped_while_it_was_placed_again_is_ended(world: World) -> None:
    run_again(world)
    world.homes.pop("end").done(None)
    world.place()
    assert world.drop(MINE) == [None]
    assert world.agree() is None
    assert world.queries.records == {}
    assert world.told(Release)


# ------------------------------------------------------------------------------------------------------------ ownership


def taken_over(world: World, sql: str = SINK) -> QueryRecord:
    """Returns the record of a query of agent a as a keeper has it."""
    record = world.deploy(sql, THEIRS)
    del world.queries.records[THEIRS]
    for recorder in (world.events, world.directory, world.reaches):
        recorder.calls.clear()
    world.kept = 0
    record.history = History()
    return record


def test_a_query_taken_over_is_entered_renamed_and_its_hosts_are_asked(world: World) -> None:
    record = taken_over(world)
    world.tables.catalog.put("sink", "out", sql=SINK, owner="a", stamp=1, query=THEIRS)
    world.gossip.members["c"].status = MemberStatus.FAILED
    world.queries.inherited(THEIRS, record)
    assert world.queries.records == {THEIRS: record}
    assert world.tables.catalog.living["out"].owner == "b"
    assert {node for node, *_ in world.directory.calls_of("request")} == set(record.nodes.values())
    assert (len(world.events.calls_of("query_changed")), world.kept) == (1, 1)


def test_what_runs_on_nodes_that_are_gone_is_lost_at_once(world: World) -> None:
    record = taken_over(world)
    world.tables.catalog.put("sink", "out", sql=SINK, owner="a", stamp=1, query=THEIRS)
    world.gossip.members["a"].status = MemberStatus.FAILED
    world.queries.inherited(THEIRS, record)
    assert record.health.reasons


def test_a_query_that_was_dropped_meanwhile_is_taken_over_only_to_be_ended(world: World) -> None:
    record = taken_over(world, SELECT)
    world.tables.catalog.bury(THEIRS, owner="c", stamp=9)
    world.queries.inherited(THEIRS, record)
    world.report(record)
    assert world.queries.records == {}
    assert world.told(Release) == sorted(set(record.nodes.values()))


def kept_by_a_keeper(world: World) -> QueryRecord:
    """Returns the record of a query of agent a whose owner has told the keeper the version of the query's name."""
    record = taken_over(world)
    record.health.healing.named = 5
    return record


@pytest.mark.parametrize("known", [None, 3], ids=["unheard", "an earlier sink of this name"])
def test_a_query_is_taken_over_by_an_agent_that_has_not_heard_of_its_name(world: World, known: int | None) -> None:
    record = kept_by_a_keeper(world)
    if known is not None:
        world.tables.catalog.put("sink", "out", sql=SINK, owner="a", stamp=known, query=query_id("a", 1, 9))
    world.queries.inherited(THEIRS, record)
    assert world.queries.records == {THEIRS: record}
    entry = world.tables.catalog.living["out"]
    assert (entry.query, entry.owner, entry.version) == (THEIRS, "b", 6)


def test_a_name_that_was_dropped_or_given_to_another_query_later_ends_the_query_that_is_taken_over(world: World) -> None:
    record = kept_by_a_keeper(world)
    world.tables.catalog.put("sink", "out", sql=SINK, owner="a", stamp=7, query=query_id("a", 1, 9))
    world.queries.inherited(THEIRS, record)
    world.report(record)
    assert world.queries.records == {}
    assert world.tables.catalog.living["out"].version == 7


def test_a_record_that_cannot_be_read_is_left(world: World) -> None:
    world.queries.inherited(THEIRS, ValueError("format 9"))
    assert (world.queries.records, world.events.calls, world.kept) == ({}, [], 0)


def test_a_query_that_another_agent_owns_is_given_up_and_runs_on(world: World) -> None:
    world.deploy()
    world.queries.owned_elsewhere(MINE)
    assert (world.queries.records, world.told(Release), world.kept) == ({}, [], 1)
    world.queries.owned_elsewhere(MINE)
    assert world.kept == 1


# ---------------------------------------------------------------------------------------------------------------- health


def test_a_failed_host_degrades_the_queries_that_it_served_and_no_others(world: World) -> None:
    record = world.deploy()
    world.events.calls.clear()
    world.queries.node_failed("c", left=False)
    assert world.events.calls == []
    world.queries.node_failed("a", left=False)
    assert record.health.reasons
    assert record.state is not QueryState.RUNNING
    assert len(world.events.calls_of("query_changed")) == 1


def test_a_host_that_is_back_is_asked_about_its_queries_only(world: World) -> None:
    record = world.deploy()
    world.queries.node_alive("c")
    assert world.directory.calls_of("request") == []
    world.queries.node_alive("a")
    assert {node for node, *_ in world.directory.calls_of("request")} == set(record.nodes.values())


def test_a_move_is_noted_once_and_not_an_earlier_one(world: World) -> None:
    record = world.deploy()
    operator = next(spec.id for spec in record.plan.operators if spec.pinned is None)
    world.queries.moved(operator, "c", 2)
    world.queries.moved(operator, "a", 1)
    assert (record.nodes[operator], record.epochs[operator]) == ("c", 2)
