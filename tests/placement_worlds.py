"""Small overlays for tests of placement: nodes with coordinates, queries, and candidates that report true latencies."""

from collections.abc import Callable, Mapping

import numpy as np

from sbon.cost.latency import KnownLatencies
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.cost.space import CostSpace
from sbon.cost_space.coordinate import Coordinate
from sbon.optimiser.decision import Decision
from sbon.optimiser.full import AskCandidate, FullOptimiser
from sbon.placement.candidates import CandidateReport


def node(x: float, y: float = 0.0, z: float = 0.0, *, height: float = 0.0, load: float = 0.0) -> Coordinate:
    return Coordinate((x, y, z), height, 0.1, load)


def synthetic_space(count: int, seed: int) -> CostSpace:
    """Returns six clusters of nodes with random heights."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 60, size=(6, 3))
    coordinates = {}
    for index in range(count):
        x, y, z = centres[index % 6] + rng.normal(0, 12, size=3)
        coordinates[f"n{index:03d}"] = Coordinate((float(x), float(y), float(z)), float(rng.exponential(3)), 0.1)
    return CostSpace(coordinates)


def truth_of(space: CostSpace, noise: float, seed: int) -> KnownLatencies:
    """Returns true latencies, which differ from predicted ones by lognormal factors."""
    rng = np.random.default_rng(seed)
    factor = np.triu(rng.lognormal(0, noise, size=(len(space), len(space))), 1)
    return KnownLatencies(space.names, space.rtt_matrix_ms(space.names, space.names) * (factor + factor.T))


def aggregate(space: CostSpace, rng: np.random.Generator, producers: int = 4) -> PlacementProblem:
    """Returns the paper's query: producers of 2 KB/s, an 8:1 aggregator, a consumer (SBON, section 4.1)."""
    chosen = [space.names[int(i)] for i in rng.choice(len(space), size=producers + 1, replace=False)]
    pinned = {f"p{i}": name for i, name in enumerate(chosen[:-1])} | {"c": chosen[-1]}
    links = [PlacementLink(f"p{i}", "a", 2000.0) for i in range(producers)]
    return PlacementProblem(pinned, ("a",), (*links, PlacementLink("a", "c", 2000.0 * producers / 8)))


def join_tree(space: CostSpace, rng: np.random.Generator, producers: int) -> PlacementProblem:
    """Returns a binary tree of joins with random selectivities, which ends in a consumer."""
    pinned = {f"p{i}": space.names[int(rng.integers(len(space)))] for i in range(producers)}
    pinned["c"] = space.names[int(rng.integers(len(space)))]
    streams = [(f"p{i}", float(rng.uniform(500, 5000))) for i in range(producers)]
    operators, links = [], []
    while len(streams) > 1:
        inputs, streams = streams[:2], streams[2:]
        name = f"j{len(operators)}"
        operators.append(name)
        links += [PlacementLink(source, name, rate) for source, rate in inputs]
        streams.append((name, sum(rate for _, rate in inputs) * float(rng.uniform(0.1, 1.0))))
    return PlacementProblem(pinned, tuple(operators), (*links, PlacementLink(streams[0][0], "c", streams[0][1])))


def truthful(truth: KnownLatencies, slots: int = 100) -> Callable[[AskCandidate], CandidateReport]:
    return lambda ask: CandidateReport(ask.node, {peer: 2 * truth.one_way_ms(ask.node, peer) for peer in ask.about}, slots)


def place(optimiser: FullOptimiser, answer: Callable[[AskCandidate], CandidateReport | None]) -> Decision:
    """Answers all questions until there is a decision. If `answer` returns None, the candidate does not answer."""
    actions = optimiser.begin()
    while True:
        following = []
        for action in actions:
            if isinstance(action, Decision):
                return action
            report = answer(action)
            following += optimiser.unanswered(action.node) if report is None else optimiser.answered(report)
        actions = following


def usage(problem: PlacementProblem, assignment: Mapping[str, str], truth: KnownLatencies) -> float:
    """The plain twin of network usage: the sum of rate x latency over links, in bytes."""
    return sum(link.rate_bytes_per_s * truth.one_way_ms(assignment[link.source], assignment[link.target]) / 1000 for link in problem.links)
