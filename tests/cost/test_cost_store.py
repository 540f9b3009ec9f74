"""The cost store of an agent: figures that it measures, reports, receives and keeps."""

import math

import msgspec
import pytest

from sbon.cost.figure import Source
from sbon.cost.resources import KERNEL_REFERENCE_NS
from sbon.cost.store import CostStore, Kept
from sbon.wire.costs import FigureTold, NodeTold, OperatorCosts

SPEED_2 = [KERNEL_REFERENCE_NS / 2] * 9


def measured(node: str = "n1") -> CostStore:
    cost_store = CostStore(node)
    cost_store.timed(SPEED_2)
    fit = cost_store.fit("map", 1, now=0.0)
    for rows in (100, 1_000, 10_000) * 30:
        fit.ports[0].took(rows, rows // 2, 50_000 + 20 * rows, at_s=1.0)
    return cost_store


def test_what_is_told_is_what_was_measured_in_ns_of_the_reference_machine() -> None:
    (told,) = measured().costs(["map", "map", "unknown"], now=1.0)

    assert told.signature == "map"
    assert told.ports[0].law.coefficients[0] == pytest.approx(2 * 50_000, rel=0.1)
    assert told.ports[0].selectivity.value == pytest.approx(0.5)
    other = CostStore("n2")
    other.hear("n1", None, (told,), now=1.0)
    known = other.statistics.of("map", 1.0)
    assert known is not None
    assert known.source is Source.MEASURED
    assert other.refused == 0


def test_absurd_figures_of_a_peer_are_refused_and_counted() -> None:
    (told,) = measured().costs(["map"], now=1.0)
    port = told.ports[0]
    free = msgspec.structs.replace(port, law=msgspec.structs.replace(port.law, coefficients=(0.0,) * 5))
    wide = msgspec.structs.replace(port, selectivity=FigureTold(value=1e9, low=1e9, high=1e9, source="measured"))
    turned = msgspec.structs.replace(port, selectivity=FigureTold(value=1.0, low=2.0, high=1.0, source="measured"))
    cost_store = CostStore("n2")

    for wrong in (free, wide, turned):
        cost_store.hear("n1", None, (msgspec.structs.replace(told, ports=(wrong,)),), now=1.0)
        assert not cost_store.statistics.brought("n1", msgspec.structs.replace(told, ports=(wrong,)), 1.0)

    assert cost_store.statistics.of("map", 1.0) is None
    assert cost_store.refused == 6


def test_absurd_nodes_and_nodes_that_speak_for_others_are_refused_whole() -> None:
    told = measured().own(2, 1e9, now=1.0)
    cost_store = CostStore("n2")

    cost_store.hear("n3", told, (), now=1.0)  # n3 reports about n1
    cost_store.hear("n1", msgspec.structs.replace(told, cores=1e9), (), now=1.0)
    assert cost_store.refused == 2
    assert cost_store.nodes.of("n1", 1.0).speed.source is Source.RULE

    cost_store.hear("n1", msgspec.structs.replace(told, bandwidths=(("n2", 1e6), ("n2", 0.0))), (), now=1.0)
    assert cost_store.nodes.of("n1", 1.0).cores == 2
    assert cost_store.bandwidths.of("n1", "n2", 1.0).value == 1e6
    assert cost_store.refused == 3


def test_an_uplink_is_believed_until_a_link_was_measured() -> None:
    told = CostStore("n1", uplink_bytes_per_s=2e6).own(2, 0.0, now=0.0)
    cost_store = CostStore("n2")
    cost_store.hear("n1", told, (), now=0.0)

    assert cost_store.bandwidths.of("n1", "n2", 0.0).value == 2e6


def test_what_a_node_can_bear_for_running_queries_counts_for_a_minute() -> None:
    told = measured().own(2, 0.0, now=1.0, spare_s=0.02)
    cost_store = CostStore("n2")
    cost_store.hear("n1", told, (), now=1.0)

    assert cost_store.nodes.has_bounded(60.0)
    assert cost_store.nodes.of("n1", 60.0).spare_s == 0.02
    assert not cost_store.nodes.has_bounded(62.0)
    assert cost_store.nodes.of("n1", 62.0).spare_s is None


def test_what_others_use_is_what_is_used_less_the_work_of_operators() -> None:
    cost_store = CostStore("n1")
    cost_store.sample(0.0, 1.5, {"a": 0})
    for second in range(1, 12):
        cost_store.sample(float(second), 1.5, {"a": second * 500_000_000, "new": 10**9})

    told = cost_store.own(2, 0.0, now=11.0)

    assert told.others is not None
    assert told.others.seconds[-1] == pytest.approx(1.0)


def test_work_that_counts_a_second_late_is_not_used_by_others() -> None:
    """A task of two seconds counts when it ends, while the core was busy in both."""
    cost_store = CostStore("n1")
    cost_store.sample(0.0, 0.0, {"a": 0})
    for second in range(1, 61):
        cost_store.sample(float(second), 1.0, {"a": second // 2 * 2 * 970_000_000})

    told = cost_store.own(1, 1e9, now=60.0)

    assert told.others is not None
    assert sum(told.others.seconds) / len(told.others.seconds) == pytest.approx(0.03, abs=0.02)


def test_what_operators_used_is_forgotten_when_they_are_gone() -> None:
    """A query that is predicted now does not run beside one that has ended. What other programs used stays."""
    cost_store = CostStore("n1")
    cost_store.sample(0.0, 1.5, {"a": 0, "b": 0})
    for second in range(1, 80):
        cost_store.sample(float(second), 1.5, {"a": second * 500_000_000, "b": second * 250_000_000})
    before = cost_store.own(2, 1e9, now=79.0)
    cost_store.sample(80.0, 1.0, {"b": 80 * 250_000_000})
    cost_store.sample(81.0, 1.0, {"b": 81 * 250_000_000})

    after = cost_store.own(2, 1e9, now=81.0)

    assert before.operators is not None
    assert before.operators.seconds == pytest.approx((0.75,) * 60)
    assert after.operators is not None
    assert after.operators.seconds == pytest.approx((0.25,) * 60)
    assert after.operators.tens == pytest.approx((0.25,) * len(after.operators.tens))
    assert after.operators.tens
    assert after.others is not None
    assert after.others.seconds == pytest.approx((0.75,) * 60)
    cost_store.sample(82.0, 1.0, {})
    cost_store.sample(83.0, 1.0, {})
    none = cost_store.own(2, 1e9, now=83.0)
    assert none.operators is not None
    assert max(none.operators.seconds) == 0.0


def test_an_agent_tells_what_it_uses_beside_its_operators() -> None:
    cost_store = CostStore("n1")
    cost_store.sample(0.0, 1.5, {"a": 0}, 0.6)
    for second in range(1, 12):  # the two clocks are not read at the same instant
        late = 0.4 if second % 2 else -0.4
        cost_store.sample(float(second), 1.5, {"a": second * 500_000_000}, 0.6 + late)

    told = cost_store.own(2, 0.0, now=11.0)
    heard = CostStore("n2")
    heard.hear("n1", told, (), now=11.0)

    assert told.agent == pytest.approx(0.1, abs=0.05)
    assert heard.nodes.of("n1", 11.0).agent == told.agent


def test_the_share_of_a_core_is_measured_now_and_then_while_others_are_busy() -> None:
    cost_store = CostStore("n1")
    cost_store.sample(0.0, 2.0, {"a": 0})
    asked = []
    for second in range(1, 26):
        cost_store.sample(float(second), 2.0, {"a": second * 500_000_000})
        asked += [second] if cost_store.wants_share(2, float(second)) else []
    assert asked == [1, 11, 21]
    cost_store.sample(26.0, 0.9, {"a": 26 * 500_000_000})
    assert not cost_store.wants_share(2, 40.0), "other programs leave most of the cores"

    assert cost_store.own(2, 0.0, now=26.0).share is None
    for share in (0.4, None, math.nan, 0.0, 1.5, 0.6):
        cost_store.shared_out(share)
    told = cost_store.own(2, 0.0, now=26.0)
    assert told.share is not None
    assert 0.5 < told.share < 0.6, "the latest share counts most"
    assert told.share_low == 0.0, "two measurements that differ say little about the least"
    heard = CostStore("n2")
    heard.hear("n1", told, (), now=26.0)
    assert heard.nodes.of("n1", 26.0).share == told.share


def test_what_operators_use_is_told_by_second() -> None:
    cost_store = CostStore("n1")
    spent_ns = 0
    for second, share in enumerate((0.0, 0.5, 0.0, 1.5, 0.0)):
        spent_ns += round(share * 1e9)
        cost_store.sample(float(second), 2.0, {"x": spent_ns})
    told = cost_store.own(2, 1e9, now=5.0)
    heard = CostStore("n2")
    heard.hear("n1", told, (), now=5.0)

    known = heard.nodes.of("n1", 5.0)
    assert known.operators is not None
    assert known.operators.seconds == pytest.approx((0.5, 0.0, 1.5))
    assert known.others is not None
    assert known.others.seconds == pytest.approx((1.5, 2.0, 0.5))


def test_kept_costs_are_as_old_as_they_are() -> None:
    kept = msgspec.json.decode(msgspec.json.encode(measured().kept(1.0, wall_s=1000.0)), type=Kept)
    cost_store = CostStore("n1")

    cost_store.restore(kept, now=5.0, wall_s=1000.0 + 86_400)

    known = cost_store.statistics.of("map", 5.0)
    assert known is not None
    assert known.ports[0].law.age_s == pytest.approx(86_400)
    assert cost_store.refused == 0


def test_timings_that_cannot_be_used_leave_the_rule() -> None:
    cost_store = CostStore("n1")
    cost_store.timed([math.nan] * 9)

    assert cost_store.speed.source is Source.RULE


def test_all_that_is_told_fits_the_wire() -> None:
    cost_store = measured()
    cost_store.sample(0.0, 1.0, {})
    cost_store.sample(1.0, 1.0, {})
    cost_store.sample(2.0, 1.0, {})
    told = cost_store.own(2, 1e9, now=2.0)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=NodeTold) == told
    (costs,) = cost_store.costs(["map"], now=2.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(costs), type=OperatorCosts) == costs
