"""The capacity that a server has left over time, if earlier work goes first.

Work is taken in any order of arrival, and flows like water: what has come and does not fit the capacity waits, and is done as soon as
possible. So each piece of work changes only the stretch from its first arrival to the end of its own backlog. Whether anything waits at an
instant does not depend on the order in which work is taken, only on which work has been taken.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from sbon.types import FloatArray

TINY_S = 1e-12
"""Work below this is rounding."""
AT_ONCE_S = 1e-9
"""Instants that differ by less are the same; the difference is rounding."""
NOTHING, BEGINS, WAITS = range(3)
"""States of a piece of time: no work waits; work waits within, but not yet at its start; work waits from its start on."""


class FreeCapacity:
    """Capacity left in pieces of time.

    Parameters
    ----------
    starts_s : starts of the pieces, increasing; the last has no end
    rates : seconds of work per second that are left in each

    Examples
    --------
    Two seconds of work come within a second. The server is free again at 2 s, or at 3 s if half a second more comes until then.

    >>> server = FreeCapacity([0.0], [1.0])
    >>> server.take(0.0, 1.0, 2.0)
    >>> server.idle_s(0.0), server.idle_s(0.5), server.idle_if([(1.0, 2.0, 1.0)], 0.5)
    (0.0, 2.0, 3.0)
    """

    __slots__ = ("_free_before_s", "_rates", "_starts_s", "_states")

    def __init__(self, starts_s: Sequence[float], rates: Sequence[float], states: Sequence[int] | None = None) -> None:
        self._starts_s, self._rates = list(starts_s), list(rates)
        self._states = [NOTHING] * len(self._rates) if states is None else list(states)
        self._free_before_s = 0.0

    def take(self, begin_s: float, end_s: float, work_s: float) -> None:
        """Adds work that comes evenly from one instant to another, or all at once if these are equal."""
        if work_s <= 0.0:
            return
        starts, rates, states = self._starts_s, self._rates, self._states
        place = first = bisect_right(starts, begin_s) - 1
        is_inside = begin_s > starts[first]
        made_s, made_rates, made_states = ([starts[first]], [rates[first]], [states[first]]) if is_inside else ([], [], [])
        last = len(starts) - 1
        if end_s > begin_s:
            coming, waiting_s = work_s / (end_s - begin_s), 0.0
        else:
            coming, waiting_s = 0.0, work_s
        at_s = begin_s
        until_s = starts[place + 1] if place < last else float("inf")
        while at_s < end_s or waiting_s > TINY_S:
            if at_s >= end_s:
                coming, next_s = 0.0, until_s
            else:
                next_s = end_s if end_s < until_s else until_s
            free, state = rates[place], states[place]
            if is_inside and state:
                state = WAITS
            if waiting_s > TINY_S or coming > free + TINY_S:
                state = WAITS if waiting_s > TINY_S else state or BEGINS
                more = coming - free
                if more < 0 and waiting_s + more * (next_s - at_s) <= 0:
                    next_s, waiting_s = min(next_s, at_s - waiting_s / more), 0.0
                elif next_s == float("inf"):  # never done
                    waiting_s = 0.0
                else:
                    waiting_s += more * (next_s - at_s)
                left = 0.0
            else:
                left, waiting_s = max(0.0, free - coming), 0.0
            if next_s > at_s:
                if not (state == WAITS and made_states and made_states[-1]):
                    made_s.append(at_s)
                    made_rates.append(left)
                    made_states.append(state)
                is_inside = True
                at_s = next_s
            if at_s >= until_s:
                place, is_inside = place + 1, False
                if place > last:
                    break
                until_s = starts[place + 1] if place < last else float("inf")
        if is_inside and at_s < until_s:  # the rest of the piece stays as it was
            made_s.append(at_s)
            made_rates.append(rates[place])
            made_states.append(WAITS if states[place] else NOTHING)
            place += 1
        starts[first:place] = made_s
        rates[first:place] = made_rates
        states[first:place] = made_states

    def idle_s(self, at_s: float) -> float:
        """Returns the first instant from `at_s` on at which no work waits; infinite if there is none.

        Work that comes all at once at that instant waits then, also if rounding makes it come a little later.
        """
        starts, states = self._starts_s, self._states
        place = bisect_right(starts, at_s) - 1
        if states[place] == BEGINS:
            if starts[place] == at_s:
                return at_s
            place += 1
        for later in range(place, len(starts)):
            if states[later] == BEGINS:
                return starts[later]
            if states[later] == NOTHING and not self._comes_at_once(later + 1, max(at_s, starts[later])):
                return max(at_s, starts[later])
        return float("inf")

    def _comes_at_once(self, place: int, at_s: float) -> bool:
        """Tells whether work comes all at once at an instant, apart from rounding; `place` is the first piece that starts later."""
        starts, states = self._starts_s, self._states
        while place < len(starts) and starts[place] < at_s + AT_ONCE_S:
            if states[place] != NOTHING:
                return states[place] == WAITS
            place += 1
        return False

    def free_by(self, at_s: float) -> float:
        """Returns the work that could have been done by an instant, beyond what was done, in s since the start."""
        starts, rates = self._starts_s, self._rates
        place = bisect_right(starts, at_s) - 1
        found = self._free_before_s + rates[place] * (at_s - starts[place])
        for earlier in range(place):
            found += rates[earlier] * (starts[earlier + 1] - starts[earlier])
        return found

    def idle_if(self, more: Iterable[tuple[float, float, float]], at_s: float) -> float:
        """Returns what `idle_s` does if more work is taken, each as for `take`."""
        taken = list(more)
        place = bisect_right(self._starts_s, min(at_s, *(begin_s for begin_s, _, _ in taken))) - 1
        copy = FreeCapacity(self._starts_s[place:], self._rates[place:], self._states[place:])
        for one in taken:
            copy.take(*one)
        return copy.idle_s(at_s)

    def forget(self, before_s: float) -> None:
        """Drops what was before an instant: no more work comes there, and nobody asks about it."""
        place = bisect_right(self._starts_s, before_s) - 1
        if place > 0:
            self._free_before_s = self.free_by(self._starts_s[place])
            del self._starts_s[:place], self._rates[:place], self._states[:place]


def capacity_of(rates: FloatArray, width_s: float) -> FreeCapacity:
    """Returns the capacity of a server whose rate varies by interval; the last also holds after the end.

    Parameters
    ----------
    rates : (intervals,)
    """
    changes = [place for place in range(len(rates)) if not place or rates[place] != rates[place - 1]]
    return FreeCapacity([width_s * place for place in changes], rates[changes].tolist())
