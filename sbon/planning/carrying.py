"""Admission under a declared profile: places a query so that it carries the declared rates of its sources, or says which limit binds.

    begin -> Attempt -> predicted -> carries the profile: judged by `Admission` from then on
                                  -> does not, the first time: an Attempt in the order and placement that a search among the nodes that
                                     were asked finds to carry it (`sbon.planning.arranging`)
                                  -> does not: another Attempt without the nodes that are full
                                  -> no attempt left -> the placement that carries most, or Refused if it does not carry the profile even at
                                     the most favourable edge of all figures

The strategy takes the placement of the least network usage. Throughput is a constraint, not another objective: of the orders and placements
that carry the profile, the search takes the one of the least usage, too. An operator has the same costs in every order. There is no search
for a query that uses operators of other queries, because those stay as they are.
"""

import msgspec

from sbon.cost.explaining import amount
from sbon.cost.figure import Edge
from sbon.cost.highest_rate import Rates, profile_of
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.throughput import Limit
from sbon.errors import PlacementError, SbonError
from sbon.optimiser.placed import Placed
from sbon.planning.admission import Action, Admission, Attempt, Refused
from sbon.planning.arranging import Arranged, arranged, best_order
from sbon.planning.selection import in_order
from sbon.query.plan import Plan
from sbon.types import NodeId

ATTEMPTS_MAX = 4
EVALUATIONS_MAX = 100_000
"""Most placements of one order that are evaluated for one query: a second or two of one core."""


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
        self._arranged: Arranged | None = None
        self._found: Arranged | None = None
        """The best order and placement that was found, where that does not carry the profile."""
        self._given: PlacedQuery | None = None
        """The query as it was placed first, with the figures of its operators in the original order."""

    def begin(self) -> Action:
        """Returns the first attempt."""
        self._attempts += 1
        return Attempt(self._plan, self._excluded)

    def predicted(self, placed: Placed, query: PlacedQuery) -> Action:
        """Judges a placement, which takes some hundredths of a second; searches after the first one that does not carry the profile."""
        if self._latency is not None:
            return self._latency.predicted(placed, self._in_its_order(placed, query))
        rates = self._rates(placed, query)
        limits = rates.limits()
        if not limits or limits[0].quality >= 1.0:
            return self._carried(placed, query)
        if self._best is None or limits[0].quality > self._best[0]:
            self._best = limits[0].quality, placed, query, limits[0]
        if self._given is None:
            self._given = query
            if not query.shared and (attempt := self._search(placed, rates)) is not None:
                return attempt
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

    def _rates(self, placed: Placed, query: PlacedQuery, edge: Edge = Edge.EXPECTED) -> Rates:
        """Returns the rates of a placement, in the order in which it was placed."""
        if self._arranged is None or self._given is None or placed.plan is not self._arranged.plan:
            return Rates.settled(query, profile_of(query), edge)
        given = msgspec.structs.replace(query, plan=self._given.plan, statistics=self._given.statistics)
        first = Rates.settled(given, profile_of(given), edge)
        return Rates.of_order(first, placed.plan)

    def _in_its_order(self, placed: Placed, query: PlacedQuery) -> PlacedQuery:
        """Returns a placed query with the figures that its operators have in the original order of the plan."""
        if self._arranged is None or self._given is None or placed.plan is not self._arranged.plan:
            return query
        return in_order(msgspec.structs.replace(query, plan=self._given.plan, statistics=self._given.statistics), query.plan)

    def _search(self, placed: Placed, rates: Rates) -> Attempt | None:
        """Returns an attempt in the best order and placement among the nodes that have room, if that carries the profile."""
        nodes = tuple(sorted(rates.query.nodes))
        everywhere = Rates(rates.query, rates.profile, nodes=nodes, at=rates.at)
        hosts = {
            one.operator: [
                view.node for view in one.candidates if view.answered and view.free_slots > 0 and view.node not in self._excluded
            ]
            for one in placed.decision.explanation
        }
        found = arranged(everywhere, best_order(everywhere, hosts, evaluations=EVALUATIONS_MAX))
        if found.quality < 1.0:
            if found.quality > rates.limits()[0].quality:
                self._found = found
            return None
        self._arranged = found
        return Attempt(found.plan, self._excluded, found.node_of)

    def _carried(self, placed: Placed, query: PlacedQuery) -> Action:
        self._latency = Admission(self._plan, self._excluded)
        return self._latency.predicted(placed, self._in_its_order(placed, query))

    def _ended(self) -> Action:
        assert self._best is not None
        quality, placed, query, binding = self._best
        hopeful = self._rates(placed, query, Edge.LOW).limits()
        if not hopeful or hopeful[0].quality >= 1.0:
            return self._carried(placed, query)
        if self._found is not None and self._found.quality > quality:
            quality, binding = self._found.quality, self._found.limits[0]
        at = f" at {binding.point}" if binding.point else ""
        return Refused(
            PlacementError(
                f"no placement carries the profile{at}: at best {amount(quality)} times it, by {binding.what}; lower it, or add nodes"
            )
        )
