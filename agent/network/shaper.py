"""A host that delays traffic to other agents, so that they seem farther away than they are. For the testbed only.

The testbed runs real agents as processes on one machine and gives each a table of the paths to the others: one-way delay, jitter, loss, and
whether the path is blocked. `ShapedHost` sits between the agent and its host and applies the table.

- Datagrams are held back by the sender.
- Streams are held back in both directions by the end that *dialled*: it knows the other end's address in the table, whereas an accepted
stream comes from an ephemeral port. The accepting end delays nothing.

A block also stops traffic in transit: datagrams are lost; streams continue when the block is lifted, as with TCP, unless an agent has
closed the connection by then. Opening a stream takes a round trip, as TCP's handshake does, and is given up after 10 s.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from sbon.addresses import parse_address
from sbon.errors import ConfigError
from sbon.peers.shaped_stream import HELD_BYTES_MAX, ROUNDING_S, ShapedStream, Way
from sbon.ports import Disk, Meter, ProcessorUse, StreamHandler, Timer
from sbon.types import Address
from sbon_agent.host import Host

T = TypeVar("T")

DELAY_MS_MAX = 60_000.0


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent's table of paths, as the testbed writes it to the agent's shaper file and sends it over the control socket."""

    delays_ms: dict[str, float] = {}
    """One-way delay by the HOST:PORT on which another agent listens, added to that of the real network; other addresses are not shaped."""
    jitter_ms: float = 0.0
    """Mean of the additional, exponentially distributed delay of each datagram and each chunk of a stream, as in the simulation."""
    loss: float = 0.0
    """Probability that a datagram is lost; streams lose nothing."""
    blocked: list[str] = []
    """HOST:PORT of agents to which no traffic passes."""
    load: float | None = None
    """CPU load, 0 to 1, that the agent reads instead of the real one, because all agents of a testbed share one machine. None: the real
    one."""

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
    """Implements `sbon_agent.host.Host` on top of another host.

    Parameters
    ----------
    shape
        The initial table; None for no delays.
    """

    def __init__(self, host: Host, shape: Shape | None = None) -> None:
        self._host = host
        self._paths: dict[Address, Way] = {}
        self._draws = host.rng.spawn(1)[0]
        self._streams: dict[ShapedStream, None] = {}
        self._held_bytes = 0
        self.counters = {"datagrams_shaped_away": 0}
        self.set(shape or Shape())

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of the host."""
        return self._host.rng

    def disk(self, folder: str) -> Disk:
        """Returns the host's disk."""
        return self._host.disk(folder)

    @property
    def workers(self) -> int:
        """Number of executor threads of the host."""
        return self._host.workers

    @property
    def loop(self) -> Any:
        """Event loop of the host, if it has one.

        Connectors open connections on it; these do not lead to agents, and are not shaped.
        """
        return getattr(self._host, "loop", None)

    def update(self, arguments: Mapping[str, Any]) -> None:
        """Replaces the whole table by plain values with the fields of `Shape`.

        Raises
        ------
        ConfigError
            The values are not a valid table; the old one stays in force.
        """
        try:
            self.set(msgspec.convert(dict(arguments), Shape))
        except msgspec.MsgspecError as error:
            raise ConfigError(f"shape: {error}") from error

    def set(self, shape: Shape) -> None:
        """Replaces the whole table; datagrams and chunks in transit keep their delays.

        Raises
        ------
        ConfigError
            A key in it is not HOST:PORT.
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
        """Returns the present path to an address."""
        return self._paths.get(address, FREE)

    def delay_s(self, path: Way) -> float:
        """Draws a delay of the path, in seconds."""
        jitter_ms = path.jitter_ms * float(self._draws.exponential()) if path.jitter_ms else 0.0
        return (path.delay_ms + jitter_ms) / 1000

    def now(self) -> float:
        """Returns the host's time."""
        return self._host.now()

    def wall(self) -> float:
        """Returns the host's time."""
        return self._host.wall()

    def random_bytes(self, count: int) -> bytes:
        """Returns random bytes of the host."""
        return self._host.random_bytes(count)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Sets a timer of the host."""
        return self._host.call_at(when, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Queues a call at the host."""
        self._host.call_soon(callback)

    def listen(
        self, address: Address, datagram: Callable[[bytes, Address, float], None], accept: Callable[[Address], StreamHandler]
    ) -> Address:
        """Listens at the host, without delays: the sender has delayed incoming traffic."""
        return self._host.listen(address, datagram, accept)

    def send_datagram(self, data: bytes, address: Address) -> None:
        """Sends after the path's delay, unless the datagram is lost."""
        path = self.path(address)
        if path.blocked or (path.loss and float(self._draws.random()) < path.loss) or self._held_bytes > HELD_BYTES_MAX:
            self.counters["datagrams_shaped_away"] += 1
            return
        delay_s = self.delay_s(path)
        if delay_s == 0:
            self._host.send_datagram(data, address)
            return
        self._held_bytes += len(data)

        def release() -> None:
            self._held_bytes -= len(data)
            if self.path(address).blocked:
                self.counters["datagrams_shaped_away"] += 1
            else:
                self._host.send_datagram(data, address)

        self._host.call_at(self._host.now() + delay_s - ROUNDING_S, release)

    def connect(self, address: Address, handler: StreamHandler) -> None:
        """Opens a stream that is delayed in both directions."""
        stream = ShapedStream(self, self._host, address, handler, lambda ended: self._streams.pop(ended, None))
        self._streams[stream] = None
        stream.dial()

    def execute(
        self,
        work: Callable[[], T],
        done: Callable[[T | BaseException], None],
        *,
        rows: int | Callable[[], Sequence[int]],
        brief: bool = False,
        spare: bool = False,
    ) -> None:
        """Runs work at the host."""
        self._host.execute(work, done, rows=rows, brief=brief, spare=spare)

    def execute_apart(self, work: Callable[[], T], done: Callable[[T | BaseException], None], limit_s: float) -> None:
        """Runs work at the host."""
        self._host.execute_apart(work, done, limit_s)

    def stopwatch(self) -> float:
        """Returns the host's time."""
        return self._host.stopwatch()

    def meter(self, *, brief: bool = False) -> Meter:
        """Starts a meter of the host."""
        return self._host.meter(brief=brief)

    def share_of_core(self) -> float | None:
        """Returns the share of a core that the host measures."""
        return self._host.share_of_core()

    def processors(self) -> ProcessorUse:
        """Returns the host's processor use, unless the table sets the load."""
        if self._load is None:
            return self._host.processors()
        return ProcessorUse(self._load, self._load, self._host.workers * max(0.0, 1 - self._load))

    def memory_bytes(self) -> int:
        """Returns the host's memory."""
        return self._host.memory_bytes()

    def memory_fraction(self) -> float:
        """Returns the host's memory use."""
        return self._host.memory_fraction()


def shaped_by(host: Host, file: str) -> ShapedHost:
    """Returns a host with the table in a JSON file.

    Raises
    ------
    ConfigError
        The file cannot be read, or is not such a table.
    """
    try:
        return ShapedHost(host, msgspec.json.decode(Path(file).read_bytes(), type=Shape))
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"shaper file {file}: {error}") from error
