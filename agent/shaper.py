"""A host on which other agents seem farther away than they are. For the testbed only.

The testbed runs real agents as processes of one machine and gives each a table of the paths to the others: one-way delay, jitter, loss,
and whether the way is blocked. `ShapedHost` stands between the agent and its host and applies it.

- Datagrams are held back by the sender.
- Streams are held back in both directions by the end that *dialled*: a dialled stream is to an address of the table, whereas an
  accepted one comes from a port of the moment that tells nothing of who it is. The acceptor's end passes through.

A block stops what is on its way in both kinds; datagrams are lost, streams go on where they were when the block is lifted, as TCP
does, unless an agent has given the connection up meanwhile. Opening a stream takes a round trip, as TCP's handshake does, and is
given up after 10 s.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from agent.config import parse_address
from agent.host import Host, Stream, StreamHandler, Timer
from sbon.errors import ConfigError
from sbon.types import Address

T = TypeVar("T")

DELAY_MS_MAX = 60_000.0

HELD_BYTES_MAX = 1 << 20
"""Bytes held back in one direction from which a stream is congested."""
_ROUNDING_S = 0.0005
"""Timers of an event loop come up to a millisecond late, half of one on average: half of one early makes the mean delay right."""


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent's table, as the testbed writes it to the agent's shaper file and sends it over the control socket."""

    delays_ms: dict[str, float] = {}
    """One way, by the HOST:PORT on which another agent listens, on top of what the real network needs; others are not shaped."""
    jitter_ms: float = 0.0
    """Mean of the further delay of each datagram and each chunk of a stream, exponentially distributed, as in the virtual world."""
    loss: float = 0.0
    """Chance of a datagram to be lost; streams lose nothing."""
    blocked: list[str] = []
    """HOST:PORT of agents to which nothing passes."""
    load: float | None = None
    """Where given, the CPU load that the agent reads, 0 to 1: all agents of a testbed share one machine."""

    def __post_init__(self) -> None:
        for address, delay_ms in self.delays_ms.items():
            if not 0 <= delay_ms <= DELAY_MS_MAX:
                raise ValueError(f"delay of {delay_ms} ms to {address}, expected 0 to {DELAY_MS_MAX:g}")
        if not 0 <= self.jitter_ms <= DELAY_MS_MAX:
            raise ValueError(f"jitter_ms = {self.jitter_ms}, expected 0 to {DELAY_MS_MAX:g}")
        if not 0 <= self.loss <= 1:
            raise ValueError(f"loss = {self.loss}, expected 0 to 1")
        if self.load is not None and not 0 <= self.load <= 1:
            raise ValueError(f"load = {self.load}, expected 0 to 1")


