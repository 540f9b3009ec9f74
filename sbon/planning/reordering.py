"""Finds out whether a running query would carry more, or cost less, in another order of its operators (docs/replanning.md).

Orders are searched as `sbon plan throughput` does (`sbon.planning.arranging`), at the rates, shares and costs that are measured now. The
present order counts in its best placement, because the local optimiser corrects the present placement. Another order must gain
`GAIN_LEAST`, because less is within the error of such a prediction, and a change is work.
"""

import msgspec

from sbon.cost.figure import Source
from sbon.cost.highest_rate import Rates
from sbon.cost.placed_query import PlacedQuery
from sbon.planning.arranging import EVALUATIONS, best_order, configuration_of, plan_of, search
from sbon.planning.selection import exchanged
from sbon.planning.sizing import ROOM
from sbon.query.link_bytes import row_bytes
from sbon.query.moves import moves
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import Plan
from sbon.search.rates import RatesPlacement

GAIN_LEAST = 0.2
"""Share that another order must carry more, or cost less."""


class Reordered(msgspec.Struct, frozen=True):
    """Result of a search."""

    plan: Plan | None
    """The plan in the better order; None if there is none."""
    text: str
    """Clause on what changes and what it gains, or on why the order stays."""


def reordered(query: PlacedQuery, *, to_carry: bool = False) -> Reordered:
    """Returns the plan in the best order, if it is better than the present one.

    Parameters
    ----------
    query : as it runs, with measured rates
    to_carry : True: the order stays if a placement of it carries the incoming rows
    """
    plan = query.plan
    if not moves(plan):
        return Reordered(None, "no two of its operators can be exchanged")
    inner = [spec for spec in plan.operators if not isinstance(spec.params, SourceParams | SinkParams)]
    if any(query.statistics[spec.id].source is Source.RULE for spec in inner):
        return Reordered(None, "the costs of its operators have not been measured yet; try again in a minute")
    expected = query.rows_per_s()
    rates = Rates.settled(query, {"": {spec.id: expected.get(spec.id, 0.0) for spec in query.sources}}, nodes=sorted(query.nodes))
    present = configuration_of(rates, target=ROOM)
    search(present, EVALUATIONS)
    if to_carry and not carries_more(present.quality, ROOM):
        return Reordered(None, "some placement of this order carries the incoming rows")
    best = best_order(rates, target=ROOM, evaluations=EVALUATIONS)
    if plan_of(best) is plan:
        return Reordered(None, "no other order of its operators is better")
    gained = gain((present.quality, present.usage), (best.quality, best.usage))
    if not gained:
        return Reordered(None, f"no other order of its operators is better by {GAIN_LEAST:.0%}")
    return Reordered(_with_rates(best), f"{', '.join(exchanged(plan, plan_of(best)))} exchanged {gained}")


def gain(present: tuple[float, float], other: tuple[float, float]) -> str:
    """Describes the gain of another order; empty if it is too small.

    Parameters
    ----------
    present, other : for each order, the multiple of the incoming rows that it carries (more than `ROOM` counts as `ROOM`), and its bytes in
        transit
    """
    carried, carries = min(present[0], ROOM), min(other[0], ROOM)
    if carries_more(present[0], other[0]):
        return f"to carry {other[0]:.2g} times the incoming rows instead of {present[0]:.2g} times"
    if carries >= carried and other[1] <= present[1] * (1 - GAIN_LEAST):
        return f"for {other[1]:,.0f} bytes in transit instead of {present[1]:,.0f}"
    return ""


def carries_more(present: float, other: float) -> bool:
    """Tells whether another order carries so much more that it is worth a change, given the multiples of the incoming rows."""
    return min(other, ROOM) >= min(present, ROOM) * (1 + GAIN_LEAST)


def _with_rates(configuration: RatesPlacement) -> Plan:
    """Returns the plan of an order with the rates of its links, as predicted."""
    plan, sent = plan_of(configuration), configuration.at.demand.sent.sum(axis=2).max(axis=0).tolist()
    schema = {spec.id: spec.schema for spec in plan.operators}
    links = tuple(
        msgspec.structs.replace(link, rate_bytes_per_s=each, rate_rows_per_s=each / max(1.0, row_bytes(schema[link.source])))
        for link, each in zip(plan.links, sent, strict=True)
    )
    return msgspec.structs.replace(plan, links=links)
