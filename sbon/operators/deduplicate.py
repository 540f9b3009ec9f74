"""Deduplication: keeps the first row of a key in each tumbling window, or after a pause.

The first row is the one with the least event time. Rows wait until the watermark has passed them, since an earlier row may come until then.
So the answer does not depend on how links interleave or rows are batched. The state is the waiting rows and the keys of open windows or
unfinished pauses. The keys used least may be on disk (`sbon.operators.seen_states`); waiting rows are in memory.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Self

import numpy as np
import polars as pl

from sbon.errors import RemoteProtocolError, StateError
from sbon.operators.assign import bounds
from sbon.operators.compile import columns_of
from sbon.operators.grouping import Groups, physical
from sbon.operators.operands import one_zero
from sbon.operators.partials import TIME
from sbon.operators.patient import PatientOperator
from sbon.operators.runs import runs_of
from sbon.operators.seen import NEVER, Seen, latest
from sbon.operators.seen_states import SeenStates
from sbon.operators.snapshots import Head, Parts, parts_of
from sbon.operators.windowed import FRAME_ROWS_MAX, PANE, PENDING_ROWS_MAX
from sbon.query.params.ordered import DeduplicateParams
from sbon.query.relation import BOUNDS
from sbon.schema import ColumnType
from sbon.state.room import StateRoom
from sbon.types import IntArray
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

_SEEN = "seen"
_ROW, _NUMBER = "\0row", "\0number"
STEP_ROWS = 65_536
"""Most rows examined in one step, about ten milliseconds' work."""
_FORGETTINGS = 8
"""Expired keys are dropped this many times per span."""


