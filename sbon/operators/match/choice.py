"""Chooses which starts are matches: AFTER MATCH SKIP, partition by partition.

All starts of a partition are candidates. The first start is the partition's first attempt; where the next attempt begins depends on the
match of the one before. A start that is still open blocks its partition, unless it lies in a match.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sbon.operators.match.found import NO_NUMBER
from sbon.operators.match.log import NO_ROW, Log
from sbon.operators.match.partitions import END, Partitions
from sbon.query.params.matched import MatchParams
from sbon.types import IntArray

FAILED, MATCHED, NOTHING, TIMED_OUT = range(4)
"""Outcomes of a start: no match, a match with rows, a match without rows, or no match because its time is up."""

_BLOCKED = 2**62
"""A position after every row."""
_LANE_END = 2**32 - 1
"""A position after every row of a partition, for keys that have partition and position in one number."""
_LOOKS = 8
"""Number of starts after a match that are examined one by one, before a binary search."""
_DOUBLED = 4
"""Number of times that leaps are doubled, so that one step covers 16 places."""


class Candidates(NamedTuple):
    """Starts that are settled."""

    lanes: IntArray
    first: IntArray
    """Position of the first row."""
    last: IntArray
    """Position of the last row of a match with rows, or of one that ran out of time; otherwise NO_ROW."""
    kinds: IntArray
    known: IntArray

    @classmethod
    def none(cls) -> "Candidates":
        """Returns no candidates."""
        return cls(*(np.zeros(0, np.int64) for _ in range(5)))

    @classmethod
    def joined(cls, parts: "Sequence[Candidates]") -> "Candidates":
        """Returns the candidates of all parts, one part after the other."""
        parts = [part for part in parts if part.first.size]
        return cls(*map(np.concatenate, zip(*parts, strict=True))) if len(parts) > 1 else parts[0] if parts else cls.none()

    def at(self, which: IntArray | npt.NDArray[np.bool_]) -> "Candidates":
        """Returns the candidates at these places, or where `which` is true."""
        if which.dtype == np.bool_:
            which = np.flatnonzero(which)
            if which.size == self.first.size:
                return self
        return Candidates(*(part[which] for part in self))


class Chosen(NamedTuple):
    """The matches chosen for the answer, partition by partition, from left to right."""

    candidates: Candidates
    numbers: IntArray
    """Number of the match in its partition, or NO_NUMBER."""


class Choice:
    """Candidates that wait until it is known whether they are matches.

    Parameters
    ----------
    opens_after : see `Starts.after`
    drop : forgets open starts
    skips : returns, for candidates, the positions of the rows where the next match may begin; None unless AFTER MATCH SKIP names a variable
    """

    def __init__(
        self,
        params: MatchParams,
        log: Log,
        partitions: Partitions,
        opens_after: Callable[[npt.NDArray[np.bool_], IntArray], IntArray],
        drop: Callable[[IntArray], None],
        skips: Callable[[Candidates], IntArray] | None,
    ) -> None:
        self._params = params
        self._log = log
        self._partitions = partitions
        self._opens_after = opens_after
        self._drop = drop
        self._skips = skips
        self._held = Candidates.none()
        self._blocked: IntArray = np.zeros(0, np.int64)
        """For each partition the position of the open start that others wait for, or NO_ROW."""

    def choose(self, fresh: Candidates, touched: IntArray) -> Chosen:
        """Returns the matches that are known now.

        Parameters
        ----------
        fresh : starts that are settled since the last call
        touched : partitions that have got rows since the last call
        """
        parts, log = self._partitions, self._log
        if self._blocked.size < parts.size:
            self._blocked = np.append(self._blocked, np.full(parts.size - self._blocked.size, NO_ROW))
        asked = np.zeros(parts.size, np.bool_)
        asked[touched] = True
        asked[fresh.lanes] = True
        blocks = self._blocked
        asked[(blocks >= 0) & (log.slots.values[blocks] >= 0 if log.size else False)] = False
        all_ = Candidates.joined([self._held, fresh])
        now = asked[all_.lanes]
        self._held, events = all_.at(~now), all_.at(now)
        order = np.argsort(events.lanes << 32 | events.first, kind="stable")
        return self._resolved(events.at(order), asked)

    def _resolved(self, events: Candidates, asked: npt.NDArray[np.bool_]) -> Chosen:
        log, parts = self._log, self._partitions
        needed = np.full(asked.size, NO_ROW, np.int64)
        matched = events.kinds == MATCHED
        if matched.size:
            begins = np.append(0, np.flatnonzero(np.diff(events.lanes)) + 1)
            needed[events.lanes[begins]] = np.maximum.reduceat(np.where(matched, events.last, NO_ROW), begins)
        opens = self._opens_after(asked, needed)
        chosen, resume, blocks, dropped = self._walk(events, opens)
        self._drop(dropped)

        lanes = np.flatnonzero(asked)
        self._blocked[lanes] = NO_ROW
        of_blocks = log.lanes.values[blocks]
        self._blocked[of_blocks] = blocks
        parts.start.values[lanes] = parts.ready.values[lanes]
        parts.start.values[of_blocks] = log.places.values[blocks]
        parts.since.values[lanes] = parts.pending.values[lanes]
        parts.since.values[of_blocks] = log.times.values[blocks]

        # A start before the block is an attempt unless it lies in a match that was chosen.
        block = np.where(self._blocked[events.lanes] >= 0, self._blocked[events.lanes], _BLOCKED)
        late = events.first > block
        self._held = Candidates.joined([self._held, events.at(late)])
        inside = np.zeros(events.first.size, np.bool_)
        if chosen.size:
            inside[chosen] = True
            before = np.cumsum(inside) - inside - 1
            inside = (before >= 0) & (events.lanes[chosen][before] == events.lanes) & (resume[before] > events.first)
        attempts = np.flatnonzero(~late & ~inside)
        known = self._known(events.lanes[attempts], events.known[attempts])
        events = events.at(attempts)._replace(known=known)
        return self._told(events)

    def _walk(self, events: Candidates, opens: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Goes through matches and open starts from left to right.

        Returns
        -------
        places of the chosen matches among the events; for each of them, the position from which the next match may begin; positions of the
        open starts that block their partitions; positions of the open starts that lie in a match
        """
        log = self._log
        which = np.flatnonzero((events.kinds == MATCHED) | (events.kinds == NOTHING))
        skip_to = self._params.skip_to
        behind = events.first[which] + 1
        if self._skips is not None:
            with_rows = events.kinds[which] == MATCHED
            behind[with_rows] = self._skips(events.at(which[with_rows]))
        elif skip_to == "past":
            behind = np.maximum(behind, events.last[which] + 1)
        event, lanes, first = which, events.lanes[which], events.first[which]
        if opens.size:
            lanes, first = np.concatenate([lanes, log.lanes.values[opens].astype(np.int64)]), np.concatenate([first, opens])
            order = np.argsort(lanes << 32 | first, kind="stable")
            event = np.append(which, np.full(opens.size, NO_ROW))[order]
            lanes, first = lanes[order], first[order]
            behind = np.append(behind, np.full(opens.size, _LANE_END))[order]
        counting = _reached(_follows(lanes << 32 | first, lanes << 32 | behind))
        blocks = counting[event[counting] < 0]
        chosen = counting[event[counting] >= 0]
        is_open = np.flatnonzero(event < 0)
        last = counting[np.searchsorted(counting, is_open, side="right") - 1]
        dropped = is_open[event[last] >= 0]
        return event[chosen], behind[chosen], first[blocks], first[dropped]

    @property
    def blocked(self) -> IntArray:
        """Returns for each partition the position of the open start that others wait for, or NO_ROW."""
        return self._blocked

    def forget_held(self) -> None:
        """Forgets the candidates that wait: they will come again."""
        self._held = Candidates.none()

    def _known(self, lanes: IntArray, known: IntArray) -> IntArray:
        """Returns the instants at which attempts are known, each no earlier than those of earlier attempts in its partition."""
        if not lanes.size:
            return known
        parts = self._partitions
        begins = np.append(0, np.flatnonzero(lanes[1:] != lanes[:-1]) + 1)
        known = known.copy()
        known[begins] = np.maximum(known[begins], parts.known.values[lanes[begins]])
        is_end = known >= END
        inner = known[~is_end]
        least = int(inner.min(initial=0))
        span = int(inner.max(initial=0)) - least + 2
        if span * begins.size < 2**62:
            ranks = np.repeat(np.arange(begins.size), np.diff(np.append(begins, lanes.size)))
            shifted = np.where(is_end, span - 1, known - least) + ranks * span
            known = np.maximum.accumulate(shifted) - ranks * span
            known = np.where(known == span - 1, END, known + least)
        else:
            for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), lanes.size], strict=True):
                known[begin:end] = np.maximum.accumulate(known[begin:end])
        lasts = np.append(begins[1:], lanes.size) - 1
        parts.known.values[lanes[lasts]] = known[lasts]
        return known

    def _told(self, events: Candidates) -> Chosen:
        """Numbers matches, and leaves out attempts that give no answer. The events are attempts, in order."""
        params, parts, log = self._params, self._partitions, self._log
        is_match = (events.kinds == MATCHED) | (events.kinds == NOTHING)
        lanes = events.lanes
        begins = np.append(0, np.flatnonzero(lanes[1:] != lanes[:-1]) + 1) if lanes.size else np.zeros(0, np.int64)
        total = np.cumsum(is_match)
        lengths = np.diff(np.append(begins, lanes.size))
        before = np.repeat(total[begins] - is_match[begins], lengths)
        numbers = np.where(is_match, total - before + parts.number.values[lanes], NO_NUMBER)
        lasts = begins + lengths - 1
        parts.number.values[lanes[lasts]] += total[lasts] - (total[begins] - is_match[begins])

        told = (events.kinds == MATCHED) | (events.kinds == TIMED_OUT)
        if params.empty:
            told |= events.kinds == NOTHING
        if params.unmatched:
            # The end of the matches so far, at each attempt.
            reach = np.where(events.kinds == MATCHED, log.places.values[events.last] + 1, 0) if log.size else lanes
            reach = np.where(events.kinds == NOTHING, log.places.values[events.first] + 1, reach) if log.size else reach
            places = log.places.values[events.first] if log.size else lanes
            for begin, end in zip(begins.tolist(), (lasts + 1).tolist(), strict=True):
                lane = lanes[begin]
                so_far = np.maximum.accumulate(np.append(parts.matched.values[lane], reach[begin:end]))
                told[begin:end] |= (events.kinds[begin:end] == FAILED) & (places[begin:end] >= so_far[:-1])
                parts.matched.values[lane] = so_far[-1]
        return Chosen(events.at(told), numbers[told])

    def compact(self, moved: npt.NDArray[np.int32]) -> None:
        """Replaces the positions of rows by their new ones; see `Log.compact`."""
        held = self._held
        self._held = held._replace(first=moved[held.first].astype(np.int64), last=moved[held.last].astype(np.int64))
        self._blocked = moved[self._blocked].astype(np.int64)


