"""Relief on a configuration with limits and orders of any kind: the load of each limit at each target point is a number."""

import math
from collections.abc import Iterable

import numpy as np

from sbon.search.ground import LIGHTER, MEMORY, NOISE, STEPS
from sbon.search.interface import Budget, Record
from sbon.search.limit_loads import SWAP, TO_NODE
from sbon.search.rates import RatesPlacement, Taken
from sbon.types import FloatArray

Move = tuple[int, int, int]
Changes = list[tuple[int, float]]
"""Slots, and what is added to each."""


class LimitsGround:
    """A configuration with limits and orders of any kind."""

    def __init__(self, configuration: RatesPlacement, rng: np.random.Generator) -> None:
        self._of, self._rng = configuration, rng
        self._best = configuration.snapshot()

    def quality(self) -> float:
        return self._of.quality

    def begin(self, x: float) -> None:
        self._at = LoadsAt(self._of, x, self._rng)

    def shake(self, count: int) -> None:
        self._at.shake(count)

    def lighten(self, budget: Budget) -> None:
        self._at.lighten(budget)

    def clear(self, budget: Budget) -> bool:
        return self._at.clear(budget)

    def offer(self, record: Record[Taken]) -> bool:
        is_better = record.offer(self._of.value())
        self._best = record.best
        return is_better

    def back(self) -> None:
        self._of.restore(self._best)


class _Tables:
    """The demands of one order at one multiple. A slot is a limit at a target point; p is the number of points."""

    def __init__(self, configuration: RatesPlacement, powers: FloatArray) -> None:
        at = configuration.at
        changes = at.changes
        self.work: list[list[float]] = (at.work @ powers).tolist()
        self.memory: list[list[float]] = (at.memory @ powers).tolist() if configuration.loads.has_memory else []
        self.by_operator: list[list[int]] = [[] for _ in self.work]
        """Swaps that change the operator."""
        self.swaps: list[list[tuple[int, list[float], list[float]]]] = [[] for _ in at.moves]
        """Operators of each swap, with the growth of their work and memory."""
        work = (changes.work @ powers).tolist()
        memory = (changes.memory @ powers).tolist()
        for swap, operator, more, room in zip(changes.swap.tolist(), changes.operator.tolist(), work, memory, strict=True):
            self.swaps[swap].append((operator, more, room))
            self.by_operator[operator].append(swap)
        self.links: list[list[tuple[int, int, list[float]]]] = [[] for _ in self.work]
        """Links of each operator: source, target, bytes per second."""
        self.streams: list[list[tuple[int, int, list[float]]]] = [[] for _ in at.moves]
        """Links that each swap ends (less than 0) or begins."""
        if configuration.loads.has_links:
            for (source, target), sent in zip(at.ends.tolist(), (at.sent @ powers).tolist(), strict=True):
                self.links[source].append((source, target, sent))
                self.links[target].append((source, target, sent))
            number, ends, sent_by = changes.streams
            for swap, (source, target), sent in zip(number.tolist(), ends.tolist(), (sent_by @ powers).tolist(), strict=True):
                self.streams[swap].append((source, target, sent))


