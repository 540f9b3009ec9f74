"""Finds placements of least cost within a delay bound: exact if operators form trees, otherwise heuristic."""

from collections.abc import Mapping, Sequence

from sbon.cost.model import CostModel
from sbon.cost.problem import PlacementProblem
from sbon.errors import DelayBoundError
from sbon.placement.bounded_graph import cost_of, fastest, improved, narrowed
from sbon.placement.bounded_prices import priced
from sbon.placement.bounded_tree import within_bound
from sbon.placement.options import Chosen, Graph, Options
from sbon.types import FloatArray, OperatorId


def choices_within(
    problem: PlacementProblem, options: Mapping[OperatorId, Options], latency_ms: FloatArray, model: CostModel, bound_ms: float
) -> dict[OperatorId, int]:
    """Returns the option that each needed operator chooses, as its index.

    Parameters
    ----------
    options : options of all operators, pinned ones too
    latency_ms : (nodes, nodes), one way
    model : a sum over links and hosts

    Raises
    ------
    DelayBoundError
        No placement within the bound was found; on trees none exists.
    """
    graph = Graph(problem, latency_ms, model)
    asked_ms, bound_ms = bound_ms, bound_ms * (1 + 1e-9) + 1e-9  # tolerance for rounding in sums
    if graph.is_tree(options):
        head = graph.head_ms(options)
        chosen = within_bound(graph, options, bound_ms)
        if chosen is None:
            raise DelayBoundError(asked_ms, max(float(head[end].min()) for end in graph.ends()))
        return chosen
    kept = narrowed(graph, options, bound_ms)
    fewer = {operator: options[operator].only(kept[operator]) for operator in options}
    chosen, reached_ms = fastest(graph, fewer, bound_ms)
    if reached_ms > bound_ms:
        raise DelayBoundError(asked_ms, reached_ms)
    found = [improved(graph, fewer, start, bound_ms) for start in _different([chosen, *priced(graph, fewer, bound_ms)])]
    best = min(found, key=lambda each: cost_of(graph, fewer, each))
    return {operator: int(kept[operator][choice]) for operator, choice in best.items()}


def _different(choices: Sequence[Chosen]) -> list[Chosen]:
    return [choice for index, choice in enumerate(choices) if choice not in choices[:index]]
