"""Simulates one core that serves a graph of operators, to test claims about scheduling orders.

Every source event enters at its stimulus time and goes to an operator. An operator works on each event for its cost, then passes the result
to each operator behind it; an operator without one behind it is an exit. The latency of a source event is the time from its entry until the
last result derived from it leaves at an exit.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sbon.scheduling import EarliestStimulusFirst, StimulusFifo


class Graph(NamedTuple):
    """Operators by number; results go from lower to higher numbers."""

    cost: tuple[float, ...]
    behind: tuple[tuple[int, ...], ...]


class Arrival(NamedTuple):
    """A source event."""

    stimulus_s: float
    operator: int


class Waiting(NamedTuple):
    """An event in the queue of an operator."""

    stimulus_s: float
    way: tuple[int, int]
    """(sending operator, receiving operator); an event from outside has -1 - receiver as its sender."""
    came: int
    """Position in the order of enqueuing, over all operators."""
    source: int
    """Number of the source event from which it derives."""


class Scheduler:
    """Chooses the waiting event to serve next."""

    def add(self, waiting: Waiting) -> None:
        """Enqueues an event at its operator."""
        raise NotImplementedError

    def next(self) -> Waiting | None:
        """Removes and returns the next event; None when nothing waits."""
        raise NotImplementedError


class StimulusTime(Scheduler):
    """The library's queues, combined as in the engine: a FIFO for each way, whose heads are merged by operator, then over operators."""

    def __init__(self) -> None:
        self._fifos: dict[tuple[int, int], StimulusFifo[Waiting]] = {}
        self._heads: dict[int, EarliestStimulusFirst[tuple[int, int]]] = {}
        self._ready = EarliestStimulusFirst[int]()

    def add(self, waiting: Waiting) -> None:
        """Appends an event to the FIFO of its way."""
        self._fifos.setdefault(waiting.way, StimulusFifo()).append(waiting)
        self._tell(waiting.way)

    def next(self) -> Waiting | None:
        """Removes and returns the head of the most urgent way of the most urgent operator."""
        operator = self._ready.first()
        if operator is None:
            return None
        way = self._heads[operator].first()
        waiting = self._fifos[way].popleft()
        self._tell(way)
        return waiting

    def _tell(self, way: tuple[int, int]) -> None:
        operator, fifo = way[1], self._fifos[way]
        heads = self._heads.setdefault(operator, EarliestStimulusFirst())
        if fifo:
            heads.push(way, fifo.earliest_s)
        else:
            heads.remove(way)
        first = heads.first()
        if first is None:
            self._ready.remove(operator)
        else:
            self._ready.push(operator, self._fifos[first].earliest_s)


class ByOperator(Scheduler):
    """Other schedulers: each operator has one queue in order of arrival; a rule chooses among operators."""

    def __init__(self, rule: Callable[["ByOperator"], int]) -> None:
        self.queues: dict[int, list[Waiting]] = {}
        self.served = -1
        """The operator served last; -1 at the beginning."""
        self._rule = rule

    def add(self, waiting: Waiting) -> None:
        """Appends an event to its operator's queue."""
        self.queues.setdefault(waiting.way[1], []).append(waiting)

    def next(self) -> Waiting | None:
        """Removes and returns the first event of the operator that the rule chooses."""
        if not self.queues:
            return None
        self.served = self._rule(self)
        waiting = self.queues[self.served].pop(0)
        if not self.queues[self.served]:
            del self.queues[self.served]
        return waiting


def fifo(scheduler: ByOperator) -> int:
    """Returns the operator whose first event has waited longest."""
    return min(scheduler.queues, key=lambda operator: scheduler.queues[operator][0].came)


def round_robin(scheduler: ByOperator) -> int:
    """Returns the next operator with a waiting event, in turn."""
    return min(scheduler.queues, key=lambda operator: (operator <= scheduler.served, operator))


