"""Noise of single round trips: each exceeds the path's shortest by a random share of it, exponentially distributed."""

import math

import numpy as np

from sbon.errors import UsageError

JITTER_SHARE = 0.04
"""Mean of the noise, as a share of the RTT, from measurements: the average of the pings between two of WonderNetwork's cities is 3.9 %
above the lowest of them (mean over 14,511 pairs; half of the pairs lie below 0.4 %, a tenth above 5.6 %, so that a few bad paths make up
most of it). Between cloud regions it is 0.4 % (Skyplane, 4,656 pairs); PlanetLab's three slices of time lie 5.6 % above the lowest of the
three."""
JITTER_MAX = 10.0
JITTER_HELP = "Mean noise of a probe, as a share of the RTT (exponential); 0 for exact RTTs."


class Jitter:
    """Draws the noise of one probe after another.

    Parameters
    ----------
    share : mean of the noise, relative to the RTT; 0 for exact RTTs
    rng : its own generator, so that the noise changes no other draw

    Raises
    ------
    UsageError
        The share is negative, absurd or not finite.
    """

    def __init__(self, share: float, rng: np.random.Generator) -> None:
        if not (math.isfinite(share) and 0 <= share <= JITTER_MAX):
            raise UsageError(f"jitter = {share}, expected 0 to {JITTER_MAX:g}, a share of the RTT such as {JITTER_SHARE}")
        self._share = share
        self._rng = rng

    def measured_ms(self, rtt_ms: float) -> float:
        """Returns the RTT that a probe measures on a path of this RTT."""
        return rtt_ms * (1.0 + self._share * float(self._rng.exponential())) if self._share else rtt_ms

    def fastest_ms(self, rtt_ms: float, probes: int) -> float:
        """Returns the least RTT that so many probes measure, as agents report when they are asked to measure a peer."""
        return min(self.measured_ms(rtt_ms) for _ in range(probes))
