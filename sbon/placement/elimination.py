"""Finds the assignment of least cost exactly, by min-plus variable elimination.

Variables have domains; costs are tables over one variable or over a pair. Eliminating a variable replaces all tables that mention it by one
table over its neighbours, with the least cost for each of their choices. On a tree of operators this is dynamic programming from the
leaves, variables x domain^2 additions; a cycle (a diamond in a plan) costs one more power of the domain, and wider graphs more. The next
variable is always the one with the least work.

Source: Dechter, "Bucket elimination", Artificial Intelligence 113, 1999.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sbon.errors import PlacementError
from sbon.types import FloatArray

BLOCK = 1 << 20
"""Most numbers in one intermediate array; larger tables are computed in slices."""
WORK_MAX = 4_000_000_000
"""Most additions for one variable, some seconds; more is refused."""
TABLE_MAX = 64_000_000
"""Most numbers in one table, 512 MB; more is refused."""


class _Table:
    """Costs over the variables of `scope`, one axis each."""

    def __init__(self, scope: tuple[int, ...], cost: FloatArray) -> None:
        self.scope = scope
        self.cost = cost

    def aligned(self, axes: tuple[int, ...]) -> FloatArray:
        """Returns the costs with one axis for each of `axes`, of length 1 for variables outside the scope."""
        order = sorted(range(len(self.scope)), key=lambda i: axes.index(self.scope[i]))
        shape = [self.cost.shape[self.scope.index(variable)] if variable in self.scope else 1 for variable in axes]
        return self.cost.transpose(order).reshape(shape)


def work(sizes: Sequence[int], pairs: Sequence[tuple[int, int]]) -> int:
    """Returns the additions for the most expensive variable, given the domain sizes and the pairs with costs."""
    neighbours: dict[int, set[int]] = {variable: set() for variable in range(len(sizes))}
    for a, b in pairs:
        neighbours[a].add(b)
        neighbours[b].add(a)
    most = 0
    while neighbours:
        variable = _next(neighbours, sizes)
        around = neighbours.pop(variable)
        most = max(most, math.prod(sizes[other] for other in around) * sizes[variable])
        for other in around:
            neighbours[other] = (neighbours[other] | around) - {variable, other}
    return most


def minimise(unary: Sequence[FloatArray], pairwise: Mapping[tuple[int, int], FloatArray]) -> tuple[list[int], float]:
    """Returns the choice of least total cost.

    Parameters
    ----------
    unary : (domain,) of each variable
        Cost of each of its choices; infinite if the choice is forbidden.
    pairwise : {(a, b): (domain of a, domain of b)}, a before b

    Returns
    -------
    list of int, float
        The index chosen for each variable, the first among equals, and the cost; infinite if nothing is allowed.

    Raises
    ------
    PlacementError
        The graph is too dense for an exact answer with domains of this size.
    """
    sizes = [len(costs) for costs in unary]
    neighbours: dict[int, set[int]] = {variable: set() for variable in range(len(sizes))}
    for a, b in pairwise:
        neighbours[a].add(b)
        neighbours[b].add(a)
    alone = list(unary)
    eliminated, total = _peel(alone, pairwise, neighbours)
    tables = [_Table((variable,), alone[variable]) for variable in neighbours]
    tables += [_Table(pair, costs) for pair, costs in pairwise.items() if pair[0] in neighbours and pair[1] in neighbours]
    while neighbours:
        variable = _next(neighbours, sizes)
        around = neighbours.pop(variable)
        mine = [table for table in tables if variable in table.scope]
        tables = [table for table in tables if variable not in table.scope]
        scope = tuple(sorted(around))
        cost, best = _eliminate(variable, scope, mine, sizes)
        eliminated.append((variable, scope, best))
        if scope:
            tables.append(_Table(scope, cost))
        else:
            total += float(cost)
        for other in scope:
            neighbours[other] = (neighbours[other] | around) - {variable, other}
    chosen = [0] * len(sizes)
    for variable, scope, best in reversed(eliminated):
        chosen[variable] = int(best[tuple(chosen[other] for other in scope)])
    return chosen, total


_Eliminated = tuple[int, tuple[int, ...], npt.NDArray[np.int64]]
"""A variable, its neighbours when it was eliminated, and its best choice for each of theirs."""


def _peel(
    alone: list[FloatArray], pairwise: Mapping[tuple[int, int], FloatArray], neighbours: dict[int, set[int]]
) -> tuple[list[_Eliminated], float]:
    """Eliminates trees and branches of cycles: a variable with one neighbour left is eliminated at once, without aligning tables.

    Their cost is added to `alone` of their neighbours, and they are removed from `neighbours`. Also returns the cost of whole trees.
    """
    eliminated: list[_Eliminated] = []
    total = 0.0
    leaves = [variable for variable, around in neighbours.items() if len(around) <= 1]
    for variable in leaves:  # the list grows during the loop
        around = neighbours.pop(variable)
        if not around:
            choice = int(alone[variable].argmin())
            total += float(alone[variable][choice])
            eliminated.append((variable, (), np.array(choice, dtype=np.int64)))
            continue
        (other,) = around
        costs = pairwise[other, variable] if other < variable else pairwise[variable, other].T
        if costs.size > TABLE_MAX:
            raise PlacementError(f"exact placement needs {costs.size:.2g} additions for one operator, expected at most {TABLE_MAX:.2g}")
        summed = costs + alone[variable]
        best = summed.argmin(axis=1).astype(np.int64, copy=False)
        alone[other] = alone[other] + summed[np.arange(len(best)), best]
        eliminated.append((variable, (other,), best))
        neighbours[other].discard(variable)
        if len(neighbours[other]) == 1:
            leaves.append(other)
    return eliminated, total


def _next(neighbours: Mapping[int, set[int]], sizes: Sequence[int]) -> int:
    return min(sorted(neighbours), key=lambda variable: math.prod(sizes[other] for other in neighbours[variable]) * sizes[variable])


def _eliminate(
    variable: int, scope: tuple[int, ...], tables: Sequence[_Table], sizes: Sequence[int]
) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Returns the least cost over the variable for each choice of `scope`, and the choice that gives it."""
    shape = tuple(sizes[other] for other in scope)
    elements = math.prod(shape)
    if elements * sizes[variable] > WORK_MAX or elements > TABLE_MAX:
        raise PlacementError(
            f"exact placement needs {elements * sizes[variable]:.2g} additions for one of {len(sizes)} operators, "
            f"expected at most {WORK_MAX:.2g}"
        )
    axes = (*scope, variable)
    aligned = [table.aligned(axes) for table in tables]
    if not scope or elements * sizes[variable] <= BLOCK:
        summed = _sum(aligned)
        best = np.broadcast_to(summed.argmin(axis=-1), shape)
        return np.take_along_axis(np.broadcast_to(summed, (*shape, sizes[variable])), best[..., None], -1)[..., 0], best
    cost = np.empty(shape)
    best = np.empty(shape, dtype=np.int64)
    slice_size = elements // shape[0] * sizes[variable]
    rows = max(1, BLOCK // slice_size)
    for first in range(0, shape[0], rows):
        part = slice(first, first + rows)
        summed = _sum([table[part] if table.shape[0] > 1 else table for table in aligned])
        cost[part] = summed.min(axis=-1)
        best[part] = summed.argmin(axis=-1)
    return cost, best


def _sum(aligned: Sequence[FloatArray]) -> FloatArray:
    total = aligned[0]
    for table in aligned[1:]:
        total = total + table
    return total