def longest_queue(scheduler: ByOperator) -> int:
    """Returns the operator with the longest queue; of equals, the first."""
    return min(scheduler.queues, key=lambda operator: (-len(scheduler.queues[operator]), operator))


OTHERS = {"FIFO per operator": fifo, "round robin": round_robin, "longest queue first": longest_queue}


def latencies(graph: Graph, arrivals: Sequence[Arrival], scheduler: Scheduler) -> list[float]:
    """Returns the latency of each source event. The core never idles while an event waits, and finishes each event it begins."""
    order = sorted(range(len(arrivals)), key=lambda number: arrivals[number].stimulus_s)
    count = itertools.count()
    done = [0.0] * len(arrivals)
    now, entered = 0.0, 0

    def enter() -> None:
        nonlocal entered
        while entered < len(order) and arrivals[order[entered]].stimulus_s <= now:
            stimulus_s, operator = arrivals[order[entered]]
            scheduler.add(Waiting(stimulus_s, (-1 - operator, operator), next(count), order[entered]))
            entered += 1

    while True:
        enter()
        event = scheduler.next()
        if event is None:
            if entered == len(order):
                return [end - arrival.stimulus_s for end, arrival in zip(done, arrivals, strict=True)]
            now = arrivals[order[entered]].stimulus_s
            continue
        operator = event.way[1]
        now += graph.cost[operator]
        enter()  # events that arrived in the meantime are enqueued before the results
        for behind in graph.behind[operator]:
            scheduler.add(Waiting(event.stimulus_s, (operator, behind), next(count), event.source))
        if not graph.behind[operator]:
            done[event.source] = now


def least_worst_latency(graph: Graph, arrivals: Sequence[Arrival]) -> float:
    """Returns the lowest worst latency of any order, by trying all orders. Only for a handful of events."""
    order = sorted(arrivals)
    ends = [i for i, behind in enumerate(graph.behind) if not behind]

    def best(now: float, entered: int, waiting: tuple[tuple[int, float], ...], worst: float, bound: float) -> float:
        while entered < len(order) and (order[entered].stimulus_s <= now or not waiting):
            now = max(now, order[entered].stimulus_s)
            waiting += ((order[entered].operator, order[entered].stimulus_s),)
            entered += 1
        if not waiting or worst >= bound:
            return min(worst, bound)
        for choice in sorted(set(waiting)):
            operator, stimulus_s = choice
            rest = list(waiting)
            rest.remove(choice)
            end = now + graph.cost[operator]
            latest = max(worst, end - stimulus_s) if operator in ends else worst
            after = (*rest, *((behind, stimulus_s) for behind in graph.behind[operator]))
            bound = min(bound, best(end, entered, after, latest, bound))
        return bound

    return best(0.0, 0, (), 0.0, float("inf"))


def random_graph(rng: np.random.Generator, operators: int) -> Graph:
    """Returns chains, fans and diamonds of operators with costs between 0.2 and 2."""
    behind = []
    for number in range(operators):
        later = np.arange(number + 1, operators)
        fan = min(len(later), int(rng.choice([0, 1, 1, 1, 2])))
        behind.append(tuple(int(x) for x in sorted(rng.choice(later, fan, replace=False))) if fan else ())
    return Graph(tuple(float(x) for x in rng.uniform(0.2, 2.0, operators)), tuple(behind))


def bursts(rng: np.random.Generator, graph: Graph, events: int) -> list[Arrival]:
    """Returns bursts at random instants to random operators, and single events between them."""
    arrivals: list[Arrival] = []
    now = 0.0
    while len(arrivals) < events:
        now += float(rng.exponential(8.0))
        operator = int(rng.integers(len(graph.cost)))
        size = int(rng.integers(2, 12)) if rng.random() < 0.4 else 1
        arrivals += [Arrival(now + i * float(rng.choice([0.0, 0.01])), operator) for i in range(size)]
    return arrivals[:events]
