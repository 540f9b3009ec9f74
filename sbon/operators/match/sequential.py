"""Goes through partitions with one attempt at a time: for conditions that only the match so far decides.

Starts that `trials` has settled are not looked at again.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from sbon.operators.match.found import Matches
from sbon.operators.match.lane import Found, Lane, Rules
from sbon.operators.match.log import Log
from sbon.operators.match.partitions import Partitions, Text
from sbon.operators.match.trials import Trials
from sbon.query.plan import WATERMARK_END
from sbon.types import IntArray


class Sequential:
    """The partitions, each with its attempt.

    Parameters
    ----------
    value_count : operands with a value on each row
    """

    def __init__(self, log: Log, partitions: Partitions, rules: Rules, trials: Trials, value_count: int) -> None:
        self._log = log
        self._partitions = partitions
        self._rules = rules
        self._trials = trials
        self._value_count = value_count
        self._lanes: dict[int, Lane] = {}

    def add(self, lanes: Iterable[int], positions: list[IntArray], values: list[list[list[Any]]]) -> None:
        """Hands new rows to their partitions.

        Parameters
        ----------
        positions, values : for each partition
        """
        parts, times = self._partitions, self._log.times.values
        for number, rows, columns in zip(lanes, positions, values, strict=True):
            lane = self._lanes.get(number)
            if lane is None:
                lane = self._lanes[number] = Lane(self._value_count)
                # Rows before the start are read by their values alone.
                lane.base = int(parts.count.values[number]) - rows.size
                lane.start = lane.taken = int(parts.start.values[number])
                lane.masks = [0] * (lane.start - lane.base)
                lane.matched, lane.number = int(parts.matched.values[number]), int(parts.number.values[number])
                lane.known = int(parts.known.values[number])
            lane.ids += rows.tolist()
            lane.times += times[rows].tolist()
            for known, column in zip(lane.values, columns, strict=True):
                known += column

    def find(self, text: Text, masks: list[int], watermark_us: int) -> Matches:
        """Takes rows; returns what is known now.

        Parameters
        ----------
        masks : of the rows
        watermark_us : no row below it is still to come; WATERMARK_END settles all
        """
        parts, within = self._partitions, self._rules.params.within_us
        touched = dict.fromkeys(text.lanes.tolist())
        tried = self._trials.tried(text)
        for number, begin, end, starts in zip(text.lanes.tolist(), text.begins.tolist(), text.ends.tolist(), tried, strict=True):
            lane = self._lanes[number]
            lane.masks += masks[begin:end]
            lane.tried.extend(starts)
        if within is not None or watermark_us >= WATERMARK_END:
            until = watermark_us if within is None or watermark_us >= WATERMARK_END else watermark_us - within
            touched |= dict.fromkeys(np.flatnonzero(parts.since.values <= until).tolist())
        lanes: list[int] = []
        found: list[Found] = []
        for number in touched:
            known = self._lanes.get(number)
            if known is None:
                continue
            lane = known
            now = lane.settle(self._rules, watermark_us)
            found += now
            lanes += [number] * len(now)
            lane.trim(self._rules)
            parts.start.values[number], parts.number.values[number] = lane.start, lane.number
            parts.matched.values[number], parts.known.values[number] = lane.matched, lane.known
            since = lane.waits_since
            parts.since.values[number] = WATERMARK_END if since is None else since
        lengths = [len(one.positions) for one in found]
        return Matches(
            np.array(lanes, np.int64),
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
        """Lets go of partitions whose rows are settled."""
        for number in numbers.tolist():
            self._lanes.pop(number, None)

    def compact(self, moved: IntArray) -> None:
        """Follows rows that have other positions now, see `Log.compact`."""
        for lane in self._lanes.values():
            lane.ids = moved[np.array(lane.ids, np.int64)].tolist()
