"""Selects members or vitals: at random, round-robin, or the least told first."""

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
        """Adds a name, if it is not present."""
        if name not in self._index:
            self._index[name] = len(self._names)
            self._names.append(name)

    def remove(self, name: NodeId) -> None:
        """Removes a name, if it is present."""
        index = self._index.pop(name, None)
        if index is None:
            return
        last = self._names.pop()
        if last != name:
            self._names[index] = last
            self._index[last] = index

    def draw(self, count: int, besides: NodeId = "") -> list[NodeId]:
        """Draws up to `count` different names other than `besides`."""
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
        self._listed: set[NodeId] = set()  # looked up, never iterated
        self._position = 0

    def add(self, name: NodeId) -> None:
        """Inserts a new name at a random place, so that members do not all probe it at once. A name that returns keeps its place."""
        if name in self._listed:
            return
        self._listed.add(name)
        place = int(self._rng.integers(0, len(self._names) + 1))
        self._names.insert(place, name)
        if place < self._position:
            self._position += 1

    def next(self, peers: RandomPeers) -> NodeId | None:
        """Returns the next name that is still a peer. Names that are no longer peers are dropped."""
        for _ in range(2):
            while self._position < len(self._names):
                name = self._names[self._position]
                self._position += 1
                if name in peers:
                    return name
            self._names = [name for name in self._names if name in peers]
            self._listed = set(self._names)
            self._rng.shuffle(self._names)
            self._position = 0
        return None


class VitalsToTell:
    """Chooses vitals to pass on: half of them never told, newest first, because few members have them yet; half of them told longest ago.

    An agent passes on one version a few times at most. A newer version replaces an older one.
    """

    def __init__(self) -> None:
        self._untold: dict[NodeId, Vitals] = {}  # oldest first
        self._told: dict[NodeId, tuple[Vitals, int]] = {}  # least recently told first

    def __len__(self) -> int:
        return len(self._untold) + len(self._told)

    def add(self, vitals: Vitals) -> None:
        """Adds vitals that have just arrived."""
        self.remove(vitals.name)
        self._untold[vitals.name] = vitals

    def remove(self, name: NodeId) -> None:
        """Stops passing on a member's vitals."""
        self._untold.pop(name, None)
        self._told.pop(name, None)

    def take(self, limit: int, room_bytes: int, besides: NodeId = "") -> list[Vitals]:
        """Returns up to `limit` vitals that fit into `room_bytes`, except those of the receiver `besides`."""
        taken: list[Vitals] = []
        again: list[tuple[Vitals, int]] = []
        untold, told = self._untold, self._told
        for turn in range(limit + 1):
            if len(taken) == limit or not (untold or told):
                break
            if untold and (turn % 2 == 0 or not told):
                name, vitals = untold.popitem()
                times = 0
            else:
                name = next(iter(told))
                vitals, times = told.pop(name)
            if name == besides:
                again.append((vitals, times))
                continue
            room_bytes -= len(name) + VITALS_OVERHEAD_BYTES
            if room_bytes < 0:
                again.append((vitals, times))
                break
            taken.append(vitals)
            if times + 1 < VITALS_TELLINGS:
                again.append((vitals, times + 1))
        for vitals, times in again:
            told[vitals.name] = (vitals, times)
        return taken


VITALS_TELLINGS = 2
"""Most times that an agent passes on one version. While coordinates move, a newer version replaces it earlier."""
VITALS_OVERHEAD_BYTES = 56
"""Bytes of vitals on the wire besides the name: two 64-bit integers, 32 bytes of values, and MessagePack's headers."""
