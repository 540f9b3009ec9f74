"""The optimisers of one host: whom they ask, what they start, and what they leave alone. The test decides for the cost models."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sbon.errors import MigrationError
from sbon.execution.life import State
from sbon.optimiser.attempts import Stage
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.views import Ask, Insert, Migrate, Stay
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.query.params.source import SinkParams
from sbon.query.params.streams import MulticastParams, UnionParams
from sbon.query.plan import OperatorSpec
from sbon.rearranging.multicast_life import JOURNEY_S
from sbon.rearranging.multicasting import JOURNEY_PAUSE_S, Multicasting
from sbon.rearranging.rebalancing import Rebalancing
from sbon.rearranging.reviewing import JITTER, Surroundings
from sbon.rearranging.seeking import Seeking
from tests.recorder import FakeGossip, FakeHost, Recorder

CONFIG = OptimiserConfig(interval_s=60.0)


def incoming(source: str, node: str, link: str = "") -> tuple[str, Any]:
    ends = SimpleNamespace(id=link or f"{source}>", source=source, target="", part=None)
    return ends.id, SimpleNamespace(node=node, steady_rate=SimpleNamespace(per_s=100.0), link=ends, delay_ms=None)


def outgoing(target: str, node: str, *, part: Any = None) -> tuple[str, Any]:
    ends = SimpleNamespace(id=f">{target}", source="", target=target, part=part)
    rate = SimpleNamespace(per_s=100.0)
    return ends.id, SimpleNamespace(node=node, steady_rate=rate, link=ends, users=set(), told=True)


def operator(name: str, inputs: list[Any], outputs: list[Any], params: Any = None) -> Any:
    """Returns an operator that runs here."""
    params = params if params is not None else UnionParams()
    return SimpleNamespace(
        id=name,
        spec=OperatorSpec(name, params, (), None, None, "s"),
        inputs=dict(inputs),
        outputs=dict(outputs),
        figures=SimpleNamespace(migrations=0, arrived_at_s=None, state_bytes=0),
        users=SimpleNamespace(delay_slack_ms=math.inf, slack_ms={}),
        state=State.RUNNING,
        is_multicast=isinstance(params, MulticastParams),
    )


class World:
    """Host `here`, with other hosts b, c and d."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = FakeHost()
        self.instances: dict[str, Any] = {}
        self.pinned: set[str] = set()
        self.room = 5
        self.operators = Recorder(
            instances=self.instances, room=SimpleNamespace(free_slots=lambda now: self.room), split=self.split, destroy=self.instances.pop
        )
        self.candidate_questions, self.recording = Recorder(), Recorder()
        self.refusal = ""
        self.migrations = Recorder(
            may_migrate=lambda name: name not in self.pinned,
            may_be_rewired=lambda name: name not in self.pinned,
            is_leaving=lambda name: False,
            migrate=self.migrate,
        )
        self.moves: list[tuple[Any, ...]] = []
        self.remembering = Recorder(stale=lambda nodes: [], remembered=lambda nodes: {}, refresh=lambda about, done: done())
        self.around = Surroundings(
            self.host,
            Recorder(me="here"),
            FakeGossip("here", "b", "c", "d"),
            self.operators,
            Recorder(),
            self.candidate_questions,
            self.migrations,
            self.remembering,
            self.recording,
        )
        self.machine = Recorder(
            review=self.question, decide=lambda *given: self.verdict, promising=lambda *given: (), is_unsure=lambda name: False
        )
        self.verdict: Any = None
        self.reviewed: list[Any] = []
        for module, name in (("local", "LocalOptimiser"), ("multicast", "MulticastOptimiser")):
            monkeypatch.setattr(f"sbon.optimiser.{module}.{name}", lambda *given: self.machine)
        self.telling = Recorder()
        self.considered: set[str] = set()
        self.rebalancing = Rebalancing(self.around, CONFIG, PlacementConfig(), self.considered.__contains__)
        self.multicasting = Multicasting(self.around, CONFIG, PlacementConfig(), self.telling)

    def add(self, *operators: Any) -> None:
        self.instances.update({one.id: one for one in operators})

    def question(self, view: Any, *given: Any) -> Ask:
        self.reviewed.append(view)
        return Ask(view.id, ("b", "c"), ("d",))

    def migrate(self, *given: Any) -> None:
        if self.refusal:
            raise MigrationError(self.refusal)
        self.moves.append(given)

    def split(self, parent: str, links: Any, name: str) -> Any:
        outputs = [(link, self.instances[parent].outputs.pop(link)) for link in links]
        between = incoming(parent, "here", f"{parent}>{name}")
        self.instances[parent].outputs[between[0]] = outgoing(name, "here")[1]
        self.add(relay := operator(name, [between], outputs, MulticastParams(parent)))
        return relay

    def review(self, optimiser: Any) -> None:
        """Starts an optimiser for one review, which begins after a pause."""
        optimiser.start()
        self.host.wait(CONFIG.interval_s * (1 + JITTER))
        optimiser.stop()

    @property
    def asked(self) -> list[str]:
        return [given[0] for given in self.candidate_questions.calls_of("ask")]

    def answer(self, *silent: str, slots: int = 5) -> None:
        for node in self.asked:
            report = CandidateReport(node, {}, slots)
            self.candidate_questions.pop("ask", node).done(node, None if node in silent else report)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def pair() -> list[Any]:
    """Returns two operators here with a link between them; b feeds the first, the second feeds c."""
    first = operator("one", [incoming("zero", "b")], [outgoing("two", "here")])
    second = operator("two", [incoming("one", "here")], [outgoing("three", "c")])
    return [first, second]


