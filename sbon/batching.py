"""How large batches are and how often they leave: arithmetic on measured costs.

A batch costs something whatever its size (a call of polars, a few hops between threads), and something for each row. Small batches waste
the first, large ones make everything behind them wait. So a batch is as large as what one quantum of time can take, no larger; and a slow
source pauses between two batches for as long as keeps the work on them below a share of one core, no longer.
"""

import math

ROWS_AT_FIRST = 4096
"""Rows of a batch while nothing is known of what they cost."""
GROWTH = 4
"""A batch is at most so many times as large as the last one: what the next row costs is known only near the sizes that were tried."""
_WEIGHT = 0.125
"""Of the latest batch in what is smoothed: a change of load shows within some batches, one unlucky batch does not."""
_SPREAD_MIN = 0.01
"""Sizes of batches tell fixed cost and cost of rows apart if their variance is above this share of their squared mean."""
_STEEPNESS_MIN = 0.1
"""A row costs at least this share of what it would if nothing were fixed: measurements scatter, and sizes grow step by step."""


class Cost:
    """What batches cost lately, in seconds of wall time: something for each batch, and something for each row, fitted by least squares.

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
        """Mean of a batch, whatever its size."""
        self.per_row_s = 0.0
        """Of one more row."""
        self._rows = self._squares = self._rows_seconds = 0.0
        self._last = -1

    def took(self, rows: int, seconds: float) -> None:
        """A batch of so many rows took so long."""
        weight = _WEIGHT if self._last >= 0 else 1.0
        self._last = rows
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
        """A batch has shown it."""
        return self._last >= 0

    def expected_s(self, rows: int) -> float:
        """What a batch of so many rows will cost; infinite before the first one has shown it."""
        if not self.is_known:
            return math.inf
        return max(0.0, self.per_batch_s + self.per_row_s * (rows - self._rows))

    def rows_within(self, seconds: float, most: int) -> int:
        """Rows of the next batch, so that it takes about that long: at least 1, at most `most`.

        Where what every batch costs is more than half of that already, smaller ones would only waste more: the rows get half. Where it is
        more than twice that (a sink that writes a whole file anew), the rows get as much as it: each smaller batch would take as long.
        """
        if self._rows <= 0:
            return min(ROWS_AT_FIRST, most)
        fixed_s = self.per_batch_s - self.per_row_s * self._rows
        rows_s = fixed_s if fixed_s > 2 * seconds else seconds - min(fixed_s, seconds / 2)
        fits = rows_s / self.per_row_s if self.per_row_s > 0 else most
        return max(1, int(min(fits + 0.5, max(ROWS_AT_FIRST, GROWTH * self._last), most)))


def pause_s(cost_s: float, share: float, least_s: float, most_s: float) -> float:
    """Pause between two batches that cost `cost_s` each, so that they take at most `share` of a core; within the bounds, `most_s` first.

    Examples
    --------
    >>> pause_s(0.0005, 0.25, 0.001, 0.05)
    0.002
    """
    return min(most_s, max(least_s, cost_s / share))
