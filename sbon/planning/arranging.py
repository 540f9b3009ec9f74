"""Searches for the order and placement of a query that carry its profile with the least network usage, else the most of it.

`sbon plan throughput` shows what is found, and admission (`sbon.planning.carrying`) has it run. Orders are those of `sbon.query.moves`:
each gives the same answer.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from sbon.cost.highest_rate import Rates
from sbon.cost.throughput import Limit
from sbon.planning.orders import PlanOrder
from sbon.planning.samples import known_shares
from sbon.query.estimate import estimate
from sbon.query.plan import Plan, SinkParams, SourceParams
from sbon.search.best_rates import ROUNDS, best_rates
from sbon.search.interface import Budget
from sbon.search.rates import RatesPlacement
from sbon.types import NodeId, OperatorId

SEED = 1
"""Seed of the search: the same question has the same answer."""


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
    rates: Rates, hosts: Mapping[OperatorId, Sequence[NodeId]] | None = None, *, target: float = 1.0, order: PlanOrder | None = None
) -> RatesPlacement:
    """Returns the query as it is placed, as a configuration for searches.

    Parameters
    ----------
    hosts : where operators may be beside where they are; all nodes if left out. Sources, sinks and what runs for others stay.
    target : multiple of the profile that is enough
    order : order at first; that of the query if left out
    """
    row = {node: number for number, node in enumerate(rates.nodes)}
    choices = []
    for spec, here in zip(rates.query.plan.operators, rates.node_of.tolist(), strict=True):
        # Filters are pinned to the nodes of their sources only because no other node is cheaper there.
        stays = isinstance(spec.params, SourceParams | SinkParams) or spec.id in rates.query.shared
        others = range(len(rates.nodes)) if hosts is None else [row[node] for node in hosts.get(spec.id, ()) if node in row]
        choices.append((here,) if stays else tuple(sorted({here, *others})))
    first = order if order is not None else PlanOrder(rates, rates.query.plan)
    return RatesPlacement(first, choices, rates.supply, np.random.default_rng(SEED), rates.node_of, target=target)


def search(configuration: RatesPlacement, evaluations: float = float("inf")) -> None:
    """Moves a configuration to the best one that is found."""
    best_rates(configuration, Budget(stale=ROUNDS, evaluations=evaluations), np.random.default_rng(SEED))


def arranged(rates: Rates, configuration: RatesPlacement) -> Arranged:
    """Returns the order and placement of a configuration, as a plan that can be deployed so."""
    order = configuration.at.order
    assert isinstance(order, PlanOrder)
    nodes = dict(zip(rates.demand.operators, (rates.nodes[number] for number in configuration.node_of.tolist()), strict=True))
    operators = tuple(
        msgspec.structs.replace(spec, pinned=None) if spec.pinned not in (None, nodes[spec.id]) else spec for spec in order.plan.operators
    )
    plan = msgspec.structs.replace(order.plan, operators=operators)
    if order.plan is not rates.query.plan:
        plan = estimate(plan, shares=known_shares(plan, lambda spec: rates.query.statistics.get(spec.id)))
    return Arranged(plan, nodes, configuration.limits())
