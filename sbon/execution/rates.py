"""Mean rates of counters: over seconds for display, over minutes for decisions."""

import math
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


class ByQuarter(Rate):
    """A rate that also knows the gains of each quarter of a second of the last minute, for predictions of a source whose rows come in
    bursts.

    Examples
    --------
    >>> given = ByQuarter()
    >>> given.sample(0.0, 0)
    >>> for second, rows in enumerate([10, 10, 100, 10]):
    ...     given.gained(second + 0.3, rows)
    ...     given.sample(second + 1.0, 0)
    >>> given.bursts
    (0, 10, 0, 0, 0, 10, 0, 0, 0, 100, 0, 0, 0, 10, 0, 0)
    >>> for second in range(4, 70):
    ...     given.gained(second + 0.3, 10)
    ...     given.sample(second + 1.0, 0)
    >>> given.bursts
    ()
    """

    __slots__ = ("_begun", "_quarters")

    PER_S = 4
    QUARTERS = 60 * PER_S
    UNEVEN = 1.5
    """Ratio of the greatest second to the mean, up to which rows count as even."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = 0
        """Number of the quarter of a second of the first sample."""
        self._quarters: deque[tuple[int, int]] = deque()
        """Number of each quarter of a second with gains, on the clock of the samples, and its gains."""

    def sample(self, now: float, total: float) -> None:
        """Takes the counter's value at an instant."""
        if not self._samples:
            self._begun = math.floor(now * self.PER_S)
        super().sample(now, total)

    def gained(self, now: float, gain: int) -> None:
        """Counts a gain at an instant, which is not before the last one."""
        quarter = math.floor(now * self.PER_S)
        if self._quarters and quarter <= self._quarters[-1][0]:
            last, gains = self._quarters.pop()
            self._quarters.append((last, gains + gain))
            return
        self._quarters.append((quarter, gain))
        while self._quarters[0][0] < quarter - self.QUARTERS:
            self._quarters.popleft()

    @property
    def bursts(self) -> tuple[int, ...]:
        """Gains by quarter of a second until the last sample, oldest first, from the first sample on; empty while seconds are even, or none
        are known."""
        if len(self._samples) < 2:
            return ()
        end = math.floor(self._samples[-1][0] * self.PER_S)
        begin = max(end - self.QUARTERS, self._begun)
        begin += (end - begin) % self.PER_S
        gains = dict(self._quarters)
        found = tuple(gains.get(quarter, 0) for quarter in range(begin, end))
        seconds = [sum(found[at : at + self.PER_S]) for at in range(0, len(found), self.PER_S)]
        return found if seconds and max(seconds) > self.UNEVEN * sum(seconds) / len(seconds) else ()


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
