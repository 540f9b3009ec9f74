"""Computes completions interval by interval: at nodes whose work comes on several ways, and at nodes that send to each other in circles.

Each weighting of a node's work is a server, whose capacity earlier stimulus times take first (`sbon.cost.free_capacity`). The work of an
interval is taken from the servers as soon as its arrival is known. At the end of an operator's work, work that comes back to its node later
is not known yet.

- As expected, an operator's work is done at the first instant, from its arrival on, at which nothing waits at its servers. `_Walker._end_s`
  says how work that comes back counts.
- As a bound, all work that has not been done when the operator's work arrives counts as coming at that instant. So the end is that of the
  capacity left until then, and all work. This is Lindley's recursion: the capacity left is the greatest b less the work before b.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sbon.cost.excess import WorkClock
from sbon.cost.free_capacity import TINY_S, FreeCapacity


class Step(NamedTuple):
    """One step of each interval."""

    is_arrival: bool
    """True: the operator's work arrives. False: it is done."""
    operator: int


class Part(NamedTuple):
    """Work that arrives at a server with an operator's."""

    operator: int
    server: int
    work_s: list[float]
    """(intervals + 1,): work of the interval before each end, in seconds of the server."""


class Walk(NamedTuple):
    """Operators with their nodes' servers. Lists of floats are by end of interval, (intervals + 1,)."""

    steps: Sequence[Step]
    """Order of arrivals and completions within each interval."""
    sources: dict[int, list[list[float]]]
    """For each operator, the arrivals of what sources and other nodes send."""
    senders: dict[int, list[tuple[int, float]]]
    """For each operator, the others whose completions it waits for, and propagation. Below 0: on its node, with the same arrivals."""
    late_s: dict[int, list[float]]
    """For each operator that completes, the time added to its completions."""
    parts: Sequence[Part]
    servers_of: dict[int, list[int]]
    """For each operator that completes, the servers that have its work."""
    servers: list[FreeCapacity]
    clocks: Sequence[WorkClock | None]
    """For each server, the work it can do by each instant; None if it always does a second of work per second."""


class Ends(NamedTuple):
    """Arrivals and completions by operator, each (intervals + 1,)."""

    arrived_s: dict[int, list[float]]
    done_s: dict[int, list[float]]


def follow(walk: Walk, count: int, *, even: bool, is_bound: bool) -> Ends:
    """Returns when the work of each operator has arrived and is done, by stimulus time up to each of `count` ends of intervals.

    Parameters
    ----------
    even : False: all work of an interval comes when the last of it comes
    is_bound : True: no completion is later than returned. False: completions are expected values
    """
    return _Walker(walk, even, is_bound).run(count)


class _Walker:
    def __init__(self, walk: Walk, even: bool, is_bound: bool) -> None:
        self._walk, self._even = walk, even
        self._end = self._bound_s if is_bound else self._end_s
        self._ends = Ends({step.operator: [] for step in walk.steps if step.is_arrival}, {number: [] for number in walk.late_s})
        self._coming: dict[int, list[Part]] = {number: [] for number in self._ends.arrived_s}
        self._all_s = [0.0] * len(walk.servers)
        """For each server, all work of stimulus times up to the current end."""
        self._asking: list[list[int]] = [[] for _ in walk.servers]
        """For each server, the operators whose arrivals are the instants at which work comes or an end is asked for."""
        for part in walk.parts:
            self._coming[part.operator].append(part)
            self._asking[part.server].append(part.operator)
        for number, servers in walk.servers_of.items():
            for server in servers:  # also of operators without work
                self._asking[server].append(number)
        self._later: dict[int, list[tuple[int, list[Part]]]] = {}
        """For each operator that completes, its servers, each with the parts whose arrivals are computed only afterwards."""
        arrived: set[int] = set()
        for step in walk.steps:
            if step.is_arrival:
                arrived.add(step.operator)
                continue
            later = [part for part in walk.parts if part.operator not in arrived]
            self._later[step.operator] = [(one, [part for part in later if part.server == one]) for one in walk.servers_of[step.operator]]

    def run(self, count: int) -> Ends:
        """Returns all arrivals and completions."""
        walk, (arrived, done) = self._walk, self._ends
        for end in range(count):
            for part in walk.parts:
                self._all_s[part.server] += part.work_s[end]
            for is_arrival, number in walk.steps:
                if is_arrival:
                    self._arrive(number, end)
                else:
                    end_s = self._end(number, end) + walk.late_s[number][end]
                    done[number].append(max(end_s, done[number][-1]) if end else end_s)
            for server, asking in zip(walk.servers, self._asking, strict=True):
                server.forget(min([arrived[number][end] for number in asking]))
        return self._ends

    def _arrive(self, number: int, end: int) -> None:
        """Computes the arrival of an operator's work up to an end of an interval, and takes this work from the servers."""
        walk, (arrived, done) = self._walk, self._ends
        came = [one[end] for one in walk.sources[number]]
        came += [arrived[one][end] if delay_s < 0 else done[one][end] + delay_s for one, delay_s in walk.senders[number]]
        at_s = max(came)
        arrived[number].append(at_s)
        if end and at_s < float("inf"):
            since_s = arrived[number][end - 1] if self._even else at_s
            for part in self._coming[number]:
                walk.servers[part.server].take(since_s, at_s, part.work_s[end])

    def _bound_s(self, number: int, end: int) -> float:
        """Returns the latest end of an operator's work."""
        walk, at_s = self._walk, self._ends.arrived_s[number][end]
        latest_s = at_s
        for server in walk.servers_of[number] if at_s < float("inf") else ():
            done, clock = self._all_s[server] + walk.servers[server].free_by(at_s), walk.clocks[server]
            latest_s = max(latest_s, done if clock is None else float(clock.instant_of(np.array([done]))[0]))
        return latest_s

    def _end_s(self, number: int, end: int) -> float:
        """Returns the expected end of an operator's work, if work that goes in a circle comes as far behind it as in the interval before.

        The later the end is taken to be, the later that work comes, and the less of it counts. One step of the secant method, from the end
        without this work and the end with it, finds the end that agrees with itself.
        """
        walk, (arrived, done) = self._walk, self._ends
        at_s = arrived[number][end]
        if at_s == float("inf"):
            return at_s
        alone = [walk.servers[server].idle_s(at_s) for server, _ in self._later[number]]
        without_s = max(alone)
        if not end or without_s == float("inf"):
            return without_s
        backs: list[tuple[int, list[tuple[float, float]]]] = []
        for (server, parts), idle_s in zip(self._later[number], alone, strict=True):
            back = [(arrived[part.operator][end - 1], part.work_s[end]) for part in parts if part.work_s[end] > 0]
            if any(since_s < idle_s for since_s, _ in back):  # work that comes to an idle server changes nothing
                backs.append((server, [one for one in back if one[0] < float("inf")]))
        if not backs:
            return without_s
        offset_s = walk.late_s[number][end] - done[number][end - 1]

        def end_if(done_s: float) -> float:
            later_s = max(0.0, done_s + offset_s)
            found_s = without_s
            for server, back in backs:
                coming = [(since_s if self._even else since_s + later_s, since_s + later_s, work_s) for since_s, work_s in back]
                found_s = max(found_s, walk.servers[server].idle_if(coming, at_s))
            return found_s

        with_s = end_if(without_s)
        more_s = with_s - without_s
        if more_s <= TINY_S:
            return with_s
        again_s = end_if(with_s)
        return without_s + more_s * more_s / (more_s + with_s - again_s) if again_s < with_s else again_s
