"""The migration machine, step by step: the operator moves, or stays as if nothing had been asked."""

import pytest

from sbon.migration.actions import (
    AskLock,
    AskPrepare,
    Commit,
    Copy,
    CopyMore,
    Ended,
    Pause,
    Resume,
    SendAbandon,
    SendActivate,
    SendMoved,
    SendUnlock,
    StopCopying,
    Transfer,
)
from sbon.migration.config import MigrationConfig
from sbon.migration.coordinator import TABLE, UNDECIDED, Migration, Phase

CONFIG = MigrationConfig(timeout_s=10.0, lease_s=20.0, retry_s=1.0, copy_timeout_s=100.0, rest_bytes=1000, rounds_max=3)
ARGUMENTS: dict[str, tuple[object, ...]] = {
    "locked": ("up", 0.0),
    "not_locked": ("up", "moves"),
    "copied": (0,),
    "paused": (("up",), ("owner",)),
    "told": ("up",),
    "disbelieved": ("up",),
    "refused": ("no room",),
    "failed": ("up",),
}
"""Arguments of the events, besides the time."""


def make_migration(neighbours: dict[str, tuple[str, ...]] | None = None) -> Migration:
    around = {"up": ("q.0",), "down": ("q.2",)} if neighbours is None else neighbours
    return Migration("q.1", "there", 1, around, ("owner",), CONFIG, now=0.0)


def brought_to(phase: Phase) -> Migration:
    machine = make_migration()
    machine.start(0.0)
    steps = [
        lambda: (machine.locked("up", 0.0, 1.0), machine.locked("down", 0.0, 1.0)),
        lambda: machine.prepared(2.0),
        lambda: (machine.copied(0, 2.0), machine.copied(0, 2.0)),
        lambda: machine.paused(("up", "down"), ("owner",), 2.0),
        lambda: machine.transferred(2.0),
        lambda: (machine.activated(2.0), *(machine.told(node, 2.0) for node in ("up", "down", "owner"))),
    ]
    if phase is Phase.ABANDONED:
        machine.refused("no room", 0.5)
        steps = []
    for step in steps:
        if machine.phase is phase:
            break
        step()
    assert machine.phase is phase
    return machine


def test_a_migration_without_trouble_takes_all_steps_in_order():
    machine = make_migration()
    assert machine.start(0.0) == [AskLock("down", ("q.2",)), AskLock("up", ("q.0",))]
    assert machine.locked("up", 0.0, 0.1) == []
    assert machine.locked("down", 0.0, 0.2) == [AskPrepare("there")]
    assert machine.prepared(0.3) == [Copy("there")]
    assert machine.progressed(0.35) == []
    assert machine.copied(50_000, 0.4) == [CopyMore()]
    assert machine.copied(900, 0.5) == [Pause()]
    assert machine.paused(("up", "down"), ("owner",), 0.6) == [Transfer("there")]
    assert machine.transferred(0.7) == [Commit(), SendActivate("there"), SendMoved("down"), SendMoved("owner"), SendMoved("up")]
    assert machine.activated(0.8) == []
    assert machine.told("up", 0.8) == []
    assert machine.told("down", 0.9) == []
    ended = Ended(True, "", pytest.approx(0.3), 1.0, pytest.approx(0.2), 1)
    assert machine.told("owner", 1.0) == [SendUnlock("down", moved=True), SendUnlock("up", moved=True), ended]
    assert machine.phase is Phase.COMMITTED


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", sorted(TABLE.events))
def test_every_event_in_every_phase_does_what_the_table_says(event: str, phase: Phase):
    """An event that a phase does not take is a late message of an earlier migration of the same operator, or a repeated one."""
    machine = brought_to(phase)
    more = {"unheard": False} if event == "not_locked" else {}

    actions = getattr(machine, event)(*ARGUMENTS.get(event, ()), 2.5, **more)

    if TABLE.takes(phase, event):
        assert machine.phase in TABLE.rows[phase][event]
    else:
        assert (actions, machine.phase) == ([], phase)


