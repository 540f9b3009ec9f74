"""The tables that all agents keep alike, and the queries that one of them has taken."""

import msgspec

from sbon.query.catalog import Entry
from sbon.types import NodeId, OperatorId, QueryId


class PushPull(msgspec.Struct, frozen=True, tag="pushpull"):
    """The sender's whole table of members and its catalogue; answered with the receiver's."""

    members: bytes
    catalog: tuple[Entry, ...]


class CatalogUpdate(msgspec.Struct, frozen=True, tag="catalog"):
    """Entries that have just changed."""

    entries: tuple[Entry, ...]


class QueriesAsk(msgspec.Struct, frozen=True, tag="queries?"):
    """Which queries have you taken?"""


class OrphanOperator(msgspec.Struct, frozen=True, array_like=True):
    """An operator of a query whose home is gone."""

    id: OperatorId
    kind: str
    text: str
    pinned: bool
    rows_in: int


class Orphan(msgspec.Struct, frozen=True, array_like=True):
    """A query whose home is gone, as one of its hosts sees it."""

    query: QueryId
    home: NodeId
    state: str
    """A `sbon.homes.HomeState` other than "present"."""
    seconds: float
    """For how long it has been so."""
    operators: tuple[OrphanOperator, ...]
    """Those that this host runs for the query."""


class Queries(msgspec.Struct, frozen=True, tag="queries"):
    """Answer to QueriesAsk: rows as `sbon queries --json` shows them, in MessagePack."""

    rows: bytes
    orphans: tuple[Orphan, ...] = ()
    """Queries of others that are served here and whose homes are gone."""


class EndOrphan(msgspec.Struct, frozen=True, tag="endorphan"):
    """Let go of a query whose home is gone. Any member may ask; the host refuses where the home answers for the query."""

    query: QueryId


class OrphanEnded(msgspec.Struct, frozen=True, tag="orphanended"):
    """Answer to EndOrphan: the operators that were destroyed."""

    operators: tuple[OperatorId, ...]


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """End a query that you have taken."""

    query: QueryId


class WantedAsk(msgspec.Struct, frozen=True, tag="wanted?"):
    """We run operators for these queries that you have taken. Are they still wanted?"""

    queries: tuple[QueryId, ...]


class Unwanted(msgspec.Struct, frozen=True, tag="unwanted"):
    """Answer to WantedAsk: those that are over, or not known (any more)."""

    queries: tuple[QueryId, ...]
