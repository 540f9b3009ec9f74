"""Simulates operators on nodes in virtual time, event by event; predictions of latency are compared with the result.

Every node serves the waiting event with the earliest stimulus time on any of its cores; an operator uses one core at a time. An event that
has begun is finished. Links are nodes whose work is bytes. The simulation has no model: no intervals, no load, no excess.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from sbon.cost.load import OperatorCost, Source, Upstream
from sbon.cost.node_excess import Nodes
from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray

_DRAWS = 65_536
"""Number of random numbers that are drawn at once."""


class Noise(msgspec.Struct, frozen=True):
    """The deviation of single events from their operator's averages."""

    cost: float = 0.0
    """Standard deviation of an event's cost divided by its mean; costs are gamma-distributed."""
    drawn: bool = False
    """True: the rows out of each event are random. False: they are as regular as possible."""


class Measured(msgspec.Struct, frozen=True):
    """Answers, in the order of their egress."""

    stimulus_s: FloatArray
    """(answers,)"""
    latency_s: FloatArray
    """(answers,): from stimulus time to egress."""
    events_in: IntArray
    """(operators,): events that each operator has processed."""
    events_out: IntArray
    """(operators,)"""
    busy_s: FloatArray
    """(operators,): time spent on these events."""

    def worst_by_interval(self, width_s: float, intervals: int) -> FloatArray:
        """Returns the greatest latency of answers by interval of their stimulus times (definition 4); 0 without answers."""
        found = np.zeros(intervals)
        place = np.minimum((self.stimulus_s / width_s).astype(np.int64), intervals - 1)
        np.maximum.at(found, place, self.latency_s)
        return found


class _Event(NamedTuple):
    rank_s: float
    """Rank by which events are served: the stimulus time, or the beginning of its interval."""
    born: int
    """Order of creation, which breaks ties."""
    stimulus_s: float
    operator: int
    port: int


def simulate(
    operators: Sequence[OperatorCost],
    node_of: IntArray,
    nodes: Nodes,
    arrivals_s: Sequence[FloatArray],
    rng: np.random.Generator,
    noise: Noise | None = None,
    *,
    rank_width_s: float = 0.0,
) -> Measured:
    """Returns the answers to source events, with their latencies.

    Every event that an operator without consumers finishes is an answer.

    Parameters
    ----------
    operators : upstream first; linear, as products and constants cannot be simulated by single events
    node_of : (operators,)
    nodes : nodes with constant capacity
    arrivals_s : for each source, the instants of its events, increasing
    noise : deviations of single events; None: no noise
    rank_width_s : events with stimulus times in the same interval of this width are served in order of creation (section VII-A); 0: by
        stimulus time alone

    Raises
    ------
    ShapeError
        An operator is not linear, or a capacity varies.
    """
    if any(one.rows.products or one.work.products or one.rows.constant or one.work.constant for one in operators) or nodes.left is not None:
        raise ShapeError("products, constants or varying capacity, expected linear operators and constant capacity")
    return _World(operators, node_of, nodes, rng, Noise() if noise is None else noise).run(arrivals_s, rank_width_s)


