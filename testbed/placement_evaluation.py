"""How near placement comes to the optimum on a real or generated network: `sbon testbed placement` (after SBON, section 4.1).

Coordinates come from the library's own code, run on RTTs drawn from the matrix; strategies see those estimates, and RTTs that candidates
are asked for, which are counted; usage and delay are computed on the matrix. A link's latency is half the RTT.
"""

import json as json_module
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from sbon.cost.latency import KnownLatencies
from sbon.cost.network_usage import usage_of_assignment
from sbon.cost.space import CostSpace
from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.localiser import Localiser
from sbon.errors import ConfigError
from sbon.optimiser.decision import Decision
from sbon.optimiser.full import Action, FullOptimiser
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.placement.optimal import optimal_assignment
from sbon.placement.problem import PlacementProblem
from sbon.types import FloatArray, NodeId, OperatorId
from testbed.placement_queries import Shape, draw_query

SLOTS = 1_000_000
"""Room of every node: the paper's simulation has no limits of resources either."""
RTT_MS_MIN = 0.05

STRATEGIES: dict[str, PlacementConfig] = {
    "least-usage": PlacementConfig(strategy="least-usage"),
    "least-usage-unprobed": PlacementConfig(strategy="least-usage", probes=0),
    "relaxation": PlacementConfig(strategy="relaxation"),
    "producer": PlacementConfig(strategy="producer"),
    "consumer": PlacementConfig(strategy="consumer"),
    "random": PlacementConfig(strategy="random"),
}
"""What can be compared with the optimum. `least-usage-unprobed` chooses by coordinates alone."""


def completed(matrix: FloatArray) -> FloatArray:
    """The matrix with both directions averaged, and missing RTTs replaced by the shortest way over a third node.

    Raises
    ------
    ConfigError
        A pair of nodes cannot be joined even so.
    """
    both = np.where(np.isnan(matrix), matrix.T, (matrix + np.where(np.isnan(matrix.T), matrix, matrix.T)) / 2)
    np.fill_diagonal(both, 0.0)
    known = np.where(np.isnan(both), np.inf, both)
    for a, b in np.argwhere(np.isnan(both)):
        both[a, b] = (known[a] + known[:, b]).min()
    if not np.isfinite(both).all():
        a, b = np.argwhere(~np.isfinite(both))[0]
        raise ConfigError(f"no RTT between nodes {a} and {b}, not even over a third node; leave one of them out")
    result: FloatArray = np.maximum(both, RTT_MS_MIN)
    np.fill_diagonal(result, 0.0)
    return result


def estimated_space(rtt_ms: FloatArray, names: Sequence[NodeId], rounds: int, rng: np.random.Generator) -> CostSpace:
    """Coordinates after each node has measured one random other in each round, and has been told its coordinate."""
    nodes = [Localiser(CoordinateConfig(), generator) for generator in rng.spawn(len(names))]
    for turn in range(rounds):
        peers = rng.integers(1, len(names), size=len(names))
        for index, node in enumerate(nodes):
            peer = (index + int(peers[index])) % len(names)
            node.observe(names[peer], nodes[peer].coordinate, float(rtt_ms[index, peer]), float(turn))
    return CostSpace({name: node.coordinate for name, node in zip(names, nodes, strict=True)})


def longest_delay_ms(problem: PlacementProblem, assignment: Mapping[OperatorId, NodeId], truth: KnownLatencies) -> float:
    """One-way latency of the longest way from a producer to a consumer, over the operators' nodes."""
    delay: dict[OperatorId, float] = {}
    waiting = dict.fromkeys((*problem.pinned, *problem.unpinned), 0)
    for link in problem.links:
        waiting[link.target] += 1
    ready = [operator for operator, count in waiting.items() if count == 0]
    while ready:
        operator = ready.pop()
        for link in problem.links:
            if link.source == operator:
                arrival = delay.get(operator, 0.0) + truth.one_way_ms(assignment[operator], assignment[link.target])
                delay[link.target] = max(delay.get(link.target, 0.0), arrival)
                waiting[link.target] -= 1
                if waiting[link.target] == 0:
                    ready.append(link.target)
    return max(delay[operator] for operator in problem.consumers)


def direct_delay_ms(problem: PlacementProblem, truth: KnownLatencies) -> float:
    """The longest direct latency from a producer to a consumer."""
    return max(truth.one_way_ms(problem.pinned[p], problem.pinned[c]) for p in problem.producers for c in problem.consumers)


class _Tally:
    """Figures of one strategy over all queries."""

    def __init__(self) -> None:
        self.usage_penalty: list[float] = []
        self.delay_penalty: list[float] = []
        self.probes = 0
        self.seconds = 0.0

    def result(self, queries: int) -> dict[str, float]:
        return {
            "usage_penalty_mean": float(np.mean(self.usage_penalty)),
            "usage_penalty_p80": float(np.percentile(self.usage_penalty, 80)),
            "delay_penalty_mean": float(np.mean(self.delay_penalty)),
            "probes_per_query": self.probes / queries,
            "milliseconds_per_query": 1000 * self.seconds / queries,
        }


