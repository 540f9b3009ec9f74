"""Limits connections whose handshake is not finished, so that strangers cannot keep members out.

Anybody who reaches the port may open a connection. It holds a place until the handshake is done or has timed out. A new connection always
gets a place; if none is free, an older connection is closed:

    its source has its maximum of places       -> the oldest of that source
    all places are taken                      -> the oldest of the source that holds most

A handshake takes two round trips. So a member gets through unless strangers open as many connections as there are places within that time.
Connections of one source only displace each other.
"""

import ipaddress
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_IPV6_PREFIX_BITS = 64
"""Prefix that counts as one source, because the owner of an IPv6 address usually has its whole network."""


def source_of(host: str) -> str:
    """Returns the part of an IP address that belongs to one party: the full IPv4 address, or the IPv6 network; other texts unchanged."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX_BITS), strict=False).network_address)


class FairSlots(Generic[K]):
    """Places by holder and source, oldest first; a source with many makes room for others.

    Parameters
    ----------
    total_max, per_source_max : 1 or more
    """

    def __init__(self, total_max: int, per_source_max: int) -> None:
        self._total_max, self._per_source_max = total_max, per_source_max
        self._held: dict[str, dict[K, None]] = {}
        self._source_of: dict[K, str] = {}

    def __len__(self) -> int:
        return len(self._source_of)

    def enter(self, key: K, source: str) -> K | None:
        """Gives `key` a place; returns the key that it displaced, if no place was free."""
        displaced = self._displaced(source)
        if displaced is not None:
            self.leave(displaced)
        self._held.setdefault(source, {})[key] = None
        self._source_of[key] = source
        return displaced

    def leave(self, key: K) -> None:
        """Frees the place of `key`; nothing happens if it has none."""
        source = self._source_of.pop(key, None)
        if source is None:
            return
        held = self._held[source]
        del held[key]
        if not held:
            del self._held[source]

    def _displaced(self, source: str) -> K | None:
        held = self._held.get(source, {})
        if len(held) >= self._per_source_max:
            return next(iter(held))
        if len(self._source_of) >= self._total_max:
            busiest = max(self._held, key=lambda other: len(self._held[other]))
            return next(iter(self._held[busiest]))
        return None


class LineLimit:
    """Limits log lines: one for each subject in a pause, and a bounded number in any pause.

    Strangers choose the subjects (their addresses), so a limit for each subject alone would not bound the number of lines.
    """

    def __init__(self, pause_s: float, lines_max: int) -> None:
        self._pause_s, self._lines_max = pause_s, lines_max
        self._written_at_s: dict[str, float] = {}  # oldest first

    def allows(self, subject: str, now: float) -> bool:
        """Tells whether a line about this subject may be written now; if so, it counts as written."""
        for oldest, at_s in list(self._written_at_s.items()):
            if now - at_s < self._pause_s:
                break
            del self._written_at_s[oldest]
        if subject in self._written_at_s or len(self._written_at_s) >= self._lines_max:
            return False
        self._written_at_s[subject] = now
        return True
