"""The placement problem that a cost model judges: operators, some of them pinned, and the links between them with their rates."""

from collections.abc import Container

import msgspec

from sbon.errors import PlacementError
from sbon.query.plan import Plan
from sbon.types import NodeId, OperatorId


class PlacementLink(msgspec.Struct, frozen=True):
    """A stream from one operator to another."""

    source: OperatorId
    target: OperatorId
    rate_bytes_per_s: float


class PlacementProblem(msgspec.Struct, frozen=True):
    """A query as placement sees it: a DAG.

    Links may be parallel, and operators may be without links. Every end of a link is either pinned or unpinned.
    """

    pinned: dict[OperatorId, NodeId]
    unpinned: tuple[OperatorId, ...]
    """Unpinned operators in the plan's order: upstream first."""
    links: tuple[PlacementLink, ...]
    delay_bound_ms: float | None = None
    """Longest allowed one-way path from a producer to a consumer, over the links alone."""
    begun_ms: dict[OperatorId, float] = {}
    """Pinned operators that run already, each with the delay of its longest path from a producer; their inputs flow in any placement."""

    def __post_init__(self) -> None:
        known = self.pinned.keys() | set(self.unpinned)
        if len(known) != len(self.pinned) + len(self.unpinned):
            raise PlacementError("an operator is named twice among pinned and unpinned, expected each once")
        for link in self.links:
            for end in (link.source, link.target):
                if end not in known:
                    raise PlacementError(f"link {link.source!r} > {link.target!r} ends at {end!r}, expected an operator of the problem")
            if not (0 <= link.rate_bytes_per_s < float("inf")):
                raise PlacementError(
                    f"link {link.source!r} > {link.target!r} has the rate {link.rate_bytes_per_s}, expected finite and 0 or more"
                )
        if self.delay_bound_ms is not None and not self.delay_bound_ms >= 0:
            raise PlacementError(f"delay bound {self.delay_bound_ms} ms, expected 0 or more")

    @property
    def pinned_nodes(self) -> tuple[NodeId, ...]:
        """Returns the nodes of pinned operators, each once, in order of name."""
        return tuple(sorted(set(self.pinned.values())))

    @property
    def producers(self) -> tuple[OperatorId, ...]:
        """Returns the pinned operators that only send."""
        receiving = {link.target for link in self.links}
        return tuple(operator for operator in self.pinned if operator not in receiving)

    @property
    def consumers(self) -> tuple[OperatorId, ...]:
        """Returns the pinned operators that only receive."""
        sending = {link.source for link in self.links}
        return tuple(operator for operator in self.pinned if operator not in sending)

    def in_time(self, delay_ms: float) -> bool:
        """Tells whether a path of this length keeps within the delay bound, with a tolerance for rounding."""
        return self.delay_bound_ms is None or delay_ms <= self.delay_bound_ms * (1 + 1e-9) + 1e-9

    def neighbours(self, operator: OperatorId) -> tuple[tuple[OperatorId, float], ...]:
        """Returns the operators linked with this one, and the rate of each link in bytes/s."""
        found = []
        for link in self.links:
            if link.source == operator:
                found.append((link.target, link.rate_bytes_per_s))
            if link.target == operator:
                found.append((link.source, link.rate_bytes_per_s))
        return tuple(found)

    def links_of_each(self) -> dict[OperatorId, list[tuple[OperatorId, float]]]:
        """Returns the neighbours of every operator with the rates of the links, in one pass over the links."""
        found: dict[OperatorId, list[tuple[OperatorId, float]]] = {operator: [] for operator in (*self.pinned, *self.unpinned)}
        for link in self.links:
            found[link.source].append((link.target, link.rate_bytes_per_s))
            found[link.target].append((link.source, link.rate_bytes_per_s))
        return found

    def rates(self) -> dict[OperatorId, float]:
        """Returns the rates of all links of every operator together, in bytes/s."""
        return {operator: sum(rate for _, rate in links) for operator, links in self.links_of_each().items()}

    def needed(self, reused: Container[OperatorId]) -> frozenset[OperatorId]:
        """Returns the operators that take part if some are reused: those from which a consumer is reached without passing a reused one.

        Reused operators that are needed are among them; operators that feed only reused ones are not.
        """
        upstream: dict[OperatorId, list[OperatorId]] = {}
        sending = set()
        for link in self.links:
            upstream.setdefault(link.target, []).append(link.source)
            sending.add(link.source)
        waiting = [operator for operator in (*self.pinned, *self.unpinned) if operator not in sending]
        found = set(waiting)
        while waiting:
            operator = waiting.pop()
            if operator in reused:
                continue
            for source in upstream.get(operator, ()):
                if source not in found:
                    found.add(source)
                    waiting.append(source)
        return frozenset(found)


def reachable(problem: PlacementProblem) -> tuple[dict[OperatorId, set[OperatorId]], dict[OperatorId, set[OperatorId]]]:
    """Returns the operators upstream and downstream of every operator."""
    everyone = (*problem.pinned, *problem.unpinned)
    up: dict[OperatorId, set[OperatorId]] = {operator: set() for operator in everyone}
    down: dict[OperatorId, set[OperatorId]] = {operator: set() for operator in everyone}
    grown = True
    while grown:
        before = sum(map(len, up.values())) + sum(map(len, down.values()))
        for link in problem.links:
            up[link.target] |= up[link.source] | {link.source}
            down[link.source] |= down[link.target] | {link.target}
        grown = sum(map(len, up.values())) + sum(map(len, down.values())) > before
    return up, down


def problem_of(plan: Plan) -> PlacementProblem:
    """Returns the placement problem of a query's plan."""
    return PlacementProblem(
        {operator.id: operator.pinned for operator in plan.operators if operator.pinned is not None},
        tuple(operator.id for operator in plan.operators if operator.pinned is None),
        tuple(PlacementLink(link.source, link.target, link.rate_bytes_per_s) for link in plan.links),
        plan.delay_bound_ms,
    )
