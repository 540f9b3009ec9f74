"""One partition of a pattern: its rows that may still be in a match, and its current attempt.

Places are counted from the partition's first row on; the lists have the rows from `base` on.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from sbon.operators.match.attempts import Attempt, Labels
from sbon.operators.match.found import NO_NUMBER
from sbon.operators.match.partitions import END, TIME_MAX
from sbon.operators.match.turns import OPENS_BIT
from sbon.query.params.matched import MatchParams
from sbon.watermarks import WATERMARK_END


class Found(NamedTuple):
    """A match, a match that ran out of time, or a row that is in no match."""

    known: int
    first: int
    """Position of its first row, or of the row at which a match without rows is."""
    labels: Labels
    number: int
    """NO_NUMBER for a row that is in no match, and for a match that ran out of time."""
    positions: list[int]
    timed_out: bool = False


class Tried(NamedTuple):
    """A start whose outcome no later row can change. It can be read like an attempt that has ended."""

    place: int
    """Place of the start in its partition."""
    taken: int
    """Place after the last row that was examined."""
    length: int | None
    """Rows of the match; None if there is none."""
    found: Labels

    @property
    def alive(self) -> bool:
        """Returns False: a settled start takes no more rows."""
        return False

    def labels(self) -> Labels:
        """Returns the labels of the match's rows."""
        return self.found


class Rules(NamedTuple):
    """The rules that all partitions share."""

    params: MatchParams
    before: int
    """Most rows before a match that its values may read."""
    behind: int
    """Most rows after a row that its conditions and values may read."""
    first_mask: int
    """Bits of the variables that a match can begin with; `ANY` if it can have no row."""
    attempt: "Callable[[Lane], Attempt]"
    """Begins an attempt at the row `start` of a partition."""


