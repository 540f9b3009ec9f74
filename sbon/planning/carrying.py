"""Admission under a declared profile: places a query so that it carries the rates that its sources are to reach, or says what binds.

    begin -> Attempt -> predicted -> carries the profile: judged by `Admission` from then on
                                  -> does not: another Attempt without the nodes that are full
                                  -> no attempt left -> the placement that carries most, or Refused if it does not carry the profile even at
                                     the most favourable edge of all figures

The strategy takes the placement of the least network usage. Throughput is a constraint on it, not another objective.
"""

from sbon.cost.explaining import amount
from sbon.cost.figure import Edge
from sbon.cost.highest_rate import Rates, profile_of
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.throughput import Limit
from sbon.errors import PlacementError, SbonError
from sbon.optimiser.placed import Placed
from sbon.planning.admission import Action, Admission, Attempt, Refused
from sbon.query.plan import Plan
from sbon.types import NodeId

ATTEMPTS_MAX = 4


class Carrying:
    """Admits one query with a profile.

    Parameters
    ----------
    plan : with target points, and perhaps `max_latency_ms`
    excluded : nodes that count as full
    """

    def __init__(self, plan: Plan, excluded: frozenset[NodeId] = frozenset()) -> None:
        self._plan, self._excluded = plan, excluded
        self._attempts = 0
        self._best: tuple[float, Placed, PlacedQuery, Limit] | None = None
        self._latency: Admission | None = None

    def begin(self) -> Action:
        """Returns the first attempt."""
        self._attempts += 1
        return Attempt(self._plan, self._excluded)

    def predicted(self, placed: Placed, query: PlacedQuery) -> Action:
        """Judges a placement, which takes some hundredths of a second."""
        if self._latency is not None:
            return self._latency.predicted(placed, query)
        limits = Rates.settled(query, profile_of(query)).limits()
        if not limits or limits[0].quality >= 1.0:
            return self._carried(placed, query)
        if self._best is None or limits[0].quality > self._best[0]:
            self._best = limits[0].quality, placed, query, limits[0]
        free = {node for operator, node in placed.nodes.items() if self._is_free(operator)}
        blamed = frozenset(free & {node for limit in limits if limit.quality < 1.0 for node in limit.nodes})
        if not blamed or self._attempts >= ATTEMPTS_MAX:
            return self._ended()
        self._excluded |= blamed
        return self.begin()

    def unplaceable(self, problem: SbonError) -> Action:
        """Ends after an attempt without a placement: with the best placement that was found before, or with the reason."""
        if self._latency is not None:
            return self._latency.unplaceable(problem)
        return self._ended() if self._best is not None else Refused(problem)

    def _is_free(self, operator: str) -> bool:
        return any(spec.id == operator and spec.pinned is None for spec in self._plan.operators)

    def _carried(self, placed: Placed, query: PlacedQuery) -> Action:
        self._latency = Admission(self._plan, self._excluded)
        return self._latency.predicted(placed, query)

    def _ended(self) -> Action:
        assert self._best is not None
        quality, placed, query, binding = self._best
        hopeful = Rates.settled(query, profile_of(query), Edge.LOW).limits()
        if not hopeful or hopeful[0].quality >= 1.0:
            return self._carried(placed, query)
        at = f" at {binding.point}" if binding.point else ""
        return Refused(
            PlacementError(
                f"no placement carries the profile{at}: at best {amount(quality)} times it, by {binding.what}; declare lower rates, or add "
                "nodes (`sbon plan throughput` looks for another order)"
            )
        )
