"""Session windows: rows of a key less than a gap apart form one session, which ends a gap after its last row.

Rows are aggregated into *fragments*, the part of a session in one batch. When the watermark has passed the end of any fragment, fragments
less than a gap apart are merged, and sessions that no row can join any more are emitted.

Watermarks come with every batch, and examining all sessions for each would cost more than processing the rows. So they are examined
CLOSINGS times within a gap, at fixed instants. Sessions leave in the order of their ends, so it does not matter how often watermarks come.

A fragment's *pane* is the part of a closing in which it would end if no row followed; panes are shorter than a gap. So fragments of a key
in one pane belong to one session and merge like other partials, and fragments that end first are in the first panes, in memory and on disk
(`session_ends`).

A row is late when the session that it would form alone has ended. A row behind the watermark that is not late joins an open session.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import polars as pl

from sbon.operators.aggregates import Aggregates
from sbon.operators.cold_fragments import SESSIONS_SHARE, ColdFragments
from sbon.operators.cold_partials import ColdPartials
from sbon.operators.grouping import Groups, physical, positions
from sbon.operators.measures import extreme_of
from sbon.operators.partials import TIME
from sbon.operators.ranges import in_ranges
from sbon.operators.session_ends import Ends, gathered, parted
from sbon.operators.windowed import FRAME_ROWS_MAX, PANE, ROWS_AT_ONCE, Windowed
from sbon.query.limits import SPAN_US_MAX
from sbon.query.params.windowed import SessionParams
from sbon.state.room import StateRoom
from sbon.state.sorted_runs import stretches
from sbon.types import IntArray
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

_FIRST, _LAST = "\0first", "\0last"
CLOSINGS = 16
"""Number of times per gap at which sessions are emitted; a session waits for a sixteenth of the gap at most."""
CLOSING_US_MIN = 5_000
"""Least time between two closings, in µs: each examines all open sessions, and with a short gap many rows open a session."""

PANES = 16
"""Number of panes of a closing. More: fewer fragments at a time when sessions on disk end, but more fragments of a key."""


def closing_us(gap_us: int) -> int:
    """Returns the time between two instants at which sessions are emitted."""
    return min(gap_us, max(gap_us // CLOSINGS, CLOSING_US_MIN))


class Session(Windowed):
    """Aggregates sessions by key. Sessions leave ordered by their end, start and key.

    Parameters
    ----------
    room : memory and disk for fragments of sessions with keys; None: all are in memory
    """

    def __init__(self, params: SessionParams, room: StateRoom | None = None) -> None:
        super().__init__(params, room if params.keys else None)
        self._gap_us, self._step_us = params.gap_us, closing_us(params.gap_us)
        self._panes = PANES if self._step_us >= PANES else 1
        self._first = self._last = ""
        """Columns of the main table: event times of a fragment's first and last row."""

    def _close_up_to(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Emits the sessions that have ended, by ranges of keys if there are many fragments."""
        before, ended = self._ended(self._watermark), self._ended(max(watermark_us, self._watermark))
        may_end = before != ended and self._may_end(ended)
        if may_end:
            self._aggregate_pending()
        self._watermark = max(watermark_us, self._watermark)
        if not may_end or self._aggregates is None:
            return ()
        if isinstance(self._cold, ColdFragments):
            return self._end_by_panes(self._cold, self._aggregates, self._end_pane(ended))
        if not self._partials:
            return ()
        if self._partials > ROWS_AT_ONCE:
            return self._end_many(self._aggregates, ended)
        tables = {name: pl.concat(table.frames, rechunk=True) for name, table in self._aggregates.tables.items()}
        closed, rest = self._parted(self._aggregates, tables, ended)
        for name, table in self._aggregates.tables.items():
            table.replace(rest[name])
        return (self._answers(self._aggregates, closed),)

    def _end_many(self, aggregates: Aggregates, ended: int) -> Iterator[Sequence[pl.DataFrame]]:
        """Emits ended sessions in steps: first merges the fragments of all keys, then answers the ended sessions in their order."""
        closed: dict[str, list[pl.DataFrame]] = {name: [table.frames[0].clear()] for name, table in aggregates.tables.items()}
        rest: dict[str, list[pl.DataFrame]] = {name: [table.frames[0].clear()] for name, table in aggregates.tables.items()}
        for part in in_ranges({name: table.frames for name, table in aggregates.tables.items()}, self._keys):
            if part is not None:
                for found, into in zip(self._parted(aggregates, part, ended), (closed, rest), strict=True):
                    for name, frame in found.items():
                        into[name].append(frame)
            yield ()
        for name, table in aggregates.tables.items():
            table.replace(pl.concat(rest[name], rechunk=True))
        main = pl.concat(closed["main"], rechunk=True)
        bounds = pl.DataFrame([main[self._first].alias(_FIRST), main[self._last].alias(_LAST)])
        closed["main"] = [main.hstack(bounds)]
        for name, frames in closed.items():
            if name != "main":
                whole = pl.concat(frames, rechunk=True)
                closed[name] = [whole.hstack(bounds[pl.Series(positions(main, whole, self._by))])]
        for part in in_ranges(closed, [_LAST, _FIRST, *self._keys]):
            yield () if part is None else self._answers(aggregates, {name: frame.drop(_FIRST, _LAST) for name, frame in part.items()})

    def _end_by_panes(self, cold: ColdFragments, aggregates: Aggregates, end: int) -> Iterator[Sequence[pl.DataFrame]]:
        """Emits the sessions that end in panes before `end`, pane by pane. Fragments that a later one continues move into its pane, in
        memory; the others of these panes leave the memory and the disk.
        """
        tables, by = aggregates.tables, self._by
        ends = Ends(self._keys, [*by, self._first, self._last], self._last_panes, cold.known_rows_max)
        while True:
            panes, counts = cold.counted(tables, end)
            if not panes.size:
                return
            first, last = next(stretches(panes, counts, ends.next_rows))
            for _ in ends.find(cold.sources(tables), first, last):
                yield ()
            here = panes <= last
            for low, high in stretches(panes[here], counts[here], cold.range_rows(tables)):
                part, later = parted(cold.of_panes(tables, low, high), ends.moves, by, high)
                merged = {name: tables[name].merge(rows, by) for name, rows in part.items()}
                answers = self._answers(aggregates, cold.checked(merged, by))
                for name, table in tables.items():
                    table.keep(PANE, partial(np.less, high))
                    if later[name].height:
                        table.add(later[name], by)
                cold.forget(high + 1)
                yield answers
            if cold.has_work(tables):
                yield from self._use_disk(cold, aggregates)

    def _last_panes(self, fragments: pl.DataFrame) -> IntArray:
        """Returns the last pane of the session to which each fragment belongs, as far as these fragments tell."""
        panes = fragments[PANE].to_numpy()
        if not panes.size:
            return panes
        groups = self._sessions(fragments, fragments[self._first].to_numpy(), fragments[self._last].to_numpy())
        found = np.full(groups.size, panes.min())
        np.maximum.at(found, groups.ids, panes)
        return found[groups.ids]

    def _use_disk(self, cold: ColdPartials, aggregates: Aggregates) -> Iterator[Sequence[pl.DataFrame]]:
        """Puts the fragments of a session that are in memory into one pane first, if there are many, so that they merge."""
        tables = aggregates.tables
        if cold.is_over(tables) or cold.is_due(tables):
            for _ in gathered(tables, self._keys, [*self._by, self._first, self._last], self._last_panes, cold.range_rows(tables)):
                yield ()
        yield from super()._use_disk(cold, aggregates)

    def _parted(self, aggregates: Aggregates, tables: dict[str, pl.DataFrame], ended: int) -> tuple[dict[str, pl.DataFrame], ...]:
        """Merges fragments of some keys; returns the tables of the sessions that have ended, and of the others."""
        joined = self._joined(aggregates, tables)
        over = joined["main"][self._last].to_numpy() + self._gap_us <= ended
        closed: dict[str, pl.DataFrame] = {}
        rest: dict[str, pl.DataFrame] = {}
        for name, frame in joined.items():
            gone = over if name == "main" else over[positions(joined["main"], frame, self._by)]
            closed[name], rest[name] = frame.filter(pl.Series(gone)), frame.filter(pl.Series(~gone))
        return closed, rest

    def _answers(self, aggregates: Aggregates, closed: dict[str, pl.DataFrame]) -> list[pl.DataFrame]:
        """Returns the answers of sessions, given as tables with one row per group."""
        if closed["main"].is_empty():
            return []
        bounds = (self._last, self._first)
        answers = aggregates.answers(closed, self._by, bounds).sort(bounds, maintain_order=True)  # equal ends are in one pane
        start, end = answers[self._first], answers[self._last] + self._gap_us
        return list(self._named(answers, start, end).iter_slices(FRAME_ROWS_MAX))

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the output watermark; every open session ends after it."""
        if watermark_us <= WATERMARK_MIN or watermark_us >= WATERMARK_END:
            return watermark_us
        return max(WATERMARK_MIN, self._ended(watermark_us))

    def _compile(self, frame: pl.DataFrame) -> Aggregates:
        aggregates = super()._compile(frame)
        self._first, self._last = (aggregates.main.measure(kind, TIME) for kind in ("min", "max"))
        return aggregates

    def _ended(self, watermark_us: int) -> int:
        """Returns the instant up to which sessions have ended."""
        if watermark_us >= WATERMARK_END:
            return WATERMARK_END + SPAN_US_MAX
        return (watermark_us - self._shared.allowed_lateness_us) // self._step_us * self._step_us

    def _pane(self, last: IntArray) -> IntArray:
        """Returns the panes of fragments whose last rows have these event times."""
        before = last + (self._gap_us - 1)
        closing = before // self._step_us
        return closing * self._panes + (before - closing * self._step_us) * self._panes // self._step_us

    def _end_pane(self, ended: int) -> int:
        """Returns the first pane in which no session has ended, if sessions have ended up to an instant at which they are examined."""
        return -(-ended // self._step_us) * self._panes

    def _none_cold(self) -> ColdFragments | None:
        return None if self._room is None else ColdFragments(self._by, self._room, SESSIONS_SHARE)

    def _late_below(self) -> int:
        return self._ended(self._watermark) - self._gap_us + 1

    def _may_end(self, ended: int) -> bool:
        """Tells whether some row or fragment would have ended if it were alone."""
        pending = [physical(frame[self._shared.time_column]) for frame in self._pending]
        if any(times.size and int(times.min()) + self._gap_us <= ended for times in pending):
            return True
        if self._aggregates is None:
            return False
        end = self._end_pane(ended)
        held = [piece.to_numpy() for piece in self._aggregates.main.pieces(PANE)]
        return any(panes.size and int(panes.min()) < end for panes in held) or (
            isinstance(self._cold, ColdFragments) and self._cold.has_before(end)
        )

    def _add(self, aggregates: Aggregates, rows: pl.DataFrame) -> None:
        """Adds rows; those that lie within one gap form one fragment per key."""
        times = rows[TIME].to_numpy()
        if int(times.max()) - int(times.min()) < self._gap_us:
            groups = Groups.of(rows, self._keys)
            last = groups.known[self._last] = extreme_of(groups, rows[TIME], greatest=True)
            groups.keys.insert_column(0, pl.Series(PANE, self._pane(last.to_numpy())))
        else:
            groups = self._sessions(rows, times, times)
        aggregates.add(rows, groups, self._by)

    def _joined(self, aggregates: Aggregates, tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Returns the tables, the main one not empty, with fragments of one session merged."""
        fragments = tables["main"]
        groups = self._sessions(fragments, fragments[self._first].to_numpy(), fragments[self._last].to_numpy())
        joined = {"main": aggregates.main.merged(fragments, groups)}
        for name, frame in tables.items():
            if name != "main":
                panes = groups.keys[PANE].to_numpy()[groups.ids[positions(fragments, frame, self._by)]]
                joined[name] = aggregates.tables[name].merge(frame.with_columns_seq(pl.Series(PANE, panes)), self._by)
        return joined

    def _sessions(self, rows: pl.DataFrame, first: IntArray, last: IntArray) -> Groups:
        """Groups rows, at least one, by key and session. A row spans the time from `first` to `last`; a session's pane is that of its
        last row.
        """
        keyed = Groups.of(rows, self._keys)
        order = _order(keyed, first)
        key, first, last = keyed.ids[order], first[order], last[order]
        begins, reached = np.append(True, key[1:] != key[:-1]), _reached(last, key)
        begins[1:] |= first[1:] - reached[:-1] >= self._gap_us
        ids = np.empty_like(key)
        ids[order] = np.cumsum(begins) - 1
        starts, ends = first[begins], reached[np.append(begins[1:], True)]
        keys = pl.DataFrame({PANE: self._pane(ends)})
        if self._keys:
            keys = keys.hstack(keyed.keys_at(key[begins]))
        groups = Groups(ids, keys.height, keys)
        groups.known = {self._first: pl.Series(starts), self._last: pl.Series(ends)}
        return groups


def _order(groups: Groups, times: IntArray) -> IntArray:
    """Returns an order by group, then time."""
    if (times[1:] < times[:-1]).any():
        return np.lexsort((times, groups.ids))
    small = groups.size <= np.iinfo(np.uint16).max  # numpy sorts 16-bit numbers by counting
    return np.argsort(groups.ids.astype(np.uint16) if small else groups.ids, kind="stable")


def _reached(last: IntArray, key: IntArray) -> IntArray:
    """Returns the running maximum within each key, whose rows are adjacent."""
    if not ((last[1:] < last[:-1]) & (key[1:] == key[:-1])).any():
        return last
    frame = pl.DataFrame({"last": last, "key": key})
    return frame.select_seq(pl.col("last").cum_max().over("key")).to_series().to_numpy()
