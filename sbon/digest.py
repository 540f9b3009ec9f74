"""Quantiles of durations in bounded memory: counts in buckets 2 percent wide, which can be added up over windows, sinks and agents."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

GROWTH = 1.02
"""Ratio of a bucket's end to its start, so that the bucket's middle is within 1 percent of every value in it."""
LEAST_MS = 0.001
"""Shortest duration in ms; shorter durations count as this."""
MOST_MS = 1e8
"""Longest duration in ms, more than a day; longer durations count as this."""
PER_LOG = 1 / math.log(GROWTH)
"""Number of buckets for each factor of e."""
RECENT_S = 30.0


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
        """Adds rows that have taken `duration_ms`."""
        duration_ms = max(0.0, duration_ms)
        number = bucket_of(duration_ms)
        self._buckets[number] = self._buckets.get(number, 0) + rows
        self.rows += rows
        self.additions += 1
        self.max_ms = max(self.max_ms, duration_ms)

    def quantile(self, share: float) -> float:
        """Returns the duration that this share of rows does not exceed (nearest rank), within 1 percent; 0 without rows."""
        return min(quantile(self._buckets, share), self.max_ms)

    @property
    def mean_ms(self) -> float:
        """Returns the mean duration of rows, within 1 percent; 0 without rows."""
        return sum(middle_ms(number) * rows for number, rows in self.buckets) / self.rows if self.rows else 0.0

    def add_buckets(self, buckets: Iterable[tuple[int, int]], max_ms: float) -> None:
        """Adds rows counted elsewhere: numbers and rows of buckets, and the longest duration among them."""
        for number, rows in buckets:
            if rows:
                self._buckets[number] = self._buckets.get(number, 0) + rows
                self.rows += rows
        self.additions += 1
        self.max_ms = max(self.max_ms, max_ms)

    @property
    def buckets(self) -> tuple[tuple[int, int], ...]:
        """Returns numbers and rows of the buckets, in order. Copies them in one step, because another thread may be counting."""
        return tuple(sorted(dict(self._buckets).items()))


class _Windows(NamedTuple):
    until_s: float
    ended: Digest
    before: Digest
    current: Digest

    def at(self, now: float) -> "_Windows":
        """Returns the durations with windows moved to `now`."""
        if now < self.until_s:
            return self
        ended = _together(self.ended, self.before)
        if now < self.until_s + RECENT_S:
            return _Windows(now + RECENT_S, ended, self.current, Digest())
        return _Windows(now + RECENT_S, _together(ended, self.current), Digest(), Digest())


class RecentDigest:
    """Quantiles of recent durations, which people ask for, and of all durations since the start, for measurements that subtract two
    readings.

    The recent part covers between `RECENT_S` and twice that time. One thread may add while others read.
    """

    def __init__(self) -> None:
        self._windows = _Windows(-math.inf, Digest(), Digest(), Digest())

    @property
    def total(self) -> Digest:
        """Returns all durations since the start."""
        return _together(*self._windows[1:])

    def add(self, now: float, duration_ms: float, rows: int = 1) -> None:
        """Adds rows that have taken `duration_ms`; `now` in monotonic seconds."""
        self._now(now).add(duration_ms, rows)

    def add_buckets(self, now: float, buckets: Iterable[tuple[int, int]], max_ms: float) -> None:
        """Adds rows counted elsewhere (`Digest.add_buckets`)."""
        self._now(now).add_buckets(buckets, max_ms)

    def recent(self, now: float) -> Digest:
        """Returns the recent durations."""
        windows = self._windows.at(now)
        return _together(windows.before, windows.current)

    def told(self, now: float) -> dict[str, Any]:
        """Returns figures for people and scripts: recent quantiles in ms, and rows by bucket since the start."""
        windows, recent = self._windows.at(now), self.recent(now)
        return {
            "rows": recent.rows,
            "p50_ms": round(recent.quantile(0.5), 4),
            "p99_ms": round(recent.quantile(0.99), 4),
            "max_ms": round(recent.max_ms, 4),
            "buckets": [list(bucket) for bucket in _together(*windows[1:]).buckets],
        }

    def _now(self, now: float) -> Digest:
        self._windows = self._windows.at(now)
        return self._windows.current


def _together(*digests: Digest) -> Digest:
    both = Digest()
    for digest in digests:
        both.add_buckets(digest.buckets, digest.max_ms)
    return both


def bucket_of(duration_ms: float) -> int:
    """Returns the number of a duration's bucket: bucket n holds durations from GROWTH**n to GROWTH**(n + 1) ms."""
    return math.floor(math.log(min(max(duration_ms, LEAST_MS), MOST_MS)) * PER_LOG)


def middle_ms(number: int) -> float:
    """Returns the duration in the middle of a bucket."""
    return float(GROWTH ** (number + 0.5))


def quantile(buckets: Mapping[int, int], share: float) -> float:
    """Returns a quantile of buckets that have been added up; 0 without rows."""
    wanted = share * sum(buckets.values())
    reached = 0
    for number in sorted(buckets):
        reached += buckets[number]
        if reached >= wanted and reached > 0:
            return middle_ms(number)
    return 0.0