def move(*operators: str) -> Migrate:
    return Migrate(operators[0], operators, "d", 2.0, 1.0, 0.5, "cheaper", ())


# ----------------------------------------------------------------------------------------------------------- rebalancing


def test_an_operator_is_asked_about_and_moves_where_the_answers_say(world: World) -> None:
    world.add(pair()[0])
    world.verdict = move("one")
    world.review(world.rebalancing)
    assert (world.asked, world.moves) == (["b", "c"], [])
    world.answer("b")
    assert world.moves == [("one", "d", "cheaper")]
    assert [given[:3] for given in world.recording.calls_of("review")] == [("one", ("one",), "migrate")]


def test_an_operator_that_is_asked_about_is_not_asked_about_again_until_all_have_answered(world: World) -> None:
    world.add(pair()[0])
    world.verdict = Stay("one", "dear")
    world.review(world.rebalancing)
    world.review(world.rebalancing)
    assert world.asked == ["b", "c"]
    world.answer()
    world.review(world.rebalancing)
    assert world.asked == ["b", "c"]
    assert world.moves == []


@pytest.mark.parametrize("change", ["gone", "moving", "considered", "off"])
def test_what_may_not_move_any_more_stays(world: World, change: str) -> None:
    world.add(pair()[0])
    world.verdict = move("one")
    if change == "off":
        world.rebalancing.reconfigure(OptimiserConfig(enabled=False))
    world.review(world.rebalancing)
    match change:
        case "gone":
            del world.instances["one"]
        case "moving":
            world.pinned.add("one")
        case "considered":
            world.considered.add("one")
    assert bool(world.asked) is (change != "off")
    world.answer()
    assert world.moves == []


def test_operators_here_with_a_link_between_them_are_reviewed_alone_and_together(world: World) -> None:
    world.add(*pair())
    world.review(world.rebalancing)
    assert [view.operators for view in world.reviewed] == [("one",), ("two",), ("one", "two")]
    world.pinned.add("two")
    world.reviewed.clear()
    world.verdict = Stay("one", "dear")
    world.answer()
    world.review(world.rebalancing)
    assert [view.operators for view in world.reviewed] == [("one",)]


def ended(world: World, name: str, *, committed: bool) -> None:
    del world.instances[name]
    world.rebalancing.migration_ended(SimpleNamespace(operator=name, committed=committed))
    world.host.wait()