class _World:
    def __init__(self, operators: Sequence[OperatorCost], node_of: IntArray, nodes: Nodes, rng: np.random.Generator, noise: Noise) -> None:
        count = len(operators)
        self._rng, self._noise = rng, noise
        self._node_of = node_of.tolist()
        speed = nodes.capacity_per_s[node_of]
        self._cost_s = [[cost / speed[number] for cost in one.work.linear] for number, one in enumerate(operators)]
        self._selectivity = [one.rows.linear for one in operators]
        self._owed = [[0.0] * len(one.inputs) for one in operators]
        self._consumers: list[list[tuple[int, int, float]]] = [[] for _ in operators]
        for number, one in enumerate(operators):
            for port, taken in enumerate(one.inputs):
                if isinstance(taken, Upstream):
                    self._consumers[taken.operator].append((number, port, taken.delay_s))
        self._operators = operators
        self._free = nodes.cores.tolist()
        self._waiting: list[list[_Event]] = [[] for _ in self._free]
        self._aside: list[list[_Event]] = [[] for _ in range(count)]
        """Events that came to the head of their node's queue while their operator was busy."""
        self._is_busy = [False] * count
        self._heap: list[tuple[float, int, bool, _Event]] = []
        """Instant, order, True for an end of work or False for an arrival, event."""
        self._count = 0
        self._in, self._out, self._busy_s = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64), np.zeros(count)
        self._answers: list[tuple[float, float]] = []
        self._gamma: list[float] = []
        self._uniform: list[float] = []

    def run(self, arrivals_s: Sequence[FloatArray], rank_width_s: float) -> Measured:
        for number, one in enumerate(self._operators):
            for port, taken in enumerate(one.inputs):
                if isinstance(taken, Source):
                    for instant_s in arrivals_s[taken.index].tolist():
                        self._count += 1
                        rank_s = instant_s // rank_width_s * rank_width_s if rank_width_s else instant_s
                        self._heap.append((instant_s, self._count, False, _Event(rank_s, self._count, instant_s, number, port)))
        heapq.heapify(self._heap)
        while self._heap:
            now_s = self._heap[0][0]
            touched = set()
            while self._heap and self._heap[0][0] == now_s:  # all events of an instant, before any work begins
                _, _, is_end, event = heapq.heappop(self._heap)
                touched.add(self._node_of[event.operator])
                if is_end:
                    self._end(event, now_s)
                else:
                    heapq.heappush(self._waiting[self._node_of[event.operator]], event)
            for node in touched:
                self._begin(node, now_s)
        found = np.array(self._answers).reshape(-1, 2)
        return Measured(found[:, 0], found[:, 1] - found[:, 0], self._in, self._out, self._busy_s)

    def _begin(self, node: int, now_s: float) -> None:
        waiting = self._waiting[node]
        while self._free[node] and waiting:
            event = heapq.heappop(waiting)
            operator = event.operator
            if self._is_busy[operator]:
                self._aside[operator].append(event)
                continue
            self._is_busy[operator] = True
            self._free[node] -= 1
            cost_s = self._cost_s[operator][event.port]
            if self._noise.cost and cost_s:
                cost_s *= self._gamma_draw()
            self._in[operator] += 1
            self._busy_s[operator] += cost_s
            self._count += 1
            heapq.heappush(self._heap, (now_s + cost_s, self._count, True, event))

    def _end(self, event: _Event, now_s: float) -> None:
        operator, node = event.operator, self._node_of[event.operator]
        self._is_busy[operator] = False
        self._free[node] += 1
        for one in self._aside[operator]:
            heapq.heappush(self._waiting[node], one)
        self._aside[operator].clear()
        consumers = self._consumers[operator]
        if not consumers:
            self._answers.append((event.stimulus_s, now_s))
        for _ in range(self._rows_out(operator, event.port)):
            self._out[operator] += 1
            for target, port, delay_s in consumers:
                self._count += 1
                child = _Event(event.rank_s, self._count, event.stimulus_s, target, port)
                if delay_s == 0.0 and self._node_of[target] == node:
                    heapq.heappush(self._waiting[node], child)
                else:
                    heapq.heappush(self._heap, (now_s + delay_s, self._count, False, child))

    def _rows_out(self, operator: int, port: int) -> int:
        selectivity = self._selectivity[operator][port]
        if self._noise.drawn:
            whole = int(selectivity)
            return whole + (self._uniform_draw() < selectivity - whole)
        self._owed[operator][port] += selectivity
        rows = int(self._owed[operator][port] + 1e-9)
        self._owed[operator][port] -= rows
        return rows

    def _gamma_draw(self) -> float:
        if not self._gamma:
            shape = 1.0 / self._noise.cost**2
            self._gamma = self._rng.gamma(shape, 1.0 / shape, _DRAWS).tolist()
        return self._gamma.pop()

    def _uniform_draw(self) -> float:
        if not self._uniform:
            self._uniform = self._rng.random(_DRAWS).tolist()
        return self._uniform.pop()
