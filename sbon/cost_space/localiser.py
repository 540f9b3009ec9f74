"""This node's coordinate: RTT samples and gossip go in, a place in the cost space comes out.

Samples and coordinates of peers are hostile input. What cannot be true is refused and counted by reason in `rejected`.
"""

import math
from collections import Counter

import numpy as np

from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.coordinate import ORIGIN, Coordinate, check, estimated_rtt_ms
from sbon.cost_space.rtt_filter import RttFilter, percentile
from sbon.cost_space.vivaldi import vivaldi_step
from sbon.errors import CoordinateError
from sbon.types import NodeId


class Localiser:
    """Keeps the coordinate of one node."""

    def __init__(self, config: CoordinateConfig, rng: np.random.Generator, start: Coordinate | None = None) -> None:
        self._config = config
        self._rng = rng
        self._coordinate = ORIGIN if start is None else start
        self._filters: dict[NodeId, RttFilter] = {}
        self._peers: dict[NodeId, Coordinate] = {}
        self.rejected: Counter[str] = Counter()

    @property
    def coordinate(self) -> Coordinate:
        """What to tell others."""
        return self._coordinate

    def set_load(self, load_ms: float) -> None:
        """Publish another load dimension with the coordinate."""
        c = self._coordinate
        self._coordinate = check(Coordinate(c.vector, c.height_ms, c.error, load_ms))

    def observe(self, peer: NodeId, peer_coordinate: Coordinate, rtt_ms: float, now: float) -> bool:
        """Take an RTT measured to a peer, and the coordinate that came with the answer; False if refused and counted."""
        if not self._accepts(peer_coordinate) or not self._accepts_rtt(rtt_ms):
            return False
        rtt_filter = self._filters.get(peer)
        if rtt_filter is None:
            rtt_filter = self._filters[peer] = RttFilter()
        filtered = rtt_filter.add(rtt_ms, self._config)
        self._peers[peer] = peer_coordinate
        self._coordinate = vivaldi_step(self._coordinate, peer_coordinate, filtered, self._config, self._rng)
        return True

    def heard(self, peer: NodeId, coordinate: Coordinate, now: float) -> None:
        """Take a peer's coordinate from gossip."""
        if peer in self._peers and self._accepts(coordinate):
            self._peers[peer] = coordinate

    def forget(self, peer: NodeId) -> None:
        """The peer is gone for good."""
        self._filters.pop(peer, None)
        self._peers.pop(peer, None)

    def measured_rtt_ms(self, peer: NodeId) -> float | None:
        """Filtered RTT to a peer; None if never measured."""
        rtt_filter = self._filters.get(peer)
        return None if rtt_filter is None else rtt_filter.value_ms

    def median_relative_error(self) -> float | None:
        """Median over measured peers of |predicted - filtered RTT| / filtered RTT; None before the first sample."""
        errors = [abs(estimated_rtt_ms(self._coordinate, self._peers[peer]) - f.value_ms) / f.value_ms for peer, f in self._filters.items()]
        return percentile(errors, 50.0) if errors else None

    def _accepts(self, coordinate: Coordinate) -> bool:
        try:
            check(coordinate)
        except CoordinateError:
            self.rejected["coordinate"] += 1
            return False
        return True

    def _accepts_rtt(self, rtt_ms: float) -> bool:
        if not math.isfinite(rtt_ms):
            reason = "rtt_not_finite"
        elif rtt_ms <= 0:
            reason = "rtt_not_positive"
        elif rtt_ms > self._config.rtt_ms_max:
            reason = "rtt_absurd"
        else:
            return True
        self.rejected[reason] += 1
        return False
