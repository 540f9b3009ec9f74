"""An overlay reduced to its coordinates: localisers that probe each other on a matrix of RTTs.

Every node runs the library's own `Localiser`. In each round each node, in random order, probes one peer. Coordinates spread by gossip: by
default a node knows the latest coordinate of every peer that it remembers; with `gossip`, it gets that many random coordinates a round.
"""

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.localiser import Localiser
from sbon.cost_space.peer_table import PeerTable
from sbon.types import FloatArray, NodeId
from sbon_testbed.coordinates.jitter import Jitter
from sbon_testbed.coordinates.liars import Liar

ROUND_S = 1.0
"""Length of a round in s, the agents' probe interval; samples age by it."""


class Space:
    """The localisers of one overlay, and the coordinates that they publish."""

    def __init__(
        self,
        nodes: int,
        config: CoordinateConfig,
        rng: np.random.Generator,
        gossip: int | None,
        liars: Sequence[int] = (),
        liar: Liar | None = None,
        jitter: float = 0.0,
        names: Sequence[NodeId] | None = None,
    ) -> None:
        self.nodes = nodes
        self.names = [f"n{i}" for i in range(nodes)] if names is None else list(names)
        self._shared = PeerTable() if gossip is None else None
        self._gossip = gossip or 0
        self._rng = rng
        self._liars = frozenset(liars)
        self._liar = liar
        self.localisers = [Localiser(config, own, table=self._shared) for own in rng.spawn(nodes)]
        self._jitter = Jitter(jitter, rng.spawn(1)[0])
        self._told = [localiser.coordinate for localiser in self.localisers]
        self.probed: npt.NDArray[np.bool_] = np.zeros((nodes, nodes), dtype=np.bool_)
        """Tells for each pair, (nodes, nodes), whether either node has measured its RTT to the other."""
        self.update_s = 0.0
        self.updates = 0
        for node in range(nodes):
            self._tell(node, 0)

    def probe(self, node: int, peer: int, rtt_ms: float, round_number: int) -> None:
        """Lets `node` measure its RTT to `peer`, with noise, and get some gossip."""
        localiser = self.localisers[node]
        now = round_number * ROUND_S
        rtt_ms = self._jitter.measured_ms(rtt_ms)
        if self._liar is not None and peer in self._liars:
            rtt_ms = self._liar.rtt_ms(peer, rtt_ms, round_number)
        heard = self._rng.integers(self.nodes, size=self._gossip).tolist() if self._gossip else ()
        started = time.thread_time()  # CPU time of the update, independent of other load on the machine.
        for other in heard:
            localiser.heard(self.names[other], self._told[other], now)
        localiser.observe(self.names[peer], self._told[peer], rtt_ms, now)
        self.update_s += time.thread_time() - started
        self.updates += 1
        self.probed[node, peer] = self.probed[peer, node] = True
        self._tell(node, round_number)

    def _tell(self, node: int, round_number: int) -> None:
        coordinate = self.localisers[node].coordinate
        if self._liar is not None and node in self._liars:
            coordinate = self._liar.tell(node, coordinate, round_number)
        self._told[node] = coordinate
        if self._shared is not None:
            self._shared.put(self.names[node], coordinate)

    def positions(self) -> FloatArray:
        """Returns vector and height of every node by its own estimate, in ms, (nodes, 4)."""
        return np.array([(*c.vector, c.height_ms) for c in (localiser.coordinate for localiser in self.localisers)])


def play_round(space: Space, current: FloatArray, peers: Sequence[Sequence[int]], rng: np.random.Generator, number: int) -> None:
    """Lets each node, in random order, probe one of its peers; a pair without a measurement gives no answer."""
    picks = rng.random(space.nodes).tolist()
    for node in rng.permutation(space.nodes).tolist():
        known = peers[node]
        if known:
            peer = known[int(picks[node] * len(known))]
            rtt_ms = float(current[node, peer])
            if rtt_ms == rtt_ms:
                space.probe(node, peer, rtt_ms, number)


def draw_peers(slices: FloatArray, neighbours: int | None, rng: np.random.Generator) -> list[list[int]]:
    """Returns for each node the peers that it may probe: others to which at least one slice has an RTT."""
    reachable = np.logical_and(np.isfinite(slices).any(axis=0), ~np.eye(slices.shape[1], dtype=bool))
    peers = []
    for row in reachable:
        others = np.flatnonzero(row)
        if neighbours is not None:
            others = np.sort(rng.permutation(others)[:neighbours])
        peers.append(others.tolist())
    return peers
