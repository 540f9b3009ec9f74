"""The tables that all agents keep alike, and the queries that one of them has taken."""

import msgspec

from sbon.query.catalog import Entry
from sbon.types import QueryId


class PushPull(msgspec.Struct, frozen=True, tag="pushpull"):
    """The sender's whole table of members and its catalogue; answered with the receiver's."""

    members: bytes
    catalog: tuple[Entry, ...]


class CatalogUpdate(msgspec.Struct, frozen=True, tag="catalog"):
    """Entries that have just changed."""

    entries: tuple[Entry, ...]


class QueriesAsk(msgspec.Struct, frozen=True, tag="queries?"):
    """Which queries have you taken?"""


class Queries(msgspec.Struct, frozen=True, tag="queries"):
    """Answer to QueriesAsk: rows as `sbon queries --json` shows them, in MessagePack."""

    rows: bytes


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """End a query that you have taken."""

    query: QueryId


class WantedAsk(msgspec.Struct, frozen=True, tag="wanted?"):
    """We run operators for these queries that you have taken. Are they still wanted?"""

    queries: tuple[QueryId, ...]


class Unwanted(msgspec.Struct, frozen=True, tag="unwanted"):
    """Answer to WantedAsk: those that are over, or not known (any more)."""

    queries: tuple[QueryId, ...]
