"""Runs a stream through instances with any dealer, in virtual time; and the dealer that replays the past to choose between other dealers.

Rows wait at an instance in the order of their arrival, and a law gives their costs. There is no network and no clock. The evaluation uses
the same function with the true costs.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from sbon.cost.overlap import OverlapLaw
from sbon.dealing.dealer import Dealer, Silent
from sbon.dealing.instance_records import Finished, InstanceRecords, Setting, Window
from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray

MakeDealer = Callable[[Setting, InstanceRecords], Dealer]
Clock = Callable[[], float]
SAMPLED = 8
"""The cost of one row in this many is reported to dealers that do not need queues."""
FIRST = 30
"""Scopes before the first replay."""
WARMING = 2.0
"""Scopes at the beginning of a replay that are not counted, and least number of scopes that must be left to count."""
BETTER = 0.03
"""Share of copies that another dealer must save to be chosen."""


class Trace(msgspec.Struct, frozen=True):
    """A stream of rows in the order of their arrival; all (n,)."""

    at_s: FloatArray
    kind: IntArray
    closes_s: FloatArray
    """When the window that the row opens will close; 0: the row opens none. A row at that instant still belongs to the window."""

    def __post_init__(self) -> None:
        closing = self.closes_s[self.closes_s > 0]
        if not self.at_s.shape == self.kind.shape == self.closes_s.shape:
            raise ShapeError(f"rows of {self.at_s.shape}, {self.kind.shape}, {self.closes_s.shape}, expected the same length")
        if (np.diff(self.at_s) < 0).any() or (np.diff(closing) < 0).any():
            raise ShapeError("rows out of order, or windows that close in another order than they open")

    @property
    def scope_s(self) -> float:
        """Returns how long the first window is open, in s; 1 if there is none."""
        opens = np.flatnonzero(self.closes_s)
        return float(self.closes_s[opens[0]] - self.at_s[opens[0]]) if len(opens) else 1.0


class Outcome(msgspec.Struct, frozen=True):
    """The result of dealing a stream."""

    rows: int
    rows_sent: int
    """Copies of rows that were sent to instances."""
    sent_by_kind: tuple[int, ...]
    peak_s: float
    """Longest time from the arrival of a row until an instance has finished it."""
    over: int
    """Copies that took longer than the bound."""
    decisions: int
    decisions_s: float
    """Time that all decisions took, by the given clock."""


def replay(
    trace: Trace,
    setting: Setting,
    law: OverlapLaw,
    make: MakeDealer,
    *,
    clock: Clock = lambda: 0.0,
    seen: Callable[[int, int, float, float], None] | None = None,
    beaten: tuple[int, int] | None = None,
    from_s: float = -math.inf,
) -> Outcome:
    """Runs a stream through instances with a dealer, and returns the outcome.

    Parameters
    ----------
    law : what rows cost
    make : makes the dealer for its setting and records
    clock : times the decisions
    seen : called for each copy of a row: number of the row, instance, when it is finished, cost
    beaten : late and sent copies of another outcome. The replay stops when it is sure to be worse; `rows_sent` is then the least number
        that it would have sent
    from_s : rows before this instant only warm up; they are not counted
    """
    records = InstanceRecords(setting)
    dealer = make(setting, records)
    costs = [(one.row_s, one.opening_s, one.window_s, one.pair_s) for one in law.kinds]
    pending: deque[tuple[Window, int]] = deque()
    sent = [0] * len(costs)
    over = decisions = 0
    peak = spent = 0.0
    keeps_all, bound_s = dealer.needs_queues, setting.bound_s
    rows = zip(trace.at_s.tolist(), trace.kind.tolist(), trace.closes_s.tolist(), strict=True)
    to_come = _least(trace, from_s).tolist() if beaten is not None else []
    rest = 0
    for place, (at_s, kind, closes_s) in enumerate(rows):
        if beaten is not None and (over, sum(sent) + to_come[place]) > beaten:
            rest = to_come[place]
            break
        while pending and pending[0][0].closes_s < at_s:
            window, owner = pending.popleft()
            records.of[owner].closed(window)
        dealer.arrived(at_s, kind)
        mine = -1
        if closes_s:
            began = clock()
            mine = dealer.deal(at_s, closes_s)
            spent += clock() - began
            decisions += 1
            window = Window(at_s, closes_s, records.seen)
            records.of[mine].opened(window)
            pending.append((window, mine))
        row_s, opening_s, window_s, pair_s = costs[kind]
        keeps = keeps_all or not place % SAMPLED
        for number, record in enumerate(records.of):
            count = record.open
            if not count:
                continue
            pairs = record.pairs(records.seen)
            is_opening = number == mine
            cost = row_s + pair_s * pairs + (opening_s + window_s * (count - 1) if is_opening else window_s * count)
            begins = record.busy_until_s
            done = (begins if begins > at_s else at_s) + cost
            record.busy_until_s = done
            latency = done - at_s
            if at_s < from_s:
                latency = 0.0
            else:
                sent[kind] += 1
            if latency > bound_s:
                over += 1
            if latency > peak:
                peak = latency
            if keeps:
                record.waiting.append(Finished(done, at_s, kind, is_opening, count, pairs, record.spread(records.seen), cost))
            if seen is not None:
                seen(place, number, done, cost)
        if law.counted[kind]:
            records.seen += 1
    return Outcome(len(trace.at_s), sum(sent) + rest, tuple(sent), peak, over, decisions, spent)


def _least(trace: Trace, from_s: float) -> IntArray:
    """Returns, for each row, the least number of copies that any dealer sends from it on: one of each row that is in a window; (n,)."""
    latest_s = np.maximum.accumulate(trace.closes_s)
    needed = (latest_s >= trace.at_s) & (trace.at_s >= from_s)
    found: IntArray = needed[::-1].cumsum()[::-1]
    return found


class Candidate(NamedTuple):
    """A dealer that may be chosen."""

    name: str
    make: MakeDealer
    bolder: str = ""
    """Name of a dealer that takes more risk and sends less. This one is tried only if a replay of that dealer has late rows."""


class Replaying(Silent):
    """Deals like that one of several dealers that, in a replay of the past, kept the bound and sent the fewest copies.

    All dealers get every row, so that a change needs no warming up. The first dealer deals until the first replay, after 30 scopes or an
    hour, because the result of a shorter replay is chance. Further replays come when the past has doubled, and at least each hour.

    Parameters
    ----------
    candidates : the preferred one first
    past_s : the longest past that is replayed
    windows_max : the most windows that are replayed
    """

    def __init__(
        self,
        setting: Setting,
        records: InstanceRecords,
        candidates: tuple[Candidate, ...],
        *,
        past_s: float = 3600.0,
        windows_max: int = 4000,
    ) -> None:
        super().__init__(setting, records)
        self.candidates, self._past_s = candidates, past_s
        self._dealers = [one.make(setting, records) for one in candidates]
        self.chosen = 0
        self._rows: deque[tuple[float, int, float]] = deque()
        self._windows, self._windows_max = 0, windows_max
        self._next_s: float | None = None
        self._begun_s = 0.0

    @property
    def name(self) -> str:
        """Returns the name of the dealer that deals now."""
        return self.candidates[self.chosen].name

    def arrived(self, at_s: float, kind: int) -> None:
        """Tells all dealers of the row, and remembers it."""
        for dealer in self._dealers:
            dealer.arrived(at_s, kind)
        if self._next_s is None:
            self._begun_s, self._next_s = at_s, at_s + min(self._past_s, FIRST * self.setting.scope_s)
        self._rows.append((at_s, kind, 0.0))
        while self._rows[0][0] < at_s - self._past_s or self._windows > self._windows_max:
            self._windows -= self._rows.popleft()[2] > 0

    def deal(self, at_s: float, closes_s: float) -> int:
        """Returns the choice of the dealer that was best in the latest replay."""
        latest_s, kind, _ = self._rows.pop()
        self._rows.append((latest_s, kind, closes_s))
        self._windows += 1
        if self._next_s is not None and at_s >= self._next_s and self.records.law is not None:
            self._next_s = at_s + min(self._past_s, at_s - self._begun_s)
            self._choose(self.records.law)
        return self._dealers[self.chosen].deal(at_s, closes_s)

    def _choose(self, law: OverlapLaw) -> None:
        """Replays the past with each dealer, and chooses the best one."""
        at_s, kind, closes_s = (np.array(column) for column in zip(*self._rows, strict=True))
        trace = Trace(at_s, kind, closes_s)
        # Instances begin empty, unlike in the past, so the first rows do not count. If few rows are left, the result is chance.
        from_s = float(at_s[0]) + WARMING * self.setting.scope_s
        if at_s[-1] < from_s + WARMING * self.setting.scope_s:
            return
        setting = msgspec.structs.replace(self.setting, law=law)
        best: tuple[int, int] | None = None
        order = sorted(range(len(self.candidates)), key=lambda one: one != self.chosen)
        chosen = self.chosen
        in_time: set[str] = set()
        for number in order:
            if number != self.chosen and self.candidates[number].bolder in in_time:
                continue
            # Another dealer than the one that deals now must be better by more than chance.
            beaten = None if best is None else (best[0], math.ceil(best[1] / (1 + BETTER)))
            outcome = replay(trace, setting, law, self.candidates[number].make, beaten=beaten, from_s=from_s)
            found = (outcome.over, outcome.rows_sent)
            if not outcome.over:
                in_time.add(self.candidates[number].name)
            needed = found if number == self.chosen else (outcome.over, math.ceil(outcome.rows_sent * (1 + BETTER)))
            if best is None or needed < best:
                chosen, best = number, found
        self.chosen = chosen
