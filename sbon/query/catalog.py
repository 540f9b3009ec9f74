"""The catalogue: the names of sources, views and sinks, replicated to all agents.

Every agent has a copy. A change gets a version greater than any that the changing agent has seen for the name. Copies exchange
entries and keep, for each name, the entry with the greatest (version, owner, content), so that all copies converge in whatever order they
exchange. A dropped name stays as a tombstone, so that a copy which missed the drop does not bring it back. If two agents create one name
at the same time, one definition wins. Queries planned with the other definition run on unchanged; a sink that has lost its name ends.

Sources, views and sinks share one namespace, as they do in SQL.

Limits on peers' entries keep one peer from using up the catalogue. Each owner has a limit on the number and bytes of living entries; all
owners that are no members share one. All entries together have a limit, too. Versions must not be far ahead of the clock, because nobody
could replace or drop a name of the greatest version.
"""

import difflib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec

from sbon.errors import QueryError
from sbon.query.system import SYSTEM_STREAMS, SourceDefinition
from sbon.types import NodeId, QueryId

ENTRIES_MAX = 2_000
"""Most entries of one catalogue, tombstones included. Further names, and further entries of peers, are refused."""
BYTES_MAX = 16 * 2**20
"""Most bytes of all entries, which travel in one message, together with the members."""
OWNER_ENTRIES_MAX = 500
OWNER_BYTES_MAX = 4 * 2**20
AHEAD_US_MAX = 86_400_000_000
"""Greatest lead of a peer's version over the local clock, in microseconds; entries further ahead are refused."""
TOMBSTONES_MAX = 500
"""Most tombstones kept; the oldest are forgotten. A copy that was away for longer may bring such a name back."""
NAME_LENGTH_MAX = 128
SQL_LENGTH_MAX = 100_000
VERSION_MAX = 2**62

KINDS = ("source", "view", "sink")
QUERY = "query"
"""Kind of the tombstone of a plain query, named by its id. It tells a home that was offline that the query was dropped."""


class Entry(msgspec.Struct, frozen=True):
    """One name of the catalogue, living or a tombstone."""

    kind: str
    """One of KINDS, or QUERY."""
    name: str
    version: int
    """Microseconds since 1970 by the changing agent's clock, or one more than the version it replaces."""
    owner: NodeId
    """The agent that made this version."""
    dropped: bool
    sql: str
    """The statement; empty for tombstones."""
    source: SourceDefinition | None = None
    query: QueryId | None = None
    """The running query that feeds a sink."""


_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


