"""A synthetic day of an overlay: its agents, its queries, and the hosts and moves of operators.

It gives logs of any size without running an overlay: `sbon_testbed.telemetry.generator` writes the rows that its agents would have
recorded. Nothing here is measured. Latencies are those of cities, and an ocean cable is slower for part of the time, so that good
placements do not stay good.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from sbon.types import FloatArray
from sbon_testbed.topology import CitiesConfig, Latencies, Topology, build

Numbers = npt.NDArray[np.int64]

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
CABLE, CABLE_FACTOR = "atlantic", 1.8
SOURCE_BYTES, WINDOW_BYTES, MAP_BYTES = 32.0, 48.0, 40.0
"""Bytes of a row on an output link, by kind of operator."""
CANDIDATES = 3
SHARING = 0.25
"""Share of queries that use another query's window."""
CRASHES = 0.05
"""Share of agents that crash, once, for five minutes."""
DOWN_S = 300.0


@dataclass
class Operators:
    """All operators of all queries, as columns."""

    name: list[str] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    query: list[int] = field(default_factory=list)
    """The query that created the operator."""
    users: list[set[int]] = field(default_factory=list)
    rate_in: list[float] = field(default_factory=list)
    rate_out: list[float] = field(default_factory=list)
    """Planned rows/s; measured ones vary over the day and have a bias."""
    bias: list[float] = field(default_factory=list)
    moves: list[list[tuple[float, int]]] = field(default_factory=list)
    """For each operator, pairs of a time, in seconds since the start, and the node to which it came; the first pair is its start."""

    def add(self, name: str, kind: str, query: int, rates: tuple[float, float], node: int, bias: float) -> int:
        """Adds an operator; returns its number."""
        self.name.append(name)
        self.kind.append(kind)
        self.query.append(query)
        self.users.append({query})
        self.rate_in.append(rates[0])
        self.rate_out.append(rates[1])
        self.bias.append(bias)
        self.moves.append([(0.0, node)])
        return len(self.name) - 1


@dataclass(frozen=True)
class Query:
    """One query."""

    name: str
    consumer: int
    operators: tuple[int, ...]
    """Its own operators."""
    shared: int | None
    """The window of another query that serves it."""


@dataclass(frozen=True)
class Move:
    """One migration of one operator."""

    at_s: float
    operator: int
    source: int
    target: int
    before: float
    after: float
    """Network usage of the operators' links after the migration, bytes in transit."""


