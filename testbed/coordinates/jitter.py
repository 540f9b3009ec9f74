"""Noise of single round trips: each exceeds the path's shortest round trip by a random, exponentially distributed share."""

import math

import numpy as np

from sbon.errors import UsageError

JITTER_SHARE = 0.04
"""Mean of the noise, as a share of the RTT. Measurements: the average ping between two of WonderNetwork's cities is 3.9 % above the pair's
lowest (mean over 14,511 pairs; half of the pairs lie below 0.4 %, a tenth above 5.6 %, so a few bad paths cause most of it). Between cloud
regions it is 0.4 % (Skyplane, 4,656 pairs). PlanetLab's three slices of time lie 5.6 % above the lowest of the three."""
JITTER_MAX = 10.0
JITTER_HELP = "Mean noise of a probe, as a share of the RTT (exponential); 0 for exact RTTs."


class Jitter:
    """Draws the noise of one probe after another.

    Parameters
    ----------
    share : mean of the noise, relative to the RTT; 0 for exact RTTs
    rng : generator for the noise alone, so that the noise changes no other draw

    Raises
    ------
    UsageError
        The share is negative, above `JITTER_MAX` or not finite.
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
        """Returns the least RTT of `probes` probes, which agents report when they are asked to measure a peer."""
        return min(self.measured_ms(rtt_ms) for _ in range(probes))
