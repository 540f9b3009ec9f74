"""Separates the work of operators by the way on which it comes to their nodes.

Rows of one stimulus time come to a union on several ways, and one way may be seconds later than another. The work that they bring is done
when each of them comes. If all of it counts as coming on the latest way, too much work competes with newer rows. So an operator becomes one
operator for each way; together they have its rows and its work.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from sbon.cost.load import Input, OperatorCost, Polynomial, Source, Upstream
from sbon.types import IntArray

WAYS_MAX = 8
"""Most ways of one operator. The number of ways doubles with each split of a stream whose halves meet again."""


class Ways(msgspec.Struct, frozen=True):
    """Operators by way."""

    operators: tuple[OperatorCost, ...]
    """(ways,), upstream first; a graph of its own."""
    of: IntArray
    """(ways,): the operator to which each belongs."""


def by_way(operators: Sequence[OperatorCost], node_of: IntArray, most: int = WAYS_MAX) -> Ways:
    """Returns operators that each have rows of one way only: of one stream from another node, or of the sources at their node.

    Rows of a product of inputs come when the later of both comes, and rows without inputs come on no way: operators with products or
    constants stay whole. So do operators with more than `most` ways.

    Parameters
    ----------
    operators : upstream first
    node_of : (operators,)

    Examples
    --------
    A union on node 1 reads one stream over node 0, and one from the source directly.

    >>> keep = Polynomial((1.0,))
    >>> union = OperatorCost((Source(0), Upstream(0)), Polynomial((1.0, 1.0)), Polynomial((2.0, 3.0)))
    >>> found = by_way([OperatorCost((Source(0),), keep, keep), union], np.array([0, 1]))
    >>> found.of.tolist(), [one.work.linear for one in found.operators]
    ([0, 1, 1], [(1.0,), (2.0,), (3.0,)])
    """
    made: list[OperatorCost] = []
    of: list[int] = []
    way_of: list[tuple[int, float]] = []
    parts: list[list[int]] = []
    for number, operator in enumerate(operators):
        ways: dict[tuple[int, float], list[tuple[int, Input]]] = {}
        for port, one in enumerate(operator.inputs):
            if isinstance(one, Source):
                ways.setdefault((-1, 0.0), []).append((port, one))
                continue
            is_local = one.delay_s == 0.0 and node_of[one.operator] == node_of[number]
            for part in parts[one.operator]:
                way = way_of[part] if is_local else (part, one.delay_s)
                ways.setdefault(way, []).append((port, Upstream(part, one.delay_s)))
        first = len(made)
        if len(ways) > most or (len(ways) > 1 and not _is_linear(operator)):
            ways = {(-2 - first, 0.0): [taken for way in ways.values() for taken in way]}
        for way, taken in ways.items():
            ports = [port for port, _ in taken]
            made.append(OperatorCost(tuple(one for _, one in taken), _of_ports(operator.rows, ports), _of_ports(operator.work, ports)))
            way_of.append(way)
            of.append(number)
        parts.append(list(range(first, len(made))))
    return Ways(tuple(made), np.array(of, dtype=np.int64))


def _is_linear(operator: OperatorCost) -> bool:
    return not any(one.products or one.constant for one in (operator.rows, operator.work))


def _of_ports(given: Polynomial, ports: list[int]) -> Polynomial:
    """Returns the polynomial of inputs that each bring a part of a port's rows."""
    products = tuple(
        (here, there, factor)
        for left, right, factor in given.products
        for here, port in enumerate(ports)
        for there, other in enumerate(ports)
        if (port, other) == (left, right)
    )
    return Polynomial(tuple(given.linear[port] for port in ports), products, given.constant)