def _follows(keys: IntArray, behind: IntArray) -> IntArray:
    """Returns for each start, if it is an attempt, the next attempt: the first start where its match lets one begin, or the first start of
    the next partition.

    Parameters
    ----------
    keys : of starts, in order
    behind : least key that the next attempt may have
    """
    found, short = np.arange(1, keys.size + 1), np.flatnonzero(keys[1:] < behind[:-1])
    place, least, ahead = short + 1, behind[short], np.append(keys, _BLOCKED)
    for _ in range(_LOOKS):  # the next attempt is mostly near
        place += 1
        is_short = ahead[place] < least
        found[short] = place
        further = np.flatnonzero(is_short)
        short, place, least = short[further], place[further], least[further]
    found[short] = np.searchsorted(keys, least)
    return found


def _reached(follows: IntArray) -> IntArray:
    """Returns the places that are reached from the first one, in order.

    Parameters
    ----------
    follows : for each place, the later place that it leads to; the number of places, if it leads nowhere
    """
    leaps = [np.append(follows, follows.size)]
    for _ in range(_DOUBLED):
        leaps.append(leaps[-1][leaps[-1]])
    far, at, found = leaps.pop().data, 0, []
    while at < follows.size:  # visits few places, from which all others are then reached in bulk
        found.append(at)
        at = far[at]
    places = np.array(found, np.int64)
    for leap in leaps:
        places = np.concatenate([places, leap[places]])
    reached = np.zeros(follows.size + 1, np.bool_)
    reached[places] = True
    return np.flatnonzero(reached[:-1])
