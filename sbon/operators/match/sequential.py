"""Finds the matches of all partitions if some conditions depend on the match so far.

Starts are tried together (`trials`), and `choice` applies AFTER MATCH SKIP. If trials cannot settle a start, its partition continues row by
row, one attempt at a time (`lane`), until no attempt is open. Starts that wait for more rows are tried again when these come.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sbon.operators.match.attempts import Labels
from sbon.operators.match.choice import FAILED, MATCHED, NOTHING, Candidates, Choice, Chosen
from sbon.operators.match.conditions import Conditions
from sbon.operators.match.found import Matches
from sbon.operators.match.lane import Found, Lane, Rules, Tried
from sbon.operators.match.log import NO_ROW, Log
from sbon.operators.match.partitions import END, Partitions, Text, instants
from sbon.operators.match.trials import Outcomes, Trials
from sbon.types import IntArray
from sbon.watermarks import WATERMARK_END

ROWS_MIN = 256
"""Fewer rows are processed row by row, because trials compute on columns, which takes as long for few rows as for many."""


class Sequential:
    """Finds matches; keeps the partitions that are processed row by row.

    Parameters
    ----------
    told : returns matches with their rows
    labelled : returns where the rows of each candidate begin, their positions, and their labels
    """

    def __init__(
        self,
        log: Log,
        partitions: Partitions,
        rules: Rules,
        trials: Trials,
        choice: Choice,
        conditions: Conditions,
        told: Callable[[Chosen], Matches],
        labelled: Callable[[Candidates], tuple[IntArray, IntArray, IntArray]],
    ) -> None:
        self._log = log
        self._partitions = partitions
        self._rules = rules
        self._trials = trials
        self._choice = choice
        self._conditions = conditions
        self._told = told
        self._labelled = labelled
        self._lanes: dict[int, Lane] = {}
        """Partitions that are processed row by row."""
        self.opens: IntArray = np.zeros(0, np.int64)
        """Positions of the starts of all other partitions that are not settled."""

    def add(self, lanes: IntArray, begins: IntArray, ends: IntArray) -> None:
        """Hands new rows to their partitions, if these are processed row by row.

        Parameters
        ----------
        begins, ends : for each partition, position of its first new row, and after its last one
        """
        given = zip(lanes.tolist(), begins.tolist(), ends.tolist(), strict=True)
        self._give([(self._lanes[lane], np.arange(begin, end)) for lane, begin, end in given if lane in self._lanes])

    def _give(self, rows: Sequence[tuple[Lane, IntArray]]) -> None:
        """Hands rows to partitions that are processed row by row."""
        if not rows:
            return
        log, conditions = self._log, self._conditions
        values = conditions.values(log.taken(np.concatenate([positions for _, positions in rows]))) if conditions.value_count else []
        begin = 0
        for lane, positions in rows:
            end = begin + positions.size
            lane.ids += positions.tolist()
            lane.times += log.times.values[positions].tolist()
            for known, column in zip(lane.values, values, strict=True):
                known += column[begin:end]
            begin = end

    def find(self, text: Text, watermark_us: int) -> Matches:
        """Takes rows; returns the matches that are known now.

        Parameters
        ----------
        watermark_us : no row below it is still to come; WATERMARK_END settles all
        """
        parts, within = self._partitions, self._rules.params.within_us
        ended, is_small = watermark_us >= WATERMARK_END, text.positions.size < ROWS_MIN
        by_row = np.array([is_small or lane in self._lanes for lane in text.lanes.tolist()], np.bool_)
        if not is_small:
            text = self._with_held(text, ~by_row)
            outcomes = self._trials.outcomes(text)
            found, stuck = self._chosen(text, outcomes, ~by_row)
        due = parts.since.values <= (watermark_us if within is None or ended else watermark_us - within)
        due &= ended or within is not None
        due[text.lanes[by_row] if is_small else np.append(text.lanes[by_row], stuck)] = True
        due &= parts.start.values < parts.count.values
        fresh = [lane for lane in np.flatnonzero(due).tolist() if lane not in self._lanes]
        for rank in np.flatnonzero(by_row).tolist():
            lane = self._lanes.get(int(text.lanes[rank]))
            if lane is not None:
                lane.masks += self._trials.masks(text.positions[text.begins[rank] : text.ends[rank]])
        self._begin(fresh, text)
        touched = [lane for lane in np.flatnonzero(due).tolist() if lane in self._lanes]
        if is_small:
            return self._settle(touched, watermark_us)
        if not touched:
            return found
        self._skip_settled(text, outcomes, np.isin(text.lanes, touched))
        found = found.and_(self._settle(touched, watermark_us))
        for number in touched:
            if self._lanes[number].attempt is None:
                del self._lanes[number]
        return found

    def _chosen(self, text: Text, outcomes: Outcomes, wanted: npt.NDArray[np.bool_]) -> tuple[Matches, IntArray]:
        """Chooses the matches among settled starts of the wanted partitions; returns the matches, and the partitions that need attempts."""
        mine = wanted[outcomes.ranks]
        is_open = mine & (outcomes.taken == 0)
        self.opens = text.positions[outcomes.starts[is_open]]
        settled = self._candidates(text, outcomes, mine & (outcomes.taken > 0))
        lanes = text.lanes[wanted]
        found = self._told(self._choice.choose(settled, lanes))
        self._choice.forget_held()
        return found, lanes[np.isin(self._choice.blocked[lanes], self.opens[~outcomes.waits[is_open]])]

    def _with_held(self, text: Text, wanted: npt.NDArray[np.bool_]) -> Text:
        """Adds to the new rows of the wanted partitions their earlier rows that are not settled."""
        parts, log = self._partitions, self._log
        which = np.flatnonzero(wanted & (text.ends > text.begins))
        at = log.moved(text.positions[text.begins[which]], -1)
        rows, ranks = [text.positions], [np.repeat(np.arange(text.lanes.size), text.ends - text.begins)]
        while which.size:
            held = (at >= 0) & (log.places.values[at] >= parts.start.values[text.lanes[which]])
            which, at = which[held], at[held]
            rows.append(at)
            ranks.append(which)
            at = log.moved(at, -1)
        positions, rank = np.concatenate(rows), np.concatenate(ranks)
        if positions.size > text.positions.size:
            order = np.argsort(rank << 32 | positions, kind="stable")
            positions, rank = positions[order], rank[order]
        edges = np.append(0, np.cumsum(np.bincount(rank, minlength=text.lanes.size)))
        return Text(positions, text.lanes, edges[:-1], edges[1:])

    def _candidates(self, text: Text, outcomes: Outcomes, wanted: npt.NDArray[np.bool_]) -> Candidates:
        """Returns settled starts as candidates."""
        log = self._log
        _, starts, taken, lengths, _ = (part[wanted] for part in outcomes)
        matched = lengths > 0
        last = np.where(matched, text.positions[starts + np.maximum(lengths, 1) - 1], NO_ROW)
        read = log.moved(text.positions[taken - 1], self._rules.behind)
        known = np.where(read < 0, END, instants(log.times.values[read], 1))
        kinds = np.where(matched, MATCHED, NOTHING if self._trials.takes_nothing else FAILED)
        first = text.positions[starts]
        return Candidates(log.lanes.values[first].astype(np.int64), first, last, kinds, known)

    # ---------------------------------------------------------------------------------------------------------- row by row

    def _begin(self, lanes: list[int], text: Text) -> None:
        """Begins to process partitions row by row, from their first row that is not settled."""
        parts, log, given = self._partitions, self._log, []
        ranks = {lane: rank for rank, lane in enumerate(text.lanes.tolist())} if lanes else {}
        for number in lanes:
            lane = self._lanes[number] = Lane(self._conditions.value_count)
            lane.start = lane.taken = int(parts.start.values[number])
            lane.matched, lane.number = int(parts.matched.values[number]), int(parts.number.values[number])
            lane.known = int(parts.known.values[number])
            tail, least = int(parts.tail.values[number]), lane.start - self._rules.before
            rank = ranks.get(number)
            known = text.positions[text.begins[rank] : text.ends[rank]] if rank is not None else text.positions[:0]
            known = known[log.places.values[known] >= lane.start]
            if known.size:
                before = log.back_to(least, int(log.moved(known[:1], -1)[0]))
                rows = np.concatenate([before, known, log.back_to(int(log.places.values[known[-1]]) + 1, tail)]).astype(np.int64)
            else:
                rows = np.array(log.back_to(least, tail), np.int64)
            places = log.places.values[rows]
            lane.base = int(places[0])
            ready = rows[(places >= lane.start) & (places < parts.ready.values[number])]
            lane.masks = [0] * int(lane.start - lane.base) + self._trials.masks(ready)
            given.append((lane, rows))
        self._give(given)

    def _skip_settled(self, text: Text, outcomes: Outcomes, wanted: npt.NDArray[np.bool_]) -> None:
        """Tells partitions that are processed row by row which of their starts are settled."""
        log, nothing = self._log, 0 if self._trials.takes_nothing else None
        settled = np.flatnonzero((outcomes.taken > 0) & wanted[outcomes.ranks])
        all_ = np.zeros(outcomes.taken.size, np.bool_)
        all_[settled] = True
        offsets, _, labels = self._labelled(matched := (found := self._candidates(text, outcomes, all_)).at(found.kinds == MATCHED))
        variables, excluded = (labels >> 1).tolist(), (labels & 1).astype(np.bool_).tolist()
        begins = np.zeros(found.first.size, np.int64)
        begins[found.kinds == MATCHED] = offsets[: matched.first.size]
        places = log.places.values[found.first]
        behind = places + outcomes.taken[settled] - outcomes.starts[settled]
        columns = (found.lanes, places, behind, outcomes.lengths[settled], begins)
        for lane, place, taken, length, begin in zip(*(column.tolist() for column in columns), strict=True):
            told = Labels(variables[begin : begin + length], excluded[begin : begin + length])
            self._lanes[lane].tried.append(Tried(place, taken, length or nothing, told))

    def _settle(self, lanes: list[int], watermark_us: int) -> Matches:
        """Continues partitions row by row; returns the matches that are known now."""
        parts, numbers = self._partitions, []
        found: list[Found] = []
        for number in lanes:
            lane = self._lanes[number]
            now = lane.settle(self._rules, watermark_us)
            found += now
            numbers += [number] * len(now)
            lane.trim(self._rules)
            parts.start.values[number], parts.number.values[number] = lane.start, lane.number
            parts.matched.values[number], parts.known.values[number] = lane.matched, lane.known
            since = lane.waits_since
            parts.since.values[number] = WATERMARK_END if since is None else since
        lengths = [len(one.positions) for one in found]
        return Matches(
            np.array(numbers, np.int64),
            np.array([one.known for one in found], np.int64),
            np.array([one.first for one in found], np.int64),
            np.array([one.number for one in found], np.int64),
            np.array([one.timed_out for one in found], np.bool_),
            np.append(0, np.cumsum(lengths)).astype(np.int64),
            np.array([row for one in found for row in one.positions], np.int64),
            np.array([variable for one in found for variable in one.labels.variables], np.int64),
            np.array([out for one in found for out in one.labels.excluded], np.bool_),
        )

    def forget(self, numbers: IntArray) -> None:
        """Forgets partitions whose rows are settled."""
        for number in numbers.tolist():
            self._lanes.pop(number, None)

    def compact(self, moved: npt.NDArray[np.int32]) -> None:
        """Replaces the positions of rows by their new ones; see `Log.compact`."""
        self._choice.compact(moved)
        for lane in self._lanes.values():
            lane.ids = moved[np.array(lane.ids, np.int64)].tolist()
