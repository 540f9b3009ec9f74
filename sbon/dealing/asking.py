"""Asks a dealer, while a query runs, for the owner of each turn of event time.

To the dealer, a turn is a window: it opens with its first row, and closes when the last window that opened in the turn must have closed.
Dealers are written for tens of rows per second, so they are told of *parcels*, each of which stands for equally many rows. The dealer's
clock is the event time of the rows, which never goes back; if event time goes k times as fast as the clock of the machine, costs and waits
count k times.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec
import numpy as np

from sbon.cost.overlap import OverlapLaw, RowLaw
from sbon.dealing.dealer import Dealer, Reactive, RoundRobin
from sbon.dealing.forecast import Course, Steady
from sbon.dealing.instance_records import Finished, InstanceRecords, Setting, Window
from sbon.dealing.last import Last
from sbon.dealing.measured import PEAK_S, InstanceTold, Measured
from sbon.dealing.model import Model
from sbon.dealing.owners import Owners
from sbon.dealing.peak import peak_s
from sbon.dealing.replay import MakeDealer
from sbon.dealing.sent_rows import SentRows
from sbon.dealing.turns import INTERVALS, Turns
from sbon.types import IntArray

ROW, TURN = 0, 1
"""Kinds of rows for dealers: a parcel, and the beginning of a turn, which costs nothing."""
PARCELS_MAX = 32
"""Most parcels of a turn; if there are more, parcels are made twice as large."""
WAITING_MAX = 256
"""Most waiting parcels that are told to a dealer that reads queues; each stands for more rows if there are more."""
OUTLASTS = 0.5
"""Ratio of bound to window from which `auto` is the dealer `last`."""
BATCHES_KEPT = 0.98
"""Share of its weight that a batch keeps at the next one."""
LATE = 0.2
"""Share of the bound above which the dealer `reactive` takes an instance as late."""


class Figures(msgspec.Struct, frozen=True):
    """Figures of a splitter that asks a dealer."""

    used: int
    """Instances that have open windows."""
    decisions: int
    """Turns for which the dealer was asked."""
    peak_predicted_s: float | None
    """Longest time that a row will take until it is processed, within a minute, if rates stay and the used instances take turns; None while
    costs are unknown."""
    peak_measured_s: float
    """Longest `InstanceTold.wait_s` lately."""
    row_ns: float | None
    """Measured cost of a row in however many turns, and of each open turn for it; None while unknown."""
    turn_ns: float | None


def dealer_of(name: str, setting: Setting, records: InstanceRecords) -> Dealer:
    """Returns a dealer by its name (`sbon.query.params.streams.DEALERS`)."""
    if name == "auto":
        name = "last" if setting.bound_s >= OUTLASTS * setting.scope_s else "turns"
    makes: Mapping[str, Callable[[], Dealer]] = {
        "round-robin": lambda: RoundRobin(setting, records),
        "reactive": lambda: Reactive(setting, records, LATE * setting.bound_s),
        "model": lambda: Model(setting, records),
        "turns": lambda: Turns(setting, records, Course(setting, intervals=INTERVALS)),
        "last": lambda: Last(setting, records, Steady(setting)),
    }
    return makes[name]()


class Asking:
    """Decides the owners of turns by a dealer.

    Before the first report of an instance, and while it is frozen, owners follow from the numbers of turns.

    Parameters
    ----------
    make : makes the dealer
    bound_s : longest time that a row may take at an instance
    """

    def __init__(self, make: MakeDealer, owners: Owners, bound_s: float) -> None:
        self.owners = owners
        self.setting = Setting(
            instances=owners.instances,
            bound_s=bound_s,
            scope_s=(owners.within_us + owners.turn_us) / 1e6,
            opens=(False, True),
            closes=(False, False),
            counted=(False, False),
        )
        self.records = InstanceRecords(self.setting)
        self.measured = Measured()
        self._sent = [SentRows() for _ in self.records.of]
        self._dealer = make(self.setting, self.records)
        self.frozen = True
        """True before the first report, and from the moment when a copy of the state is taken until the next report. Then the owner of a
        turn follows from its number, so that the copy decides alike."""
        self._open: deque[tuple[Window, int]] = deque()
        self._begin_us: int | None = None
        """Event time that is 0 on the dealer's clock."""
        self._now_s = 0.0
        self._rows = self._decisions = 0
        self._parcel, self._rest, self._of_turn = 1, 0, 0
        """Rows of a parcel, rows since the last parcel, parcels since the last turn."""
        self._sum = self._squares = 0.0
        """Sums of the rows of recent batches, and of their squares."""

    # -------------------------------------------------------------------------------------------------------------- rows

    def take(self, times_us: IntArray) -> None:
        """Decides the turns that rows of a batch need, and tells the dealer of the rows; (rows,) event times in any order."""
        times = np.sort(times_us)
        self._sum, self._squares = BATCHES_KEPT * self._sum + times.size, BATCHES_KEPT * self._squares + times.size**2
        turns, first, counts = np.unique(times // self.owners.turn_us, return_index=True, return_counts=True)
        for turn, at, count in zip(turns.tolist(), first.tolist(), counts.tolist(), strict=True):
            at_us = int(times[at])
            self.owners.decide(turn, lambda owner, at_us=at_us: self._next(at_us, owner), by_number=self.frozen)  # type: ignore[misc]
            self._parcels(times[at : at + count])

    def _next(self, at_us: int, owner: int | None) -> int:
        """Opens the next turn; asks the dealer for its owner unless it has one."""
        turn_us, within_us = self.owners.turn_us, self.owners.within_us
        now_s = self._clock(at_us)
        closes_s = now_s + (turn_us - at_us % turn_us + within_us) / 1e6
        self._dealer.arrived(now_s, TURN)
        if owner is None:
            owner = self._dealer.deal(now_s, closes_s)
            self._decisions += 1
        self._opened(Window(now_s, closes_s, 0), owner)
        if self._of_turn > PARCELS_MAX:
            self._parcel *= 2
            self._tell_costs()
        self._of_turn = 0
        return owner

    def _opened(self, window: Window, owner: int) -> None:
        self.records.of[owner].opened(window)
        self._open.append((window, owner))

    def _clock(self, at_us: int) -> float:
        """Returns an event time on the dealer's clock, which never goes back, and closes the turns that are over by then."""
        if self._begin_us is None:
            self._begin_us = at_us
        self._now_s = max(self._now_s, (at_us - self._begin_us) / 1e6)
        while self._open and self._open[0][0].closes_s < self._now_s:
            window, owner = self._open.popleft()
            self.records.of[owner].closed(window)
        return self._now_s

    def _parcels(self, times: IntArray) -> None:
        """Tells the dealer of rows of one turn, in order."""
        begin, self._rest = max(0, self._parcel - 1 - self._rest), (self._rest + times.size) % self._parcel
        for at_us in times[begin :: self._parcel].tolist():
            self._dealer.arrived(self._clock(at_us), ROW)
            self._of_turn += 1
        self._clock(int(times[-1]))
        self._rows += times.size

    def sent(self, rows: IntArray) -> None:
        """Notes how many rows instances get. Until their next reports these count as work that waits there; (instances,)."""
        for record, sent, count in zip(self.records.of, self._sent, rows.tolist(), strict=True):
            if count:
                turns = max(1, record.open)
                sent.add(count, turns)
                record.busy_until_s = max(record.busy_until_s, self._now_s) + self._work_s(count, count * turns)

    def _work_s(self, rows: int, turns: int) -> float:
        """Returns the measured cost of rows, in event time; 0 while it is unknown.

        Parameters
        ----------
        turns : turns open for each row, summed over the rows
        """
        row = self.measured.row
        return 0.0 if row is None else (rows * row.row_s + turns * row.window_s) * self.measured.speed

    # ----------------------------------------------------------------------------------------------------------- reports

    def told(self, clock_s: float, reports: Mapping[int, InstanceTold]) -> Figures:
        """Takes reports of instances, by their numbers; from now on the dealer is asked.

        Parameters
        ----------
        clock_s : the clock of the machine
        """
        self.frozen = False
        measured = self.measured
        for number, report in reports.items():
            self._sent[number].report(report.rows, report.waiting)
        measured.pace(clock_s, self._now_s, self._rows)
        for _, cost_s, mean_turns in measured.costs(clock_s, reports, self._turns):
            of_parcel_s = cost_s * self._parcel * measured.speed
            self.records.finished.append(Finished(self._now_s, self._now_s, ROW, False, round(mean_turns), 0.0, 0.0, of_parcel_s))
        self._tell_costs()
        for number, report in reports.items():
            record, sent = self.records.of[number], self._sent[number]
            record.latency_s = report.wait_s
            turns, unknown = max(1, record.open), max(0, report.waiting - sent.rows)  # rows that a former copy has sent
            work_s = self._work_s(sent.rows + unknown, sent.turns + unknown * turns)
            record.busy_until_s = self._now_s + work_s
            if self._dealer.needs_queues:
                parcels = min(WAITING_MAX, math.ceil((sent.rows + unknown) / self._parcel))
                waiting = Finished(math.inf, self._now_s, ROW, False, turns, 0.0, 0.0, work_s / max(1, parcels))
                record.waiting = deque([waiting] * parcels)
        return self._figures()

    def _turns(self, number: int) -> float:
        """Returns the mean number of turns open for the rows that an instance has taken since the last call; if none are, that of now."""
        found = self._sent[number].mean_turns()
        return max(1, self.records.of[number].open) if found is None else found

    def _tell_costs(self) -> None:
        """Gives the measured cost to the dealer, for parcels in event time."""
        row = self.measured.row
        if row is not None:
            by = self._parcel * self.measured.speed
            law = RowLaw(row_s=row.row_s * by, window_s=row.window_s * by)
            self.records.law = OverlapLaw((law, RowLaw()), self.setting.counted)

    def _figures(self) -> Figures:
        used, row = sum(record.open > 0 for record in self.records.of), self.measured.row
        row_ns, turn_ns = (None, None) if row is None else (row.row_s * 1e9, row.window_s * 1e9)
        return Figures(used, self._decisions, self._peak_s(max(1, used)), self.measured.peak_s, row_ns, turn_ns)

    def _peak_s(self, used: int) -> float | None:
        """Returns the longest time that a row will take on its way and at an instance, if rates stay and the used instances take turns."""
        row, rate, speed = self.measured.row, self.measured.rate, self.measured.speed
        if row is None:
            return None
        turn_s, width_s = self.owners.turn_us / 1e6, self.setting.scope_s / INTERVALS
        turns_per_s = len(self._open) / min(self.setting.scope_s, max(turn_s, self._now_s))  # a turn without a row does not open
        ahead_s = width_s * (np.arange(INTERVALS) + 0.5)
        busy = [record for record in self.records.of if record.open]
        held = np.array([(np.array(record.closes_s)[:, None] >= self._now_s + ahead_s).sum(axis=0) for record in busy])
        batch = self._squares / self._sum if self._sum else 1.0
        costs_s = batch * (row.row_s + row.window_s * (held + ahead_s * turns_per_s / used))
        begun_s = np.array([record.backlog_s(self._now_s) / speed for record in busy])
        return self.measured.way_s + peak_s(rate / batch, costs_s.reshape(len(busy), -1), width_s / speed, begun_s, PEAK_S)

    # ------------------------------------------------------------------------------------------------------------- state

    def restored(self, turns: Iterable[tuple[int, int]], newest: int | None, *, is_whole: bool = True) -> None:
        """Takes the decided turns of a former copy; `is_whole` if none are missing. The dealer begins anew, but knows the open turns."""
        owners = self.owners
        owners.restored(turns, newest, is_whole=is_whole)
        if newest is None:
            return
        self._begin_us = newest * owners.turn_us
        for turn in sorted(owners.of):
            closes_s = ((turn + 1) * owners.turn_us + owners.within_us - self._begin_us) / 1e6
            if closes_s >= 0:
                self._opened(Window(0.0, closes_s, 0), owners.of[turn])
