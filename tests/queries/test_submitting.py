"""Statements of people, from their text to the answer, without agents."""

from types import SimpleNamespace
from typing import Any

import pytest

from sbon.errors import LatencyBoundError, LinkError, PlacementError, QueryError, SbonError
from sbon.extensions import Extensions
from sbon.queries.parts import QueryParts
from sbon.queries.replication import Replication
from sbon.queries.submitting import QUERIES_MAX, Submitting
from sbon.supervision.homes import Doubt
from sbon.supervision.record import BoundState, QueryState
from sbon.supervision.register import Register
from sbon.wire.candidates import Sampled
from tests.query_worlds import make_catalog
from tests.recorder import FakeGossip, FakeHost, Recorder

SOURCE = "CREATE SOURCE more (k TEXT) WITH (connector = 'file', path = 'm.csv')"
SINK = "CREATE SINK out WITH (connector = 'discard') AS SELECT k FROM plain"


class World:
    """Agent b with the names of `tests.query_worlds`; the test decides what its queries and their placement do."""

    def __init__(self) -> None:
        self.host = FakeHost()
        self.directory = Recorder(me="b")
        gossip: Any = FakeGossip("b", "a")
        self.costs: object = SimpleNamespace(ports=())
        self.cost_store = Recorder(statistics=SimpleNamespace(of=lambda signature, now: self.costs))
        self.placing, self.reaches = Recorder(cost_store=self.cost_store), Recorder()
        self.homes = Recorder(doubts=self.doubt)
        self.doubts: dict[str, Doubt] = {}
        self.known: Any = None
        self.saved: list[Any] = []
        self.tables = Replication(self.directory, gossip, self.host.wall, self.saved.append)
        self.tables.catalog = make_catalog()
        self.resuming = Recorder(
            then=lambda done: lambda result: (self.saved.append(result), done(result)), find=lambda query: None, count=0
        )
        self.register = Register("b")
        self.looked: list[set[str]] = []
        """The names in the catalogue at each look at the record of a query."""
        self.owned = Recorder(
            register=self.register,
            records=self.register.running,
            ownership=SimpleNamespace(former=SimpleNamespace(ask=None), look=lambda record: self.looked.append(names(self))),
            new_id=iter(f"b.new.{number}" for number in range(1, 99)).__next__,
        )
        self.owned.dropping = self.owned
        connectors = Recorder(extensions=Extensions, check_source=lambda source, runs_here: "")
        self.connectors = connectors
        parts: Any = QueryParts(
            self.host,
            self.directory,
            gossip,
            self.placing,
            self.tables,
            self.homes,
            connectors,
            self.reaches,
            self.resuming,
        )
        owned: Any = self.owned
        self.statements = Submitting(owned, parts, lambda record: None)
        self.answers: list[Any] = []

    def after_saving(self, done: Any) -> Any:
        return lambda result: (self.saved.append(result), done(result))

    def doubt(self, sql: str, is_ours: Any, ask: Any, done: Any) -> None:
        self.known = is_ours
        done(self.doubts)

    def submit(self, sql: str) -> None:
        self.statements.submit(sql, self.answers.append)
        self.host.run()

    def begins(self, note: str = "") -> Any:
        """Lets the placed query run, with a note on its placement; returns its record."""
        plan, done = self.owned.pop("deploy").given
        ids = [spec.id for spec in plan.operators]
        specs = dict.fromkeys(ids[1:])
        record = SimpleNamespace(
            id=plan.query,
            plan=plan,
            specs=specs,
            nodes=dict.fromkeys(ids, "a"),
            kind_of=lambda operator: "kind",
            bounds=BoundState(note=note),
        )
        done(record)
        return record

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows that answer the only submission so far."""
        [answer] = self.answers
        assert not isinstance(answer, SbonError), answer
        return list(answer)

    @property
    def refusal(self) -> SbonError:
        """The error that answers the only submission so far."""
        [answer] = self.answers
        assert isinstance(answer, SbonError)
        return answer


@pytest.fixture
def world() -> World:
    return World()


def names(world: World) -> set[str]:
    return {entry.name for entry in world.tables.catalog.living.values()}


# ------------------------------------------------------------------------------------------------------------- names


def test_names_are_entered_and_the_answer_is_saved_before_it_is_given(world: World) -> None:
    world.submit(f"{SOURCE}; CREATE VIEW seen AS SELECT k FROM more")
    assert [(row["statement"], row["name"], row["query"]) for row in world.rows] == [("source", "more", None), ("view", "seen", None)]
    assert {"more", "seen"} <= names(world)
    assert [params.name for (params,) in world.reaches.calls_of("declared")] == ["more"]
    assert world.saved == world.answers


def test_a_source_declared_again_in_the_same_words_may_be_read_here_too_and_another_may_not(world: World) -> None:
    world.submit(f"{SOURCE}; {SOURCE.replace('SOURCE', 'SOURCE IF NOT EXISTS')}")
    assert len(world.reaches.calls_of("declared")) == 2
    world.submit(SOURCE.replace("SOURCE", "SOURCE IF NOT EXISTS").replace("m.csv", "secret.csv"))
    assert len(world.reaches.calls_of("declared")) == 2


def test_a_dropped_source_may_no_longer_be_read_and_a_view_never_could(world: World) -> None:
    world.submit("DROP VIEW fast; DROP SOURCE plain")
    assert not {"fast", "plain"} & names(world)
    assert world.reaches.calls_of("dropped") == [("plain",)]


def test_a_text_with_an_error_does_nothing_at_all(world: World) -> None:
    before = names(world)
    world.submit(f"{SOURCE}; SELECT nothing FROM plain")
    assert isinstance(world.refusal, QueryError)
    assert (names(world), world.owned.calls, world.reaches.calls) == (before, [], [])


def test_an_error_of_the_planner_itself_is_reported_as_one(world: World) -> None:
    world.connectors.extensions = lambda: 1 / 0
    world.submit("SELECT k FROM plain")
    assert "broke the planner (ZeroDivisionError" in str(world.refusal)


@pytest.mark.parametrize(
    ("before", "told"), [("", ""), (f"{SOURCE}; ", " (1 before it is done)"), (f"{SOURCE}; SHOW VIEWS; ", " (2 before it are done)")]
)
def test_the_first_failure_ends_the_text_and_says_what_is_done(world: World, before: str, told: str) -> None:
    world.submit(f"{before}SELECT k FROM plain; DROP VIEW fast")
    world.owned.pop("deploy").done(QueryError("no", line=None, column=None, hint="try"))
    assert world.refusal.message == f"no{told}"
    assert "fast" in names(world)


def test_a_failure_that_is_not_of_the_text_passes_as_it_is(world: World) -> None:
    world.submit(f"{SOURCE}; SELECT k FROM plain; DROP VIEW fast")
    world.owned.pop("deploy").done(problem := LinkError("b does not reach a"))
    assert world.refusal is problem
    assert "fast" in names(world)


# ----------------------------------------------------------------------------------------------------------- queries


def test_a_query_begins_and_the_answer_says_where_its_operators_are(world: World) -> None:
    world.submit("SELECT k FROM plain WHERE v > 1")
    assert world.register.knows("b.new.1")
    record = world.begins()
    [row] = world.rows
    assert (row["query"], row["name"]) == ("b.new.1", "b.new.1")
    assert row["operators"][0] == {"id": next(iter(record.nodes)), "node": "a", "kind": "kind", "reused": True}
    assert not any(operator["reused"] for operator in row["operators"][1:])
    assert not world.register.knows("b.new.1")  # the code that deploys enters the record


def test_a_query_that_is_refused_is_forgotten(world: World) -> None:
    world.submit("SELECT k FROM plain")
    world.register.tails["b.new.1"] = SimpleNamespace()
    world.owned.pop("deploy").done(PlacementError("full"))
    assert str(world.refusal) == "full"
    assert not world.register.knows("b.new.1")
    assert world.register.tails == {}


@pytest.mark.parametrize(
    ("running", "waiting", "taken"), [(0, QUERIES_MAX - 1, True), (1, QUERIES_MAX - 1, False), (QUERIES_MAX, 0, False)]
)
def test_waiting_queries_count_as_queries_that_the_agent_has(world: World, running: int, waiting: int, taken: bool) -> None:
    world.register.running.update({str(number): SimpleNamespace() for number in range(running)})
    world.resuming.count = waiting
    world.submit("SELECT k FROM plain")
    assert bool(world.owned.calls_of("deploy")) is taken
    assert world.register.knows("b.new.1") is taken
    if not taken:
        assert f"{QUERIES_MAX} queries and takes no more" in str(world.refusal)


def test_the_next_statement_waits_for_the_query_before_it(world: World) -> None:
    world.submit("SELECT k FROM plain; DROP VIEW fast")
    assert "fast" in names(world)
    world.begins()
    assert "fast" not in names(world)
    assert len(world.rows) == 2


def test_a_sink_gets_its_name_once_it_runs(world: World) -> None:
    world.submit(SINK)
    assert "out" not in names(world)
    world.begins()
    assert world.tables.catalog.living["out"].query == "b.new.1"
    assert "out" in world.looked[-1], "keepers are told of the name"
    assert [(row["statement"], row["name"], row["query"]) for row in world.rows] == [("sink", "out", "b.new.1")]


def test_the_answer_says_that_a_bound_may_not_be_kept(world: World) -> None:
    world.submit(SINK)
    world.begins("max_latency = 60 ms may not be kept")
    [row] = world.rows
    assert "max_latency = 60 ms may not be kept" in row["message"]


def test_a_sink_whose_name_was_taken_meanwhile_is_ended(world: World) -> None:
    world.submit(SINK)
    world.tables.catalog.put("view", "out", sql="SELECT 1", owner="a", stamp=5)
    record = world.begins()
    assert world.owned.calls_of("end") == [(record, QueryState.STOPPING)]
    assert isinstance(world.refusal, QueryError)


def orphaned(world: World, *, gone: bool) -> None:
    """Gives the name out to a query of agent a, whose home is gone or does not answer."""
    world.tables.catalog.put("sink", "out", sql=SINK, owner="a", stamp=5, query="a.old.1")
    world.doubts = {"out": Doubt("a.old.1", "its home a has failed", gone=gone)}


def test_a_sink_without_a_home_is_ended_before_another_takes_its_name(world: World) -> None:
    orphaned(world, gone=True)
    world.submit(SINK)
    assert (world.homes.calls_of("end")[0][0], world.owned.calls) == ("a.old.1", [])
    world.homes.pop("end").done(None)
    assert world.owned.calls_of("forget_sink") == [("out", "a.old.1")]
    world.owned.forget_sink = None
    world.tables.catalog.drop("sink", "out", owner="b", stamp=6)
    world.begins()
    assert "it replaces a.old.1, as its home a has failed" in world.rows[0]["message"]


def test_a_sink_whose_home_may_live_is_not_replaced(world: World) -> None:
    orphaned(world, gone=False)
    world.submit(SINK)
    assert "but its home a has failed" in str(world.refusal)
    assert (world.homes.calls, world.owned.calls) == ([], [])


def test_a_former_query_that_cannot_be_ended_keeps_its_name(world: World) -> None:
    orphaned(world, gone=True)
    world.submit(SINK)
    world.homes.pop("end").done(problem := PlacementError("a answers for it; drop it there"))
    assert world.refusal is problem
    assert not world.register.knows("b.new.1")
    assert world.owned.calls == []


def test_the_agent_knows_what_it_runs_and_what_waits_for_a_restart(world: World) -> None:
    world.submit("SHOW VIEWS")
    world.register.begin("b.1")
    world.resuming.find = lambda query: query if query == "b.2" else None
    assert [world.known(query) for query in ("b.1", "b.2", "b.3")] == [True, True, False]


# ------------------------------------------------------------------------------------------- ending and asking


@pytest.mark.parametrize(("sql", "problem", "message"), [
    ("DROP QUERY q", None, "query q dropped"),
    ("DROP QUERY IF EXISTS q", None, "query q dropped"),
    ("DROP QUERY IF EXISTS q", QueryError("unknown"), "there is no query q"),
])  # fmt: skip
def test_a_query_is_dropped_by_name(world: World, sql: str, problem: SbonError | None, message: str) -> None:
    world.submit(sql)
    drop = world.owned.pop("drop", "q")
    drop.done(problem)
    assert [row["message"] for row in world.rows] == [message]


@pytest.mark.parametrize(("sql", "problem"), [("DROP QUERY q", QueryError("unknown")), ("DROP QUERY IF EXISTS q", LinkError("no answer"))])
def test_a_drop_that_may_not_have_happened_is_an_error(world: World, sql: str, problem: SbonError) -> None:
    world.submit(sql)
    world.owned.pop("drop").done(problem)
    assert str(problem) in str(world.refusal)


def test_all_agents_are_asked_for_their_queries_and_none_for_names(world: World) -> None:
    world.submit("SHOW VIEWS; SHOW QUERIES")
    assert world.answers == []
    world.owned.pop("all_rows").done([])
    views, queries = world.rows
    assert {row["name"] for row in views["rows"]} == {"fast", "per_key"}
    assert queries["rows"] == []


# --------------------------------------------------------------------------------------------------------- explaining


def explain(world: World, sql: str = "SELECT k FROM plain") -> None:
    world.statements.explain(sql, world.answers.append)
    world.host.run()


def ask(world: World, sql: str = "SELECT k FROM plain") -> None:
    world.statements.ask(sql, "capacity", {}, world.answers.append)
    world.host.run()


def placed(plan: Any, note: str = "") -> Any:
    return SimpleNamespace(plan=plan, nodes={}, explained=lambda plan: {"query": plan.query}, note=note)


def test_without_a_query_there_is_nothing_to_explain(world: World) -> None:
    explain(world, SOURCE)
    assert "no query to explain" in str(world.refusal)
    assert world.placing.calls == []


def test_the_last_query_of_a_text_is_placed_without_reserving_anything(world: World) -> None:
    explain(world, f"SELECT v FROM plain; {SINK}; DROP VIEW fast")
    place = world.placing.pop("place")
    assert (place.given[0].name, place.named) == ("out", {"reserve": False})
    assert "fast" in names(world)
    assert world.owned.calls == []


def test_a_query_that_cannot_be_placed_is_not_explained(world: World) -> None:
    ask(world)
    world.placing.pop("place").done(PlacementError("nobody has room"))
    assert str(world.refusal) == "nobody has room"


BOUNDED = "CREATE SINK out WITH (connector = 'discard', max_latency = '60 ms') AS SELECT k FROM plain"


def test_a_query_that_nothing_keeps_within_its_bound_is_shown_without_it_and_with_the_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbon.planning.questions.answer", lambda *given: {"then": "later"})
    ask(world, BOUNDED)
    first = world.placing.pop("place")
    assert first.given[0].max_latency_ms == 60
    first.done(LatencyBoundError("90 ms are predicted"))
    second = world.placing.pop("place")
    assert (second.given[0].max_latency_ms, second.named) == (None, {"reserve": False})
    second.done(placed(second.given[0]))
    world.host.run()
    [answer] = world.answers
    assert answer["then"] == "later"
    assert answer["notes"][-1] == "it would be refused: 90 ms are predicted"


def test_a_query_that_has_no_place_without_its_bound_either_is_refused_with_the_first_reason(world: World) -> None:
    ask(world, BOUNDED)
    world.placing.pop("place").done(LatencyBoundError("90 ms are predicted"))
    world.placing.pop("place").done(PlacementError("nobody has room"))
    assert str(world.refusal) == "90 ms are predicted"


def test_hosts_of_sources_are_asked_for_samples_first_where_costs_are_not_known(world: World) -> None:
    world.costs = None
    ask(world)
    assert world.placing.calls == []
    sampled = world.directory.pop("request", "b")
    sampled.done(Sampled(costs=()))
    assert [(node, costs) for node, costs, *_ in world.cost_store.calls_of("hear_sample")] == [("b", ())]
    assert len(world.placing.calls_of("place")) == 1
    ask(world)
    world.directory.pop("request", "b").done(LinkError("no answer"))
    assert (len(world.placing.calls_of("place")), len(world.cost_store.calls)) == (2, 1)


@pytest.mark.parametrize(
    ("found", "told"), [(PlacementError("no figures"), "no figures"), (ValueError("x"), "broke the planner (ValueError: x)")]
)
def test_a_question_that_cannot_be_answered_is_refused_and_a_bug_is_called_one(
    world: World, found: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> None:
        raise found

    monkeypatch.setattr("sbon.planning.questions.answer", fail)
    ask(world)
    place = world.placing.pop("place")
    place.done(placed(place.given[0]))
    world.host.run()
    assert told in str(world.refusal)


def test_an_answer_says_what_it_is_about_and_what_the_planner_noted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbon.planning.questions.answer", lambda question, query, options: {"rows": question, "notes": ["late"]})
    orphaned(world, gone=True)
    ask(world, SINK)
    place = world.placing.pop("place")
    place.done(placed(place.given[0]))
    assert world.answers == []  # a thread works out the answer
    world.host.run()
    [answer] = world.answers
    assert (answer["query"], answer["rows"]) == ("b.new.1", "capacity")
    assert answer["notes"] == ["it replaces a.old.1, as its home a has failed", "late"]


@pytest.fixture
def profiled(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Begins the explanation of a query with a profile; returns the world."""
    monkeypatch.setattr("sbon.cost.prediction.predict", lambda query: Recorder(explained=dict))
    monkeypatch.setattr("sbon.planning.healing.expected", lambda *given: {})
    world.submit("CREATE SOURCE quick (k TEXT) WITH (connector = 'file', path = 'm.csv', profile = '100/s')")
    world.answers.clear()
    explain(world, "SELECT k FROM quick")
    return world


