"""Places all operators of a query at once: minimises their cost over the candidates, with reuse and free room considered.

Every operator chooses among: a candidate that would run a new operator; a candidate that runs it already for another query, whose inputs
then cost nothing; and absence, which is allowed where all that it feeds is reused or absent. Costs are those of a model (`sbon.cost.model`)
that is a sum over links and hosts, so that placement and reuse are one minimum, found exactly among the candidates.

If the model refuses this minimum for the query's delay bound, the least cost within the bound is searched (`sbon.placement.bounded`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from sbon.cost.latency import Latencies
from sbon.cost.model import Conditions, CostModel
from sbon.cost.problem import PlacementProblem
from sbon.errors import PlacementError
from sbon.placement.bounded import choices_within
from sbon.placement.candidates import CandidateReport, Choice, Regions, Reuse, running_at, upstream_delay_ms
from sbon.placement.elimination import minimise
from sbon.placement.mapping import no_room, room_of
from sbon.placement.options import Options
from sbon.types import FloatArray, NodeId, OperatorId

REPAIRS_MAX = 1000
"""Most rounds in which overfull nodes lose operators. Each round excludes one more (operator, node)."""


class _Domain(msgspec.Struct):
    """Choices of one operator, in order: absence, running operators, nodes for a new one."""

    absent: int
    """1 if the operator may be absent, else 0."""
    reuses: list[Reuse]
    fresh: list[NodeId]
    columns: list[int]
    """Column of the latency matrix for each choice; 0 for absence, where it is ignored."""

    @property
    def size(self) -> int:
        return self.absent + len(self.reuses) + len(self.fresh)

    @property
    def first_fresh(self) -> int:
        return self.absent + len(self.reuses)


class JointProblem:
    """One search: operators, their candidates, and the known latencies.

    Raises
    ------
    PlacementError
        The cost model is no sum over links and hosts.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        regions: Regions,
        reports: Mapping[NodeId, CandidateReport],
        signatures: Mapping[OperatorId, str],
        latencies: Latencies,
        model: CostModel,
    ) -> None:
        if not model.is_sum:
            raise PlacementError(f"{type(model).__name__} is no sum over links and hosts, expected one for exact placement")
        self._problem = problem
        self._reports = reports
        self._model = model
        nodes = sorted({node for region in regions.values() for node in region} | set(problem.pinned.values()))
        self._column = {node: column for column, node in enumerate(nodes)}
        self._latency_ms = latencies.matrix_ms(nodes, nodes)
        self._latencies = latencies
        self._reuses = {operator: running_at(problem, operator, regions[operator], reports, signatures) for operator in problem.unpinned}
        self._pinned_reuses = {
            operator: running_at(problem, operator, (node,), reports, signatures) for operator, node in sorted(problem.pinned.items())
        }
        self._regions = {
            operator: [node for node in regions[operator] if node in reports and reports[node].free_slots > 0]
            for operator in problem.unpinned
        }
        self._rates = problem.rates()
        self._variable = {operator: index for index, operator in enumerate(problem.unpinned)}

    def best(self) -> Choice:
        """Returns the choice of least cost that overfills no node.

        A node chosen by more operators than it has room for keeps those with the highest rates, and is excluded for one more in each
        round. This repair is a heuristic; the rest is exact, except for a delay bound on a plan that is no tree.

        Raises
        ------
        PlacementError
            The candidates cannot host all operators.
        DelayBoundError
            The candidates can host them, but not within the query's delay bound.
        """
        closed: set[tuple[OperatorId, NodeId]] = set()
        for _ in range(REPAIRS_MAX):
            choice = self._solve(closed)
            if not self._is_allowed(choice):
                choice = self._solve_in_time(closed)
            overfull = self._overfull(choice)
            if overfull is None:
                return choice
            closed.add(overfull)
        raise no_room(self._problem.unpinned[0], len(self._reports))

    def _overfull(self, choice: Choice) -> tuple[OperatorId, NodeId] | None:
        """Returns an operator that has to leave an overfull node, and the node; None if all fit."""
        kept = frozenset(choice.assignment)
        room = room_of(self._problem, self._reports, choice.reused, kept)
        fresh = [operator for operator in self._problem.unpinned if operator in kept and operator not in choice.reused]
        taken = Counter(choice.assignment[operator] for operator in fresh)
        for node in sorted(taken):
            if taken[node] > max(room[node], 0):
                here = [operator for operator in fresh if choice.assignment[operator] == node]
                lightest = min(here, key=lambda operator: (self._rates[operator], operator))
                return lightest, node
        return None

    def _is_allowed(self, choice: Choice) -> bool:
        if self._problem.delay_bound_ms is None:
            return True
        added = choice.adds(self._problem, self._reports)
        return self._model.refusal(added, choice.assignment, Conditions(self._latencies)) is None

    def _solve_in_time(self, closed: set[tuple[OperatorId, NodeId]]) -> Choice:
        """Returns the choice of least cost within the delay bound."""
        assert self._problem.delay_bound_ms is not None
        domains = dict(zip(self._problem.unpinned, self._domains(closed), strict=True))
        options = {operator: self._options(operator, domain) for operator, domain in domains.items()}
        for operator, node in self._problem.pinned.items():
            reuses = self._pinned_reuses[operator]
            begun = upstream_delay_ms(self._problem, operator, reuses[0], self._reports) if reuses else None
            options[operator] = Options(
                np.array([self._column[node]], dtype=np.intp), np.array([np.nan if begun is None else begun]), np.zeros(1)
            )
        chosen = choices_within(self._problem, options, self._latency_ms, self._model, self._problem.delay_bound_ms)
        indices = [domain.absent + chosen[operator] if operator in chosen else 0 for operator, domain in domains.items()]
        return self._choice(list(domains.values()), indices)

    def _options(self, operator: OperatorId, domain: _Domain) -> Options:
        """Returns the choices of a domain except absence."""
        delays = [upstream_delay_ms(self._problem, operator, reuse, self._reports) for reuse in domain.reuses]
        begun = [np.nan if delay is None else delay for delay in delays] + [np.nan] * len(domain.fresh)
        columns = np.array(domain.columns[domain.absent :], dtype=np.intp)
        return Options(columns, np.array(begun, dtype=np.float64), self._own_cost(operator, domain)[domain.absent :])

    def _solve(self, closed: set[tuple[OperatorId, NodeId]]) -> Choice:
        domains = self._domains(closed)
        unary = [self._own_cost(operator, domain) for operator, domain in zip(self._problem.unpinned, domains, strict=True)]
        pairwise: dict[tuple[int, int], FloatArray] = {}
        for link in self._problem.links:
            source, target = self._variable.get(link.source), self._variable.get(link.target)
            rate = link.rate_bytes_per_s
            if source is not None and target is not None:
                table = self._between(domains[source], domains[target], rate)
                key, table = ((source, target), table) if source < target else ((target, source), table.T)
                pairwise[key] = pairwise[key] + table if key in pairwise else table
            elif source is not None:
                column = self._column[self._problem.pinned[link.target]]
                cost = self._model.of_links(rate, self._latency_ms[domains[source].columns, column])
                if not self._pinned_reuses[link.target]:
                    cost[: domains[source].absent] = np.inf
                else:
                    cost[:] = 0.0
                unary[source] = unary[source] + cost
            elif target is not None:
                column = self._column[self._problem.pinned[link.source]]
                cost = self._model.of_links(rate, self._latency_ms[column, domains[target].columns])
                cost[: domains[target].first_fresh] = 0.0
                unary[target] = unary[target] + cost
        for operator, domain, costs in zip(self._problem.unpinned, domains, unary, strict=True):
            if not domain.size or not np.isfinite(costs).any():
                raise no_room(operator, len(self._regions[operator]))
        indices, cost_total = minimise(unary, pairwise)
        if not np.isfinite(cost_total):
            raise no_room(self._problem.unpinned[0], len(self._reports))
        return self._choice(domains, indices)

    def _domains(self, closed: set[tuple[OperatorId, NodeId]]) -> list[_Domain]:
        receivers: dict[OperatorId, list[OperatorId]] = {}
        for link in self._problem.links:
            receivers.setdefault(link.source, []).append(link.target)
        may_be_absent: set[OperatorId] = set()
        result: list[_Domain] = []
        for operator in reversed(self._problem.unpinned):
            reuses = self._reuses[operator]
            fed = receivers.get(operator, [])
            absent = bool(fed) and all(
                other in may_be_absent or bool(self._reuses.get(other) or self._pinned_reuses.get(other)) for other in fed
            )
            if absent:
                may_be_absent.add(operator)
            fresh = [node for node in self._regions[operator] if (operator, node) not in closed]
            columns = [0] * absent + [self._column[reuse.node] for reuse in reuses] + [self._column[node] for node in fresh]
            result.append(_Domain(int(absent), list(reuses), fresh, columns))
        return result[::-1]

    def _own_cost(self, operator: OperatorId, domain: _Domain) -> FloatArray:
        """Returns the cost of an operator's host; a running operator adds no load."""
        cost = np.zeros(domain.size)
        loads = np.array([self._reports[node].load_ms for node in domain.fresh], dtype=np.float64)
        cost[domain.first_fresh :] = self._model.of_hosts(self._rates[operator], loads)
        return cost

    def _between(self, source: _Domain, target: _Domain, rate: float) -> FloatArray:
        """Returns the cost of a link for each choice of its ends."""
        table = self._model.of_links(rate, self._latency_ms[source.columns][:, target.columns])
        table[:, : target.first_fresh] = 0.0  # inputs of a reused or absent operator cost nothing
        table[: source.absent, target.first_fresh :] = np.inf  # a new operator needs its inputs
        return table

    def _choice(self, domains: Sequence[_Domain], indices: Sequence[int]) -> Choice:
        reused = {operator: reuses[0] for operator, reuses in self._pinned_reuses.items() if reuses}
        assignment = dict(self._problem.pinned)
        for operator, domain, index in zip(self._problem.unpinned, domains, indices, strict=True):
            if domain.absent <= index < domain.first_fresh:
                reused[operator] = domain.reuses[index - domain.absent]
                assignment[operator] = reused[operator].node
            elif index >= domain.first_fresh:
                assignment[operator] = domain.fresh[index - domain.first_fresh]
        kept = self._problem.needed(reused)
        everyone = (*self._problem.pinned, *self._problem.unpinned)
        return Choice(
            {operator: assignment[operator] for operator in everyone if operator in kept},
            {operator: reused[operator] for operator in everyone if operator in kept and operator in reused},
            tuple(operator for operator in everyone if operator not in kept),
        )
