"""Inputs and outputs of the multicast optimiser."""

import math
from typing import TypeAlias

import msgspec

from sbon.optimiser.views import Considered
from sbon.types import LinkId, NodeId, OperatorId

BRANCHES_MIN = 2
"""Least number of consumers of a multicast; for one it would be a detour."""


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
    folded: int = 0
    """Number of multicasts that were created for it here and removed again."""
    since_folded_s: float | None = None
    """Seconds since the last of those was removed; None: there was none."""

    @property
    def leaving(self) -> tuple[Branch, ...]:
        """Returns the outputs that leave this node."""
        return tuple(branch for branch in self.branches if branch.node != self.here)


class Site(Considered, frozen=True, kw_only=True):
    """One node that was considered for a multicast."""

    links: tuple[LinkId, ...]
    """Links that the multicast would take over."""


class Insert(msgspec.Struct, frozen=True):
    """These links should leave from a multicast at `to`."""

    operator: OperatorId
    links: tuple[LinkId, ...]
    to: NodeId
    usage_now: float
    usage_there: float
    saving_fraction: float
    reason: str
    sites: tuple[Site, ...]
    """Sites considered, those with the most saving first."""


class NoInsert(msgspec.Struct, frozen=True):
    """The outputs stay as they are for now."""

    operator: OperatorId
    reason: str
    sites: tuple[Site, ...] = ()
    pending: bool = False
    """The next review will ask again, to confirm a saving."""


Decision: TypeAlias = Insert | NoInsert
