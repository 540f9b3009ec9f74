"""Estimates how much single RTTs to the same peer scatter, and how much of a filtered RTT is therefore noise.

Queues and busy processes only ever lengthen a round trip. If a peer is measured rarely, the percentile filter has one or two samples to
choose from, and its value lies above the path's RTT; all coordinates grow by that share. The noise does not show in one sample, but in the
difference between two samples of the same peer. The differences of all peers together soon give its size: for exponential noise, the
difference of two samples is distributed as the excess of one sample, so that the median difference is the median excess.
"""

from collections import deque

from sbon.cost_space.rtt_filter import percentile

DIFFERENCES = 64
"""Number of recent differences that count."""
DIFFERENCES_MIN = 8
"""Number of differences below which no noise is assumed."""


class RttNoise:
    """The typical excess of one sample over its path's RTT, as a share of the RTT; the same for all peers."""

    def __init__(self) -> None:
        self._differences: deque[float] = deque(maxlen=DIFFERENCES)
        self.share = 0.0

    def learn(self, one_ms: float, other_ms: float, ratio_max: float) -> None:
        """Takes two samples of the same peer. If one is more than `ratio_max` times the other, the path has changed, and they are
        ignored."""
        low, high = (one_ms, other_ms) if one_ms < other_ms else (other_ms, one_ms)
        if high > low * ratio_max:
            return
        self._differences.append(high / low - 1.0)
        if len(self._differences) >= DIFFERENCES_MIN:
            self.share = percentile(list(self._differences), 50.0)

    def without(self, rtt_ms: float, samples: int, rank: int) -> float:
        """Returns the value at a rank (0: the least) of so many samples, minus the noise that it typically contains.

        For exponential noise the least of n samples exceeds the path's RTT by 1/n of a single sample's excess, the next by a further
        1/(n-1), and so on.
        """
        excess = self.share * sum(1.0 / (samples - below) for below in range(rank + 1))
        return rtt_ms / (1.0 + excess)
