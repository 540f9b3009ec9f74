"""Finds the placement of least cost whose answers keep within a latency bound, where computing and waiting count beside the network.

The upper bound of the latency comes from a model (`Judge`), because it is no sum over links and hosts. Placements are tried in the order of
their cost, so that the first one within the bound is the best; if all could be tried and none keeps within the bound, there is none. If
there are too many, half of the trials go to the cheapest. Then hill climbing takes operators from the node that is furthest behind (Mace,
section IX-B, figure 11) until the bound is kept, and from then on makes cheaper moves that keep it.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec
import numpy as np

from sbon.errors import ShapeError
from sbon.search.interface import Budget
from sbon.search.strategies import climb_from_arranged
from sbon.types import FloatArray, IntArray, NodeId

ENUMERATED_MAX = 20_000
"""Most placements whose costs and shortest paths are computed, to find out whether all that may be in time can be judged."""
OUTSIDE = 1e30
"""Value of a placement that just exceeds the bound: any within it is better, whatever it costs."""
LATEST = 1e6
"""Greatest latency outside the bound that is told apart, as a multiple of the bound."""
GROUP = 4
"""Moves that are judged before the best of them is made."""


class Judge(Protocol):
    """Tells how late answers can be."""

    def __call__(self, nodes: tuple[NodeId, ...]) -> tuple[float, Mapping[NodeId, float]]:
        """Returns the upper bound of the latency in s, infinite if there is none, and by how many s of work each node is behind: this never
        exceeds the bound, and never falls with more operators."""


class Choices(msgspec.Struct, frozen=True):
    """The nodes that each operator of a query may be on, operators upstream first.

    Raises
    ------
    ShapeError
        The parts do not fit together.
    """

    nodes: tuple[NodeId, ...]
    """(nodes,): all that are an option of some operator."""
    options: tuple[tuple[int, ...], ...]
    """For each operator the nodes that it may be on, as rows of `nodes`, the present one first; a pinned one has a single option."""
    host_cost: tuple[tuple[float, ...], ...]
    """Cost of each option without its links."""
    links: tuple[tuple[int, int], ...]
    """Source and target of each link."""
    link_cost: FloatArray
    """(links, nodes, nodes): cost of a link from each node to each."""
    least_s: FloatArray
    """(nodes, nodes): least time that the way from each node to each takes of the bound."""
    delays_s: tuple[float, ...] = ()
    """Least time that rows have taken before each operator; 0 if left out."""
    room: Mapping[NodeId, int] = {}
    """Operators for which a node has room; a node that is left out has enough."""
    roomless: frozenset[int] = frozenset()
    """Operators that need no room, because they run already."""

    def __post_init__(self) -> None:
        count = len(self.nodes)
        if self.link_cost.shape != (len(self.links), count, count) or self.least_s.shape != (count, count):
            raise ShapeError(f"{self.link_cost.shape} and {self.least_s.shape}, expected {len(self.links)} links between {count} nodes")
        if [len(one) for one in self.options] != [len(one) for one in self.host_cost] or not all(self.options):
            raise ShapeError("options and their costs differ in number, or an operator has none")
        if any(source >= target for source, target in self.links):
            raise ShapeError("a link leads upstream, expected operators in the order of their links")

    @property
    def count(self) -> int:
        """Returns the number of placements."""
        return math.prod(len(one) for one in self.options)

    def all(self) -> IntArray:
        """Returns all placements as rows of options: (placements, operators)."""
        grids = np.meshgrid(*(np.arange(len(one)) for one in self.options), indexing="ij")
        return np.stack([grid.ravel() for grid in grids], axis=1)

    def cost(self, chosen: IntArray) -> FloatArray:
        """Returns the costs of placements; infinite where a node has no room: (placements,)."""
        where = self._where(chosen)
        found = np.zeros(len(chosen))
        for operator, costs in enumerate(self.host_cost):
            found += np.array(costs)[chosen[:, operator]]
        for number, (source, target) in enumerate(self.links):
            found += self.link_cost[number, where[:, source], where[:, target]]
        coming = where[:, [operator for operator in range(len(self.options)) if operator not in self.roomless]]
        for node, slots in self.room.items():
            found[(coming == self.nodes.index(node)).sum(axis=1) > slots] = math.inf
        return found

    def ways_s(self, chosen: IntArray) -> FloatArray:
        """Returns the least time in s of the longest path of each placement: (placements,)."""
        where = self._where(chosen)
        delays = self.delays_s or (0.0,) * len(self.options)
        reached = np.broadcast_to(np.array(delays), where.shape).copy()
        for source, target in sorted(self.links, key=lambda link: link[1]):
            way = reached[:, source] + self.least_s[where[:, source], where[:, target]]
            reached[:, target] = np.maximum(reached[:, target], way)
        found: FloatArray = reached.max(axis=1)
        return found

    def named(self, chosen: IntArray) -> tuple[NodeId, ...]:
        """Returns the node of each operator in one placement, (operators,)."""
        return tuple(self.nodes[options[choice]] for options, choice in zip(self.options, chosen.tolist(), strict=True))

    def _where(self, chosen: IntArray) -> IntArray:
        columns = [np.array(options)[chosen[:, operator]] for operator, options in enumerate(self.options)]
        return np.stack(columns, axis=1)


def least_cost_within(
    choices: Choices, judge: Judge, bound_s: float, rng: np.random.Generator, *, judged_max: int
) -> tuple[NodeId, ...] | None:
    """Returns the node of each operator in the placement of least cost within the bound; None if none was found.

    Parameters
    ----------
    judged_max : most placements that are judged. If no more can be in time at all, the result is exact

    Source
    ------
    Mace (Chandramouli et al., ICDE 2011), section IX-B, figure 11, with the bound as a constraint instead of the objective.
    """
    configuration = BoundedPlacement(choices, judge, bound_s, rng)
    if choices.count <= ENUMERATED_MAX:
        every = choices.all()
        cost = choices.cost(every)
        possible = np.flatnonzero(np.isfinite(cost) & (choices.ways_s(every) <= bound_s))
        cheapest = every[possible[np.argsort(cost[possible], kind="stable")]]
        tried = cheapest if len(cheapest) <= judged_max else cheapest[: judged_max // 2]
        for one in tried:
            if not configuration.is_behind_for_sure(one) and configuration.begin_at(one) <= bound_s:
                return choices.named(one)
        if len(tried) == len(cheapest):
            return None
        judged_max -= len(tried)
    found = climb_from_arranged(configuration, Budget(evaluations=judged_max))
    return choices.named(found.best) if found.value < OUTSIDE else None


class BoundedPlacement:
    """A placement as a configuration for `sbon.search`: within the bound its value is its cost, outside it grows with its latency.

    Parameters
    ----------
    bound_s : for the latency that `judge` returns
    rng : for draws
    """

    def __init__(self, choices: Choices, judge: Judge, bound_s: float, rng: np.random.Generator) -> None:
        self._choices, self._judge, self._bound_s, self._rng = choices, judge, bound_s, rng
        self._sizes = np.array([len(one) for one in choices.options])
        self._chosen = np.zeros(len(self._sizes), dtype=np.int64)
        self._start = self._chosen
        self._start_s = math.inf
        self._seen: dict[bytes, tuple[float, Mapping[NodeId, float]]] = {}
        self._too_many: list[tuple[NodeId, frozenset[int]]] = []
        """Nodes with operators that make them late by more than the bound; with more operators they are no less late."""

    def begin_at(self, chosen: IntArray) -> float:
        """Takes a placement as the one to climb from, if it is the soonest so far; returns how late its answers can be, in s."""
        late_s, _ = self._judged(chosen)
        if late_s < self._start_s:
            self._start, self._start_s = chosen, late_s
        return late_s

    def is_behind_for_sure(self, chosen: IntArray) -> bool:
        """Tells whether some operators that share a node are known to make it late by more than the bound."""
        there = _by_node(self._choices.named(chosen))
        return any(operators <= there.get(node, frozenset()) for node, operators in self._too_many)

    def value(self) -> float:
        """Returns the cost within the bound, else more than `OUTSIDE`."""
        return float(self._values(self._chosen[None])[0])

    def neighbourhoods(self) -> Iterator[IntArray]:
        """Yields moves (operator, option), cheap ones first. Outside the bound, moves away from the node that is furthest behind come
        first; within it, only cheaper placements are tried."""
        choices, here = self._choices, self._chosen
        rows = [(operator, option) for operator in range(len(self._sizes)) for option in range(self._sizes[operator])]
        moves = np.array([move for move in rows if move[1] != here[move[0]]], dtype=np.int64).reshape(-1, 2)
        cost = choices.cost(self._after(moves))
        late, behind = self._judged(here)
        if late <= self._bound_s:
            kept = np.flatnonzero(cost < choices.cost(here[None])[0])
            order = kept[np.argsort(cost[kept], kind="stable")]
        else:
            nodes = choices.named(here)
            most = max(behind.values(), default=0.0)
            is_behind = np.array([most > 0 and behind.get(nodes[operator], 0.0) == most for operator in moves[:, 0].tolist()], dtype=bool)
            order = np.lexsort((cost, ~is_behind))
            order = order[np.isfinite(cost[order])]
        for first in range(0, len(order), GROUP):
            yield moves[order[first : first + GROUP]]

    def values_after(self, moves: IntArray) -> FloatArray:
        """Returns the value after each move alone: (moves,)."""
        return self._values(self._after(moves))

    def apply(self, move: IntArray) -> None:
        """Makes a move."""
        self._chosen = self._after(move[None])[0]

    def scatter(self) -> None:
        """Draws an option for each operator."""
        self._chosen = self._rng.integers(0, self._sizes)

    def arrange(self) -> None:
        """Goes to the placement to climb from: the present one, if no other was given."""
        self._chosen = self._start.copy()

    def disturb(self) -> None:
        """Draws new options for up to two operators."""
        free = np.flatnonzero(self._sizes > 1)
        for operator in self._rng.choice(free, min(2, len(free)), replace=False).tolist():
            self._chosen[operator] = self._rng.integers(0, self._sizes[operator])

    def snapshot(self) -> IntArray:
        """Returns the options."""
        return self._chosen.copy()

    def restore(self, taken: IntArray) -> None:
        """Goes back to earlier options."""
        self._chosen = taken.copy()

    def _after(self, moves: IntArray) -> IntArray:
        found = np.repeat(self._chosen[None], len(moves), axis=0)
        found[np.arange(len(moves)), moves[:, 0]] = moves[:, 1]
        return found

    def _values(self, chosen: IntArray) -> FloatArray:
        cost, ways_s = self._choices.cost(chosen), self._choices.ways_s(chosen)
        found = np.empty(len(chosen))
        for row, one in enumerate(chosen):
            late_s = math.inf if math.isinf(cost[row]) or self.is_behind_for_sure(one) else ways_s[row]
            if late_s <= self._bound_s:
                late_s, _ = self._judged(one)
            found[row] = cost[row] if late_s <= self._bound_s else OUTSIDE * min(LATEST, late_s / self._bound_s)
        return found

    def _judged(self, one: IntArray) -> tuple[float, Mapping[NodeId, float]]:
        key = one.tobytes()
        if key not in self._seen:
            nodes = self._choices.named(one)
            self._seen[key] = self._judge(nodes)
            there = _by_node(nodes)
            self._too_many += [
                (node, there[node]) for node, late_s in self._seen[key][1].items() if late_s > self._bound_s and node in there
            ]
        return self._seen[key]


def _by_node(nodes: tuple[NodeId, ...]) -> dict[NodeId, frozenset[int]]:
    """Returns the operators on each node."""
    return {node: frozenset(number for number, other in enumerate(nodes) if other == node) for node in nodes}