def evaluate(
    rtt_ms: FloatArray,
    *,
    queries: int = 1000,
    shape: Shape = "aggregate",
    seed: int = 1,
    rounds: int = 200,
    strategies: Sequence[str] = tuple(STRATEGIES),
) -> dict[str, Any]:
    """Place queries by every strategy and compare with the optimum.

    Parameters
    ----------
    rtt_ms : (nodes, nodes)
        NaN for missing.

    Returns
    -------
    dict
        As `sbon testbed placement --json` writes it. Penalties are fractions: of usage over the optimum's, of delay over the longest
        direct latency between a producer and a consumer.
    """
    unknown = [name for name in strategies if name not in STRATEGIES]
    if unknown:
        raise ConfigError(f"strategy {unknown[0]!r} is unknown, expected one of {', '.join(STRATEGIES)}")
    rtt_ms = completed(np.asarray(rtt_ms, dtype=np.float64))
    names = [f"n{index:05d}" for index in range(len(rtt_ms))]
    rng = np.random.default_rng(seed)
    coordinate_rng, query_rng, strategy_rng = rng.spawn(3)
    space = estimated_space(rtt_ms, names, rounds, coordinate_rng)
    truth = KnownLatencies(names, rtt_ms)
    tallies = {name: _Tally() for name in ("optimal", *strategies)}
    generators = dict(zip(strategies, strategy_rng.spawn(len(strategies)), strict=True))
    for _ in range(queries):
        problem = draw_query(shape, names, query_rng)
        started = time.perf_counter()
        assignment, best = optimal_assignment(problem, truth, names)
        tallies["optimal"].seconds += time.perf_counter() - started
        direct = direct_delay_ms(problem, truth)
        _score(tallies["optimal"], problem, assignment, truth, best, direct)
        for name in strategies:
            assignment = _placed(problem, space, truth, STRATEGIES[name], generators[name], tallies[name])
            _score(tallies[name], problem, assignment, truth, best, direct)
    predicted = space.rtt_matrix_ms(names, names)
    above = np.triu_indices(len(names), 1)
    return {
        "strategies": {name: tally.result(queries) for name, tally in tallies.items()},
        "shape": shape,
        "queries": queries,
        "nodes": len(names),
        "seed": seed,
        "coordinate_median_error": float(np.median(np.abs(predicted - rtt_ms)[above] / rtt_ms[above])),
    }


def _placed(
    problem: PlacementProblem,
    space: CostSpace,
    truth: KnownLatencies,
    config: PlacementConfig,
    rng: np.random.Generator,
    tally: _Tally,
) -> dict[OperatorId, NodeId]:
    """Run the full optimiser among candidates that answer truly; only the time inside it counts."""
    started = time.perf_counter()
    optimiser = FullOptimiser(problem, {}, space, config, rng)
    actions = optimiser.begin()
    tally.seconds += time.perf_counter() - started
    while True:
        following: list[Action] = []
        for action in actions:
            if isinstance(action, Decision):
                return action.assignment
            rtts = {peer: 2 * truth.one_way_ms(action.node, peer) for peer in action.about}
            tally.probes += len(rtts)
            report = CandidateReport(action.node, rtts, SLOTS, space.coordinates[action.node].load_ms)
            started = time.perf_counter()
            following += optimiser.answered(report)
            tally.seconds += time.perf_counter() - started
        actions = following


def _score(
    tally: _Tally,
    problem: PlacementProblem,
    assignment: Mapping[OperatorId, NodeId],
    truth: KnownLatencies,
    best: float,
    direct_ms: float,
) -> None:
    usage = usage_of_assignment(problem.links, assignment, truth)
    tally.usage_penalty.append(usage / best - 1 if best > 0 else 0.0)
    tally.delay_penalty.append(longest_delay_ms(problem, assignment, truth) / direct_ms - 1 if direct_ms > 0 else 0.0)


def placement_command(
    matrix: Annotated[Path | None, typer.Option(metavar="FILE", help="RTTs in ms: .npz with key rtt, or a text matrix.")] = None,
    topology: Annotated[Literal["transit-stub"] | None, typer.Option(help="A generated network instead: 1,550 routers.")] = None,
    queries: Annotated[int, typer.Option(metavar="N", min=1, help="Queries to place.")] = 1000,
    shape: Annotated[Literal["aggregate", "join-tree", "mixed"], typer.Option(help="What they look like.")] = "aggregate",
    seed: Annotated[int, typer.Option(help="Of coordinates, queries and draws.")] = 1,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="RTTs that each node measures for its coordinate first.")] = 200,
    strategy: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this one; may be repeated.")] = None,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for standard output.")] = None,
) -> None:
    """Place queries by every strategy and compare their network usage and delay with the optimum's."""
    if (matrix is None) == (topology is None):
        raise typer.BadParameter("give either --matrix FILE or --topology transit-stub")
    names = tuple(name for name in strategy or STRATEGIES if name != "optimal")
    result = evaluate(_network(matrix, seed), queries=queries, shape=shape, seed=seed, rounds=rounds, strategies=names)
    text = json_module.dumps(result, indent=2, sort_keys=True)
    if json == "-":
        print(text)
        return
    if json is not None:
        Path(json).write_text(text + "\n")
    print(f"{result['nodes']} nodes, {queries} queries ({shape}), coordinates off by {result['coordinate_median_error']:.1%} (median)")
    print(f"{'strategy':<22}{'usage +':>10}{'80th pct':>10}{'delay +':>10}{'probes':>10}{'ms':>10}")
    for name, figures in result["strategies"].items():
        shown = (figures["usage_penalty_mean"], figures["usage_penalty_p80"], figures["delay_penalty_mean"])
        percentages = "".join(f"{value:>10.1%}" for value in shown)
        print(f"{name:<22}{percentages}{figures['probes_per_query']:>10.1f}{figures['milliseconds_per_query']:>10.2f}")


def _network(matrix: Path | None, seed: int) -> FloatArray:
    """The RTTs to place in; of a matrix over time, the first slice."""
    if matrix is None:
        from testbed.transit_stub import generate

        return generate(np.random.default_rng(seed)).rtt_ms
    from testbed.matrix import load_matrix

    loaded = np.asarray(load_matrix(matrix), dtype=np.float64)
    return loaded if loaded.ndim == 2 else loaded[0]
