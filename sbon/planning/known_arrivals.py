"""`sbon plan latency`: how late the answers of a query would be over time, if its source gave given rows (Mace, sections VIII.2 and 3)."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from sbon.cost.latency_case import BURST_S
from sbon.cost.latency_prediction import predicted_latency
from sbon.cost.latency_series import covering, predicted_series
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.resources import NodeResources
from sbon.errors import ConfigError
from sbon.planning.capacity import at_rates
from sbon.planning.forecast import by_quarter
from sbon.planning.options import number
from sbon.types import FloatArray

QUARTERS_MAX = 4800
"""Most quarters of a second that are predicted at once: 20 minutes."""
ROWS_MAX = 1e9


def latency(query: PlacedQuery, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the latency of a query's answers, by intervals of `width` s, if its source gives so many rows in each quarter of a second
    (`arrivals`) and nodes are `speed` times as fast as measured."""
    rows = _rows(options)
    width_s = number(options, "width", 1.0, BURST_S, QUARTERS_MAX * BURST_S)
    if abs(width_s / BURST_S - round(width_s / BURST_S)) > 1e-9:
        raise ConfigError(f"width = {width_s:g}, expected a multiple of {BURST_S:g} s")
    speed = number(options, "speed", 1.0, 0.01, 100.0)
    if len(query.sources) != 1:
        raise ConfigError(f"the query has {len(query.sources)} sources, expected one: arrivals are those of one source")
    (source,) = query.sources
    expected = query.rows_per_s().get(source.id, 0.0)
    there = at_rates(query, sum(rows) / (len(rows) * BURST_S) / expected) if expected > 0 else query
    nodes = {name: _at_speed(node, speed) for name, node in there.nodes.items()}
    known = covering(msgspec.structs.replace(there, arrivals={source.id: by_quarter(rows)}, nodes=nodes))
    told, series = predicted_latency(known), predicted_series(known).by(width_s)
    return {
        **told.figures(),
        "text": told.text(),
        "intervals": {
            "width_s": series.width_s,
            "latest_ms": _ms(series.latest_s),
            "mace_ms": _ms(series.mace_s),
            "lower_ms": _ms(series.lower_s),
            "upper_ms": _ms(series.upper_s),
            "load_ms": _ms(series.load_s),
            "free_ms": _ms(series.free_s),
            "epsilon_ms": series.epsilon_s * 1e3,
        },
    }


def _at_speed(node: NodeResources, factor: float) -> NodeResources:
    """Returns a node that is so many times as fast."""
    speed = node.speed
    faster = msgspec.structs.replace(speed, value=speed.value * factor, low=speed.low * factor, high=speed.high * factor)
    return msgspec.structs.replace(node, speed=faster)


def _rows(options: Mapping[str, Any]) -> list[int]:
    """Returns the rows of each quarter of a second.

    Raises
    ------
    ConfigError
        There are none, too many, or one is no number of rows.
    """
    rows = options.get("arrivals")
    if not isinstance(rows, list) or not 1 <= len(rows) <= QUARTERS_MAX:
        raise ConfigError(f"arrivals: expected the rows of 1 to {QUARTERS_MAX} quarters of a second")
    for one in rows:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= ROWS_MAX:
            raise ConfigError(f"arrivals: {one!r}, expected whole numbers of rows from 0 to {ROWS_MAX:g}")
    if not any(rows):
        raise ConfigError("arrivals: no row at all, expected one at least")
    return rows


def _ms(values_s: FloatArray) -> list[float | None]:
    """Returns times in ms; None where they are infinite."""
    return [one * 1e3 if math.isfinite(one) else None for one in values_s.tolist()]
