"""Estimates the variance of measured savings from their successive differences."""

MEMORY_SAMPLES = 50
"""Number of recent differences that count; older ones fade, so that a network that calms down is trusted again."""
CLIP = 4.0
"""Most variances that one difference counts for: a lasting change of the network is a step, not noise."""


class Noise:
    """Variance of one kind of measurement around a level that may step.

    Half the squared difference of two successive measurements has the variance as its mean, whatever the level (von Neumann, Annals of
    Mathematical Statistics 12, 1941).
    """

    def __init__(self, variance: float, weight: float) -> None:
        self.variance = variance
        """The present estimate; at first the expected value."""
        self._weight = weight

    def learn(self, before: float, after: float) -> None:
        """Takes two successive measurements of one quantity."""
        sample = min((after - before) ** 2 / 2, CLIP * self.variance)
        self._weight = min(self._weight + 1, MEMORY_SAMPLES)
        self.variance += (sample - self.variance) / self._weight
