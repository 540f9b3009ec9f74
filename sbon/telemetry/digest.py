"""Quantiles of durations in bounded memory: counts in buckets 2 percent wide, which add up over windows, sinks and agents."""

import math
from collections.abc import Mapping

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

    @property
    def buckets(self) -> tuple[tuple[int, int], ...]:
        """Numbers and rows of the buckets, in order."""
        return tuple(sorted(self._buckets.items()))


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
