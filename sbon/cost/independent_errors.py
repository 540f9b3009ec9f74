"""Bounds the work of a query from above by costs and shares of rows that are all uncertain, but partly independently of each other.

If each figure were at its high edge, the work of 14 operators would be far above what any run shows: errors of shares of rows that were
measured apart cancel each other. So for each figure the module computes what it adds to the work of a node if it alone is at its high edge;
the node's work exceeds the expected work by the root of the sum of their squares. Figures that may all err alike count together as one:
costs, because a machine may be slower than when they were measured, declared figures, and rules of thumb.
"""

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from sbon.cost.figure import Source
from sbon.cost.flow import Flow, FlowGraph, OperatorFlow
from sbon.types import FloatArray, IntArray, OperatorId

MEASURED = (Source.MEASURED, Source.SAMPLED)


def at_high_edge(
    expected: tuple[FlowGraph, Flow],
    high: tuple[FlowGraph, Flow],
    sources: Mapping[OperatorId, tuple[Source, ...]],
    node_of: IntArray,
    link_of: IntArray,
    cores: IntArray,
) -> Flow:
    """Returns the flow at the high edge of all figures together.

    Parameters
    ----------
    expected, high : the graph and its flow with each figure as expected, and with each one at its high edge; the operators upstream first
    sources : where the figures of each operator come from
    node_of : (operators,)
    link_of : (links,), links with equal numbers share their capacity; negative: within a node
    cores : (nodes,)
    """
    (graph, least), (_, most) = expected, high
    errors, sent = _Errors(graph, least, most, sources).run()
    share = np.ones(len(node_of))
    for node in range(len(cores)):
        here = node_of == node
        together = _share(errors[here].sum(axis=0))
        # With several cores, the work of one operator may be what counts.
        share[here] = together if cores[node] == 1 else max([together, *(_share(one) for one in errors[here])])
    of_link = np.ones(len(link_of))
    for way in set(link_of.tolist()):
        of_link[link_of == way] = _share(sent[link_of == way].sum(axis=0)) if way >= 0 else 1.0
    found = {
        name: getattr(least, name) + share[:, None] * (getattr(most, name) - getattr(least, name))
        for name in ("rows_in", "rows_out", "load_ns", "batches", "fixed_ns")
    }
    bytes_sent = least.link_bytes + of_link[:, None] * (most.link_bytes - least.link_bytes)
    return msgspec.structs.replace(most, **found, link_bytes=bytes_sent)


def _share(errors: FloatArray) -> float:
    """Returns the root of the sum of squares of errors, as a share of their sum; 1 if there are none.

    Examples
    --------
    >>> _share(np.array([3.0, 4.0])), _share(np.zeros(2))
    (0.7142857142857143, 1.0)
    """
    total = float(errors.sum())
    return math.sqrt(float(errors @ errors)) / total if total > 0 else 1.0


class _Errors:
    """Follows what each figure adds to rows, work and bytes. Columns: rows out of each operator, the bytes of its rows, and all figures
    together that may err alike."""

    def __init__(self, graph: FlowGraph, least: Flow, most: Flow, sources: Mapping[OperatorId, tuple[Source, ...]]) -> None:
        self._graph, self._sources = graph, sources
        self._rows, self._rows_most = least.rows_out.sum(axis=1), most.rows_out.sum(axis=1)
        self._work, self._work_most = least.load_ns.sum(axis=1), most.load_ns.sum(axis=1)
        self._bytes = (most.link_bytes - least.link_bytes).sum(axis=1)
        self._links = least.links
        count = len(self._rows)
        self._out = np.zeros((count, 2 * count + 1))

    def run(self) -> tuple[FloatArray, FloatArray]:
        """Returns what each figure adds to the work of each operator, (operators, figures), and to the bytes of each link."""
        index, count = self._graph.index, len(self._rows)
        work, sent = np.zeros_like(self._out), np.zeros((len(self._links), 2 * count + 1))
        place = {link: number for number, link in enumerate(self._links)}
        for name, operator in self._graph.operators.items():
            row = index[name]
            ports = np.zeros((len(operator.ports), 2 * count + 1))
            rows = np.zeros(len(operator.ports))
            for link in self._graph.incoming(name):
                source = index[link.source]
                ports[link.port] += link.share * self._out[source]
                rows[link.port] += link.share * self._rows[source]
                way = place[link.id]
                column = count + source if self._is_measured(link.source) else -1
                row_bytes = self._graph.operators[link.source].row_bytes
                sent[way] = _with_own(row_bytes * link.share * self._out[source], self._bytes[way], column)
            added = self._rows_most[row] - self._rows[row]
            self._out[row] = _with_own(self._inherited(operator, ports, rows, row), added, row if self._is_measured(name) else -1)
            costs = np.array([port.per_row_ns for port in operator.ports]) @ ports
            if operator.join is not None:
                costs = costs + operator.join.per_row_out_ns * self._out[row]
            work[row] = _with_own(costs, self._work_most[row] - self._work[row], -1)
        return work, sent

    def _is_measured(self, name: OperatorId) -> bool:
        return all(source in MEASURED for source in self._sources[name])

    def _inherited(self, operator: OperatorFlow, ports: FloatArray, rows: FloatArray, row: int) -> FloatArray:
        """Returns what the figures of operators before this one add to its rows out."""
        if operator.join is None and operator.window is None:
            linear: FloatArray = np.array([port.selectivity for port in operator.ports]) @ ports
            return linear
        relative: FloatArray = np.divide(ports, rows[:, None], out=np.zeros_like(ports), where=rows[:, None] > 0).sum(axis=0)
        found: FloatArray = relative * self._rows[row]
        return found


def _with_own(inherited: FloatArray, added: float, own: int) -> FloatArray:
    """Returns the parts of what all figures together add: the inherited ones, and the rest, in the column of the operator's own figure."""
    total = float(inherited.sum())
    found: FloatArray = inherited * min(1.0, max(0.0, added) / total) if total > 0 else inherited.copy()
    found[own] += max(0.0, added - float(found.sum()))
    return found
