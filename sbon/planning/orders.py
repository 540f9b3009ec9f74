"""Presents one order of a real plan to searches for its placement, with its demand (`sbon.cost.highest_rate`). `sbon.planning.arranging`
tries one order after the other."""

from collections.abc import Sequence
from typing import NoReturn

from sbon.cost.highest_rate import Rates
from sbon.cost.throughput import Demand
from sbon.query.plan import Plan
from sbon.search.orders import Pair, Swap
from sbon.types import FloatArray


class PlanOrder:
    """One order of a plan, without exchanges.

    Parameters
    ----------
    first : rates of the plan as it was given
    plan : the same operators in this order
    """

    key = 0

    def __init__(self, first: Rates, plan: Plan) -> None:
        self.plan = plan
        self._demand = first.demand if plan is first.query.plan else Rates.of_order(first, plan).demand
        self.work: FloatArray = self._demand.work.transpose(1, 0, 2)
        self.memory: FloatArray = self._demand.memory.transpose(1, 0, 2)

    def streams(self) -> tuple[list[tuple[int, int]], list[FloatArray]]:
        """Returns source and target of each link, and its bytes per second, (p, k)."""
        return [(source, target) for source, target in self._demand.ends.tolist()], list(self._demand.sent.transpose(1, 0, 2))

    def demand(self) -> Demand:
        """Returns the demand of the order."""
        return self._demand

    def moves(self) -> Sequence[Pair]:
        """Returns no exchanges."""
        return ()

    def swap(self, pair: Pair) -> NoReturn:
        """Refuses an exchange."""
        raise LookupError(f"{pair} in an order that stays as it is")

    def sent_by(self, swap: Swap) -> NoReturn:
        """Refuses an exchange."""
        self.swap(swap.made)

    def swapped(self, swap: Swap) -> NoReturn:
        """Refuses an exchange."""
        self.swap(swap.made)
