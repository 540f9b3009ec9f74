"""The samples that a node remembers: per peer the filtered RTT, the time of the last measurement, and the latest coordinate."""

import numpy as np

from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.coordinate import Coordinate
from sbon.cost_space.peer_table import COLUMNS, PeerTable
from sbon.cost_space.rtt_filter import RttFilter
from sbon.cost_space.rtt_noise import RttNoise
from sbon.types import FloatArray, NodeId

YOUTH_EXPONENT_MAX = 100.0


class Memory:
    """The last sample of each of up to `memory_peers` peers, in columns; the one measured longest ago makes room for a new peer.

    A table of coordinates passed in is shared: its owner keeps it up to date, and this class only reads it.
    """

    def __init__(self, config: CoordinateConfig, shared: PeerTable | None = None) -> None:
        self._config = config
        self._table = PeerTable() if shared is None else shared
        self._own = shared is None
        self._slots: dict[NodeId, int] = {}
        self._filters: list[RttFilter] = []
        self._peers: list[NodeId] = []
        room = min(16, config.memory_peers)
        self._rows = np.zeros(room, dtype=np.intp)
        self._rtt_ms: FloatArray = np.zeros(room)
        self._square: FloatArray = np.zeros(room)
        self._youth: FloatArray = np.zeros(room)
        self._noise = RttNoise()
        self._epoch_s: float | None = None
        self._extra_half_lives = 0.0

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, peer: NodeId) -> bool:
        return peer in self._slots

    @property
    def peers(self) -> list[NodeId]:
        """Returns the remembered peers, in the order of the columns."""
        return self._peers

    @property
    def rtt_ms(self) -> FloatArray:
        """Returns the filtered RTTs minus the typical noise, (n,)."""
        return self._rtt_ms[: len(self._peers)]

    @property
    def rtt_square(self) -> FloatArray:
        """Returns the squares of the filtered RTTs in ms, (n,); an RTT below `rtt_floor_ms` counts as the floor."""
        return self._square[: len(self._peers)]

    @property
    def youth(self) -> FloatArray:
        """Returns the weights by age, (n,): they double with every half-life by which one sample is younger than another. Only ratios
        matter."""
        return self._youth[: len(self._peers)]

    def coordinates(self, out: FloatArray) -> FloatArray:
        """Gathers x, y, z, height and error of the peers into `out`, (5, n)."""
        n = len(self._peers)
        columns: FloatArray = np.take(self._table.columns, self._rows[:n], axis=1, out=out[:COLUMNS, :n], mode="clip")
        return columns

    def add(self, peer: NodeId, coordinate: Coordinate, rtt_ms: float, now: float) -> float:
        """Takes a checked sample; returns the filtered RTT minus the noise that is typical of so few samples."""
        slot = self._slots.get(peer)
        if slot is None:
            slot = self._new_slot(peer)
            self._rows[slot] = self._row(peer, coordinate)
        elif self._own:
            self._table.put(peer, coordinate)
        rtt_filter = self._filters[slot]
        rtt_filter.add(rtt_ms, self._config, now)
        if rtt_filter.before_ms is not None:
            self._noise.learn(rtt_filter.before_ms, rtt_ms, self._config.shift_ratio)
        filtered = self._noise.without(rtt_filter.value_ms, rtt_filter.samples, rtt_filter.rank)
        self._rtt_ms[slot] = filtered
        self._square[slot] = max(filtered, self._config.rtt_floor_ms) ** 2
        self._youth[slot] = self._youth_at(now)
        return filtered

    def heard(self, peer: NodeId, coordinate: Coordinate) -> None:
        """Takes a peer's coordinate, if the peer is remembered."""
        if self._own and peer in self._slots:
            self._table.put(peer, coordinate)

    def coordinate(self, peer: NodeId) -> Coordinate | None:
        """Returns the latest coordinate of a remembered peer."""
        return self._table.get(peer) if peer in self._slots else None

    def filtered_rtt_ms(self, peer: NodeId) -> float | None:
        """Returns the filtered RTT of a remembered peer."""
        slot = self._slots.get(peer)
        return None if slot is None else self._filters[slot].value_ms

    def age_s(self, peer: NodeId, now: float) -> float | None:
        """Returns the seconds since the last sample of a remembered peer."""
        slot = self._slots.get(peer)
        return None if slot is None else now - self._filters[slot].last_at_s

    def nearest(self, count: int) -> list[NodeId]:
        """Returns the remembered peers of least filtered RTT, nearest first."""
        order = np.argsort(self.rtt_ms, kind="stable")[: max(0, count)]
        return [self._peers[index] for index in order.tolist()]

    def forget(self, peer: NodeId) -> None:
        """Drops a peer; the last column moves into its place."""
        slot = self._slots.pop(peer, None)
        if slot is None:
            return
        last = len(self._peers) - 1
        if slot != last:
            moved = self._peers[last]
            self._slots[moved], self._peers[slot], self._filters[slot] = slot, moved, self._filters[last]
            for column in (self._rows, self._rtt_ms, self._square, self._youth):
                column[slot] = column[last]
        self._peers.pop()
        self._filters.pop()
        if self._own:
            self._table.remove(peer)

    def age(self, half_lives: float) -> None:
        """Makes all remembered samples count as older."""
        self._extra_half_lives += half_lives

    def _youth_at(self, now: float) -> float:
        """Returns the weight of a sample taken now. Weights grow with time instead of decaying, so older ones need not be changed."""
        if self._epoch_s is None:
            self._epoch_s = now
        half_lives = (now - self._epoch_s) / self._config.sample_half_life_s + self._extra_half_lives
        if half_lives > YOUTH_EXPONENT_MAX:
            self._youth *= 2.0 ** -min(half_lives, 1000.0)
            self._epoch_s, self._extra_half_lives, half_lives = now, 0.0, 0.0
        return float(2.0 ** max(half_lives, -YOUTH_EXPONENT_MAX))

    def _row(self, peer: NodeId, coordinate: Coordinate) -> int:
        row = self._table.row(peer)
        return self._table.put(peer, coordinate) if row is None or self._own else row

    def _new_slot(self, peer: NodeId) -> int:
        if len(self._peers) >= self._config.memory_peers:
            self.forget(self._peers[int(np.argmin(self.youth))])
        slot = len(self._peers)
        if slot == len(self._rows):
            room = min(2 * slot, self._config.memory_peers)
            self._rows = np.resize(self._rows, room)
            self._rtt_ms, self._square = np.resize(self._rtt_ms, room), np.resize(self._square, room)
            self._youth = np.resize(self._youth, room)
        self._slots[peer] = slot
        self._peers.append(peer)
        self._filters.append(RttFilter())
        return slot