@pytest.mark.parametrize("committed", [True, False])
def test_a_group_moves_one_after_the_other_and_stays_when_the_first_does(world: World, committed: bool) -> None:
    world.add(*pair())
    world.verdict = move("one", "two")
    world.review(world.rebalancing)
    world.answer()
    assert {given[0] for given in world.moves} == {"one"}
    world.moves.clear()
    ended(world, "one", committed=committed)
    assert world.moves == ([("two", "d", "cheaper")] if committed else [])
    if committed:
        ended(world, "two", committed=True)
        assert world.moves == [("two", "d", "cheaper")]


def test_a_move_that_cannot_begin_is_recorded_and_nothing_follows_it(world: World) -> None:
    world.add(*pair())
    world.verdict, world.refusal = move("one", "two"), "its neighbour moves"
    world.review(world.rebalancing)
    world.answer()
    assert ("one", ("one",), "hindered", "its neighbour moves") in world.recording.calls_of("review")
    world.refusal = ""
    ended(world, "one", committed=True)
    assert world.moves == []


def test_reviews_come_once_an_interval_and_end(world: World) -> None:
    world.rebalancing.start()
    [first] = world.host.pending
    assert (1 - JITTER) * CONFIG.interval_s <= first - world.host.time <= (1 + JITTER) * CONFIG.interval_s
    world.host.wait(first - world.host.time)
    assert len(world.host.pending) == 1
    world.rebalancing.reconfigure(OptimiserConfig(interval_s=10.0))
    [later] = world.host.pending
    assert later - world.host.time <= (1 + JITTER) * 10.0
    world.rebalancing.stop()
    world.rebalancing.reconfigure(CONFIG)
    assert world.host.pending == []


# ---------------------------------------------------------------------------------------------------------- multicasting


def source(*nodes: str) -> Any:
    """Returns an operator with a consumer on each of these nodes."""
    return operator("one", [incoming("zero", "b")], [outgoing(f"to-{number}", node) for number, node in enumerate(nodes)])


def insert(*links: str) -> Insert:
    return Insert("one", links, "d", 2.0, 1.0, 0.5, "cheaper", ())


def made(world: World) -> str:
    """Inserts a multicast for two consumers, who know of it; returns its name."""
    world.add(source("c", "d"))
    name = world.multicasting.insert(insert(">to-0", ">to-1"))
    assert name is not None
    return name


@pytest.mark.parametrize(("one", "reviewed"), [
    (source("c", "d"), True),
    (source("c"), False),
    (source("c", "here"), False),
    (operator("one", [], [outgoing("x", "c"), outgoing("y", "d", part=object())]), False),
    (operator("one", [], [outgoing("x", "c"), outgoing("y", "d")], SinkParams("q", "tail", ())), False),
])  # fmt: skip
def test_only_operators_with_several_consumers_elsewhere_of_the_same_rows_are_reviewed(world: World, one: Any, reviewed: bool) -> None:
    world.add(one)
    world.review(world.multicasting)
    assert bool(world.asked) is reviewed


def test_a_multicast_is_made_when_the_answers_say_so_and_leaves_when_all_consumers_know_it(world: World) -> None:
    world.add(source("c", "d"))
    world.verdict = insert(">to-0", ">to-1")
    world.review(world.multicasting)
    assert world.asked == ["b", "c"]
    world.answer()
    [(outputs, told)] = world.telling.calls_of("tell")
    [(kind, parent, name, *_)] = world.recording.calls_of("multicast")
    assert (kind, parent, world.multicasting.counters["multicasts_made"]) == ("made", "one", 1)
    outputs[0].told = False
    told()
    assert world.moves == []
    outputs[0].told = True
    told()
    assert [given[:3] for given in world.moves] == [(name, "d", "cheaper")]
    assert world.multicasting.is_considering("one") is False  # only the output to the multicast is left


