"""The departure of an agent, step by step: which operators move, which stay and why, and when it ends."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sbon.errors import LocalProtocolError, MigrationError
from sbon.execution.life import State
from sbon.migration.coordinator import Phase as MigrationPhase
from sbon.optimiser.attempts import Attempt, Stage
from sbon.rearranging import leaving
from sbon.rearranging.leaving import TABLE, TOGETHER_MAX, Leaving, Phase


class Seeking:
    """Records searches for hosts; the test finds the hosts."""

    def __init__(self, *given: Any) -> None:
        self.attempts: dict[str, Attempt] = {}
        self.sought: list[list[str]] = []
        self.refusals: list[str] = []

    def attempt(self, operator: str) -> Attempt:
        return self.attempts.setdefault(operator, Attempt())

    def seek(self, instances: list[Any]) -> None:
        self.sought.append([instance.id for instance in instances])

    def moving(self) -> set[str]:
        return {name for name, attempt in self.attempts.items() if attempt.stage is Stage.MOVING}

    def refused(self, there: str) -> None:
        self.refusals.append(there)

    def found(self, operator: str, there: str) -> None:
        """Finds a host for an operator, as if candidates had answered."""
        self.attempt(operator).ask()
        self.attempt(operator).chosen((there,), (there,), {})


class World:
    """A leaving agent on node here, with other agents on b and c."""

    def __init__(self, *operators: Any) -> None:
        self.time, self.timers, self.soon = 0.0, [], []
        self.instances = {operator.id: operator for operator in operators}
        self.room = SimpleNamespace(is_leaving=False)
        self.alive, self.gone_nodes = {"here", "b", "c"}, set[str]()
        self.departing = self.arriving = self.called_off = self.done = 0
        self.moves: dict[str, tuple[str, Callable[[Any], None]]] = {}
        self.places: dict[str, tuple[str, int]] = {}
        self.hindrance = ""
        self.rng = np.random.default_rng(1)
        gossip = SimpleNamespace(alive_labels=lambda: sorted(self.alive), departure_of=lambda node: node in self.gone_nodes)
        directory, flow = SimpleNamespace(me="here"), SimpleNamespace(ends=SimpleNamespace(place=self.places.get))
        around: Any = SimpleNamespace(host=self, operators=self, migrations=self, gossip=gossip, directory=directory, flow=flow)
        self.leaving = Leaving(around)

    # methods of the host

    def now(self) -> float:
        return self.time

    def call_at(self, when: float, call: Callable[[], None]) -> Any:
        timer = SimpleNamespace(when=when, call=call, cancel=lambda: self.timers.remove(timer) if timer in self.timers else None)
        self.timers.append(timer)
        return timer

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def pass_to(self, when: float) -> None:
        """Advances the clock to an instant and makes all calls that are due."""
        while self.soon or any(timer.when <= when for timer in self.timers):
            due, self.soon = self.soon, []
            for call in due:
                call()
            for timer in sorted(self.timers, key=lambda one: one.when)[:1]:
                if timer.when <= when:
                    self.timers.remove(timer)
                    self.time = max(self.time, timer.when)
                    timer.call()
        self.time = when

    # methods of its migrations

    def call_off_arrivals(self) -> None:
        self.called_off += 1

    def may_migrate(self, operator: str) -> bool:
        return operator in self.instances and operator not in self.moves

    def neighbours(self, instance: Any) -> dict[str, tuple[str, ...]]:
        return {end.node: ("other",) for end in (*instance.inputs.values(), *instance.outputs.values())}

    def migrate(self, operator: str, there: str, reason: str, done: Callable[[Any], None]) -> None:
        if self.hindrance:
            raise MigrationError(self.hindrance)
        self.moves[operator] = (there, done)

    # actions of the test

    def begin(self, within_s: float = 10.0) -> Any:
        settings: Any = None
        self.leaving.begin(within_s, settings, settings, self.count)
        return self.leaving._seeking

    def count(self) -> None:
        self.done += 1

    def end_move(self, operator: str, *, committed: bool = True, phases: tuple[str, ...] = (), outcome: str = "") -> None:
        there, done = self.moves.pop(operator)
        if committed:
            del self.instances[operator]
            self.places[operator] = (there, 1)
        done(SimpleNamespace(operator=operator, committed=committed, phases=phases, outcome=outcome))
        self.pass_to(self.time)

    @property
    def reasons(self) -> dict[str, str]:
        return {each.operator: each.reason for each in self.leaving.stayed}


def operator(name: str, *, to: str = "b", target: str = "sink", source: str = "", **given: Any) -> Any:
    """Returns an operator whose output leads to `target` on node `to`."""
    link = SimpleNamespace(target=target)
    output = SimpleNamespace(node=to, link=link, sender=SimpleNamespace(rows_held=0))
    inputs = {"i": SimpleNamespace(node="here", link=SimpleNamespace(source=source))} if source else {}
    fields = {"movable": True, "state": State.RUNNING, "users": {"q": "b"}} | given
    return SimpleNamespace(id=name, outputs={"o": output}, inputs=inputs, **fields)


@pytest.fixture(autouse=True)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "Seeking", Seeking)


def test_with_nothing_to_move_it_is_over_at_once_and_takes_no_more_operators():
    world = World()
    world.begin()
    assert (world.done, world.called_off, world.room.is_leaving, world.timers) == (1, 1, True, [])


def test_alone_or_without_time_everything_stays():
    world = World(operator("x"))
    world.alive = {"here"}
    world.begin()
    assert (world.done, world.reasons) == (1, {"x": "there is no other agent"})
    world = World(operator("x"))
    world.begin(within_s=0.0)
    assert (world.done, world.reasons) == (1, {"x": "the agent was told to leave at once"})


def test_an_operator_is_sought_a_host_moves_and_is_counted_with_it():
    world = World(operator("x"))
    seeking = world.begin()
    assert seeking.sought == [["x"]]
    seeking.found("x", "b")
    world.pass_to(1.0)
    assert world.moves["x"][0] == "b"
    assert world.done == 0
    world.end_move("x")
    assert (world.done, world.leaving.moved, world.reasons, world.timers) == (1, {"x": "b"}, {}, [])


def test_when_time_is_up_the_rest_stays_and_says_what_went_wrong_last():
    world = World(operator("x"), operator("y"))
    seeking = world.begin()
    seeking.found("x", "b")
    world.hindrance = "its consumers have not yet been told"
    world.pass_to(10.0)
    assert world.done == 1
    assert world.reasons == {"x": "time was up; its consumers have not yet been told", "y": "time was up"}
    assert world.timers == []


def test_a_host_that_refuses_is_not_asked_again_and_one_that_was_called_off_is():
    world = World(operator("x"))
    seeking = world.begin()
    seeking.found("x", "b")
    world.pass_to(1.0)
    world.end_move("x", committed=False, phases=(MigrationPhase.PREPARING.value,), outcome="no room")
    assert (seeking.attempt("x").there, seeking.attempt("x").refused, seeking.refusals) == (None, {"b"}, ["b"])
    seeking.found("x", "c")
    world.pass_to(2.0)
    world.end_move("x", committed=False, outcome="a neighbour is moving")
    assert (seeking.attempt("x").there, seeking.attempt("x").refused) == ("c", {"b"})
    assert seeking.attempt("x").not_before_s > 2.0
    world.pass_to(5.0)
    assert world.moves["x"][0] == "c"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"movable": False}, "it is pinned"),
        ({"state": State.FAILED}, "it has failed"),
        ({"to": "here", "target": "pinned"}, "it feeds only operators that are pinned here"),
        ({"to": "c"}, "its neighbour other was on c, which is gone"),
    ],
)
def test_what_can_never_move_holds_nobody_up(changed: dict[str, Any], reason: str):
    world = World(operator("x", **changed), operator("pinned", movable=False))
    world.gone_nodes = {"c"}
    world.begin()
    assert (world.done, world.reasons["x"]) == (1, reason)


def test_at_most_so_many_move_at_once_and_never_two_neighbours():
    world = World(*(operator(f"x{number}") for number in range(TOGETHER_MAX + 1)))
    seeking = world.begin()
    for name in world.instances:
        seeking.found(name, "b")
    world.pass_to(1.0)
    assert len(world.moves) == TOGETHER_MAX
    world.end_move("x0")
    assert set(world.moves) == {"x1", "x2", "x3", "x4"}

    world = World(operator("up", to="here", target="down"), operator("down", source="up"))
    seeking = world.begin()
    seeking.found("up", "b")
    seeking.found("down", "b")
    world.pass_to(1.0)
    assert set(world.moves) == {"up"}
    world.end_move("up")
    assert set(world.moves) == {"down"}


def test_last_batches_of_a_finished_operator_are_waited_for_while_somebody_is_there_to_take_them():
    world = World(operator("x", state=State.FINISHED))
    world.instances["x"].outputs["o"].sender.rows_held = 5
    world.begin()
    world.pass_to(1.0)
    assert world.done == 0
    world.gone_nodes = {"b"}
    world.pass_to(2.0)
    assert world.done == 1


def test_a_closed_departure_is_never_over():
    world = World(operator("x"))
    world.begin()
    world.leaving.close()
    world.pass_to(20.0)
    assert (world.done, world.timers) == (0, [])


def brought_to(phase: Phase) -> World:
    """Returns a departure in a phase; until time is up, operator x moves to b."""
    world = World(operator("x"))
    if phase is Phase.STAYING:
        return world
    world.begin().found("x", "b")
    world.pass_to(1.0)
    if phase is Phase.OVER:
        world.leaving.time_is_up()
    if phase is Phase.CLOSED:
        world.leaving.close()
    assert world.leaving.phase is phase
    return world


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", sorted(TABLE.events))
def test_each_event_leads_where_the_table_says_and_changes_nothing_elsewhere(phase: Phase, event: str) -> None:
    world = brought_to(phase)
    stopped = SimpleNamespace(operator="x", committed=False, phases=(), outcome="a neighbour is moving")
    events: dict[str, Callable[[], Any]] = {
        "begin": world.begin,
        "look": world.leaving.look,
        "move_ended": lambda: world.leaving.move_ended("b", stopped),
        "time_is_up": world.leaving.time_is_up,
        "close": world.leaving.close,
    }
    before = (world.done, len(world.timers), world.soon, dict(world.leaving.moved), list(world.leaving.stayed), world.called_off)

    if event == "begin" and phase is not Phase.STAYING:
        with pytest.raises(LocalProtocolError, match="begin leads from"):
            world.begin()
    else:
        events[event]()
    if TABLE.takes(phase, event):
        assert world.leaving.phase in TABLE.rows[phase][event]
    else:
        after = (world.done, len(world.timers), world.soon, dict(world.leaving.moved), list(world.leaving.stayed), world.called_off)
        assert (world.leaving.phase, after) == (phase, before)
    assert world.leaving.begun is (world.leaving.phase is not Phase.STAYING)
    says_goodbye = phase in (Phase.STAYING, Phase.HANDING_OVER) and world.leaving.phase is Phase.OVER
    assert world.done == before[0] + says_goodbye


def test_a_departure_ends_on_a_look_when_the_last_operator_is_gone() -> None:
    world = brought_to(Phase.HANDING_OVER)
    del world.instances["x"]
    world.leaving.look()
    assert (world.leaving.phase, world.done, world.timers) == (Phase.OVER, 1, [])
