"""Replicates the tables that all agents share: members and catalogue. Exchanges whole tables periodically, and sends changes at once.

The node runs it.
"""

from collections.abc import Callable, Iterable

from sbon.errors import RemoteProtocolError, SbonError
from sbon.membership.gossip import Gossip
from sbon.peers.directory import Directory
from sbon.query.catalog import Catalog, Entry
from sbon.query.system import SourceDefinition
from sbon.types import Address, NodeId, QueryId
from sbon.wire.messages import Message
from sbon.wire.replication import CatalogUpdate, PushPull


class Replication:
    """This agent's copies of the tables."""

    def __init__(self, directory: Directory, gossip: Gossip, wall: Callable[[], float], refused: Callable[[str], None]) -> None:
        self.catalog = Catalog()
        self._directory = directory
        self._gossip = gossip
        self._wall = wall
        self._refused = refused
        self.changed: Callable[[list[Entry]], None] = lambda entries: None
        """Called with the entries that other agents have changed."""
        self.heard: Callable[[], None] = lambda: None
        """Called when another agent's whole tables have arrived."""

    def put(
        self, kind: str, name: str, *, sql: str, stamp: int, source: SourceDefinition | None = None, query: QueryId | None = None
    ) -> None:
        """Enters a name, here and on all agents.

        Raises
        ------
        QueryError
            The name is taken.
        """
        self._tell(self.catalog.put(kind, name, sql=sql, owner=self._directory.me, stamp=stamp, source=source, query=query))

    def drop(self, kind: str, name: str, *, stamp: int) -> None:
        """Removes a name, here and on all agents.

        Raises
        ------
        QueryError
            There is no such name.
        """
        self.catalog.drop(kind, name, owner=self._directory.me, stamp=stamp)
        for entry in self.catalog.entries():
            if entry.name == name:
                self._tell(entry)

    def restore(self, entries: Iterable[Entry]) -> None:
        """Enters the entries that this agent had before a restart, with their old versions, so that later changes by others win."""
        self.catalog.merge(entry for entry in entries if entry.owner == self._directory.me)

    def told(self, kind: str, name: str, sql: str, version: int, query: QueryId) -> None:
        """Enters a version of a name that another agent has entered, in case this agent has not heard of it."""
        self._merge((Entry(kind, name, version, self._directory.me, False, sql, query=query),))

    def renew(self, name: str, query: QueryId) -> None:
        """Gives a sink of this agent the new id of its query after a restart, here and on all agents.

        Raises
        ------
        QueryError
            There is no such sink.
        """
        self._tell(self.catalog.renew(name, query, owner=self._directory.me))

    def bury(self, query: QueryId, *, stamp: int) -> None:
        """Records that a query without a sink has been dropped, so that its home learns this when it comes back."""
        entry = self.catalog.bury(query, owner=self._directory.me, stamp=stamp)
        if entry is not None:
            self._tell(entry)

    def exchange(self, address: Address) -> None:
        """Sends the tables to the agent at an address, and merges its tables."""

        def answered(result: Message | SbonError) -> None:
            if isinstance(result, PushPull):
                self._take(result, address)

        self._directory.request_at(address, self._whole(), answered)

    def pulled(self, message: PushPull) -> PushPull:
        """Merges another agent's tables and returns this agent's.

        Raises
        ------
        RemoteProtocolError
            The tables cannot be decoded.
        """
        ours = self._whole()
        self._gossip.merge(message.members)
        self._merge(message.catalog)
        self.heard()
        return ours

    def updated(self, message: CatalogUpdate) -> None:
        """Merges entries that another agent has just changed."""
        self._merge(message.entries)

    def _whole(self) -> PushPull:
        return PushPull(members=self._gossip.machine.full_state(), catalog=tuple(self.catalog.entries()))

    def _take(self, message: PushPull, address: Address) -> None:
        try:
            self._gossip.merge(message.members, address)
        except RemoteProtocolError as problem:
            self._refused(str(problem))
            return
        self._merge(message.catalog)
        self.heard()

    def _merge(self, entries: tuple[Entry, ...]) -> None:
        changed = self.catalog.merge(entries, now_us=int(self._wall() * 1e6), is_member=self._gossip.members.__contains__)
        if changed:
            self.changed(changed)

    def _tell(self, entry: Entry) -> None:
        """Sends an entry to all living agents at once. An agent that misses the message gets the entry with the next exchange of tables."""
        others: list[NodeId] = [node for node in self._gossip.alive_labels() if node != self._directory.me]
        for node in others:
            self._directory.tell(node, CatalogUpdate(entries=(entry,)))
