"""Capacities of nodes and of the network, and the share that others use."""

import math

import msgspec
import numpy as np
import pytest

from sbon.cost.figure import Edge, Source, around
from sbon.cost.latency import LatenciesOfPairs
from sbon.cost.resources import (
    BANDWIDTH_RULE,
    FAIR_SHARE,
    KERNEL_REFERENCE_NS,
    Bandwidths,
    Network,
    NodeBook,
    NodeResources,
    UseRecorder,
    UseSeries,
    kernel,
    speed_of,
)
from sbon.errors import ShapeError

SPEED = around(2.0, 0.2, Source.MEASURED, samples=20)


def test_the_kernel_does_the_same_work_each_time():
    assert kernel() == kernel()
    assert math.isfinite(kernel())


def test_speed_is_that_of_undisturbed_timings():
    calm = [KERNEL_REFERENCE_NS / 2] * 10
    found, disturbed = speed_of(calm), speed_of([*calm, *[KERNEL_REFERENCE_NS * 5] * 8])

    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)
    assert disturbed.value == 2.0
    assert speed_of([*calm[:3], *[KERNEL_REFERENCE_NS] * 6]).error > 0.3
    for timings in ([1.0] * 4, [1.0] * 9 + [0.0], [1.0] * 9 + [math.inf]):
        with pytest.raises(ShapeError):
            speed_of(timings)


def test_use_is_kept_by_second_and_before_that_by_ten():
    recorder = UseRecorder()
    assert recorder.series() is None
    for second in range(1_000):
        recorder.record(second + 0.2, second / 1_000)
        recorder.record(second + 0.7, second / 1_000)
    series = recorder.series()

    assert series is not None
    assert series.seconds == pytest.approx([second / 1_000 for second in range(939, 999)])
    assert len(series.tens) == 60
    # The plain twin: means over ten of the values that have left `seconds`, in order.
    left = [second / 1_000 for second in range(939)]
    tens = [sum(left[at : at + 10]) / 10 for at in range(0, 930, 10)][-60:]
    assert series.tens == pytest.approx(tens)


def test_a_pause_of_readings_repeats_the_last_and_nonsense_is_ignored():
    recorder = UseRecorder()
    recorder.record(10.0, 1.0)
    recorder.record(13.0, 3.0)
    recorder.record(12.0, 9.0)
    recorder.record(13.5, math.nan)
    recorder.record(13.5, -1.0)
    recorder.record(14.0, 0.0)
    series = recorder.series()

    assert series is not None
    assert series.seconds == (1.0, 1.0, 1.0, 3.0)


def test_coming_use_is_as_the_latest_and_its_bounds_are_those_of_stretches():
    series = UseSeries((0.0, 2.0, 0.0, 4.0), (1.0,))

    assert series.over(4, 1.0).tolist() == [0.0, 2.0, 0.0, 4.0]
    assert series.over(2, 2.0).tolist() == [1.0, 2.0]
    assert series.over(4, 0.5).tolist() == [0.0, 0.0, 4.0, 4.0]
    assert series.over(3, 2.0, Edge.HIGH).tolist() == [2.0, 2.0, 2.0]
    assert series.over(1, 1.0, Edge.LOW).tolist() == [0.0]
    # Only 14 s are known; before them the series repeats, so that it ends with the latest values.
    long = series.over(20, 1.0)
    assert long[-4:].tolist() == [0.0, 2.0, 0.0, 4.0]
    assert long[:6].tolist() == [1.0, 1.0, 0.0, 2.0, 0.0, 4.0]


def node(**changes: object) -> NodeResources:
    return NodeResources(**({"node": "n", "cores": 4.0, "speed": SPEED} | changes))  # type: ignore[arg-type]


