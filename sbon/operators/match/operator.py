"""Finds the matches of a pattern: MATCH_RECOGNIZE.

Rows wait until the watermark has passed them; then they are put in order, partition by partition, and what single rows decide of the
conditions is computed in columns. Each partition goes through its rows with one attempt at a time (`sbon.operators.match.attempts`).
Matches leave in the order of the instants at which they are known, which rows and watermarks decide, not batches.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of
from sbon.operators.frames import computed
from sbon.operators.grouping import Groups
from sbon.operators.match.answers import Answers, Match
from sbon.operators.match.attempts import Attempt, BoundAttempt, PlainAttempt
from sbon.operators.match.conditions import Conditions
from sbon.operators.match.lane import Key, Lane, Rules
from sbon.operators.match.program import ANY, Automaton, compile_pattern
from sbon.operators.match.store import RowStore
from sbon.operators.measures import rows_apart
from sbon.operators.operands import one_zero
from sbon.operators.operator import Operator
from sbon.operators.pairing import in_time
from sbon.operators.snapshots import Parts, opened, parts_of
from sbon.query.plan import WATERMARK_END, WATERMARK_MIN, MatchNumber, MatchParams, Navigation
from sbon.query.row_pattern import first_variables, may_be_empty
from sbon.types import IntArray

STEP_ROWS = 16_384
"""Rows that are looked at in one step."""
ANSWER_ROWS = 16_384
"""Rows answered in one step."""
WAITING_FRAMES_MAX = 64
"""Most frames of waiting rows before they are combined into one."""

TIME = "\0time"
"""Column with the event time in microseconds, beside those of the input."""
_FRAMES = ("waiting", "kept", "lanes")
_LANE = {f"\0{name}": pl.Int64() for name in ("rows", "base", "start", "matched", "number", "known", "by_row")}
"""Columns of a partition in a snapshot, beside its key."""


class MatchRows(Operator):
    """Answers the matches of a pattern. A row behind the watermark, or without an event time, is late."""

    def __init__(self, params: MatchParams) -> None:
        self._params = params
        self._watermark = WATERMARK_MIN
        self._input: pl.DataFrame | None = None
        self._waiting: list[pl.DataFrame] = []
        """Rows that the watermark has not passed."""
        self._store = RowStore()
        self._lanes: dict[Key, Lane] = {}
        self._unsettled: dict[Key, int] = {}
        """Event time of the first row that is not settled, of each partition that has one."""
        self.late_rows = 0
        shifts = [one.shift for one in params.operands if isinstance(one, Navigation)]
        before, behind = max([0, *(-shift for shift in shifts)]), max([0, *shifts])
        self._keeps_lanes = before > 0 or any(isinstance(one, MatchNumber) for one in params.operands)
        """A partition is remembered when all its rows are settled."""
        self._program = compile_pattern(params.pattern)
        self._automaton = Automaton(self._program)
        first = ANY if may_be_empty(params.pattern) else sum(1 << variable for variable in first_variables(params.pattern))
        self._rules = Rules(params, before, behind, first, self._attempt)

    @property
    def state_rows(self) -> int:
        """Returns the number of waiting rows and of those that may still be in a match."""
        return sum(rows.height for rows in self._waiting) + sum(len(lane.ids) for lane in self._lanes.values())

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Keeps rows until the watermark has passed them."""
        if self._input is None:
            self._compile(frame)
        elif frame.schema != self._input.schema:
            raise RemoteProtocolError(f"input with columns {dict(frame.schema)}, expected {dict(self._input.schema)}")
        prepared = computed(frame, self._prepared)
        rows = in_time(prepared, TIME, max(WATERMARK_MIN, self._watermark))
        self.late_rows += frame.height - rows.height
        if rows.height:
            self._waiting.append(rows)
        if len(self._waiting) > WAITING_FRAMES_MAX:
            self._waiting = [pl.concat(self._waiting, rechunk=True)]
        return ()

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the event time of the first row that may still be in a match, if that is less."""
        return min([watermark_us, *self._unsettled.values()])

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Emits the matches that the watermark settles."""
        self._watermark = max(watermark_us, self._watermark)
        passed = pl.col(TIME) < self._watermark
        if any(rows[TIME].min() < self._watermark for rows in self._waiting):  # type: ignore[operator]
            rows = pl.concat([part.filter(passed) for part in self._waiting], rechunk=True)
            left = [rows_apart(part.filter(~passed)) for part in self._waiting]
            self._waiting = [part for part in left if part.height]
            rows = rows.sort([TIME, *self._ties], nulls_last=True, maintain_order=True)
        elif self._is_time_up():
            rows = None
        else:
            return ()
        return self._settled(rows)

    # ---------------------------------------------------------------------------------------------------------- partitions

    def _is_time_up(self) -> bool:
        """Tells whether the watermark alone settles something."""
        if not self._unsettled:
            return False
        within = self._params.within_us
        return self._watermark >= WATERMARK_END or (within is not None and min(self._unsettled.values()) + within <= self._watermark)

    def _settled(self, rows: pl.DataFrame | None) -> Iterator[Sequence[pl.DataFrame]]:
        """Yields the matches that are known now, in their order, after looking at the partitions in steps."""
        touched = {} if rows is None else self._arrived(rows)
        within = self._params.within_us
        until = self._watermark if within is None else self._watermark - within
        if within is not None or self._watermark >= WATERMARK_END:
            touched |= {key: self._lanes[key] for key, since in self._unsettled.items() if since <= until}
        matches: list[Match] = []
        lanes = list(touched.items())
        sizes = np.cumsum([len(lane.ids) + 8 for _, lane in lanes])
        cuts = [0, *(np.flatnonzero(np.diff(sizes // STEP_ROWS)) + 1).tolist(), len(lanes)]
        for first, end in pairwise(cuts):
            part = lanes[first:end]
            self._classify([lane for _, lane in part])
            for key, lane in part:
                found = lane.settle(self._rules, self._watermark)
                if found:
                    ids = lane.ids[:]
                    matches += [Match(key, one, ids, lane.base) for one in found]
                lane.trim(self._rules)
                self._note(key, lane)
            yield ()
        if matches:
            yield from self._answers.frames(matches, self._store, self._keys([match.key for match in matches]), ANSWER_ROWS)
        self._compact()

    def _arrived(self, rows: pl.DataFrame) -> dict[Key, Lane]:
        """Hands rows, in order, to their partitions; returns those that got some."""
        groups = Groups.of(rows, self._partition) if self._partition else Groups(np.zeros(rows.height, np.int64), 1, rows[:1].select([]))
        order = np.argsort(groups.ids, kind="stable")
        numbers = (self._store.add(rows) + order).tolist()
        times = rows[TIME].to_numpy()[order].tolist()
        ids = groups.ids[order]
        begins = np.append(0, np.flatnonzero(ids[1:] != ids[:-1]) + 1)
        ends = np.append(begins[1:], ids.size).tolist()
        keys = rows[pl.Series(order[begins])].select(self._partition).rows() if self._partition else [()]
        touched: dict[Key, Lane] = {}
        for values, begin, end in zip(keys, begins.tolist(), ends, strict=True):
            key = _key(values)
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = Lane(self._conditions.value_count)
            lane.ids += numbers[begin:end]
            lane.times += times[begin:end]
            touched[key] = lane
        return touched

    def _classify(self, lanes: Sequence[Lane]) -> None:
        """Computes what single rows decide, for the rows of which it can be known."""
        rules, ended = self._rules, self._watermark >= WATERMARK_END
        begins = [max(0, len(lane.masks) - rules.before) for lane in lanes]
        sizes = [len(lane.ids) - begin for lane, begin in zip(lanes, begins, strict=True)]
        if not sum(sizes):
            return
        numbers = np.fromiter(
            (number for lane, begin in zip(lanes, begins, strict=True) for number in lane.ids[begin:]), np.int64, sum(sizes)
        )
        of_lane: IntArray = np.repeat(np.arange(len(lanes)), sizes)
        classes = self._conditions.classify(self._store.taken(numbers), of_lane)
        masks = classes.masks.tolist()
        offset = 0
        for lane, begin, size in zip(lanes, begins, sizes, strict=True):
            known = len(lane.masks)
            ready = len(lane.ids) - (0 if ended else rules.behind)
            at = offset + known - begin
            lane.masks += masks[at : offset + ready - begin] if ready > known else []
            for values, column in zip(lane.values, classes.values, strict=True):
                values += column[offset + len(values) - begin : offset + size]
            offset += size

    def _note(self, key: Key, lane: Lane) -> None:
        """Notes since when a partition waits, and forgets one that has nothing to remember."""
        since = lane.waits_since
        if since is not None:
            self._unsettled[key] = since
            return
        self._unsettled.pop(key, None)
        if not self._keeps_lanes:
            del self._lanes[key]

    def _attempt(self, lane: Lane) -> Attempt:
        if self._conditions.depends_on_match:
            return BoundAttempt(self._program, self._conditions, lane.number + 1, lane.value_at)
        return PlainAttempt(self._program, self._automaton)

    def _compact(self) -> None:
        live = sum(len(lane.ids) for lane in self._lanes.values())
        if not self._store.needs_compaction(live):
            return
        lanes = list(self._lanes.values())
        number = self._store.compact(np.fromiter((one for lane in lanes for one in lane.ids), np.int64, live))
        for lane in lanes:
            lane.ids = list(range(number, number + len(lane.ids)))
            number += len(lane.ids)

    # -------------------------------------------------------------------------------------------------------------- state

    def parts(self) -> Parts:
        """Returns the waiting rows, and the partitions with their rows. Attempts are not kept: their rows give them again."""
        frames: dict[str, pl.DataFrame] = {}
        if self._input is not None:
            frames["input"] = self._input
        if self._waiting:
            frames["waiting"] = pl.concat(self._waiting, rechunk=True)
        if self._lanes:
            kept = sorted(self._lanes.values(), key=lambda lane: (lane.ids[:1], lane.base))
            keys = {id(lane): key for key, lane in self._lanes.items()}
            numbers = np.fromiter((number for lane in kept for number in lane.ids), np.int64)
            if numbers.size:
                frames["kept"] = self._store.taken(numbers)
            told = [(len(lane.ids), lane.base, lane.start, lane.matched, lane.number, *lane.known) for lane in kept]
            lanes = pl.DataFrame(told, schema=_LANE, orient="row")
            frames["lanes"] = pl.concat([self._keys([keys[id(lane)] for lane in kept]), lanes], how="horizontal")
        return parts_of(self._params, self._watermark, self.late_rows, frames)

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        head, frames = opened(parts, self._params)
        if set(frames) - {"input", *_FRAMES} or (frames and "input" not in frames):
            raise RemoteProtocolError(f"snapshot with frames {sorted(frames)}, expected input, {' and '.join(_FRAMES)}")
        self._input, self._waiting, self._store, self._lanes, self._unsettled = None, [], RowStore(), {}, {}
        self._watermark, self.late_rows = head.watermark_us, head.late_rows
        if "input" not in frames:
            return
        self._compile(frames["input"].clear())
        expected = frames["input"].clear().select(self._prepared).schema
        for name in ("waiting", "kept"):
            if name in frames and (frames[name].schema != expected or frames[name][TIME].null_count()):
                raise RemoteProtocolError(f"{name} rows of a snapshot have columns {dict(frames[name].schema)}, expected {dict(expected)}")
        self._waiting = [frames["waiting"]] if "waiting" in frames else []
        if "lanes" in frames:
            self._adopt_lanes(frames["lanes"], frames.get("kept", frames["input"].clear().select(self._prepared)))

    def _adopt_lanes(self, told: pl.DataFrame, kept: pl.DataFrame) -> None:
        if dict(told.schema) != {**self._keys([]).schema, **_LANE} or any(told[name].null_count() for name in _LANE):
            raise RemoteProtocolError(f"partitions of a snapshot have columns {dict(told.schema)}")
        number, times, offset = self._store.add(kept), kept[TIME].to_list(), 0
        keys = told.select(self._partition).rows() if self._partition else [()] * told.height
        for values, (rows, *numbers) in zip(keys, told.select(list(_LANE)).rows(), strict=True):
            lane = Lane(self._conditions.value_count)
            lane.base, lane.start, lane.matched, lane.number = numbers[:4]
            lane.known = numbers[4], numbers[5]
            if not 0 <= rows <= kept.height - offset or not lane.base <= lane.start <= lane.base + rows:
                raise RemoteProtocolError(f"a partition of a snapshot has {rows} rows, and looks for a match at {lane.start - lane.base}")
            lane.ids = list(range(number + offset, number + offset + rows))
            lane.times = times[offset : offset + rows]
            offset += rows
            self._lanes[_key(values)] = lane
        if offset != kept.height:
            raise RemoteProtocolError(f"partitions of a snapshot have {offset} of its {kept.height} rows")
        self._classify(list(self._lanes.values()))
        for key, lane in list(self._lanes.items()):
            lane.taken = lane.start
            if lane.settle(self._rules, self._watermark):
                raise RemoteProtocolError("a snapshot has a match that should have left")
            self._note(key, lane)

    def fork(self) -> Self:
        """Returns an operator in the same state."""
        other = type(self)(self._params)
        other.adopt(self.parts())
        return other

    def _keys(self, keys: Sequence[Key]) -> pl.DataFrame:
        """Returns the partition columns of partitions."""
        assert self._input is not None
        if not self._partition:
            return pl.DataFrame()
        schema = {name: self._types[name] for name in self._partition}
        return pl.DataFrame([[_plain(value) for value in key] for key in keys], schema=schema, orient="row")

    def _compile(self, frame: pl.DataFrame) -> None:
        """Compiles prepared rows: the event time, then the columns of the input as they are named there."""
        params, columns = self._params, columns_of(frame)
        missing = [name for name in (params.time_column, *params.partition, *params.ties, *(params.passed or ())) if name not in columns]
        if missing:
            raise RemoteProtocolError(f"column {missing[0]!r} is not among the input columns {', '.join(columns)}")
        if frame.schema[params.time_column] != pl.Datetime("us"):
            raise RemoteProtocolError(f"event time {params.time_column!r} is no time column of the input")
        if TIME in columns:
            raise RemoteProtocolError(f"input column {TIME!r} is named as the event time of prepared rows")
        self._prepared = [pl.col(params.time_column).cast(pl.Int64).alias(TIME)]
        self._prepared += [one_zero(pl.col(name), kind).alias(name) for name, kind in columns.items()]
        self._types = frame.schema
        self._partition = list(params.partition)
        self._ties = list(params.ties)
        self._conditions = Conditions(params, columns)
        self._answers = Answers(params, columns)
        self._input = frame.clear()


class _NotANumber:
    """Stands for NaN in keys, which is not equal to itself."""


_NAN = _NotANumber()


def _key(values: Sequence[Any]) -> Key:
    return tuple(_NAN if value != value else value for value in values)


def _plain(value: Any) -> Any:
    return float("nan") if value is _NAN else value
