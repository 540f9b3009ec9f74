"""The schedule of IP packets: where and when each arrives. It has no sockets and no clock: packets and instants go in, due packets come
out.

Every directed pair of sites is a path with a one-way delay. A packet is dropped if its path is blocked, by chance, or if too many wait
already. A path with a rate limit sends packets one after another, so that they queue. TCP segments of a path keep their order, as streams
do in the other worlds: reordering them would only test the kernel's heuristics. Datagrams may overtake each other.

A packet in flight is lost if its path is blocked when it is due.
"""

import heapq
from collections.abc import Sequence
from socket import inet_aton

import numpy as np

from sbon_testbed.netns.devices import ip_address
from sbon_testbed.simulator.network import Draws, NetworkConfig

PATH_PACKETS_MAX = 8192
"""Most packets in flight on one path: 12 MB of full packets, twice the most that the kernel's windows allow a connection."""
PACKETS_MAX = 65_536
"""Most packets in flight on all paths: 100 MB."""
_TCP = 6
_NS_PER_MS = 1_000_000


class _Path:
    """One direction between two sites."""

    __slots__ = ("blocked", "delay_ns", "free_ns", "last_tcp_ns", "plain", "target", "waiting")

    def __init__(self, target: int, plain: bool) -> None:
        self.target = target
        self.plain = plain
        self.delay_ns = 0
        self.blocked = False
        self.waiting = 0
        self.free_ns = 0
        self.last_tcp_ns = 0


class Schedule:
    """All packets in flight.

    Parameters
    ----------
    sites : number of sites
    plain : number of sites, the last ones, for measuring the router itself: no jitter, loss or limits between them, and not counted
    network : faults of packets between the other sites
    """

    def __init__(self, sites: int, plain: int, network: NetworkConfig, rng: np.random.Generator) -> None:
        self.counters, aside = _no_packets(), _no_packets()
        self._counters = [self.counters] * (sites - plain) + [aside] * plain
        self._network = network
        self._draws = Draws(rng)
        self._jitter_ns = int(network.jitter_ms * _NS_PER_MS)
        self._reorder_ns = int(network.reorder_ms * _NS_PER_MS)
        self._ns_per_byte = 1e9 / network.bandwidth_bytes_per_s if network.bandwidth_bytes_per_s else 0.0
        self._queue_ns = int(network.queue_bytes * self._ns_per_byte)
        self._unlucky = network.loss + network.duplicate + network.reorder
        plain_free = not (self._jitter_ns or self._unlucky or self._ns_per_byte)
        first_plain = sites - plain
        self._paths: list[dict[bytes, _Path]] = [
            {
                inet_aton(ip_address(target)): _Path(target, plain_free or (source >= first_plain and target >= first_plain))
                for target in range(sites)
                if target != source
            }
            for source in range(sites)
        ]
        self._heap: list[tuple[int, int, _Path, bytes]] = []
        self._pushed = 0

    @property
    def next_due_ns(self) -> int | None:
        """Returns when the next packet arrives; None if there is none."""
        return self._heap[0][0] if self._heap else None

    @property
    def under_way(self) -> int:
        """Returns the number of packets in flight."""
        counters = self.counters
        gone = sum(counters[name] for name in ("delivered", "lost", "blocked", "tail_dropped", "stray"))
        return counters["sent"] + counters["doubled"] - gone

    def set_paths(self, delay_ms: Sequence[Sequence[float]], group: Sequence[int], off: Sequence[int]) -> None:
        """Sets the one-way delays, (sites, sites), of packets sent from now on, the group of each site, and the sites that are off."""
        silent = set(off)
        for source, paths in enumerate(self._paths):
            for path in paths.values():
                path.delay_ns = int(delay_ms[source][path.target] * _NS_PER_MS)
                path.blocked = group[source] != group[path.target] or source in silent or path.target in silent

    def accept(self, source: int, packet: bytes, now_ns: int) -> None:
        """Schedules or drops an IPv4 packet that a site has sent."""
        counters = self._counters[source]
        counters["sent"] += 1
        counters["bytes"] += len(packet)
        path = self._paths[source].get(packet[16:20])
        if path is None:
            counters["stray"] += 1
        elif path.blocked:
            counters["blocked"] += 1
        elif path.waiting >= PATH_PACKETS_MAX or len(self._heap) >= PACKETS_MAX:
            counters["tail_dropped"] += 1
        elif path.plain:
            self._push(now_ns + path.delay_ns, path, packet)
        else:
            self._send(path, packet, now_ns)

    def _send(self, path: _Path, packet: bytes, now_ns: int) -> None:
        luck = self._draws.uniform() if self._unlucky else 1.0
        if luck < self._network.loss:
            self.counters["lost"] += 1
            return
        if self._ns_per_byte:
            free_ns = max(path.free_ns, now_ns)
            if free_ns - now_ns > self._queue_ns:
                self.counters["tail_dropped"] += 1
                return
            path.free_ns = free_ns + int(len(packet) * self._ns_per_byte)
            now_ns = path.free_ns
        due_ns = now_ns + path.delay_ns
        if self._jitter_ns:
            due_ns += int(self._jitter_ns * self._draws.exponential())
        if packet[9] == _TCP:
            due_ns = path.last_tcp_ns = max(due_ns, path.last_tcp_ns)
        elif luck < self._unlucky:
            luck -= self._network.loss
            if luck < self._network.duplicate:
                self.counters["doubled"] += 1
                self._push(due_ns, path, packet)
            else:
                due_ns += int(self._reorder_ns * self._draws.uniform())
        self._push(due_ns, path, packet)

    def _push(self, due_ns: int, path: _Path, packet: bytes) -> None:
        path.waiting += 1
        self._pushed += 1
        heapq.heappush(self._heap, (due_ns, self._pushed, path, packet))

    def due(self, now_ns: int, most: int) -> list[tuple[int, int, bytes]]:
        """Returns at most `most` packets that have arrived by now, as (arrival time, site, packet), earliest first."""
        heap = self._heap
        found: list[tuple[int, int, bytes]] = []
        while heap and heap[0][0] <= now_ns and len(found) < most:
            due_ns, _, path, packet = heapq.heappop(heap)
            path.waiting -= 1
            counters = self._counters[path.target]
            if path.blocked:
                counters["blocked"] += 1
            else:
                counters["delivered"] += 1
                found.append((due_ns, path.target, packet))
        return found


def _no_packets() -> dict[str, int]:
    return dict.fromkeys(("sent", "bytes", "delivered", "lost", "doubled", "blocked", "tail_dropped", "stray"), 0)
