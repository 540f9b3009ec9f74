"""Chooses the compression of a link's batches (none, lz4 or zstd) by the cost of each.

Sending a byte across a link takes `pack + unpack + ratio / bandwidth`. The bandwidth is measured when it limits the connection: it is the
rate at which the send buffer drains while it is full. A receiver that does not read fills the buffer, too; such drains do not count. Time
and ratio of a codec are measured on the link's own batches; for a codec that has not been used lately, they are assumed. Over loopback or
within a machine room no compression pays. Over a slow line every compression does. Between these, lz4 costs least.

A codec with more work must cost a fifth less, so that similar figures do not change the codec with every batch. If the uncompressed rows
would fill less than half of the bandwidth, nothing is compressed. Compression ends the congestion that the measurement of bandwidth needs.
So without congestion the estimate doubles every ten seconds, until bandwidth is measured again.

Rates and placement count uncompressed bytes (`sbon.links.batch.Payload.size_bytes`). Compressed bytes depend on the line: if they counted,
an operator on a bad line would seem to have a low rate, and each migration would cause the next.
"""

import enum
from collections.abc import Callable
from typing import Literal, TypeAlias


class Codec(enum.Enum):
    """Compression of the buffers of an Arrow IPC batch."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"

    __hash__ = object.__hash__  # Members are singletons; Enum.__hash__ is a Python function that would run on every dict lookup.


Compression: TypeAlias = Literal["auto", "none", "lz4", "zstd"]

SMALL_BYTES = 2048
"""Smaller batches are not compressed: headers dominate, and compressing takes longer than sending."""
GAIN = 1.2
"""Factor by which a codec with more work must be cheaper to be chosen. A codec with less work must only be cheaper."""
IDLE_SHARE = 0.5
GROWTH_S = 10.0
"""Time without congestion in which the estimate of the bandwidth doubles, in seconds."""
FORGET_S = 60.0
"""Time for which measurements of an unused codec stay valid, in seconds."""
RATE_S = 1.0
HELD_UP_SHARE = 0.5
"""Share of a drain's time for which the receiver may take nothing, so that the drain still says how fast the connection is."""
_WEIGHT = 0.2
_UNPACK_S = {Codec.NONE: 0.0, Codec.LZ4: 0.65e-9, Codec.ZSTD: 1.1e-9}
_ASSUMED = {Codec.NONE: (1.0, 0.0), Codec.LZ4: (0.6, 1.1e-9), Codec.ZSTD: (0.45, 2.5e-9)}
"""Assumed ratio and seconds per byte of compression, measured on a mix of numbers on one core. `_UNPACK_S` was measured in the same way."""


_EFFORT = {codec: effort for effort, codec in enumerate(Codec)}


class _Shown:
    """Measurements of a codec on this link."""

    __slots__ = ("at_s", "pack_s", "ratio")

    def __init__(self, codec: Codec) -> None:
        self.ratio, self.pack_s = _ASSUMED[codec]
        self.at_s = float("-inf")


class Packing:
    """Chooses the codec of one link.

    Parameters
    ----------
    compression
        A codec by name, or `auto` to choose by measurements.
    """

    def __init__(self, compression: Compression = "auto") -> None:
        self._auto = compression == "auto"
        self.codec = Codec.NONE if self._auto else Codec(compression)
        """Codec of the next batch."""
        self.plain_bytes = 0
        self.wire_bytes = 0
        """Compressed bytes of all batches; `ratio` compares them with `plain_bytes`."""
        self._shown = {codec: _Shown(codec) for codec in Codec}
        self._bandwidth: float | None = None
        self._bandwidth_at_s = 0.0
        self._window_at_s: float | None = None
        self._window_bytes = 0
        self._plain_per_s = 0.0

    @property
    def ratio(self) -> float:
        """Returns the bytes on the wire for each byte of the batches; 1 before there are any."""
        return self.wire_bytes / self.plain_bytes if self.plain_bytes else 1.0

    def bandwidth(self, now: float) -> float | None:
        """Returns the estimated bandwidth of the connection in bytes/s; None until it has been congested."""
        if self._bandwidth is None:
            return None
        doublings = (now - self._bandwidth_at_s) / GROWTH_S
        return float(self._bandwidth * 2.0 ** min(max(doublings, 0.0), 60.0))

    def sent(self, codec: Codec, plain_bytes: int, wire_bytes: int, pack_s: float, now: float) -> None:
        """Records a batch that was sent with this codec. `pack_s` is the time that compression took; 0 if it was not measured."""
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
        """Resets the measurements of the connection, because the link now leads to another host."""
        self._bandwidth = None
        if self._auto:
            self.codec = Codec.NONE

    def drained(self, bytes_per_s: float, now: float) -> None:
        """Records that the full send buffer drained at this rate."""
        if bytes_per_s <= 0:
            return
        known = self.bandwidth(now)
        # A drain is a short measurement, so the estimate is a moving mean; a first or outdated estimate is replaced.
        fresh = known is None or now - self._bandwidth_at_s > GROWTH_S
        self._bandwidth = bytes_per_s if known is None or fresh else known + 0.5 * (bytes_per_s - known)
        self._bandwidth_at_s = now
        self._choose(now)

    def cost_s(self, codec: Codec, now: float) -> float:
        """Returns the seconds for one byte with this codec; 0 if the connection has never been full."""
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
    """Measures how fast the send buffer of a connection drains while it is full.

    A drain says nothing of the connection if the receiver did not read for most of it: then its processor was the limit.

    Parameters
    ----------
    held_up_s : seconds, so far, in which the receiver took nothing (`sbon.ports.Stream.held_up_s`); asked at the ends of a drain
    """

    def __init__(self, held_up_s: Callable[[], float] = lambda: 0.0) -> None:
        self._held_up_s = held_up_s
        self.bytes_per_s = 0.0
        """Rate of the last drain; 0 before the first, and if the last one says nothing."""
        self.times = 0
        self._began_s: float | None = None
        self._began_held_up_s = 0.0
        self._to_leave = 0

    def wrote(self, size_bytes: int, unsent_bytes: int, *, full: bool, now: float) -> None:
        """Records a write, after which the buffer holds `unsent_bytes`."""
        if self._began_s is not None:
            self._to_leave += size_bytes
        elif full:
            self._began_s, self._to_leave = now, unsent_bytes
            self._began_held_up_s = self._held_up_s()

    def emptied(self, unsent_bytes: int, now: float) -> bool:
        """Records that the buffer has room again; returns True if that gave a measurement."""
        began_s, self._began_s = self._began_s, None
        self.bytes_per_s = 0.0
        if began_s is None:
            return False
        left = self._to_leave - unsent_bytes
        if left <= 0 or now <= began_s or self._held_up_s() - self._began_held_up_s > HELD_UP_SHARE * (now - began_s):
            return False
        self.bytes_per_s = left / (now - began_s)
        self.times += 1
        return True
