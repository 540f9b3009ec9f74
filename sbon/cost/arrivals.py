"""Records how rows arrive at a source or a port: rows by interval, gaps between rows, profile points, and a forecast.

An interval without arrivals between the first arrival and now is a known 0. Intervals before the first arrival are unknown and left out.
"""

import math
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np

from sbon.cost.moments import MomentCounter, Moments
from sbon.errors import ShapeError
from sbon.types import FloatArray

INTERVALS_MAX = 3600
"""Intervals kept by a recorder."""
SMOOTHINGS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Weights of the latest interval that a forecast chooses from."""


class Series(msgspec.Struct, frozen=True):
    """Arrivals by interval of equal width, all (d,). An interval without arrivals is a 0; one that was not observed is not in the series.

    Raises
    ------
    ShapeError
        The arrays differ in length, the width is not above 0, or a number is negative or not finite.
    """

    start_s: float
    """Start of the first interval."""
    width_s: float
    rows: FloatArray
    batches: FloatArray
    size_bytes: FloatArray

    def __post_init__(self) -> None:
        if not (0 < self.width_s < np.inf and abs(self.start_s) < np.inf):
            raise ShapeError(f"intervals of {self.width_s} s from {self.start_s}, expected finite and wider than 0")
        if not self.rows.shape == self.batches.shape == self.size_bytes.shape == (len(self.rows),):
            raise ShapeError(f"series of {self.rows.shape}, {self.batches.shape}, {self.size_bytes.shape}, expected the same length")
        for values in (self.rows, self.batches, self.size_bytes):
            if len(values) and not (values.min() >= 0 and values.max() < np.inf):
                raise ShapeError("a series with a number that is negative or not finite")

    def merged(self, count: int) -> "Series":
        """Returns the series in intervals `count` times as wide; a remainder at the start, too short for a wide interval, is left out.

        Raises
        ------
        ShapeError
            `count` is below 1.
        """
        if count < 1:
            raise ShapeError(f"intervals {count} times as wide, expected 1 at least")
        rest = len(self.rows) % count
        wide = [values[rest:].reshape(-1, count).sum(1) for values in (self.rows, self.batches, self.size_bytes)]
        return Series(self.start_s + rest * self.width_s, self.width_s * count, *wide)


def series_of(rows: FloatArray, width_s: float, *, start_s: float = 0.0, rows_per_batch: float = 1.0, row_bytes: float = 0.0) -> Series:
    """Returns a series of rows whose batches and bytes follow from the rows."""
    return Series(start_s, width_s, rows, np.ceil(rows / rows_per_batch), rows * row_bytes)


class Forecast(msgspec.Struct, frozen=True):
    """Rows expected in each of the coming intervals, (h,)."""

    width_s: float
    expected: FloatArray
    upper: FloatArray
    """Bound below which the rows of each coming interval stay with the requested probability, (h,)."""
    samples: int
    """Number of past intervals that the forecast rests on."""


class Arrivals:
    """Records arrivals at one source or port.

    Parameters
    ----------
    width_s : width of an interval
    """

    def __init__(self, width_s: float = 1.0) -> None:
        if not 0 < width_s < math.inf:
            raise ShapeError(f"intervals of {width_s} s, expected more than 0")
        self.width_s = width_s
        self._done: deque[tuple[float, float, float]] = deque(maxlen=INTERVALS_MAX)
        self._number: int | None = None
        """Number of the current interval; interval 0 starts at time 0 of the clock."""
        self._rows = self._batches = self._bytes = 0.0
        self._latest_s: float | None = None
        self._gaps = MomentCounter()

    def arrived(self, at_s: float, rows: int, size_bytes: int) -> None:
        """Records a batch. A time before the latest counts as the latest."""
        if rows <= 0:
            return
        at_s = at_s if self._latest_s is None else max(at_s, self._latest_s)
        self._advance(at_s)
        if self._latest_s is not None:
            self._gaps.add(at_s - self._latest_s)
        self._latest_s = at_s
        self._rows += rows
        self._batches += 1
        self._bytes += size_bytes

    def _advance(self, now: float) -> None:
        number = math.floor(now / self.width_s)
        if self._number is None:
            self._number = number
        if number > self._number:
            self._done.append((self._rows, self._batches, self._bytes))
            for _ in range(min(number - self._number - 1, INTERVALS_MAX)):
                self._done.append((0.0, 0.0, 0.0))
            self._rows = self._batches = self._bytes = 0.0
            self._number = number

    @property
    def gaps(self) -> Moments | None:
        """Moments of the gap between batches, in seconds; None before the second batch."""
        return self._gaps.moments

    def series(self, now: float, intervals: int) -> Series:
        """Returns up to `intervals` of the latest intervals that have ended, without the interval of the first arrival, in the middle of
        which recording began."""
        if self._number is None:
            return Series(0.0, self.width_s, *(np.zeros(0) for _ in range(3)))
        self._advance(max(now, self._number * self.width_s))
        begun = 0 if len(self._done) == INTERVALS_MAX else 1
        kept = list(self._done)[begun:]
        kept = kept[max(0, len(kept) - intervals) :]
        table = np.array(kept, dtype=np.float64).reshape(len(kept), 3)
        return Series((self._number - len(kept)) * self.width_s, self.width_s, *(table[:, place].copy() for place in range(3)))

    def profile(self, now: float, shares: Sequence[float]) -> FloatArray:
        """Returns the rates in rows per second below which an interval stays with these probabilities, (shares,).

        Raises
        ------
        ShapeError
            No interval has ended, or a share is not between 0 and 1.
        """
        rows = self.series(now, INTERVALS_MAX).rows
        if not len(rows) or not all(0 <= share <= 1 for share in shares):
            raise ShapeError(f"profile at {list(shares)} of {len(rows)} intervals, expected shares of 0 to 1, and an interval at least")
        found: FloatArray = np.quantile(rows, np.array(shares)) / self.width_s
        return found

    def forecast(self, now: float, intervals: int, share: float = 0.95) -> Forecast:
        """Returns the rows expected in each of the coming intervals, with an upper bound.

        Raises
        ------
        ShapeError
            No interval has ended: a source without history needs a declared rate. Or `share` is not between 0 and 1.
        """
        return forecast(self.series(now, INTERVALS_MAX), intervals, share)


def forecast(series: Series, intervals: int, share: float = 0.95) -> Forecast:
    """Forecasts the rows of the coming intervals by exponential smoothing, with the weight that gave the least squared errors so far.

    The upper bound h intervals ahead is the level plus an upper order statistic of the errors of past forecasts h ahead, so that it holds
    for any stationary distribution. With too few errors for the share, the bound is as far above their mean as Cantelli's inequality
    requires, with the level as the least standard deviation. Seasons are not modelled; they widen the bound.

    Raises
    ------
    ShapeError
        The series is empty, no interval is asked for, or `share` is not between 0 and 1.
    """
    rows = series.rows
    if not len(rows) or intervals < 1 or not 0 < share < 1:
        raise ShapeError(f"forecast of {intervals} intervals at {share} from {len(rows)}, expected 1 at least, and a share between 0 and 1")
    levels = min((_levels(rows, weight) for weight in SMOOTHINGS), key=lambda found: float(((rows[1:] - found[:-1]) ** 2).sum()))
    level = float(levels[-1])
    upper = np.empty(intervals)
    for ahead in range(1, intervals + 1):
        errors = np.sort(rows[ahead:] - levels[:-ahead])
        rank = math.ceil(share * (len(errors) + 1))
        if rank <= len(errors):
            edge = level + float(errors[rank - 1])
        else:
            mean, deviation = (float(errors.mean()), float(errors.std())) if len(errors) else (0.0, 0.0)
            edge = level + max(0.0, mean) + max(deviation, level) * math.sqrt(share / (1 - share))
        # A bound further ahead is never below a nearer one, which the noise of few errors could cause.
        upper[ahead - 1] = max(level, edge, upper[ahead - 2] if ahead > 1 else 0.0)
    return Forecast(series.width_s, np.full(intervals, level), upper, len(rows))


def _levels(rows: FloatArray, weight: float) -> FloatArray:
    """Returns the level after each interval, (d,); the level after the first interval is its rows."""
    found = np.empty(len(rows))
    level = float(rows[0])
    for place, value in enumerate(rows.tolist()):
        # The level starts as the mean of the first intervals, so that the very first one does not dominate it.
        level += max(weight, 1 / (place + 1)) * (value - level)
        found[place] = level
    return found
