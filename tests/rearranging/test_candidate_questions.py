"""Questions to candidates, and the answer of a candidate."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sbon.errors import LinkError
from sbon.optimiser.config import OptimiserConfig
from sbon.rearranging.candidate_questions import CandidateQuestions
from sbon.rearranging.remembering import Remembering
from sbon.wire.candidates import CandidateAsk, Reserve, Rtts, RttsAsk
from sbon.wire.messages import Done


class World:
    """An agent named here; the test stands in for its probes, room and network."""

    def __init__(self) -> None:
        self.time = 100.0
        self.asked: list[tuple[str, Any, Callable[[Any], None]]] = []
        self.told: list[tuple[str, Any]] = []
        self.pings: dict[str, Callable[[float | None], None]] = {}
        self.work: list[Callable[[], None]] = []
        self.reserved: list[tuple[str, int]] = []
        self.decided: list[tuple[str, int]] = []
        self.full = False
        self.measured = {"far": 80.0}
        self.host: Any = SimpleNamespace(now=lambda: self.time, execute=self.execute)
        self.directory: Any = SimpleNamespace(
            me="here",
            request=lambda node, message, done, timeout_s: self.asked.append((node, message, done)),
            tell=lambda node, message: self.told.append((node, message)),
        )
        localiser = SimpleNamespace(measured_rtt_ms=self.measured.get, coordinate=SimpleNamespace(load_ms=2.5))
        self.gossip: Any = SimpleNamespace(ping=self.pings.__setitem__, localiser=localiser)
        reservations = SimpleNamespace(held=lambda now, besides: 1, decided=lambda query, slots, now: self.decided.append((query, slots)))
        room = SimpleNamespace(
            budget=self,
            empty_slots=3,
            reservations=reservations,
            reserve=lambda query, slots, now: self.reserved.append((query, slots)),
        )
        operators: Any = SimpleNamespace(room=room, instances={})
        cost_store = SimpleNamespace(costs=lambda signatures, now: {}, hear=lambda *given: None)
        self.is_fresh = False
        reports: Any = SimpleNamespace(cost_store=cost_store, told=lambda: None, time_kernel=self.time_kernel)
        sharing: Any = SimpleNamespace(offered=lambda signatures: {})
        extensions: Any = lambda: SimpleNamespace(has_function=lambda name, version: name == "known")  # noqa: E731
        self.candidate_questions = CandidateQuestions(self.host, self.directory, self.gossip, operators, reports, sharing, extensions)
        self.answers: list[Any] = []

    @property
    def is_nearly_full(self) -> bool:
        return self.full

    def time_kernel(self, done: Callable[[], None]) -> None:
        if self.is_fresh:
            self.work.append(done)
        else:
            done()

    def execute(self, work: Callable[[], Any], done: Callable[[Any], None], *, rows: int) -> None:
        self.work.append(lambda: done(work()))

    def answer(self, **asked: Any) -> None:
        self.candidate_questions.answer(CandidateAsk(**({"about": (), "signatures": ()} | asked)), self.answers.append)


@pytest.fixture
def world() -> World:
    return World()


def test_a_candidate_answers_when_all_round_trips_are_measured(world: World) -> None:
    world.answer(about=("b", "here", "far", "b"))
    world.pings["b"](12.0)
    assert world.answers == []
    world.pings["far"](75.0)
    assert world.answers[0].rtts_ms == {"here": 0.0, "b": 12.0, "far": 75.0}
    assert (world.answers[0].free_slots, world.answers[0].reserved) == (2, 1)


@pytest.mark.parametrize("about", [(), ("here",), ("here", "b")])
def test_a_candidate_answers_once_and_not_before_its_speed_is_measured(world: World, about: tuple[str, ...]) -> None:
    world.is_fresh = True
    world.answer(about=about)
    for ping in world.pings.values():
        ping(12.0)
    assert world.answers == []
    world.work.pop()()
    (answer,) = world.answers
    assert set(answer.rtts_ms) == set(about)


def test_without_an_answer_a_round_trip_is_at_least_what_was_waited_or_remembered(world: World) -> None:
    world.answer(about=("b", "far"))
    world.time += 0.05
    world.pings["b"](None)
    world.pings["far"](None)
    assert world.answers[0].rtts_ms == pytest.approx({"b": 50.0, "far": 80.0})


def test_slots_are_reserved_when_asked_and_when_answered(world: World) -> None:
    world.answer(about=("b",), query="q", slots=2)
    assert world.reserved == [("q", 2)]
    world.pings["b"](1.0)
    assert world.reserved == [("q", 2), ("q", 2)]
    world.candidate_questions.reserve(Reserve(query="q", slots=-1))
    assert world.decided == [("q", 0)]


@pytest.mark.parametrize(("function", "free"), [("known", 2), ("unknown", 0)])
def test_functions_are_looked_for_on_a_thread_before_slots_are_offered(world: World, function: str, free: int) -> None:
    world.answer(functions=((function, "1"),), query="q", slots=1)
    assert (world.answers, world.reserved) == ([], [])
    world.work.pop()()
    assert (world.answers[0].free_slots, bool(world.reserved)) == (free, free > 0)


def test_without_memory_for_state_nothing_is_offered_or_reserved(world: World) -> None:
    world.full = True
    world.answer(stateful=True, query="q", slots=1)
    assert (world.answers[0].free_slots, world.answers[0].memory_short, world.reserved) == (0, True, [])
    world.answer(stateful=False)
    assert (world.answers[1].free_slots, world.answers[1].memory_short) == (2, False)


def test_one_that_does_not_answer_is_reported_so(world: World) -> None:
    found: list[Any] = []
    world.candidate_questions.ask("b", ("c",), (), 1.0, lambda node, report: found.append((node, report)))
    world.asked[0][2](LinkError("too late"))
    world.asked[0][2](Done())
    assert found == [("b", None), ("b", None)]


def test_what_a_candidate_tells_is_made_plausible(world: World) -> None:
    found: list[Any] = []
    world.answer()
    told = type(world.answers[0])(
        node="b", rtts_ms={"c": -1.0, "d": 5.0}, free_slots=-3, load_ms=-1.0, running={}, reserved=-2, upstream_delay_ms={}
    )
    world.candidate_questions.ask("b", ("c",), (), 1.0, lambda node, report: found.append(report))
    world.asked[0][2](told)
    (report,) = found
    assert (report.rtts_ms, report.free_slots, report.load_ms, report.reserved) == ({"d": 5.0}, 0, 0.0, 0)


def test_each_is_told_how_many_operators_come(world: World) -> None:
    world.candidate_questions.decided("q", {"c": 0, "b": 2})
    assert [(node, message.slots) for node, message in world.told] == [("b", 2), ("c", 0)]


def test_round_trips_that_others_remember_are_asked_for_once_in_a_while(world: World) -> None:
    remembering = Remembering(world.host, world.directory, world.gossip, OptimiserConfig())
    ended: list[int] = []
    assert remembering.stale(["b", "c", "b"]) == ["b", "c"]
    remembering.refresh({"b": ["x"], "c": []}, lambda: ended.append(1))
    assert [(node, isinstance(message, RttsAsk)) for node, message, _ in world.asked] == [("b", True), ("c", True)]
    world.asked[0][2](Rtts(remembered=(("x", 12.0, 1.0),)))
    assert ended == []
    world.asked[1][2](LinkError("too late"))
    assert ended == [1]
    assert remembering.remembered(["b"]) == {"b": {"x": 12.0}}
    assert remembering.stale(["b", "c"]) == []
    world.time += OptimiserConfig().lookup_interval_s + 1
    assert remembering.stale(["b", "c"]) == ["b", "c"]
    remembering.reconfigure(OptimiserConfig(neighbour_rtts=0))
    assert remembering.stale(["b"]) == []


def test_with_nobody_to_ask_there_is_nothing_to_wait_for(world: World) -> None:
    ended: list[int] = []
    Remembering(world.host, world.directory, world.gossip, OptimiserConfig()).refresh({}, lambda: ended.append(1))
    assert ended == [1]
