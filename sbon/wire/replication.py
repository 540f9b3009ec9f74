"""Messages that replicate the tables common to all agents, and list the queries that one of them has taken."""

from typing import Annotated

import msgspec

from sbon.message_limits import MANY, Amount, Count, Data, Epoch, Node, Operator, Query, Text
from sbon.query.catalog import Entry
from sbon.wire.ownership import Own


class PushPull(msgspec.Struct, frozen=True, tag="pushpull"):
    """The sender's whole table of members and its catalogue; answered with the receiver's."""

    members: Data
    catalog: Annotated[tuple[Entry, ...], MANY]


class CatalogUpdate(msgspec.Struct, frozen=True, tag="catalog"):
    """Entries that have just changed."""

    entries: Annotated[tuple[Entry, ...], MANY]


class QueriesAsk(msgspec.Struct, frozen=True, tag="queries?"):
    """Asks which queries an agent has taken."""

    history: bool = False
    """True to ask for the queries' histories, too."""


class OrphanOperator(msgspec.Struct, frozen=True, array_like=True):
    """An operator of a query whose home is gone."""

    id: Operator
    kind: Text
    text: Text
    pinned: bool
    rows_in: Count


class Orphan(msgspec.Struct, frozen=True, array_like=True):
    """A query whose home is gone, as seen by one of its hosts."""

    query: Query
    home: Node
    state: Text
    """A `sbon.supervision.homes.HomeState` other than "present"."""
    seconds: Amount
    """Seconds for which the home has been in this state."""
    operators: Annotated[tuple[OrphanOperator, ...], MANY]
    """Operators that this host runs for the query."""


class Queries(msgspec.Struct, frozen=True, tag="queries"):
    """Answers QueriesAsk: rows as `sbon queries --json` shows them, in MessagePack."""

    rows: Data
    orphans: Annotated[tuple[Orphan, ...], MANY] = ()
    """Queries of other agents that have operators here and whose homes are gone."""


class EndOrphan(msgspec.Struct, frozen=True, tag="endorphan"):
    """End a query whose home is gone. Any member may ask; the host refuses if the home answers for the query."""

    query: Query


class OrphanEnded(msgspec.Struct, frozen=True, tag="orphanended"):
    """Answers EndOrphan with the operators that were destroyed."""

    operators: Annotated[tuple[Operator, ...], MANY]


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """End a query that the receiver has taken."""

    query: Query


class WantedAsk(msgspec.Struct, frozen=True, tag="wanted?"):
    """Asks a home whether its queries whose operators run on the sender are still wanted."""

    queries: Annotated[tuple[Query, ...], MANY]
    operators: Annotated[tuple[tuple[Operator, Epoch], ...], MANY] = ()
    """Operators of these queries that run on the sender, with their epochs."""


class Unwanted(msgspec.Struct, frozen=True, tag="unwanted"):
    """Answers WantedAsk with the queries that have ended or are not known."""

    queries: Annotated[tuple[Query, ...], MANY]
    operators: Annotated[tuple[tuple[Operator, Epoch], ...], MANY] = ()
    """Outdated copies of operators that have been made again elsewhere, with the epochs in the question."""
    taken: Annotated[tuple[Own, ...], MANY] = ()
    """Queries that other agents own now; ask those."""
    retired: Annotated[tuple[Operator, ...], MANY] = ()
    """Operators in the question that their query no longer uses."""
