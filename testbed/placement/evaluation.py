"""Measures how near placement comes to the optimum on a real or generated network (after SBON, section 4.1).

Coordinates come from the library's own code, run on RTTs of the network. Strategies see these coordinates, RTTs that candidates measure on
request (which are counted), and RTTs that nodes remember from finding their coordinates. Usage and delay are computed from the true
latencies. A link's latency is half the RTT.
"""

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from sbon.cost.latency import KnownLatencies
from sbon.cost.model import Conditions
from sbon.cost.network_usage import NetworkUsage
from sbon.cost.problem import PlacementProblem
from sbon.cost_space.config import CoordinateConfig
from sbon.errors import ConfigError
from sbon.membership.config import MembershipConfig
from sbon.optimiser.asking import AskCandidate, AskRemembered
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.decision import Decision
from sbon.optimiser.full import Action, FullOptimiser
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.placement.strategy import IpMulticast, Strategy
from sbon.types import NodeId, OperatorId
from sbon_testbed.coordinates.jitter import Jitter
from sbon_testbed.placement.network import ROUNDS, Network, Report, Settled, coordinate_median_error, settled, unreported
from sbon_testbed.placement.oracle import Oracle
from sbon_testbed.placement.queries import Shape, draw_query
from sbon_testbed.placement.scores import Tally

SLOTS = 1_000_000
"""Free slots of every node: no limit, as in the paper's simulation."""
PINGS = MembershipConfig().ping_count
NEIGHBOUR_RTTS = OptimiserConfig().neighbour_rtts

OPTIMAL = "optimal"
IP_MULTICAST = "ip-multicast"
CONFIGURED: dict[str, PlacementConfig] = {
    "least-usage": PlacementConfig(strategy="least-usage"),
    "least-usage-unprobed": PlacementConfig(strategy="least-usage", probes=0),
    # The paper's own settings, independent of the defaults.
    "relaxation": PlacementConfig(strategy="relaxation", delta=0.1, force_threshold=1.0),
    "producer": PlacementConfig(strategy="producer"),
    "consumer": PlacementConfig(strategy="consumer"),
    "random": PlacementConfig(strategy="random"),
}
"""Strategies that agents offer. `least-usage-unprobed` chooses by coordinates alone."""
STRATEGIES = (OPTIMAL, *CONFIGURED, IP_MULTICAST)


