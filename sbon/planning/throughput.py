"""`sbon plan throughput`: the order and placement that carry the profile with the least network usage, or as much of it as possible."""

from collections.abc import Mapping
from typing import Any

from sbon.cost.highest_rate import Rates, figures_of, profile_of, text_of
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.throughput import Profile
from sbon.errors import ConfigError, QueryError
from sbon.planning.arranging import best_order, configuration_of, plan_of
from sbon.query.catalog import did_you_mean
from sbon.query.params.source import SourceParams
from sbon.query.profiles import parse_profile, together
from sbon.query.text import describe
from sbon.search.rates import RatesPlacement
from sbon.types import NodeId

SOURCES_MAX = 500


def throughput(query: PlacedQuery, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rates that the query carries as placed, and in the best order and placement among all nodes that were asked.

    Raises
    ------
    ConfigError
        A profile is for a source that the query does not read, or is malformed.
    """
    profile = _profile(query, options.get("profile", {}))
    rates = Rates.settled(query, profile, nodes=sorted(query.nodes))
    plan = query.plan
    now = _described(rates, configuration_of(rates), declared=True)
    found = best_order(rates)
    best = _described(rates, found, declared=True)
    moved: dict[str, NodeId] = {
        spec.id: rates.nodes[node]
        for spec, node, before in zip(plan.operators, found.node_of.tolist(), rates.node_of.tolist(), strict=True)
        if node != before
    }
    ordered = plan_of(found)
    before = {spec.id: describe(spec.params) for spec in plan.operators}
    changed = {spec.id: describe(spec.params) for spec in ordered.operators if describe(spec.params) != before[spec.id]}
    return {
        "profile": {name: dict(points) for name, points in profile.items()},
        "now": now,
        "best": best,
        "moved": moved,
        "reordered": changed,
        "links": [link.id for link in ordered.links],
    }


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
