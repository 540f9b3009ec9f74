"""The placement of a query: questions to candidates, reservations, waits for room and admission, without hosts."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from sbon.cost.store import CostStore
from sbon.errors import PlacementError, QueryError, SbonError
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.placed import Placed
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.planning.admission import Admitted, Attempt, Refused
from sbon.queries.placing import ROOM_WAIT_S, Placing
from sbon.query.plan import Plan
from tests.query_worlds import make_catalog, plan_of
from tests.recorder import FakeGossip, FakeHost, Recorder

CATALOG = make_catalog("CREATE SOURCE far (ts TIMESTAMP, k TEXT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'a')")
PLAN = plan_of("SELECT window_end, count(*) AS n FROM TUMBLE(far, ts, INTERVAL '10 s') GROUP BY window_end", CATALOG)
FREE = [spec.id for spec in PLAN.operators if spec.pinned is None]
"""Operators that may run anywhere; a source is pinned to a, and the sink to b."""
BOUNDED = msgspec.structs.replace(PLAN, max_latency_ms=500.0)


class World:
    """Agent b, with members a, c and d; the test plays the candidates."""

    def __init__(self) -> None:
        self.host = FakeHost()
        self.candidate_questions = Recorder()
        self.remembering = Recorder()
        self.placing = Placing(
            self.host,
            FakeGossip("b", "a", "c", "d"),
            self.candidate_questions,
            self.remembering,
            PlacementConfig(),
            OptimiserConfig(neighbour_rtts=0),
            CostStore("b", 1e6),
        )
        self.results: list[Placed | SbonError] = []

    def place(self, plan: Plan = PLAN, **how: Any) -> None:
        self.placing.place(plan, self.results.append, **how)

    def asked(self) -> dict[str, tuple[str, int]]:
        """Returns the nodes with unanswered questions, each with the query for which it keeps room, and the slots."""
        return {given[0]: given[5:7] for given in self.candidate_questions.calls_of("ask")}

    def answer(self, *silent: str, **reports: dict[str, Any]) -> None:
        """Answers all questions with five free slots, unless `reports` says otherwise; `silent` nodes do not answer."""
        while questions := self.candidate_questions.calls_of("ask"):
            node = questions[0][0]
            report = CandidateReport(**{"node": node, "rtts_ms": {}, "free_slots": 5} | reports.get(node, {}))
            self.candidate_questions.pop("ask", node).done(node, None if node in silent else report)

    def told(self) -> dict[str, int]:
        """Returns the slots that each node keeps after all messages to it."""
        return {node: slots for _, told in self.candidate_questions.calls_of("decided") for node, slots in told.items()}

    @property
    def placed(self) -> Placed:
        [result] = self.results
        assert isinstance(result, Placed), result
        return result

    @property
    def refusal(self) -> SbonError:
        [result] = self.results
        assert isinstance(result, SbonError)
        return result


@pytest.fixture
def world() -> World:
    return World()


def everyone(**report: Any) -> dict[str, dict[str, Any]]:
    return dict.fromkeys("abcd", report)


def test_candidates_keep_room_for_all_that_may_come_and_then_for_what_comes(world: World) -> None:
    world.place()
    pinned = Counter(spec.pinned for spec in PLAN.operators if spec.pinned is not None)
    assert world.asked() == {node: ("q", pinned[node] + len(FREE)) for node in world.asked()}
    assert len(world.asked()) > 1
    world.answer()
    coming = Counter(world.placed.nodes.values())
    assert {node: slots for node, slots in world.told().items() if slots} == coming
    assert set(world.told()) > set(coming)


def test_what_is_only_imagined_keeps_no_room(world: World) -> None:
    world.place(reserve=False)
    assert set(world.asked().values()) == {("", 0)}
    world.answer()
    assert world.placed.nodes.keys() == {spec.id for spec in PLAN.operators}
    assert world.told() == {}


@pytest.mark.parametrize("share", [True, False])
def test_running_operators_are_asked_for_only_if_they_may_be_reused(world: World, share: bool) -> None:
    world.place(share=share)
    assert any(given[2] for given in world.candidate_questions.calls_of("ask")) is share


def test_a_node_that_counts_as_full_gets_nothing_that_may_run_elsewhere(world: World) -> None:
    world.place(excluded=frozenset("abc"))
    world.answer()
    assert {world.placed.nodes[operator] for operator in FREE} == {"d"}


def test_operators_that_run_already_need_no_room(world: World) -> None:
    sink = PLAN.operators[-1].id
    world.place(settled=frozenset({sink}))
    world.answer(**everyone(free_slots=len(FREE)) | {"b": {"free_slots": 0}})
    assert world.placed.nodes[sink] == "b"
    assert world.told().get("b", 0) == 0


def test_nodes_to_which_operators_are_pinned_are_asked_too(world: World) -> None:
    world.place(excluded=frozenset("ab"))
    world.answer("a", "b")
    assert world.placed.nodes[PLAN.operators[-1].id] == "b"  # b may answer when the operator is made


def test_without_any_answer_the_query_cannot_be_placed_and_nothing_stays_reserved(world: World) -> None:
    world.place()
    world.answer(*"abcd")
    assert isinstance(world.refusal, PlacementError)
    assert world.told()
    assert not any(world.told().values())


# ---------------------------------------------------------------------------------------------------- waiting for room


def test_a_query_waits_for_room_that_others_have_reserved_and_keeps_only_what_it_cannot_have_elsewhere(world: World) -> None:
    world.place()
    world.answer(**everyone(free_slots=0, reserved=5))
    assert world.results == []
    pinned = Counter(spec.pinned for spec in PLAN.operators if spec.pinned is not None)
    assert world.told() == {node: pinned[node] for node in "abcd"}
    world.host.wait(1.6)
    world.answer()
    assert world.placed.nodes


def test_it_gives_up_in_time_and_releases_everything(world: World) -> None:
    world.place()
    given_up_s = 0.0
    for _ in range(30):
        world.answer(**everyone(free_slots=0, reserved=5))
        given_up_s += 0.0 if world.results else 1.6
        world.host.wait(1.6)
    assert isinstance(world.refusal, PlacementError)
    assert given_up_s == pytest.approx(0.75 * ROOM_WAIT_S, abs=0.25 * ROOM_WAIT_S + 1.6)
    assert not any(world.told().values())
    assert world.host.pending == []


@pytest.mark.parametrize(
    ("how", "report"), [({"reserve": False}, {"reserved": 5}), ({}, {}), ({"excluded": frozenset("abcd")}, {"reserved": 5})]
)
def test_it_does_not_wait_for_room_that_will_not_come(world: World, how: dict[str, Any], report: dict[str, Any]) -> None:
    world.place(**how)
    world.answer(**everyone(free_slots=0, **report))
    assert isinstance(world.refusal, PlacementError)
    assert world.host.pending == []


def test_it_waits_where_only_a_pinned_operator_lacks_room(world: World) -> None:
    world.place()
    world.answer(b={"free_slots": 0, "reserved": 1})
    assert (world.results, len(world.host.pending)) == ([], 1)


def test_what_its_nodes_remember_is_asked_for_once(world: World) -> None:
    world.placing.reconfigure(OptimiserConfig(neighbour_rtts=2))
    world.placing.config = PlacementConfig(candidates=1)
    world.remembering.remembered = lambda about: {}
    world.place()
    assert world.asked() == {}
    world.remembering.pop("refresh").done()
    world.answer(**everyone(free_slots=0, reserved=5))
    world.host.wait(1.6)
    assert world.remembering.calls == []
    world.answer()
    assert world.placed.nodes


def test_a_refusal_names_the_nodes_without_memory(world: World) -> None:
    world.place()
    world.answer(**everyone(free_slots=0) | {"c": {"free_slots": 0, "memory_short": True}})
    assert "c has no memory for more state" in str(world.refusal)


def test_a_running_query_is_placed_again_around_what_stays(world: World) -> None:
    found: list[Any] = []
    world.placing.replace(PLAN, frozenset("abc"), frozenset({PLAN.operators[-1].id}), found.append)
    world.answer()
    assert {found[0][operator] for operator in FREE} == {"d"}
    world.placing.replace(PLAN, frozenset(), frozenset(), found.append)
    world.answer(*"abcd")
    assert isinstance(found[1], PlacementError)


def test_links_cost_rate_times_latency_and_unknown_latencies_have_no_cost(world: World) -> None:
    assert world.placing.cost_of([("a", "b", 100.0), ("b", "b", 50.0)]) == pytest.approx(2 * world.placing.cost_of([("a", "b", 50.0)]))
    world.placing.gossip.estimated_rtt_ms = lambda a, b: None
    assert world.placing.cost_of([("a", "b", 100.0)]) is None


# ---------------------------------------------------------------------------------------------------------- admission


class Script:
    """An admission that asks for one attempt for each entry of `without`, without these nodes, and then decides by `last`."""

    def __init__(self, last: Any, *without: str) -> None:
        self.last, self.without = last, [frozenset(nodes) for nodes in without]
        self.placements: list[Placed] = []
        self.problems: list[SbonError] = []

    def begin(self) -> Any:
        return Attempt(BOUNDED, self.without.pop(0)) if self.without else self.last(self.placements)

    def predicted(self, placed: Placed, query: Any) -> Any:
        self.placements.append(placed)
        return self.begin()

    def unplaceable(self, problem: SbonError) -> Any:
        self.problems.append(problem)
        return Refused(problem)


@pytest.fixture
def admit(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that runs an admission by its script; all candidates but `silent` answer."""
    monkeypatch.setattr("sbon.planning.latency_bound.placed_within", lambda *given: None)

    def run(script: Script, silent: str = "", **how: Any) -> Script:
        monkeypatch.setattr("sbon.planning.admission.Admission", lambda plan, excluded: script)
        world.place(BOUNDED, **how)
        for _ in range(20):
            world.answer(*silent)
            world.host.run()
        return script

    return run


