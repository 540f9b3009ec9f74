"""Deals in turn to the least number of instances whose tail keeps the bound (`turns`).

An instance that gets many windows in a row has windows of one age, which are all old at once. If windows are dealt in turn, each instance
has windows of all ages; with two copies of each row, the peak is halved. The number of instances in turn, k, is reviewed about fifty times
per scope. A review assumes that the windows of the coming scope are dealt to k instances. Each instance's windows, and the rows that they
have seen or will see by a forecast, give the cost of a row; the tail (`sbon.dealing.tail`) then bounds the probability that a row is late.
Rows that close a window need no forecast: they come when open windows close.
"""

import math

import numpy as np

from sbon.cost.overlap import OverlapLaw
from sbon.dealing.dealer import Silent
from sbon.dealing.forecast import Forecaster
from sbon.dealing.instance_records import InstanceRecords, Setting
from sbon.dealing.tail import allowed, log_tail
from sbon.types import FloatArray

INTERVALS = 25
"""Intervals of the coming scope."""
REVIEWS = 50
"""Reviews in a scope."""
NO_HELP = 0.5
"""Decrease of the logarithm of the probability that is too small to be worth another instance."""


class Turns(Silent):
    """Deals in turn to the first k instances.

    Parameters
    ----------
    forecaster : rows to be prepared for, in `INTERVALS` intervals of a scope
    chance : greatest expected number of late rows in a scope, by the tail. Real numbers are far lower: with 10, no row is late in hours
    """

    def __init__(self, setting: Setting, records: InstanceRecords, forecaster: Forecaster, *, chance: float = 10.0) -> None:
        super().__init__(setting, records)
        self.forecaster, self.chance = forecaster, chance
        self.k = 1
        self._turn = 0
        self._review_s = -math.inf

    def arrived(self, at_s: float, kind: int) -> None:
        """Counts the row for the forecast."""
        self.forecaster.arrived(at_s, kind)

    def deal(self, at_s: float, closes_s: float) -> int:
        """Returns the next one of the first k instances."""
        if at_s >= self._review_s:
            scope_s = closes_s - at_s
            law = self.records.learn(at_s)
            self.k = self.setting.instances if law is None else self.least(law, at_s, scope_s)
            self._review_s = at_s + scope_s / REVIEWS
        self._turn = (self._turn + 1) % min(self.k, self.setting.instances)
        return self._turn

    def least(self, law: OverlapLaw, now: float, scope_s: float) -> int:
        """Returns the least number of instances that keeps the bound over the coming scope."""
        width_s = scope_s / INTERVALS
        marks, opens = self._held(now, width_s)
        rates = self.forecaster.upper(now, width_s, INTERVALS)
        closing = opens.sum(axis=0) / width_s
        for kind, closes in enumerate(self.setting.closes):
            if closes:
                rates[kind] = closing
        new = sum((rates[kind] * width_s for kind, one in enumerate(self.setting.opens) if one), np.zeros(INTERVALS))
        counted = sum((rates[kind] * width_s for kind, one in enumerate(self.setting.counted) if one), np.zeros(INTERVALS))
        # At the middle of each interval: windows that are open then, and the counted rows that they have seen.
        seen = self.records.seen + np.cumsum(counted) - counted / 2
        held = opens[:, ::-1].cumsum(axis=1)[:, ::-1] - opens / 2
        pairs = held * seen - (marks[:, ::-1].cumsum(axis=1)[:, ::-1] - marks / 2)
        come = np.cumsum(new) - new / 2
        come_marks = np.cumsum(new * seen) - new * seen / 2
        come_pairs = come * seen - come_marks
        begun = np.array([record.backlog_s(now) for record in self.records.of])
        rows = float(rates.sum()) * width_s
        limit = allowed(rows, self.chance)
        found: dict[int, float] = {}

        def worst(k: int) -> float:
            """Returns the tail of the worst instance and interval if windows are dealt to k instances in turn."""
            if k not in found:
                share = (np.arange(self.setting.instances) < k)[:, None] / k
                windows, all_pairs = held + share * come, pairs + share * come_pairs
                busy = (windows.max(axis=1) > 0) | (share[:, 0] > 0)
                costs = np.array(
                    [
                        one.row_s + one.window_s * windows[busy] + one.pair_s * all_pairs[busy] + (one.opening_s if opening else 0.0)
                        for one, opening in zip(law.kinds, self.setting.opens, strict=True)
                    ]
                )
                found[k] = float(log_tail(rates, costs, width_s, begun[busy], self.setting.bound_s).max())
            return found[k]

        def carries(k: int) -> bool:
            """Tells whether k instances keep the bound once nothing waits, and all open windows have been dealt in turn."""
            costs = np.array(
                [
                    one.row_s + (one.window_s * come[-1] + one.pair_s * come_pairs[-1]) / k + (one.opening_s if opening else 0.0)
                    for one, opening in zip(law.kinds, self.setting.opens, strict=True)
                ]
            )
            later, steady = np.repeat(rates[:, -1:], INTERVALS, axis=1), np.repeat(costs[:, None, None], INTERVALS, axis=2)
            return float(log_tail(later, steady, width_s, np.zeros(1), self.setting.bound_s).max()) <= limit

        k = min(self.k, self.setting.instances)
        if worst(k) <= limit:
            while k > 1 and worst(k - 1) <= limit:
                k -= 1
            return k
        while k < self.setting.instances and worst(k) > limit:
            k += 1
        if worst(k) <= limit:
            return k
        # No number keeps the bound, because of windows that are open already: use more instances only if that helps, now or later.
        numbers = range(1, self.setting.instances + 1)
        best = min(worst(one) for one in numbers)
        return next((one for one in numbers if worst(one) <= best + NO_HELP and carries(one)), numbers[-1])

    def _held(self, now: float, width_s: float) -> tuple[FloatArray, FloatArray]:
        """Returns the marks and numbers of the open windows that close in each coming interval, by instance; (instances, intervals)."""
        marks, opens = np.zeros((2, self.setting.instances, INTERVALS))
        for number, record in enumerate(self.records.of):
            if record.open:
                closes = np.array(record.closes_s)
                place = np.clip(((closes - now) / width_s).astype(np.int64), 0, INTERVALS - 1)
                opens[number] = np.bincount(place, minlength=INTERVALS)
                marks[number] = np.bincount(place, np.array(record.marks_of), minlength=INTERVALS)
        return marks, opens
