"""Inputs and outputs of the optimisers of running operators."""

import math
from collections.abc import Mapping, Sequence

import msgspec

from sbon.types import LinkId, NodeId, OperatorId

BRANCHES_MIN = 2
"""Least number of consumers of a multicast; for one it would be a detour."""


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
    changes: int = 0
    """Number of migrations since it was created."""
    since_change_s: float | None = None
    """Seconds since it migrated here; None if it was created here."""
    state_bytes: int = 0
    """Approximate bytes that a migration would have to transfer."""
    members: tuple[OperatorId, ...] = ()
    """For a body, all its operators, upstream first, `id` being the first; () for a single operator."""
    delay_slack_ms: float = math.inf
    """Allowed growth of the longest path through it: the least slack of the queries that use it (`sbon.optimiser.slack`)."""
    computing_ms: Mapping[NodeId, float] = {}
    """Growth of the time that its work takes on other nodes (`sbon.cost.computing`); empty where no query with a bound uses it."""

    @property
    def operators(self) -> tuple[OperatorId, ...]:
        """Returns the operators that would move."""
        return self.members or (self.id,)

    @property
    def ends(self) -> tuple[Neighbour, ...]:
        """Returns the neighbours."""
        return self.neighbours

    @property
    def about(self) -> tuple[NodeId, ...]:
        """Returns the nodes of the neighbours, each once."""
        return tuple(dict.fromkeys(neighbour.node for neighbour in self.neighbours))


class Branch(msgspec.Struct, frozen=True):
    """One output of an operator."""

    link: LinkId
    node: NodeId
    """Node of the consumer."""
    rate_bytes_per_s: float
    slack_ms: float = math.inf
    """Allowed growth of the path to the consumer: the least slack of the queries that use the link."""


class SourceView(msgspec.Struct, frozen=True):
    """An operator of this node with all its outputs."""

    id: OperatorId
    here: NodeId
    branches: tuple[Branch, ...]
    changes: int = 0
    """Number of multicasts that were created for it here and removed again."""
    since_change_s: float | None = None
    """Seconds since the last of those was removed; None: there was none."""

    @property
    def operators(self) -> tuple[OperatorId, ...]:
        """Returns the operator alone."""
        return (self.id,)

    @property
    def ends(self) -> tuple[Branch, ...]:
        """Returns the outputs that leave this node."""
        return tuple(branch for branch in self.branches if branch.node != self.here)

    @property
    def about(self) -> tuple[NodeId, ...]:
        """Returns the nodes that a multicast's links would lead to."""
        return (self.here, *dict.fromkeys(branch.node for branch in self.ends))


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
    """Saving that must be exceeded."""
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


class Site(Considered, frozen=True, kw_only=True):
    """One node that was considered for a multicast."""

    links: tuple[LinkId, ...]
    """Links that the multicast would take over."""


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


class Insert(msgspec.Struct, frozen=True):
    """These links should leave from a multicast at `to`."""

    operator: OperatorId
    links: tuple[LinkId, ...]
    to: NodeId
    usage_now: float
    usage_there: float
    saving_fraction: float
    reason: str
    alternatives: tuple[Site, ...]
    """Sites considered, those with the most saving first."""


class Stay(msgspec.Struct, frozen=True):
    """The operator and its outputs stay as they are for now."""

    operator: OperatorId
    reason: str
    alternatives: tuple[Considered, ...] = ()
    pending: bool = False
    """The next review will ask again, to confirm a saving."""


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
    ages = [view.since_change_s for view in group if view.since_change_s is not None]
    return OperatorView(
        id=members[0],
        here=group[0].here,
        # A path that enters at one member need not leave at each, so a delay upstream of one member is no allowance for another.
        neighbours=tuple(msgspec.structs.replace(n, delay_ms=None) for view in group for n in view.neighbours if n.operator not in members),
        changes=max(view.changes for view in group),
        since_change_s=min(ages) if ages else None,
        state_bytes=sum(view.state_bytes for view in group),
        members=members,
        delay_slack_ms=min(view.delay_slack_ms for view in group),
    )
