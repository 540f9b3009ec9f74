"""Forecasts the rows of the coming scope, by kind: from a long or a short mean (`Steady`), or from the latest rates or a similar past
(`Course`).

A forecast that is too high costs copies; one that is too low breaks the bound. So a forecast here is an upper limit: the dealer's own
margins are for chance, not for trends.
"""

import math
from collections import deque
from typing import Protocol

import numpy as np

from sbon.dealing.instance_records import Setting
from sbon.types import FloatArray

PAST_MAX = 4096
"""Intervals remembered."""


class Forecaster(Protocol):
    """Forecasts the rates for which a dealer should be prepared."""

    def arrived(self, at_s: float, kind: int) -> None:
        """Counts a row. Times never go back."""

    def upper(self, now: float, width_s: float, intervals: int) -> FloatArray:
        """Returns rows per second to be prepared for in the coming intervals, (kinds, intervals); the caller may change them."""


class Counts:
    """Counts rows of each kind by interval.

    Parameters
    ----------
    kinds : number of kinds
    width_s : length of an interval
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
        """Returns the number of the latest interval that has ended, counted from 0 of the clock."""
        return self._number - 1

    @property
    def past(self) -> FloatArray:
        """Returns the counts of the intervals that have ended, the latest last; (kinds, intervals)."""
        return self._past[:, max(0, self._length - PAST_MAX) : self._length]


class Steady:
    """Forecasts constant rates: the mean over a long time, or a safe lower estimate from a short time, if that is greater.

    Parameters
    ----------
    long, short : lengths of both times, in scopes
    doubt : number of standard deviations of a Poisson count by which the short count is reduced
    """

    LITTLE = 100
    """Number of intervals (ten scopes) up to which the long mean is raised by two deviations; over more intervals, it is raised by less."""

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
        """Returns `rates` for each of the coming intervals, (kinds, intervals)."""
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
            # A mean over few intervals is raised by two deviations.
            mean = (total + math.sqrt(total + 1) * raised) / (length * width_s)
            sure = max(0.0, count - self._doubt * math.sqrt(count + 1)) / (short.shape[1] * width_s)
            found.append(max(mean, sure))
        return found


class Course:
    """Forecasts the latest rates, with further growth if they have surely grown; or the rates that followed the past moment whose course
    was most like the latest one, if such forecasts have been better.

    Parameters
    ----------
    intervals : number of intervals in a scope
    level : intervals of the latest mean
    course : number of blocks of `BLOCK` intervals that are compared
    """

    BLOCK = 5
    ALIKE = 2.0
    """Greatest mean squared difference of two courses that are alike, as a multiple of the one that chance makes at equal rates."""
    SURE = 2.0
    """Number of standard deviations that growth must be above 0 to count as sure."""
    GROWTH_MAX = 2.0
    MEMORY = 100.0
    """Intervals after which the weight of an error has fallen to 1 / e."""

    def __init__(self, setting: Setting, *, intervals: int = 25, level: int = 10, course: int = 6) -> None:
        kinds = len(setting.opens)
        self._counts = Counts(kinds, setting.scope_s / intervals)
        self._intervals, self._level, self._course = intervals, level, course
        self._rates = np.zeros((kinds, intervals))
        self._made: list[deque[tuple[float, float]]] = [deque() for _ in range(kinds)]
        """Rows that the two forecasts had for the following scope, for each interval whose scope is not over."""
        self._errors = np.zeros((kinds, 2))
        self._done = -1

    def arrived(self, at_s: float, kind: int) -> None:
        """Counts a row."""
        self._counts.arrived(at_s, kind)

    def upper(self, now: float, width_s: float, intervals: int) -> FloatArray:
        """Returns rows per second to be prepared for in the coming intervals, (kinds, intervals).

        The intervals are always those of the constructor, a scope in all; `width_s` and `intervals` are ignored.
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
        """Returns the rows of the intervals after the past moment most like now; None if none is alike."""
        block, span, intervals = self.BLOCK, self.BLOCK * self._course, self._intervals
        if len(counts) < 2 * span + intervals:
            return None
        totals = np.concatenate([[0.0], np.cumsum(counts)])
        # roots[e] belongs to the block that ends at e; the root of a Poisson count has a variance of 1/4 at any rate.
        roots = np.sqrt(totals[block:] - totals[:-block] + 0.375)
        ends = np.arange(span - block, len(roots) - 1 - intervals)
        back = block * np.arange(self._course)
        now = roots[len(roots) - 1 - back]
        apart = ((roots[ends[:, None] - back] - now) ** 2).mean(axis=1) / 0.5
        best = int(np.argmin(apart))
        if apart[best] > self.ALIKE:
            return None
        # Averages the rows after this moment and after its neighbours, so that the noise of single intervals cancels out.
        near = ends[max(0, best - 2) : best + 3] + block
        after = np.array([counts[end : end + intervals] for end in near]).mean(axis=0)
        found: FloatArray = np.convolve(np.pad(after, block // 2, mode="edge"), np.full(block, 1 / block), mode="valid")
        return found
