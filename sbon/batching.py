"""How large batches are and how often they leave: arithmetic on measured costs.

A batch costs something whatever its size (a call of polars, a few hops between threads), and something for each row. Small batches waste
the first, large ones make everything behind them wait. So a batch is as large as what one quantum of time can take, no larger; and a slow
source pauses between two batches for as long as keeps the work on them below a share of one core, no longer.
"""

ROWS_AT_FIRST = 4096
"""Rows of a batch while nothing is known of what they cost."""
GROWTH = 4
"""A batch is at most so many times as large as the last one: what the next row costs is known only near the sizes that were tried."""
_WEIGHT = 0.25
"""Of the latest batch in what is smoothed: a change of load shows within some batches, one unlucky batch does not."""

_ROWS_TELLING = 1024
_SECONDS_TELLING = 0.002
"""What smaller and cheaper batches cost is what every batch costs, and says nothing of rows."""


class Cost:
    """What batches cost lately, in seconds of wall time.

    Examples
    --------
    >>> cost = Cost()
    >>> cost.took(10_000, 0.001)
    >>> cost.rows_within(0.002, 131_072)
    20000
    """

    __slots__ = ("_rows", "per_batch_s", "per_row_s")

    def __init__(self) -> None:
        self.per_batch_s = 0.0
        """Smoothed, of batches of any size."""
        self.per_row_s = 0.0
        """Smoothed, with its share of what a batch costs whatever its size; 0 while no batch has been large enough to tell."""
        self._rows = 0

    def took(self, rows: int, seconds: float) -> None:
        """A batch of so many rows took so long."""
        self.per_batch_s = seconds if not self.per_batch_s else self.per_batch_s + _WEIGHT * (seconds - self.per_batch_s)
        if rows >= _ROWS_TELLING or seconds >= _SECONDS_TELLING:
            per_row_s = seconds / max(1, rows)
            # A larger batch shares the fixed cost among more rows: what smaller ones cost a row says nothing any more.
            known = self.per_row_s if self._rows and rows < 2 * self._rows else per_row_s
            self.per_row_s = known + _WEIGHT * (per_row_s - known)
            self._rows = rows

    def rows_within(self, seconds: float, most: int) -> int:
        """Rows of the next batch, so that it takes about that long: at least 1, at most `most`."""
        if not self._rows:
            return min(ROWS_AT_FIRST, most)
        fits = seconds / self.per_row_s if self.per_row_s > 0 else most
        return max(1, int(min(fits, max(ROWS_AT_FIRST, GROWTH * self._rows), most)))


def pause_s(cost_s: float, share: float, least_s: float, most_s: float) -> float:
    """Pause between two batches that cost `cost_s` each, so that they take at most `share` of a core; within the bounds, `most_s` first.

    Examples
    --------
    >>> pause_s(0.0005, 0.25, 0.001, 0.05)
    0.002
    """
    return min(most_s, max(least_s, cost_s / share))
