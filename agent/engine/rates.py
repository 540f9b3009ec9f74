"""Mean rates of counters: of the last seconds for people to see, of minutes for decisions."""

from collections import deque


class Rate:
    """A counter's mean rate over the last few seconds, from samples taken once a second."""

    __slots__ = ("_samples",)

    WINDOW = 10

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=self.WINDOW + 1)

    def sample(self, now: float, total: float) -> None:
        """Take the counter's value."""
        self._samples.append((now, total))

    @property
    def per_s(self) -> float:
        """Per second; 0 until there are two samples."""
        if len(self._samples) < 2:
            return 0.0
        (t0, v0), (t1, v1) = self._samples[0], self._samples[-1]
        return (v1 - v0) / (t1 - t0) if t1 > t0 else 0.0


class SteadyRate:
    """A counter's mean rate over minutes, for decisions that must not follow every window that closes.

    What a window gives comes all at once: over seconds its rate is now nothing, now many times the mean. And before the first one has
    closed, the plan knows better than the counter: what was expected counts like a minute of measurement, less and less as the time fills.
    """

    __slots__ = ("_expected_per_s", "_last", "_samples")

    HORIZON_S = 600.0
    STEP_S = 10.0
    EXPECTED_S = 60.0

    def __init__(self, expected_per_s: float) -> None:
        self._expected_per_s = expected_per_s
        self._samples: deque[tuple[float, float]] = deque()
        self._last = (0.0, 0.0)

    def sample(self, now: float, total: float) -> None:
        """Take the counter's value."""
        self._last = (now, total)
        if not self._samples or now - self._samples[-1][0] >= self.STEP_S:
            self._samples.append(self._last)
        while len(self._samples) > 1 and now - self._samples[1][0] >= self.HORIZON_S:
            self._samples.popleft()

    @property
    def per_s(self) -> float:
        """Per second; what was expected until there are samples."""
        if not self._samples:
            return self._expected_per_s
        (t0, v0), (t1, v1) = self._samples[0], self._last
        weight_s = self.EXPECTED_S * max(0.0, 1.0 - (t1 - t0) / self.HORIZON_S)
        span_s = weight_s + t1 - t0
        return (self._expected_per_s * weight_s + v1 - v0) / span_s if span_s > 0 else self._expected_per_s
