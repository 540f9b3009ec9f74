"""Searches for the order and placement of a query that carry its profile with the least network usage, else as much of the profile as
possible.

Orders are those of `sbon.query.moves`, each of which gives the same answer. As a rule an exchange pays only if operators also move to other
nodes, so that orders are compared in their best placements. The orders that one exchange makes of the best order are tried next, up to
`ORDERS_MAX` orders.

`sbon plan throughput` shows the result, admission (`sbon.planning.carrying`) lets it run, and a running query changes to it on request
(`sbon.planning.reordering`).
"""

import heapq
from collections.abc import Mapping, Sequence
from itertools import count

import msgspec
import numpy as np

from sbon.cost.highest_rate import Rates
from sbon.cost.throughput import Limit
from sbon.planning.orders import PlanOrder
from sbon.planning.samples import known_shares
from sbon.query.estimate import estimate
from sbon.query.moves import moved, moves, streams_of
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import Plan
from sbon.search.best_rates import ROUNDS, best_rates
from sbon.search.interface import Budget
from sbon.search.rates import RatesPlacement
from sbon.types import NodeId, OperatorId

SEED = 1
"""Seed of the search: the same question has the same answer."""
ORDERS_MAX = 60
"""Most orders that are tried: half a second of one core for three joins."""
EVALUATIONS = 5_000.0
"""Most placements of each order that are evaluated."""


class Arranged(msgspec.Struct, frozen=True):
    """An order and a placement."""

    plan: Plan
    node_of: dict[OperatorId, NodeId]
    limits: list[Limit]
    """The binding one first."""

    @property
    def quality(self) -> float:
        """Returns the multiple of the profile that it carries."""
        return self.limits[0].quality if self.limits else float("inf")


def configuration_of(
    rates: Rates, hosts: Mapping[OperatorId, Sequence[NodeId]] | None = None, *, target: float = 1.0, plan: Plan | None = None
) -> RatesPlacement:
    """Returns one order of the query as it is placed, as a configuration for searches.

    Parameters
    ----------
    hosts : further nodes on which operators may be; all nodes if left out. Sources, sinks and operators of other queries stay.
    target : multiple of the profile that is enough
    plan : the order; that of the query if left out
    """
    row = {node: number for number, node in enumerate(rates.nodes)}
    choices = []
    for spec, here in zip(rates.query.plan.operators, rates.node_of.tolist(), strict=True):
        # Filters are pinned to the nodes of their sources only because no other node is cheaper there.
        stays = isinstance(spec.params, SourceParams | SinkParams) or spec.id in rates.query.shared
        others = range(len(rates.nodes)) if hosts is None else [row[node] for node in hosts.get(spec.id, ()) if node in row]
        choices.append((here,) if stays else tuple(sorted({here, *others})))
    order = PlanOrder(rates, rates.query.plan if plan is None else plan)
    return RatesPlacement(order, choices, rates.supply, np.random.default_rng(SEED), rates.node_of, target=target)


def plan_of(configuration: RatesPlacement) -> Plan:
    """Returns the order of a configuration."""
    order = configuration.at.order
    assert isinstance(order, PlanOrder)
    return order.plan


def search(configuration: RatesPlacement, evaluations: float = float("inf")) -> None:
    """Changes a configuration to the best placement that is found for its order."""
    best_rates(configuration, Budget(stale=ROUNDS, evaluations=evaluations), np.random.default_rng(SEED))


def best_order(
    rates: Rates,
    hosts: Mapping[OperatorId, Sequence[NodeId]] | None = None,
    *,
    target: float = 1.0,
    evaluations: float = float("inf"),
) -> RatesPlacement:
    """Returns the best order that is found, in its best placement that is found.

    Parameters
    ----------
    hosts, target : as for `configuration_of`
    evaluations : most placements of the best order that are evaluated
    """

    def placed(plan: Plan) -> RatesPlacement:
        found = configuration_of(rates, hosts, target=target, plan=plan)
        search(found, min(EVALUATIONS, evaluations))
        return found

    best = placed(rates.query.plan)
    numbers, seen = count(), {streams_of(rates.query.plan)}
    waiting = [(_worth(best), next(numbers), best)]
    while waiting and len(seen) < ORDERS_MAX:
        _, _, here = heapq.heappop(waiting)
        for move in moves(plan_of(here)):
            plan = moved(plan_of(here), move)
            if streams_of(plan) in seen or len(seen) >= ORDERS_MAX or not rates.query.shared.isdisjoint((move.top, move.bottom)):
                continue
            seen.add(streams_of(plan))
            other = placed(plan)
            heapq.heappush(waiting, (_worth(other), next(numbers), other))
            best = min(best, other, key=_worth)
    search(best, evaluations)
    return best


def _worth(configuration: RatesPlacement) -> tuple[bool, float]:
    """Returns a key that sorts configurations of any orders, the best first."""
    quality = configuration.quality
    return (False, configuration.usage) if quality >= configuration.target else (True, -quality)


def arranged(rates: Rates, configuration: RatesPlacement) -> Arranged:
    """Returns the order and placement of a configuration, as a plan to deploy."""
    plan = plan_of(configuration)
    nodes = dict(zip(rates.demand.operators, (rates.nodes[number] for number in configuration.node_of.tolist()), strict=True))
    operators = tuple(
        msgspec.structs.replace(spec, pinned=None) if spec.pinned not in (None, nodes[spec.id]) else spec for spec in plan.operators
    )
    is_exchanged = plan is not rates.query.plan
    plan = msgspec.structs.replace(plan, operators=operators)
    if is_exchanged:
        plan = estimate(plan, shares=known_shares(plan, lambda spec: rates.query.statistics.get(spec.id)))
    return Arranged(plan, nodes, configuration.limits())
