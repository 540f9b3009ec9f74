"""`sbon plan capacity`: how late answers would be with more or fewer nodes, and at other rates."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sbon.cost.arrivals import Series
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.prediction import predict
from sbon.planning.options import number
from sbon.query.estimate import estimate

RATES_MAX = 1e6


def at_rates(query: PlacedQuery, factor: float) -> PlacedQuery:
    """Returns the query with all sources so many times as fast; windows keep their groups, joins find more pairs."""
    if factor == 1.0:
        return query
    faster = estimate(
        msgspec.structs.replace(
            query.plan,
            links=tuple(msgspec.structs.replace(link, rate_rows_per_s=link.rate_rows_per_s * factor) for link in query.plan.links),
        )
    )
    arrivals = {
        operator: Series(one.start_s, one.width_s, one.rows * factor, one.batches, one.size_bytes * factor)
        for operator, one in query.arrivals.items()
    }
    return msgspec.structs.replace(query, plan=faster, arrivals=arrivals)


def capacity(query: PlacedQuery, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the prediction at the rates asked for, beside that of now."""
    factor = number(options, "rates", 1.0, 1e-6, RATES_MAX)
    return {"rates": factor, "now": predict(query).explained(), "then": predict(at_rates(query, factor)).explained()}