def test_capacity_is_all_cores_at_their_speed_less_what_others_use():
    used = node(others=UseSeries((1.0, 3.0)))

    np.testing.assert_allclose(used.capacity_ns(2, 1.0), [6e9, 2e9])
    np.testing.assert_allclose(used.capacity_ns(2, 1.0, Edge.LOW), [1.0 * SPEED.low * 1e9] * 2)
    np.testing.assert_allclose(used.capacity_ns(2, 1.0, Edge.HIGH), [3.0 * SPEED.high * 1e9] * 2)
    fair = node(others=UseSeries((9.0,)))
    np.testing.assert_allclose(fair.capacity_ns(1, 1.0), [FAIR_SHARE * fair.cores * SPEED.value * 1e9])


def test_running_queries_take_their_part_of_the_capacity_and_bursts_of_both_coincide_or_not():
    apart = node(others=UseSeries((3.0, 0.0)), operators=UseSeries((0.0, 2.0)))
    at_once = node(others=UseSeries((3.0, 0.0)), operators=UseSeries((1.0, 0.0)))
    later = node(others=UseSeries((1.0, 1.0, 2.0), (1.0,)), operators=UseSeries((1.0,)))

    np.testing.assert_allclose(apart.capacity_ns(2, 1.0), [2e9, 4e9])
    np.testing.assert_allclose(apart.capacity_ns(2, 1.0, Edge.LOW), [1.0 * SPEED.low * 1e9] * 2)
    np.testing.assert_allclose(at_once.capacity_ns(2, 1.0), [FAIR_SHARE * 4 * SPEED.value * 1e9, 8e9])
    np.testing.assert_allclose(later.capacity_ns(3, 1.0), [6e9, 6e9, 2e9])
    assert UseSeries((1.0, 0.2), (3.0,)).less(0.5) == UseSeries((0.5, 0.0), (2.5,))


def test_others_that_never_pause_keep_no_more_than_their_share_beside_work_that_does_not_pause_either():
    beside = node(others=UseSeries((4.0, 1.0)), share=0.75)

    np.testing.assert_allclose(beside.capacity_ns(2, 1.0), [6e9, 6e9])
    np.testing.assert_allclose(beside.capacity_ns(2, 1.0, Edge.HIGH), [3.0 * SPEED.high * 1e9] * 2)
    np.testing.assert_allclose(beside.capacity_ns(2, 1.0, Edge.LOW), [FAIR_SHARE * 4 * SPEED.low * 1e9] * 2)
    np.testing.assert_allclose(node(others=UseSeries((0.5,)), share=0.75).capacity_ns(1, 1.0), [7e9])
    running = node(others=UseSeries((4.0,)), operators=UseSeries((1.5,)), share=0.75)
    np.testing.assert_allclose(running.capacity_ns(1, 1.0), [3e9])


def test_at_the_low_edge_others_keep_as_much_as_they_may():
    """Takes a node that gives work 0.75 of a core on average and 0.5 at least. Where the least is not told, all use by others counts."""
    beside = node(others=UseSeries((4.0, 1.0)), share=0.75, share_low=0.5, agent=0.1)

    np.testing.assert_allclose(beside.capacity_ns(2, 1.0, Edge.LOW), [1.9 * SPEED.low * 1e9] * 2)
    np.testing.assert_allclose(beside.capacity_ns(2, 1.0), [5.8e9, 6e9])
    idle = node(others=UseSeries((0.5,)), share=0.75, share_low=0.5)
    np.testing.assert_allclose(idle.capacity_ns(1, 1.0, Edge.LOW), [3.5 * SPEED.low * 1e9])


@pytest.mark.parametrize(("share", "least"), [(0.5, 0.6), (0.5, -0.1), (None, 0.1), (0.5, math.nan)])
def test_a_least_share_that_cannot_be_is_refused(share, least):
    with pytest.raises(ShapeError, match="of a core at least"):
        node(share=share, share_low=least)


def test_the_agent_keeps_what_it_uses_itself_whatever_other_programs_give_up():
    np.testing.assert_allclose(node(others=UseSeries((4.0,)), share=0.75, agent=0.5).capacity_ns(1, 1.0), [5e9])
    np.testing.assert_allclose(node(others=UseSeries((0.5,)), share=1.0, agent=0.5).capacity_ns(1, 1.0), [7e9])


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01, math.nan])
def test_a_share_of_a_core_that_cannot_be_is_refused(share):
    with pytest.raises(ShapeError, match="of a core"):
        node(share=share)