def strategies_for(network: Network, wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the strategies to compare: those in `wanted`, or all that the network allows; the optimum is always the first.

    Raises
    ------
    ConfigError
        A strategy is unknown, or needs routes that the network does not have.
    """
    for name in wanted:
        if name not in STRATEGIES:
            raise ConfigError(f"strategy {name!r} is unknown, expected one of {', '.join(STRATEGIES)}")
        if name == IP_MULTICAST and network.routes is None:
            raise ConfigError("strategy 'ip-multicast' needs the network's routes, which a matrix of RTTs does not have; use transit-stub")
    possible = [name for name in STRATEGIES if network.routes is not None or name != IP_MULTICAST]
    return tuple(dict.fromkeys((OPTIMAL, *(wanted or possible))))


@dataclass(frozen=True)
class Evaluation:
    """The results of one network's queries."""

    nodes: int
    queries: int
    shape: Shape
    seed: int
    rounds: int
    coordinate_median_error: float
    tallies: dict[str, Tally]

    def result(self) -> dict[str, Any]:
        """Returns the result as `sbon testbed placement --json` writes it. Penalties are fractions: of usage over the optimum's, of delay
        over the longest direct latency between a producer and a consumer."""
        return {
            "strategies": {name: tally.result() for name, tally in self.tallies.items()},
            "shape": self.shape,
            "queries": self.queries,
            "nodes": self.nodes,
            "seed": self.seed,
            "rounds": self.rounds,
            "coordinate_median_error": self.coordinate_median_error,
        }


def evaluate(
    network: Network,
    *,
    queries: int = 1000,
    shape: Shape = "aggregate",
    seed: int = 1,
    rounds: int = ROUNDS,
    strategies: Sequence[str] = (),
    coordinates: CoordinateConfig | None = None,
    jitter: float = 0.0,
    report: Report = unreported,
) -> Evaluation:
    """Places queries by every strategy, and compares with the optimum.

    `jitter` is the mean noise of the RTTs that coordinates and candidates' reports use (`sbon_testbed.coordinates.jitter`).

    Raises
    ------
    ConfigError
        A strategy is unknown or impossible on the network, or the jitter is out of range.
    """
    names = strategies_for(network, strategies)
    coordinate_rng, query_rng = np.random.default_rng(seed).spawn(2)
    found = settled(network, rounds, coordinate_rng, report, coordinates, jitter)
    truth = KnownLatencies(network.names, network.rtt_ms)
    oracle = Oracle(network.names, truth)
    # Seeded by name, so that a strategy's draws do not depend on the other strategies.
    generators = {name: np.random.default_rng([seed, zlib.crc32(name.encode())]) for name in names[1:]}
    runners = {name: Runner(name, network, found, truth, rng, jitter) for name, rng in generators.items()}
    tallies = {name: Tally() for name in names}
    for number in range(1, queries + 1):
        problem = draw_query(shape, list(network.names), query_rng)
        started = time.thread_time()  # processor time, independent of other load
        optimal = oracle.best(problem)
        tallies[OPTIMAL].seconds += time.thread_time() - started
        best = NetworkUsage().of_assignment(problem, optimal, Conditions(truth))
        tallies[OPTIMAL].score(problem, optimal, truth, best)
        for name, runner in runners.items():
            tallies[name].score(problem, runner.place(problem, tallies[name]), truth, best)
        report("queries", number, queries)
    return Evaluation(len(network.names), queries, shape, seed, rounds, coordinate_median_error(found.space, network), tallies)


class Runner:
    """Runs the full optimiser with one strategy, among candidates that answer with their measured RTTs."""

    def __init__(self, name: str, network: Network, found: Settled, truth: KnownLatencies, rng: np.random.Generator, jitter: float) -> None:
        self._found = found
        self._space = found.space
        self._truth = truth
        self._rng = rng
        self._jitter = Jitter(jitter, rng.spawn(1)[0])
        self._config = CONFIGURED.get(name, PlacementConfig())
        self._strategy: Strategy | None = (
            IpMulticast(network.routes, NetworkUsage()) if name == IP_MULTICAST and network.routes is not None else None
        )

    def place(self, problem: PlacementProblem, tally: Tally) -> dict[OperatorId, NodeId]:
        """Returns the placement of one query's operators; only the time inside the optimiser counts."""
        return self.decided(problem, tally)[1].assignment

    def decided(self, problem: PlacementProblem, tally: Tally, excluded: frozenset[NodeId] = frozenset()) -> tuple[FullOptimiser, Decision]:
        """Returns the optimiser of one query and its decision; nodes in `excluded` report that they have no room."""
        started = time.thread_time()
        optimiser = FullOptimiser(problem, {}, self._space, self._config, self._rng, strategy=self._strategy, neighbour_rtts=NEIGHBOUR_RTTS)
        actions = optimiser.begin()
        tally.seconds += time.thread_time() - started
        while True:
            following: list[Action] = []
            for action in actions:
                if isinstance(action, Decision):
                    return optimiser, action
                if isinstance(action, AskRemembered):
                    remembered = self._found.remembered(action.about, NEIGHBOUR_RTTS)
                    started = time.thread_time()
                    following += optimiser.recalled(remembered)
                else:
                    report = self.report(action, tally)
                    report = msgspec.structs.replace(report, free_slots=0) if action.node in excluded else report
                    started = time.thread_time()
                    following += optimiser.answered(report)
                tally.seconds += time.thread_time() - started
            actions = following

    def report(self, ask: AskCandidate, tally: Tally) -> CandidateReport:
        """Returns a candidate's report: the fastest of a few noisy probes of each peer, as agents measure on request."""
        rtts = {peer: self._jitter.fastest_ms(2 * self._truth.one_way_ms(ask.node, peer), PINGS) for peer in ask.about}
        tally.probes += len(rtts)
        return CandidateReport(ask.node, rtts, SLOTS, self._space.coordinates[ask.node].load_ms)