class LoadsAt:
    """The configuration at one multiple of the profile: the load of each limit at each target point."""

    def __init__(self, configuration: RatesPlacement, x: float, rng: np.random.Generator) -> None:
        self._of, self._rng = configuration, rng
        supply, points = configuration.supply, configuration.at.work.shape[1]
        self._has_cores = supply.has_cores
        self._powers: FloatArray = np.power(x, np.arange(configuration.at.work.shape[2], dtype=np.float64))
        self._points, self._nodes = points, len(supply.nodes)
        self._node_of: list[int] = configuration.node_of.tolist()
        self._on: list[set[int]] = [set() for _ in supply.nodes]
        for operator, node in enumerate(self._node_of):
            self._on[node].add(operator)
        # Slots: processors, memory, one core for each operator as a share of it, links.
        self._memory = self._nodes
        self._core = self._memory + (self._nodes if configuration.loads.has_memory else 0)
        self._link = self._core + (len(self._node_of) if configuration.supply.has_cores else 0)
        capacity = supply.work.tolist()
        if configuration.loads.has_memory:
            capacity += supply.memory.tolist()
        if configuration.supply.has_cores:
            capacity += [1.0] * len(self._node_of)
        if configuration.loads.has_links:
            capacity += np.where(np.eye(self._nodes, dtype=bool), math.inf, supply.bandwidth).ravel().tolist()
        self._capacity: list[float] = [max(one, 1e-300) for one in capacity for _ in range(points)]
        self._per_core: list[float] = [1 / max(one, 1e-300) for one in supply.core.tolist()]
        self._known: dict[int, _Tables] = {}
        self._drawn: list[float] = []
        self._fill()

    def _fill(self) -> None:
        """Adds up all slots."""
        self._tables = self._of_order()
        self._load = [0.0] * len(self._capacity)
        for operator, node in enumerate(self._node_of):
            for slot, more in self._of_operator(operator, node, 1.0):
                self._load[slot] += more
            for source, target, sent in self._tables.links[operator]:
                if source == operator:
                    for slot, more in self._on_link(node, self._node_of[target], sent, 1.0):
                        self._load[slot] += more

    def _of_order(self) -> _Tables:
        key = self._of.at.order.key
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _Tables(self._of, self._powers)
        return found

    def _next(self) -> float:
        if not self._drawn:
            self._drawn = self._rng.random(512).tolist()
        return self._drawn.pop()

    def _of_operator(self, operator: int, node: int, sign: float) -> Changes:
        """Returns the load of an operator on a node, without links."""
        points, found = self._points, []
        for point, work in enumerate(self._tables.work[operator]):
            found.append((node * points + point, sign * work))
            if self._has_cores:
                found.append(((self._core + operator) * points + point, sign * work * self._per_core[node]))
        if self._of.loads.has_memory:
            for point, memory in enumerate(self._tables.memory[operator]):
                found.append(((self._memory + node) * points + point, sign * memory))
        return found

    def _on_link(self, source: int, target: int, sent: list[float], sign: float) -> Changes:
        if source == target:
            return []
        first = (self._link + source * self._nodes + target) * self._points
        return [(first + point, sign * one) for point, one in enumerate(sent)]

    def _to_node(self, operator: int, target: int) -> Changes:
        source = self._node_of[operator]
        found = self._of_operator(operator, source, -1.0) + self._of_operator(operator, target, 1.0)
        for start, end, sent in self._tables.links[operator]:
            if start == operator:
                other = self._node_of[end]
                found += self._on_link(source, other, sent, -1.0) + self._on_link(target, other, sent, 1.0)
            else:
                other = self._node_of[start]
                found += self._on_link(other, source, sent, -1.0) + self._on_link(other, target, sent, 1.0)
        return found

    def _by_swap(self, swap: int) -> Changes:
        points, found = self._points, []
        for operator, work, memory in self._tables.swaps[swap]:
            node = self._node_of[operator]
            for point, more in enumerate(work):
                found.append((node * points + point, more))
                if self._has_cores:
                    found.append(((self._core + operator) * points + point, more * self._per_core[node]))
            if self._of.loads.has_memory:
                found += [((self._memory + node) * points + point, more) for point, more in enumerate(memory)]
        for source, target, sent in self._tables.streams[swap]:
            found += self._on_link(self._node_of[source], self._node_of[target], sent, 1.0)
        return found

    def _growth(self, changes: Changes) -> float:
        """Returns by how much the excess over the limits grows with changes, as logarithms of load over capacity."""
        together: dict[int, float] = {}
        for slot, more in changes:
            together[slot] = together.get(slot, 0.0) + more
        growth = 0.0
        for slot, more in together.items():
            load, capacity = self._load[slot], self._capacity[slot]
            after = load + more
            growth += LIGHTER * more / capacity
            if after > capacity:
                growth += math.log(after / capacity)
            if load > capacity:
                growth -= math.log(load / capacity)
        return growth

    def shake(self, count: int) -> None:
        """Makes some random swaps."""
        for _ in range(count):
            if self._of.at.moves:
                self._of.apply((SWAP, int(self._next() * len(self._of.at.moves)), 0))
        self._tables = self._of_order()

    def lighten(self, budget: Budget) -> None:
        """Makes swaps as long as one lowers the total work of all operators."""
        for _ in self._node_of * 4:
            more = [sum(sum(work) for _, work, _ in swap) for swap in self._tables.swaps]
            budget.spend(len(more))
            best = min(range(len(more)), key=more.__getitem__, default=None)
            if best is None or more[best] >= 0 or budget.is_spent:
                break
            self._of.apply((SWAP, best, 0))
            self._tables = self._of_order()
        self._fill()

    def clear(self, budget: Budget) -> bool:
        """Makes moves until no limit is exceeded; returns whether that succeeded."""
        barred: dict[tuple[int, int], int] = {}
        for number in range(STEPS):
            full = [slot for slot, (load, most) in enumerate(zip(self._load, self._capacity, strict=True)) if load > most]
            if not full:
                return True
            if budget.is_spent:
                return False
            moves = list(self._moves_at(full[int(self._next() * len(full))], barred, number - MEMORY))
            budget.spend(len(moves))
            if not moves:
                continue
            if self._next() < NOISE:
                move, way, changes = moves[int(self._next() * len(moves))]
            else:
                move, way, changes = min(moves, key=lambda one: self._growth(one[2]))
            barred[way] = number
            for slot, more in changes:
                self._load[slot] += more
            kind, one, other = move
            if kind == TO_NODE:
                self._on[self._node_of[one]].discard(one)
                self._on[other].add(one)
                self._node_of[one] = other
            self._of.apply(move)
            if kind == SWAP:
                self._tables = self._of_order()
        return False

    def _moves_at(self, slot: int, barred: dict[tuple[int, int], int], since: int) -> Iterable[tuple[Move, tuple[int, int], Changes]]:
        """Yields moves of operators at a full slot that do not undo one of the last, the key of the reverse move, and the changes."""
        swaps: set[int] = set()
        for operator in self._operators_at(slot // self._points):
            here = self._node_of[operator]
            for node in self._of.hosts[operator]:
                if node != here and barred.get((operator, node), -MEMORY) < since:
                    yield (TO_NODE, operator, node), (operator, here), self._to_node(operator, node)
            swaps.update(self._tables.by_operator[operator])
        for swap in sorted(swaps):
            # After a swap of two operators, the one that has come out on top must not go back below.
            operators = self._tables.swaps[swap]
            way = -1 - operators[0][0], operators[-1][0]
            if barred.get(way, -MEMORY) < since:
                yield (SWAP, swap, 0), (-1 - operators[-1][0], operators[0][0]), self._by_swap(swap)

    def _operators_at(self, limit: int) -> list[int]:
        if limit < self._core:
            return sorted(self._on[limit % self._nodes])
        if limit < self._link:
            return [limit - self._core]
        source, target = divmod(limit - self._link, self._nodes)
        found = {
            end
            for operator in self._on[source]
            for start, stop, _ in self._tables.links[operator]
            if start == operator and self._node_of[stop] == target
            for end in (start, stop)
        }
        return sorted(found)
