"""Runs the automaton of a pattern over many starts at once, for conditions that depend on single rows alone.

Each job is one start, an entry of arrays. All jobs step together, one row each, as often as the longest of them needs. Where a state
returns to itself (`B+`), a job jumps over all rows that keep it there. Jobs that are still alive after many steps continue row by row, and
jobs at one row in one state are merged. So the time is linear in rows and jobs.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sbon.operators.match.program import Automaton
from sbon.types import IntArray

Classes = npt.NDArray[np.uint16]
STEPS_MAX = 256
"""Steps of single rows after which jobs continue row by row, and jobs in equal states are merged."""
PAIRED_MAX = 32
"""Most classes of which all pairs are examined."""
_UNKNOWN = -1


class Jobs(NamedTuple):
    """Starts, or attempts to continue. All arrays have one entry per job."""

    begin: IntArray
    """Place of the first row to take."""
    state: IntArray
    stop: IntArray
    """Place after the last row that the job may take."""
    shared: npt.NDArray[np.bool_]
    """True if the job stops at the end of its partition's rows, like others."""


class Scanned(NamedTuple):
    """The results of jobs; all arrays have one entry per job."""

    state: IntArray
    """State of the automaton; 0 if no later row can change the result."""
    end: IntArray
    """Place after the last row of the preferred match; -1 if no match ended among the rows taken."""
    taken: IntArray
    """Place after the last row taken."""


class _Exits(NamedTuple):
    """The places whose rows leave a state."""

    places: IntArray
    """The places, followed by the number of all places."""
    before: npt.NDArray[np.int32]
    """For each place, and for the number of all places, how many of `places` lie before it."""

    def behind(self, at: IntArray) -> IntArray:
        """Returns for each place the first place at or after it whose row leaves the state."""
        return self.places[self.before[at]]


