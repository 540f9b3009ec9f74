"""A multicast with one consumer goes back beside its feeder."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from sbon.errors import MigrationError
from sbon.placement.candidates import CandidateReport
from sbon.rearranging.multicast_life import MulticastLife, Stage
from sbon.rearranging.returning import Returning


class World:
    """A multicast m on host here, fed from host feeder, with one consumer."""

    def __init__(self, consumer: str = "far") -> None:
        self.asked: list[tuple[str, Callable[[str, CandidateReport | None], None]]] = []
        self.moves: list[tuple[str, str]] = []
        self.reviews: list[tuple[Any, ...]] = []
        self.stands, self.refusal = True, ""
        self.relay: Any = SimpleNamespace(
            id="m", inputs={"i": SimpleNamespace(node="feeder")}, outputs={"o": SimpleNamespace(node=consumer)}
        )
        self.instances = {"m": self.relay}
        around: Any = SimpleNamespace(
            directory=SimpleNamespace(me="here"),
            operators=self,
            candidate_questions=SimpleNamespace(
                ask=lambda node, about, signatures, timeout_s, answered: self.asked.append((node, answered))
            ),
            migrations=self,
            recording=SimpleNamespace(review=lambda *given: self.reviews.append(given)),
        )
        self.returning = Returning(around, lambda relay: self.stands)
        self.life = MulticastLife(Stage.STANDING)
        self.moved: list[Callable[[Any], None]] = []

    def migrate(self, operator: str, there: str, reason: str, done: Callable[[Any], None]) -> None:
        if self.refusal:
            raise MigrationError(self.refusal)
        self.moves.append((operator, there))
        self.moved.append(done)

    def answer(self, rtts: Mapping[str, Mapping[str, float] | None]) -> None:
        """Answers all questions with these RTTs, in ms."""
        asked, self.asked = self.asked, []
        for node, answered in asked:
            told = rtts[node]
            answered(node, None if told is None else CandidateReport(node, dict(told), 1, 0.0, {}, 0, {}))


@pytest.mark.parametrize(
    ("direct", "moves"), [(90.0, [("m", "feeder")]), (100.0, [("m", "feeder")]), (110.0, [])], ids=["shorter", "equal", "longer"]
)
def test_it_goes_back_unless_the_direct_way_is_longer(direct: float, moves: list[tuple[str, str]]) -> None:
    world = World()
    world.returning.consider(world.relay, world.life)
    world.answer({"feeder": {"far": direct}, "here": {"feeder": 40.0, "far": 60.0}})
    assert world.moves == moves


def test_it_goes_back_whatever_is_measured_if_both_ends_are_on_one_host() -> None:
    world = World(consumer="feeder")
    world.returning.consider(world.relay, world.life)
    world.answer({"feeder": None, "here": None})
    assert world.moves == [("m", "feeder")]


@pytest.mark.parametrize("silent", ["feeder", "here"])
def test_without_an_answer_it_stays(silent: str) -> None:
    world = World()
    world.returning.consider(world.relay, world.life)
    told: dict[str, Any] = {"feeder": {"far": 1.0}, "here": {"feeder": 40.0, "far": 60.0}}
    world.answer(told | {silent: None})
    assert world.moves == []


def test_both_are_asked_once_at_a_time() -> None:
    world = World()
    world.returning.consider(world.relay, world.life)
    world.returning.consider(world.relay, world.life)
    assert [node for node, _ in world.asked] == ["feeder", "here"]
    world.answer({"feeder": None, "here": None})
    world.returning.consider(world.relay, world.life)
    assert len(world.asked) == 2


def test_beside_its_feeder_it_asks_nobody() -> None:
    world = World()
    world.relay.inputs["i"].node = "here"
    world.returning.consider(world.relay, world.life)
    assert world.asked == []


@pytest.mark.parametrize("change", ["gone", "one more consumer", "a neighbour moves"])
def test_what_has_changed_while_others_answered_keeps_it(change: str) -> None:
    world = World()
    world.returning.consider(world.relay, world.life)
    match change:
        case "gone":
            world.instances.clear()
        case "one more consumer":
            world.relay.outputs["p"] = SimpleNamespace(node="near")
        case _:
            world.stands = False
    world.answer({"feeder": {"far": 1.0}, "here": {"feeder": 40.0, "far": 60.0}})
    assert world.moves == []


def test_a_move_that_is_hindered_is_told() -> None:
    world = World()
    world.refusal = "it is pinned"
    world.returning.consider(world.relay, world.life)
    world.answer({"feeder": {"far": 1.0}, "here": {"feeder": 40.0, "far": 60.0}})
    assert world.reviews == [("m", ("m",), "hindered", "it is pinned")]
    assert world.life.stage is Stage.STANDING


@pytest.mark.parametrize(("committed", "stage"), [(True, Stage.GONE), (False, Stage.STANDING)])
def test_it_is_gone_when_it_has_moved_and_stands_when_the_move_was_called_off(committed: bool, stage: Stage) -> None:
    world = World()
    world.returning.consider(world.relay, world.life)
    world.answer({"feeder": {"far": 1.0}, "here": {"feeder": 40.0, "far": 60.0}})
    assert world.life.stage is Stage.RETURNING
    [ended] = world.moved
    ended(SimpleNamespace(committed=committed))
    assert world.life.stage is stage
