"""Finds the assignment of least cost whose longest path keeps within a bound, if operators form trees.

From the producers downwards, each choice of each operator gets its labels: pairs of the delay so far and the least cost of everything
upstream that reaches it, none dominated by another. Branches of a join share only the time by which they must arrive, so the cost of the
join for a time is the sum of its branches' least costs for that time. Exact as long as no choice has more than LABELS_MAX labels; beyond
that, labels are thinned out evenly, keeping the fastest and the cheapest.

Source: labels are those of the constrained shortest path (Joksch, J. Math. Anal. Appl. 14, 1966), extended from paths to in-trees.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sbon.placement.options import Graph, IntArray, Options
from sbon.types import FloatArray, OperatorId

LABELS_MAX = 128


class _Labels(NamedTuple):
    """Labels of one operator, for all its choices in sequence."""

    delay_ms: FloatArray
    cost: FloatArray
    choice: IntArray
    inputs: list[dict[OperatorId, int]]
    """For each label, the label of each input."""


def within_bound(graph: Graph, options: Mapping[OperatorId, Options], bound_ms: float) -> dict[OperatorId, int] | None:
    """Returns the choice of each needed operator at least cost; None if nothing keeps within the bound."""
    tail = graph.tail_ms(options)
    labels: dict[OperatorId, _Labels] = {}
    for operator in graph.order:
        labels[operator] = _labels_of(graph, options, operator, labels, bound_ms - tail[operator])
    chosen: dict[OperatorId, int] = {}
    waiting: list[tuple[OperatorId, int]] = []
    for operator in graph.ends():
        if not len(labels[operator].cost):
            return None
        waiting.append((operator, int(labels[operator].cost.argmin())))
    while waiting:
        operator, label = waiting.pop()
        chosen[operator] = int(labels[operator].choice[label])
        waiting += labels[operator].inputs[label].items()
    return chosen


def _labels_of(
    graph: Graph, options: Mapping[OperatorId, Options], operator: OperatorId, labels: Mapping[OperatorId, _Labels], allowed_ms: FloatArray
) -> _Labels:
    here = options[operator]
    delays, costs, choices = [np.empty(0)], [np.empty(0)], [np.empty(0, dtype=np.intp)]
    inputs: list[dict[OperatorId, int]] = []
    picks: dict[OperatorId, IntArray]
    for choice, column in enumerate(here.columns):
        if not here.fresh[choice]:
            delay, cost, picks = here.begun_ms[choice : choice + 1], np.zeros(1), {}
        else:
            branches = {
                source: _arriving(
                    labels[source],
                    latency := graph.latency_ms[options[source].columns, column],
                    graph.of_links(source, operator, latency),
                    float(allowed_ms[choice]),
                )
                for source in graph.inputs[operator]
            }
            delay, cost, picks = _joined(branches)
        keep = _thinned(np.flatnonzero(delay <= allowed_ms[choice]))
        delays.append(delay[keep])
        costs.append(cost[keep] + here.cost[choice])
        choices.append(np.full(len(keep), choice, dtype=np.intp))
        inputs += [{source: int(pick[index]) for source, pick in picks.items()} for index in keep]
    return _Labels(np.concatenate(delays), np.concatenate(costs), np.concatenate(choices), inputs)


def _arriving(source: _Labels, latency_ms: FloatArray, link: FloatArray, allowed_ms: float) -> tuple[FloatArray, FloatArray, IntArray]:
    """Returns delay and cost of one input's labels over its link, and their indices, with rising delay and falling cost."""
    delay, cost = source.delay_ms + latency_ms[source.choice], source.cost + link[source.choice]
    intime = np.flatnonzero(delay <= allowed_ms)
    order = intime[np.lexsort((cost[intime], delay[intime]))]
    best = _cheaper_than_before(cost[order])
    return delay[order][best], cost[order][best], order[best]


def _joined(
    branches: Mapping[OperatorId, tuple[FloatArray, FloatArray, IntArray]],
) -> tuple[FloatArray, FloatArray, dict[OperatorId, IntArray]]:
    """Returns delay and cost when all inputs have arrived, and the label of each."""
    if not branches:
        return np.zeros(1), np.zeros(1), {}
    if any(not len(delay) for delay, _, _ in branches.values()):
        return np.empty(0), np.empty(0), {}
    first = max(float(delay[0]) for delay, _, _ in branches.values())
    times = np.unique(np.concatenate([np.array([first]), *(delay[delay > first] for delay, _, _ in branches.values())]))
    cost = np.zeros(len(times))
    picks = {}
    for source, (delay, costs, label) in branches.items():
        at = np.searchsorted(delay, times, side="right") - 1
        cost += costs[at]
        picks[source] = label[at]
    best = _cheaper_than_before(cost)
    return times[best], cost[best], {source: pick[best] for source, pick in picks.items()}


def _cheaper_than_before(cost: FloatArray) -> IntArray:
    """Returns the indices at which the cost is below all earlier ones."""
    if len(cost) == 0:
        return np.empty(0, dtype=np.intp)
    least = np.minimum.accumulate(cost)
    return np.flatnonzero(np.concatenate(([True], cost[1:] < least[:-1])))


def _thinned(labels: IntArray) -> IntArray:
    if len(labels) <= LABELS_MAX:
        return labels
    return labels[np.unique(np.linspace(0, len(labels) - 1, LABELS_MAX).astype(np.intp))]