class Scanner:
    """The automaton as tables over classes of rows: rows that meet the same conditions are of one class."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self._class_of: dict[int, int] = {}
        self._masks: list[int] = []
        self._width = 8
        self._table = np.full(8 * self._width, _UNKNOWN, np.int32)

    @property
    def masks(self) -> IntArray:
        """Returns the conditions that rows of each class meet, as bits."""
        return np.array(self._masks, np.int64)

    def classes(self, masks: IntArray) -> Classes:
        """Returns the classes of rows that meet these conditions."""
        low, high = (int(masks.min()), int(masks.max())) if masks.size else (0, 0)
        if high - low < 4_096:
            table = np.zeros(high - low + 1, np.uint16)
            present = np.flatnonzero(np.bincount(masks - low, minlength=high - low + 1)) if masks.size else masks
            table[present] = [self._class(mask + low) for mask in present.tolist()]
            return table[masks - low]
        distinct, inverse = np.unique(masks, return_inverse=True)
        return np.array([self._class(mask) for mask in distinct.tolist()], np.uint16)[inverse]

    def _class(self, mask: int) -> int:
        found = self._class_of.get(mask)
        if found is None:
            found = self._class_of[mask] = len(self._masks)
            self._masks.append(mask)
            if found >= self._width:
                wide = np.full((self._table.size // self._width, 2 * self._width), _UNKNOWN, np.int32)
                wide[:, : self._width] = self._table.reshape(-1, self._width)
                self._width *= 2
                self._table = wide.ravel()
        return found

    def renumber(self, states: list[int]) -> list[int]:
        """Forgets all other states; returns the new numbers of these."""
        self._table = np.full(8 * self._width, _UNKNOWN, np.int32)
        numbers = self.automaton.renumber(states)
        if (len(states) + 2) * self._width > self._table.size:
            self._table = np.full((len(states) + 2) * self._width, _UNKNOWN, np.int32)
        return numbers

    def begins(self, classes: Classes, first_mask: int) -> npt.NDArray[np.bool_]:
        """Tells with which rows a match can begin."""
        return ((self.masks & first_mask) != 0)[classes] if self._masks else np.zeros(classes.size, np.bool_)

    def fails_at_once(self, classes: Classes) -> npt.NDArray[np.bool_]:
        """Tells for each row but the last whether a start there finds nothing because no way continues with the next row. With more than
        `PAIRED_MAX` classes, all are False.
        """
        count = len(self._masks)
        if count > PAIRED_MAX:
            return np.zeros(classes.size - 1, np.bool_)
        codes = np.arange(count, dtype=np.uint16)
        one = self.step(np.full(count, self.automaton.first, np.int64), codes)
        two = self.step(np.repeat((one >> 1).astype(np.int64), count), np.tile(codes, count))
        fails = (two == 0) & np.repeat(one & 1 == 0, count)
        found: npt.NDArray[np.bool_] = fails.take(classes[:-1] * np.uint16(count) + classes[1:])
        return found

    def step(self, state: IntArray, classes: Classes) -> npt.NDArray[np.int32]:
        """Returns for each job twice its next state, plus 1 if a match ends with the row."""
        at = state * self._width + classes
        found = self._table[at]
        if found.size and found.min() == _UNKNOWN:
            for place in np.unique(at[found == _UNKNOWN]).tolist():
                after, ended = self.automaton.step(place // self._width, self._masks[place % self._width])
                if (after + 1) * self._width > self._table.size:
                    self._table = np.concatenate([self._table, np.full(max(self._table.size, self._width), _UNKNOWN, np.int32)])
                self._table[place] = 2 * after + ended
            found = self._table[at]
        return np.asarray(found, np.int32)

    def _stays(self, state: int) -> tuple[npt.NDArray[np.bool_], bool]:
        """Returns the classes of rows that keep a state as it is, either all ending a match or none; and whether they do."""
        count = len(self._masks)
        found = self.step(np.full(count, state, np.int64), np.arange(count, dtype=np.uint16))
        quiet, loud = found == 2 * state, found == 2 * state + 1
        return (quiet, False) if quiet.any() else (loud, True)

    def scan(self, classes: Classes, jobs: Jobs) -> Scanned:
        """Runs jobs over rows, until they stop or can have no other match.

        Parameters
        ----------
        classes : classes of the rows; rows of one partition are adjacent
        """
        count = jobs.begin.size
        state_out, end, taken = jobs.state.copy(), np.full(count, -1, np.int64), jobs.begin.copy()
        live = np.flatnonzero((jobs.begin < jobs.stop) & (jobs.state != 0))
        at, state, stop = jobs.begin[live], jobs.state[live], jobs.stop[live]
        exits: dict[int, tuple[_Exits, bool] | None] = {}
        steps = 0
        while live.size:
            if steps >= STEPS_MAX and jobs.shared[live].any():
                together = jobs.shared[live]
                self._sweep(classes, live[together], at[together], state[together], stop[together], Scanned(state_out, end, taken))
                live, at, state, stop = (part[~together] for part in (live, at, state, stop))
                continue
            steps += 1
            found = self.step(state, classes[at])
            state = (found >> 1).astype(np.int64)
            at = at + 1
            ended = (found & 1).astype(np.bool_)
            if ended.any():
                end[live[ended]] = at[ended]
            self._jump(classes, live, at, state, stop, end, exits)
            done = (state == 0) | (at >= stop)
            if done.any():
                now, left = np.flatnonzero(done), np.flatnonzero(~done)
                over = live[now]
                state_out[over], taken[over] = state[now], at[now]
                live, at, state, stop = live[left], at[left], state[left], stop[left]
        return Scanned(state_out, end, taken)

    def _jump(
        self,
        classes: Classes,
        live: IntArray,
        at: IntArray,
        state: IntArray,
        stop: IntArray,
        end: IntArray,
        exits: dict[int, tuple[_Exits, bool] | None],
    ) -> None:
        """Moves jobs over rows that keep their state as it is. Changes `at` and `end`."""
        counts = np.bincount(state)
        for one in np.flatnonzero(counts).tolist():
            # Looking for exits takes as long as a step of `classes.size / 16` jobs.
            if one == 0 or (one not in exits and counts[one] * 16 < classes.size):
                continue
            if one not in exits:
                stays, loud = self._stays(one)
                exits[one] = (_exits(~stays[classes]), loud) if stays.any() else None
            known = exits[one]
            if known is None:
                continue
            places, loud = known
            here = np.flatnonzero((state == one) & (at < stop)) if counts[one] < state.size else np.flatnonzero(at < stop)
            to = np.minimum(places.behind(at[here]), stop[here])
            if loud:
                moved = to > at[here]
                end[live[here[moved]]] = to[moved]
            at[here] = to

    def _sweep(self, classes: Classes, live: IntArray, at: IntArray, state: IntArray, stop: IntArray, out: Scanned) -> None:
        """Runs the remaining jobs row by row; jobs that meet in one state are merged. Jobs that stop at the same place are of one
        partition.

        A node is [jobs, inner nodes, end]. A job's match ends at the end of the outermost node with an end that contains the job.
        """
        order = np.lexsort((at, stop))
        codes = classes.tolist()
        table, masks = self.automaton.next, self._masks
        jobs, places, states, stops = (part[order].tolist() for part in (live, at, state, stop))
        first = 0
        while first < len(jobs):
            last = first
            while last < len(jobs) and stops[last] == stops[first]:
                last += 1
            place, until = places[first], stops[first]
            nodes: dict[int, list[Any]] = {}
            while place < until:
                while first < last and places[first] == place:
                    node = nodes.get(states[first])
                    fresh: list[Any] = [[jobs[first]], [], -1]
                    if node is None:
                        nodes[states[first]] = fresh
                    elif node[2] < 0:
                        node[0].append(jobs[first])
                    else:
                        nodes[states[first]] = [[jobs[first]], [node], -1]
                    first += 1
                if not nodes:
                    if first == last:
                        break
                    place = places[first]
                    continue
                mask = masks[codes[place]]
                following: dict[int, list[Any]] = {}
                for one, node in nodes.items():
                    after, ended = table[one].get(mask) or self.automaton.step(one, mask)
                    if ended:
                        node[2] = place + 1
                    if after == 0:
                        _settle(node, 0, place + 1, out)
                    elif after in following:
                        following[after] = [[], [following[after], node], -1]
                    else:
                        following[after] = node
                nodes = following
                place += 1
            for one, node in nodes.items():
                _settle(node, one, until, out)
            first = last


def _settle(node: list[Any], state: int, taken: int, out: Scanned) -> None:
    stack = [(node, -1)]
    while stack:
        (jobs, nodes, end), above = stack.pop()
        told = end if above < 0 else above
        for job in jobs:
            out.state[job], out.taken[job] = state, taken
            if told >= 0:
                out.end[job] = told
        stack += [(inner, told) for inner in nodes]


def _exits(leaves: npt.NDArray[np.bool_]) -> _Exits:
    """Returns the exits of a state, given which places have rows that leave it."""
    before = np.cumsum(leaves, dtype=np.int32) - leaves
    return _Exits(np.append(np.flatnonzero(leaves), leaves.size), np.append(before, np.int32(np.count_nonzero(leaves))))
