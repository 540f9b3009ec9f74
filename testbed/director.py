"""Plays a scenario in a world, virtual or local, and records the results."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from sbon.errors import ConfigError, SbonError
from sbon_testbed import report
from sbon_testbed.backend import Backend, Tail
from sbon_testbed.scenario import (
    Heal,
    Kill,
    Latency,
    Leave,
    Load,
    Migrate,
    Partition,
    Restart,
    Scenario,
    ScenarioEvent,
    Statement,
    statement_name,
)
from sbon_testbed.topology import PairMask, Topology, pairs_between

CURVE_POINTS = 20
"""Number of times that the coordinates' error is measured over a run."""

Progress = Callable[[float, str], None]
"""Called with the time in the world and a description of the current step."""


class Asked(NamedTuple):
    """A statement that was submitted, and its result."""

    name: str
    agent: str
    at_s: float
    query: str
    tail: Tail | None
    results: list[dict[str, Any]]
    error: str


class Director:
    """Performs the events of a scenario at their times, and records the results."""

    def __init__(self, scenario: Scenario, backend: Backend, duration_s: float, progress: Progress) -> None:
        self.scenario = scenario
        self.backend = backend
        self.duration_s = duration_s
        self.asked: list[Asked] = []
        self.happened: list[dict[str, Any]] = []
        self.skipped: list[str] = []
        self.problems: list[str] = []
        self.curve: list[tuple[float, float | None]] = []
        self._progress = progress

    def play(self) -> None:
        """Runs the whole scenario."""
        for at_s, action in self._timeline():
            if at_s > self.backend.now:
                self.backend.run(at_s - self.backend.now)
            action()
        if self.duration_s > self.backend.now:
            self.backend.run(self.duration_s - self.backend.now)

    def _timeline(self) -> list[tuple[float, Callable[[], None]]]:
        scenario, count = self.scenario, len(self.backend.topology.nodes)
        actions: list[tuple[float, Callable[[], None]]] = []
        actions += [(scenario.start_spread_s * number / max(1, count - 1), partial(self._start, number)) for number in range(count)]
        actions += [(statement.at_s, partial(self._ask, number)) for number, statement in enumerate(scenario.statement)]
        actions += [(event.at_s, partial(self._do, event)) for event in scenario.event]
        actions += [(self.duration_s * point / CURVE_POINTS, self._look) for point in range(1, CURVE_POINTS + 1)]
        late = [at_s for at_s, _ in actions if at_s > self.duration_s]
        if late:
            self.skipped.append(f"{len(late)} statements and events after the end at {self.duration_s:g} s")
        return sorted((item for item in actions if item[0] <= self.duration_s), key=lambda item: item[0])

    def _start(self, number: int) -> None:
        self.backend.start(number)
        self._progress(self.backend.now, f"started {self.backend.topology.nodes[number]}")

    def _look(self) -> None:
        errors = report.coordinate_errors(self.backend)
        median = errors["median_relative_error"]
        self.curve.append((round(self.backend.now, 3), median))
        if median is not None:
            self._progress(self.backend.now, f"coordinates off by {median:.1%} (median)")

    def _ask(self, number: int) -> None:
        statement: Statement = self.scenario.statement[number]
        name, at_s = statement_name(self.scenario, number), round(self.backend.now, 6)
        try:
            agent = self.backend.topology.nodes[self.backend.topology.select(statement.agent)[0]]
        except ConfigError as problem:
            self.skipped.append(f"statement {name}: {problem}")
            return
        query, tail, error = "", None, ""
        results: list[dict[str, Any]] = []
        try:
            results = self.backend.ask(agent, "submit", sql=statement.sql)
            for result in results:
                query = result.get("query") or query
                if result.get("statement") == "query" and result.get("query"):
                    tail = self.backend.tail(result["query"], agent)
        except SbonError as problem:
            error = str(problem)
            self.problems.append(f"statement {name} at {agent}: {error}")
        self.asked.append(Asked(name, agent, at_s, query, tail, results, error))
        self._progress(self.backend.now, f"{agent} took statement {name}" if not error else f"{agent} refused statement {name}: {error}")

    def _do(self, event: ScenarioEvent) -> None:
        try:
            what = self._perform(event)
        except ConfigError as problem:
            self.skipped.append(f"event at {event.at_s:g} s: {problem}")
            return
        self.happened.append({"at_s": round(self.backend.now, 6), "what": what})
        self._progress(self.backend.now, what)

    def _perform(self, event: ScenarioEvent) -> str:
        backend, topology = self.backend, self.backend.topology
        if isinstance(event, Latency):
            backend.scale(latency_pairs(topology, event), event.factor)
            return f"latency x {event.factor:g} on {event.cable or ' to '.join(event.between or ())}"
        if isinstance(event, Partition):
            backend.partition([[node for selector in group for node in topology.select(selector)] for group in event.groups])
            return "partition " + " | ".join(",".join(group) for group in event.groups)
        if isinstance(event, Heal):
            backend.heal()
            return "partitions healed"
        if isinstance(event, Migrate):
            return self._migrate(event)
        nodes = topology.select(event.agents)
        for node in nodes:
            if isinstance(event, Load):
                backend.load(node, event.fraction)
            elif isinstance(event, Kill):
                backend.kill(node, silent=event.silent)
            elif isinstance(event, Restart):
                backend.restart(node, lose_data=event.lose_data)
            elif isinstance(event, Leave):
                backend.leave(node)
        return f"{type(event).__name__.lower()} {', '.join(topology.nodes[node] for node in nodes)}"

    def _migrate(self, event: Migrate) -> str:
        backend, topology = self.backend, self.backend.topology
        there = topology.nodes[topology.select(event.to)[0]]
        queries = {asked.query for asked in self.asked if asked.name == event.statement}
        asked = moved = 0
        for node in topology.nodes:
            if not backend.alive(node) or node == there:
                continue
            for row in backend.ask(node, "operators"):
                if not row["pinned"] and queries & set(row["queries"]):
                    asked += 1
                    try:
                        moved += bool(backend.ask(node, "migrate", operator=row["id"], node=there)["committed"])
                    except SbonError as problem:
                        self._progress(backend.now, f"{row['id']} stays on {node}: {problem}")
        return f"migrated {moved} of {asked} operators of {event.statement} to {there}"


def latency_pairs(topology: Topology, event: Latency) -> PairMask:
    """Returns the pairs that a latency event affects.

    Raises
    ------
    ConfigError
        The topology has no such cable or nodes.
    """
    if event.between is not None:
        return pairs_between(topology, topology.select(event.between[0]), topology.select(event.between[1]))
    if event.cable not in topology.cables:
        known = ", ".join(sorted(topology.cables)) or "none"
        raise ConfigError(f'no cable "{event.cable}" in a topology of kind {topology.kind}; there are {known}')
    return topology.cables[event.cable]
