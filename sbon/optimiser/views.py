"""Inputs and outputs of the local optimiser."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from sbon.types import NodeId, OperatorId


class Neighbour(msgspec.Struct, frozen=True):
    """The other end of one link of an operator."""

    node: NodeId
    rate_bytes_per_s: float
    """Measured rate of the link."""
    upstream: bool
    operator: OperatorId = ""
    """Needed only if operators of one node may move together (`bodies`)."""
    delay_ms: float | None = None
    """For upstream neighbours, the latency of the longest path from a producer to that operator, if it is known."""


class OperatorView(msgspec.Struct, frozen=True):
    """An unpinned operator of this node, or several that move as one body."""

    id: OperatorId
    here: NodeId
    neighbours: tuple[Neighbour, ...]
    """Neighbours, one for each link."""
    migrations: int = 0
    """Number of migrations since it was created."""
    since_migration_s: float | None = None
    """Seconds since it migrated here; None if it was created here."""
    state_bytes: int = 0
    """Approximate bytes that a migration would have to transfer."""
    members: tuple[OperatorId, ...] = ()
    """For a body, all its operators, upstream first, `id` being the first; () for a single operator."""
    delay_slack_ms: float = math.inf
    """Allowed growth of the longest path through it: the least slack of the queries that use it (`sbon.optimiser.slack`)."""

    @property
    def operators(self) -> tuple[OperatorId, ...]:
        """Returns the operators that would move."""
        return self.members or (self.id,)


class Ask(msgspec.Struct, frozen=True):
    """Request to ask these nodes, as a new query's candidates are asked; the first is this node, whose own RTTs are measured the same
    way."""

    operator: OperatorId
    candidates: tuple[NodeId, ...]
    about: tuple[NodeId, ...]
    """Nodes of the operator's neighbours. A node asked about itself may say 0 or nothing."""


class Considered(msgspec.Struct, frozen=True, kw_only=True):
    """One node that a review has considered."""

    node: NodeId
    usage_bytes: float
    """Network usage of the links in question after the change."""
    usage_here_bytes: float
    """Present usage of the same links, from RTTs known in the same way."""
    saving_fraction: float
    """Saving of usage and load together; below 0 for a loss."""
    required_fraction: float
    """Saving that would have had to be exceeded."""
    measured: bool
    """True if all RTTs on both sides were measured."""
    free_slots: int
    seen: int
    """Number of successive reviews that have measured this saving; the fractions are their means."""


class Alternative(Considered, frozen=True, kw_only=True):
    """One node that was considered for an operator."""

    load_ms: float
    lengthening_ms: float = 0.0
    """Growth of the longest path through the operator if it ran there."""


class Migrate(msgspec.Struct, frozen=True):
    """The operator (or the whole body, in the order of `operators`) should move."""

    operator: OperatorId
    operators: tuple[OperatorId, ...]
    to: NodeId
    usage_now: float
    usage_there: float
    saving_fraction: float
    reason: str
    alternatives: tuple[Alternative, ...]
    """Alternatives, those with the most saving first."""


class Stay(msgspec.Struct, frozen=True):
    """The operator stays where it is for now."""

    operator: OperatorId
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    pending: bool = False
    """The next review will ask again, to confirm a saving."""


Verdict: TypeAlias = Migrate | Stay


def bodies(views: Sequence[OperatorView]) -> tuple[OperatorView, ...]:
    """Returns groups of operators of one node that are linked with each other, each group as one body.

    Two operators with a high rate between them keep each other in place, since moving one alone would put that rate on the network. As a
    body they move together. Groups of one are left out, since their single view says the same. Links within the body are dropped.
    """
    by_id = {view.id: view for view in views}
    root = {view.id: view.id for view in views}

    def find(operator: OperatorId) -> OperatorId:
        while root[operator] != operator:
            operator = root[operator]
        return operator

    for view in views:
        for neighbour in view.neighbours:
            if neighbour.operator in by_id and neighbour.node == view.here:
                root[find(neighbour.operator)] = find(view.id)
    groups: dict[OperatorId, list[OperatorView]] = {}
    for view in views:
        groups.setdefault(find(view.id), []).append(view)
    return tuple(_body(group) for group in groups.values() if len(group) > 1)


def _body(group: Sequence[OperatorView]) -> OperatorView:
    members = tuple(view.id for view in group)
    ages = [view.since_migration_s for view in group if view.since_migration_s is not None]
    return OperatorView(
        id=members[0],
        here=group[0].here,
        # A path that enters at one member need not leave at each, so a delay upstream of one member is no allowance for another.
        neighbours=tuple(msgspec.structs.replace(n, delay_ms=None) for view in group for n in view.neighbours if n.operator not in members),
        migrations=max(view.migrations for view in group),
        since_migration_s=min(ages) if ages else None,
        state_bytes=sum(view.state_bytes for view in group),
        members=members,
        delay_slack_ms=min(view.delay_slack_ms for view in group),
    )
