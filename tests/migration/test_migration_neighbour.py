"""A host keeps operators still while their neighbour moves. Promises expire, and only the holder of a promise can end it."""

from typing import Any

import pytest

from sbon.errors import MigrationError
from sbon.migration.neighbour import TABLE, Action, Grant, NameNext, Neighbour, Promise, Reach, UnnameNext
from sbon.wire.migration import Lock, Unlock

HERE = ("a", "b", "c")
LEASE_S = 10.0


def lock(
    machine: Neighbour, moving: str = "m", beside: tuple[str, ...] = ("a",), now: float = 0.0, holder: str = "h", **fields: Any
) -> list[Action]:
    leaving = fields.pop("leaving", ())
    given = {"operator": moving, "neighbours": beside, "coordinator": holder, "lease_s": LEASE_S, "there": "new", "epoch": 3}
    return machine.lock(Lock(**{**given, **fields}), beside, HERE, leaving, now)


def make_neighbour() -> Neighbour:
    return Neighbour("me", lease_s_max=60.0)


@pytest.mark.parametrize("promise", Promise)
@pytest.mark.parametrize(
    ("event", "moved"), [("lock", False), ("unlock", False), ("unlock", True), ("foreign unlock", False), ("lease over", False)]
)
def test_every_event_in_every_state_does_what_the_table_says(promise: Promise, event: str, moved: bool):
    machine = make_neighbour()
    if promise is Promise.LOCKED:
        lock(machine)
    actions: list[Action] = []
    now = LEASE_S if event == "lease over" else 1.0
    if event == "lock":
        actions = lock(machine, now=now)
    elif event != "lease over":
        actions = machine.unlock(Unlock("m", moved), "h" if event == "unlock" else "other")

    after = machine.promise("m", now)
    if TABLE.takes(promise, event.removeprefix("foreign ")):
        assert after in TABLE.rows[promise][event.removeprefix("foreign ")]
    else:
        assert after is promise
    expected: dict[tuple[Promise, str], tuple[Promise, list[Action]]] = {
        (Promise.FREE, "lock"): (Promise.LOCKED, [NameNext("m", "new", 3), Reach("new", grants=True)]),
        (Promise.LOCKED, "lock"): (Promise.LOCKED, [NameNext("m", "new", 3), Grant(), Reach("new", grants=False)]),
        (Promise.LOCKED, "unlock"): (Promise.FREE, [] if moved else [UnnameNext("m", "h")]),
        (Promise.LOCKED, "lease over"): (Promise.FREE, []),
    }
    assert (after, actions) == expected.get((promise, event), (promise, []))
    assert machine.keeps_still("a", now) == (after is Promise.LOCKED)


def test_a_host_that_sends_nothing_to_the_operator_or_is_not_told_where_it_goes_answers_at_once():
    machine = make_neighbour()
    assert lock(machine, sends=False) == [NameNext("m", "new", 3), Grant()]
    assert lock(machine, "n", there="", epoch=0) == [Grant()]


def test_a_lock_that_covers_more_than_before_waits_for_the_connection_again():
    machine = make_neighbour()
    lock(machine)
    assert Grant() not in lock(machine, beside=("a", "b"), now=1.0)
    assert Grant() in lock(machine, beside=("a",), now=2.0)
    assert Grant() not in lock(machine, now=2.0 + LEASE_S), "the promise had expired"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"neighbours": ("d",)}, "d is not on me"),
        ({"leaving": ("a",)}, "a is moving itself"),
        ({"neighbours": ("b",), "leaving": ("b",)}, "b is moving itself"),
        ({"lease_s": 60.5}, r"60 s at most \(migration\.lease_s_max\)"),
    ],
)
def test_a_refused_lock_changes_nothing(fields: dict[str, Any], why: str):
    machine = make_neighbour()
    lock(machine, "n", ("c",))
    with pytest.raises(MigrationError, match=why):
        lock(machine, **fields)
    assert (machine.holder("m"), machine.keeps_still("a", 1.0), machine.keeps_still("c", 1.0)) == (None, False, True)


def test_only_operators_with_a_link_to_the_moving_one_are_locked():
    machine = make_neighbour()
    assert lock(machine, beside=(), neighbours=("a",), there="", epoch=0) == [Grant()]
    assert not machine.keeps_still("a", 0.0)


def test_late_word_of_a_former_holder_releases_nothing():
    machine = make_neighbour()
    lock(machine, holder="first")
    lock(machine, now=5.0, holder="second")
    assert machine.unlock(Unlock("m"), "first") == []
    assert (machine.keeps_still("a", 14.0), machine.holder("m")) == (True, "second")
    assert machine.unlock(Unlock("m"), "second") == [UnnameNext("m", "second")]
    assert machine.unlock(Unlock("m"), "second") == [], "a repeated unlock"


def test_release_ends_only_that_migration_s_promises():
    machine = make_neighbour()
    lock(machine, "m", ("a", "b"))
    lock(machine, "n", ("b",), now=2.0)
    machine.unlock(Unlock("m"), "h")
    assert [machine.keeps_still(operator, 3.0) for operator in "ab"] == [False, True]
    assert not machine.keeps_still("b", 2.0 + LEASE_S)


def test_expired_promises_leave_nothing_behind():
    machine = make_neighbour()
    for number in range(100):
        lock(machine, f"m{number}")
    lock(machine, "last", now=LEASE_S)
    assert len(machine._given) == 1
