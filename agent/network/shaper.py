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

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from sbon.errors import ConfigError
from sbon.types import Address
from sbon_agent.config import parse_address
from sbon_agent.host import Disk, Host, Meter, StreamHandler, Timer
from sbon_agent.network.shaped_stream import HELD_BYTES_MAX, ROUNDING_S, ShapedStream, Way

T = TypeVar("T")

DELAY_MS_MAX = 60_000.0


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


FREE = Way()


class ShapedHost:
    """Satisfies `sbon_agent.host.Host`, over another host.

    Parameters
    ----------
    shape
        The first table.
    """

    def __init__(self, host: Host, shape: Shape | None = None) -> None:
        self._host = host
        self._paths: dict[Address, Way] = {}
        self._draws = host.rng.spawn(1)[0]
        self._streams: dict[ShapedStream, None] = {}
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

    def disk(self, folder: str) -> Disk:
        """The machine's."""
        return self._host.disk(folder)

    @property
    def workers(self) -> int:
        """The host's."""
        return self._host.workers

    @property
    def loop(self) -> Any:
        """The host's event loop, if it has one: what a connector opens on it is to other machines than agents', and is not shaped."""
        return getattr(self._host, "loop", None)

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
        self._host.call_at(self._host.now() + delay_s - ROUNDING_S, partial(self._release, data, address))

    def _release(self, data: bytes, address: Address) -> None:
        self._held_bytes -= len(data)
        if self.path(address).blocked:
            self.counters["datagrams_shaped_away"] += 1
        else:
            self._host.send_datagram(data, address)

    def connect(self, address: Address, handler: StreamHandler) -> None:
        """Open a stream that is delayed both ways."""
        stream = ShapedStream(self, self._host, address, handler, self._forget)
        self._streams[stream] = None
        stream.dial()

    def _forget(self, stream: ShapedStream) -> None:
        self._streams.pop(stream, None)

    def execute(
        self,
        work: Callable[[], T],
        done: Callable[[T | BaseException], None],
        *,
        rows: int | Callable[[], Sequence[int]],
        brief: bool = False,
        spare: bool = False,
    ) -> None:
        """The host's."""
        self._host.execute(work, done, rows=rows, brief=brief, spare=spare)

    def execute_apart(self, work: Callable[[], T], done: Callable[[T | BaseException], None], limit_s: float) -> None:
        """The host's."""
        self._host.execute_apart(work, done, limit_s)

    def stopwatch(self) -> float:
        """The host's."""
        return self._host.stopwatch()

    def meter(self, *, brief: bool = False) -> Meter:
        """The host's."""
        return self._host.meter(brief=brief)

    def load_fraction(self) -> float:
        """The host's, unless the table says otherwise."""
        return self._host.load_fraction() if self._load is None else self._load

    def use_fraction(self) -> float:
        """The host's, unless the table says otherwise."""
        return self._host.use_fraction() if self._load is None else self._load

    def memory_bytes(self) -> int:
        """The host's."""
        return self._host.memory_bytes()

    def memory_fraction(self) -> float:
        """The host's."""
        return self._host.memory_fraction()
