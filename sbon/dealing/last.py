"""Deals to the open instance that closes last of those that keep the bound (`last`).

Where the bound outlasts windows, an instance may fall behind by many windows and make up for it later, without windows. What costs copies
is each instance's time with windows. So instances are tried in the order in which their last window closes, latest first: a window adds
the time by which it closes later than that. One that keeps the bound with the new window and without later ones gets it; if none does, the
one whose rows are least likely to be late.
"""

import math

import numpy as np

from sbon.cost.overlap import OverlapLaw
from sbon.dealing.books import Book, Books, Setting
from sbon.dealing.dealer import Silent
from sbon.dealing.forecast import Forecaster
from sbon.dealing.tail import allowed, log_tail
from sbon.types import FloatArray

INTERVALS = 20
"""Intervals of the scope of a window."""
_MIDDLES = np.arange(INTERVALS) + 0.5


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
        least, best = math.inf, 0
        for number in sorted(range(len(books)), key=lambda one: (-books[one].until_s, books[one].backlog_s(at_s))):
            tail = self.tail(law, books[number], rates, at_s, width_s)
            if tail <= self._limit:
                return number
            if tail < least:
                least, best = tail, number
        return best

    def tail(self, law: OverlapLaw, book: Book, rates: FloatArray, now: float, width_s: float) -> float:
        """Returns a bound on the logarithm of the probability that a row is late at an instance that gets the window."""
        setting, seen = self.setting, self.books.seen
        if law is not self._law:
            self._law = law
            parts = [(one.row_s, one.window_s, one.pair_s) for one in law.kinds]
            self._costs = np.array(parts).T[:, :, None]
        rows_s, windows_s, pairs_s = self._costs
        middles = now + width_s * _MIDDLES
        is_open = np.array(book.closes_s)[:, None] >= middles
        windows = 1.0 + is_open.sum(axis=0)
        costs = rows_s + windows_s * windows
        if True in setting.counted:
            come = rates[self._counted].sum(axis=0)
            marks = seen + np.array(book.marks_of) @ is_open
            costs += pairs_s * (windows * (seen + np.cumsum(come) * width_s) - marks)
        # The row that opens the window: the dearest kind that can.
        opening_s = max(
            one.cost_s(True, book.open + 1, book.pairs(seen)) for one, opens in zip(law.kinds, setting.opens, strict=True) if opens
        )
        begun_s = np.array([book.backlog_s(now) + opening_s])
        return float(log_tail(rates, costs[:, None, :], width_s, begun_s, setting.bound_s).max())
