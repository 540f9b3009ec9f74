"""The parts that membership is made of, one at a time: who overrides whom, suspicion, timers, news, who is probed next, digests."""

import numpy as np

from sbon.membership import MemberStatus, make_digest, may_contain
from sbon.membership.broadcast import Broadcasts
from sbon.membership.members import overrides
from sbon.membership.messages import Alive, Left, Suspect, Vitals
from sbon.membership.sampling import ProbeOrder, RandomPeers, VitalsToTell
from sbon.membership.suspicion import LocalHealth, Suspicion, suspicion_timeout_s
from sbon.membership.timers import Timers

ALIVE, SUSPECT, FAILED, LEFT = MemberStatus.ALIVE, MemberStatus.SUSPECT, MemberStatus.FAILED, MemberStatus.LEFT


def test_statements_are_ordered_by_incarnation_and_then_by_rank():
    order = [(incarnation, status) for incarnation in (0, 1) for status in (ALIVE, SUSPECT, FAILED, LEFT)]
    for i, first in enumerate(order):
        for j, second in enumerate(order):
            assert overrides(*first, *second) is (i > j)


def test_a_suspects_time_shrinks_with_each_new_accuser():
    suspicion = Suspicion(0, "a", now=100.0, confirmations_max=3)
    assert suspicion.deadline_s(2.0, 6.0) == 106.0
    assert not suspicion.confirm("a")
    assert suspicion.confirm("b")
    assert suspicion.deadline_s(2.0, 6.0) == 104.0
    assert suspicion.confirm("c")
    assert suspicion.confirm("d")
    assert not suspicion.confirm("e")
    assert suspicion.deadline_s(2.0, 6.0) == 102.0
    assert suspicion_timeout_s(2.0, 6.0, 0, 0) == 2.0


def test_local_health_stays_between_its_bounds():
    health = LocalHealth(2)
    health.change(-1)
    assert health.factor == 1
    for _ in range(5):
        health.change(+1)
    assert health.factor == 3


def test_timers_come_due_in_order_and_can_move():
    timers = Timers()
    timers.set(("a", ""), 3.0)
    timers.set(("b", 1), 1.0)
    timers.set(("c", ""), 1.0)
    timers.set(("a", ""), 0.5)
    timers.cancel(("b", 1))
    assert timers.next() == 0.5
    assert [timers.pop_due(2.0), timers.pop_due(2.0), timers.pop_due(2.0)] == [("a", ""), ("c", ""), None]
    assert timers.next() is None
    timers.set(("x", ""), 1.0)
    timers.set(("y", ""), 2.0)
    timers.delay(frozenset({"x"}), 5.0)
    assert timers.next() == 2.0


def test_a_timer_that_was_put_off_does_not_come_at_its_old_time():
    timers = Timers()
    timers.set(("a", ""), 1.0)
    timers.set(("a", ""), 3.0)
    assert timers.next() == 3.0
    assert [timers.pop_due(2.0), timers.pop_due(3.0), timers.pop_due(4.0)] == [None, ("a", ""), None]


def test_news_is_told_newest_first_and_each_piece_a_bounded_number_of_times():
    news = Broadcasts()
    for name in ("x", "y", "z"):
        news.add(name, Left(name, 0))
    told = [item.name for _ in range(6) for item in news.take(1000, 1, 2)[0]]
    assert told[0] == "z"
    assert sorted(told) == ["x", "x", "y", "y", "z", "z"]
    assert sorted(told[:3]) == ["x", "y", "z"]
    assert len(news) == 0


def test_later_news_replaces_earlier_news_on_the_same_subject():
    news = Broadcasts()
    news.add("x", Suspect("x", 1, "a"))
    refuted = Alive("x", 2, 5, "10.0.0.2", 7946, {})
    news.add("x", refuted)
    assert news.take(1000, 9, 9)[0] == [refuted]


def test_news_that_does_not_fit_waits():
    news = Broadcasts()
    news.add("x", Left("x" * 60, 0))
    news.add("y", Left("y", 0))
    items, used = news.take(20, 9, 1)
    assert [item.name for item in items] == ["y"]
    assert used <= 20
    assert [item.name for item in news.take(100, 9, 1)[0]] == ["x" * 60]


def test_every_peer_is_probed_once_a_round():
    peers, order = RandomPeers(np.random.default_rng(1)), ProbeOrder(np.random.default_rng(2))
    for i in range(10):
        peers.add(str(i))
        order.add(str(i))
    first = [order.next(peers) for _ in range(10)]
    second = [order.next(peers) for _ in range(10)]
    assert sorted(first) == sorted(second) == [str(i) for i in range(10)]
    assert first != second
    peers.remove("3")
    assert "3" not in [order.next(peers) for _ in range(18)]
    for i in range(10):
        peers.remove(str(i))
    assert order.next(peers) is None


def test_a_peer_that_comes_and_goes_is_still_probed_once_a_round():
    peers, order = RandomPeers(np.random.default_rng(1)), ProbeOrder(np.random.default_rng(2))
    for i in range(4):
        peers.add(str(i))
        order.add(str(i))
    for _ in range(5):
        peers.remove("1")
        peers.add("1")
        order.add("1")
    assert sorted(order.next(peers) for _ in range(4)) == ["0", "1", "2", "3"]


def test_random_peers_are_different_and_never_the_excluded_one():
    peers = RandomPeers(np.random.default_rng(1))
    for i in range(30):
        peers.add(str(i))
    for _ in range(50):
        drawn = peers.draw(3, besides="7")
        assert len(set(drawn)) == 3
        assert "7" not in drawn
    assert peers.draw(0) == []
    assert sorted(RandomPeers(np.random.default_rng(1)).draw(3)) == []


def test_vitals_are_told_newest_first_and_not_to_their_owner():
    waiting = VitalsToTell()
    for name in "abcd":
        waiting.add(Vitals(name, 0, 0, b""))
    assert waiting.take(1, 1000, besides="c")[0].name == "d"
    assert {vitals.name for vitals in waiting.take(4, 1000, besides="c")} <= {"a", "b", "d"}
    assert waiting.take(4, 10, besides="") == []


def test_a_digest_finds_what_is_in_it_and_little_else():
    signatures = [f"operator {i}" for i in range(100)]
    digest = make_digest(signatures)
    assert digest == make_digest(reversed(signatures))
    assert len(digest) <= 256
    assert all(may_contain(digest, signature) for signature in signatures)
    assert sum(may_contain(digest, f"other {i}") for i in range(1000)) < 30
