"""Finds the matches of all partitions together, if conditions depend on single rows alone. Every row where a match can begin is a start.

A start is examined when its row comes, regardless of other matches; `sbon.operators.match.choice` then applies AFTER MATCH SKIP. A start
that is not settled at the end of the rows is *open*. Open starts of one partition with equal states and equal ends form a *slot*, which is
run over the next rows as one job. So the cost of a row does not depend on the number of open starts. Only a start whose time runs out among
the rows is run over them by itself, once.
"""

from bisect import bisect_right
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sbon.operators.match.choice import FAILED, MATCHED, NOTHING, TIMED_OUT, Candidates
from sbon.operators.match.grown import Grown
from sbon.operators.match.log import NO_ROW, Log
from sbon.operators.match.partitions import END, Partitions, Text, instants
from sbon.operators.match.scan import Classes, Jobs, Scanned, Scanner
from sbon.operators.match.turns import opens_at
from sbon.query.params.streams import WindowPart
from sbon.types import IntArray
from sbon.watermarks import WATERMARK_END

_SLOTS_MIN = 1_024


class Starts:
    """The starts of a pattern.

    Parameters
    ----------
    within_us : time of WITHIN; None: no limit
    behind : number of rows after a row that conditions and values read
    first_mask : bits of the variables that a match can begin with; 0 if every row is a start
    timeouts : whether matches that run out of time are emitted
    forget : called when states get new numbers
    part : the starts that this instance has; None: all
    """

    def __init__(
        self,
        log: Log,
        partitions: Partitions,
        scanner: Scanner,
        *,
        within_us: int | None,
        behind: int,
        first_mask: int,
        timeouts: bool,
        forget: Callable[[], None],
        part: WindowPart | None,
    ) -> None:
        self._log = log
        self._partitions = partitions
        self._scanner = scanner
        self._within = within_us
        self._behind = behind
        self._first = first_mask
        self._timeouts = timeouts
        self._skips_failures = bool(first_mask) and not timeouts and not scanner.automaton.takes_nothing
        """True if starts that find nothing do not affect any answer."""
        self._forget = forget
        self._part = part
        self.opens = Grown(np.int32)
        """Positions of the open starts, ordered by event time. Some are settled by now; their slot is NO_ROW."""
        self._begin = 0
        """Place in `opens` of the first start whose time is not up."""
        self._postponed: IntArray = np.zeros(0, np.int64)
        """Open starts whose time is up by the watermark, but of which a row waits for later rows that its conditions read."""
        self.open_count = Grown(np.int64)
        """Number of open starts of each partition."""
        self._lanes, self._states, self._ends, self._parents, self._members = (Grown(np.int64) for _ in range(5))
        """Slots: partition, state (0: settled), last row of the match found so far, the slot that it was merged into (or itself), number of
        open starts.
        """

    # ------------------------------------------------------------------------------------------------------------- steps

    def find(self, text: Text, watermark_us: int) -> Candidates:
        """Takes rows; returns the starts that are settled now.

        Parameters
        ----------
        watermark_us : no row below it is still to come; WATERMARK_END settles all
        """
        log, scanner, ended = self._log, self._scanner, watermark_us >= WATERMARK_END
        self._make_room()
        times = log.times.values[text.positions]
        codes = log.codes.values[text.positions]
        ranks = np.full(self._partitions.size, -1, np.int64)
        ranks[text.lanes[text.ends > text.begins]] = np.flatnonzero(text.ends > text.begins)
        deadline = np.minimum(self._partitions.pending.values, watermark_us)

        slots = np.flatnonzero(self._states.values > 0)
        slots = slots[ranks[self._lanes.values[slots]] >= 0]
        of_slot = ranks[self._lanes.values[slots]]
        begins = scanner.begins(codes, self._first) if self._first else np.ones(codes.size, np.bool_)
        if self._skips_failures and codes.size > 1:
            # Such a failure is known with the row after the start, so no later than the next attempt: it does not delay any answer.
            fails = scanner.fails_at_once(codes)
            ends = text.ends[text.ends > 0] - 1
            fails[ends[ends < fails.size]] = False
            begins[:-1] &= ~fails
        if self._part is not None:
            begins &= opens_at(log, text.positions, self._part)
        starts = np.flatnonzero(begins)
        of_start = np.repeat(np.arange(text.ends.size), text.ends - text.begins)[starts]
        first = np.full(starts.size, scanner.automaton.first, np.int64)
        before = self._states.values[slots]
        jobs = Jobs(
            np.concatenate([text.begins[of_slot], starts]),
            np.concatenate([before, first]),
            np.concatenate([text.ends[of_slot], text.ends[of_start]]),
            np.ones(slots.size + starts.size, np.bool_),
        )
        scanned = scanner.scan(codes, jobs)
        by_slot, by_start = (Scanned(*(part[cut] for part in scanned)) for cut in (slice(slots.size), slice(slots.size, None)))

        parts = [self._expired(text, times, codes, ranks, deadline, slots, by_slot, before)]
        parts.append(self._of_slots(text, slots, by_slot, watermark_us))
        parts.append(self._of_starts(text, times, codes, deadline, starts, of_start, by_start, ended=ended))
        return Candidates.joined(parts)

    def _row_instants(self, positions: IntArray) -> IntArray:
        """Returns the instants at which rows are known, together with the rows after them that conditions and values read."""
        last = self._log.moved(positions, self._behind)
        return np.where(last < 0, END, instants(self._log.times.values[last], 1)) if self._log.size else last

    def _until(self, times: IntArray) -> IntArray:
        """Returns the instants at which the time of starts is up."""
        return np.full(times.size, END) if self._within is None else instants(times + self._within, 0)

    def _settled(self, positions: IntArray, ends: IntArray, taken: IntArray, alive: npt.NDArray[np.bool_]) -> Candidates:
        """Returns settled starts as candidates.

        Parameters
        ----------
        ends : position of the match's last row, or NO_ROW
        taken : position of the last row that was examined
        alive : whether a later row could have changed the result, if time were not up
        """
        known = self._row_instants(np.maximum(taken, positions))
        times = self._log.times.values[positions]
        known = np.where(alive, np.maximum(known, self._until(times)), known)
        nothing = NOTHING if self._scanner.automaton.takes_nothing else FAILED
        kinds = np.where(ends >= 0, MATCHED, nothing)
        if self._timeouts:
            out = alive & (kinds == FAILED)
            kinds, ends = np.where(out, TIMED_OUT, kinds), np.where(out, taken, ends)
        return Candidates(self._log.lanes.values[positions].astype(np.int64), positions, ends, kinds, known)

    def _over(self, text: Text, at: IntArray) -> IntArray:
        """Returns the positions of the rows before these places."""
        return np.where(at > 0, text.positions[at - 1], NO_ROW) if text.positions.size else np.full(at.size, NO_ROW)

    # ------------------------------------------------------------------------------------------------------ starts whose time is up

    def _cut(self, times: IntArray, codes: Classes, text: Text, ranks: IntArray, jobs: Jobs, scanned: Scanned, until: IntArray) -> Scanned:
        """Runs jobs again that have taken a row after their time was up, now only up to that time.

        Parameters
        ----------
        until : event time at which the time of each job is up
        """
        last = scanned.taken - 1
        wrong = np.flatnonzero((scanned.taken > jobs.begin) & (times[np.maximum(last, 0)] >= until)) if times.size else until[:0]
        if not wrong.size:
            return scanned
        stop = _before(times, text, ranks[wrong], until[wrong])
        again = Jobs(jobs.begin[wrong], jobs.state[wrong], stop, np.zeros(wrong.size, np.bool_))
        anew = self._scanner.scan(codes, again)
        for column, values in zip(scanned, anew, strict=True):
            column[wrong] = values
        return scanned

    def _expired(
        self,
        text: Text,
        times: IntArray,
        codes: Classes,
        ranks: IntArray,
        deadline: IntArray,
        slots: IntArray,
        by_slot: Scanned,
        before: IntArray,
    ) -> Candidates:
        """Settles the open starts whose time is up."""
        within = self._within
        if within is None:
            return Candidates.none()
        log, watermark = self._log, int(deadline.max(initial=-WATERMARK_END))
        opens = self.opens.values
        end = bisect_right(range(opens.size), watermark - within, self._begin, key=lambda at: int(log.times.values[opens[at]]))
        due = np.concatenate([self._postponed, opens[self._begin : end]])
        self._begin = end
        due = due[log.slots.values[due] >= 0]
        lanes = log.lanes.values[due]
        up = log.times.values[due] + within <= deadline[lanes]
        self._postponed, due, lanes = due[~up], due[up], lanes[up]
        if not due.size:
            return Candidates.none()
        own = self._roots(log.slots.values[due])
        ends, taken, alive = self._ends.values[own].copy(), self._partitions.tail.values[lanes], np.ones(due.size, np.bool_)
        rank = ranks[lanes]
        touched = np.flatnonzero(rank >= 0)
        if self._behind:  # of a partition that got no rows now, the last `behind` rows are not examined yet
            taken = np.where(rank >= 0, taken, log.moved(taken, -self._behind))
        if touched.size:
            job = np.searchsorted(slots, own[touched])
            begin = text.begins[rank[touched]]
            jobs = Jobs(begin, before[job], begin, begin < 0)
            until = log.times.values[due[touched]] + within
            scanned = self._cut(times, codes, text, rank[touched], jobs, Scanned(*(part[job] for part in by_slot)), until)
            found = scanned.end >= 0
            ends[touched[found]] = text.positions[scanned.end[found] - 1]
            taken[touched] = np.where(scanned.taken > begin, self._over(text, scanned.taken), log.moved(text.positions[begin], -1))
            alive[touched] = scanned.state != 0
        self._close(due)
        return self._settled(due, ends, taken, alive)

    # ----------------------------------------------------------------------------------------------------- slots and new starts

    def _of_slots(self, text: Text, slots: IntArray, scanned: Scanned, watermark_us: int) -> Candidates:
        """Settles the starts of slots whose result no later row can change; at the end of the stream, settles all starts."""
        log, ended = self._log, watermark_us >= WATERMARK_END
        found = scanned.end >= 0
        self._ends.values[slots[found]] = text.positions[scanned.end[found] - 1]
        self._states.values[slots] = scanned.state
        taken = np.full(self._states.size, NO_ROW, np.int64)
        taken[slots] = self._over(text, scanned.taken)
        if not ended and not (scanned.state == 0).any():
            self._merge(slots)
            return Candidates.none()
        opens = self._open_now()
        own = self._roots(log.slots.values[opens])
        over = np.ones(own.size, np.bool_) if ended else self._states.values[own] == 0
        settled, own = opens[over], own[over]
        alive = self._states.values[own] != 0
        taken = np.where(taken[own] >= 0, taken[own], self._partitions.tail.values[log.lanes.values[settled]])
        ends = self._ends.values[own]
        self._close(settled)
        if not ended:
            self._merge(slots[scanned.state != 0])
        return self._settled(settled, ends, taken, alive)

    def _open_now(self) -> IntArray:
        """Returns the positions of all open starts."""
        opens = np.concatenate([self._postponed, self.opens.values[self._begin :]])
        return np.asarray(opens[self._log.slots.values[opens] >= 0], np.int64)

    def _of_starts(
        self,
        text: Text,
        times: IntArray,
        codes: Classes,
        deadline: IntArray,
        starts: IntArray,
        ranks: IntArray,
        scanned: Scanned,
        *,
        ended: bool,
    ) -> Candidates:
        """Settles new starts, and opens those whose result later rows can change."""
        lanes = text.lanes[ranks]
        up = np.zeros(starts.size, np.bool_)
        if self._within is not None:
            until = times[starts] + self._within
            jobs = Jobs(starts, np.full(starts.size, self._scanner.automaton.first, np.int64), starts, up)
            scanned = self._cut(times, codes, text, ranks, jobs, scanned, until)
            up = until <= deadline[lanes]
        alive = scanned.state != 0
        positions = text.positions[starts]
        ends = np.where(scanned.end >= 0, self._over(text, np.maximum(scanned.end, 0)), NO_ROW)
        opened = alive & ~up & (not ended)
        if opened.any():
            self._open(positions[opened], lanes[opened], scanned.state[opened], ends[opened])
        done = np.flatnonzero(~opened)
        taken = np.where(scanned.taken > starts, self._over(text, scanned.taken), positions)
        return self._settled(positions[done], ends[done], taken[done], alive[done])

    def _open(self, positions: IntArray, lanes: IntArray, states: IntArray, ends: IntArray) -> None:
        """Adds open starts to the slots of their states."""
        order = np.argsort(self._log.times.values[positions], kind="stable")
        self.opens.extend(positions[order].astype(np.int32))
        np.add.at(self.open_count.values, lanes, 1)
        known = np.flatnonzero(self._states.values > 0)
        concerned = np.zeros(self._partitions.size, np.bool_)
        concerned[lanes] = True
        known = known[concerned[self._lanes.values[known]]]
        keys = self._keys(
            np.concatenate([self._lanes.values[known], lanes]),
            np.concatenate([self._states.values[known], states]),
            np.concatenate([self._ends.values[known], ends]),
        )
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        is_new = first >= known.size
        slots = np.empty(distinct.size, np.int64)
        slots[~is_new] = known[first[~is_new]]
        fresh = first[is_new] - known.size
        slots[is_new] = np.arange(self._states.size, self._states.size + fresh.size)
        self._parents.extend(slots[is_new])
        self._members.fill(fresh.size, 0)
        self._lanes.extend(lanes[fresh])
        self._states.extend(states[fresh])
        self._ends.extend(ends[fresh])
        own = slots[inverse[known.size :]]
        self._log.slots.values[positions] = own
        np.add.at(self._members.values, own, 1)

    def _keys(self, lanes: IntArray, states: IntArray, ends: IntArray) -> IntArray:
        """Returns numbers that are equal if partition, state and end are equal."""
        _, pairs = np.unique(lanes << 32 | states, return_inverse=True)
        return np.asarray(pairs << 32 | (ends + 1), np.int64)

    def _merge(self, slots: IntArray) -> None:
        """Merges slots that have become equal."""
        if slots.size < 2:
            return
        keys = self._keys(self._lanes.values[slots], self._states.values[slots], self._ends.values[slots])
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        target = slots[first[inverse]]
        gone = target != slots
        self._parents.values[slots[gone]] = target[gone]
        np.add.at(self._members.values, target[gone], self._members.values[slots[gone]])
        self._states.values[slots[gone]] = 0

    def _roots(self, slots: npt.NDArray[np.integer]) -> IntArray:
        """Returns the slots that these slots have been merged into."""
        found = slots.astype(np.int64)
        while True:
            above = self._parents.values[found]
            if (above == found).all():
                return found
            found = above

    # ------------------------------------------------------------------------------------------------------- maintenance

    def _close(self, positions: IntArray) -> None:
        """Notes that starts are not open any more."""
        if not positions.size:
            return
        np.subtract.at(self.open_count.values, self._log.lanes.values[positions], 1)
        slots = self._roots(self._log.slots.values[positions])
        np.subtract.at(self._members.values, slots, 1)
        self._states.values[slots[self._members.values[slots] == 0]] = 0
        self._log.slots.values[positions] = NO_ROW

    def drop(self, positions: IntArray) -> None:
        """Forgets open starts that lie in a match."""
        self._close(positions)

    def after(self, asked: npt.NDArray[np.bool_], needed: IntArray) -> IntArray:
        """Returns the positions of open starts of partitions: of each partition, all up to the first one after a position, and maybe more.

        Parameters
        ----------
        asked : for each partition, whether it is asked for
        needed : for each partition, the position
        """
        log, found = self._log, []
        wanted = np.flatnonzero(asked & (self.open_count.values > 0))
        seen = np.full(asked.size, NO_ROW, np.int64)
        begin, step = self._begin, 1_024
        parts = [self._postponed] if self._postponed.size else []
        while wanted.size and (parts or begin < self.opens.size):
            part = parts.pop() if parts else self.opens.values[begin : begin + step]
            if part is not self._postponed:
                begin += step
                step *= 2
            part = part[log.slots.values[part] >= 0]
            part = part[asked[log.lanes.values[part]]]
            found.append(part)
            np.maximum.at(seen, log.lanes.values[part], part)
            wanted = wanted[seen[wanted] <= needed[wanted]]
        return np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64)

    def _make_room(self) -> None:
        """Adds room for new partitions, and renumbers slots and states when many are unused."""
        missing = self._partitions.size - self.open_count.size
        if missing:
            self.open_count.fill(missing, 0)
        live = np.flatnonzero(self._states.values > 0)
        if self.opens.size > 2 * int(self.open_count.values.sum()) + _SLOTS_MIN:
            rest = self.opens.values[self._begin :]
            self.opens.replace(rest[self._log.slots.values[rest] >= 0])
            self._begin = 0
        full = self._scanner.automaton.is_full
        if self._states.size <= 2 * live.size + _SLOTS_MIN and not full:
            return
        opens = self._open_now()
        place = np.full(self._states.size, NO_ROW, np.int64)
        place[live] = np.arange(live.size)
        self._log.slots.values[opens] = place[self._roots(self._log.slots.values[opens])]
        lanes, states, ends, members = (column.values[live] for column in (self._lanes, self._states, self._ends, self._members))
        if full:
            distinct, inverse = np.unique(states, return_inverse=True)
            states = np.array(self._scanner.renumber(distinct.tolist()), np.int64)[inverse]
            self._forget()
        for column, values in ((self._lanes, lanes), (self._states, states), (self._ends, ends), (self._members, members)):
            column.replace(values)
        self._parents.replace(np.arange(live.size))

    def compact(self, moved: npt.NDArray[np.int32]) -> None:
        """Replaces the positions of rows by their new ones; see `Log.compact`."""
        opens = moved[self.opens.values[self._begin :]]
        self.opens.replace(opens[opens >= 0])
        self._begin = 0
        self._postponed = moved[self._postponed].astype(np.int64)
        self._ends.replace(moved[self._ends.values].astype(np.int64))


def _before(times: IntArray, text: Text, ranks: IntArray, until: IntArray) -> IntArray:
    """Returns, for each pair of a partition (by its rank in the text) and a time, the place of the first row not before that time."""
    least = int(times.min())
    span = max(int(times.max()), int(until.max())) - least + 2
    if span * (text.ends.size + 1) >= 2**62:
        at = [int(np.searchsorted(times[text.begins[rank] : text.ends[rank]], time)) for rank, time in zip(ranks, until, strict=True)]
        return text.begins[ranks] + np.array(at, np.int64)
    of_row = np.repeat(np.arange(text.ends.size), text.ends - text.begins)
    return np.searchsorted(times - least + of_row * span, until - least + ranks * span)