@dataclass(frozen=True)
class Way:
    """The way from this agent to another; and back, for streams that this agent dials."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    blocked: bool = False


FREE = Way()
_CONNECT_TIMEOUT_S = 10.0
_LINGER_S = 5.0
"""How long a closed stream may wait for a blocked path before it is closed without its last bytes."""
_IN_HELD_BYTES_MAX = 64 << 20
"""Bytes from the peer that wait behind a block; with more of them the stream breaks."""


class ShapedHost:
    """Satisfies `agent.host.Host`, over another host.

    Parameters
    ----------
    shape
        The first table.
    """

    def __init__(self, host: Host, shape: Shape | None = None) -> None:
        self._host = host
        self._paths: dict[Address, Way] = {}
        self._draws = host.rng.spawn(1)[0]
        self._streams: dict[_ShapedStream, None] = {}
        self._held_bytes = 0
        self.counters = {"datagrams_shaped_away": 0}
        self.set(shape or Shape())

    @classmethod
    def from_file(cls, host: Host, file: str) -> "ShapedHost":
        """With the table in a JSON file.

        Raises
        ------
        ConfigError
            The file cannot be read or has no table.
        """
        try:
            return cls(host, msgspec.json.decode(Path(file).read_bytes(), type=Shape))
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"shaper file {file}: {error}") from error

    @property
    def rng(self) -> np.random.Generator:
        """The host's."""
        return self._host.rng

    @property
    def workers(self) -> int:
        """The host's."""
        return self._host.workers

    def update(self, arguments: Mapping[str, Any]) -> None:
        """Replace the whole table by plain values with the fields of `Shape`.

        Raises
        ------
        ConfigError
            They make no table; the old one stays.
        """
        try:
            self.set(msgspec.convert(dict(arguments), Shape))
        except msgspec.MsgspecError as error:
            raise ConfigError(f"shape: {error}") from error

    def set(self, shape: Shape) -> None:
        """Replace the whole table; datagrams and chunks on their way keep the delay they had.

        Raises
        ------
        ConfigError
            A name in it is no HOST:PORT.
        """
        blocked = {parse_address(text) for text in shape.blocked}
        delays_ms = {parse_address(text): delay_ms for text, delay_ms in shape.delays_ms.items()}
        self._paths = {
            address: Way(delays_ms.get(address, 0.0), shape.jitter_ms, shape.loss, address in blocked)
            for address in sorted({*delays_ms, *blocked})
        }
        self._load = shape.load
        for stream in list(self._streams):
            stream.path_changed()

    def path(self, address: Address) -> Way:
        """The way to an address as it is now."""
        return self._paths.get(address, FREE)

    def delay_s(self, path: Way) -> float:
        """One draw of the path's delay."""
        jitter_ms = path.jitter_ms * float(self._draws.exponential()) if path.jitter_ms else 0.0
        return (path.delay_ms + jitter_ms) / 1000

    def now(self) -> float:
        """The host's."""
        return self._host.now()

    def wall(self) -> float:
        """The host's."""
        return self._host.wall()

    def random_bytes(self, count: int) -> bytes:
        """The host's."""
        return self._host.random_bytes(count)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """The host's."""
        return self._host.call_at(when, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """The host's."""
        self._host.call_soon(callback)

    def listen(
        self, address: Address, datagram: Callable[[bytes, Address, float], None], accept: Callable[[Address], StreamHandler]
    ) -> Address:
        """The host's: what comes in was held back by its sender."""
        return self._host.listen(address, datagram, accept)

    def send_datagram(self, data: bytes, address: Address) -> None:
        """Send after the path's delay, unless it is lost."""
        path = self.path(address)
        if path.blocked or (path.loss and float(self._draws.random()) < path.loss) or self._held_bytes > HELD_BYTES_MAX:
            self.counters["datagrams_shaped_away"] += 1
            return
        delay_s = self.delay_s(path)
        if delay_s == 0:
            self._host.send_datagram(data, address)
            return
        self._held_bytes += len(data)
        self._host.call_at(self._host.now() + delay_s - _ROUNDING_S, partial(self._release, data, address))

    def _release(self, data: bytes, address: Address) -> None:
        self._held_bytes -= len(data)
        if self.path(address).blocked:
            self.counters["datagrams_shaped_away"] += 1
        else:
            self._host.send_datagram(data, address)

    def connect(self, address: Address, handler: StreamHandler) -> None:
        """Open a stream that is delayed both ways."""
        stream = _ShapedStream(self, self._host, address, handler, self._forget)
        self._streams[stream] = None
        stream.dial()

    def _forget(self, stream: "_ShapedStream") -> None:
        self._streams.pop(stream, None)

    def execute(self, work: Callable[[], T], done: Callable[[T | BaseException], None], *, rows: int) -> None:
        """The host's."""
        self._host.execute(work, done, rows=rows)

    def load_fraction(self) -> float:
        """The host's, unless the table says otherwise."""
        return self._host.load_fraction() if self._load is None else self._load


class _Lane:
    """What is on its way in one direction: calls with a size, in order, each at its own instant."""

    def __init__(self, shaped: ShapedHost, host: Host, address: Address) -> None:
        self._shaped, self._host, self._address = shaped, host, address
        self._queue: deque[tuple[float, int, Callable[[], None]]] = deque()
        self._timer: Timer | None = None
        self._due_last_s = float("-inf")
        self.held_bytes = 0

    def push(self, size_bytes: int, deliver: Callable[[], None], trips: int = 1) -> None:
        """Call `deliver` after the path's delay (twice for a round trip), behind what is on its way; at once where nothing delays it."""
        path = self._shaped.path(self._address)
        delay_s = sum(self._shaped.delay_s(path) for _ in range(trips))
        if not self._queue and delay_s == 0 and not path.blocked:
            deliver()
            return
        self._due_last_s = max(self._due_last_s, self._host.now() + delay_s - _ROUNDING_S)
        self.held_bytes += size_bytes
        self._queue.append((self._due_last_s, size_bytes, deliver))
        self.arm()

    def arm(self) -> None:
        """Wait for the first in the queue; a blocked path waits for `ShapedHost.set`."""
        if self._timer is None and self._queue and not self._shaped.path(self._address).blocked:
            self._timer = self._host.call_at(self._queue[0][0], self._deliver)

    def clear(self) -> None:
        """Forget all."""
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


class _ShapedStream:
    """Between a dialled stream and its handler: a `Stream` to the one, a `StreamHandler` to the other."""

    def __init__(
        self, shaped: ShapedHost, host: Host, address: Address, handler: StreamHandler, ended: Callable[["_ShapedStream"], None]
    ) -> None:
        self._host, self._address, self._handler, self._ended = host, address, handler, ended
        self._out, self._in = _Lane(shaped, host, address), _Lane(shaped, host, address)
        self._stream: Stream | None = None
        self._timer: Timer | None = None
        self._full = self._closed_here = self._over = False

    def dial(self) -> None:
        """Take a round trip to open, the real one on top."""
        self._timer = self._host.call_at(self._host.now() + _CONNECT_TIMEOUT_S, partial(self._tell_closed, "timed out"))
        self._out.push(0, lambda: self._host.connect(self._address, self), trips=2)

    def path_changed(self) -> None:
        """A block may have been lifted."""
        self._out.arm()
        self._in.arm()

    # Towards the agent: a stream.

    @property
    def peer(self) -> Address:
        """The address dialled."""
        return self._address

    @property
    def congested(self) -> bool:
        """Too much is held back, here or below."""
        return self._full

    def write(self, data: bytes) -> None:
        """Write after the path's delay."""
        if self._closed_here:
            return
        self._out.push(len(data), partial(self._write, data))
        self._full = self._full or self._out.held_bytes > HELD_BYTES_MAX or (self._stream is not None and self._stream.congested)

    def close(self) -> None:
        """Close behind what was written."""
        if not self._closed_here:
            self._closed_here = True
            self._in.clear()
            self._timer = self._host.call_at(self._host.now() + _LINGER_S, self._close)
            self._out.push(0, self._close)

    def _write(self, data: bytes) -> None:
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
        """The stream below is open."""
        if self._over:
            stream.close()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._stream = stream
        self._handler.connected(self)

    def received(self, data: bytes) -> None:
        """Bytes have come; they go on after the path's delay."""
        if self._closed_here or self._over:
            return
        self._in.push(len(data), partial(self._handler.received, data))
        if self._in.held_bytes > _IN_HELD_BYTES_MAX and self._stream is not None:
            self._stream.close()
            self._tell_closed("too many bytes wait behind a blocked path")

    def writable(self) -> None:
        """The stream below has room again."""
        self._drained()

    def closed(self, reason: str) -> None:
        """The stream below is gone: the agent hears of it behind the bytes that came before."""
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
