"""The matcher of a pattern: takes rows that the watermark has passed, and returns the matches that are known.

If single rows decide all conditions, the starts of all partitions are processed together (`starts`, `choice`, `labels`); otherwise each
partition goes through its rows with one attempt at a time (`sequential`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.grouping import Groups
from sbon.operators.match.attempts import Attempt
from sbon.operators.match.choice import MATCHED, TIMED_OUT, Candidates, Choice, Chosen
from sbon.operators.match.conditions import Conditions, reads_label
from sbon.operators.match.found import Matches
from sbon.operators.match.labels import Labeller
from sbon.operators.match.lane import Lane, Rules
from sbon.operators.match.log import NO_ROW, ROW, TIME, Log
from sbon.operators.match.partitions import END, Key, Partitions, Text
from sbon.operators.match.program import ANY, Automaton, compile_pattern
from sbon.operators.match.readings import Readings
from sbon.operators.match.scan import Scanner
from sbon.operators.match.sequential import Sequential
from sbon.operators.match.starts import Starts
from sbon.operators.match.trials import Trials
from sbon.query.params.matched import MatchNumber, MatchParams, Navigation, Tally
from sbon.query.rewrite import columns_of
from sbon.query.row_pattern import first_variables, may_be_empty
from sbon.schema import ColumnType
from sbon.types import IntArray
from sbon.watermarks import WATERMARK_END

PARTITIONS_MIN = 4_096
"""Partitions without rows may be this many more than the others before they are forgotten."""
LANE = {f"\0{name}": pl.Int64() for name in ("rows", "base", "start", "matched", "number", "known", "by_row")}
"""Columns of a partition in a snapshot, in addition to its key."""
_SMALL = 2**16


class Matcher:
    """Finds matches, and keeps the rows that may still be in a match, by partition.

    Parameters
    ----------
    columns : types of the rows' columns and of ROW_LABEL
    schema : types of the rows, with TIME

    Raises
    ------
    RemoteProtocolError
        A condition is not one that the planner makes.
    """

    def __init__(self, params: MatchParams, columns: Mapping[str, ColumnType], schema: Mapping[str, pl.DataType]) -> None:
        self._params = params
        self._schema = schema
        shifts = [one.shift for one in params.operands if isinstance(one, Navigation) and one.value is not None]
        self._before, self._behind = max([0, *(-shift for shift in shifts)]), max([0, *shifts])
        self._keeps_lanes = self._before > 0 or any(isinstance(one, MatchNumber) for one in params.operands)
        """True if a partition is remembered after all its rows are settled."""
        self._may_be_nan = any(schema[name].is_float() for name in params.partition)
        read = columns_of([value for _, value in params.measures])
        self._labels = params.passed is not None or any(
            isinstance(one, Navigation | Tally) and (one.variables or getattr(one, "value", one) is None or reads_label(one))
            for one in params.operands
            if one.name in read
        )
        """True if answers need the labels of rows: they return them, or read rows by variable."""
        if params.dealt is not None and params.skip_variables:  # the merger is told where the next match begins
            self._labels = True
        opens = None if params.dealt is None else params.dealt.opens
        self.log = Log([name for name in schema if name != TIME], params.time_column, links=self._behind > 0, opens=opens)
        self._partitions = Partitions()
        self._conditions = Conditions(params, columns)
        self._read = self._conditions.read_columns
        self._program = compile_pattern(params.pattern)
        self._scanner = Scanner(Automaton(self._program))
        self._labeller = Labeller(self._program, self._scanner)
        first = ANY if may_be_empty(params.pattern) else sum(1 << variable for variable in first_variables(params.pattern))
        self._starts = Starts(
            self.log,
            self._partitions,
            self._scanner,
            within_us=params.within_us,
            behind=self._behind,
            first_mask=0 if params.unmatched else first,
            timeouts=params.timeouts,
            forget=self._labeller.forget,
            part=params.dealt,
        )
        chooses = params
        if params.dealt is not None:  # every start is a candidate of the merger, which applies AFTER MATCH SKIP
            chooses = msgspec.structs.replace(params, skip_to="next", skip_variables=())
        skips = self._skips if chooses.skip_variables else None
        self._choice = Choice(chooses, self.log, self._partitions, self._starts.after, self._starts.drop, skips)
        self._sequential: Sequential | None = None
        if self._conditions.depends_on_match:
            rules = Rules(chooses, self._before, self._behind, first, self._attempt)
            trials = Trials(
                self.log,
                self._scanner,
                self._labeller,
                self._conditions,
                Readings(params, columns, self.log, ahead=False),
                params.operands,
                first_mask=0 if params.unmatched else first,
                within_us=params.within_us,
                part=params.dealt,
            )
            choice = Choice(chooses, self.log, self._partitions, lambda *_: bound.opens, lambda _: None, skips)
            bound = Sequential(self.log, self._partitions, rules, trials, choice, self._conditions, self._told, self._labelled)
            self._sequential = bound

    @property
    def rows(self) -> int:
        """Returns the number of rows that may still be needed."""
        parts = self._partitions
        return int((parts.count.values - np.maximum(0, parts.start.values - self._before)).sum())

    @property
    def waits_since_us(self) -> int:
        """Returns the event time of the first row that is not settled; WATERMARK_END if all are."""
        return int(self._partitions.since.values.min(initial=WATERMARK_END))

    def take(self, rows: pl.DataFrame, watermark_us: int) -> Matches:
        """Takes rows; returns the matches that are now known, partition by partition from left to right.

        Parameters
        ----------
        watermark_us : no row below it is still to come; WATERMARK_END settles all
        """
        return self._find(self._classified(*self._arrived(rows), watermark_us), watermark_us)

    def _find(self, text: Text, watermark_us: int) -> Matches:
        if self._sequential is not None:
            return self._sequential.find(text, watermark_us)
        return self._told(self._choice.choose(self._starts.find(text, watermark_us), text.lanes))

    def _told(self, chosen_: Chosen) -> Matches:
        """Returns matches with their rows."""
        chosen, numbers = chosen_
        timed_out = chosen.kinds == TIMED_OUT
        with_rows = (chosen.kinds == MATCHED) | timed_out
        if self._labels:
            offsets, positions, labels = self._labelled(chosen.at(with_rows))
        else:
            positions, offsets = self.log.spans(chosen.first[with_rows], chosen.last[with_rows])
            labels = np.zeros(positions.size, np.int64)
        lengths = np.zeros(chosen.first.size, np.int64)
        lengths[with_rows] = np.diff(offsets)
        offsets = np.append(0, np.cumsum(lengths))
        return Matches(chosen.lanes, chosen.known, chosen.first, numbers, timed_out, offsets, positions, labels >> 1, (labels & 1) == 1)

    def _labelled(self, candidates: Candidates) -> tuple[IntArray, IntArray, IntArray]:
        """Returns where the rows of each candidate begin, their positions, and their labels."""
        positions, offsets = self.log.spans(candidates.first, candidates.last)
        codes = self.log.codes.values[positions]
        return offsets, positions, self._labeller.labels(codes, offsets, candidates.kinds == TIMED_OUT)

    def _skips(self, candidates: Candidates) -> IntArray:
        """Returns the positions of the rows to which AFTER MATCH SKIP TO leads."""
        offsets, positions, labels = self._labelled(candidates)
        wanted = np.flatnonzero(np.isin(labels >> 1, self._params.skip_variables))
        if self._params.skip_to == "first":
            return positions[wanted[np.searchsorted(wanted, offsets[:-1])]]
        return positions[wanted[np.searchsorted(wanted, offsets[1:]) - 1]]

    def _arrived(self, rows: pl.DataFrame) -> tuple[IntArray, IntArray, IntArray]:
        """Sorts rows and adds them to the log; returns their partitions, and where the rows of each begin and end in the log."""
        if not rows.height:
            nothing = np.zeros(0, np.int64)
            return nothing, nothing, nothing
        by = list(self._params.partition)
        groups = Groups.of(rows, by) if by else Groups(np.zeros(rows.height, np.int64), 1, rows[:1].select_seq([]))
        order, ids = self._ordered(rows, groups.ids)
        begins = np.append(0, np.flatnonzero(ids[1:] != ids[:-1]) + 1)
        if (order[1:] < order[:-1]).any():
            rows = rows.select_seq(pl.all().gather(pl.Series(order.astype(np.uint32))))
        if self._params.dealt is not None:
            rows = rows.with_columns_seq(pl.Series(ROW, _places_in_runs(rows[TIME].to_numpy())))
        keys = rows.select_seq(pl.col(by).gather(pl.Series(begins))).rows() if by else [()]
        lanes = self._partitions.numbered([_key(values) for values in keys] if self._may_be_nan else keys)
        return self._logged(rows, lanes, begins)

    def _logged(self, rows: pl.DataFrame, lanes: IntArray, begins: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Adds rows to the log.

        Parameters
        ----------
        rows : rows of one partition are adjacent and in order
        lanes, begins : partitions, and where their rows begin
        """
        parts, log = self._partitions, self.log
        lengths = np.diff(np.append(begins, rows.height))
        inside = np.arange(rows.height) - np.repeat(begins, lengths)
        first = log.size
        places = np.repeat(parts.count.values[lanes], lengths) + inside
        log.add(rows, np.repeat(lanes, lengths), places, parts.tail.values[lanes], begins)
        parts.count.values[lanes] += lengths
        ends = first + begins + lengths
        parts.tail.values[lanes] = ends - 1
        if self._sequential is not None:
            self._sequential.add(lanes, ends - lengths, ends)
        return lanes, ends - lengths, ends

    def _ordered(self, rows: pl.DataFrame, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the order of rows by partition, event time and ties; and their partitions in this order."""
        times = rows[TIME].to_numpy()
        if (times[1:] >= times[:-1]).all():
            small = int(ids.max(initial=0)) < _SMALL  # numbers of 16 bits are sorted in linear time
            order = np.argsort(ids.astype(np.uint16) if small else ids, kind="stable")
        else:
            order = np.lexsort((times, ids))
        ids = ids[order]
        if not self._params.ties:
            return order, ids
        times = times[order]
        same = (ids[1:] == ids[:-1]) & (times[1:] == times[:-1])
        if not same.any():
            return order, ids
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        runs = np.cumsum(~np.append(False, same))[tied]
        values = rows[pl.Series(order[tied])].select_seq(self._params.ties)
        sorted_ = values.with_columns_seq(pl.Series("\0run", runs), pl.Series("\0at", np.arange(tied.size)))
        descending = [False, *(name in self._params.descending for name in self._params.ties)]
        last = [not one for one in descending]
        by = sorted_.sort(["\0run", *self._params.ties], descending=descending, nulls_last=last, maintain_order=True)["\0at"].to_numpy()
        order[tied] = order[tied[by]]
        return order, ids

    def _classified(self, lanes: IntArray, begins: IntArray, ends: IntArray, watermark_us: int) -> Text:
        """Computes the conditions that single rows decide, for the rows whose conditions are now known."""
        parts, log, ended = self._partitions, self.log, watermark_us >= WATERMARK_END
        if not (self._before or self._behind):
            parts.ready.values[lanes] = parts.count.values[lanes]
            first = int(begins[0]) if begins.size else log.size
            positions = np.arange(first, log.size)
            if positions.size:
                log.codes.values[first:] = self._scanner.classes(self._conditions.masks(log.taken(positions, self._read or None)))
            return Text(positions, lanes, begins - first, ends - first)
        if ended and self._behind:
            rest = np.setdiff1d(np.flatnonzero(parts.count.values > parts.ready.values), lanes)
            lanes = np.append(lanes, rest)
            begins, ends = np.append(begins, np.full(rest.size, log.size)), np.append(ends, np.full(rest.size, log.size))
        # Earlier rows of the partitions are needed, too: those whose conditions wait for the new rows, and those that conditions read.
        least = parts.ready.values[lanes] - self._before
        at = np.where(ends > begins, begins, NO_ROW)
        at = np.where(at >= 0, log.moved(np.maximum(at, 0), -1), parts.tail.values[lanes]) if log.size else at
        fresh = _ranges(begins, ends)
        found, ranks = [fresh], [np.repeat(np.arange(lanes.size), ends - begins)]
        which = np.arange(lanes.size)
        while which.size:
            here = at[which] >= 0
            which = which[here]
            which = which[log.places.values[at[which]] >= least[which]]
            found.append(at[which])
            ranks.append(which)
            at[which] = log.moved(at[which], -1)
        positions, rank = np.concatenate(found), np.concatenate(ranks)
        order = np.argsort(rank << 32 | positions, kind="stable")
        positions, rank = positions[order], rank[order]
        count, ready = parts.count.values[lanes], parts.ready.values[lanes]
        if not self._behind and fresh.size and (count - ready == ends - begins).all():  # all new rows are ready, and no others
            parts.ready.values[lanes] = count
            masks = self._conditions.masks(log.taken(positions, self._read or None), rank)
            log.codes.values[fresh[0] :] = self._scanner.classes(masks[order < fresh.size])
            return Text(fresh, lanes, begins - fresh[0], ends - fresh[0])
        until = count if ended else np.maximum(ready, count - self._behind)
        places = log.places.values[positions]
        is_ready = (places >= ready[rank]) & (places < until[rank])
        if positions.size:
            masks = self._conditions.masks(log.taken(positions, self._read or None), rank)
            log.codes.values[positions[is_ready]] = self._scanner.classes(masks)[is_ready]
        parts.ready.values[lanes] = until
        pending = places >= until[rank]
        parts.pending.values[lanes] = WATERMARK_END
        waiting, of = positions[pending][::-1], rank[pending][::-1]
        parts.pending.values[lanes[of]] = log.times.values[waiting]  # the first one is written last
        sizes = np.bincount(rank[is_ready], minlength=lanes.size)
        edges = np.append(0, np.cumsum(sizes))
        return Text(positions[is_ready], lanes, edges[:-1], edges[1:])

    def _attempt(self, lane: Lane) -> Attempt:
        return Attempt(self._program, self._conditions, lane.number + 1, lane.value_at)

    def compact(self) -> None:
        """Drops rows that nothing needs, if they are many."""
        log, parts = self.log, self._partitions
        if not log.store.needs_compaction(self.rows):
            return
        moved = log.compact(self._live())
        parts.tail.values[:] = moved[parts.tail.values]
        self._choice.compact(moved)
        if self._sequential is not None:
            self._sequential.compact(moved)
        else:
            self._starts.compact(moved)
        if self._keeps_lanes:
            return
        present = parts.present()
        settled = present[parts.since.values[present] >= WATERMARK_END]
        if 2 * settled.size > present.size + PARTITIONS_MIN:
            parts.forget(settled)
            if self._sequential is not None:
                self._sequential.forget(settled)

    def _live(self) -> npt.NDArray[np.bool_]:
        """Tells which rows of the log may be needed."""
        log, least = self.log, self._partitions.start.values - self._before
        live = np.empty(log.size, np.bool_)
        for begin in range(0, log.size, _SMALL):  # in pieces, so that memory is not needed twice
            piece = slice(begin, begin + _SMALL)
            live[piece] = log.places.values[piece] >= least[log.lanes.values[piece]]
        return live

    # -------------------------------------------------------------------------------------------------------------- state

    def keys(self, lanes: IntArray) -> pl.DataFrame:
        """Returns the partition columns of partitions."""
        if not self._params.partition:
            return pl.DataFrame()
        keys = [self._partitions.keys[lane] or () for lane in lanes.tolist()]
        return pl.DataFrame([[_plain(value) for value in key] for key in keys], schema=self._key_schema, orient="row")

    @property
    def _key_schema(self) -> dict[str, pl.DataType]:
        return {name: self._schema[name] for name in self._params.partition}

    def state(self) -> dict[str, pl.DataFrame]:
        """Returns the rows that may still be needed, by partition, and the partitions. Attempts can be repeated from the rows."""
        parts, log = self._partitions, self.log
        live = np.flatnonzero(self._live())
        lanes = np.unique(log.lanes.values[live].astype(np.int64))
        if self._keeps_lanes:
            lanes = parts.present()
        keys = self.keys(lanes)
        if keys.width:  # in the order of keys: numbers of partitions depend on the steps in which rows came
            order = keys.with_columns_seq(pl.Series("\0at", np.arange(lanes.size))).sort(keys.columns, nulls_last=True)["\0at"].to_numpy()
            lanes, keys = lanes[order], keys[pl.Series(order)]
        if not lanes.size:
            return {}
        frames: dict[str, pl.DataFrame] = {}
        rank = np.zeros(parts.size, np.int64)
        rank[lanes] = np.arange(lanes.size)
        of_row = rank[log.lanes.values[live]]
        if live.size:
            live = live[np.argsort(of_row, kind="stable")]
            frames["kept"] = log.taken(live).insert_column(0, pl.Series(TIME, log.times.values[live]))
        count = np.bincount(of_row, minlength=lanes.size)
        known = parts.known.values[lanes]
        columns = [count, parts.count.values[lanes] - count, parts.start.values[lanes], parts.matched.values[lanes]]
        columns += [parts.number.values[lanes], known >> 1, known & 1]
        told = pl.DataFrame({name: column.astype(np.int64) for name, column in zip(LANE, columns, strict=True)})
        frames["lanes"] = pl.concat([keys, told], how="horizontal")
        return frames

    def adopt(self, told: pl.DataFrame, kept: pl.DataFrame, watermark_us: int) -> None:
        """Continues from frames that `state` returned. No rows may have been taken before.

        Raises
        ------
        RemoteProtocolError
            The frames are not such a state.
        """
        keys, parts = list(self._params.partition), self._partitions
        if dict(told.schema) != {**self._key_schema, **LANE} or any(told[name].null_count() for name in LANE):
            raise RemoteProtocolError(f"partitions of a snapshot have columns {dict(told.schema)}")
        of_keys = [_key(values) for values in told.select_seq(keys).rows()] if keys else [()] * told.height
        if len(set(of_keys)) < told.height:
            raise RemoteProtocolError("a snapshot has a partition twice")
        rows, base, start, matched, number, known, by_row = (told[name].to_numpy().astype(np.int64) for name in LANE)
        wrong = (rows < 0) | (base < 0) | (start < base) | (start > base + rows) | (known < 0) | (by_row < 0) | (by_row > 1)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise RemoteProtocolError(f"a partition of a snapshot has {rows[at]} rows, and looks for a match at {start[at] - base[at]}")
        if rows.sum() != kept.height:
            raise RemoteProtocolError(f"partitions of a snapshot have {rows.sum()} of its {kept.height} rows")
        lanes = parts.numbered(of_keys)
        parts.count.values[lanes], parts.start.values[lanes], parts.ready.values[lanes] = base, start, start
        parts.matched.values[lanes], parts.number.values[lanes] = matched, number
        parts.known.values[lanes] = np.minimum(2 * np.minimum(known, END // 2) + by_row, END)
        there = rows > 0
        begins = np.append(0, np.cumsum(rows[there]))[:-1]
        if kept.height:
            logged = self._logged(kept, lanes[there], begins)
            if self._find(self._classified(*logged, watermark_us), watermark_us).lanes.size:
                raise RemoteProtocolError("a snapshot has the rows of a match that should have been emitted before")


class _NotANumber:
    """Stands for NaN in keys, which is not equal to itself."""


_NAN = _NotANumber()


def _key(values: Sequence[Any]) -> Key:
    return tuple(_NAN if value != value else value for value in values)


def _plain(value: Any) -> Any:
    return float("nan") if value is _NAN else value


def _ranges(begins: IntArray, ends: IntArray) -> IntArray:
    """Returns the numbers from each begin up to its end."""
    lengths = ends - begins
    offsets = np.cumsum(lengths) - lengths
    found: IntArray = np.arange(int(lengths.sum())) + np.repeat(begins - offsets, lengths)
    return found


def _places_in_runs(times: IntArray) -> IntArray:
    """Returns the place of each row among the adjacent rows that have the same time, from 0 on.

    Examples
    --------
    >>> _places_in_runs(np.array([3, 3, 4, 5, 5, 5])).tolist()
    [0, 1, 0, 0, 1, 2]
    """
    places = np.arange(times.size)
    begins = np.append(True, times[1:] != times[:-1])
    return places - np.maximum.accumulate(np.where(begins, places, 0))
