"""Reservations of room on a host: a candidate keeps slots for a query that asks, so that two placements cannot claim the same slots.

    ask            -> room for the query is kept, as much as is free and the query may need, until `reservation_s` have passed
    ask again      -> the room is kept for as long again
    decided        -> room for the operators that will come is kept, the rest is freed
    instantiated   -> one of the kept slots is filled
    time, or 0 decided -> nothing is kept

Invariant: reservations and operators together never exceed the slots. A query without a reservation gets only unreserved slots.
"""

import msgspec


class HostingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of what this agent hosts for queries of others. TOML table [hosting]."""

    reservation_s: float = 10.0
    """Time for which room is kept for a query that has asked for it, unless it decides sooner. Longer: slow placements still find the room.
    Shorter: room for a crashed agent's query is free again sooner."""
    reservations_max: int = 1000
    """Queries for which room is kept at once; beyond it, room is reported but not kept."""
    share_load_max: float = 1.8
    """Load of the processors (use plus waiting, 0 to 2) above which no running operator that could run elsewhere is offered to another
    query. Lower: running queries are safer from others, more operators run twice; 2 always offers."""
    share_bytes_per_s_max: float = 0.0
    """Bytes/s that may leave this machine on links when one more output is added; 0: no limit. Lower: shares less on a thin uplink."""
    uplink_bytes_per_s: float = 0.0
    """Bytes/s that this machine can send to others, for predictions until links have been measured; 0: not known. Lower: predictions are
    more careful."""
    share_outputs_max: int = 64
    """Outputs of one operator. More: one operator serves more queries, and waits for the slowest of more consumers."""

    def __post_init__(self) -> None:
        if not 0 <= self.reservation_s <= 3600:
            raise ValueError(f"reservation_s = {self.reservation_s}, expected 0 to 3600")
        if not 1 <= self.reservations_max <= 1_000_000:
            raise ValueError(f"reservations_max = {self.reservations_max}, expected 1 to 1000000")
        if not 0 <= self.share_load_max <= 2:
            raise ValueError(f"share_load_max = {self.share_load_max}, expected 0 to 2")
        if not 0 <= self.share_bytes_per_s_max <= 1e15:
            raise ValueError(f"share_bytes_per_s_max = {self.share_bytes_per_s_max}, expected 0 or more")
        if not 0 <= self.uplink_bytes_per_s <= 1e12:
            raise ValueError(f"uplink_bytes_per_s = {self.uplink_bytes_per_s}, expected 0 to 1e12")
        if not 1 <= self.share_outputs_max <= 65_536:
            raise ValueError(f"share_outputs_max = {self.share_outputs_max}, expected 1 to 65536")


class _Promise(msgspec.Struct):
    slots: int
    until_s: float


class Reservations:
    """The reservations of one host; keys are query ids, or ids of operators that are migrating here.

    Parameters
    ----------
    config : duration and limits of reservations
    """

    def __init__(self, config: HostingConfig) -> None:
        self._config = config
        self._promises: dict[str, _Promise] = {}

    def held(self, now: float, besides: str = "") -> int:
        """Returns the slots reserved for all keys but one."""
        self._expire(now)
        return sum(promise.slots for key, promise in self._promises.items() if key != besides)

    def reserve(self, key: str, wanted: int, free: int, now: float) -> int:
        """Reserves up to `wanted` slots, replacing an earlier reservation; returns the number to report, at least the reserved one.

        Parameters
        ----------
        free : slots without an operator, reserved ones included
        """
        room = max(0, free - self.held(now, besides=key))
        self._promises.pop(key, None)
        kept = min(wanted, room)
        if kept > 0 and len(self._promises) < self._config.reservations_max:
            self._promises[key] = _Promise(kept, now + self._config.reservation_s)
        return room

    def decided(self, key: str, slots: int, now: float) -> None:
        """Reduces a reservation to the slots that will be used; the rest is freed."""
        self._expire(now)
        promise = self._promises.get(key)
        if promise is None:
            return
        promise.slots = min(promise.slots, slots)
        promise.until_s = now + self._config.reservation_s
        if promise.slots <= 0:
            del self._promises[key]

    def fill(self, key: str, free: int, now: float) -> bool:
        """Tells whether an arriving operator may be hosted, and uses up a reserved slot for it."""
        self._expire(now)
        promise = self._promises.get(key)
        if promise is None:
            return free > self.held(now)
        promise.slots -= 1
        if promise.slots <= 0:
            del self._promises[key]
        return free > 0

    def end(self, key: str) -> None:
        """Frees a reservation."""
        self._promises.pop(key, None)

    def _expire(self, now: float) -> None:
        for key in [key for key, promise in self._promises.items() if promise.until_s <= now]:
            del self._promises[key]
