"""How the batches of a link are packed for the way: not at all, with lz4 or with zstd, by what each costs.

A byte's way across a link takes `pack + unpack + ratio / bandwidth`. The bandwidth is measured where it is short, on the connection: how
fast its send buffer drains while it is full. What packing takes and leaves is measured on the link's own batches; of a codec that has not
been tried, or long ago, it is assumed. Over loopback or within a machine room nothing is worth packing, over a slow line everything is, and
between them lz4 costs least.

More work must promise a fifth less, lest figures near each other change the codec with every batch. Where the rows unpacked would fill less
than half of the bandwidth, nothing is packed: there is no hurry. Packing itself ends the congestion by which bandwidth is measured: while
nothing is congested the estimate grows again, twofold in ten seconds, until it is measured anew.

Rates and placement count bytes unpacked (`sbon.batch.Payload.size_bytes`). What a link carries packed depends on the line that it happens
to use; an operator must not look the smaller the worse its place is, or one move would be the reason for the next.
"""

import enum
from typing import Literal, TypeAlias


class Codec(enum.Enum):
    """Compression of the buffers of an Arrow IPC batch."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"

    __hash__ = object.__hash__  # members are singletons; that of Enum is a function of its own for every look into a dict


Compression: TypeAlias = Literal["auto", "none", "lz4", "zstd"]

SMALL_BYTES = 2048
"""A batch below this is not packed: its headers would be all that is left, and to pack it takes longer than to send it."""
GAIN = 1.2
"""How much cheaper a codec that takes more work must look before it is taken; one that takes less need only be cheaper."""
IDLE_SHARE = 0.5
GROWTH_S = 10.0
"""In so much time without congestion the estimate of the bandwidth doubles."""
FORGET_S = 60.0
"""What a codec that is not in use has shown is believed for so long."""
RATE_S = 1.0
_WEIGHT = 0.2
_UNPACK_S = {Codec.NONE: 0.0, Codec.LZ4: 0.65e-9, Codec.ZSTD: 1.1e-9}
_ASSUMED = {Codec.NONE: (1.0, 0.0), Codec.LZ4: (0.6, 1.1e-9), Codec.ZSTD: (0.45, 2.5e-9)}
"""Bytes left of one, and seconds to pack it: measured on a mix of numbers on one core. Of unpacking, likewise."""


_EFFORT = {codec: effort for effort, codec in enumerate(Codec)}


class _Shown:
    """What a codec has shown on this link."""

    __slots__ = ("at_s", "pack_s", "ratio")

    def __init__(self, codec: Codec) -> None:
        self.ratio, self.pack_s = _ASSUMED[codec]
        self.at_s = float("-inf")


class Packing:
    """Chooses the codec of one link.

    Parameters
    ----------
    compression
        A codec by name, or `auto`: by what is measured.
    """

    def __init__(self, compression: Compression = "auto") -> None:
        self._auto = compression == "auto"
        self.codec = Codec.NONE if self._auto else Codec(compression)
        """For the next batch."""
        self.plain_bytes = 0
        self.wire_bytes = 0
        """What all batches took before and after; together the ratio that people are shown."""
        self._shown = {codec: _Shown(codec) for codec in Codec}
        self._bandwidth: float | None = None
        self._bandwidth_at_s = 0.0
        self._window_at_s: float | None = None
        self._window_bytes = 0
        self._plain_per_s = 0.0

    @property
    def ratio(self) -> float:
        """Bytes on the wire for each byte of the batches; 1 before there are any."""
        return self.wire_bytes / self.plain_bytes if self.plain_bytes else 1.0

    def bandwidth(self, now: float) -> float | None:
        """Bytes/s that the connection is believed to carry; None until it has been congested."""
        if self._bandwidth is None:
            return None
        doublings = (now - self._bandwidth_at_s) / GROWTH_S
        return float(self._bandwidth * 2.0 ** min(max(doublings, 0.0), 60.0))

    def sent(self, codec: Codec, plain_bytes: int, wire_bytes: int, pack_s: float, now: float) -> None:
        """A batch has left, packed so. `pack_s`: what packing took; 0 where nobody has measured it."""
        self.plain_bytes += plain_bytes
        self.wire_bytes += wire_bytes
        if codec is not Codec.NONE and plain_bytes >= SMALL_BYTES:
            shown = self._shown[codec]
            weight = 1.0 if now - shown.at_s > FORGET_S else _WEIGHT
            shown.ratio += weight * (wire_bytes / plain_bytes - shown.ratio)
            if pack_s > 0:
                shown.pack_s += weight * (pack_s / plain_bytes - shown.pack_s)
            shown.at_s = now
        if self._window_at_s is None:
            self._window_at_s = now
        self._window_bytes += plain_bytes
        if now - self._window_at_s >= RATE_S:
            self._plain_per_s = self._window_bytes / (now - self._window_at_s)
            self._window_at_s, self._window_bytes = now, 0
            self._choose(now)

    def elsewhere(self) -> None:
        """The link leads to another host now: what is known of the way there was of another one."""
        self._bandwidth = None
        if self._auto:
            self.codec = Codec.NONE

    def drained(self, bytes_per_s: float, now: float) -> None:
        """The connection was full, and drained at this rate."""
        if bytes_per_s <= 0:
            return
        known = self.bandwidth(now)
        # One drain is a short look: the first few count for what they are, later ones towards a mean.
        fresh = known is None or now - self._bandwidth_at_s > GROWTH_S
        self._bandwidth = bytes_per_s if known is None or fresh else known + 0.5 * (bytes_per_s - known)
        self._bandwidth_at_s = now
        self._choose(now)

    def cost_s(self, codec: Codec, now: float) -> float:
        """Seconds for a byte's way, packed so; 0 for a way that has never been full."""
        bandwidth = self.bandwidth(now)
        if bandwidth is None:
            return 0.0
        shown = self._shown[codec]
        ratio, pack_s = (shown.ratio, shown.pack_s) if now - shown.at_s <= FORGET_S or codec is self.codec else _ASSUMED[codec]
        return pack_s + _UNPACK_S[codec] + ratio / bandwidth

    def _choose(self, now: float) -> None:
        bandwidth = self.bandwidth(now)
        if not self._auto or bandwidth is None:
            return
        if self._plain_per_s < IDLE_SHARE * bandwidth and now - self._bandwidth_at_s > RATE_S:
            self.codec = Codec.NONE
            return
        best = min(Codec, key=lambda codec: self.cost_s(codec, now))
        gain = GAIN if _EFFORT[best] > _EFFORT[self.codec] else 1.0
        if self.cost_s(best, now) * gain < self.cost_s(self.codec, now):
            self.codec = best


class DrainMeter:
    """How fast the send buffer of a connection drains while it is full."""

    def __init__(self) -> None:
        self.bytes_per_s = 0.0
        """Of the last time; 0 until there was one."""
        self.times = 0
        self._began_s: float | None = None
        self._to_leave = 0

    def wrote(self, size_bytes: int, unsent_bytes: int, *, full: bool, now: float) -> None:
        """Bytes have been written, after which the buffer holds so many."""
        if self._began_s is not None:
            self._to_leave += size_bytes
        elif full:
            self._began_s, self._to_leave = now, unsent_bytes

    def emptied(self, unsent_bytes: int, now: float) -> bool:
        """The buffer has room again; True if that has told something."""
        began_s, self._began_s = self._began_s, None
        if began_s is None:
            return False
        left = self._to_leave - unsent_bytes
        if left <= 0 or now <= began_s:
            return False
        self.bytes_per_s = left / (now - began_s)
        self.times += 1
        return True
