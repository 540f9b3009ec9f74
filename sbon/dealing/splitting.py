"""The splitter without its rows: decides which instance gets which row, and which rows must be kept until they are answered.

Rows have numbers, in the order of their event times. A row that may start a match opens a window, which the dealer gives to an instance.
The instance gets this row and all rows that follow within the scope. The merger gets an answer for each start, a match or none, and reports
the row up to which all starts are answered; earlier rows are forgotten. Until then, the windows of a lost instance can be dealt again. An
answer depends on the rows of its window alone, so it does not matter which instance finds it, or whether it is found twice.
"""

import math
from collections import deque

import msgspec
import numpy as np
import numpy.typing as npt

from sbon.dealing.dealer import Dealer
from sbon.dealing.instance_records import InstanceRecords, Setting, Window
from sbon.dealing.replay import MakeDealer
from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray

MASKED_MAX = 62
"""Most instances that fit into a mask of 64 bits."""
NOBODY = -1


class Split(msgspec.Struct, frozen=True):
    """The instances to which some consecutive rows are sent; arrays of shape (rows,)."""

    first: int
    """Number of the first row."""
    masks: IntArray
    """Bit i: instance i gets the row."""
    owners: IntArray
    """Instance that answers for the window that the row opens; -1: it opens none."""


class Again(msgspec.Struct, frozen=True):
    """A window that is dealt again: the instance answers for its start, and gets its rows so far."""

    start: int
    """Number of the row that opens it."""
    end: int
    """Number after its last row so far; later rows are sent as for any window."""
    instance: int


class _Open(msgspec.Struct):
    """A window for which no answer has been reported."""

    start: int
    window: Window
    instance: int
    is_open: bool = True


class Splitter:
    """Deals the windows of a stream to instances.

    Parameters
    ----------
    setting : facts and settings of the operator; `scope_s` is WITHIN
    make : makes the dealer
    """

    def __init__(self, setting: Setting, make: MakeDealer) -> None:
        if setting.instances > MASKED_MAX:
            raise ShapeError(f"{setting.instances} instances, expected {MASKED_MAX} at most")
        self._setting, self._make = setting, make
        self.records = InstanceRecords(setting)
        self._dealer: Dealer = make(setting, self.records)
        self._next = 0
        self._now = -math.inf
        self._kept: deque[float] = deque()
        """Times of the rows from `kept_from` on."""
        self.kept_from = 0
        """Number of the first row that is kept."""
        self._unanswered: deque[_Open] = deque()
        self._open: deque[_Open] = deque()
        self._former: dict[int, float] = {}
        """For each instance that gets no new windows, the time until which it has old ones."""

    def take(self, at_s: FloatArray, kinds: IntArray, starts: npt.NDArray[np.bool_]) -> Split:
        """Deals the windows that rows open; the rows come in the order of the stream.

        Raises
        ------
        ShapeError
            Times go back, or the arrays differ in length.
        """
        if not at_s.shape == kinds.shape == starts.shape == (len(at_s),):
            raise ShapeError(f"rows of {at_s.shape}, {kinds.shape}, {starts.shape}, expected the same length")
        if len(at_s) and (at_s[0] < self._now or (np.diff(at_s) < 0).any()):
            raise ShapeError("rows whose times go back, expected them in order")
        masks, owners = np.zeros(len(at_s), dtype=np.int64), np.full(len(at_s), NOBODY, dtype=np.int64)
        counted = self._setting.counted
        for place, (now, kind, starts_window) in enumerate(zip(at_s.tolist(), kinds.tolist(), starts.tolist(), strict=True)):
            self._close(now)
            self._dealer.arrived(now, kind)
            if starts_window:
                # A row at the very end of the scope is not in the window.
                window = Window(now, math.nextafter(now + self._setting.scope_s, -math.inf), self.records.seen)
                owner = self._dealer.deal(now, window.closes_s)
                owners[place] = owner
                self._hold(_Open(self._next + place, window, owner))
            if counted[kind]:
                self.records.seen += 1
            mask = 0
            for number, record in enumerate(self.records.of):
                if record.open:
                    mask |= 1 << number
            for number, until_s in self._former.items():
                if now <= until_s:
                    mask |= 1 << number
            masks[place] = mask
        first = self._next
        if len(at_s):
            self._now = float(at_s[-1])
        self._kept.extend(at_s.tolist())
        self._next += len(at_s)
        return Split(first, masks, owners)

    def _hold(self, one: _Open) -> None:
        self.records.of[one.instance].opened(one.window)
        self._unanswered.append(one)
        self._open.append(one)

    def _close(self, now: float) -> None:
        """Closes the windows that a row at this instant is no longer in."""
        while self._open and self._open[0].window.closes_s < now:
            one = self._open.popleft()
            if one.is_open and one.instance < len(self.records.of):
                self.records.of[one.instance].closed(one.window)
            one.is_open = False

    def answered(self, before: int) -> None:
        """Takes the merger's report that all starts before a row are answered, and forgets rows that no other window has."""
        while self._unanswered and self._unanswered[0].start < before:
            self._unanswered.popleft()
        needed = self._unanswered[0].start if self._unanswered else min(before, self._next)
        while self.kept_from < needed and self._kept:
            self._kept.popleft()
            self.kept_from += 1

    def lost(self, instance: int) -> list[Again]:
        """Deals the unanswered windows of a lost instance to other instances; returns the windows whose rows must be sent again.

        Closed windows without an answer are among them. The lost instance may come back under its number, without windows.

        Raises
        ------
        ShapeError
            There is no other instance.
        """
        others = [number for number in range(len(self.records.of)) if number != instance]
        if not others:
            raise ShapeError("the only instance is lost, expected another one")
        again: list[Again] = []
        self._former.pop(instance, None)
        for one in self._unanswered:
            if one.instance != instance:
                continue
            if one.is_open and instance < len(self.records.of):
                self.records.of[instance].closed(one.window)
            # Not asked of the dealer, which expects windows that open now: the instance with the fewest windows gets it.
            one.instance = min(others, key=lambda number: self.records.of[number].open)
            if one.is_open:
                self.records.of[one.instance].opened(one.window)
            again.append(Again(one.start, self._end_of(one.window), one.instance))
        return again

    def _end_of(self, window: Window) -> int:
        """Returns the number after the last row so far that is in a window."""
        times = np.array(self._kept)
        return self.kept_from + int(np.searchsorted(times, window.closes_s, side="right"))

    def resize(self, instances: int) -> None:
        """Deals to `instances` instances from now on. Windows of instances that get no new ones stay there until they close.

        Raises
        ------
        ShapeError
            The number is below 1, or above `MASKED_MAX`.
        """
        if not 1 <= instances <= MASKED_MAX:
            raise ShapeError(f"{instances} instances, expected 1 to {MASKED_MAX}")
        setting = msgspec.structs.replace(self._setting, instances=instances, law=self.records.law)
        records = InstanceRecords(setting)
        records.seen = self.records.seen
        for number, record in enumerate(self.records.of):
            if number < instances:
                records.of[number] = record
            elif record.open:
                self._former[number] = max(self._former.get(number, -math.inf), record.until_s)
        for number in [one for one in self._former if one < instances]:
            # The instance gets windows again, and its old windows count.
            del self._former[number]
            for one in self._open:
                if one.is_open and one.instance == number:
                    records.of[number].opened(one.window)
        self._setting, self.records = setting, records
        self._dealer = self._make(setting, records)