@pytest.mark.parametrize(
    ("event", "phase"),
    [
        ("start", Phase.LOCKING),
        ("prepared", Phase.PREPARING),
        ("progressed", Phase.COPYING),
        ("copied", Phase.COPYING),
        ("overtaken", Phase.COPYING),
        ("paused", Phase.PAUSING),
        ("transferred", Phase.TRANSFERRING),
        ("activated", Phase.COMMITTING),
        ("unknown_there", Phase.COMMITTING),
        ("told", Phase.COMMITTING),
        ("disbelieved", Phase.COMMITTING),
    ],
)
def test_each_step_belongs_to_one_phase(event: str, phase: Phase):
    """The list is written independently of the table, so that a mistake in the table shows."""
    assert [one for one in Phase if TABLE.takes(one, event)] == [phase]


@pytest.mark.parametrize("phase", UNDECIDED)
def test_an_answer_to_the_lock_that_does_not_come_ends_only_a_migration_without_locks(phase: Phase):
    machine = brought_to(phase)
    machine.not_locked("up", "no reply", 3.0, unheard=True)
    assert (machine.phase is Phase.ABANDONED) == (phase is Phase.LOCKING)


@pytest.mark.parametrize(
    ("left", "rounds"),
    [([0, 0], 1), ([10, 1000], 1), ([9000, 900], 1), ([9000, 5000, 100], 2), ([9000, 8000], 1), ([90_000, 9000, 6000, 4000], 3)],
    ids=["nothing left", "little left", "little after a round", "after two", "no longer shrinking", "rounds used up"],
)
def test_the_operator_pauses_when_another_round_would_not_help(left: list[int], rounds: int):
    machine = brought_to(Phase.COPYING)
    answers = [machine.copied(size, 3.0) for size in left]

    assert answers == [[CopyMore()]] * rounds + [[Pause()]]


def test_an_operator_that_is_given_more_than_is_kept_pauses_at_once():
    machine = brought_to(Phase.COPYING)
    assert machine.overtaken(3.0) == [Pause()]
    assert machine.overtaken(3.0) == []
    assert machine.copied(10**9, 3.0) == []


def test_a_copy_may_take_long_as_long_as_it_makes_progress():
    machine = brought_to(Phase.COPYING)
    for now in range(3, 60):
        machine.locked("up", float(now), float(now))
        machine.locked("down", float(now), float(now))
        machine.progressed(float(now))
        assert [action for action in machine.wake(float(now)) if not isinstance(action, AskLock)] == []
    assert machine.phase is Phase.COPYING
    assert isinstance(machine.wake(69.0)[-1], Ended)


def test_a_copy_that_never_ends_is_given_up():
    machine = brought_to(Phase.COPYING)
    for now in range(3, 100):
        for node in ("up", "down"):
            machine.locked(node, float(now), float(now))
        machine.progressed(float(now))
        machine.wake(float(now))
    assert isinstance(machine.wake(100.0)[-1], Ended)


def test_promises_are_renewed_and_without_them_nothing_is_decided():
    machine = brought_to(Phase.COPYING)
    assert machine.wake(5.0) == [AskLock("down", ("q.2",)), AskLock("up", ("q.0",))]
    for now in (5.0, 10.0, 14.0):
        machine.progressed(now)
        machine.locked("up", now, now)
        machine.wake(now)
    assert machine.phase is Phase.COPYING, "the last promise of down was at 0"
    assert machine.next_wake() == 15.0
    machine.copied(0, 14.5)
    machine.copied(0, 14.5)
    assert isinstance(machine.wake(15.0)[-1], Ended)


def test_those_who_came_during_the_copy_are_told_the_new_place():
    machine = brought_to(Phase.PAUSING)
    machine.paused(("up", "down", "newcomer"), ("owner", "other owner"), 3.0)
    told = {action.node for action in machine.transferred(4.0) if isinstance(action, SendMoved)}
    assert told == {"up", "down", "newcomer", "owner", "other owner"}


def test_without_neighbours_the_new_host_is_asked_at_once():
    assert make_migration({}).start(0.0) == [AskPrepare("there")]


