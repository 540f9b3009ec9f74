"""Computes this node's coordinate from RTT samples and gossip.

Samples and coordinates of peers are hostile input. Impossible values are refused and counted by reason in `rejected`; plausible ones move
the node by a bounded length.
"""

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np

from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.coordinate import ERROR_MAX, ORIGIN, Coordinate, check
from sbon.cost_space.memory import Memory
from sbon.cost_space.peer_table import COLUMNS, PeerTable
from sbon.cost_space.refit import Place, Refit
from sbon.cost_space.rtt_filter import percentile
from sbon.cost_space.vivaldi import ERROR_MIN, clamped, pulled_back, random_direction, vivaldi_step
from sbon.errors import CoordinateError
from sbon.types import FloatArray, NodeId

RTT_MS_MIN = 0.001
"""Least RTT, one microsecond."""
RECENT_SHARE = 0.125
"""Weight of a sample in the short-term average of errors, which is compared with the error estimate."""
RECENT_ERROR_MAX = 0.5
"""Largest error with which one sample counts in the short-term average, so that a few liars do not look like a changed network."""

RESTORED_SAMPLES = 32.0
"""Number of samples that the coordinate of an earlier run counts for."""


class Localiser:
    """Keeps the coordinate of one node.

    Parameters
    ----------
    config : settings
    rng : draws directions that separate nodes at one point
    start : coordinate of an earlier run to continue from
    table : latest coordinates of peers, which the caller keeps up to date (for simulations); without it, `observe` and `heard` keep them
    """

    def __init__(
        self, config: CoordinateConfig, rng: np.random.Generator, start: Coordinate | None = None, table: PeerTable | None = None
    ) -> None:
        self._config = config
        self._rng = rng
        self._coordinate = ORIGIN if start is None else check(start)
        # A coordinate from an earlier run resists its first samples, which are few and may be outliers.
        self._placed = self._coordinate.error < ORIGIN.error
        self._anchor = RESTORED_SAMPLES * (1.0 - self._coordinate.error) if self._placed else 0.0
        self._samples = config.early_samples if self._placed else 0
        self._memory = Memory(config, table)
        self._recent_error = 0.0
        self._refit = Refit(16)
        self._gathered: FloatArray = np.empty((COLUMNS, 16))
        self._weight: FloatArray = np.empty(16)
        self.rejected: Counter[str] = Counter()

    @property
    def coordinate(self) -> Coordinate:
        """Returns the coordinate to publish."""
        return self._coordinate

    def set_load(self, load_ms: float) -> None:
        """Sets the load dimension to publish with the coordinate."""
        c = self._coordinate
        if load_ms != c.load_ms:
            self._coordinate = check(Coordinate(c.vector, c.height_ms, c.error, load_ms))

    def observe(self, peer: NodeId, peer_coordinate: Coordinate, rtt_ms: float, now: float) -> bool:
        """Takes an RTT measured to a peer, and the coordinate in its answer; returns False if they are refused and counted."""
        if not self._accepts(peer_coordinate) or not self._accepts_rtt(rtt_ms):
            return False
        filtered = self._memory.add(peer, peer_coordinate, rtt_ms, now)
        if self._config.algorithm == "vivaldi":
            self._coordinate = vivaldi_step(self._coordinate, peer_coordinate, filtered, self._config, self._rng)
            return True
        self._samples += 1
        if not self._placed:
            self._place_near(peer_coordinate, filtered)
            return True
        error = self._error_after(peer_coordinate, filtered)
        early = self._samples <= self._config.early_samples
        if early or self._samples % self._config.fit_every == 0:
            self._fit(error, self._config.passes_early if early else 1)
        else:
            c = self._coordinate
            self._coordinate = Coordinate(c.vector, c.height_ms, error, c.load_ms)
        return True

    def heard(self, peer: NodeId, coordinate: Coordinate, now: float) -> None:
        """Takes a peer's coordinate from gossip."""
        if peer in self._memory and self._accepts(coordinate):
            self._memory.heard(peer, coordinate)

    def forget(self, peer: NodeId) -> None:
        """Drops a peer that is gone for good."""
        self._memory.forget(peer)

    def measured_rtt_ms(self, peer: NodeId) -> float | None:
        """Returns the filtered RTT to a peer; None if it was never measured, or so long ago that it is forgotten."""
        return self._memory.filtered_rtt_ms(peer)

    def remembered(self, nearest: int, about: Iterable[NodeId], now: float) -> list[tuple[NodeId, float, float]]:
        """Returns peer, filtered RTT in ms and age in s of the `nearest` peers, and of the remembered ones in `about`."""
        told = []
        for peer in dict.fromkeys((*self._memory.nearest(nearest), *about)):
            rtt_ms, age_s = self._memory.filtered_rtt_ms(peer), self._memory.age_s(peer, now)
            if rtt_ms is not None and age_s is not None:
                told.append((peer, rtt_ms, age_s))
        return told

    def median_relative_error(self) -> float | None:
        """Returns the median over remembered peers of |predicted - filtered RTT| / filtered RTT; None before the first sample."""
        n = len(self._memory)
        if n == 0:
            return None
        peers = self._memory.coordinates(np.empty((COLUMNS, n)))
        own = np.array(self._coordinate.vector)[:, None]
        predicted = np.sqrt(np.square(own - peers[:3]).sum(axis=0)) + self._coordinate.height_ms + peers[3]
        return percentile((np.abs(predicted - self._memory.rtt_ms) / self._memory.rtt_ms).tolist(), 50.0)

    def _place_near(self, peer: Coordinate, rtt_ms: float) -> None:
        """Places the node after its first sample: in a random direction from the peer, at the distance of the RTT. Nodes that start at one
        point would take long to separate."""
        direction = random_direction(self._rng)
        x, y, z = (clamped(p + d * rtt_ms) for p, d in zip(peer.vector, direction, strict=True))
        c = self._coordinate
        self._coordinate = Coordinate((x, y, z), 0.0, c.error, c.load_ms)
        self._placed = True

    def _error_after(self, peer: Coordinate, rtt_ms: float) -> float:
        """Returns the error estimate after a fresh sample, from the prediction before the fit has used it."""
        c = self._coordinate
        sample = min(abs(math.dist(c.vector, peer.vector) + c.height_ms + peer.height_ms - rtt_ms) / rtt_ms, 1.0)
        self._recent_error += RECENT_SHARE * (min(sample, RECENT_ERROR_MAX) - self._recent_error)
        if self._recent_error > self._config.shock_ratio * c.error:
            self._memory.age(self._config.shock_half_lives)
        share = self._config.error_share
        if sample < c.error:  # A new node knows nothing; its first samples count more.
            share = max(share, 1.0 / (self._samples + 1))
        return min(max(c.error + share * (sample - c.error), ERROR_MIN), ERROR_MAX)

    def _fit(self, error: float, passes: int) -> None:
        config, memory = self._config, self._memory
        n = len(memory)
        if n > self._weight.shape[0]:
            room = min(2 * n, config.memory_peers)
            self._refit, self._gathered, self._weight = Refit(room), np.empty((COLUMNS, room)), np.empty(room)
        peers = memory.coordinates(self._gathered)
        weight = self._weight[:n]
        np.add(peers[4], config.trust_floor, out=weight)
        np.divide(memory.youth, weight, out=weight)
        c = self._coordinate
        prior = max(config.prior_samples, self._anchor - n)
        scale = min(max(config.scale_factor * error, config.scale_min), config.scale_max)
        place: Place = (*c.vector, c.height_ms)
        for _ in range(passes):
            move = self._refit.step(place, peers, memory.rtt_ms, memory.rtt_square, weight, scale, config.across, prior)
            length = math.hypot(*move)
            share = config.step_share if length * config.step_share <= config.jump_ms_max else config.jump_ms_max / length
            x, y, z, h = (clamped(p + share * m) for p, m in zip(place, move, strict=True))
            place = (x, y, z, max(h, 0.0))
        self._coordinate = Coordinate(pulled_back(place[:3], config.gravity_ms), place[3], error, c.load_ms)

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
        elif not RTT_MS_MIN <= rtt_ms <= self._config.rtt_ms_max:
            reason = "rtt_absurd"
        else:
            return True
        self.rejected[reason] += 1
        return False
