"""Scores placements: network usage relative to the optimum, delay relative to the network's own routes (SBON, section 4.1)."""

from collections.abc import Mapping

import numpy as np

from sbon.cost.delay import longest_delay_ms
from sbon.cost.latency import KnownLatencies
from sbon.cost.model import Conditions
from sbon.cost.network_usage import NetworkUsage
from sbon.cost.problem import PlacementProblem
from sbon.types import NodeId, OperatorId

NOISE = 1e-12
"""Penalties below this count as 0: they come from adding the same latencies in another order."""


def direct_delay_ms(problem: PlacementProblem, truth: KnownLatencies) -> float:
    """Returns the longest direct latency from a producer to a consumer."""
    return max(truth.one_way_ms(problem.pinned[p], problem.pinned[c]) for p in problem.producers for c in problem.consumers)


class Tally:
    """Figures of one strategy over all queries."""

    def __init__(self) -> None:
        self.usage_penalty: list[float] = []
        self.delay_penalty: list[float] = []
        self.usage_bytes = 0.0
        self.best_bytes = 0.0
        self.probes = 0
        self.seconds = 0.0

    def score(self, problem: PlacementProblem, assignment: Mapping[OperatorId, NodeId], truth: KnownLatencies, best: float) -> None:
        """Adds one placement; `best` is the least possible usage, in bytes."""
        usage = NetworkUsage().of_assignment(problem, assignment, Conditions(truth))
        self.usage_bytes += usage
        self.best_bytes += best
        direct = direct_delay_ms(problem, truth)
        self.usage_penalty.append(_over(usage, best))
        self.delay_penalty.append(_over(longest_delay_ms(problem, assignment, truth), direct))

    def result(self) -> dict[str, float]:
        """Returns the figures for JSON; penalties are fractions."""
        queries = len(self.usage_penalty)
        return {
            "usage_penalty_mean": float(np.mean(self.usage_penalty)),
            "usage_penalty_p80": float(np.percentile(self.usage_penalty, 80)),
            # If the best placement costs almost nothing (all in one city), a query's penalty is unbounded; the total over all queries is
            # not.
            "usage_penalty_total": _over(self.usage_bytes, self.best_bytes),
            "delay_penalty_mean": float(np.mean(self.delay_penalty)),
            "delay_below_direct_share": float(np.mean(np.array(self.delay_penalty) < 0)),
            "probes_per_query": self.probes / queries,
            "milliseconds_per_query": 1000 * self.seconds / queries,
        }


def _over(value: float, base: float) -> float:
    """Returns the fraction by which `value` exceeds `base`; 0 if `base` is 0."""
    penalty = value / base - 1 if base > 0 else 0.0
    return penalty if abs(penalty) > NOISE else 0.0