class Catalog:
    """One agent's copy of the catalogue.

    Invariants: at most ENTRIES_MAX entries of BYTES_MAX; the entry of a name only ever grows in (version, owner, content); `_shares` counts
    the living entries of each owner and their bytes.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._shares: dict[NodeId, tuple[int, int]] = {}
        self.refused = 0
        """Number of peers' entries refused because they did not fit or were invalid."""

    def get(self, name: str) -> Entry | None:
        """Returns the living entry of a name."""
        entry = self._entries.get(name)
        return None if entry is None or entry.dropped else entry

    def latest(self, name: str) -> Entry | None:
        """Returns the entry of a name, living or a tombstone."""
        return self._entries.get(name)

    def source(self, name: str) -> SourceDefinition | None:
        """Returns the definition of a declared source or a system stream."""
        entry = self.get(name)
        return SYSTEM_STREAMS.get(name) if entry is None else entry.source

    def names(self, *kinds: str) -> list[str]:
        """Returns the living names, sorted, optionally of the given kinds only. System streams are left out."""
        return sorted(e.name for e in self._entries.values() if not e.dropped and (not kinds or e.kind in kinds))

    def kind_of(self, name: str) -> str:
        """Returns what a name is: one of KINDS, "system stream", or ""."""
        entry = self.get(name)
        return entry.kind if entry is not None else "system stream" if name in SYSTEM_STREAMS else ""

    @property
    def living(self) -> Mapping[str, Entry]:
        """All living entries by name, sorted."""
        return MappingProxyType({name: self._entries[name] for name in self.names()})

    def put(
        self,
        kind: str,
        name: str,
        *,
        sql: str,
        owner: NodeId,
        stamp: int,
        source: SourceDefinition | None = None,
        query: QueryId | None = None,
    ) -> Entry:
        """Defines a name.

        Parameters
        ----------
        kind : "source", "view" or "sink"
        stamp : microseconds since 1970 now

        Raises
        ------
        QueryError
            The name is taken, reserved or too long, or the catalogue is full.
        """
        taken = self.get(name)
        if taken is not None:
            raise QueryError(
                f"there is a {taken.kind} {name} already", hint=f"take another name, or DROP {taken.kind.upper()} {name} first"
            )
        if name.startswith("sys.") or name == "sys":
            raise QueryError(f"{name} is a name of the system", hint="take another name")
        if not 0 < len(name) <= NAME_LENGTH_MAX:
            raise QueryError(f"a name has {len(name)} characters, expected 1 to {NAME_LENGTH_MAX}")
        if len(sql) > SQL_LENGTH_MAX:
            raise QueryError(f"the statement has {len(sql)} characters, expected at most {SQL_LENGTH_MAX}")
        if name not in self._entries and len(self._entries) >= ENTRIES_MAX:
            raise QueryError(f"the catalogue is full: {ENTRIES_MAX} names", hint="drop what is not used")
        entry = Entry(kind, name, self._next_version(name, stamp), owner, False, sql, source, query)
        if not self._has_room(entry, lambda _: True):
            count, size = self._shares.get(owner, (0, 0))
            raise QueryError(
                f"no room for {name}: {owner} has made {count} names of {size} bytes, expected at most {OWNER_ENTRIES_MAX} names of "
                f"{OWNER_BYTES_MAX} bytes for each agent, and {BYTES_MAX} bytes for all",
                hint="drop what is not used, or give the statement to another agent",
            )
        self._set(entry)
        return entry

    def drop(self, kind: str, name: str, *, owner: NodeId, stamp: int) -> Entry:
        """Drops a name and leaves a tombstone.

        Returns
        -------
        Entry
            The entry that was dropped.

        Raises
        ------
        QueryError
            There is no such name of this kind.
        """
        entry = self.get(name)
        if entry is None or entry.kind != kind:
            if entry is not None:
                raise QueryError(f"{name} is a {entry.kind}, not a {kind}", hint=f"write DROP {entry.kind.upper()} {name}")
            if name in SYSTEM_STREAMS:
                raise QueryError(f"{name} is a system stream, which cannot be dropped", hint="DROP is for names that were created")
            raise QueryError(f"there is no {kind} {name}", hint=did_you_mean(name, self.names(kind)))
        self._set(Entry(kind, name, self._next_version(name, stamp), owner, True, ""))
        self._forget_old_tombstones()
        return entry

    def renew(self, name: str, query: QueryId, *, owner: NodeId) -> Entry:
        """Gives a sink the id of the query that feeds it after a restart of its home.

        The version is incremented rather than read from the clock, so that a drop or replacement
        made since then has a greater version and wins.

        Raises
        ------
        QueryError
            There is no such sink.
        """
        entry = self.get(name)
        if entry is None or entry.kind != "sink":
            raise QueryError(f"there is no sink {name}")
        fresh = msgspec.structs.replace(entry, version=min(VERSION_MAX, entry.version + 1), owner=owner, query=query)
        self._set(fresh)
        return fresh

    def bury(self, query: QueryId, *, owner: NodeId, stamp: int) -> Entry | None:
        """Adds the tombstone of a plain query; returns None if its id is too long for a name or the catalogue is full."""
        entry = Entry(QUERY, query, self._next_version(query, stamp), owner, True, "")
        if not _sensible(entry) or (query not in self._entries and len(self._entries) >= ENTRIES_MAX):
            return None
        self._set(entry)
        self._forget_old_tombstones()
        return entry

    def _next_version(self, name: str, stamp: int) -> int:
        before = self._entries.get(name)
        return min(VERSION_MAX, stamp if before is None else max(stamp, before.version + 1))

    def entries(self) -> list[Entry]:
        """Returns all entries, tombstones included, sorted by name, as another copy's `merge` takes them."""
        return [self._entries[name] for name in sorted(self._entries)]

    def merge(
        self, entries: Iterable[Entry], *, now_us: int | None = None, is_member: Callable[[NodeId], bool] = lambda _: True
    ) -> list[Entry]:
        """Merges the entries of another copy.

        Parameters
        ----------
        now_us
            Microseconds since 1970; versions more than AHEAD_US_MAX beyond it are refused. None, for a copy of our own: no check.
        is_member
            Tells whether an owner is a member and so has a share of its own; all others share one.

        Returns
        -------
        list of Entry
            The entries that changed this copy, sorted by name.
        """
        changed: dict[str, Entry] = {}
        for entry in entries:
            if not _sensible(entry) or (now_us is not None and entry.version > now_us + AHEAD_US_MAX):
                self.refused += 1
                continue
            mine = self._entries.get(entry.name)
            if mine is not None and (mine == entry or _rank(entry) <= _rank(mine)):
                continue
            if (mine is None and len(self._entries) >= ENTRIES_MAX) or not self._has_room(entry, is_member):
                self.refused += 1
            else:
                self._set(entry)
                changed[entry.name] = entry
        self._forget_old_tombstones()
        return [changed[name] for name in sorted(changed)]

    def digest(self) -> bytes:
        """Returns 16 bytes that are equal if two copies hold the same entries, in which case no exchange is needed."""
        return hashlib.blake2b(encode_entries(self.entries()), digest_size=16).digest()

    def _forget_old_tombstones(self) -> None:
        tombstones = sorted((entry.version, name) for name, entry in self._entries.items() if entry.dropped)
        for _, name in tombstones[: max(0, len(tombstones) - TOMBSTONES_MAX)]:
            self._remove(name)

    def _has_room(self, entry: Entry, is_member: Callable[[NodeId], bool]) -> bool:
        """Tells whether an entry fits into the limits once it has replaced the present entry of its name."""
        before = self._entries.get(entry.name)
        freed = 0 if before is None else self._sizes[entry.name]
        size = _size(entry)
        if size > freed and self._bytes - freed + size > BYTES_MAX:
            return False
        if entry.dropped:
            return True
        owners = [entry.owner] if is_member(entry.owner) else [owner for owner in self._shares if not is_member(owner)]
        count = sum(self._shares.get(owner, (0, 0))[0] for owner in owners)
        used = sum(self._shares.get(owner, (0, 0))[1] for owner in owners)
        if before is not None and not before.dropped and before.owner in owners:
            count, used = count - 1, used - freed
        return count < OWNER_ENTRIES_MAX and used + size <= OWNER_BYTES_MAX

    def _set(self, entry: Entry) -> None:
        self._remove(entry.name)
        size = _size(entry)
        self._entries[entry.name], self._sizes[entry.name] = entry, size
        self._bytes += size
        if not entry.dropped:
            count, used = self._shares.get(entry.owner, (0, 0))
            self._shares[entry.owner] = (count + 1, used + size)

    def _remove(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        size = self._sizes.pop(name)
        self._bytes -= size
        if not entry.dropped:
            count, used = self._shares[entry.owner]
            self._shares[entry.owner] = (count - 1, used - size)
            if count == 1:
                del self._shares[entry.owner]


def no_query(name: str, kind: str, hint: str) -> QueryError:
    """Returns the error for a statement that needs a query but names something else."""
    return QueryError(f"{name} is a {kind}, not a query", hint=hint)


def _rank(entry: Entry) -> tuple[int, NodeId, bytes]:
    return entry.version, entry.owner, _ENCODER.encode(entry)


def _size(entry: Entry) -> int:
    return len(_ENCODER.encode(entry))


def _sensible(entry: Entry) -> bool:
    return (
        (entry.kind in KINDS or (entry.kind == QUERY and entry.dropped))
        and 0 < len(entry.name) <= NAME_LENGTH_MAX
        and not entry.name.startswith("sys.")
        and 0 <= entry.version <= VERSION_MAX
        and len(entry.sql) <= SQL_LENGTH_MAX
        and (entry.dropped or (entry.kind == "source") == (entry.source is not None))
    )


def encode_entries(entries: Iterable[Entry]) -> bytes:
    """Encodes entries as MessagePack; equal entries give equal bytes."""
    return _ENCODER.encode(list(entries))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a hint with the nearest known name, or with all of them if they are few; empty if there is none."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    return f"there is {', '.join(names)}" if 0 < len(names) <= 12 else ""