@pytest.mark.parametrize("change", ["gone", "moving", "stopped", "off"])
def test_no_multicast_is_made_of_what_has_changed_meanwhile(world: World, change: str) -> None:
    world.add(source("c", "d"))
    world.verdict = insert(">to-0", ">to-1")
    if change == "off":
        world.multicasting.reconfigure(OptimiserConfig(multicast=False))
    world.review(world.multicasting)
    match change:
        case "gone":
            del world.instances["one"]
        case "moving":
            world.pinned.add("one")
        case "stopped":
            world.instances["one"].state = State.FAILED
    world.answer()
    assert (world.telling.calls, world.multicasting.counters["multicasts_made"]) == ([], 0)


def test_no_multicast_is_made_without_room_or_of_links_that_are_gone_or_of_a_whole_multicast(world: World) -> None:
    world.add(source("c", "d"))
    assert world.multicasting.insert(insert(">to-0", ">to-9")) is None
    world.room = 0
    assert world.multicasting.insert(insert(">to-0", ">to-1")) is None
    world.room = 5
    world.instances["one"].is_multicast = True
    assert world.multicasting.insert(insert(">to-0", ">to-1")) is None
    assert world.telling.calls == []


def test_a_multicast_that_cannot_leave_tries_again_and_gives_up_in_time(world: World) -> None:
    name = made(world)
    world.refusal = "its neighbour moves"
    world.telling.pop("tell").done()
    assert world.moves == []
    world.refusal = ""
    world.host.wait(JOURNEY_PAUSE_S)
    [(_, _, _, left)] = world.moves
    left(SimpleNamespace(committed=False))
    world.host.wait(JOURNEY_PAUSE_S)
    assert len(world.moves) == 2
    world.refusal = "full"
    world.moves[-1][3](SimpleNamespace(committed=False))
    world.host.wait(JOURNEY_S + 2 * JOURNEY_PAUSE_S)
    assert (len(world.moves), world.host.pending, name in world.instances) == (2, [], True)
    world.multicasting.tend(world.instances[name])
    assert world.operators.calls_of("fold")[0][:2] == (name, "one")


def test_a_multicast_on_its_way_is_left_alone_and_one_that_has_arrived_is_not(world: World) -> None:
    name = made(world)
    relay = world.instances[name]
    world.multicasting.tend(relay)
    assert world.operators.calls == []
    world.telling.pop("tell").done()
    world.moves[-1][3](SimpleNamespace(committed=True))
    world.multicasting.tend(relay)  # the multicast is beside its feeder again
    assert world.operators.calls_of("fold")[0][:2] == (name, "one")


def test_a_folded_multicast_is_counted_and_its_consumers_are_told(world: World) -> None:
    relay = operator("m", [incoming("one", "here", ">m")], [outgoing("x", "c"), outgoing("y", "d")], MulticastParams("one"))
    world.add(operator("one", [], [(">m", outgoing("m", "here")[1])]), relay)
    world.multicasting.tend(relay)
    fold = world.operators.pop("fold", "m", "one")
    free: Callable[[], bool] = fold.given[2]
    assert free()
    world.pinned.add("one")
    assert not free()
    outputs = list(relay.outputs.values())
    fold.done(outputs)
    assert (world.multicasting.counters["multicasts_folded"], world.telling.calls_of("tell")) == (1, [(outputs,)])


@pytest.mark.parametrize("hindrance", ["untold", "moving", "stopped"])
def test_a_multicast_is_not_folded_while_anything_about_it_is_open(world: World, hindrance: str) -> None:
    relay = operator("m", [incoming("one", "here", ">m")], [outgoing("x", "c"), outgoing("y", "d")], MulticastParams("one"))
    world.add(operator("one", [], [(">m", outgoing("m", "here")[1])]), relay)
    match hindrance:
        case "untold":
            relay.outputs[">x"].told = False
        case "moving":
            world.pinned.add("one")
        case "stopped":
            relay.state = State.FAILED
    world.multicasting.tend(relay)
    assert world.operators.calls == []