@pytest.mark.parametrize("phase", UNDECIDED)
@pytest.mark.parametrize("cause", ["refused", "timeout", "there failed", "neighbour failed"])
def test_before_the_decision_any_failure_leaves_the_operator_where_it_was(phase: Phase, cause: str):
    machine = brought_to(phase)
    actions = {
        "refused": lambda: machine.refused("no room", 3.0),
        "timeout": lambda: machine.wake(12.0),
        "there failed": lambda: machine.failed("there", 3.0),
        "neighbour failed": lambda: machine.failed("up", 3.0),
    }[cause]()

    assert machine.phase is Phase.ABANDONED
    assert (Resume() in actions) == (phase in (Phase.PAUSING, Phase.TRANSFERRING))
    assert (StopCopying() in actions) == (phase in (Phase.COPYING, Phase.PAUSING, Phase.TRANSFERRING))
    assert (SendAbandon("there") in actions) == (phase is not Phase.LOCKING)
    assert {SendUnlock("up"), SendUnlock("down")} <= set(actions)
    assert isinstance(actions[-1], Ended)
    assert not actions[-1].committed
    assert machine.transferred(11.0) == [], "a late answer changes nothing"
    assert machine.next_wake() is None


@pytest.mark.parametrize("phase", UNDECIDED)
def test_before_the_decision_other_hosts_may_fail(phase: Phase):
    machine = brought_to(phase)
    assert machine.failed("somebody else", 3.0) == []
    assert machine.phase is phase


def test_a_lock_without_an_answer_ends_the_migration_and_a_renewal_without_one_does_not():
    assert isinstance(brought_to(Phase.LOCKING).not_locked("up", "no answer", 0.5, unheard=True)[-1], Ended)
    assert brought_to(Phase.PREPARING).not_locked("up", "no answer", 3.0, unheard=True) == []


@pytest.mark.parametrize("event", ["activated", "unknown_there"])
def test_the_new_host_may_be_the_last_to_answer(event: str):
    machine = brought_to(Phase.COMMITTING)
    for node in ("up", "down", "owner"):
        assert machine.told(node, 3.0) == []
    assert isinstance(getattr(machine, event)(4.0)[-1], Ended)
    assert machine.phase is Phase.COMMITTED


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


@pytest.mark.parametrize(("phase", "told"), [(Phase.PREPARING, "there has left"), (Phase.COMMITTING, "there has left after the decision")])
def test_a_node_that_leaves_in_good_order_has_not_failed(phase: Phase, told: str):
    machine = brought_to(phase)
    for node in ("up", "down", "owner"):
        machine.told(node, 3.0)
    ended = machine.failed("there", 4.0, left=True)[-1]
    assert isinstance(ended, Ended)
    assert ended.reason == told


def test_a_new_host_that_has_it_no_more_ends_a_decided_migration():
    machine = brought_to(Phase.COMMITTING)
    assert machine.unknown_there(3.0) == []
    assert SendActivate("there") not in machine.wake(4.0)
    for node in ("up", "down"):
        assert machine.told(node, 5.0) == []
    *_, ended = machine.told("owner", 6.0)
    assert isinstance(ended, Ended)
    assert ended.committed
    assert "no longer" in ended.reason


def test_before_the_decision_a_new_host_cannot_say_that_it_has_it_no_more():
    machine = brought_to(Phase.TRANSFERRING)
    assert machine.unknown_there(3.0) == []
    assert machine.phase is Phase.TRANSFERRING


def test_a_node_that_does_not_believe_the_new_place_is_not_told_for_ever():
    machine = brought_to(Phase.COMMITTING)
    machine.activated(3.0)
    machine.told("up", 3.0)
    machine.told("down", 3.0)
    ended = [machine.disbelieved("owner", 3.0 + tried) for tried in range(60)]
    assert [actions for actions in ended[:-1] if actions] == []
    assert machine.phase is Phase.COMMITTED
    assert ended[-1] == [SendUnlock("down", moved=True), SendUnlock("up", moved=True), Ended(True, "", 1.0, 62.0, 0.0, 1)]
