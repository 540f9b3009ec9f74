"""Random moves on plain numbers instead of arrays, for annealing where processors and links are the only limits.

A move keeps a bound if the nodes and links that it changes keep it, because the others did before. So most moves need few values of
polynomials, and no root. The quality of a node or link is known, or known to be no less than the worst one.
"""

import math
from collections.abc import Iterable, Sequence

from sbon.search.draws import Draws
from sbon.search.orders import NONE, Pair
from sbon.search.plain_links import NOTHING, Change, PlainLinks, together
from sbon.search.plain_tree import PlainTree, State, greatest

Move = tuple[int, int, Pair | None]
"""Operator and its next node, or a swap."""


class PlainMoves:
    """A tree of operators as a configuration that draws moves, whose value is 1 / quality.

    Parameters
    ----------
    tree : changed in place
    links : of the tree; None if they have no limits
    hosts : nodes of each operator
    draws : random numbers
    alpha : share of moves to nodes among those drawn
    """

    def __init__(self, tree: PlainTree, links: PlainLinks | None, hosts: Sequence[Sequence[int]], draws: Draws, alpha: float) -> None:
        self.tree, self.links, self._hosts, self._draws, self._alpha = tree, links, hosts, draws, alpha
        self._movable = [row for row, one in enumerate(hosts) if len(one) > 1]
        self._inner = [row for row, inputs in enumerate(tree.below) if inputs]
        self._capacity = tree.capacity if links is None else [*tree.capacity, *links.capacity[len(tree.capacity) :]]
        tree.scale(1.0)
        self._take()

    def _take(self) -> None:
        tree, nodes = self.tree, range(len(self.tree.capacity))
        self._terms = [[0.0] * (max(tree.degree) + 1) for _ in nodes]
        """Load of each node, as coefficients of 1, x, x^2 ..."""
        self._of_links: dict[int, dict[int, float]] = {}
        """Load of each link that has had a stream, as coefficients by power: few, as few streams take one link."""
        self._known: dict[int, float | None] = dict.fromkeys(nodes)
        self._least = dict.fromkeys(nodes, 0.0)
        """Lower bound of the quality of each."""
        for row, node in enumerate(tree.node_of):
            self._add(node, row, 1.0)
        self._worst, self._full = math.inf, 0
        """The least quality of all when it was last asked for, and its node or link."""
        self._changed = list(nodes)
        """Nodes and links that have changed since `_worst` was computed."""
        if self.links is not None:
            self.links.fill()
            self._change_links(self.links.streams())

    def _add(self, node: int, row: int, sign: float) -> None:
        tree, terms = self.tree, self._terms[node]
        cost = sign * tree.cost[row]
        for one in tree.below[row] or (row,):
            power = tree.degree[one]
            terms[power] = max(0.0, terms[power] + cost * tree.rows[one])

    def _change_links(self, changes: Iterable[Change]) -> None:
        for slot, sent, power in changes:
            terms = self._of_links.setdefault(slot, {})
            left = terms.get(power, 0.0) + sent
            if left > -NOTHING * sent:
                terms[power] = left
            else:
                terms.pop(power, None)
            self._change(slot)

    def value(self) -> float:
        """Returns 1 / quality."""
        known, least, capacity = self._known, self._least, self._capacity
        worst = self._worst
        asked: Iterable[int] = self._changed
        if self._full in asked:
            asked = known
            worst = math.inf
            for slot, quality in known.items():
                if quality is not None and quality < worst:
                    worst, self._full = quality, slot
        for slot in asked:
            if known[slot] is None and least[slot] < worst:
                if worst < math.inf and self._at(slot, worst) <= capacity[slot]:
                    least[slot] = worst
                else:
                    terms = enumerate(self._terms[slot]) if slot < len(self._terms) else self._of_links[slot].items()
                    known[slot] = found = greatest(terms, capacity[slot])
                    if found < worst:
                        worst, self._full = found, slot
        self._worst, self._changed = worst, []
        return 1 / worst if worst else math.inf

    def _at(self, slot: int, x: float) -> float:
        found = 0.0
        if slot >= len(self._terms):
            for power, one in self._of_links.get(slot, {}).items():
                found += one * x**power
            return found
        for one in reversed(self._terms[slot]):
            found = found * x + one
        return found

    def draw(self) -> Move | None:
        """Returns a random move; None if there is none (WhiteWater, section 5.3: a move to a node with probability alpha)."""
        draws, movable = self._draws, self._movable
        is_to_node = draws.one() < self._alpha
        if not is_to_node:
            pair = self._drawn_swap()
            if pair is not None:
                return 0, 0, pair
            if not self._alpha:
                return None
        if not movable:
            pair = self._drawn_swap() if self._alpha < 1 else None
            return None if pair is None else (0, 0, pair)
        operator = movable[draws.below(len(movable))]
        hosts = self._hosts[operator]
        node = hosts[draws.below(len(hosts) - 1)]
        return operator, node if node != self.tree.node_of[operator] else hosts[-1], None

    def _drawn_swap(self) -> Pair | None:
        """Returns a random swap, all with equal probability; draws places until one allows a swap."""
        tree, one, inner = self.tree, self._draws.one, self._inner
        below, above, allowed = tree.below, tree.above, tree.allowed
        places = 2 * len(inner)
        for _ in range(2 * places):
            number = int(one() * places)
            bottom = inner[number >> 1]
            inputs, top = below[bottom], above[bottom]
            if number & 1 < len(inputs) and top != NONE:
                pair = allowed(top, bottom, inputs[number & 1])
                if pair is not None:
                    return pair
        swaps = [pair for top in inner for pair in tree.swaps_of(top)]
        return swaps[self._draws.below(len(swaps))] if swaps else None

    def is_within(self, move: Move, value: float) -> bool:
        """Tells whether the value after a move is at most `value`."""
        if math.isinf(value):
            return True
        operator, node, pair = move
        tree, x = self.tree, 1 / value
        capacity = tree.capacity
        if pair is None:
            if self._at(node, x) + tree.work_at(operator, x) > capacity[node]:
                return False
            return self.links is None or self._are_within(self.links.moved(operator, node), x)
        top, bottom = pair.top, pair.bottom
        work, other = tree.swapped_at(pair, x)
        work -= tree.work_at(top, x)
        other -= tree.work_at(bottom, x)
        upper, lower = tree.node_of[top], tree.node_of[bottom]
        if upper == lower:
            work, other = work + other, 0.0
        if work > 0 and self._at(upper, x) + work > capacity[upper]:
            return False
        if other > 0 and self._at(lower, x) + other > capacity[lower]:
            return False
        return self.links is None or upper == lower or self._are_within(self.links.swapped(pair), x)

    def _are_within(self, changes: Iterable[Change], x: float) -> bool:
        """Tells whether links carry x times the profile after changes; what they carry less of was within before."""
        return all(more <= 0 or self._at(slot, x) + more <= self._capacity[slot] for slot, more in together(changes, x).items())

    def apply(self, move: Move) -> None:
        """Makes a move."""
        operator, node, pair = move
        tree = self.tree
        if self.links is not None:
            self._change_links(self.links.move(operator, node) if pair is None else self.links.swap(pair))
        if pair is not None:
            for row in (pair.top, pair.bottom):
                self._add(tree.node_of[row], row, -1.0)
            tree.swap(pair)
            for row in (pair.top, pair.bottom):
                self._add(tree.node_of[row], row, 1.0)
                self._change(tree.node_of[row])
            return
        before = tree.node_of[operator]
        self._add(before, operator, -1.0)
        self._add(node, operator, 1.0)
        self._change(before)
        self._change(node)
        tree.move(operator, node)

    def _change(self, slot: int) -> None:
        self._known[slot], self._least[slot] = None, 0.0
        self._changed.append(slot)

    def snapshot(self) -> State:
        """Returns the configuration."""
        return self.tree.state()

    def restore(self, taken: State) -> None:
        """Goes back to an earlier configuration."""
        self.tree.back_to(taken)
        self.tree.scale(1.0)
        self._take()
