"""Orders in which a member turns to the others: at random, in turns, or by what they lack."""

import numpy as np

from sbon.membership.messages import Vitals
from sbon.types import NodeId


class RandomPeers:
    """A changing set of names from which a few are drawn at random in constant time."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._names: list[NodeId] = []
        self._index: dict[NodeId, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: NodeId) -> bool:
        return name in self._index

    def add(self, name: NodeId) -> None:
        """Put a name in; nothing happens if it is there."""
        if name not in self._index:
            self._index[name] = len(self._names)
            self._names.append(name)

    def remove(self, name: NodeId) -> None:
        """Take a name out; nothing happens if it is not there."""
        index = self._index.pop(name, None)
        if index is None:
            return
        last = self._names.pop()
        if last != name:
            self._names[index] = last
            self._index[last] = index

    def draw(self, count: int, besides: NodeId = "") -> list[NodeId]:
        """Up to `count` different names other than `besides`."""
        size = len(self._names)
        if count <= 0 or size == 0:
            return []
        if size <= 4 * count:
            order = self._rng.permutation(size).tolist()
        else:
            order = self._rng.integers(0, size, 3 * count).tolist()
        drawn: dict[NodeId, None] = {}
        for index in order:
            name = self._names[index]
            if name != besides:
                drawn[name] = None
                if len(drawn) == count:
                    break
        return list(drawn)


class ProbeOrder:
    """Round-robin over a shuffled list: each peer is probed within one round, whoever else is drawn (SWIM, section 4.3)."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._names: list[NodeId] = []
        self._position = 0

    def add(self, name: NodeId) -> None:
        """Put a newcomer at a random place, so that not all probe it at once."""
        place = int(self._rng.integers(0, len(self._names) + 1))
        self._names.insert(place, name)
        if place < self._position:
            self._position += 1

    def next(self, peers: RandomPeers) -> NodeId | None:
        """The next one that is still among the peers; the others drop out."""
        for _ in range(2):
            while self._position < len(self._names):
                name = self._names[self._position]
                self._position += 1
                if name in peers:
                    return name
            self._names = [name for name in dict.fromkeys(self._names) if name in peers]
            self._rng.shuffle(self._names)
            self._position = 0
        return None


class VitalsToTell:
    """Which members' vitals to pass on: half the newest, which few have yet, and half those that have waited longest.

    Each version is told once at most by one agent; a newer one takes the place of an older one.
    """

    def __init__(self) -> None:
        self._waiting: dict[NodeId, Vitals] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, vitals: Vitals) -> None:
        """Heard just now."""
        self._waiting.pop(vitals.name, None)
        self._waiting[vitals.name] = vitals

    def remove(self, name: NodeId) -> None:
        """Say no more about this one."""
        self._waiting.pop(name, None)

    def take(self, limit: int, room_bytes: int, besides: NodeId = "") -> list[Vitals]:
        """Up to `limit` vitals in `room_bytes`, none of `besides`, who knows its own."""
        waiting = self._waiting
        kept = waiting.pop(besides, None)
        taken: list[Vitals] = []
        while waiting and len(taken) < limit:
            oldest = len(taken) % 2 == 1
            name = next(iter(waiting)) if oldest else next(reversed(waiting))
            room_bytes -= len(name) + VITALS_OVERHEAD_BYTES
            if room_bytes < 0:
                break
            taken.append(waiting.pop(name))
        if kept is not None:
            waiting[besides] = kept
        return taken


VITALS_OVERHEAD_BYTES = 56
"""Vitals on the wire besides the name: two 64-bit integers, 32 bytes of values, and MessagePack's heads."""
