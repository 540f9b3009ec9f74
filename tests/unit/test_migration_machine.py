"""The migration machine, step by step: either moved, or as if nothing had been asked."""

import pytest

from sbon.errors import LocalProtocolError
from sbon.migration import (
    Arrival,
    AskLock,
    AskPrepare,
    Commit,
    Ended,
    Locks,
    Migration,
    MigrationConfig,
    Pause,
    Phase,
    Resume,
    SendAbandon,
    SendActivate,
    SendMoved,
    SendUnlock,
    Transfer,
)

CONFIG = MigrationConfig(timeout_s=10.0, lease_s=20.0, retry_s=1.0)


def make_migration(neighbours: dict[str, tuple[str, ...]] | None = None) -> Migration:
    return Migration("q.1", "there", {"up": ("q.0",), "down": ("q.2",)} if neighbours is None else neighbours, ("owner",), CONFIG, now=0.0)


def brought_to(phase: Phase) -> Migration:
    machine = make_migration()
    machine.start(0.0)
    if phase is Phase.LOCKING:
        return machine
    machine.locked("up", 1.0)
    machine.locked("down", 1.0)
    for wanted, step in ((Phase.PREPARING, machine.prepared), (Phase.PAUSING, machine.paused), (Phase.TRANSFERRING, machine.transferred)):
        if phase is wanted:
            return machine
        step(2.0)
    return machine


def test_a_migration_without_trouble_takes_all_steps_in_order():
    machine = make_migration()
    assert machine.start(0.0) == [AskLock("down", ("q.2",)), AskLock("up", ("q.0",))]
    assert machine.locked("up", 0.1) == []
    assert machine.locked("down", 0.2) == [AskPrepare("there")]
    assert machine.prepared(0.3) == [Pause()]
    assert machine.paused(0.4) == [Transfer("there")]
    assert machine.transferred(0.5) == [Commit(), SendActivate("there"), SendMoved("down"), SendMoved("owner"), SendMoved("up")]
    assert machine.activated(0.6) == []
    assert machine.told("up", 0.6) == []
    assert machine.told("down", 0.7) == []
    assert machine.told("owner", 0.8) == [SendUnlock("down"), SendUnlock("up"), Ended(True, "", pytest.approx(0.3), 0.8)]
    assert machine.phase is Phase.COMMITTED


def test_without_neighbours_the_new_host_is_asked_at_once():
    assert make_migration({}).start(0.0) == [AskPrepare("there")]


@pytest.mark.parametrize("phase", [Phase.LOCKING, Phase.PREPARING, Phase.PAUSING, Phase.TRANSFERRING])
@pytest.mark.parametrize("cause", ["refused", "timeout", "there failed", "neighbour failed"])
def test_before_the_decision_any_failure_leaves_the_operator_where_it_was(phase: Phase, cause: str):
    machine = brought_to(phase)
    actions = {
        "refused": lambda: machine.refused("no room", 3.0),
        "timeout": lambda: machine.wake(10.0),
        "there failed": lambda: machine.failed("there", 3.0),
        "neighbour failed": lambda: machine.failed("up", 3.0),
    }[cause]()

    assert machine.phase is Phase.ABANDONED
    assert (Resume() in actions) == (phase in (Phase.PAUSING, Phase.TRANSFERRING))
    assert (SendAbandon("there") in actions) == (phase is not Phase.LOCKING)
    assert {SendUnlock("up"), SendUnlock("down")} <= set(actions)
    assert isinstance(actions[-1], Ended)
    assert not actions[-1].committed
    assert machine.transferred(11.0) == [], "a late answer changes nothing any more"
    assert machine.next_wake() is None


def test_after_the_decision_nothing_turns_it_back_and_words_are_repeated():
    machine = brought_to(Phase.COMMITTING)
    assert machine.refused("too late", 3.0) == []
    machine.told("up", 3.0)
    assert machine.wake(3.5) == [SendActivate("there"), SendMoved("down"), SendMoved("owner")]
    machine.activated(4.0)
    assert machine.wake(5.0) == [SendMoved("down"), SendMoved("owner")]


def test_after_the_decision_the_failed_are_not_waited_for():
    machine = brought_to(Phase.COMMITTING)
    machine.activated(3.0)
    machine.failed("up", 4.0)
    machine.told("owner", 4.0)
    actions = machine.failed("down", 5.0)
    assert isinstance(actions[-1], Ended)
    assert actions[-1].committed


def test_a_new_host_that_fails_after_the_decision_is_named():
    machine = brought_to(Phase.COMMITTING)
    for node in ("up", "down", "owner"):
        machine.told(node, 3.0)
    ended = machine.failed("there", 4.0)[-1]
    assert isinstance(ended, Ended)
    assert ended.reason == "there failed after the decision"


def test_locks_hold_until_released_or_their_lease_is_over():
    locks = Locks()
    locks.grant("q.1", ("q.0",), until=10.0)
    locks.grant("p.5", ("q.0", "q.9"), until=5.0)

    assert locks.held("q.0", 6.0)
    assert not locks.held("q.9", 6.0)
    locks.release("q.1")
    assert not locks.held("q.0", 6.0)


def test_an_arrival_takes_its_pieces_in_order_only():
    arrival = Arrival("q.1", 1, "here", 0.0, MigrationConfig())
    assert arrival.chunk(0, False, b"ab", 0.0) is None
    with pytest.raises(LocalProtocolError):
        arrival.chunk(2, True, b"ef", 0.0)
    assert arrival.chunk(1, True, b"cd", 0.0) == b"abcd"


def test_an_arrival_asks_once_a_period_when_it_hears_nothing():
    arrival = Arrival("q.1", 1, "here", 0.0, MigrationConfig(prepared_s=5.0))
    assert not arrival.must_ask(4.9)
    assert arrival.must_ask(5.0)
    assert not arrival.must_ask(6.0)
    assert arrival.must_ask(10.0)
