"""The best order and placement of a small query, by trying all of them."""

import math
from collections.abc import Iterator

import numpy as np

from sbon.search.interface import Budget, Record
from sbon.search.limit_loads import Prepared
from sbon.search.rates import RatesPlacement, Taken
from sbon.types import IntArray

ORDERS_MAX = 2000
CONFIGURATIONS_MAX = 200_000
"""Most configurations that are tried; a second or two."""
_TOGETHER = 8192


def exhaustive(configuration: RatesPlacement, budget: Budget, *, most: int = CONFIGURATIONS_MAX) -> Record[Taken] | None:
    """Tries all placements of all orders, whatever the budget; returns None if there are more than `most`.

    Source
    ------
    WhiteWater, section 5.2: the naive approach.
    """
    orders = _orders(configuration, most)
    if orders is None:
        return None
    record = Record(configuration, budget)
    for prepared in orders:
        _all_of(configuration, prepared, budget, record)
    return record.finish()


def exhaustive_two_phase(configuration: RatesPlacement, budget: Budget, *, most: int = CONFIGURATIONS_MAX) -> Record[Taken] | None:
    """Tries all orders as they are placed now, then all placements of the best of them; returns None if there are more than `most`.

    Source
    ------
    WhiteWater, section 6.1: two-phase exhaustive.
    """
    orders = _orders(configuration, most)
    if orders is None:
        return None
    record = Record(configuration, budget)
    node_of = configuration.node_of[None]
    values = [float(configuration.values_at(prepared, node_of)[0]) for prepared in orders]
    budget.spend(len(orders))
    _all_of(configuration, orders[int(np.argmin(values))], budget, record)
    return record.finish()


def _orders(configuration: RatesPlacement, most: int) -> list[Prepared] | None:
    placements = math.prod(len(hosts) for hosts in configuration.hosts)
    return configuration.known.reached_from(configuration.first, min(ORDERS_MAX, most // placements)) if placements <= most else None


def _all_of(configuration: RatesPlacement, prepared: Prepared, budget: Budget, record: Record[Taken]) -> None:
    for node_of in _placements(configuration.hosts):
        values = configuration.values_at(prepared, node_of)
        budget.spend(len(values))
        best = int(values.argmin())
        if values[best] < record.value:
            configuration.restore(Taken(prepared, node_of[best]))
            record.offer(float(values[best]))


def _placements(hosts: list[tuple[int, ...]]) -> Iterator[IntArray]:
    """Yields all placements, some thousand at a time."""
    counts = tuple(len(one) for one in hosts)
    total = math.prod(counts)
    for first in range(0, total, _TOGETHER):
        digits = np.unravel_index(np.arange(first, min(total, first + _TOGETHER)), counts)
        yield np.stack([np.array(one)[digit] for one, digit in zip(hosts, digits, strict=True)], axis=1)
