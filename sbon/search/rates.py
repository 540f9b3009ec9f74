"""A configuration of order and placement, for searches for the highest rates.

Below a target multiple of the profile the value is 1 / quality, where quality is the multiple that the configuration carries.
Configurations that reach the target are better than all others, and the better the less network usage they have: throughput is a
constraint then, and network usage the objective, as elsewhere in the overlay. Without a target only the quality counts (WhiteWater).

A move changes few limits: two nodes, and the links at one or two operators. The quality of all limits is stored, so that `values_after`
computes only the changed ones, for many moves at once. If processors and links are the only limits, `plain_tree` is faster for single
moves.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from sbon.cost.throughput import Limit, Supply, latencies, limits, qualities, usage
from sbon.errors import ShapeError
from sbon.search.draws import Draws
from sbon.search.limit_loads import SWAP, TO_NODE, KnownOrders, LimitLoads, Prepared
from sbon.search.orders import Order, Orders
from sbon.search.plain_links import PlainLinks
from sbon.search.plain_tree import PlainTree, State
from sbon.types import FloatArray, IntArray


class Taken(msgspec.Struct, frozen=True):
    """State of a placement that `RatesPlacement.restore` needs."""

    prepared: Prepared
    node_of: IntArray


class RatesPlacement:
    """An order of operators and a node for each, as a configuration for searches.

    Parameters
    ----------
    order : order at first
    hosts : for each operator the rows of nodes that may run it
    supply : capacity of nodes and links
    rng : for draws
    node_of : (operators,), the assignment at first; drawn if left out
    alpha : share of moves to nodes among those drawn, the rest are swaps (WhiteWater, section 5.3); 0 and 1 allow one kind only
    target : multiple of the profile that is enough

    Raises
    ------
    ShapeError
        An operator has no host, or one that does not exist.
    """

    def __init__(
        self,
        order: Orders,
        hosts: list[tuple[int, ...]],
        supply: Supply,
        rng: np.random.Generator,
        node_of: IntArray | None = None,
        *,
        alpha: float = 0.5,
        target: float = math.inf,
    ) -> None:
        count = len(hosts)
        if len(order.work) != count or not all(hosts) or max(max(one) for one in hosts) >= len(supply.nodes):
            raise ShapeError(f"hosts of {count} operators among {len(supply.nodes)} nodes, expected some for each of {len(order.work)}")
        self.hosts, self.supply, self.alpha, self.target = hosts, supply, alpha, target
        self.movable = np.array([row for row, one in enumerate(hosts) if len(one) > 1], dtype=np.int64)
        self._to_node = np.array(
            [(TO_NODE, row, node) for row, one in enumerate(hosts) if len(one) > 1 for node in one], dtype=np.int64
        ).reshape(-1, 3)
        self.loads = LimitLoads(supply, weighs=not math.isinf(target))
        self._is_timed = not math.isinf(supply.latency_s_max)
        self._has_cores = supply.has_cores
        self._node_keys = rng.integers(0, 2**63 - 1, (count, len(supply.nodes)))
        self._draws = Draws(rng)
        loads = self.loads
        self._is_plain = not (loads.has_memory or supply.has_cores or loads.weighs or self._is_timed)
        self._stale = True
        self.known = KnownOrders(supply)
        self.first = self.known.of(order)
        self.at = self.first
        self._start = node_of
        self.node_of = np.zeros(count, dtype=np.int64)
        self._scale = 1.0
        if self.loads.weighs:
            finite = supply.propagation_s[np.isfinite(supply.propagation_s)]
            self._scale = float(self.first.sent.sum(axis=2).sum(axis=0).max(initial=0.0)) * float(finite.max(initial=0.0)) or 1.0
        self.scatter() if node_of is None else self.restore(Taken(self.first, node_of))

    # Value and limits.

    def value(self) -> float:
        """Returns 1 / quality; once the target is reached, a value below 1 / target that grows with network usage."""
        loads = self._taken()
        quality = loads.quality()
        if self._has_cores:
            quality = min(quality, float(self.at.cores.qualities(self.node_of[None])[0]))
        if self._is_timed and latencies(self.at.demand, self.supply, self.node_of[None])[0] > self.supply.latency_s_max:
            quality = 0.0
        return float(self._value_of(np.array([quality]), loads.usage()[None])[0])

    @property
    def quality(self) -> float:
        """Returns the multiple of the profile that the configuration carries, computed from scratch."""
        return float(qualities(self.at.demand, self.supply, self.node_of[None])[0])

    @property
    def usage(self) -> float:
        """Returns the bytes in transit at the profile."""
        return usage(self.at.demand, self.supply, self.node_of)

    def limits(self) -> list[Limit]:
        """Returns all limits, the binding one first."""
        return limits(self.at.demand, self.supply, self.node_of)

    def _value_of(self, quality: FloatArray, used: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            found = 1.0 / quality
        if self.loads.weighs:
            most = used.max(axis=1)
            found = np.where(quality >= self.target, most / (most + self._scale) / self.target, found)
        return found

    def _taken(self) -> LimitLoads:
        """Returns the loads of this configuration."""
        if self._stale:
            self._stale = False
            self.loads.take(self.at, self.node_of)
        return self.loads

    # Moves.

    def neighbourhoods(self) -> Iterator[IntArray]:
        """Yields all moves as one group."""
        yield self.all_moves()

    def all_moves(self) -> IntArray:
        """Returns all moves, (moves, 3)."""
        parts = []
        if self.alpha > 0 and len(self._to_node):
            parts.append(self._to_node[self.node_of[self._to_node[:, 1]] != self._to_node[:, 2]])
        if self.alpha < 1 and self.at.moves:
            numbers = np.arange(len(self.at.moves))
            parts.append(np.column_stack((np.full(len(numbers), SWAP), numbers, np.zeros_like(numbers))))
        return np.concatenate(parts) if parts else np.empty((0, 3), dtype=np.int64)

    def values_after(self, moves: IntArray) -> FloatArray:
        """Returns the value after each move: (moves,)."""
        if not len(moves):
            return np.empty(0)
        quality, used = self._taken().after(moves)
        if self._has_cores:
            quality = np.minimum(quality, self._of_moves(moves, lambda at, places: at.cores.qualities(places)))
        if self._is_timed:
            took_s = self._of_moves(moves, lambda at, places: latencies(at.demand, self.supply, places))
            quality = np.where(took_s <= self.supply.latency_s_max, quality, 0.0)
        return self._value_of(quality, used)

    def _of_moves(self, moves: IntArray, of: Callable[[Prepared, IntArray], FloatArray]) -> FloatArray:
        """Returns the result of `of`, which takes an order and placements, for the configuration after each move: (moves,)."""
        found = np.empty(len(moves))
        to_node = moves[:, 0] == TO_NODE
        places = np.repeat(self.node_of[None], int(to_node.sum()), axis=0)
        places[np.arange(len(places)), moves[to_node, 1]] = moves[to_node, 2]
        found[to_node] = of(self.at, places)
        for row in np.flatnonzero(~to_node).tolist():
            found[row] = of(self.known.after(self.at, int(moves[row, 1])), self.node_of[None])[0]
        return found

    def keys_after(self, moves: IntArray) -> IntArray:
        """Returns the key of the configuration after each move; equal configurations have equal keys: (moves,)."""
        found: IntArray = np.full(len(moves), self.key, dtype=np.int64)
        to_node = moves[:, 0] == TO_NODE
        operators, targets = moves[to_node, 1], moves[to_node, 2]
        found[to_node] ^= self._node_keys[operators, self.node_of[operators]] ^ self._node_keys[operators, targets]
        if not to_node.all():
            found[~to_node] ^= self.at.changes.keys[moves[~to_node, 1]]
        return found

    @property
    def key(self) -> int:
        """Returns the key of this configuration."""
        return int(np.bitwise_xor.reduce(self._node_keys[np.arange(len(self.node_of)), self.node_of])) ^ self.at.order.key

    @property
    def is_plain(self) -> bool:
        """Tells whether `plain_tree` can represent the configuration."""
        return self._is_plain and type(self.at.order) is Order and len(self.at.order.query.points) == 1 and math.isinf(self.target)

    def plain_tree(self) -> tuple[PlainTree, PlainLinks | None]:
        """Returns the configuration in plain numbers, with its links if they have limits."""
        order = self.at.order
        assert isinstance(order, Order)
        tree = PlainTree(order, self.node_of.tolist(), self.supply.work.tolist())
        return tree, PlainLinks(tree, self.supply.bandwidth.tolist(), order.row_bytes) if self.loads.has_links else None

    def taken(self, state: State) -> Taken:
        """Converts a state of the plain tree to a snapshot for `restore`."""
        assert isinstance(self.first.order, Order)
        return Taken(self.known.of(Order(self.first.order.query, state[0])), np.array(state[3], dtype=np.int64))

    def apply(self, move: Sequence[int] | IntArray) -> None:
        """Makes a move."""
        kind, one, other = (int(number) for number in move)
        if kind == SWAP:
            self.at = self.known.after(self.at, one)
        else:
            self.node_of[one] = other
        self._stale = True

    def draw(self) -> tuple[int, int, int] | None:
        """Returns a random move; None if there is none.

        Source
        ------
        WhiteWater, section 5.3: a move to a node with probability alpha.
        """
        draws, swaps, movable = self._draws, self.at.moves, self.movable
        is_to_node = draws.one() < self.alpha
        if is_to_node and not len(movable):
            is_to_node = self.alpha == 1
        elif not is_to_node and not swaps:
            is_to_node = self.alpha > 0
        if not is_to_node:
            return (SWAP, draws.below(len(swaps)), 0) if swaps else None
        if not len(movable):
            return None
        operator = int(movable[draws.below(len(movable))])
        hosts = self.hosts[operator]
        node = hosts[draws.below(len(hosts) - 1)]
        return TO_NODE, operator, node if node != self.node_of[operator] else hosts[-1]

    def is_within(self, move: Sequence[int], value: float) -> bool:
        """Tells whether the value after a move is at most `value`, which is not below the current value."""
        return bool(self.values_after(np.array([move]))[0] <= value)

    def scatter(self) -> None:
        """Takes the first order, and draws a node for each operator."""
        self.restore(Taken(self.first, np.array([one[self._draws.below(len(one))] for one in self.hosts])))

    def values_at(self, prepared: Prepared, node_of: IntArray) -> FloatArray:
        """Returns the values of many placements of one order, (placements, operators): (placements,)."""
        quality = qualities(prepared.demand, self.supply, node_of)
        used = np.zeros((len(node_of), prepared.work.shape[1]))
        if self.loads.weighs and len(prepared.ends):
            ends = node_of[:, prepared.ends]
            used = self.supply.propagation_s[ends[:, :, 0], ends[:, :, 1]] @ prepared.sent.sum(axis=2)
        return self._value_of(quality, used)

    def arrange(self) -> None:
        """Gives each operator, the one with the most work first, to the node that is least full with it, in the first order."""
        self.at = self.first
        work = self.at.work.sum(axis=2).max(axis=1)
        load = np.zeros(len(self.supply.nodes))
        node_of = np.zeros(len(work), dtype=np.int64)
        with np.errstate(divide="ignore", invalid="ignore"):
            for operator in np.argsort(-work, kind="stable").tolist():
                nodes = np.array(self.hosts[operator])
                share = (load[nodes] + work[operator]) / self.supply.work[nodes]
                node = int(nodes[int(np.nan_to_num(share, nan=0.0).argmin())])
                node_of[operator] = node
                load[node] += work[operator]
        self.restore(Taken(self.first, node_of))

    def disturb(self) -> None:
        """Makes a few random moves."""
        for _ in range(2 + self._draws.below(4)):
            move = self.draw()
            if move is not None:
                self.apply(move)

    def snapshot(self) -> Taken:
        """Returns the configuration."""
        return Taken(self.at, self.node_of.copy())

    def restore(self, taken: Taken) -> None:
        """Goes back to an earlier configuration."""
        self.at, self.node_of = taken.prepared, taken.node_of.copy()
        self._stale = True
