"""The choices of each operator of a query with a delay bound, and the shortest paths through each choice."""

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from sbon.cost.delay import upstream_first
from sbon.cost.model import CostModel
from sbon.cost.problem import PlacementProblem
from sbon.types import FloatArray, OperatorId

IntArray = npt.NDArray[np.intp]


class Options(msgspec.Struct, frozen=True):
    """The choices of one operator; a pinned one has a single choice."""

    columns: IntArray
    """Node of each choice as a column of the latency matrix, (choices,)."""
    begun_ms: FloatArray
    """Delay of the running operator that each choice reuses, (choices,), whose inputs do not count; NaN if the operator would be new."""
    cost: FloatArray
    """Cost of each choice, (choices,), without its links."""

    @property
    def fresh(self) -> npt.NDArray[np.bool_]:
        """Tells for each choice whether the operator would be new, (choices,)."""
        return np.isnan(self.begun_ms)

    def only(self, choices: IntArray | int) -> "Options":
        """Returns these choices alone, or this one."""
        few = np.atleast_1d(choices)
        return Options(self.columns[few], self.begun_ms[few], self.cost[few])


Chosen = dict[OperatorId, int]
"""Index of the chosen option of each operator."""


class Graph:
    """The operators and links of a problem in topological order, and the costs of links by a model that is a sum."""

    def __init__(self, problem: PlacementProblem, latency_ms: FloatArray, model: CostModel) -> None:
        self.order = upstream_first((*problem.pinned, *problem.unpinned), problem.links)
        self.latency_ms = latency_ms
        self._model = model
        self.inputs: dict[OperatorId, dict[OperatorId, list[float]]] = {operator: {} for operator in self.order}
        """For each operator, those that feed it, and the rates of their links in bytes/s; parallel links have several."""
        self.outputs: dict[OperatorId, list[OperatorId]] = {operator: [] for operator in self.order}
        for link in problem.links:
            inputs = self.inputs[link.target]
            if link.source not in inputs:
                self.outputs[link.source].append(link.target)
            inputs.setdefault(link.source, []).append(link.rate_bytes_per_s)

    def of_links(self, source: OperatorId, target: OperatorId, latency_ms: FloatArray) -> FloatArray:
        """Returns the costs of the links from one operator to another at these latencies, in their shape."""
        first, *others = (self._model.of_links(rate, latency_ms) for rate in self.inputs[target][source])
        return sum(others, start=first)

    def is_tree(self, options: Mapping[OperatorId, Options]) -> bool:
        """Tells whether no operator's choice matters to two others: all but producers, and running operators that are certainly reused,
        feed one."""
        return all(
            len(self.outputs[operator]) <= 1
            or (len(options[operator].columns) == 1 and (not self.inputs[operator] or not options[operator].fresh[0]))
            for operator in self.order
        )

    def head_ms(self, options: Mapping[OperatorId, Options]) -> dict[OperatorId, FloatArray]:
        """Returns for each operator the shortest path to each choice, (choices,), with each input's best choice.

        Exact on trees; a lower bound if an operator feeds two others.
        """
        head: dict[OperatorId, FloatArray] = {}
        for operator in self.order:
            here = options[operator]
            arrival = np.zeros(len(here.columns))
            for source in self.inputs[operator]:
                latency = self.latency_ms[np.ix_(options[source].columns, here.columns)]
                arrival = np.maximum(arrival, (head[source][:, None] + latency).min(axis=0, initial=np.inf))
            head[operator] = np.where(here.fresh, arrival, here.begun_ms)
        return head

    def tail_ms(self, options: Mapping[OperatorId, Options]) -> dict[OperatorId, FloatArray]:
        """Returns for each operator a lower bound of the path from each choice to the end, (choices,)."""
        tail: dict[OperatorId, FloatArray] = {}
        for operator in reversed(self.order):
            here = options[operator]
            left = np.zeros(len(here.columns))
            for target in self.outputs[operator]:
                there = options[target]
                # Inputs of a reused operator take no part; their path counts as 0.
                way = self.latency_ms[np.ix_(here.columns, there.columns)] + tail[target]
                way[:, ~there.fresh] = 0.0
                left = np.maximum(left, way.min(axis=1, initial=np.inf))
            tail[operator] = left
        return tail

    def between(self, options: Mapping[OperatorId, Options], source: OperatorId, target: OperatorId) -> FloatArray:
        """Returns the latency of the link, (choices of source, choices of target); 0 to a running operator, whose inputs flow anyway."""
        latency: FloatArray = self.latency_ms[np.ix_(options[source].columns, options[target].columns)]
        latency[:, ~options[target].fresh] = 0.0
        return latency

    def longest(self, options: Mapping[OperatorId, Options], chosen: Mapping[OperatorId, int]) -> tuple[float, list[OperatorId]]:
        """Returns the longest path under these choices, and the operators on it, upstream first."""
        delay: dict[OperatorId, float] = {}
        before: dict[OperatorId, OperatorId] = {}
        for operator in self.order:
            begun = float(options[operator].begun_ms[chosen[operator]])
            delay[operator] = 0.0 if math.isnan(begun) else begun
            if not math.isnan(begun):
                continue
            column = options[operator].columns[chosen[operator]]
            for source in self.inputs[operator]:
                arrival = delay[source] + float(self.latency_ms[options[source].columns[chosen[source]], column])
                if operator not in before or arrival > delay[operator]:
                    delay[operator], before[operator] = arrival, source
        if not delay:
            return 0.0, []
        way = [max(delay, key=lambda operator: delay[operator])]
        while way[-1] in before:
            way.append(before[way[-1]])
        return delay[way[0]], way[::-1]

    def ends(self) -> list[OperatorId]:
        """Returns the operators without outputs."""
        return [operator for operator in self.order if not self.outputs[operator]]