def test_a_multicast_without_consumers_ends_and_one_with_a_single_one_may_go_back(world: World) -> None:
    world.add(operator("m", [incoming("one", "b")], [], MulticastParams("one")))
    world.add(operator("n", [incoming("one", "b")], [outgoing("x", "c")], MulticastParams("one")))
    world.multicasting.reconfigure(OptimiserConfig(multicast=False))
    world.review(world.multicasting)
    assert list(world.instances) == ["n"]
    assert set(world.asked) == {"b", "here"}


def test_an_operator_whose_multicast_is_being_measured_should_not_move(world: World) -> None:
    world.add(source("c", "d"))
    assert not world.multicasting.is_considering("one")  # nothing has been reviewed yet
    world.review(world.multicasting)
    world.machine.is_unsure = lambda name: True
    assert world.multicasting.is_considering("one")
    assert not world.multicasting.is_considering("unknown")


# ----------------------------------------------------------------------------------------------------------------- seeking


@pytest.fixture
def seeking(world: World) -> Any:
    """Returns a search for hosts; its `news` grows each time that candidates have answered."""
    news: list[None] = []
    found: Any = Seeking(world.around, CONFIG, PlacementConfig(), np.random.default_rng(1), lambda: news.append(None))
    found.news = news
    return found


def test_hosts_are_sought_for_a_group_and_the_best_with_room_is_chosen(world: World, seeking: Any) -> None:
    seeking.seek(pair())
    assert set(world.asked) == {"b", "c", "d"}
    attempts = [seeking.attempt(name) for name in ("one", "two")]
    assert all(attempt.stage is Stage.ASKING for attempt in attempts)
    assert seeking.news == []
    world.answer("d")
    assert len({attempt.there for attempt in attempts} & {"b", "c"}) == 1
    assert (len(seeking.news), [attempt.stage for attempt in attempts]) == (1, [Stage.BOUND] * 2)


def test_a_group_for_which_nobody_has_room_is_placed_one_by_one(world: World, seeking: Any) -> None:
    seeking.seek(pair())
    world.answer(slots=1)
    assert [(seeking.attempt(name).there, seeking.attempt(name).alone) for name in ("one", "two")] == [(None, True)] * 2
    seeking.seek(pair())
    assert len(world.asked) == 6
    world.answer(slots=1)
    assert all(seeking.attempt(name).there for name in ("one", "two"))


def test_who_has_refused_is_not_asked_again_and_when_nobody_is_left_it_is_given_up(world: World, seeking: Any) -> None:
    one = pair()[0]
    seeking.seek([one])
    world.answer("b", slots=0)
    assert seeking.attempt("one").refused == {"b", "c", "d"}
    seeking.seek([one])
    assert (world.asked, seeking.attempt("one").given_up) == ([], "no other agent has room for it")


def test_a_host_that_was_only_unlucky_is_tried_again_after_a_pause(world: World, seeking: Any) -> None:
    one = pair()[0]
    seeking.attempt("one").unlucky.update("bcd")
    seeking.seek([one])
    assert (world.asked, seeking.attempt("one").given_up) == ([], "")
    assert not seeking.attempt("one").is_idle(world.host.time)
    seeking.seek([one])
    assert set(world.asked) == {"b", "c", "d"}


def test_a_host_that_refuses_one_is_not_where_those_go_that_have_not_started(seeking: Any) -> None:
    for name, there in (("one", "b"), ("two", "b"), ("three", "c")):
        seeking.attempt(name).ask()
        seeking.attempt(name).chosen((there,), (there,), {})
    seeking.attempt("two").set_out()
    assert seeking.moving() == {"two"}
    seeking.refused("b")
    assert [seeking.attempt(name).there for name in ("one", "two", "three")] == [None, "b", "c"]


def test_being_near_what_leaves_as_well_counts_for_nothing(world: World, seeking: Any) -> None:
    one = operator("one", [incoming("zero", "b")], [outgoing("two", "here"), outgoing("three", "c")])
    seeking.seek([one])
    assert all(given[1] == ("b", "c") for given in world.candidate_questions.calls_of("ask"))
