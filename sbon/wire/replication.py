"""The tables that all agents keep alike, and the queries that one of them has taken."""

from typing import Annotated

import msgspec

from sbon.query.catalog import Entry
from sbon.wire.limits import MANY, Amount, Count, Data, Node, Operator, Query, Text


class PushPull(msgspec.Struct, frozen=True, tag="pushpull"):
    """The sender's whole table of members and its catalogue; answered with the receiver's."""

    members: Data
    catalog: Annotated[tuple[Entry, ...], MANY]


class CatalogUpdate(msgspec.Struct, frozen=True, tag="catalog"):
    """Entries that have just changed."""

    entries: Annotated[tuple[Entry, ...], MANY]


class QueriesAsk(msgspec.Struct, frozen=True, tag="queries?"):
    """Which queries have you taken?"""


class OrphanOperator(msgspec.Struct, frozen=True, array_like=True):
    """An operator of a query whose home is gone."""

    id: Operator
    kind: Text
    text: Text
    pinned: bool
    rows_in: Count


class Orphan(msgspec.Struct, frozen=True, array_like=True):
    """A query whose home is gone, as one of its hosts sees it."""

    query: Query
    home: Node
    state: Text
    """A `sbon.homes.HomeState` other than "present"."""
    seconds: Amount
    """For how long it has been so."""
    operators: Annotated[tuple[OrphanOperator, ...], MANY]
    """Those that this host runs for the query."""


class Queries(msgspec.Struct, frozen=True, tag="queries"):
    """Answer to QueriesAsk: rows as `sbon queries --json` shows them, in MessagePack."""

    rows: Data
    orphans: Annotated[tuple[Orphan, ...], MANY] = ()
    """Queries of others that are served here and whose homes are gone."""


class EndOrphan(msgspec.Struct, frozen=True, tag="endorphan"):
    """Let go of a query whose home is gone. Any member may ask; the host refuses where the home answers for the query."""

    query: Query


class OrphanEnded(msgspec.Struct, frozen=True, tag="orphanended"):
    """Answer to EndOrphan: the operators that were destroyed."""

    operators: Annotated[tuple[Operator, ...], MANY]


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """End a query that you have taken."""

    query: Query


class WantedAsk(msgspec.Struct, frozen=True, tag="wanted?"):
    """We run operators for these queries that you have taken. Are they still wanted?"""

    queries: Annotated[tuple[Query, ...], MANY]


class Unwanted(msgspec.Struct, frozen=True, tag="unwanted"):
    """Answer to WantedAsk: those that are over, or not known (any more)."""

    queries: Annotated[tuple[Query, ...], MANY]
