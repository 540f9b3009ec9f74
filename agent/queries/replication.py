"""The tables that all agents keep alike: members and catalogue, exchanged whole now and then, and changes told at once."""

from collections.abc import Callable, Iterable

from sbon.errors import RemoteProtocolError, SbonError
from sbon.query.catalog import Catalog, Entry
from sbon.query.system import SourceDefinition
from sbon.types import Address, NodeId, QueryId
from sbon.wire.messages import Message
from sbon.wire.replication import CatalogUpdate, PushPull
from sbon_agent.directory import Directory
from sbon_agent.gossip import Gossip


class Replication:
    """One agent's copies (`sbon_agent.queries.answers.Replicas`)."""

    def __init__(self, directory: Directory, gossip: Gossip, wall: Callable[[], float], refused: Callable[[str], None]) -> None:
        self.catalog = Catalog()
        self._directory = directory
        self._gossip = gossip
        self._wall = wall
        self._refused = refused
        self.changed: Callable[[list[Entry]], None] = lambda entries: None
        """Gets the entries that other agents have changed."""
        self.heard: Callable[[], None] = lambda: None
        """Called when another agent's whole tables are known."""

    def put(
        self, kind: str, name: str, *, sql: str, stamp: int, source: SourceDefinition | None = None, query: QueryId | None = None
    ) -> None:
        """Enter a name, here and everywhere.

        Raises
        ------
        QueryError
            It is taken.
        """
        self._tell(self.catalog.put(kind, name, sql=sql, owner=self._directory.me, stamp=stamp, source=source, query=query))

    def drop(self, kind: str, name: str, *, stamp: int) -> None:
        """Take a name away, here and everywhere.

        Raises
        ------
        QueryError
            There is none.
        """
        self.catalog.drop(kind, name, owner=self._directory.me, stamp=stamp)
        for entry in self.catalog.entries():
            if entry.name == name:
                self._tell(entry)

    def restore(self, entries: Iterable[Entry]) -> None:
        """Enter what this agent had made before a restart, in the versions of then: what others have made of it since counts more."""
        self.catalog.merge(entry for entry in entries if entry.owner == self._directory.me)

    def renew(self, name: str, query: QueryId) -> None:
        """Give a sink of this agent, here and everywhere, the id that its query has after a restart.

        Raises
        ------
        QueryError
            There is none.
        """
        self._tell(self.catalog.renew(name, query, owner=self._directory.me))

    def bury(self, query: QueryId, *, stamp: int) -> None:
        """Let its home know, should it come back, that a plain query has been dropped."""
        entry = self.catalog.bury(query, owner=self._directory.me, stamp=stamp)
        if entry is not None:
            self._tell(entry)

    def exchange(self, address: Address) -> None:
        """Push ours to the agent there and pull its own."""

        def answered(result: Message | SbonError) -> None:
            if isinstance(result, PushPull):
                self._take(result, address)

        self._directory.request_at(address, self._whole(), answered)

    def pulled(self, message: PushPull) -> PushPull:
        """Another agent's tables for ours.

        Raises
        ------
        RemoteProtocolError
            They are nonsense.
        """
        ours = self._whole()
        self._gossip.merge(message.members)
        self._merge(message.catalog)
        self.heard()
        return ours

    def updated(self, message: CatalogUpdate) -> None:
        """Entries that another agent has just changed."""
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
        """At once to all who live; whoever misses it has it from a push-pull."""
        others: list[NodeId] = [node for node in self._gossip.alive_labels() if node != self._directory.me]
        for node in others:
            self._directory.tell(node, CatalogUpdate(entries=(entry,)))
