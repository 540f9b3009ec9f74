"""What each operator of a query may choose from when its way has a bound, and the shortest ways through each choice."""

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from sbon.cost.delay import upstream_first
from sbon.placement.problem import PlacementProblem
from sbon.types import FloatArray, OperatorId

IntArray = npt.NDArray[np.intp]


class Options(msgspec.Struct, frozen=True):
    """The choices of one operator; a pinned one has a single choice."""

    columns: IntArray
    """(choices,) of the latency matrix: the node."""
    begun_ms: FloatArray
    """(choices,) NaN where the operator would run anew; else the delay of the running one that would serve, whose inputs do not count."""
    cost: FloatArray
    """(choices,) in bytes, without its links."""

    @property
    def fresh(self) -> npt.NDArray[np.bool_]:
        """(choices,): whether the operator would run anew."""
        return np.isnan(self.begun_ms)

    def only(self, choices: IntArray | int) -> "Options":
        """Those choices alone, or that one."""
        few = np.atleast_1d(choices)
        return Options(self.columns[few], self.begun_ms[few], self.cost[few])


Chosen = dict[OperatorId, int]
"""The number of one option of each operator."""


class Graph:
    """The operators and links of a problem, parallel links taken together, in an order in which links lead forwards."""

    def __init__(self, problem: PlacementProblem, latency_ms: FloatArray) -> None:
        self.order = upstream_first((*problem.pinned, *problem.unpinned), problem.links)
        self.latency_ms = latency_ms
        self.inputs: dict[OperatorId, dict[OperatorId, float]] = {operator: {} for operator in self.order}
        self.outputs: dict[OperatorId, list[OperatorId]] = {operator: [] for operator in self.order}
        for link in problem.links:
            inputs = self.inputs[link.target]
            if link.source not in inputs:
                self.outputs[link.source].append(link.target)
            inputs[link.source] = inputs.get(link.source, 0.0) + link.rate_bytes_per_s / 1000.0

    def is_tree(self, options: Mapping[OperatorId, Options]) -> bool:
        """Whether nobody's choice matters to two others: all but producers, and running operators that serve for sure, feed one."""
        return all(
            len(self.outputs[operator]) <= 1
            or (len(options[operator].columns) == 1 and (not self.inputs[operator] or not options[operator].fresh[0]))
            for operator in self.order
        )

    def head_ms(self, options: Mapping[OperatorId, Options]) -> dict[OperatorId, FloatArray]:
        """(choices,) of each operator: the shortest way to each choice, every input's choice being the best for it.

        Exact on trees; elsewhere, where an operator feeds two, a lower bound.
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
        """(choices,) of each operator: a lower bound of the way from each choice to the end."""
        tail: dict[OperatorId, FloatArray] = {}
        for operator in reversed(self.order):
            here = options[operator]
            left = np.zeros(len(here.columns))
            for target in self.outputs[operator]:
                there = options[target]
                # Who feeds a reused operator takes no part; its way counts nothing.
                way = self.latency_ms[np.ix_(here.columns, there.columns)] + tail[target]
                way[:, ~there.fresh] = 0.0
                left = np.maximum(left, way.min(axis=1, initial=np.inf))
            tail[operator] = left
        return tail

    def between(self, options: Mapping[OperatorId, Options], source: OperatorId, target: OperatorId) -> FloatArray:
        """(choices of source, choices of target): latency of the link; 0 to an operator that runs already, whose inputs flow anyway."""
        latency: FloatArray = self.latency_ms[np.ix_(options[source].columns, options[target].columns)]
        latency[:, ~options[target].fresh] = 0.0
        return latency

    def longest(self, options: Mapping[OperatorId, Options], chosen: Mapping[OperatorId, int]) -> tuple[float, list[OperatorId]]:
        """The longest way under these choices, and the operators on it, upstream first."""
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
        """Operators that feed nobody."""
        return [operator for operator in self.order if not self.outputs[operator]]
