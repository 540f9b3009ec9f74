"""Mean rates of counters: over seconds for display, over minutes for decisions."""

import itertools
from collections import deque


class Rate:
    """Mean rate of a counter over the last few seconds, from samples taken once a second."""

    __slots__ = ("_samples",)

    WINDOW = 10
    KEPT = WINDOW

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=self.KEPT + 1)

    def sample(self, now: float, total: float) -> None:
        """Takes the counter's value at an instant."""
        self._samples.append((now, total))

    @property
    def per_s(self) -> float:
        """Rate per second; 0 until there are two samples."""
        if len(self._samples) < 2:
            return 0.0
        (t0, v0), (t1, v1) = self._samples[max(0, len(self._samples) - self.WINDOW - 1)], self._samples[-1]
        return (v1 - v0) / (t1 - t0) if t1 > t0 else 0.0


class BySecond(Rate):
    """A rate that also knows the gains of each second of the last minute, for predictions of a source whose rows come in bursts.

    Examples
    --------
    >>> given = BySecond()
    >>> for second, total in enumerate([0, 10, 20, 120, 130, 140]):
    ...     given.sample(float(second), total)
    >>> given.bursts
    (10, 10, 100, 10, 10)
    >>> for second in range(6, 70):
    ...     given.sample(float(second), 140 + 10 * second)
    >>> given.bursts, given.per_s
    ((), 10.0)
    """

    __slots__ = ()

    KEPT = 60
    UNEVEN = 1.5
    """Ratio of the greatest second to the mean, up to which rows count as even."""

    @property
    def bursts(self) -> tuple[int, ...]:
        """Gains by second, oldest first; empty while they are even, or none are known."""
        pairs = itertools.pairwise(self._samples)
        gains = tuple(max(0, round((v1 - v0) / (t1 - t0))) for (t0, v0), (t1, v1) in pairs if t1 > t0)
        return gains if gains and max(gains) > self.UNEVEN * sum(gains) / len(gains) else ()


class SteadyRate:
    """Mean rate of a counter over minutes, for decisions that must not follow every window that closes.

    The rows of a window come all at once, so over seconds their rate is either 0 or many times the mean. Before the first window has
    closed, the plan's expected rate is better than the counter's: it counts like a minute of measurement at first, and less as the horizon
    fills.
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
        """Takes the counter's value at an instant."""
        self._last = (now, total)
        if not self._samples or now - self._samples[-1][0] >= self.STEP_S:
            self._samples.append(self._last)
        while len(self._samples) > 1 and now - self._samples[1][0] >= self.HORIZON_S:
            self._samples.popleft()

    @property
    def per_s(self) -> float:
        """Rate per second; the expected one until there are samples."""
        if not self._samples:
            return self._expected_per_s
        (t0, v0), (t1, v1) = self._samples[0], self._last
        weight_s = self.EXPECTED_S * max(0.0, 1.0 - (t1 - t0) / self.HORIZON_S)
        span_s = weight_s + t1 - t0
        return (self._expected_per_s * weight_s + v1 - v0) / span_s if span_s > 0 else self._expected_per_s
