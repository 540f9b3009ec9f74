"""One core, operators in a graph, and an order in which they are served: a world of its own for claims about scheduling.

Every source event has an instant at which it enters (its stimulus time) and goes to an operator. An operator takes as long for each event
as its cost, and gives its result to each operator behind it; one without any behind it is an exit. The latency of an event is the time from
its entry until the last exit of what has come of it.
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
    """From which operator (-1: from outside, with the number of the operator) to which."""
    came: int
    """Number of its enqueuing, over all operators."""
    source: int
    """Number of the source event that it comes of."""


class Scheduler:
    """Who is served next. Takes what is enqueued and gives one waiting event at a time."""

    def add(self, waiting: Waiting) -> None:
        """An event has come to an operator."""
        raise NotImplementedError

    def next(self) -> Waiting | None:
        """Whose turn it is; None when nothing waits."""
        raise NotImplementedError


class StimulusTime(Scheduler):
    """The library's queue, put together as the engine does it: a FIFO for each way, heads merged by operator and over operators."""

    def __init__(self) -> None:
        self._fifos: dict[tuple[int, int], StimulusFifo[Waiting]] = {}
        self._heads: dict[int, EarliestStimulusFirst[tuple[int, int]]] = {}
        self._ready = EarliestStimulusFirst[int]()

    def add(self, waiting: Waiting) -> None:
        """To the end of its way."""
        self._fifos.setdefault(waiting.way, StimulusFifo()).append(waiting)
        self._tell(waiting.way)

    def next(self) -> Waiting | None:
        """The head of the most urgent way of the most urgent operator."""
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
    """What others do: each operator has one queue in order of arrival; a rule chooses among the operators."""

    def __init__(self, rule: Callable[["ByOperator"], int]) -> None:
        self.queues: dict[int, list[Waiting]] = {}
        self.served = -1
        """The operator that was last."""
        self._rule = rule

    def add(self, waiting: Waiting) -> None:
        """To the end of its operator's queue."""
        self.queues.setdefault(waiting.way[1], []).append(waiting)

    def next(self) -> Waiting | None:
        """The first of the operator that the rule says."""
        if not self.queues:
            return None
        self.served = self._rule(self)
        waiting = self.queues[self.served].pop(0)
        if not self.queues[self.served]:
            del self.queues[self.served]
        return waiting


def fifo(scheduler: ByOperator) -> int:
    """The operator whose first event has waited longest in its queue."""
    return min(scheduler.queues, key=lambda operator: scheduler.queues[operator][0].came)


def round_robin(scheduler: ByOperator) -> int:
    """The next one that has anything, in turn."""
    return min(scheduler.queues, key=lambda operator: (operator <= scheduler.served, operator))


def longest_queue(scheduler: ByOperator) -> int:
    """The one with the most waiting; of equals, the first."""
    return min(scheduler.queues, key=lambda operator: (-len(scheduler.queues[operator]), operator))


OTHERS = {"FIFO per operator": fifo, "round robin": round_robin, "longest queue first": longest_queue}


def latencies(graph: Graph, arrivals: Sequence[Arrival], scheduler: Scheduler) -> list[float]:
    """Of each source event, in virtual time; the core never rests while something waits, and never leaves what it has begun."""
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
        enter()  # what came in the meantime came before the results
        for behind in graph.behind[operator]:
            scheduler.add(Waiting(event.stimulus_s, (operator, behind), next(count), event.source))
        if not graph.behind[operator]:
            done[event.source] = now


def least_worst_latency(graph: Graph, arrivals: Sequence[Arrival]) -> float:
    """The lowest worst latency that any order whatever reaches, by trying all of them; for a handful of events."""
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
    """Chains, fans and diamonds; costs between a fifth and twice the mean."""
    behind = []
    for number in range(operators):
        later = np.arange(number + 1, operators)
        fan = min(len(later), int(rng.choice([0, 1, 1, 1, 2])))
        behind.append(tuple(int(x) for x in sorted(rng.choice(later, fan, replace=False))) if fan else ())
    return Graph(tuple(float(x) for x in rng.uniform(0.2, 2.0, operators)), tuple(behind))


def bursts(rng: np.random.Generator, graph: Graph, events: int) -> list[Arrival]:
    """Bursts at random instants to random operators, with lonely events between them."""
    arrivals: list[Arrival] = []
    now = 0.0
    while len(arrivals) < events:
        now += float(rng.exponential(8.0))
        operator = int(rng.integers(len(graph.cost)))
        size = int(rng.integers(2, 12)) if rng.random() < 0.4 else 1
        arrivals += [Arrival(now + i * float(rng.choice([0.0, 0.01])), operator) for i in range(size)]
    return arrivals[:events]
