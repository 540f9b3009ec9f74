"""Room that is promised: a candidate that is asked for a query keeps slots for it, so that two queries cannot be placed into one hole.

    ask            -> room for the query is kept, as much as there is and it may need, until `reservation_s` have passed
    ask again      -> the same, for as long again
    decided        -> as much as will really come is kept, the rest is free
    instantiated   -> one of the kept slots is filled
    time, or 0 decided -> nothing is kept

Invariant: promises and operators together never exceed the slots. A query without a promise gets only what is promised to nobody.
"""

import msgspec


class HostingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this agent grants to queries of others. TOML table [hosting]."""

    reservation_s: float = 10.0
    """How long room is kept for a query that has asked for it, unless it decides sooner. Longer: slow takers find it still there;
    shorter: what a crashed taker has asked for is free again sooner."""
    reservations_max: int = 1000
    """Queries for which room is kept at once; beyond it, room is told but not kept."""
    share_load_max: float = 1.8
    """Load of the processors (use plus waiting, 0 to 2) above which no running operator that could run elsewhere is offered to another
    query. Lower: running queries are safer from others, more operators run twice; 2 always offers."""
    share_bytes_per_s_max: float = 0.0
    """Bytes/s that may leave this machine on links when one more output is added; 0: no limit. Lower: shares less on a thin uplink."""
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
        if not 1 <= self.share_outputs_max <= 65_536:
            raise ValueError(f"share_outputs_max = {self.share_outputs_max}, expected 1 to 65536")


class _Promise(msgspec.Struct):
    slots: int
    until_s: float


class Reservations:
    """The promises of one host; keys are query ids, or ids of operators that are on their way here.

    Parameters
    ----------
    config : for how long, and for how many
    """

    def __init__(self, config: HostingConfig) -> None:
        self._config = config
        self._promises: dict[str, _Promise] = {}

    def held(self, now: float, besides: str = "") -> int:
        """Slots promised to all but one."""
        self._expire(now)
        return sum(promise.slots for key, promise in self._promises.items() if key != besides)

    def reserve(self, key: str, wanted: int, free: int, now: float) -> int:
        """Promise up to `wanted` slots, instead of what was promised before; returns what may be told, at least the promise.

        Parameters
        ----------
        free : slots in which no operator is, promised ones included
        """
        room = max(0, free - self.held(now, besides=key))
        self._promises.pop(key, None)
        kept = min(wanted, room)
        if kept > 0 and len(self._promises) < self._config.reservations_max:
            self._promises[key] = _Promise(kept, now + self._config.reservation_s)
        return room

    def decided(self, key: str, slots: int, now: float) -> None:
        """So many will come, as far as they were promised; the rest is free."""
        self._expire(now)
        promise = self._promises.get(key)
        if promise is None:
            return
        promise.slots = min(promise.slots, slots)
        promise.until_s = now + self._config.reservation_s
        if promise.slots <= 0:
            del self._promises[key]

    def fill(self, key: str, free: int, now: float) -> bool:
        """An operator wants to come: whether it may. A promised slot is used up by it."""
        self._expire(now)
        promise = self._promises.get(key)
        if promise is None:
            return free > self.held(now)
        promise.slots -= 1
        if promise.slots <= 0:
            del self._promises[key]
        return free > 0

    def end(self, key: str) -> None:
        """What was promised is free."""
        self._promises.pop(key, None)

    def _expire(self, now: float) -> None:
        for key in [key for key, promise in self._promises.items() if promise.until_s <= now]:
            del self._promises[key]
