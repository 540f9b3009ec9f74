"""A placed query whose answers would be late is placed elsewhere, with less computing and waiting, not only less network latency."""

from typing import Any

import msgspec
import numpy as np
import pytest

from sbon.cost.figure import Source, around
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.prediction import predict
from sbon.cost.resources import NodeResources
from sbon.optimiser.decision import CandidateView, Decision, PlacedOperator
from sbon.optimiser.placed import Placed, placed_as
from sbon.placement.config import PlacementConfig
from sbon.planning.latency_bound import placed_within
from sbon.types import NodeId
from tests.cost.test_latency_prediction import WINDOWED, measured_cost_store, query_of

NEAR, FAST, FAR = "near", "fast", "far"
ROW_NS = 1.5e6
"""Cost of a row at the window: 200 rows/s take 0.3 cores at reference speed, two thirds of a core on the slow node."""


def view(node: NodeId, usage: float, **more: Any) -> CandidateView:
    given = {"free_slots": 9, "answered": True} | more
    return CandidateView(node=node, usage_bytes=usage, predicted_usage_bytes=usage, measured=True, load_ms=0.0, runs=None, **given)


def slow_case(**at_fast: Any) -> tuple[Placed, PlacedQuery]:
    """Places a window on a slow node near its sources. A faster node is a little farther away, an even faster one very far."""
    first = query_of(WINDOWED)
    cost_store = measured_cost_store(first.plan, row_ns=0.0, window_ns=ROW_NS)
    query = query_of(WINDOWED, cost_store)
    free = [spec.id for spec in query.plan.operators if spec.pinned is None]
    speeds = {NEAR: 0.45, FAST: 2.0, FAR: 8.0}
    nodes = {
        name: NodeResources(
            node=name, cores=2.0, speed=around(speed, 0.01 * speed, Source.MEASURED, samples=9), others=query.nodes["b"].others
        )
        for name, speed in speeds.items()
    }
    ways_ms = {NEAR: 5.0, FAST: 8.0, FAR: 150.0}
    names = (*query.nodes, *nodes)
    one_way = {(a, b): max(ways_ms.get(a, 0.0), ways_ms.get(b, 0.0)) + 1.0 for a in names for b in names if a != b}
    network = query.network.__class__(query.network.bandwidths, _Ways(one_way), lambda source, target: True)  # type: ignore[arg-type]
    node_of = {**query.node_of, **dict.fromkeys(free, NEAR)}
    placed_at = msgspec.structs.replace(query, node_of=node_of, nodes={**query.nodes, **nodes}, network=network)
    views = (view(NEAR, 1.0), view(FAST, 1.5, **at_fast), view(FAR, 30.0))
    explanation = tuple(
        PlacedOperator(spec.id, node_of[spec.id], spec.pinned is not None, None, views if spec.id in free else ())
        for spec in query.plan.operators
    )
    decision = Decision(
        assignment=node_of,
        reused={},
        dropped=(),
        explanation=explanation,
        links=(),
        usage_here=0.0,
        usage_producer=None,
        usage_consumer=None,
        candidates_asked=3,
        rtts_measured=9,
    )
    return placed_as(query.plan, decision), placed_at


class _Ways:
    def __init__(self, one_way_ms: dict[tuple[NodeId, NodeId], float]) -> None:
        self._one_way_ms = one_way_ms

    def one_way_ms(self, source: NodeId, target: NodeId) -> float:
        return 0.0 if source == target else self._one_way_ms[source, target]


def within(placed: Placed, query: PlacedQuery, bound_ms: float) -> dict[str, NodeId] | None:
    return placed_within(placed, query, bound_ms, PlacementConfig(), np.random.default_rng(1))


def upper_ms(query: PlacedQuery, node_of: dict[str, NodeId]) -> float:
    return 1e3 * predict(msgspec.structs.replace(query, node_of=node_of), ()).latency.upper_s


def test_operators_that_are_late_on_a_slow_node_go_to_the_nearest_node_that_is_fast_enough() -> None:
    placed, query = slow_case()
    assert upper_ms(query, dict(query.node_of)) > 30_000

    found = within(placed, query, 700.0)

    assert found is not None
    assert upper_ms(query, found) <= 700.0
    free = [spec.id for spec in query.plan.operators if spec.pinned is None]
    assert FAR not in {found[operator] for operator in free}
    assert FAST in {found[operator] for operator in free}
    assert {operator: found[operator] for operator in found if operator not in free} == {
        spec.id: spec.pinned for spec in query.plan.operators if spec.pinned is not None
    }


def test_a_placement_within_its_bound_stays_and_one_that_no_candidate_can_keep_is_left_to_be_refused() -> None:
    placed, query = slow_case()
    late_ms = upper_ms(query, dict(query.node_of))

    assert within(placed, query, 1.01 * late_ms) is None
    assert within(placed, query, 20.0) is None


@pytest.mark.parametrize("at_fast", [{"free_slots": 0}, {"answered": False}])
def test_a_node_without_room_or_answer_is_no_option(at_fast: dict[str, Any]) -> None:
    placed, query = slow_case(**at_fast)

    found = within(placed, query, 700.0)

    assert found is not None
    assert FAST not in found.values()
    assert FAR in found.values()


def test_the_network_part_keeps_its_own_bound() -> None:
    """The path through the faster node takes 18 ms of network latency."""
    placed, query = slow_case()
    plan_to = [msgspec.structs.replace(query.plan, delay_bound_ms=bound_ms) for bound_ms in (17.0, 19.0)]

    assert within(placed, msgspec.structs.replace(query, plan=plan_to[0]), 700.0) is None
    assert within(placed, msgspec.structs.replace(query, plan=plan_to[1]), 700.0) is not None


def test_a_node_where_a_running_query_would_be_late_is_no_option() -> None:
    placed, query = slow_case()
    tight = {name: msgspec.structs.replace(node, spare_s=1e-6) if name == FAST else node for name, node in query.nodes.items()}

    found = within(placed, msgspec.structs.replace(query, nodes=tight), 700.0)

    assert found is not None
    assert FAST not in found.values()
    assert FAR in found.values()
