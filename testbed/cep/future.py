"""Dealers that know the future rows. They show how much a better forecast could gain; they are the best found, not a proven optimum."""

import bisect

import numpy as np

from sbon.dealing.dealer import Dealer, Silent
from sbon.dealing.instance_records import InstanceRecord, InstanceRecords, Setting
from sbon.dealing.replay import Outcome, Trace, replay
from sbon.dealing.turns import Turns
from sbon.types import FloatArray
from sbon_testbed.cep.stories import Operator

CHANCES = (10.0, 100.0, 1000.0)


class Coming:
    """A forecast with the true future rates."""

    def __init__(self, trace: Trace, kinds: int) -> None:
        self._at = [trace.at_s[trace.kind == kind] for kind in range(kinds)]

    def arrived(self, at_s: float, kind: int) -> None:
        """Ignores the row, as the future is known."""

    def upper(self, now: float, width_s: float, intervals: int) -> FloatArray:
        """Returns the true rates of the next intervals, (kinds, intervals)."""
        edges = now + width_s * np.arange(intervals + 1)
        return np.array([np.diff(np.searchsorted(at, edges)) for at in self._at]) / width_s


class LastThatHolds(Silent):
    """Deals a window to the instance that closes last among those where no row of its windows, with this one, will be late."""

    def __init__(self, setting: Setting, records: InstanceRecords, trace: Trace) -> None:
        super().__init__(setting, records)
        assert setting.law is not None
        self._law = setting.law
        self._at, self._kind, self._opens = trace.at_s.tolist(), trace.kind.tolist(), (trace.closes_s > 0).tolist()

    def deal(self, at_s: float, closes_s: float) -> int:
        """Returns that instance; the one with the least peak if rows will be late on all."""
        records = self.records.of
        peaks: dict[int, float] = {}
        for number in sorted(range(len(records)), key=lambda one: (-records[one].until_s, records[one].backlog_s(at_s))):
            peaks[number] = self._peak_s(records[number], at_s, closes_s)
            if peaks[number] <= self.setting.bound_s:
                return number
        return min(peaks, key=lambda one: peaks[one])

    def _peak_s(self, record: InstanceRecord, now: float, closes_s: float) -> float:
        """Returns the greatest latency of a row until the window closes. Rows that windows count are ignored, as faces have none."""
        law = self._law.kinds
        first = bisect.bisect_left(self._at, now)
        last = bisect.bisect_right(self._at, closes_s)
        closes = [one.closes_s for one in record.windows] + [closes_s]
        busy, peak = max(now, record.busy_until_s), 0.0
        for place in range(first, last):
            at_s, one = self._at[place], law[self._kind[place]]
            windows = len(closes) - bisect.bisect_left(closes, at_s)
            opening = place == first or (at_s == now and self._opens[place])
            busy = max(busy, at_s) + one.cost_s(opening, windows, 0.0)
            peak = max(peak, busy - at_s)
        return peak


def known_future(trace: Trace, operator: Operator, bound_s: float, instances: int) -> Outcome:
    """Returns the outcome with the fewest late rows, and of these the one with the fewest rows sent."""
    setting = operator.setting(bound_s, trace.scope_s, instances, knows_law=True)
    outcomes = []
    if bound_s > trace.scope_s:
        outcomes.append(replay(trace, setting, operator.law, lambda told, records: LastThatHolds(told, records, trace)))
    else:
        coming = Coming(trace, len(operator.opens))

        def make(chance: float) -> Outcome:
            def in_turn(told: Setting, records: InstanceRecords) -> Dealer:
                return Turns(told, records, coming, chance=chance)

            return replay(trace, setting, operator.law, in_turn)

        outcomes += map(make, CHANCES)
    return min(outcomes, key=lambda one: (one.over, one.rows_sent))
