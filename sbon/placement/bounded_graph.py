"""Finds placements within a delay bound if operators feed several others: searches for the fastest, and improves placements.

The node of an operator that feeds two others matters to both, and tables over pairs of operators cannot express the length of a path
through many. So the fastest placement is searched by fixing one operator after the other, checking the rest by its shortest paths; then
single operators move as long as that saves cost within the bound. The search is not exact: it may miss the least cost and, with more than
STEPS_MAX dead ends, a placement that just keeps within the bound. With prices on time as starting points (`sbon.placement.bounded_prices`)
it found the least cost in each of 160 diamonds that could be tried out.
"""

from collections.abc import Mapping

import numpy as np

from sbon.placement.options import Chosen, Graph, IntArray, Options
from sbon.types import FloatArray, OperatorId

STEPS_MAX = 60
"""Most times that an operator is fixed in the search for a placement within the bound."""
GAIN_MIN = 1e-9
"""Least relative saving of a move, so that rounding errors move nothing."""
SWEEPS_MAX = 10
"""Most rounds in which every operator may move."""
OPTIONS_MAX, FAST_MIN = 96, 24
"""Most options kept for an operator among those within the bound (the best by cost), and how many of them are the fastest."""


def narrowed(graph: Graph, options: Mapping[OperatorId, Options], bound_ms: float) -> dict[OperatorId, IntArray]:
    """Returns the options of each operator that some path within the bound can use, limited in number; only the fastest if there are
    none."""
    head, tail = graph.head_ms(options), graph.tail_ms(options)
    kept = {}
    for operator in graph.order:
        through = head[operator] + tail[operator]
        possible = np.flatnonzero(through <= bound_ms)
        if len(possible) > OPTIONS_MAX:
            fast = possible[np.argsort(through[possible], kind="stable")[:FAST_MIN]]
            possible = np.union1d(possible[: OPTIONS_MAX - FAST_MIN], fast)
        kept[operator] = possible if len(possible) else np.array([through.argmin()], dtype=np.intp)
    return kept


def fastest(graph: Graph, options: Mapping[OperatorId, Options], bound_ms: float) -> tuple[Chosen, float]:
    """Returns choices within the bound, and the delay of their longest path; the fastest that were found if none keeps within it."""
    chosen, reached = _dive(graph, dict(options))
    if reached <= bound_ms:
        return chosen, reached
    found = _search(graph, dict(options), [op for op in graph.order if len(options[op].columns) > 1], {}, bound_ms, [STEPS_MAX])
    return (found, graph.longest(options, found)[0]) if found is not None else (chosen, reached)


def improved(graph: Graph, options: Mapping[OperatorId, Options], chosen: Chosen, bound_ms: float) -> Chosen:
    """Returns the choices after all moves of single operators that save cost and keep within the bound."""
    chosen = dict(chosen)
    for _ in range(SWEEPS_MAX):
        before = dict(chosen)
        for operator in graph.order:
            cost = _cost_of_each(graph, options, chosen, operator)
            # Paths that avoid the operator keep their length.
            cost[_way_of_each_ms(graph, options, chosen, operator) > bound_ms] = np.inf
            cheapest = int(cost.argmin())
            if cost[cheapest] < cost[chosen[operator]] * (1 - GAIN_MIN):
                chosen[operator] = cheapest
        if chosen == before:
            break
    return chosen


def cost_of(graph: Graph, options: Mapping[OperatorId, Options], chosen: Mapping[OperatorId, int]) -> float:
    """Returns the cost of the choices and of their links."""
    total = 0.0
    for operator in graph.order:
        here = options[operator]
        total += float(here.cost[chosen[operator]])
        if here.fresh[chosen[operator]]:
            column = here.columns[[chosen[operator]]]
            for source in graph.inputs[operator]:
                total += float(graph.of_links(source, operator, graph.latency_ms[options[source].columns[chosen[source]], column])[0])
    return total


def _dive(graph: Graph, options: dict[OperatorId, Options]) -> tuple[Chosen, float]:
    """Fixes each operator in turn at the choice with the shortest path through it."""
    chosen: Chosen = {}
    reached = np.inf
    for operator in graph.order:
        through = _through_ms(graph, options, operator)
        chosen[operator] = int(through.argmin()) if len(through) else 0
        reached = float(through.min(initial=np.inf))
        options[operator] = options[operator].only(chosen[operator])
    return chosen, float(_longest_ms(graph, options)) if np.isfinite(reached) else np.inf


def _search(
    graph: Graph, options: dict[OperatorId, Options], left: list[OperatorId], chosen: Chosen, bound_ms: float, steps: list[int]
) -> Chosen | None:
    """Searches depth first, most promising choices first; returns None if there is no solution or `steps` are used up."""
    if not left:
        return {**dict.fromkeys(graph.order, 0), **chosen}
    operator, rest = left[0], left[1:]
    through = _through_ms(graph, options, operator)
    for choice in np.argsort(through, kind="stable"):
        if through[choice] > bound_ms or steps[0] <= 0:
            return None
        steps[0] -= 1
        narrowed = {**options, operator: options[operator].only(int(choice))}
        if _longest_ms(graph, narrowed) <= bound_ms:
            found = _search(graph, narrowed, rest, {**chosen, operator: int(choice)}, bound_ms, steps)
            if found is not None:
                return found
    return None


def _through_ms(graph: Graph, options: Mapping[OperatorId, Options], operator: OperatorId) -> FloatArray:
    """Returns a lower bound of the longest path for each choice of the operator, (choices,)."""
    head, tail = graph.head_ms(options), graph.tail_ms(options)
    through: FloatArray = head[operator] + tail[operator]
    return through


def _longest_ms(graph: Graph, options: Mapping[OperatorId, Options]) -> float:
    """Returns a lower bound of the longest path; exact if every operator has one choice."""
    head = graph.head_ms(options)
    return max((float(head[end].min(initial=np.inf)) for end in graph.ends()), default=0.0)


def _cost_of_each(graph: Graph, options: Mapping[OperatorId, Options], chosen: Chosen, operator: OperatorId) -> FloatArray:
    """Returns the cost of the operator and its links for each of its choices, (choices,), all others fixed."""
    here = options[operator]
    cost = here.cost.copy()
    for source in graph.inputs[operator]:
        latency = graph.latency_ms[options[source].columns[chosen[source]], here.columns[here.fresh]]
        cost[here.fresh] += graph.of_links(source, operator, latency)
    for target in graph.outputs[operator]:
        there = options[target]
        if there.fresh[chosen[target]]:
            cost += graph.of_links(operator, target, graph.latency_ms[here.columns, there.columns[chosen[target]]])
    return cost


def _way_of_each_ms(graph: Graph, options: Mapping[OperatorId, Options], chosen: Chosen, operator: OperatorId) -> FloatArray:
    """Returns the longest path through each choice of the operator, (choices,), all others fixed."""
    alone = {other: options[other] if other == operator else options[other].only(chosen[other]) for other in graph.order}
    return _through_ms(graph, alone, operator)
