"""Computes the costs of placements on the true matrix, and the least possible cost, which no agent could know.

The cost of one operator on node v, between pinned ends, is the sum of rate x latency over its links. Trying all nodes gives the exact
optimum.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sbon.cost.network_usage import MS_PER_S
from sbon.types import FloatArray
from sbon_testbed.figures.pairs import Pair, PairRun, Rates
from sbon_testbed.figures.world import MeasuredNetwork


class Placed(NamedTuple):
    """Usage in bytes in transit and delay in ms of each query at each observation, (looks, queries)."""

    usage: FloatArray
    delay_ms: FloatArray


def usage_everywhere(latency_ms: FloatArray, ends: Sequence[int], rates: Sequence[float]) -> FloatArray:
    """Returns the bytes in transit if the operator ran on each node, (nodes,).

    Parameters
    ----------
    latency_ms : (nodes, nodes)
        One way, symmetric.
    ends, rates : for each of the operator's links, the other end's node and the bytes a second

    Source
    ------
    SBON (Pietzuch et al., ICDE 2006), section 2.3, equation 1.
    """
    result: FloatArray = np.asarray(rates, dtype=np.float64) @ latency_ms[list(ends)] / MS_PER_S
    return result


def delay_everywhere(latency_ms: FloatArray, producers: Sequence[int], consumer: int) -> FloatArray:
    """Returns the latency of the longest path from a producer to the consumer through each node, ms, (nodes,)."""
    result: FloatArray = latency_ms[list(producers)].max(axis=0) + latency_ms[consumer]
    return result


class Judge:
    """Evaluates placements of the same queries on the true network."""

    def __init__(self, network: MeasuredNetwork, pairs: Sequence[Pair], rates: Sequence[Rates], at_s: FloatArray, span_s: float) -> None:
        self.nodes = network.nodes
        number = {node: index for index, node in enumerate(network.nodes)}
        self._latency = [matrix / 2 for matrix in network.rtt_ms]
        self.slice_at = np.minimum((at_s / span_s * len(self._latency)).astype(np.int64), len(self._latency) - 1)
        ends = [[number[node] for node in pair] for pair in pairs]
        self.usage = np.array([[usage_everywhere(m, e, r) for e, r in zip(ends, rates, strict=True)] for m in self._latency])
        """(slices, queries, nodes)"""
        self.delay_ms = np.array([[delay_everywhere(m, e[:2], e[2]) for e in ends] for m in self._latency])

    def of(self, host: npt.NDArray[np.int64]) -> Placed:
        """Evaluates operators on these nodes, (looks, queries)."""
        queries = np.arange(host.shape[1])[None, :]
        at = self.slice_at[:, None]
        return Placed(self.usage[at, queries, host], self.delay_ms[at, queries, host])

    def fixed(self, host: npt.NDArray[np.int64]) -> Placed:
        """Evaluates operators that stay on these nodes, (queries,)."""
        return self.of(np.broadcast_to(host, (len(self.slice_at), len(host))))

    def all_knowing(self) -> Placed:
        """Evaluates each operator on the best node of each slice, as if it moved immediately."""
        return self.of(self.usage.argmin(axis=2)[self.slice_at])

    def best_fixed(self) -> Placed:
        """Evaluates each operator on the node that is best for the whole time."""
        weight = np.bincount(self.slice_at, minlength=len(self.usage)) / len(self.slice_at)
        return self.fixed(np.einsum("s,sqn->qn", weight, self.usage).argmin(axis=1))


def judge_of(network: MeasuredNetwork, run: PairRun) -> Judge:
    """Returns the judge with the rates that this run has measured."""
    return Judge(network, run.pairs, run.rates, run.at_s, run.span_s)
