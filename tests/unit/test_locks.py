"""Promises to keep still: they end by themselves, and only who holds one ends it."""

from sbon.locks import Locks


def test_promise_ends_with_its_time():
    locks = Locks()
    locks.grant("m", ("a", "b"), until=10.0, holder="h")

    assert locks.granted("m", ("a", "b"), now=9.9)
    assert locks.held("a", now=9.9)
    assert not locks.granted("m", ("a",), now=10.0)
    assert not locks.held("a", now=10.0)


def test_everything_asked_for_must_be_promised():
    locks = Locks()
    locks.grant("m", ("a",), until=10.0, holder="h")

    assert not locks.granted("m", ("a", "b"), now=1.0)
    assert not locks.granted("n", ("a",), now=1.0)


def test_late_word_of_a_former_holder_releases_nothing():
    locks = Locks()
    locks.grant("m", ("a",), until=10.0, holder="first")
    locks.grant("m", ("a",), until=20.0, holder="second")
    locks.release("m", "first")

    assert locks.held("a", now=15.0)
    locks.release("m", "second")
    assert not locks.held("a", now=15.0)


def test_release_ends_only_that_migration_s_promises():
    locks = Locks()
    locks.grant("m", ("a", "b"), until=10.0, holder="h")
    locks.grant("n", ("b",), until=10.0, holder="h")
    locks.release("m", "h")

    assert not locks.held("a", now=1.0)
    assert locks.held("b", now=1.0)


def test_expired_promises_leave_nothing_behind():
    locks = Locks()
    for number in range(100):
        locks.grant(f"m{number}", (f"a{number}",), until=10.0, holder="h")
    locks.expire(now=10.0)

    assert locks.__dict__ == Locks().__dict__
