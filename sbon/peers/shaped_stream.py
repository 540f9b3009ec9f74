"""A stream that is delayed according to the testbed's table of paths; `sbon_agent.network.shaper` makes them."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from sbon.ports import Network, Stream, StreamHandler, Timer
from sbon.types import Address

HELD_BYTES_MAX = 1 << 20
"""Bytes held back in one direction above which a stream is congested."""
ROUNDING_S = 0.0005
"""Mean lateness of an event loop's timers, which are up to 1 ms late; it is subtracted from each delay to make the mean right."""
_CONNECT_TIMEOUT_S = 10.0
_LINGER_S = 5.0
"""Seconds that a closed stream may wait for a blocked path before it is closed without its last bytes."""
_IN_HELD_BYTES_MAX = 64 << 20
"""Bytes from the peer that may wait behind a blocked path; with more, the stream breaks."""


@dataclass(frozen=True)
class Way:
    """Path from this agent to another one, and back for streams that this agent dials."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    blocked: bool = False


class Paths(Protocol):
    """The present table of paths."""

    def path(self, address: Address) -> Way:
        """Returns the path to an address."""

    def delay_s(self, path: Way) -> float:
        """Draws a delay of the path, in seconds."""


class Lane:
    """Delayed calls of one direction of a stream, in order, each with a size and a due time."""

    def __init__(self, shaped: Paths, host: Network, address: Address) -> None:
        self._shaped, self._host, self._address = shaped, host, address
        self._queue: deque[tuple[float, int, Callable[[], None]]] = deque()
        self._timer: Timer | None = None
        self._due_last_s = float("-inf")
        self.held_bytes = 0

    def push(self, size_bytes: int, deliver: Callable[[], None], trips: int = 1) -> None:
        """Calls `deliver` after the path's delay (twice that for a round trip), after earlier calls; at once if there is no delay."""
        path = self._shaped.path(self._address)
        delay_s = sum(self._shaped.delay_s(path) for _ in range(trips))
        if not self._queue and delay_s == 0 and not path.blocked:
            deliver()
            return
        self._due_last_s = max(self._due_last_s, self._host.now() + delay_s - ROUNDING_S)
        self.held_bytes += size_bytes
        self._queue.append((self._due_last_s, size_bytes, deliver))
        self.arm()

    def arm(self) -> None:
        """Sets the timer for the first call; a blocked path waits for `ShapedHost.set`."""
        if self._timer is None and self._queue and not self._shaped.path(self._address).blocked:
            self._timer = self._host.call_at(self._queue[0][0], self._deliver)

    def clear(self) -> None:
        """Drops all calls."""
        self._queue.clear()
        self.held_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self) -> None:
        self._timer = None
        now = self._host.now()
        try:
            while self._queue and self._queue[0][0] <= now and not self._shaped.path(self._address).blocked:
                _, size_bytes, deliver = self._queue.popleft()
                self.held_bytes -= size_bytes
                deliver()
        finally:
            self.arm()


class ShapedStream:
    """Sits between a dialled stream and its handler: a `Stream` for the handler, a `StreamHandler` for the stream."""

    def __init__(
        self, shaped: Paths, host: Network, address: Address, handler: StreamHandler, ended: Callable[["ShapedStream"], None]
    ) -> None:
        self._host, self._address, self._handler, self._ended = host, address, handler, ended
        self._out, self._in = Lane(shaped, host, address), Lane(shaped, host, address)
        self._stream: Stream | None = None
        self._timer: Timer | None = None
        self._full = self._closed_here = self._over = False

    def dial(self) -> None:
        """Opens the stream after a simulated round trip, in addition to the real one."""
        self._timer = self._host.call_at(self._host.now() + _CONNECT_TIMEOUT_S, partial(self._tell_closed, "timed out"))
        self._out.push(0, lambda: self._host.connect(self._address, self), trips=2)

    def path_changed(self) -> None:
        """Resumes delivery, in case a block has been lifted."""
        self._out.arm()
        self._in.arm()

    # Towards the agent: a stream.

    @property
    def peer(self) -> Address:
        """Returns the dialled address."""
        return self._address

    @property
    def congested(self) -> bool:
        """True if too many bytes are held back, here or in the stream below."""
        return self._full

    @property
    def unsent_bytes(self) -> int:
        """Bytes held back, here and in the stream below."""
        return self._out.held_bytes + (self._stream.unsent_bytes if self._stream is not None else 0)

    @property
    def held_up_s(self) -> float:
        """Time for which the receiver took nothing from the stream below."""
        return self._stream.held_up_s if self._stream is not None else 0.0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes after the path's delay."""
        if self._closed_here:
            return
        self._out.push(len(data), partial(self._write, data))
        self._full = self._full or self._out.held_bytes > HELD_BYTES_MAX or (self._stream is not None and self._stream.congested)

    def close(self) -> None:
        """Closes the stream once written bytes are sent."""
        if not self._closed_here:
            self._closed_here = True
            self._in.clear()
            self._timer = self._host.call_at(self._host.now() + _LINGER_S, self._close)
            self._out.push(0, self._close)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        if self._stream is not None:
            self._stream.write(data)
            self._drained()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _drained(self) -> None:
        below = self._stream is not None and self._stream.congested
        if self._full and not below and self._out.held_bytes * 4 <= HELD_BYTES_MAX:
            self._full = False
            self._host.call_soon(self._tell_writable)

    def _tell_writable(self) -> None:
        if not self._full and not self._closed_here and self._stream is not None:
            self._handler.writable()

    # Towards the host: a handler.

    def connected(self, stream: Stream) -> None:
        """Uses the stream below, which is open now."""
        if self._over:
            stream.close()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._stream = stream
        self._handler.connected(self)

    def received(self, data: bytes) -> None:
        """Passes received bytes on after the path's delay."""
        if self._closed_here or self._over:
            return
        self._in.push(len(data), partial(self._handler.received, data))
        if self._in.held_bytes > _IN_HELD_BYTES_MAX and self._stream is not None:
            self._stream.close()
            self._tell_closed("too many bytes wait behind a blocked path")

    def writable(self) -> None:
        """Tells the handler that there is room again, if that is so here, too."""
        self._drained()

    def closed(self, reason: str) -> None:
        """Tells the handler that the stream below is closed, after passing on the bytes received before."""
        if self._over:
            return
        self._out.clear()
        self._in.push(0, partial(self._tell_closed, reason))

    def _tell_closed(self, reason: str) -> None:
        if self._over:
            return
        self._over = self._closed_here = True
        self._stream = None
        self._in.clear()
        self._out.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._ended(self)
        self._handler.closed(reason)
