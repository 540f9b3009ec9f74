"""`sbon plan throughput`: the placement that carries the profile with the least network usage, or the most of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sbon.cost.highest_rate import Rates, figures_of, profile_of, text_of
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.throughput import Demand, Profile
from sbon.errors import ConfigError, QueryError
from sbon.query.catalog import did_you_mean
from sbon.query.plan import SourceParams
from sbon.query.profiles import parse_profile, together
from sbon.search.best_rates import ROUNDS, best_rates
from sbon.search.interface import Budget
from sbon.search.orders import Pair, Swap
from sbon.search.rates import RatesPlacement
from sbon.types import FloatArray, NodeId

SEED = 1
"""Of the search: the same question has the same answer."""
SOURCES_MAX = 500


class GivenOrder:
    """The order of a plan as searches see it, without any other."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self.work: FloatArray = demand.work.transpose(1, 0, 2)
        self.memory: FloatArray = demand.memory.transpose(1, 0, 2)
        self.key = 0

    def streams(self) -> tuple[list[tuple[int, int]], list[FloatArray]]:
        """Returns source and target of each link, and its bytes per second, (p, k)."""
        return [(source, target) for source, target in self._demand.ends.tolist()], list(self._demand.sent.transpose(1, 0, 2))

    def demand(self) -> Demand:
        """Returns what it asks."""
        return self._demand

    def moves(self) -> list[Pair]:
        """Returns no swaps."""
        return []

    def swap(self, pair: Pair) -> Swap:
        """Is never called."""
        raise NotImplementedError

    def sent_by(self, swap: Swap) -> list[FloatArray]:
        """Is never called."""
        raise NotImplementedError

    def swapped(self, swap: Swap) -> "GivenOrder":
        """Is never called."""
        raise NotImplementedError


def throughput(query: PlacedQuery, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the query carries as it is placed, and as it could be placed among all nodes that were asked.

    Raises
    ------
    ConfigError
        A profile is given for a source that the query does not read, or cannot be read.
    """
    profile = _profile(query, options.get("profile", {}))
    rates = Rates.settled(query, profile, nodes=sorted(query.nodes))
    plan = query.plan
    pinned = {spec.id: spec.pinned for spec in plan.operators}
    everywhere = tuple(range(len(rates.nodes)))
    hosts = [
        everywhere if pinned[spec.id] is None and spec.id not in query.shared else (int(rates.node_of[row]),)
        for row, spec in enumerate(plan.operators)
    ]
    order = GivenOrder(rates.demand)
    found = RatesPlacement(order, hosts, rates.supply, np.random.default_rng(SEED), rates.node_of, target=1.0)
    now = _described(rates, found, declared=True)
    best_rates(found, Budget(stale=ROUNDS), np.random.default_rng(SEED))
    best = _described(rates, found, declared=True)
    moved: dict[str, NodeId] = {
        spec.id: rates.nodes[node]
        for spec, node, before in zip(plan.operators, found.node_of.tolist(), rates.node_of.tolist(), strict=True)
        if node != before
    }
    return {"profile": {name: dict(points) for name, points in profile.items()}, "now": now, "best": best, "moved": moved}


def _described(rates: Rates, found: RatesPlacement, *, declared: bool) -> dict[str, Any]:
    limits = found.limits()
    return {
        **figures_of(limits, {}),
        "text": text_of(limits, declared=declared),
        "carries": bool(found.quality >= 1.0),
        "network_usage_bytes": found.usage,
        "node_of": {spec.id: rates.nodes[node] for spec, node in zip(rates.query.plan.operators, found.node_of.tolist(), strict=True)},
    }


def _profile(query: PlacedQuery, given: object) -> Profile:
    """Returns the profile of the query, with those given by source name in place of the declared ones."""
    if (
        not isinstance(given, Mapping)
        or not all(isinstance(one, str) for pair in given.items() for one in pair)
        or len(given) > SOURCES_MAX
    ):
        raise ConfigError(f"profile = {given!r}, expected a profile by source, such as {{'trades': '1000/s'}}")
    if not given:
        return profile_of(query)
    by_name: dict[str, list[str]] = {}
    for spec in query.plan.operators:
        if isinstance(spec.params, SourceParams):
            by_name.setdefault(spec.params.name, []).append(spec.id)
    points = {}
    for name, text in given.items():
        if name not in by_name:
            raise ConfigError(f"a profile for source {name!r}, which the query does not read; {did_you_mean(name, by_name)}")
        try:
            points.update(dict.fromkeys(by_name[name], parse_profile(text)))
        except QueryError as error:
            raise ConfigError(f"profile of {name}: {error.message}; {error.hint}") from None
    expected = next(iter(profile_of(query).values()))
    return {point.name: {**expected, **dict(point.rates)} for point in together(points)}
