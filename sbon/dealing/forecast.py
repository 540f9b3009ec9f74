"""Rows to expect in the coming scope, by kind: as lately, as in the past that was most like lately, or as the worse of long and short ago.

A dealer's error in a forecast costs either copies or the bound, so a forecast here is an upper edge: the dealer's own margins are for
chance, not for trends.
"""

import math
from collections import deque
from typing import Protocol

import numpy as np

from sbon.dealing.books import Setting
from sbon.types import FloatArray

PAST_MAX = 4096
"""Intervals remembered."""


class Forecaster(Protocol):
    """Says what to be prepared for."""

    def arrived(self, at_s: float, kind: int) -> None:
        """Counts a row. Times never go back."""

    def upper(self, now: float, width_s: float, intervals: int) -> FloatArray:
        """Returns rows per second to be prepared for in the coming intervals, (kinds, intervals); the caller may change them."""


class Counts:
    """Counts rows of each kind by interval.

    Parameters
    ----------
    kinds : number of kinds
    width_s : of an interval
    """

    def __init__(self, kinds: int, width_s: float) -> None:
        self.width_s = width_s
        self._begun: int | None = None
        self._number = 0
        self._now = [0] * kinds
        self._past = np.zeros((kinds, 2 * PAST_MAX))
        self._length = 0

    def arrived(self, at_s: float, kind: int) -> None:
        """Counts a row; the first interval begins with the first row."""
        self.advance(at_s)
        self._now[kind] += 1

    def advance(self, now: float) -> None:
        """Ends intervals that are over."""
        number = int(now // self.width_s)
        if self._begun is None:
            self._begun = self._number = number
        for _ in range(min(number - self._number, PAST_MAX)):
            if self._length == 2 * PAST_MAX:
                self._past[:, :PAST_MAX] = self._past[:, PAST_MAX:]
                self._length = PAST_MAX
            self._past[:, self._length] = self._now
            self._length += 1
            self._now = [0] * len(self._now)
        self._number = max(self._number, number)

    @property
    def ended(self) -> int:
        """Number of the latest interval that has ended, from 0 of the clock."""
        return self._number - 1

    @property
    def past(self) -> FloatArray:
        """Counts of the intervals that have ended, the latest last; (kinds, intervals)."""
        return self._past[:, max(0, self._length - PAST_MAX) : self._length]


class Steady:
    """Rates that stay what they are: the mean over long, or what the last moments leave no doubt about, if that is more.

    Parameters
    ----------
    long, short : scopes that means are over
    doubt : deviations of a Poisson count by which the short mean is taken to be less than it was
    """

    LITTLE = 100
    """Intervals, ten scopes, over which a mean is still in doubt."""

    def __init__(self, setting: Setting, *, long: float = 60.0, short: float = 2.0, doubt: float = 0.5) -> None:
        self._counts = Counts(len(setting.opens), setting.scope_s / 10)
        self._long, self._short, self._doubt = round(10 * long), round(10 * short), doubt
        self._at_s = -math.inf
        self._rates = [0.0] * len(setting.opens)

    def arrived(self, at_s: float, kind: int) -> None:
        """Counts a row."""
        self._counts.arrived(at_s, kind)

    def rates(self, now: float) -> list[float]:
        """Returns rows per second to be prepared for, by kind."""
        if now >= self._at_s + self._counts.width_s:
            self._counts.advance(now)
            self._at_s = now
            self._rates = self._mean()
        return self._rates

    def upper(self, now: float, width_s: float, intervals: int) -> FloatArray:
        """Returns the same for the coming intervals, (kinds, intervals)."""
        found = np.empty((len(self._rates), intervals))
        found[:] = np.array(self.rates(now))[:, None]
        return found

    def _mean(self) -> list[float]:
        past, width_s = self._counts.past, self._counts.width_s
        length = past.shape[1]
        if not length:
            return [1 / width_s] * len(past)
        long, short = past[:, -self._long :], past[:, -self._short :]
        length, raised = long.shape[1], 2 * min(1.0, self.LITTLE / long.shape[1])
        found = []
        for total, count in zip(long.sum(axis=1).tolist(), short.sum(axis=1).tolist(), strict=True):
            # A mean over little is raised by two deviations.
            mean = (total + math.sqrt(total + 1) * raised) / (length * width_s)
            sure = max(0.0, count - self._doubt * math.sqrt(count + 1)) / (short.shape[1] * width_s)
            found.append(max(mean, sure))
        return found


class Course:
    """Rates as they were lately, grown on if they have surely grown; or as they went on after the past moment whose course was most like
    the latest, where that has been the better forecast.

    Parameters
    ----------
    intervals : in a scope
    level : intervals of the latest mean
    course : blocks of `BLOCK` intervals that are compared
    """

    BLOCK = 5
    ALIKE = 2.0
    """Greatest mean of squared differences, in those that chance makes between counts of equal rate, of two courses that are alike."""
    SURE = 2.0
    """Deviations that growth must be above 0 to be believed."""
    GROWTH_MAX = 2.0
    MEMORY = 100.0
    """Intervals after which the weight of an error has fallen to 1 / e."""

    def __init__(self, setting: Setting, *, intervals: int = 25, level: int = 10, course: int = 6) -> None:
        kinds = len(setting.opens)
        self._counts = Counts(kinds, setting.scope_s / intervals)
        self._intervals, self._level, self._course = intervals, level, course
        self._rates = np.zeros((kinds, intervals))
        self._made: list[deque[tuple[float, float]]] = [deque() for _ in range(kinds)]
        """Rows that the two forecasts had for the scope that followed, for each interval whose scope is not over."""
        self._errors = np.zeros((kinds, 2))
        self._done = -1

    def arrived(self, at_s: float, kind: int) -> None:
        """Counts a row."""
        self._counts.arrived(at_s, kind)

    def upper(self, now: float, width_s: float, intervals: int) -> FloatArray:
        """Returns rows per second to be prepared for in the coming intervals, (kinds, intervals).

        The intervals are those of the forecast: a scope, in as many as it was made with.
        """
        self._counts.advance(now)
        if self._counts.ended > self._done:
            self._done = self._counts.ended
            for kind, counts in enumerate(self._counts.past):
                self._rates[kind] = self._forecast(kind, counts) / self._counts.width_s
        return self._rates.copy()

    def _forecast(self, kind: int, counts: FloatArray) -> FloatArray:
        """Returns the rows of each coming interval by the better of both forecasts."""
        lately = self._lately(counts)
        alike = self._after_alike(counts)
        made = self._made[kind]
        made.append((float(lately.sum()), float((lately if alike is None else alike).sum())))
        if len(made) > self._intervals:
            came = float(counts[-self._intervals :].sum()) + 1
            keep = math.exp(-1 / self.MEMORY)
            for number, one in enumerate(made.popleft()):
                self._errors[kind, number] = keep * self._errors[kind, number] + math.log(came / (one + 1)) ** 2
        return alike if alike is not None and self._errors[kind, 1] <= self._errors[kind, 0] else lately

    def _lately(self, counts: FloatArray) -> FloatArray:
        level = self._level
        latest = float(counts[-level:].sum()) + 1
        found = np.full(self._intervals, latest / max(1, min(level, len(counts))))
        if len(counts) >= 2 * level:
            before = float(counts[-2 * level : -level].sum()) + 1
            growth = math.log(latest / before) - self.SURE * math.sqrt(1 / latest + 1 / before)
            if growth > 0:
                ahead = (np.arange(self._intervals) + 0.5 + level / 2) / level
                found *= np.minimum(self.GROWTH_MAX, np.exp(growth * ahead))
        return found

    def _after_alike(self, counts: FloatArray) -> FloatArray | None:
        """Returns what came in the intervals after the moment most like now, or None."""
        block, span, intervals = self.BLOCK, self.BLOCK * self._course, self._intervals
        if len(counts) < 2 * span + intervals:
            return None
        totals = np.concatenate([[0.0], np.cumsum(counts)])
        # roots[e] is of the block that ends at e; the root of a Poisson count has a variance of 1/4 at any rate.
        roots = np.sqrt(totals[block:] - totals[:-block] + 0.375)
        ends = np.arange(span - block, len(roots) - 1 - intervals)
        back = block * np.arange(self._course)
        now = roots[len(roots) - 1 - back]
        apart = ((roots[ends[:, None] - back] - now) ** 2).mean(axis=1) / 0.5
        best = int(np.argmin(apart))
        if apart[best] > self.ALIKE:
            return None
        # What came after it and after its neighbours, so that the noise of single intervals cancels out.
        near = ends[max(0, best - 2) : best + 3] + block
        after = np.array([counts[end : end + intervals] for end in near]).mean(axis=0)
        found: FloatArray = np.convolve(np.pad(after, block // 2, mode="edge"), np.full(block, 1 / block), mode="valid")
        return found
