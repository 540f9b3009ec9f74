"""Costs of a query under other placements, with all latencies of a moment known, which no agent knew then.

Source: SBON, sections 2.3 (network usage) and 4.1 (PRODUCER, CONSUMER and OPTIMAL).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sbon.cost.network_usage import NetworkUsage
from sbon.placement.elimination import minimise
from sbon.types import FloatArray, NodeId, OperatorId


class FlowLink(NamedTuple):
    """A link with its rate in a moment."""

    source: OperatorId
    target: OperatorId
    bytes_per_s: float


class Moment(NamedTuple):
    """Latencies between all nodes present in a moment."""

    row: Mapping[NodeId, int]
    one_way_ms: FloatArray
    """One-way latencies, (nodes, nodes); 0 within a node, infinite if unknown."""

    def between(self, a: NodeId, b: NodeId) -> float:
        """Returns the one-way latency in ms; infinite if unknown."""
        if a == b:
            return 0.0
        if a not in self.row or b not in self.row:
            return float("inf")
        return float(self.one_way_ms[self.row[a], self.row[b]])


def usage_bytes(links: Sequence[FlowLink], nodes: Mapping[OperatorId, NodeId], moment: Moment) -> float:
    """Returns the bytes in transit with the operators on these nodes; infinite if a latency is unknown.

    Examples
    --------
    >>> moment = Moment({"a": 0, "b": 1}, np.array([[0.0, 20.0], [20.0, 0.0]]))
    >>> usage_bytes([FlowLink("p", "c", 1000.0)], {"p": "a", "c": "b"}, moment)
    20.0
    """
    return sum((_between(link, nodes, moment) for link in links), 0.0)


def delay_ms(links: Sequence[FlowLink], nodes: Mapping[OperatorId, NodeId], moment: Moment) -> float:
    """Returns the one-way delay of the longest path from a producer to a consumer over the links, which must be a DAG."""
    upstream: dict[OperatorId, list[OperatorId]] = {}
    for link in links:
        upstream.setdefault(link.target, []).append(link.source)
    known: dict[OperatorId, float] = {}

    def longest(operator: OperatorId, above: frozenset[OperatorId]) -> float:
        if operator not in known:
            # Our plans have no cycles, but a log may contain anything.
            sources = [source for source in upstream.get(operator, ()) if source not in above]
            known[operator] = max(
                (longest(source, above | {operator}) + moment.between(nodes[source], nodes[operator]) for source in sources), default=0.0
            )
        return known[operator]

    return max((longest(link.target, frozenset({link.target})) for link in links), default=0.0)


def least_usage_bytes(links: Sequence[FlowLink], pinned: Mapping[OperatorId, NodeId], moment: Moment) -> float:
    """Returns the network usage of the best placement: exact, with every unpinned operator on any node present.

    Raises
    ------
    PlacementError
        The plan is too dense for so many nodes.
    """
    movable = sorted({end for link in links for end in (link.source, link.target)} - set(pinned))
    number = {operator: index for index, operator in enumerate(movable)}
    nodes = len(moment.row)
    fixed = 0.0
    unary = [np.zeros(nodes) for _ in movable]
    pairwise: dict[tuple[int, int], FloatArray] = {}
    for link in links:
        a, b = number.get(link.source), number.get(link.target)
        if a is None and b is None:
            fixed += _between(link, pinned, moment)
        elif a is None or b is None:
            end = pinned[link.source if a is None else link.target]
            movable_end = a if b is None else b
            assert movable_end is not None
            if end not in moment.row:
                return float("inf")
            unary[movable_end] += _costs(link.bytes_per_s, moment.one_way_ms[moment.row[end]])
        else:
            pair = (min(a, b), max(a, b))
            pairwise[pair] = pairwise.get(pair, 0.0) + _costs(link.bytes_per_s, moment.one_way_ms)
    return fixed + (minimise(unary, pairwise)[1] if movable else 0.0)


def _between(link: FlowLink, nodes: Mapping[OperatorId, NodeId], moment: Moment) -> float:
    """Returns the network usage of a link with its ends on these nodes."""
    return float(_costs(link.bytes_per_s, np.array(moment.between(nodes[link.source], nodes[link.target]))))


def _costs(bytes_per_s: float, one_way_ms: FloatArray) -> FloatArray:
    """Returns the network usage of links; 0 of a link that carries nothing, even if its latency is not known."""
    return NetworkUsage().of_links(bytes_per_s, one_way_ms) if bytes_per_s else np.zeros_like(one_way_ms)
