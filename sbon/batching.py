"""Chooses how large batches are and how often they leave, from measured costs.

A batch has a fixed cost (a call of polars, a few hops between threads) and a cost for each row. Small batches waste the fixed cost, large
batches delay everything behind them. So a batch is as large as fits into one quantum of time, and a slow source pauses between two batches
just long enough to keep the work on them below a share of one core.
"""

import math

ROWS_AT_FIRST = 4096
"""Rows of the first batch, while the cost of rows is unknown."""
GROWTH = 4
"""Largest ratio of a batch's size to the previous one's, because costs are known only near the sizes that were tried."""
_WEIGHT = 0.125
"""Weight of the latest batch in smoothed values: they follow a change of load within some batches, and one outlier changes them little."""
_SPREAD_MIN = 0.01
"""Least variance of batch sizes, as a share of their squared mean, that allows to separate fixed cost and cost per row."""
_STEEPNESS_MIN = 0.1
"""Least cost per row, as a share of the cost per row without any fixed cost, because measurements scatter and sizes grow step by step."""


class Cost:
    """Recent costs of batches, in seconds of wall time: a fixed cost per batch and a cost per row, fitted by least squares.

    Examples
    --------
    >>> cost = Cost()
    >>> for rows in (10_000, 20_000, 10_000, 20_000):
    ...     cost.took(rows, 0.001 + rows * 1e-7)
    >>> cost.rows_within(0.006, 131_072)
    50000
    """

    __slots__ = ("_last", "_rows", "_rows_seconds", "_squares", "per_batch_s", "per_row_s")

    def __init__(self) -> None:
        self.per_batch_s = 0.0
        """Mean fixed cost of a batch."""
        self.per_row_s = 0.0
        """Mean cost of one more row."""
        self._rows = self._squares = self._rows_seconds = 0.0
        self._last = -1

    def took(self, rows: int, seconds: float) -> None:
        """Records the rows and the duration of a batch. Once rows have been measured, batches without any (watermarks) do not count: in a
        long silence, the rows would be forgotten."""
        weight = _WEIGHT if self._last >= 0 else 1.0
        self._last = rows
        if not rows and self._rows > 0:
            return
        self.per_batch_s += weight * (seconds - self.per_batch_s)
        self._rows += weight * (rows - self._rows)
        self._squares += weight * (rows * rows - self._squares)
        self._rows_seconds += weight * (rows * seconds - self._rows_seconds)
        if self._rows > 0:
            steepest_s = self.per_batch_s / self._rows
            variance = self._squares - self._rows**2
            if variance > _SPREAD_MIN * self._rows**2:
                self.per_row_s = (self._rows_seconds - self._rows * self.per_batch_s) / variance
            elif not self.per_row_s:
                self.per_row_s = steepest_s
            self.per_row_s = min(max(self.per_row_s, _STEEPNESS_MIN * steepest_s), steepest_s)

    @property
    def is_known(self) -> bool:
        """Tells whether a batch has been measured."""
        return self._last >= 0

    def expected_s(self, rows: int) -> float:
        """Returns the expected cost of a batch; infinite before the first measurement."""
        if not self.is_known:
            return math.inf
        return max(0.0, self.per_batch_s + self.per_row_s * (rows - self._rows))

    def rows_within(self, seconds: float, most: int) -> int:
        """Returns the rows of the next batch, so that it takes about `seconds`: at least 1, at most `most`.

        If the fixed cost exceeds half of `seconds`, the rows get half of `seconds`, because smaller batches would only waste more. If the
        fixed cost exceeds twice `seconds` (a sink that rewrites a whole file), the rows get as much time as the fixed cost, because a
        smaller batch would hardly be faster.
        """
        if self._rows <= 0:
            return min(ROWS_AT_FIRST, most)
        fixed_s = self.per_batch_s - self.per_row_s * self._rows
        rows_s = fixed_s if fixed_s > 2 * seconds else seconds - min(fixed_s, seconds / 2)
        fits = rows_s / self.per_row_s if self.per_row_s > 0 else most
        return max(1, int(min(fits + 0.5, max(ROWS_AT_FIRST, GROWTH * self._last), most)))


def pause_s(cost_s: float, share: float, least_s: float, most_s: float) -> float:
    """Returns the pause between two batches that cost `cost_s` each, so that they take at most `share` of a core.

    The pause is at least `least_s` and at most `most_s`; if these contradict, `most_s` wins.

    Examples
    --------
    >>> pause_s(0.0005, 0.25, 0.001, 0.05)
    0.002
    """
    return min(most_s, max(least_s, cost_s / share))
