"""Deals to the open instance that closes last of those that keep the bound (`last`).

Where the bound outlasts windows, an instance may fall behind by many windows and make up for it later, without windows. What costs copies
is each instance's time with windows. So instances are tried in the order in which their last window closes, latest first: a window adds
the time by which it closes later than that. One that keeps the bound with the new window and without later ones gets it; if none does, the
one whose rows are least likely to be late.
"""

import math
from collections.abc import Sequence

import numpy as np

from sbon.cost.overlap import OverlapLaw
from sbon.dealing.books import Book, Books, Setting
from sbon.dealing.dealer import Silent
from sbon.dealing.forecast import Forecaster
from sbon.dealing.tail import THETAS, OneTail, allowed, log_tails
from sbon.types import FloatArray

INTERVALS = 20
"""Intervals of the scope of a window."""
_MIDDLES = np.arange(INTERVALS) + 0.5
_MIDDLES_LIST = _MIDDLES.tolist()


class Last(Silent):
    """Deals to the open instance that closes last.

    Parameters
    ----------
    chance : that any row in the scope of a window may be late with
    """

    def __init__(self, setting: Setting, books: Books, forecaster: Forecaster, *, chance: float = 1e-3) -> None:
        super().__init__(setting, books)
        self.forecaster = forecaster
        self._limit = allowed(1.0, chance)
        self._counted = np.array(setting.counted)
        self._law: OverlapLaw | None = None
        self._costs = np.zeros((3, len(setting.opens), 1))
        """Costs of a row, a window and a pair by this law; (3, kinds, 1)."""
        self._ones: list[OneTail] = []
        self._one: OneTail | None = None
        """The theta that was best lately; None where windows remember rows, so that these cost more in some than in others."""

    def arrived(self, at_s: float, kind: int) -> None:
        """Counts the row for the forecast."""
        self.forecaster.arrived(at_s, kind)

    def deal(self, at_s: float, closes_s: float) -> int:
        """Returns the open instance that closes last of those that keep the bound."""
        scope_s = closes_s - at_s
        width_s = scope_s / INTERVALS
        rates = self.forecaster.upper(at_s, width_s, INTERVALS)
        books = self.books.of
        law = self.books.learn(at_s)
        if law is None:
            return min(range(len(books)), key=lambda one: (books[one].open, books[one].backlog_s(at_s)))
        self._take(law)
        columns, kept = rates.T.tolist(), -1
        doubtful: list[int] = []
        for number in sorted(range(len(books)), key=lambda one: (-books[one].until_s, books[one].backlog_s(at_s))):
            if self._one is not None and self._is_kept(self._one, law, books[number], columns, at_s, width_s):
                kept = number
                break
            doubtful.append(number)
        # Another theta may show that one of those before it keeps the bound, too.
        least, best = math.inf, kept
        for some in [doubtful] if self._one is not None else [doubtful[:1], doubtful[1:]]:
            for number, tail in zip(some, self.tails(law, [books[one] for one in some], rates, at_s, width_s), strict=True):
                if tail <= self._limit:
                    return number
                if kept < 0 and tail < least:
                    least, best = tail, number
        return best

    def tails(self, law: OverlapLaw, books: Sequence[Book], rates: FloatArray, now: float, width_s: float) -> list[float]:
        """Returns for each instance a bound on the logarithm of the probability that a row is late there if it gets the window."""
        if not books:
            return []
        setting, seen = self.setting, self.books.seen
        self._take(law)
        rows_s, windows_s, pairs_s = self._costs
        middles, costs = now + width_s * _MIDDLES, np.empty((len(rows_s), len(books), INTERVALS))
        for number, book in enumerate(books):
            is_open = np.array(book.closes_s)[:, None] >= middles
            windows = 1.0 + is_open.sum(axis=0)
            costs[:, number] = rows_s + windows_s * windows
            if True in setting.counted:
                come = rates[self._counted].sum(axis=0)
                marks = seen + np.array(book.marks_of) @ is_open
                costs[:, number] += pairs_s * (windows * (seen + np.cumsum(come) * width_s) - marks)
        begun_s = np.array([self._begun_s(law, book, now) for book in books])
        tails = log_tails(rates, costs, width_s, begun_s, setting.bound_s)
        found: list[float] = np.minimum.reduce(tails, axis=0).max(axis=-1).tolist()
        kept = next((number for number, tail in enumerate(found) if tail <= self._limit), None)
        if kept is not None and self._one is not None:
            self._one = self._ones[int(np.maximum.reduce(tails[:, kept], axis=-1).argmin())]
        return found

    def _take(self, law: OverlapLaw) -> None:
        """Takes a law: it is a new one now and then."""
        if law is self._law:
            return
        self._law = law
        self._costs = np.array([(one.row_s, one.window_s, one.pair_s) for one in law.kinds]).T[:, :, None]
        kinds = [(one.row_s, one.window_s) for one in law.kinds]
        self._ones = [OneTail(number, kinds, self.setting.bound_s) for number in range(THETAS)]
        if True not in self.setting.counted:
            self._one = self._ones[THETAS // 2 if self._one is None else self._one.number]

    def _begun_s(self, law: OverlapLaw, book: Book, now: float) -> float:
        """Returns the work that waits at an instance behind the row that opens the window: the dearest kind that can."""
        seen, opens = self.books.seen, self.setting.opens
        return book.backlog_s(now) + max(
            one.cost_s(True, book.open + 1, book.pairs(seen)) for one, does in zip(law.kinds, opens, strict=True) if does
        )

    def _is_kept(self, one: OneTail, law: OverlapLaw, book: Book, rates: list[list[float]], now: float, width_s: float) -> bool:
        """Tells whether one theta shows that the bound is kept. Where it does not, another one may."""
        closes, windows, passed = sorted(book.closes_s), [], 0
        for middle in _MIDDLES_LIST:
            while passed < len(closes) and closes[passed] < now + width_s * middle:
                passed += 1
            windows.append(1 + len(closes) - passed)
        return one.keeps(rates, windows, width_s, self._begun_s(law, book, now), self._limit)