def test_what_is_admitted_runs_with_its_bound_and_keeps_room_only_there(world: World, admit: Any) -> None:
    world.placing.config = PlacementConfig(candidates=1)
    script = admit(Script(lambda placements: Admitted(placements[1], 70.0), "abc", ""))
    assert [{placed.nodes[operator] for operator in FREE} for placed in script.placements] == [{"d"}, {"a"}]
    assert world.placed.decision.delay_bound_ms == 70.0
    assert {node: slots for node, slots in world.told().items() if slots} == Counter(world.placed.nodes.values())


def test_a_query_that_is_not_admitted_keeps_no_room(world: World, admit: Any) -> None:
    admit(Script(lambda placements: Refused(PlacementError("too slow")), "abc", "abd"))
    assert str(world.refusal) == "too slow"
    assert {"c", "d"} <= set(world.told())
    assert not any(world.told().values())


def test_an_attempt_without_a_placement_is_told_to_the_admission(world: World, admit: Any) -> None:
    script = admit(Script(None, ""), silent="abcd")
    assert world.refusal is script.problems[0]


@pytest.mark.parametrize("problem", [QueryError("no figures"), ValueError("a bug")])
def test_a_prediction_that_fails_refuses_the_query_and_keeps_no_room(world: World, admit: Any, problem: Exception) -> None:
    def fail(placements: Any) -> None:
        raise problem

    admit(Script(fail, ""))
    assert str(problem) in str(world.refusal)
    assert not any(world.told().values())


def test_what_is_only_imagined_is_admitted_without_telling_anybody(world: World, admit: Any) -> None:
    admit(Script(lambda placements: Admitted(placements[0], None), ""), reserve=False)
    assert world.placed.nodes
    assert world.told() == {}


def test_operators_are_put_where_answers_are_in_time(world: World, admit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbon.planning.latency_bound.placed_within", lambda *given: dict.fromkeys(FREE, "b"))
    admit(Script(lambda placements: Admitted(placements[0], None), "abc"))
    assert {world.placed.nodes[operator] for operator in FREE} == {"b"}
