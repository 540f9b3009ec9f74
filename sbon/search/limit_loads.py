"""Computes the load of each limit under a configuration, and the quality of each limit after moves: the arithmetic of `sbon.search.rates`.

A limit is the processor or memory of a node, or a link between two. A move changes few of them; the others keep the quality that they have.
"""

import math

import msgspec
import numpy as np

from sbon.cost.chains import OneCore
from sbon.cost.multiples import greatest_multiple
from sbon.cost.throughput import Demand, Supply
from sbon.search.orders import Orders, Swap
from sbon.types import FloatArray, IntArray

TO_NODE, SWAP = 0, 1
"""First number of a move. (TO_NODE, operator, node) moves an operator; (SWAP, number, 0) is one of the order's swaps."""
ORDERS_KEPT = 4096
"""Most orders whose tables are kept."""
_TOP = 16
"""Number of the worst limits among which one is sought that a move does not change."""


class Prepared:
    """Tables of one order, made when they are first needed."""

    def __init__(self, order: Orders, supply: Supply) -> None:
        self.order = order
        self.work, self.memory = order.work, order.memory
        self._supply = supply
        self.moves = order.moves()
        self._streams: tuple[IntArray, FloatArray] | None = None
        self._cores: OneCore | None = None
        self._incident: tuple[IntArray, IntArray] | None = None
        self._changes: _Changes | None = None
        self.demand_made: Demand | None = None

    @property
    def demand(self) -> Demand:
        """Returns the demand of the order."""
        if self.demand_made is None:
            self.demand_made = self.order.demand()
        return self.demand_made

    @property
    def ends(self) -> IntArray:
        """Returns source and target of each link, (l, 2)."""
        return self._links()[0]

    @property
    def sent(self) -> FloatArray:
        """Returns the bytes per second of each link, (l, p, k)."""
        return self._links()[1]

    def _links(self) -> tuple[IntArray, FloatArray]:
        if self._streams is None:
            ends, sent = self.order.streams()
            self._streams = np.array(ends, dtype=np.int64).reshape(-1, 2), np.array(sent).reshape(-1, *self.work.shape[1:])
        return self._streams

    @property
    def cores(self) -> OneCore:
        """Returns the greatest multiples of chains of operators on one core of each node."""
        if self._cores is None:
            self._cores = OneCore(self.demand.work, self.demand.chains, self._supply.core)
        return self._cores

    @property
    def incident(self) -> tuple[IntArray, IntArray]:
        """Returns the links of each operator: (links at operators,) sorted by operator, and the index at which each operator's begin."""
        if self._incident is None:
            both = self.ends.T.ravel()
            order = np.argsort(both, kind="stable")
            starts = np.searchsorted(both[order], np.arange(len(self.work) + 1))
            self._incident = order % max(1, len(self.ends)), starts
        return self._incident

    @property
    def changes(self) -> "_Changes":
        """Returns the changes by all swaps, as tables."""
        if self._changes is None:
            self._changes = _Changes([self.order.swap(pair) for pair in self.moves], self)
        return self._changes