def test_use_that_is_not_told_widens_the_bounds():
    low, expected, high = (node().capacity_ns(1, 1.0, edge)[0] for edge in Edge)

    assert low == pytest.approx(2.0 * SPEED.low * 1e9)
    assert low < expected < high == pytest.approx(4.0 * SPEED.high * 1e9)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cores": 0.0}, "absurd"),
        ({"cores": math.inf}, "absurd"),
        ({"cores": 1e9}, "absurd"),
        ({"cores": "many"}, "malformed"),
        ({"memory_bytes": -1.0}, "absurd"),
        ({"speed": {"value": 1e6, "low": 1e6, "high": 1e6, "source": "measured"}}, "absurd"),
        ({"speed": {"value": 0.0, "low": 0.0, "high": 0.0, "source": "measured"}}, "absurd"),
        ({"speed": {"value": math.nan, "low": 0.0, "high": 1.0, "source": "measured"}}, "absurd"),
        ({"others": {"seconds": [math.nan]}}, "absurd"),
        ({"others": {"seconds": [-1.0]}}, "absurd"),
        ({"others": {"seconds": [1.0] * 61}}, "absurd"),
        ({"others": {"seconds": []}}, "absurd"),
        ({"operators": {"seconds": [math.inf]}}, "absurd"),
        ({"operators": {"seconds": [1e9]}}, "absurd"),
        ({"operators": {"seconds": [1.0], "tens": [1.0] * 61}}, "absurd"),
        ({"node": "other"}, "about another node"),
    ],
)
def test_hostile_resources_are_refused_and_counted(changes: dict[str, object], reason: str):
    book = NodeBook()
    plain = msgspec.to_builtins(node(others=UseSeries((1.0,))))
    assert book.told("n", plain, 0.0)
    assert not book.told("n", plain | changes, 0.0)

    assert book.refused == {reason: 1}
    assert book.of("n", 0.0).cores == 4.0


def test_a_node_that_has_told_nothing_is_one_core_by_rule_and_speeds_age():
    book = NodeBook()
    book.told("n", node(), 0.0)

    assert book.of("m", 0.0).speed.source is Source.RULE
    assert book.of("n", 86_400.0).speed.high > SPEED.high
    book.forget("n")
    assert book.of("n", 0.0).speed.source is Source.RULE


def test_bandwidth_is_measured_else_declared_else_a_rule():
    bandwidths = Bandwidths({"a": 1e6})
    for value in (2e6, 2.2e6, 1.8e6):
        bandwidths.measured("b", "a", value, at_s=0.0)
    for nonsense in (0.0, -1.0, math.nan, math.inf, 1e15):
        bandwidths.measured("b", "a", nonsense, at_s=0.0)
    bandwidths.measured("b", "b", 1.0, at_s=0.0)

    found = bandwidths.of("b", "a", 0.0)
    assert found.value == pytest.approx(2e6, rel=0.01)
    assert found.source is Source.MEASURED
    assert found.low < 1.85e6
    assert bandwidths.of("b", "a", 86_400.0).low < found.low
    assert bandwidths.of("a", "b", 0.0).source is Source.DECLARED
    assert bandwidths.of("b", "c", 0.0).value == BANDWIDTH_RULE
    assert bandwidths.of("b", "c", 0.0).source is Source.RULE
    assert bandwidths.refused == 6
    with pytest.raises(ShapeError):
        bandwidths.of("a", "a", 0.0)


def test_propagation_is_the_one_way_latency_in_seconds():
    network = Network(Bandwidths(), LatenciesOfPairs({("a", "b"): 40.0}))

    assert network.propagation_s("a", "b") == 0.04
    assert network.propagation_s("a", "a") == 0.0
