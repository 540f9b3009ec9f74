"""Chooses the agents that keep the record of a query, and tells whether enough of them agree (docs/recovery.md, Ownership).

Rendezvous hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM ToN 6(1), 1998.
"""

import hashlib
from collections.abc import Collection, Iterable

from sbon.types import NodeId, QueryId
from sbon.wire.ownership import Holder

KEEPERS = 2
"""Number of keepers beside the owner."""


def weight(query: QueryId, name: NodeId) -> bytes:
    """Returns the weight of an agent for a query; all agents compute the same weight."""
    return hashlib.blake2b(f"{query}\0{name}".encode(), digest_size=8).digest()


def in_order(query: QueryId, holders: Iterable[Holder]) -> list[Holder]:
    """Returns agents in the order in which they are chosen to keep a query and to take it over."""
    return sorted(holders, key=lambda holder: (weight(query, holder.name), holder), reverse=True)


def holders_of(query: QueryId, owner: Holder, living: Iterable[Holder]) -> tuple[Holder, ...]:
    """Returns the owner and its two keepers, sorted; the owner alone if fewer than three agents live.

    Examples
    --------
    >>> ams, fra, nyc, osl = (Holder(name, 1) for name in ("ams", "fra", "nyc", "osl"))
    >>> [holder.name for holder in holders_of("ams.0000001.01", ams, [nyc, osl, fra, ams])]
    ['ams', 'fra', 'osl']
    >>> [holder.name for holder in holders_of("ams.0000001.01", ams, [ams, fra])]
    ['ams']
    """
    others = in_order(query, (holder for holder in living if holder.name != owner.name))
    return tuple(sorted([owner, *others[:KEEPERS]])) if len(others) >= KEEPERS else (owner,)


def agree(sets: Iterable[Collection[Holder]], agreed: Collection[Holder], ended: Collection[Holder] = ()) -> bool:
    """Tells whether a majority of each set agrees.

    Parameters
    ----------
    ended : processes that have certainly ended; they do not count, unless a later process of the agent has agreed for them

    Examples
    --------
    >>> ams, fra, nyc = (Holder(name, 1) for name in ("ams", "fra", "nyc"))
    >>> agree([(ams, fra, nyc)], {ams}), agree([(ams, fra, nyc)], {ams}, {fra}), agree([(ams, fra, nyc)], {ams}, {fra, nyc})
    (False, False, True)
    """
    for holders in sets:
        there = [holder for holder in holders if holder in agreed or holder not in ended]
        if there and 2 * sum(holder in agreed for holder in there) <= len(there):
            return False
    return True
