"""The shells of a migration on the old and the new host: what each sends and does in each phase, without an engine or a network."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sbon.errors import AuthorityError, LinkError, MigrationError, PlacementError, SbonError
from sbon.membership.members import MemberStatus
from sbon.migration.arrivals import Arrivals
from sbon.migration.config import MigrationConfig
from sbon.migration.coordinator import Phase
from sbon.migration.departure import Departure
from sbon.migration.outcome import MigrationRecord
from sbon.migration.parts import Parts
from sbon.query.params.streams import UnionParams
from sbon.query.plan import OperatorSpec
from sbon.wire.links import Moved
from sbon.wire.messages import Done
from sbon.wire.migration import Abandon, Activate, Lock, Outcome, OutcomeAsk, Prepare, StateChunk, Unlock
from tests.recorder import FakeHost, Recorder

CONFIG = MigrationConfig()
SPEC = OperatorSpec("q.1", UnionParams(), (), None, None, "s")


class World:
    """One host; its engine, operators and network do what the test says."""

    def __init__(self, me: str) -> None:
        self.host = FakeHost()
        self.directory = Recorder(me=me)
        self.assembly = Recorder(is_built=False, load=lambda: None, take=lambda data: self.taken.append(data))
        self.taken: list[bytes] = []
        self.engine = Recorder(assembly=lambda spec: self.assembly)
        self.reservations = Recorder()
        self.room = Recorder(
            reserve=lambda operator, slots, now: self.has_room,
            reservations=self.reservations,
            budget=SimpleNamespace(arriving_bytes=lambda params: 10**9),
        )
        self.has_room = True
        self.operators = Recorder(
            me=me,
            instances={},
            room=self.room,
            known=lambda operator: self.operators.instances[operator],
            activate=lambda operator: operator,
        )
        self.flow = Recorder(ends=SimpleNamespace(place=lambda operator: None))
        self.gone: dict[str, MemberStatus] = {}
        self.parts = Parts(self.host, self.directory, self.engine, self.operators, self.flow, CONFIG, self.gone.get)

    def asked(self, kind: type) -> list[str]:
        """Returns the nodes with an unanswered request of this kind."""
        return [node for node, message, *_ in self.directory.calls_of("request") if isinstance(message, kind)]

    def told(self, kind: type) -> list[str]:
        return [node for node, message in self.directory.calls_of("tell") if isinstance(message, kind)]

    def answer(self, kind: type, result: Any = None, node: str = "") -> Any:
        """Answers the oldest request of this kind (to `node`, if given); returns the request."""
        calls = [call for call in self.directory.calls if call.name == "request" and isinstance(call.given[1], kind)]
        call = next(call for call in calls if node in ("", call.given[0]))
        self.directory.calls.remove(call)
        call.done(Done() if result is None else result)
        return call.given[1]


class Old(World):
    """Host old, from which q.1 moves to new; up feeds q.1, q.1 feeds down, and owner has the query."""

    def __init__(self) -> None:
        super().__init__("old")
        inputs = {"in": SimpleNamespace(node="up", lost=False, told_lost=False, link=SimpleNamespace(source="q.0"))}
        outputs = {"out": SimpleNamespace(node="down", link=SimpleNamespace(target="q.2"))}
        self.instance: Any = SimpleNamespace(id="q.1", users={"q": "owner"}, inputs=inputs, outputs=outputs, spec=SPEC, log=None)
        self.operators.instances["q.1"] = self.instance
        self.records: list[MigrationRecord] = []
        self.departure = Departure(self.parts, self.instance, "new", 4, "cheaper", self.records.append)
        self.departure.begin()

    @property
    def phase(self) -> Phase:
        return self.departure.steps.phase

    def step(self) -> None:
        """Accepts the requests that the present phase waits for."""
        match self.phase:
            case Phase.LOCKING:
                self.answer(Lock)
                self.answer(Lock)
            case Phase.PREPARING:
                self.answer(Prepare)
            case Phase.COPYING:
                self.engine.pop("fork").done(None)
            case Phase.PAUSING:
                self.engine.pop("rest").done(None)
            case Phase.TRANSFERRING:
                self.engine.pop("snapshot").done(b"record")
                while self.asked(StateChunk):
                    self.answer(StateChunk)

    def until(self, phase: Phase) -> "Old":
        while self.phase is not phase:
            before = self.phase
            self.step()
            assert self.phase is not before
        return self


def test_a_move_without_trouble_asks_and_tells_everybody_in_order() -> None:
    world = Old()
    assert world.asked(Lock) == ["down", "up"]
    locks = {node: message for node, message, *_ in world.directory.calls_of("request")}
    assert (locks["up"].sends, locks["down"].sends) == (True, False)
    assert (locks["up"].neighbours, locks["up"].there, locks["up"].epoch) == (("q.0",), "new", 4)
    world.until(Phase.PREPARING)
    assert world.answer(Prepare) == Prepare(spec=SPEC, epoch=4, coordinator="old", feeds=("down",))
    world.until(Phase.TRANSFERRING)
    assert world.operators.calls_of("hand_over") == []
    world.until(Phase.COMMITTING)
    assert world.operators.calls_of("hand_over") == [("q.1", "new", 4)]
    assert world.answer(Activate) == Activate(operator="q.1", epoch=4)
    for node in ("down", "owner", "up"):
        assert world.answer(Moved, node=node) == Moved(operator="q.1", node="new", epoch=4)
    [record] = world.records
    assert (record.committed, record.queries, record.here, record.there, record.reason) == (True, ("q",), "old", "new", "cheaper")
    assert record.state_bytes > 0
    assert list(record.phases) == [phase.value for phase in Phase if phase is not Phase.ABANDONED]
    assert (sorted(world.told(Unlock)), world.told(Abandon), world.host.pending) == (["down", "up"], [], [])


REFUSALS: list[tuple[Phase, Callable[[Old], None]]] = [
    (Phase.LOCKING, lambda world: world.answer(Lock, MigrationError("moves itself"))),
    (Phase.PREPARING, lambda world: world.answer(Prepare, PlacementError("full"))),
    (Phase.PREPARING, lambda world: world.answer(Prepare, LinkError("no answer"))),
    (Phase.COPYING, lambda world: world.engine.pop("fork").done(ValueError("cannot"))),
    (Phase.COPYING, lambda world: world.engine.pop("fork").done(SimpleNamespace())),  # copied, but the operator has failed since
    (Phase.PAUSING, lambda world: world.engine.pop("rest").done(MigrationError("does not stop"))),
    (Phase.TRANSFERRING, lambda world: world.engine.pop("snapshot").done(ValueError("cannot"))),
]


@pytest.mark.parametrize(("phase", "refuse"), REFUSALS)
def test_a_refusal_before_the_decision_leaves_everything_as_it_was(phase: Phase, refuse: Callable[[Old], None]) -> None:
    world = Old().until(phase)
    refuse(world)
    if phase is Phase.LOCKING and not world.records:
        world.answer(Lock)  # the other neighbour's answer is awaited
    [record] = world.records
    assert (record.committed, world.operators.calls_of("hand_over")) == (False, [])
    assert bool(world.engine.calls_of("go_on")) is (phase in (Phase.PAUSING, Phase.TRANSFERRING))
    assert (world.told(Abandon) == ["new"]) is (phase is not Phase.LOCKING)
    assert set(world.told(Unlock)) == {"down", "up"}
    assert world.host.pending == []


def test_a_state_that_the_new_host_refuses_stays_here() -> None:
    world = Old().until(Phase.TRANSFERRING)
    world.engine.pop("snapshot").done(b"record")
    world.answer(StateChunk, MigrationError("called off"))
    assert [record.committed for record in world.records] == [False]
    assert "does not take its state: called off" in world.records[0].outcome
    assert len(world.engine.calls_of("go_on")) == 1


def test_a_piece_whose_answer_is_lost_is_sent_again() -> None:
    world = Old().until(Phase.TRANSFERRING)
    world.engine.pop("snapshot").done(b"record")
    first = world.answer(StateChunk, LinkError("no answer"))
    world.host.wait(CONFIG.retry_s)
    assert world.answer(StateChunk) == first
    assert world.phase is Phase.COMMITTING


@pytest.mark.parametrize("phase", [Phase.LOCKING, Phase.PREPARING, Phase.COPYING, Phase.PAUSING, Phase.TRANSFERRING])
@pytest.mark.parametrize("trouble", ["silence", "new host fails", "called off"])
def test_no_phase_before_the_decision_lasts_for_ever(phase: Phase, trouble: str) -> None:
    world = Old().until(phase)
    if trouble == "silence":
        world.host.wait(CONFIG.copy_timeout_s + CONFIG.timeout_s)
    elif trouble == "new host fails":
        world.departure.node_failed("new", left=False)
    else:
        world.departure.refused("its query ends")
    assert [record.committed for record in world.records] == [False]
    assert (world.operators.calls_of("hand_over"), world.host.pending) == ([], [])


def test_once_decided_everybody_is_told_until_they_answer() -> None:
    world = Old().until(Phase.COMMITTING)
    world.answer(Activate, LinkError("no answer"))
    for node in ("down", "owner", "up"):
        world.answer(Moved, LinkError("no answer"), node)
    assert world.records == []
    world.host.wait(CONFIG.retry_s)
    assert (world.asked(Activate), sorted(world.asked(Moved))) == (["new"], ["down", "owner", "up"])
    world.departure.refused("too late")
    assert world.operators.calls_of("hand_over") == [("q.1", "new", 4)]
    assert world.records == []


@pytest.mark.parametrize("gone", [MemberStatus.FAILED, MemberStatus.LEFT])
def test_who_has_departed_is_not_waited_for(gone: MemberStatus) -> None:
    world = Old().until(Phase.COMMITTING)
    world.answer(Activate)
    world.gone["up"] = gone
    world.answer(Moved, LinkError("gone"), "up")
    world.answer(Moved, node="down")
    assert world.records == []
    world.answer(Moved, node="owner")
    assert [record.committed for record in world.records] == [True]


def test_who_does_not_believe_it_is_told_again_and_not_for_ever() -> None:
    world = Old().until(Phase.COMMITTING)
    world.answer(Activate)
    for node in ("down", "owner"):
        world.answer(Moved, node=node)
    for _ in range(100):
        if world.records:
            break
        world.answer(Moved, AuthorityError("says who"), "up")
        world.host.wait(CONFIG.retry_s)
    assert [record.committed for record in world.records] == [True]


def test_after_the_end_nobody_is_told_anything() -> None:
    world = Old().until(Phase.PREPARING)
    world.departure.close()
    world.directory.calls.clear()
    world.host.wait(1000.0)
    assert (world.directory.calls, world.records) == ([], [])


# ----------------------------------------------------------------------------------------------------------- the new host


class New(World):
    """Host new, to which old moves q.1."""

    def __init__(self) -> None:
        super().__init__("new")
        self.answers: list[Any] = []
        self.runs: list[Any] = []
        self.arrivals = Arrivals(self.parts, self.runs.append)

    def prepare(self, epoch: int = 4, *, is_leaving: bool = False) -> None:
        self.arrivals.prepare(Prepare(SPEC, epoch, "old", ("down",)), self.answers.append, is_leaving=is_leaving)

    def ready(self) -> "New":
        self.prepare()
        self.host.run()
        self.directory.pop("reach").done(None)
        assert self.answers == [Done()]
        self.answers.clear()
        return self

    def chunk(self, index: int = 0, *, last: bool = True, epoch: int = 4) -> None:
        self.arrivals.chunk(StateChunk("q.1", epoch, index, last, b"piece"), self.answers.append)

    def whole(self) -> "New":
        self.ready().chunk()
        self.host.run()
        self.operators.pop("restore").done(SimpleNamespace())
        assert self.answers == [Done()]
        self.answers.clear()
        return self


def test_an_operator_comes_is_installed_and_runs_when_told() -> None:
    world = New().whole()
    assert world.arrivals.coordinator("q.1") == ("old", 4)
    assert (world.taken, world.runs) == ([b"piece"], [])
    world.arrivals.told_to_activate(Activate("q.1", 4))
    assert (world.runs, len(world.arrivals), world.host.pending) == (["q.1"], 0, [])


def test_data_shows_that_the_move_is_decided() -> None:
    world = New().whole()
    world.arrivals.first_batch("another")
    assert world.runs == []
    world.arrivals.first_batch("q.1")
    assert world.runs == ["q.1"]


def test_data_for_an_operator_that_is_not_whole_does_not_run_it() -> None:
    world = New().ready()
    world.arrivals.first_batch("q.1")
    assert (world.runs, "q.1" in world.arrivals) == ([], True)


def test_the_state_may_come_once_libraries_are_loaded_and_the_next_hosts_connected() -> None:
    world = New()
    world.prepare()
    assert (world.answers, world.directory.calls) == ([], [])
    world.host.run()
    assert (world.answers, world.directory.calls_of("reach")[0][0]) == ([], ("down",))
    world.directory.pop("reach").done(problem := LinkError("new does not reach down"))
    assert world.answers == [problem]


@pytest.mark.parametrize("problem", [PlacementError("no such function"), ImportError("a library is broken")])
def test_what_cannot_be_loaded_is_refused(problem: Exception) -> None:
    world = New()

    def load() -> None:
        raise problem

    world.assembly.load = load
    world.prepare()
    world.host.run()
    assert [str(problem) in str(answer) for answer in world.answers] == [True]
    assert all(isinstance(answer, SbonError) for answer in world.answers)
    assert world.directory.calls_of("reach") == []


def test_a_full_host_takes_nothing() -> None:
    world = New()
    world.has_room = False
    with pytest.raises(PlacementError, match="takes no more"):
        world.prepare()
    assert len(world.arrivals) == 0


def test_the_same_question_again_is_answered_again_and_one_of_a_later_move_begins_anew() -> None:
    world = New().ready()
    world.prepare()
    world.host.run()
    world.directory.pop("reach").done(None)
    assert world.answers == [Done()]
    world.prepare(epoch=6)
    assert world.reservations.calls_of("end") == [("q.1",)]
    assert world.arrivals.coordinator("q.1") == ("old", 6)
    with pytest.raises(MigrationError, match="on its way"):
        world.prepare(epoch=5)


def test_an_operator_that_is_here_or_just_left_is_not_taken() -> None:
    world = New()
    with pytest.raises(MigrationError, match="not everyone"):
        world.prepare(is_leaving=True)
    world.operators.instances["q.1"] = SimpleNamespace(epoch=3)
    with pytest.raises(MigrationError, match="already"):
        world.prepare()


def test_a_piece_or_word_that_is_late_is_answered_if_the_operator_runs_here_and_refused_otherwise() -> None:
    world = New().whole()
    world.arrivals.told_to_activate(Activate("q.1", 4))
    world.operators.instances["q.1"] = SimpleNamespace(epoch=4)
    world.chunk()
    assert world.answers == [Done()]
    world.arrivals.told_to_activate(Activate("q.1", 4))
    with pytest.raises(MigrationError):
        world.chunk(epoch=5)
    with pytest.raises(MigrationError):
        world.arrivals.told_to_activate(Activate("q.1", 5))


TROUBLES: list[Callable[[New], None]] = [
    lambda world: world.arrivals.drop("q.1", 4),
    lambda world: world.arrivals.destroyed("q.1"),
    lambda world: world.arrivals.coordinator_gone("old"),
    lambda world: world.arrivals.call_off(),
]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_operator_that_is_dropped_on_its_way_frees_its_room_and_answers_what_waits(trouble: Callable[[New], None]) -> None:
    world = New().ready()
    world.chunk()
    trouble(world)
    assert [type(answer) for answer in world.answers] == [MigrationError]
    assert (len(world.arrivals), world.reservations.calls_of("end")) == (0, [("q.1",)])
    world.host.run()  # discards the piece that was being taken
    world.host.wait(1000.0)
    assert (world.operators.calls_of("restore"), world.runs) == ([], [])


def test_an_earlier_migration_that_is_off_drops_nothing() -> None:
    world = New().ready()
    world.arrivals.drop("q.1", 3)
    world.arrivals.coordinator_gone("another")
    assert "q.1" in world.arrivals


@pytest.mark.parametrize("trouble", TROUBLES[2:])
def test_what_is_whole_stays_when_its_coordinator_goes_and_asks_what_was_decided(trouble: Callable[[New], None]) -> None:
    world = New().whole()
    trouble(world)
    assert "q.1" in world.arrivals
    world.host.wait(CONFIG.prepared_s + 1.5)
    assert world.answer(OutcomeAsk, Outcome("committed")) == OutcomeAsk("q.1", 4)
    assert world.runs == ["q.1"]


def test_what_is_whole_and_was_abandoned_is_removed() -> None:
    world = New().whole()
    world.host.wait(CONFIG.prepared_s + 1.5)
    world.answer(OutcomeAsk, LinkError("no answer"))
    assert "q.1" in world.arrivals
    world.host.wait(CONFIG.prepared_s + 1.5)
    world.answer(OutcomeAsk, Outcome("abandoned"))
    assert (len(world.arrivals), world.runs) == (0, [])
    assert world.operators.calls_of("destroy") == [("q.1",)]


@pytest.mark.parametrize("where", ["piece", "whole"])
def test_a_state_of_no_use_is_refused_with_the_reason(where: str) -> None:
    world = New().ready()
    if where == "piece":
        world.assembly.take = lambda data: 1 / 0
    world.chunk()
    world.host.run()
    if where == "whole":
        world.operators.pop("restore").done(ValueError("of another version"))
    assert len(world.arrivals) == 0
    [answer] = world.answers
    assert ("ZeroDivisionError" if where == "piece" else "ValueError: of another version") in str(answer)


def test_after_the_end_nothing_is_renewed_or_asked() -> None:
    world = New().whole()
    world.arrivals.close()
    world.host.wait(1000.0)
    assert world.directory.calls_of("request") == []