class Deduplicate(PatientOperator[DeduplicateParams]):
    """Keeps the first row of each key. A row behind the watermark, or without an event time, is late.

    Parameters
    ----------
    room : memory and disk for keys; None: all are in memory

    Raises
    ------
    StateError
        The memory for keys is too small for the keys of one batch.
    """

    def __init__(self, params: DeduplicateParams, room: StateRoom | None = None) -> None:
        super().__init__(params)
        self._room = room
        self._window: list[str] = []
        self._keys: list[str] = []
        self._sort: list[str] = []
        self._settled_rows = 0
        """Number of waiting rows examined so far."""
        self._seen: Seen | SeenStates = self._none_seen({})
        self._forgotten_us = WATERMARK_MIN

    @property
    def state_rows(self) -> int:
        """Returns the number of waiting rows and of keys."""
        return self._waiting.rows + self._seen.rows

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Keeps rows until the watermark has passed them; if many wait, keeps only those that may be first.

        Raises
        ------
        StateFullError
            Keys must go to disk, and the disk is full. The state is unchanged.
        """
        self._seen.make_room()
        super().process(port, frame)
        if not self._params.session and self._waiting.rows - self._settled_rows >= max(PENDING_ROWS_MAX, self._settled_rows):
            waiting = self._waiting.frame()
            assert waiting is not None
            groups = Groups.of(waiting, [*self._window, *self._keys])
            self._waiting.replace(waiting[self._firsts(waiting, groups, lambda rows: np.full(rows.size, NEVER))])
            self._settled_rows = self._waiting.rows
        return ()

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Emits the first rows among those that the watermark has passed."""
        self._watermark = max(watermark_us, self._watermark)
        due = self._waiting.take(self._passed(self._watermark))
        self._settled_rows = min(self._settled_rows, self._waiting.rows)
        if due is not None and due.height > STEP_ROWS:
            return self._give_many(due)
        answer = () if due is None else (self._give(due),)
        self._forget()
        return answer

    def _give_many(self, due: pl.DataFrame) -> Iterator[Sequence[pl.DataFrame]]:
        """Emits rows in steps; rows of one instant stay together, because the first of them is known only when all are there."""
        due = due.sort(TIME, maintain_order=True)
        times = physical(due[TIME])
        start = 0
        while start < times.size:
            last = times[min(start + STEP_ROWS, times.size) - 1]
            end = int(np.searchsorted(times, last, side="right"))
            yield self._give(due[start:end])
            start = end
        self._forget()

    def _give(self, due: pl.DataFrame) -> list[pl.DataFrame]:
        seen = self._seen
        if isinstance(seen, SeenStates):
            return self._named(self._by_key(due[self._firsts_on_disk(due, seen)]))
        groups = Groups.of(due, [*self._window, *self._keys])
        first = self._by_key(due[self._firsts(due, groups, lambda rows: seen.instants(due.select_seq(self._keys)[rows]))])
        seen.add(latest(due, self._keys) if self._params.session else first.select_seq(pl.col(PANE).alias(TIME), *self._keys))
        return self._named(first)

    def _firsts_on_disk(self, due: pl.DataFrame, seen: SeenStates) -> IntArray:
        """Returns what `_firsts` does, and notes the keys; the keys are hashed and looked up once."""
        batch = seen.batch(due)
        pairs = pl.DataFrame([*(due[name] for name in self._window), pl.Series(_NUMBER, batch.numbers)])
        found = self._firsts(due, Groups.of(pairs, pairs.columns), batch.instants)
        if self._params.session:
            batch.note(slice(None), physical(due[TIME]))
        else:
            batch.note(found, physical(due[PANE])[found])
        return found

    def _by_key(self, first: pl.DataFrame) -> pl.DataFrame:
        """Returns first rows, in the order of their times, with those of one instant in the order of their keys."""
        times = physical(first[TIME])
        same = times[1:] == times[:-1]
        if not same.any():
            return first
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        order = np.arange(times.size)
        some = first.select_seq(TIME, *self._keys)[tied].with_columns_seq(pl.Series(_ROW, tied))
        order[tied] = some.sort([TIME, *self._keys])[_ROW].to_numpy()
        return first[order]

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the instant below which all rows have been emitted; rows leave in the order of their times."""
        return self._passed(watermark_us)

    def _kept(self) -> dict[str, pl.DataFrame]:
        seen = self._seen.frame(self._useless_below(self._passed(self._watermark)))
        return {} if seen is None else {_SEEN: seen}

    def _kept_columns(self, prepared: pl.DataFrame) -> dict[str, pl.Schema | None]:
        return {_SEEN: prepared.select_seq(TIME, *self._keys).schema}

    def pieces(self) -> tuple[Head, Iterator[tuple[str, pl.DataFrame]]]:
        """Returns the state, with keys on disk read a piece at a time."""
        seen = self._seen
        if isinstance(seen, Seen) or self._input is None:
            return super().pieces() or (self.parts().head, iter(()))
        keys = ((_SEEN, rows) for rows in seen.pieces(self._useless_below(self._passed(self._watermark))))
        return parts_of(self._params, self._watermark, self.late_rows, {}).head, chain(self._rows_kept().items(), keys)

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        self._seen, self._settled_rows, self._forgotten_us = self._none_seen({}), 0, WATERMARK_MIN
        if (seen := self._adopted(parts).get(_SEEN)) is not None:
            self._take_seen(seen)

    def adopting(self, head: Head) -> Callable[[str, pl.DataFrame], None] | None:
        """Continues from a snapshot that comes in pieces, if keys may go to disk."""
        if self._room is None:
            return None
        self.adopt(Parts(head, {}))
        return self._take_piece

    def _take_piece(self, name: str, rows: pl.DataFrame) -> None:
        if not self._take(name, rows):
            self._take_seen(rows)

    def _take_seen(self, seen: pl.DataFrame) -> None:
        try:
            self._seen.take(seen)
        except StateError as problem:
            raise RemoteProtocolError(f"snapshot of first rows: {problem}") from problem

    def fork(self) -> Self:
        """Returns an operator in the same state."""
        return copy.deepcopy(self, {id(self._room): self._room})

    def _none_seen(self, keys: Mapping[str, pl.DataType]) -> Seen | SeenStates:
        return Seen(list(keys)) if self._room is None else SeenStates(keys, self._room)

    def _passed(self, watermark_us: int) -> int:
        """Returns the instant below which rows are due."""
        if watermark_us <= WATERMARK_MIN or watermark_us >= WATERMARK_END:
            return watermark_us
        return max(WATERMARK_MIN, watermark_us - self._params.allowed_lateness_us)

    def _useless_below(self, passed_us: int) -> int:
        """Returns the instant before which a key's last row (or, in windows, its window's start) no longer affects rows to come."""
        if passed_us >= WATERMARK_END:
            return WATERMARK_END
        span = self._params.span_us
        return passed_us - span + 1 if self._params.session else passed_us // span * span

    def _forget(self) -> None:
        passed_us = self._passed(self._watermark)
        if passed_us - self._forgotten_us >= self._params.span_us // _FORGETTINGS:
            self._seen.forget(self._useless_below(passed_us))
            self._forgotten_us = passed_us

    def _firsts(self, rows: pl.DataFrame, groups: Groups, last_seen: Callable[[IntArray], IntArray]) -> IntArray:
        """Returns the indices of rows that are the first of their key, ordered by time.

        Parameters
        ----------
        groups : rows by key, and by window if there are any
        last_seen : returns when the keys of rows, given by index, were last seen before these rows; NEVER if they were not
        """
        times = physical(rows[TIME])
        whole = np.arange(times.size)
        by_time = whole if (times[1:] >= times[:-1]).all() else np.argsort(times, kind="stable")
        runs = runs_of(groups.ids[by_time], groups.size)
        order = by_time[runs.order]
        ordered = times[order]
        begins = np.zeros(times.size, np.bool_)
        begins[runs.starts] = True
        leaders = order[runs.starts]
        before = last_seen(leaders)
        first = np.zeros(times.size, np.bool_)
        if self._params.session:
            first[1:] = ordered[1:] - ordered[:-1] >= self._params.span_us
            first[runs.starts] = (before == NEVER) | (ordered[runs.starts] - before >= self._params.span_us)
        else:
            first[runs.starts] = before < physical(rows[PANE])[leaders]
        # A row at the same instant as its key's first row is a candidate too.
        again = np.zeros(times.size, np.bool_)
        again[1:] = ~begins[1:] & (ordered[1:] == ordered[:-1])
        if self._sort and (first[:-1] & again[1:]).any():
            order[first] = self._least(rows, order, np.cumsum(~again) - 1, first)
        found = order[first]
        return np.sort(found) if by_time is whole else found[np.argsort(times[found], kind="stable")]

    def _least(self, rows: pl.DataFrame, order: IntArray, instant: IntArray, first: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> IntArray:
        """Returns, for each instant with a first row, the index of the row that is first by the query's order and ties."""
        wanted = np.zeros(int(instant[-1]) + 1, np.bool_)
        wanted[instant[first]] = True
        among = np.flatnonzero(wanted[instant])
        params = self._params
        descending = [column.descending for column in params.order] + [False] * len(params.ties)
        last = [not column.nulls_first for column in params.order] + [True] * len(params.ties)
        frame = rows[order[among]].select_seq(self._sort).with_columns_seq(pl.Series("\0", instant[among]), pl.Series("\1", order[among]))
        frame = frame.sort(["\0", *self._sort], descending=[False, *descending], nulls_last=[False, *last], maintain_order=True)
        return frame.unique("\0", keep="first", maintain_order=True)["\1"].to_numpy()

    def _named(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        """Returns rows with the columns of the output."""
        assert self._input is not None
        columns = [pl.col(f"c{index}").alias(name) for index, name in enumerate(self._input.columns) if name not in BOUNDS]
        start = bounds(pl.col(TIME), 0)[:1] if self._params.session else bounds(pl.col(PANE), self._params.span_us)
        return list(rows.select_seq(*start, *columns).iter_slices(FRAME_ROWS_MAX))

    def _compile(self, frame: pl.DataFrame) -> None:
        """Compiles prepared rows: event time, start of the window, then the columns as c0, c1, ..."""
        columns = columns_of(frame)
        if columns.get(self._params.time_column) is not ColumnType.TIME:
            raise RemoteProtocolError(f"event time {self._params.time_column!r} is no time column of the input")
        names = {name: f"c{index}" for index, name in enumerate(columns)}
        sort = [*(column.name for column in self._params.order), *self._params.ties]
        missing = [name for name in (*self._params.keys, *sort) if name not in names]
        if missing:
            raise RemoteProtocolError(f"column {missing[0]!r} of the key or order is not among the input columns {', '.join(columns)}")
        time = pl.col(self._params.time_column).cast(pl.Int64)
        window = [] if self._params.session else [(time // self._params.span_us * self._params.span_us).alias(PANE)]
        values = [one_zero(pl.col(name), kind).alias(names[name]) for name, kind in columns.items()]
        self._prepared = [time.alias(TIME), *window, *values]
        self._window = [] if self._params.session else [PANE]
        self._keys = [names[name] for name in self._params.keys]
        self._sort = [names[name] for name in sort]
        kinds = frame.clear().select_seq(self._prepared).schema
        self._seen = self._none_seen({name: kinds[name] for name in self._keys})
