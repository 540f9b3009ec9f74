"""The virtual world's network: which nodes reach each other, with which delays and faults.

Nodes are numbered. The one-way delay of a pair is half its RTT plus an exponential jitter. Datagrams may be lost, doubled and held back;
streams (`sbon_testbed.simulator.stream`) have the same delays but keep order and lose nothing. A partition or a machine that is off blocks
a pair: datagrams are lost, streams stall and finally break.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from sbon.errors import ConfigError, ShapeError
from sbon.types import FloatArray
from sbon_testbed.simulator.time import NS, VirtualTime, ns

LOOPBACK_NS = 20_000
"""One-way delay from a node to itself, in nanoseconds."""
_BLOCK = 4096


class NetworkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Disturbances of packets beyond the network's latencies. TOML table [network] of a scenario."""

    jitter_ms: float = 0.2
    """Mean of the exponential delay added to every packet, one way. More: noisier RTT samples, more reordering."""
    loss: float = 0.0
    """Share of datagrams that are lost. More: more probes fail, slower joins."""
    duplicate: float = 0.0
    """Share of datagrams that arrive twice."""
    reorder: float = 0.0
    """Share of datagrams that are held back by up to `reorder_ms`."""
    reorder_ms: float = 30.0
    """Longest extra delay of a datagram that is held back."""
    bandwidth_bytes_per_s: float = 0.0
    """Bandwidth of each stream or, between namespaces, of all packets from one node to another; 0: no limit. Lower: streams congest, which
    causes back-pressure."""
    queue_bytes: int = 256 * 1024
    """Between namespaces, most bytes that wait for a path with limited bandwidth; further packets are dropped. More: fewer losses, longer
    delays."""
    split: float = 0.2
    """Share of deliveries of a stream that are cut into several chunks at random places. More: a harder test of framing."""
    stream_buffer_bytes: int = 1 << 20
    """Undelivered bytes at which a stream counts as congested; it is writable again at a quarter of this."""
    stream_timeout_s: float = 20.0
    """Time for which bytes may stall before their stream breaks. Longer: streams survive longer partitions, dead peers are found later."""
    connect_timeout_s: float = 10.0
    """Longest time for a stream to open."""

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder", "split"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}, expected 0 to 1")
        if self.loss + self.duplicate + self.reorder > 1:
            raise ValueError("loss + duplicate + reorder is above 1")
        for name in ("jitter_ms", "reorder_ms", "bandwidth_bytes_per_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}, expected 0 or more")
        if self.queue_bytes < 0:
            raise ValueError(f"queue_bytes = {self.queue_bytes}, expected 0 or more")
        if self.stream_buffer_bytes < 1 or self.stream_timeout_s <= 0 or self.connect_timeout_s <= 0:
            raise ValueError("stream_buffer_bytes, stream_timeout_s and connect_timeout_s must be above 0")


