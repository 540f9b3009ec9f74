"""Quantiles of durations in bounded memory: counts in buckets 2 percent wide, which add up over windows, sinks and agents."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

GROWTH = 1.02
"""Each bucket ends at so many times its beginning: its middle is within 1 percent of all in it."""
LEAST_MS = 0.001
"""Shorter durations count as this."""
MOST_MS = 1e8
"""Longer durations, more than a day, count as this."""
_LOG_GROWTH = math.log(GROWTH)


class Digest:
    """Durations, each with a weight.

    Examples
    --------
    >>> digest = Digest()
    >>> for ms in range(1, 1001):
    ...     digest.add(ms, 1)
    >>> digest.rows, round(digest.quantile(0.5)), digest.max_ms
    (1000, 497, 1000)
    """

    def __init__(self) -> None:
        self.rows = 0
        self.additions = 0
        self.max_ms = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, duration_ms: float, rows: int) -> None:
        """So many rows have taken so long."""
        duration_ms = max(0.0, duration_ms)
        number = bucket_of(duration_ms)
        self._buckets[number] = self._buckets.get(number, 0) + rows
        self.rows += rows
        self.additions += 1
        self.max_ms = max(self.max_ms, duration_ms)

    def quantile(self, share: float) -> float:
        """The duration that this share of rows does not exceed (nearest rank), within 1 percent; 0 without rows."""
        return min(quantile(self._buckets, share), self.max_ms)

    def add_buckets(self, buckets: Iterable[tuple[int, int]], max_ms: float) -> None:
        """Rows counted elsewhere: numbers and rows of buckets, and the longest duration among them."""
        for number, rows in buckets:
            self._buckets[number] = self._buckets.get(number, 0) + rows
            self.rows += rows
        self.additions += 1
        self.max_ms = max(self.max_ms, max_ms)

    @property
    def buckets(self) -> tuple[tuple[int, int], ...]:
        """Numbers and rows of the buckets, in order. A copy first, in one step: another thread may be counting."""
        return tuple(sorted(dict(self._buckets).items()))


class RecentDigest:
    """Quantiles of the last while, and of all since the beginning: people ask about now, measurements subtract two looks.

    What is recent covers between `window_s` and twice as much.
    """

    def __init__(self, window_s: float = 30.0) -> None:
        self._window_s = window_s
        self._until_s = -math.inf
        self._before, self._current, self.total = Digest(), Digest(), Digest()

    def add(self, now: float, duration_ms: float, rows: int = 1) -> None:
        """So many rows have taken so long; `now` in monotonic seconds."""
        self.add_buckets(now, ((bucket_of(duration_ms), rows),), duration_ms)

    def add_buckets(self, now: float, buckets: Iterable[tuple[int, int]], max_ms: float) -> None:
        """Rows that are counted already; see `Digest.add_buckets`."""
        self._turn(now)
        counted = tuple(buckets)
        self._current.add_buckets(counted, max_ms)
        self.total.add_buckets(counted, max_ms)

    def told(self, now: float) -> dict[str, Any]:
        """Figures for people and scripts: quantiles of the last while in ms, and rows by bucket since the beginning."""
        self._turn(now)
        recent = Digest()
        for digest in (self._before, self._current):
            recent.add_buckets(digest.buckets, digest.max_ms)
        return {
            "rows": recent.rows,
            "p50_ms": round(recent.quantile(0.5), 4),
            "p99_ms": round(recent.quantile(0.99), 4),
            "max_ms": round(recent.max_ms, 4),
            "buckets": [list(bucket) for bucket in self.total.buckets],
        }

    def _turn(self, now: float) -> None:
        if now < self._until_s:
            return
        self._before = self._current if now < self._until_s + self._window_s else Digest()
        self._current = Digest()
        self._until_s = now + self._window_s


def bucket_of(duration_ms: float) -> int:
    """The number of the bucket that a duration falls into: bucket n holds those from GROWTH**n to GROWTH**(n + 1) ms."""
    return math.floor(math.log(min(max(duration_ms, LEAST_MS), MOST_MS)) / _LOG_GROWTH)


def middle_ms(number: int) -> float:
    """The duration in the middle of a bucket."""
    return float(GROWTH ** (number + 0.5))


def quantile(buckets: Mapping[int, int], share: float) -> float:
    """The same from buckets that have been added up; 0 without rows."""
    wanted = share * sum(buckets.values())
    reached = 0
    for number in sorted(buckets):
        reached += buckets[number]
        if reached >= wanted and reached > 0:
            return middle_ms(number)
    return 0.0
