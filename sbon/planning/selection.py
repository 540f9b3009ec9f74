"""Chooses among equivalent plans of a query with `max_latency` the one whose answers are soonest, as predicted (Mace, section IX-A).

The exchanges of `sbon.query.moves` make equivalent plans: the order of joins, and filters below or above joins and windows. Each is
predicted where the first one was placed: operators keep their nodes, their ids and their costs per row. Exchanges are made one after the
other, the best first, as long as one pays. Operators whose costs are rules of thumb stay where they are, because rules cannot tell which of
two operators is more expensive.
"""

import msgspec

from sbon.cost.figure import Source
from sbon.cost.latency_prediction import likely_worst_s
from sbon.cost.placed_query import PlacedQuery
from sbon.planning.samples import known_shares
from sbon.query.estimate import estimate
from sbon.query.moves import moved, moves
from sbon.query.plan import Plan
from sbon.query.text import describe
from sbon.types import OperatorId

PREDICTED_MAX = 24
"""Most plans that are predicted for one query: a quarter of a second of one core if sources are even, a second if they have bursts."""
GAIN_LEAST = 0.05
"""Share of the worst case that an exchange must save: less is within the error of a prediction."""


class Selected(msgspec.Struct, frozen=True):
    """The plan to run."""

    plan: Plan
    note: str = ""
    """Text for people on what was exchanged and what it saves; empty if the plan is the one that was given."""


def selected(query: PlacedQuery) -> Selected:
    """Returns the equivalent plan that is predicted to answer soonest.

    Parameters
    ----------
    query : as placed without a bound
    """
    known = frozenset(spec.id for spec in query.plan.operators if query.statistics[spec.id].source is not Source.RULE)
    free = known - query.shared
    begun = best = likely_worst_s(query)
    here, tried = query, 1
    while tried < PREDICTED_MAX:
        found = None
        for move in moves(here.plan):
            if not {move.top, move.bottom} <= free or tried >= PREDICTED_MAX:
                continue
            tried += 1
            after = in_order(query, moved(here.plan, move))
            value = likely_worst_s(after)
            if _is_better(value, best):
                best, found = value, after
        if found is None:
            break
        here = found
    if here is query:
        return Selected(query.plan)
    return Selected(
        here.plan,
        f"operators exchanged, as predicted {_said(best)} instead of {_said(begun)}: {', '.join(exchanged(query.plan, here.plan))}",
    )


def in_order(query: PlacedQuery, plan: Plan) -> PlacedQuery:
    """Returns a placed query in another order of its operators, each on the node where it was and with its own costs.

    Rates of streams follow from the known or expected selectivities of their operators.
    """
    was = {spec.id: spec for spec in query.plan.operators}
    statistics = {}
    for spec in plan.operators:
        known = query.statistics[spec.id]
        same = spec.signature == was[spec.id].signature
        statistics[spec.id] = known if same else msgspec.structs.replace(known, row_bytes=None)
    shares = known_shares(plan, lambda spec: statistics[spec.id])
    return msgspec.structs.replace(query, plan=estimate(plan, shares=shares), statistics=statistics)


def _is_better(value: tuple[float, float], than: tuple[float, float]) -> bool:
    """Tells whether a load and worst case are better: overload first, then the worst case."""
    if value[0] != than[0]:
        return value[0] < than[0] * (1 - GAIN_LEAST)
    return value[1] < than[1] * (1 - GAIN_LEAST)


def _said(value: tuple[float, float]) -> str:
    return f"{value[0]:.2g} times the capacity" if value[0] > 1 else f"{value[1] * 1e3:.3g} ms at worst"


def exchanged(plan: Plan, other: Plan) -> list[str]:
    """Returns the operators of another order that read another stream than before."""
    before, after = _inputs(plan), _inputs(other)
    return [describe(spec.params) for spec in other.operators if after.get(spec.id) != before.get(spec.id)]


def _inputs(plan: Plan) -> dict[OperatorId, set[OperatorId]]:
    found: dict[OperatorId, set[OperatorId]] = {}
    for link in plan.links:
        found.setdefault(link.target, set()).add(link.source)
    return found