class Draws:
    """Uniform and exponential numbers from a generator, drawn in blocks, because single draws cost numpy ten times as much."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._uniform: list[float] = []
        self._exponential: list[float] = []

    def uniform(self) -> float:
        """Returns a number from [0, 1)."""
        if not self._uniform:
            self._uniform = self._rng.random(_BLOCK).tolist()
        return self._uniform.pop()

    def exponential(self) -> float:
        """Returns an exponentially distributed number of mean 1."""
        if not self._exponential:
            self._exponential = self._rng.standard_exponential(_BLOCK).tolist()
        return self._exponential.pop()


class Network:
    """Delays and faults between numbered nodes, which may change while packets are in flight."""

    def __init__(self, time: VirtualTime, rtt_ms: FloatArray, config: NetworkConfig, rng: np.random.Generator) -> None:
        self.time = time
        self.config = config
        self.draws = Draws(rng)
        self.counters: dict[str, int] = dict.fromkeys(
            (
                "datagrams_sent",
                "datagrams_delivered",
                "datagrams_lost",
                "datagrams_doubled",
                "datagram_bytes",
                "streams_opened",
                "stream_bytes",
            ),
            0,
        )
        self._off: set[int] = set()
        self._stopped_until_ns: dict[int, int] = {}
        self._group: list[int] = []
        self._cut: set[tuple[int, int]] = set()
        self._listeners: list[Callable[[], None]] = []
        self.set_rtt(rtt_ms)

    def set_rtt(self, rtt_ms: FloatArray) -> None:
        """Sets round-trip times, (nodes, nodes), for every packet sent from now on.

        Raises
        ------
        ShapeError
            The matrix is not square, or has another number of nodes than before.
        ConfigError
            A value is negative or not finite.
        """
        if rtt_ms.ndim != 2 or rtt_ms.shape[0] != rtt_ms.shape[1] or (self._group and len(self._group) != len(rtt_ms)):
            raise ShapeError(f"RTT matrix of shape {rtt_ms.shape}, expected square, one row a node")
        if not np.all(np.isfinite(rtt_ms)) or np.any(rtt_ms < 0):
            raise ConfigError("an RTT of the topology is negative or not finite")
        delay = np.rint(rtt_ms * (NS / 2000.0)).astype(np.int64)
        np.fill_diagonal(delay, LOOPBACK_NS)
        self._delay_ns: list[list[int]] = delay.tolist()
        if not self._group:
            self._group = [0] * len(rtt_ms)

    def delay_ns(self, source: int, target: int) -> int:
        """Returns the one-way delay of a packet sent now, with jitter."""
        return self._delay_ns[source][target] + int(self.config.jitter_ms * 1e6 * self.draws.exponential())

    def reaches(self, source: int, target: int) -> bool:
        """Tells whether packets can get from `source` to `target`."""
        if self._off and (source in self._off or target in self._off):
            return False
        return self._group[source] == self._group[target] and (not self._cut or (source, target) not in self._cut)

    def partition(self, groups: Sequence[Iterable[int]]) -> None:
        """Splits the network: nodes reach each other only within a group; nodes in no group form one more."""
        assignment = [0] * len(self._group)
        for number, members in enumerate(groups, start=1):
            for node in members:
                assignment[node] = number
        self._group = assignment
        self._changed()

    def cut(self, source: int, target: int) -> None:
        """Blocks one direction of one pair."""
        self._cut.add((source, target))
        self._changed()

    def heal(self) -> None:
        """Ends every partition and cut."""
        self._group = [0] * len(self._group)
        self._cut.clear()
        self._changed()

    def power(self, node: int, on: bool) -> None:
        """Switches a machine off (no packet leaves or reaches it, and its peers are not told) or on again."""
        (self._off.discard if on else self._off.add)(node)
        self._changed()

    def powered(self, node: int) -> bool:
        """Tells whether the machine is on."""
        return node not in self._off

    def stop(self, node: int, seconds: float) -> None:
        """Stops a machine's processes for a while: timers, datagrams and streams reach them in order when they continue."""
        self._stopped_until_ns[node] = max(self._stopped_until_ns.get(node, 0), self.time.now_ns + ns(seconds))

    def stopped_until_ns(self, node: int) -> int:
        """Returns when a stopped machine continues; an earlier instant, or 0, if it is not stopped."""
        return self._stopped_until_ns.get(node, 0)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Registers a callback, for streams that stall, for every change of partitions, cuts or machines."""
        self._listeners.append(listener)

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()

    def send_datagram(self, source: int, target: int, size: int, deliver: Callable[[], None]) -> None:
        """Calls `deliver` once, twice or never, each time after the delay."""
        counters, config = self.counters, self.config
        counters["datagrams_sent"] += 1
        counters["datagram_bytes"] += size
        luck = self.draws.uniform() - config.loss
        if luck < 0 or not self.reaches(source, target):
            counters["datagrams_lost"] += 1
            return
        delay_ns = self.delay_ns(source, target)
        luck -= config.duplicate
        if luck < 0:
            counters["datagrams_doubled"] += 1
            self.time.after(self.delay_ns(source, target), deliver)
        elif luck < config.reorder:
            delay_ns += ns(self.draws.uniform() * config.reorder_ms / 1000)
        self.time.after(delay_ns, deliver)
