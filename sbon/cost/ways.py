"""Separates the work of operators by the way on which it comes to their nodes.

A way is a path of nodes. Rows of one stimulus time come to a union on several ways, and one way may be seconds later than another. The work
of each row is done when the row comes: if all of it counted as coming on the latest way, too much work would compete with newer rows. So an
operator becomes one operator for each way; together they have its rows and its work.

A window or a join also works on each row when it comes. But it answers when the last of its rows has come. So it becomes one operator for
the work of each way, and one that comes last: it has all rows out, and the work that depends on them.
"""

from collections.abc import Collection, Sequence
from enum import Enum

import msgspec
import numpy as np

from sbon.cost.load import Input, OperatorCost, Polynomial, Source, Upstream
from sbon.types import IntArray

WAYS_MAX = 8
"""Most ways of one operator. The number of ways doubles with each split of a stream whose halves meet again."""


class Role(Enum):
    """The part that a way has in the rows and the work of its operator."""

    ALL = 0
    """Rows and work of the rows that come on it."""
    WORK = 1
    """Work of the rows that come on it; another way has the rows out."""
    REST = 2
    """All rows out, and work that no single way brings. Its first inputs are those of the operator, the others are its ways with `WORK`."""


class Ways(msgspec.Struct, frozen=True):
    """Operators by way."""

    operators: tuple[OperatorCost, ...]
    """(ways,), upstream first; a graph of its own."""
    of: IntArray
    """(ways,): the operator to which each belongs."""
    ports: tuple[tuple[int, ...], ...]
    """For each input of each way, the input of its operator of which it has a part."""
    roles: tuple[Role, ...]
    """(ways,): the part that each has in its operator."""


def by_way(operators: Sequence[OperatorCost], node_of: IntArray, most: int = WAYS_MAX, answering_late: Collection[int] = ()) -> Ways:
    """Returns operators that each have rows of one way only: of one stream from another node, or of the sources at their node.

    Rows of a product of inputs, and those of a constant, come when the last of the inputs comes (`Role.REST`). Operators with more than
    `most` ways stay whole.

    Parameters
    ----------
    operators : upstream first
    node_of : (operators,)
    answering_late : operators whose rows come when the last of the inputs comes, beside those with products or constants

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
    ports: list[tuple[int, ...]] = []
    roles: list[Role] = []
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
        whole = [taken for way in ways.values() for taken in way]
        if len(ways) > most:
            ways = {(-2 - first, 0.0): whole}
        is_late = len(ways) > 1 and (number in answering_late or not (_is_linear(operator.rows) and _is_linear(operator.work)))
        apart = [(way, taken, Role.WORK if is_late else Role.ALL) for way, taken in ways.items()]
        if is_late:
            apart.append(((-2 - first, 0.0), whole, Role.REST))
        for way, taken, role in apart:
            ports.append(tuple(port for port, _ in taken))
            made.append(_part_of(operator, taken, role, tuple(Upstream(one) for one in range(first, len(made)))))
            roles.append(role)
            way_of.append(way)
            of.append(number)
        parts.append([one for one in range(first, len(made)) if roles[one] is not Role.WORK])
    return Ways(tuple(made), np.array(of, dtype=np.int64), tuple(ports), tuple(roles))


def _part_of(operator: OperatorCost, taken: Sequence[tuple[int, Input]], role: Role, before: tuple[Upstream, ...]) -> OperatorCost:
    """Returns the operator of one way.

    Parameters
    ----------
    taken : its inputs, each with the input of the operator of which it has a part
    before : ways whose work comes before the rest
    """
    ports, inputs = [port for port, _ in taken], tuple(one for _, one in taken)
    if role is Role.ALL:
        return OperatorCost(inputs, _of_ports(operator.rows, ports), _of_ports(operator.work, ports))
    none = Polynomial((0.0,) * len(ports))
    work = Polynomial(tuple(operator.work.linear[port] for port in ports))
    if role is Role.WORK:
        return OperatorCost(inputs, none, work)
    rows, rest = _of_ports(operator.rows, ports), msgspec.structs.replace(_of_ports(operator.work, ports), linear=none.linear)
    more = (0.0,) * len(before)
    rows, rest = (msgspec.structs.replace(one, linear=one.linear + more) for one in (rows, rest))
    return OperatorCost(inputs + before, rows, rest)


def _is_linear(given: Polynomial) -> bool:
    return not (given.products or given.constant)


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
