"""Orders of a real plan as searches see them: its moves (`sbon.query.moves`), and what each order asks (`sbon.cost.highest_rate`)."""

import hashlib

import numpy as np

from sbon.cost.highest_rate import Rates
from sbon.cost.throughput import Demand
from sbon.query.moves import Move, moved, moves
from sbon.query.plan import Plan
from sbon.search.orders import Pair, Swap
from sbon.types import FloatArray

Streams = tuple[list[tuple[int, int]], list[FloatArray]]


class PlanOrder:
    """One order of a plan.

    Parameters
    ----------
    first : rates of the plan as it was given
    plan : the same operators in this order
    exchanges : whether operators may be exchanged
    """

    def __init__(self, first: Rates, plan: Plan, *, exchanges: bool = True) -> None:
        self.plan, self._first = plan, first
        self._row = {operator: row for row, operator in enumerate(first.demand.operators)}
        terms = self.terms(first.query.plan)
        demand = first.demand if plan is first.query.plan else Rates.of_order(first, plan).demand
        self._demand = _widened(demand, terms)
        self.work: FloatArray = self._demand.work.transpose(1, 0, 2)
        self.memory: FloatArray = self._demand.memory.transpose(1, 0, 2)
        self.key = _key(plan)
        self._moves: dict[Pair, Move] | None = None if exchanges else {}
        self._after: dict[Pair, PlanOrder] = {}

    @staticmethod
    def terms(plan: Plan) -> int:
        """Returns the coefficients that polynomials of any order of a plan may have: each operator of two inputs multiplies rates."""
        return 2 + sum(spec.ports > 1 for spec in plan.operators)

    def streams(self) -> Streams:
        """Returns source and target of each link, and its bytes per second, (p, k)."""
        return [(source, target) for source, target in self._demand.ends.tolist()], list(self._demand.sent.transpose(1, 0, 2))

    def demand(self) -> Demand:
        """Returns what the order asks."""
        return self._demand

    def _named(self) -> dict[Pair, Move]:
        if self._moves is None:
            self._moves = {
                Pair(self._row[one.top], self._row[one.bottom], one.side): one
                for one in moves(self.plan)
                if not self._first.query.shared.intersection((one.top, one.bottom))
            }
        return self._moves

    def moves(self) -> list[Pair]:
        """Returns all moves, as pairs with the side of the lower operator."""
        return list(self._named())

    def _order_after(self, pair: Pair) -> "PlanOrder":
        if pair not in self._after:
            self._after[pair] = PlanOrder(self._first, moved(self.plan, self._named()[pair]))
        return self._after[pair]

    def swap(self, pair: Pair) -> Swap:
        """Returns what a move changes."""
        after = self._order_after(pair)
        changed = [row for row in range(len(self.work)) if not np.array_equal(self.work[row], after.work[row])]
        rows = tuple(changed) or (pair.top,)
        links = (*self.streams()[0], *after.streams()[0])
        return Swap(
            rows, tuple(after.work[row] for row in rows), tuple(after.memory[row] for row in rows), links, self.key ^ after.key, pair
        )

    def sent_by(self, swap: Swap) -> list[FloatArray]:
        """Returns the bytes per second of all streams that end (less than 0) and begin."""
        return [*(-sent for sent in self.streams()[1]), *self._order_after(swap.made).streams()[1]]

    def swapped(self, swap: Swap) -> "PlanOrder":
        """Returns the order after a move."""
        return self._order_after(swap.made)


def _key(plan: Plan) -> int:
    form = sorted([*(f"{spec.id} {spec.params!r}" for spec in plan.operators), *(link.id for link in plan.links)])
    return int.from_bytes(hashlib.blake2b("\n".join(form).encode(), digest_size=8).digest(), "big") >> 1


def _widened(demand: Demand, terms: int) -> Demand:
    """Returns the demand with as many coefficients as any order has, so that orders can be compared."""

    def wide(numbers: FloatArray) -> FloatArray:
        return np.pad(numbers, ((0, 0), (0, 0), (0, max(0, terms - numbers.shape[2]))))

    return Demand(
        operators=demand.operators,
        work=wide(demand.work),
        memory=wide(demand.memory),
        ends=demand.ends,
        sent=wide(demand.sent),
        tuple_ns=demand.tuple_ns,
        points=demand.points,
        chains=demand.chains,
    )
