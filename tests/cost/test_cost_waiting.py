"""Waits for a processor, as a series."""

import math

import msgspec
import pytest

from sbon.cost.figure import Edge
from sbon.cost.store import CostStore
from sbon.cost.waiting import WAIT_S_MAX, WaitRecorder, Waits
from sbon.errors import ShapeError
from sbon.wire.costs import WaitsTold


def test_a_batch_waits_for_the_event_loop_and_for_its_task():
    recorder = WaitRecorder()
    assert recorder.waits() is None
    for late_s in (0.0, 0.004, -1.0):
        recorder.late(late_s)
    for wait_s in (0.010, -0.5, 0.002):
        recorder.waited(wait_s)
    recorder.fold()

    waits = recorder.waits()
    assert waits is not None
    assert waits.mean_s == pytest.approx([0.004 / 3 + 0.012 / 3])
    assert waits.most_s == pytest.approx([0.010])


def test_without_tasks_the_event_loop_tells_what_one_would_have_waited():
    recorder = WaitRecorder()
    recorder.waited(0.5)
    recorder.fold()
    recorder.late(0.003)
    recorder.fold()
    recorder.fold()

    waits = recorder.waits()
    assert waits is not None
    assert waits.mean_s == pytest.approx([0.5, 0.006, 0.0])


def test_waits_are_kept_by_second_and_before_that_by_ten():
    recorder = WaitRecorder()
    for second in range(1_000):
        recorder.late(second / 1e6)
        recorder.late(second / 1e6 + 2e-6)
        recorder.fold()

    waits = recorder.waits()
    assert waits is not None
    # The plain twin: without tasks, a task is expected to wait as long as the event loop, so the mean lateness counts twice.
    mean_s = [2 * (second / 1e6 + 1e-6) for second in range(1_000)]
    most_s = [second / 1e6 + 2e-6 for second in range(1_000)]
    assert waits.mean_s == pytest.approx(mean_s[940:])
    assert waits.most_s == pytest.approx(most_s[940:])
    assert waits.mean_tens_s == pytest.approx([sum(mean_s[at : at + 10]) / 10 for at in range(0, 940, 10)][-60:])
    assert waits.most_tens_s == pytest.approx([max(most_s[at : at + 10]) for at in range(0, 940, 10)][-60:])


def test_what_is_expected_is_of_the_last_minute_and_bounds_are_of_all():
    waits = Waits((0.001, 0.003), (0.002, 0.009), (0.005,), (0.05,))

    assert [waits.usual_s(edge) for edge in (Edge.LOW, Edge.EXPECTED, Edge.HIGH)] == pytest.approx([0.001, 0.002, 0.005])
    assert [waits.longest_s(edge) for edge in (Edge.LOW, Edge.EXPECTED, Edge.HIGH)] == [0.002, 0.009, 0.05]


def test_rare_waits_lie_between_levels_by_the_logarithm_of_their_share():
    waits = Waits((0.0,), (0.0,), quantiles_s=(1.0, 2.0, 3.0, 5.0, 9.0))

    assert [waits.exceeded_s(share) for share in (1.0, 0.5, 0.1, 0.01, 0.001, 0.0001, 1e-9)] == pytest.approx([1, 1, 2, 3, 5, 9, 9])
    assert waits.exceeded_s(math.sqrt(0.01 * 0.001)) == pytest.approx(4.0)


def test_quantiles_are_of_the_latest_waits():
    recorder = WaitRecorder()
    for second in range(200):
        for rank in range(100):
            recorder.late((rank + 1) / 1e3 if second >= 130 else 5.0)
        recorder.fold()

    waits = recorder.waits()
    assert waits is not None
    assert [waits.exceeded_s(share) for share in (0.5, 0.1, 0.01)] == pytest.approx([0.05, 0.09, 0.099], rel=0.02)


@pytest.mark.parametrize(
    "wrong",
    [
        ((), ()),
        ((0.1,), ()),
        ((0.1,) * 61, (0.1,) * 61),
        ((0.1,), (0.1,), (0.1,), ()),
        ((-0.1,), (0.1,)),
        ((math.nan,), (0.1,)),
        ((0.1,), (2 * WAIT_S_MAX,)),
        ((0.1,), (0.1,), (), (), (0.1,) * 4),
        ((0.1,), (0.1,), (), (), (0.1, 0.2, 0.1, 0.3, 0.4)),
        ((0.1,), (0.1,), (0.1,), (math.inf,)),
    ],
)
def test_waits_that_no_node_can_have_are_refused(wrong):
    with pytest.raises(ShapeError):
        Waits(*wrong)


def test_a_node_tells_its_waits_and_absurd_ones_of_a_peer_are_refused_whole():
    cost_store, other = CostStore("a"), CostStore("b")
    other.waits.late(0.004)
    other.sample(0.0, 0.0, {})
    told = other.own(2, 1e9, 1.0)
    cost_store.hear("b", told, (), 1.0)
    assert cost_store.nodes.of("b", 1.0).usual_wait_s() == pytest.approx(0.008)

    cost_store.hear("b", msgspec.structs.replace(told, waits=WaitsTold((1e9,), (1e9,), quantiles_s=(0.0,) * 5)), (), 2.0)
    assert cost_store.refused == 1
    assert cost_store.nodes.of("b", 2.0).usual_wait_s() == pytest.approx(0.008)
