"""Placement by load correlation, with which Mace is compared (Xing et al., ICDE 2005, as Mace's section IX-B.1 describes it).

The placement balances the average load, lets the load of each node vary little, and lets the loads of different nodes rise and fall
together. It ignores latency.

The greatest operators first, each goes to the node below the average load whose load correlates least with its own. Then the operators of
the pair of nodes that correlates least are divided again, until all pairs correlate well enough on average.
"""

from collections.abc import Callable

import numpy as np

from sbon.types import FloatArray, IntArray

ENOUGH = 0.8
"""Average correlation of all pairs of nodes at which the paper stops (theta)."""
_FLAT = 1e-12


def place_by_correlation(
    work: FloatArray,
    capacity: FloatArray,
    *,
    enough: float = ENOUGH,
    rounds_max: int = 1000,
    found: Callable[[IntArray], bool] | None = None,
) -> tuple[IntArray, float]:
    """Returns an assignment of operators to nodes, and the average correlation of their loads.

    Parameters
    ----------
    work : (operators, intervals)
    capacity : (nodes,), by which average load is balanced
    enough : average correlation at which to stop
    rounds_max : most pairs of nodes that are divided again without coming nearer to `enough`
    found : called with each better assignment, including the first; the search ends if it returns False

    Examples
    --------
    >>> work = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    >>> node_of, correlation = place_by_correlation(work, np.ones(2))
    >>> (work[node_of == 0].sum(axis=0), work[node_of == 1].sum(axis=0))
    (array([2., 2.]), array([2., 2.]))
    """
    node_of = np.empty(len(work), dtype=np.int64)
    of_nodes = np.zeros((len(capacity), work.shape[1]))
    _divide(work, np.arange(len(work)), np.arange(len(capacity)), capacity, node_of, of_nodes)
    correlations = _correlations(of_nodes)
    average = _average(correlations)
    goes_on = found is None or found(node_of)
    order = np.argsort(correlations, axis=None)
    stale = place = 0
    while goes_on and average < enough and stale < rounds_max and place < order.size:
        one, other = divmod(int(order[place]), len(capacity))
        place += 1
        if one >= other:
            continue
        pair = np.array([one, other])
        kept, kept_loads = node_of.copy(), of_nodes[pair]
        both = np.flatnonzero((node_of == one) | (node_of == other))
        of_nodes[pair] = 0.0
        _divide(work, both, pair, capacity, node_of, of_nodes)
        changed = correlations.copy()
        rows = _correlations(of_nodes, pair)
        changed[pair], changed[:, pair] = rows, rows.T
        if _average(changed) > average + _FLAT:
            correlations, average, stale, place = changed, _average(changed), 0, 0
            order = np.argsort(correlations, axis=None)
            goes_on = found is None or found(node_of)
        else:
            node_of, of_nodes[pair], stale = kept, kept_loads, stale + 1
    return node_of, average


def _divide(work: FloatArray, operators: IntArray, nodes: IntArray, capacity: FloatArray, node_of: IntArray, of_nodes: FloatArray) -> None:
    """Assigns some operators to some empty nodes, in place."""
    mean = work.mean(axis=1)
    share = mean[operators].sum() / capacity[nodes].sum()
    loads, averages = of_nodes[nodes], np.zeros(len(nodes))
    for operator in operators[np.argsort(-mean[operators], kind="stable")].tolist():
        below = averages < share * capacity[nodes] * (1 + _FLAT)
        candidates = np.flatnonzero(below) if below.any() else np.array([int((averages / capacity[nodes]).argmin())])
        correlation = _with_each(loads[candidates], work[operator])
        least = candidates[correlation <= correlation.min() + _FLAT]
        node = int(least[(averages[least] / capacity[nodes[least]]).argmin()])
        loads[node] += work[operator]
        averages[node] += mean[operator]
        node_of[operator] = nodes[node]
    of_nodes[nodes] = loads


def _with_each(loads: FloatArray, one: FloatArray) -> FloatArray:
    """Returns the correlation of a series with each of others; -1 with an empty one, 0 with one that does not vary."""
    centred, own = loads - loads.mean(axis=1, keepdims=True), one - one.mean()
    scale = np.sqrt((centred**2).sum(axis=1) * (own**2).sum())
    found = np.divide(centred @ own, scale, out=np.zeros(len(loads)), where=scale > _FLAT)
    return np.where(loads.any(axis=1), found, -1.0)


def _correlations(of_nodes: FloatArray, rows: IntArray | None = None) -> FloatArray:
    """Returns the correlation of each pair of nodes, or of some with all; 0 with a load that does not vary."""
    centred = of_nodes - of_nodes.mean(axis=1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    unit = np.divide(centred, length, out=np.zeros_like(centred), where=length > _FLAT)
    found: FloatArray = (unit if rows is None else unit[rows]) @ unit.T
    return found


def _average(correlations: FloatArray) -> float:
    count = len(correlations)
    return float((correlations.sum() - np.trace(correlations)) / max(1, count * (count - 1)))
