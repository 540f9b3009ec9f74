"""Deals each window to the instance that closes last, of those that keep the bound (`last`).

If the bound is longer than windows are open, an instance may fall behind by many windows and catch up later, when it has none. Copies are
sent while an instance has windows. So instances are tried in the order in which their last window closes, latest first: a new window
extends the time with windows only by as much as it closes later. The first instance that keeps the bound with the new window, and without
later ones, gets it. If none does, the instance whose rows are least likely to be late gets it.
"""

import math
from collections.abc import Sequence

import numpy as np

from sbon.cost.overlap import OverlapLaw
from sbon.dealing.dealer import Silent
from sbon.dealing.forecast import Steady
from sbon.dealing.instance_records import InstanceRecord, InstanceRecords, Setting
from sbon.dealing.tail import THETAS, SteadyTails, allowed, log_tails
from sbon.types import FloatArray

INTERVALS = 20
"""Intervals of the scope of a window."""
_MIDDLES = np.arange(INTERVALS) + 0.5


class Last(Silent):
    """Deals to the instance that closes last, of those that keep the bound.

    Parameters
    ----------
    chance : greatest probability that any row in the scope of a window is late
    """

    def __init__(self, setting: Setting, records: InstanceRecords, forecaster: Steady, *, chance: float = 1e-3) -> None:
        super().__init__(setting, records)
        self.forecaster = forecaster
        self._limit = allowed(1.0, chance)
        self._counted = np.array(setting.counted)
        self._opening = [kind for kind, does in enumerate(setting.opens) if does]
        self._opening_s: dict[int, float] = {}
        """Cost of the dearest row that opens a window, by the number of open windows; only used if that number decides the cost."""
        self._law: OverlapLaw | None = None
        self._costs = np.zeros((3, len(setting.opens), 1))
        """Costs of a row, a window and a pair by this law; (3, kinds, 1)."""
        self._steady: SteadyTails | None = None
        """None if windows remember rows, so that a row costs more in some windows than in others."""
        self._theta = THETAS // 2
        """Number of the theta that was best lately."""

    def arrived(self, at_s: float, kind: int) -> None:
        """Counts the row for the forecast."""
        self.forecaster.arrived(at_s, kind)

    def deal(self, at_s: float, closes_s: float) -> int:
        """Returns the instance that closes last, of those that keep the bound; if none does, the one least likely to be late."""
        width_s = (closes_s - at_s) / INTERVALS
        records, rates = self.records.of, self.forecaster.rates(at_s)
        law = self.records.learn(at_s)
        if law is None:
            return min(range(len(records)), key=lambda one: (records[one].open, records[one].backlog_s(at_s)))
        self._take(law)
        kept, steady = -1, self._steady
        doubtful: list[int] = []
        hopeless: list[int] = []
        for _, _, number in sorted([(-record.until_s, record.backlog_s(at_s), number) for number, record in enumerate(records)]):
            record = records[number]
            if steady is not None:
                begun_s = self._begun_s(law, record, at_s)
                if begun_s > steady.hopeless_s:
                    hopeless.append(number)
                    continue
                if steady.keeps(self._theta, rates, _drops(record, at_s, width_s), width_s, begun_s):
                    kept = number
                    break
            doubtful.append(number)
        # Another theta may show that an instance tried before keeps the bound, too.
        least, best = math.inf, kept
        some = [doubtful, hopeless if kept < 0 else []] if steady is not None else [doubtful[:1], doubtful[1:]]
        for numbers in filter(None, some):
            for number, tail in zip(numbers, self.tails(law, [records[one] for one in numbers], at_s, width_s), strict=True):
                if tail <= self._limit:
                    return number
                if kept < 0 and tail < least:
                    least, best = tail, number
        return best

    def tails(self, law: OverlapLaw, records: Sequence[InstanceRecord], now: float, width_s: float) -> list[float]:
        """Returns for each instance a bound on the logarithm of the probability that a row is late there if it gets the window."""
        self._take(law)
        begun_s = [self._begun_s(law, record, now) for record in records]
        if self._steady is not None:
            drops = [_drops(record, now, width_s) for record in records]
            tails = self._steady.tails(self.forecaster.rates(now), drops, width_s, begun_s)
        else:
            rates = self.forecaster.upper(now, width_s, INTERVALS)
            tails = log_tails(rates, self._in_windows(records, rates, now, width_s), width_s, np.array(begun_s), self.setting.bound_s)
        found: list[float] = np.minimum.reduce(tails, axis=0).max(axis=-1).tolist()
        kept = next((number for number, tail in enumerate(found) if tail <= self._limit), None)
        if kept is not None:
            self._theta = int(np.maximum.reduce(tails[:, kept], axis=-1).argmin())
        return found

    def _in_windows(self, records: Sequence[InstanceRecord], rates: FloatArray, now: float, width_s: float) -> FloatArray:
        """Returns the cost of a row of each kind at each instance in each interval, by the rows that its windows will have seen then."""
        rows_s, windows_s, pairs_s = self._costs
        middles, costs = now + width_s * _MIDDLES, np.empty((len(rows_s), len(records), INTERVALS))
        come = rates[self._counted].sum(axis=0)
        for number, record in enumerate(records):
            is_open = np.array(record.closes_s)[:, None] >= middles
            windows = 1.0 + is_open.sum(axis=0)
            marks = self.records.seen + np.array(record.marks_of) @ is_open
            costs[:, number] = rows_s + windows_s * windows + pairs_s * (windows * (self.records.seen + np.cumsum(come) * width_s) - marks)
        return costs

    def _take(self, law: OverlapLaw) -> None:
        """Takes the current law, which changes now and then."""
        if law is self._law:
            return
        self._law = law
        self._costs = np.array([(one.row_s, one.window_s, one.pair_s) for one in law.kinds]).T[:, :, None]
        if True not in self.setting.counted:
            kinds = [(one.row_s, one.window_s) for one in law.kinds]
            self._steady = SteadyTails(kinds, self.setting.bound_s, INTERVALS, self._limit)
        self._opening_s = {}

    def _begun_s(self, law: OverlapLaw, record: InstanceRecord, now: float) -> float:
        """Returns the work that waits at an instance, with the row that opens the window, taken as the dearest kind that can."""
        found = self._opening_s.get(record.open) if self._steady is not None else None
        if found is None:
            pairs = record.pairs(self.records.seen)
            found = max(law.kinds[kind].cost_s(True, record.open + 1, pairs) for kind in self._opening)
            self._opening_s[record.open] = found
        return record.backlog_s(now) + found


def _drops(record: InstanceRecord, now: float, width_s: float) -> list[int]:
    """Returns, in order, the interval from which on each open window counts as closed: it is closed at the interval's middle."""
    return [min(INTERVALS, max(0, int((one - now) / width_s + 0.5))) for one in sorted(record.closes_s)]