class Lane:
    """One partition."""

    __slots__ = ("attempt", "base", "ids", "known", "masks", "matched", "number", "start", "taken", "times", "tried", "values")

    def __init__(self, values: int) -> None:
        self.base = 0
        self.ids: list[int] = []
        """Positions of the rows in the operator's log."""
        self.times: list[int] = []
        self.masks: list[int] = []
        """For each row whose conditions are known, the conditions that hold. If conditions read later rows, those of the last rows are not
        known yet.
        """
        self.values: list[list[Any]] = [[] for _ in range(values)]
        self.start = 0
        """Place where the current attempt begins, or where the next one may begin."""
        self.taken = 0
        """Place after the last row that the attempt has taken."""
        self.matched = 0
        """Place after the last row of any match."""
        self.number = 0
        """Matches so far."""
        self.known = 0
        """Instant at which the last match was known."""
        self.attempt: Attempt | Tried | None = None
        self.tried: deque[Tried] = deque()
        """Starts from `start` on that are settled already, in their order."""

    @property
    def end(self) -> int:
        """Returns the place after the last row."""
        return self.base + len(self.ids)

    @property
    def waits_since(self) -> int | None:
        """Returns the event time of the first row that is not settled; None if all are."""
        return self.times[self.start - self.base] if self.start < self.end else None

    def value_at(self, number: int, place: int) -> Any:
        """Returns the value of an operand on a row; None if there is no such row."""
        at, values = place - self.base, self.values[number]
        return values[at] if 0 <= at < len(values) else None

    def settle(self, rules: Rules, watermark_us: int) -> list[Found]:
        """Returns the matches that are known now, from left to right.

        Parameters
        ----------
        watermark_us : no row below it is still to come
        """
        found: list[Found] = []
        ended = watermark_us >= WATERMARK_END
        ready = self.base + len(self.masks)
        while self.start < ready:
            if self.attempt is None and not self._begin(rules, ready, found):
                break
            attempt = self.attempt
            assert attempt is not None
            if isinstance(attempt, Attempt) and attempt.alive:
                limit, timed = self._limit(rules, ready, watermark_us)
                self.taken = self.base + attempt.take(self.masks, self.taken - self.base, limit - self.base, self.base)
                if attempt.alive and not timed and not ended:
                    break
            self._know(rules, alive=attempt.alive)
            self._close(rules, attempt, found)
        return found

    def _begin(self, rules: Rules, ready: int, found: list[Found]) -> bool:
        """Begins an attempt at the next row where a match can begin; False if there is none among those that are ready."""
        masks, first, base = self.masks, rules.first_mask, self.base
        at = self.start - base
        if rules.params.unmatched:
            while at < len(masks) and not masks[at] & first:
                self.taken = self.start = base + at
                self._know(rules, alive=False)
                self._pass(found)
                at += 1
        else:
            part, times = rules.params.dealt, self.times
            by_column = part is not None and part.opens is not None
            while at < len(masks) and not (
                masks[at] & first
                and (part is None or (masks[at] >> OPENS_BIT & 1 if by_column else times[at] // part.turn_us % part.of == part.index))
            ):
                at += 1
        self.start = base + at
        if self.start >= ready:
            return False
        tried = self.tried
        while tried and tried[0].place < self.start:
            tried.popleft()
        if tried and tried[0].place == self.start:
            self.attempt = tried.popleft()
            self.taken = self.attempt.taken
        else:
            self.taken = self.start
            self.attempt = rules.attempt(self)
        return True

    def _limit(self, rules: Rules, ready: int, watermark_us: int) -> tuple[int, bool]:
        """Returns the place after the last ready row that the match may have, and whether no later row can be in it."""
        within = rules.params.within_us
        if within is None:
            return ready, False
        until = self.times[self.start - self.base] + within
        at = self.base + bisect_left(self.times, until, self.taken - self.base, len(self.masks))
        if at < ready:
            return at, True
        waiting = ready < self.end and self.times[ready - self.base] < until
        return ready, not waiting and watermark_us >= until

    def _know(self, rules: Rules, *, alive: bool) -> None:
        """Notes the instant at which the current outcome is known: that of the last row taken, or read after it, or when time is up."""
        at = max(self.start, self.taken - 1) + rules.behind - self.base
        self.known = max(self.known, 2 * min(self.times[at], TIME_MAX) + 1 if at < len(self.times) else END)
        if alive:
            within = rules.params.within_us
            until = TIME_MAX if within is None else min(TIME_MAX, self.times[self.start - self.base] + within)
            self.known = max(self.known, 2 * until)

    def _close(self, rules: Rules, attempt: Attempt | Tried, found: list[Found]) -> None:
        """Notes the attempt's match and where the next one may begin."""
        params, length, at = rules.params, attempt.length, self.start - self.base
        self.attempt = None
        if length is None:
            if params.timeouts and isinstance(attempt, Attempt) and attempt.alive:
                labels = attempt.waiting()
                rows = self.ids[at : at + len(labels.variables)]
                found.append(Found(self.known, rows[0], labels, NO_NUMBER, rows, timed_out=True))
            elif params.unmatched:
                self._pass(found)
            self.start += 1
        elif length == 0:
            self.number += 1
            if params.empty:
                found.append(Found(self.known, self.ids[at], Labels([], []), self.number, []))
                self.matched = max(self.matched, self.start + 1)
            self.start += 1
        else:
            self.number += 1
            labels = attempt.labels()
            found.append(Found(self.known, self.ids[at], labels, self.number, self.ids[at : at + length]))
            self.matched = max(self.matched, self.start + length)
            self.start += _next_start(params, labels)
        self.taken = self.start

    def _pass(self, found: list[Found]) -> None:
        """Emits the row at `start` as a row in no match, unless it is in an earlier match."""
        if self.start >= self.matched:
            found.append(Found(self.known, self.ids[self.start - self.base], Labels([], []), NO_NUMBER, []))

    def trim(self, rules: Rules) -> None:
        """Drops rows that nothing reads any more."""
        unneeded = min(self.start, self.end) - rules.before - self.base
        if unneeded > 0:
            del self.ids[:unneeded], self.times[:unneeded], self.masks[:unneeded]
            for values in self.values:
                del values[:unneeded]
            self.base += unneeded


def _next_start(params: MatchParams, labels: Labels) -> int:
    """Returns the number of rows from the first row of a match to the row where the next match may begin."""
    if params.skip_to == "past":
        return len(labels.variables)
    if params.skip_to == "next":
        return 1
    places = [place for place, variable in enumerate(labels.variables) if variable in params.skip_variables]
    return places[0] if params.skip_to == "first" else places[-1]
