"""Relief on a configuration in plain numbers, where processors, and perhaps links, are the only limits."""

import math
from collections.abc import Iterable
from functools import partial

import numpy as np

from sbon.search.draws import Draws
from sbon.search.ground import LIGHTER, MEMORY, NOISE, STEPS
from sbon.search.interface import Budget, Record
from sbon.search.orders import NONE, Pair
from sbon.search.plain_links import Change, together
from sbon.search.rates import RatesPlacement, Taken

_Move = tuple[float, int, int, Pair | None]
"""Growth, operator and its node, or top, bottom and the swap."""


class PlainGround:
    """A configuration in plain numbers (`sbon.search.plain_tree`)."""

    def __init__(self, configuration: RatesPlacement, rng: np.random.Generator) -> None:
        self._of, self._draws = configuration, Draws(rng)
        self._tree, self._links = configuration.plain_tree()
        self._best, self._carried = self._tree.state(), self._quality()

    def _quality(self) -> float:
        quality = self._tree.quality()
        return quality if self._links is None else min(quality, self._links.quality())

    def quality(self) -> float:
        return self._carried

    def begin(self, x: float) -> None:
        self._tree.scale(x)
        self._fill()

    def _fill(self) -> None:
        if self._links is not None:
            self._links.fill()

    def shake(self, count: int) -> None:
        tree, draws = self._tree, self._draws
        for _ in range(count):
            swaps = [pair for top in range(len(tree.below)) for pair, _, _ in tree.swaps(top)]
            if swaps:
                tree.swap(swaps[draws.below(len(swaps))])
        self._fill()

    def lighten(self, budget: Budget) -> None:
        tree = self._tree
        work = tree.work
        for _ in range(len(work) * 4):
            best, least = None, 0.0
            tried = 0
            for top in range(len(work)):
                swaps = tree.swaps(top)
                tried += len(swaps)
                for pair, one, other in swaps:
                    if one + other < least:
                        best, least = pair, one + other
            budget.spend(tried)
            if best is None or budget.is_spent:
                break
            tree.swap(best)
        self._fill()

    def clear(self, budget: Budget) -> bool:
        tree, links, draws = self._tree, self._links, self._draws
        load, capacity = tree.load, tree.capacity
        barred: dict[tuple[int, int], int] = {}
        nodes = range(len(capacity))
        for number in range(STEPS):
            over = {node: math.log(load[node] / capacity[node]) for node in nodes if load[node] > capacity[node]}
            if links is not None:
                over |= {slot: math.log(links.load[slot] / links.capacity[slot]) for slot in links.full()}
            if not over:
                return True
            if budget.is_spent:
                return False
            full = list(over)[draws.below(len(over))]
            operators = tree.on[full] if full < len(capacity) else links.operators_at(full) if links is not None else set()
            moves = self._moves_of(operators, barred, number - MEMORY, over)
            budget.spend(len(moves))
            if not moves:
                continue
            _, one, other, pair = moves[draws.below(len(moves))] if draws.one() < NOISE else min(moves, key=_first)
            if pair is None:
                barred[one, tree.node_of[one]] = number
                if links is not None:
                    links.move(one, other)
                tree.move(one, other)
            else:
                barred[-1 - pair.top, pair.bottom] = number
                if links is not None:
                    links.swap(pair)
                tree.swap(pair)
        return False

    def _moves_of(self, operators: set[int], barred: dict[tuple[int, int], int], since: int, over: dict[int, float]) -> list[_Move]:
        """Returns moves of operators that do not undo one of the last, with the growth of the excess over all limits."""
        tree, links, hosts = self._tree, self._links, self._of.hosts
        load, capacity, work, node_of, above = tree.load, tree.capacity, tree.work, tree.node_of, tree.above
        found: list[_Move] = []
        for operator in sorted(operators):
            less, node = work[operator], node_of[operator]
            mine, left = capacity[node], load[node] - less
            base = -LIGHTER * less / mine - over.get(node, 0.0) + (math.log(left / mine) if left > mine else 0.0)
            for target in hosts[operator]:
                if target != node and barred.get((operator, target), -MEMORY) < since:
                    most = capacity[target]
                    total = load[target] + less
                    growth = base + LIGHTER * less / most - over.get(target, 0.0) + (math.log(total / most) if total > most else 0.0)
                    if links is not None:
                        growth += self._on_links(links.moved(operator, target), over)
                    found.append((growth, operator, target, None))
            swaps = tree.swaps(operator)
            top = above[operator]
            if top != NONE and top not in operators:
                swaps = swaps + [swap for swap in tree.swaps(top) if swap[0].bottom == operator]
            for pair, one, other in swaps:
                # After a swap of two operators, the one that has come out on top must not go back below.
                if barred.get((-1 - pair.bottom, pair.top), -MEMORY) >= since:
                    continue
                upper, lower = node_of[pair.top], node_of[pair.bottom]
                if upper == lower:
                    one, other = one + other, 0.0
                most = capacity[upper]
                total = load[upper] + one
                growth = LIGHTER * one / most - over.get(upper, 0.0) + (math.log(total / most) if total > most else 0.0)
                if upper != lower:
                    most = capacity[lower]
                    total = load[lower] + other
                    growth += LIGHTER * other / most - over.get(lower, 0.0) + (math.log(total / most) if total > most else 0.0)
                    if links is not None:
                        growth += self._on_links(links.swapped(pair), over)
                found.append((growth, pair.top, pair.bottom, pair))
        return found

    def _on_links(self, changes: Iterable[Change], over: dict[int, float]) -> float:
        """Returns the growth of the excess over the limits of links."""
        assert self._links is not None
        load, capacity = self._links.load, self._links.capacity
        growth = 0.0
        for slot, more in together(changes).items():
            most = capacity[slot]
            total = load.get(slot, 0.0) + more
            growth += LIGHTER * more / most - over.get(slot, 0.0) + (math.log(total / most) if total > most else 0.0)
        return growth

    def offer(self, record: Record[Taken]) -> bool:
        quality = self._quality()
        if not quality > self._carried:
            return False
        state = self._best = self._tree.state()
        self._carried = quality
        return record.offer(1 / quality, partial(self._of.taken, state))

    def back(self) -> None:
        self._tree.back_to(self._best)


def _first(move: _Move) -> float:
    return move[0]