class Story:
    """All decisions of the story, drawn from a seed.

    Parameters
    ----------
    agents, queries : numbers of agents and of queries
    seconds : duration
    """

    def __init__(self, agents: int, queries: int, seconds: float, seed: int) -> None:
        self.seed = seed
        self.rng = np.random.default_rng([seed, 0x7E1E])
        self.seconds = seconds
        self.topology: Topology = build(CitiesConfig(), agents, seed)
        self.cable_s = (0.4 * seconds, 0.65 * seconds)
        """Begin and end of the time when the cable was slower, in seconds."""
        self.quiet_ms = self.topology.rtt_ms
        slower = Latencies(self.topology)
        slower.scale(self.topology.cables[CABLE], CABLE_FACTOR)
        self.slower_ms = slower.rtt_ms()
        self.vectors, self.heights = embedded(self.quiet_ms, self.topology.access_ms)
        self.operators = Operators()
        self.links: list[tuple[int, int, float]] = []
        """Source and target operators of each link, and its planned bytes/s."""
        self.queries: list[Query] = []
        for number in range(queries):
            self.queries.append(self._query(number))
        self.moves = self._moved()
        crashed: Iterable[int] = self.rng.permutation(agents)[: round(agents * CRASHES)] if seconds > 4 * DOWN_S else []
        self.down_s = {int(agent): float(self.rng.uniform(0.1, 0.8) * seconds) for agent in crashed}
        """Time at which each crashed agent went down; it came back `DOWN_S` later."""

    def rtt_ms(self, at_s: float) -> FloatArray:
        """Returns the true RTTs at a moment, (agents, agents)."""
        return self.slower_ms if self.cable_s[0] <= at_s < self.cable_s[1] else self.quiet_ms

    def tide(self, at_s: FloatArray) -> FloatArray:
        """Returns the factor by which load varies over the day, around 1."""
        return 1.0 + 0.35 * np.sin(2 * np.pi * (at_s / 86400.0 - 0.3))

    def hosts(self, operator: int, at_s: FloatArray) -> Numbers:
        """Returns the node of an operator at each of these moments."""
        moves = self.operators.moves[operator]
        since = np.array([move[0] for move in moves])
        nodes = np.array([move[1] for move in moves], dtype=np.int64)
        return nodes[np.searchsorted(since, at_s, side="right") - 1]

    def _query(self, number: int) -> Query:
        rng, all_operators = self.rng, self.operators
        agents = len(self.topology.nodes)
        region = self.topology.select(f"region={self.topology.labels[int(rng.integers(agents))]['region']}")
        consumer = int(rng.integers(agents))
        name = f"{self.topology.nodes[consumer]}.q{number}"
        shareable = [query for query in self.queries if query.shared is None]
        shared = None
        own: list[int] = []

        def add(kind: str, rates: tuple[float, float], node: int) -> int:
            own.append(all_operators.add(f"{name}.{len(own)}", kind, number, rates, node, float(rng.lognormal(0.0, 0.25))))
            return own[-1]

        if shareable and rng.random() < SHARING:
            giver = shareable[int(rng.integers(len(shareable)))]
            shared = giver.operators[-3]
            for operator in giver.operators[:-2]:
                all_operators.users[operator].add(number)
            window, out = shared, all_operators.rate_out[shared]
        else:
            sources = [
                add("source", (0.0, rate), region[int(rng.integers(len(region)))]) for rate in rng.uniform(50, 500, int(rng.integers(2, 5)))
            ]
            rate_in = sum(all_operators.rate_out[source] for source in sources)
            out = rate_in * float(rng.uniform(0.02, 0.15))
            start = self._chosen([(source, all_operators.rate_out[source] * SOURCE_BYTES) for source in sources], consumer, out)
            window = add("window", (rate_in, out), start)
            self.links += [(source, window, all_operators.rate_out[source] * SOURCE_BYTES) for source in sources]
        filtered = add("map", (out, out * 0.6), all_operators.moves[window][0][1])
        sink = add("sink", (out * 0.6, 0.0), consumer)
        self.links += [(window, filtered, out * WINDOW_BYTES), (filtered, sink, out * 0.6 * MAP_BYTES)]
        return Query(name, consumer, tuple(own), shared)

    def _chosen(self, sources: list[tuple[int, float]], consumer: int, out: float) -> int:
        """Returns a good host by slightly wrong coordinates, not always the best one."""
        ends = [self.operators.moves[source][0][1] for source, _ in sources] + [consumer]
        rates = np.array([rate for _, rate in sources] + [out * WINDOW_BYTES])
        cost = rates @ predicted_ms(self.vectors, self.heights, ends)
        return int(self.rng.choice(np.argsort(cost)[:CANDIDATES]))

    def _moved(self) -> list[Move]:
        """Returns migrations at random times, more of them after changes of the cable. Most move operators to the best node by true
        latencies."""
        moves = []
        for window in [number for number, kind in enumerate(self.operators.kind) if kind == "window"]:
            followers = [target for source, target, _ in self.links if source == window]
            moments = np.sort(
                np.concatenate(
                    [self.rng.uniform(60, self.seconds, 2), [edge + self.rng.exponential(self.seconds / 100) for edge in self.cable_s]]
                )
            )
            for at_s in moments[moments < self.seconds - 60]:
                moves += self._reviewed(window, followers, float(at_s))
        return sorted(moves, key=lambda move: move.at_s)

    def _reviewed(self, window: int, followers: list[int], at_s: float) -> list[Move]:
        inputs = [(source, rate) for source, target, rate in self.links if target == window]
        outputs = [(target, rate) for source, target, rate in self.links if source in followers]
        here = self.operators.moves[window][-1][1]
        if at_s <= self.operators.moves[window][-1][0]:
            return []
        ends = [self.operators.moves[operator][-1][1] for operator, _ in inputs + outputs]
        rates = np.array([rate for _, rate in inputs + outputs])
        cost = rates @ self.rtt_ms(at_s)[ends] / 2000.0
        there = int(np.argmin(cost))
        # A tenth of the moves is bad, so that the report has something to find.
        if self.rng.random() < 0.1:
            there = int(self.rng.integers(len(cost)))
        elif cost[there] > 0.9 * cost[here]:
            return []
        if there == here:
            return []
        together = [
            Move(at_s + 1.5 * n, op, here, there, float(cost[here]), float(cost[there])) for n, op in enumerate([window, *followers])
        ]
        for move in together:
            self.operators.moves[move.operator].append((move.at_s, there))
        return together


def usage_at(links: Sequence[tuple[int, int, float]], hosts: Mapping[int, int], rtt_ms: FloatArray) -> float:
    """Returns the network usage of links at planned rates, bytes in transit, with operators on these nodes."""
    return sum((rate * float(rtt_ms[hosts[source], hosts[target]]) / 2000.0 for source, target, rate in links), 0.0)


def embedded(rtt_ms: FloatArray, access_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns coordinates that predict these RTTs about as well as real coordinates do: (agents, 3) vectors and (agents,) heights, ms.

    Source
    ------
    Classical scaling (Torgerson, 1952) of the RTTs minus the access links.
    """
    path = np.maximum(rtt_ms - access_ms[:, None] - access_ms[None, :], 0.0) ** 2
    np.fill_diagonal(path, 0.0)
    centred = path - path.mean(0) - path.mean(1)[:, None] + path.mean()
    values, axes = np.linalg.eigh(-centred / 2)
    vectors: FloatArray = axes[:, -3:] * np.sqrt(np.maximum(values[-3:], 0.0))
    # Two or three agents span fewer dimensions.
    return np.pad(vectors, ((0, 0), (3 - vectors.shape[1], 0))), access_ms + 1.0


def predicted_ms(vectors: FloatArray, heights: FloatArray, rows: list[int] | Numbers) -> FloatArray:
    """Returns the RTTs that coordinates predict, (rows, agents)."""
    distance = np.linalg.norm(vectors[rows][:, None, :] - vectors[None, :, :], axis=2)
    predicted: FloatArray = distance + heights[rows][:, None] + heights[None, :]
    return predicted