def test_a_query_is_shown_as_it_carries_its_profile(profiled: World) -> None:
    place = profiled.placing.pop("place")
    assert place.named == {"reserve": False, "carry": True}
    place.done(placed(place.given[0]))
    profiled.host.run()
    assert [answer["notes"] for answer in profiled.answers] == [[]]
    assert profiled.connectors.calls_of("check_sinks") == [(place.given[0], {})]


def test_explain_says_that_a_bound_may_not_be_kept(profiled: World) -> None:
    place = profiled.placing.pop("place")
    place.done(placed(place.given[0], "max_latency = 60 ms may not be kept"))
    profiled.host.run()
    assert [answer["notes"] for answer in profiled.answers] == [["max_latency = 60 ms may not be kept"]]


def test_a_query_that_nothing_carries_is_shown_without_its_profile_and_with_the_reason(profiled: World) -> None:
    profiled.placing.pop("place").done(PlacementError("too slow"))
    place = profiled.placing.pop("place")
    assert place.named == {"reserve": False}
    place.done(placed(place.given[0]))
    profiled.host.run()
    assert [answer["notes"] for answer in profiled.answers] == [["it would be refused: too slow"]]


def test_a_query_that_cannot_be_placed_even_without_its_profile_is_refused(profiled: World) -> None:
    profiled.placing.pop("place").done(PlacementError("too slow"))
    profiled.placing.pop("place").done(PlacementError("nobody has room"))
    assert str(profiled.refusal) == "nobody has room"