class _Changes:
    """Tables of the changes by swaps, one row for each operator or link of a swap."""

    def __init__(self, swaps: list[Swap], prepared: Prepared) -> None:
        points, terms = prepared.work.shape[1:]
        self.swap = np.array([number for number, one in enumerate(swaps) for _ in one.operators], dtype=np.int64)
        self.operator = np.array([operator for one in swaps for operator in one.operators], dtype=np.int64)
        new_work: FloatArray = np.array([work for one in swaps for work in one.work]).reshape(-1, points, terms)
        new_memory: FloatArray = np.array([memory for one in swaps for memory in one.memory]).reshape(-1, points, terms)
        self.work = new_work - prepared.work[self.operator]
        self.memory = new_memory - prepared.memory[self.operator]
        self.keys = np.array([one.key for one in swaps], dtype=np.int64)
        self._swaps, self._order = swaps, prepared.order
        self._streams: tuple[IntArray, IntArray, FloatArray] | None = None

    @property
    def streams(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Returns number of the swap, source and target, and bytes per second of all streams that end or begin."""
        if self._streams is None:
            number = [number for number, one in enumerate(self._swaps) for _ in one.links]
            ends = [link for one in self._swaps for link in one.links]
            sent = [sent for one in self._swaps for sent in self._order.sent_by(one)]
            both = np.array(number, dtype=np.int64), np.array(ends, dtype=np.int64).reshape(-1, 2)
            self._streams = *both, np.array(sent).reshape(-1, *self.work.shape[1:])
        return self._streams


class _Entries(msgspec.Struct):
    """Changes of limits by moves: number of the move, number of the limit, and coefficients that are added."""

    move: list[IntArray]
    limit: list[IntArray]
    added: list[FloatArray]


class KnownOrders:
    """Orders that a search has met, with their tables.

    Parameters
    ----------
    supply : limits that the tables are for
    """

    def __init__(self, supply: Supply) -> None:
        self._supply, self._known = supply, dict[int, Prepared]()

    def of(self, order: Orders) -> Prepared:
        """Returns the tables of an order."""
        found = self._known.get(order.key)
        if found is None:
            if len(self._known) >= ORDERS_KEPT:
                self._known.clear()
            found = self._known[order.key] = Prepared(order, self._supply)
        return found

    def after(self, at: Prepared, move: int) -> Prepared:
        """Returns the tables of the order after one of its swaps, by number."""
        swap = at.order.swap(at.moves[move])
        return self._known.get(at.order.key ^ swap.key) or self.of(at.order.swapped(swap))

    def reached_from(self, first: Prepared, most: int) -> list[Prepared] | None:
        """Returns all orders that swaps lead to, the first one among them; None if there are more than `most`."""
        found, seen = [first], {first.order.key}
        for at in found:  # the list grows during the loop
            for number, pair in enumerate(at.moves):
                key = at.order.key ^ at.order.swap(pair).key
                if key not in seen:
                    if len(found) >= most:
                        return None
                    seen.add(key)
                    found.append(self.after(at, number))
        return found


class LimitLoads:
    """Loads of all limits under one configuration.

    Parameters
    ----------
    supply : the limits
    weighs : whether to compute network usage
    """

    def __init__(self, supply: Supply, *, weighs: bool) -> None:
        nodes = len(supply.nodes)
        self.supply, self.weighs, self._nodes = supply, weighs, nodes
        self.has_memory = not np.isinf(supply.memory).all()
        self.has_links = nodes > 1 and not np.isinf(supply.bandwidth[~np.eye(nodes, dtype=bool)]).all()
        bandwidth = supply.bandwidth.copy()
        np.fill_diagonal(bandwidth, math.inf)
        parts = [supply.work]
        if self.has_memory:
            parts.append(supply.memory)
        self._first_link = len(parts) * nodes
        if self.has_links:
            parts.append(bandwidth.ravel())
        self._limit: FloatArray = np.concatenate(parts)

    def take(self, at: Prepared, node_of: IntArray) -> None:
        """Adds up the loads of a configuration, and the quality of each limit."""
        self.at, self.node_of, nodes = at, node_of, self._nodes
        loads = np.zeros((len(self._limit), *at.work.shape[1:]))
        here = np.zeros((nodes, len(node_of)))
        here[node_of, np.arange(len(node_of))] = 1.0
        loads[:nodes] = np.tensordot(here, at.work, 1)
        if self.has_memory:
            loads[nodes : 2 * nodes] = np.tensordot(here, at.memory, 1)
        if self.has_links and len(at.ends):
            ends = node_of[at.ends]
            np.add.at(loads, self._first_link + ends[:, 0] * nodes + ends[:, 1], at.sent)
        self.loads = loads
        self.by_limit = greatest_multiple(loads, self._limit[:, None]).min(axis=1)
        self._ranked = np.argsort(self.by_limit, kind="stable")[:_TOP]

    def quality(self) -> float:
        """Returns the quality of the configuration, latency and single cores aside."""
        return float(self.by_limit.min())

    def usage(self) -> FloatArray:
        """Returns the bytes in transit at each target point, (p,); 0 unless `weighs`."""
        if not self.weighs:
            return np.zeros(self.at.work.shape[1])
        ends = self.node_of[self.at.ends]
        found: FloatArray = self.supply.propagation_s[ends[:, 0], ends[:, 1]] @ self.at.sent.sum(axis=2)
        return found

    def after(self, moves: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns the quality after each move, latency and single cores aside, (moves,), and usage, (moves, p)."""
        count = len(moves)
        entries = _Entries([], [], [])
        used = np.repeat(self.usage()[None], count, axis=0)
        to_node, swaps = np.flatnonzero(moves[:, 0] == TO_NODE), np.flatnonzero(moves[:, 0] == SWAP)
        if len(to_node):
            self._enter_nodes(moves[to_node], to_node, entries, used)
        if len(swaps):
            self._enter_swaps(moves[swaps, 1], swaps, entries, used)
        return self._with(entries, count), used

    def _enter_nodes(self, moves: IntArray, numbers: IntArray, entries: _Entries, used: FloatArray) -> None:
        at, nodes = self.at, self._nodes
        operators, targets = moves[:, 1], moves[:, 2]
        sources = self.node_of[operators]
        for offset, amount in ((0, at.work), (nodes, at.memory))[: 2 if self.has_memory else 1]:
            entries.move += [numbers, numbers]
            entries.limit += [targets + offset, sources + offset]
            entries.added += [amount[operators], -amount[operators]]
        if (self.has_links or self.weighs) and len(at.ends):
            links, starts = at.incident
            counts = starts[operators + 1] - starts[operators]
            row = np.repeat(np.arange(len(moves)), counts)
            place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(starts[operators], counts)
            link = links[place]
            before = self.node_of[at.ends[link]]
            after = np.where(at.ends[link] == operators[row, None], targets[row, None], before)
            self._enter_links(numbers[row], before, -at.sent[link], entries, used)
            self._enter_links(numbers[row], after, at.sent[link], entries, used)

    def _enter_swaps(self, chosen: IntArray, numbers: IntArray, entries: _Entries, used: FloatArray) -> None:
        at, nodes, changes = self.at, self._nodes, self.at.changes
        number_of = np.full(len(at.moves), -1)
        number_of[chosen] = numbers
        rows = np.flatnonzero(number_of[changes.swap] >= 0)
        move, where = number_of[changes.swap[rows]], self.node_of[changes.operator[rows]]
        for offset, amount in ((0, changes.work), (nodes, changes.memory))[: 2 if self.has_memory else 1]:
            entries.move.append(move)
            entries.limit.append(where + offset)
            entries.added.append(amount[rows])
        if self.has_links or self.weighs:
            swap, ends, sent = changes.streams
            rows = np.flatnonzero(number_of[swap] >= 0)
            self._enter_links(number_of[swap[rows]], self.node_of[ends[rows]], sent[rows], entries, used)

    def _enter_links(self, move: IntArray, ends: IntArray, sent: FloatArray, entries: _Entries, used: FloatArray) -> None:
        apart = ends[:, 0] != ends[:, 1]
        if self.weighs:
            np.add.at(used, move, sent.sum(axis=2) * self.supply.propagation_s[ends[:, 0], ends[:, 1]][:, None])
        if self.has_links:
            entries.move.append(move[apart])
            entries.limit.append(self._first_link + ends[apart, 0] * self._nodes + ends[apart, 1])
            entries.added.append(sent[apart])

    def _with(self, entries: _Entries, count: int) -> FloatArray:
        """Returns the worst quality of the limits on nodes and links after each move, (moves,)."""
        size = len(self._limit)
        keys = np.concatenate(entries.move) * size + np.concatenate(entries.limit)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        added = np.add.reduceat(np.concatenate(entries.added)[order], first, axis=0)
        move, limit = np.divmod(keys[first], size)
        # The worst limit that a move does not change bounds its quality from above.
        ranks = np.full(size, len(self._ranked))
        ranks[self._ranked] = np.arange(len(self._ranked))
        changed = np.zeros((count, len(self._ranked) + 1), dtype=bool)
        changed[move, ranks[limit]] = True
        changed[:, -1] = False
        worst: FloatArray = np.append(self.by_limit[self._ranked], math.inf)[changed.argmin(axis=1)]
        if len(self._ranked) < size:
            worst = np.where(np.isinf(worst), self.by_limit[self._ranked[-1]], worst)  # a lower bound: all ranked limits change
        total = np.maximum(self.loads[limit] + added, 0.0)
        most = self._limit[limit]
        # Only a limit that is exceeded at the bound can lower the quality.
        bound = worst[move]
        high = np.isfinite(most)
        known = high & np.isfinite(bound)
        if known.any():
            at = np.where(known, bound, 1.0)[:, None]
            value = total[:, :, -1].copy()
            with np.errstate(over="ignore", invalid="ignore"):
                for term in range(total.shape[2] - 2, -1, -1):
                    value = value * at + total[:, :, term]
            high &= ~(known & (value <= most[:, None]).all(axis=1))
        if high.any():
            np.minimum.at(worst, move[high], greatest_multiple(total[high], most[high, None]).min(axis=1))
        return worst
