"""Session windows: rows of a key less than a gap apart form one session, which ends a gap after its last row.

Rows are aggregated into *fragments*, the part of a session in one batch; a fragment is a pane that begins at its first row. When the
watermark has passed the end of any fragment, fragments less than a gap apart are merged, and sessions that no row can join any more are
emitted. Two fragments of a key that begin at one instant belong to one session, so a fragment is identified by its start.

Watermarks come with every batch, and examining all sessions for each would cost more than processing the rows. So they are examined
CLOSINGS times within a gap, at fixed instants. Sessions leave in the order of their ends, so it does not matter how often watermarks come.

A row is late when the session that it would form alone has ended. A row behind the watermark that is not late joins an open session.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import polars as pl

from sbon.operators.aggregates import Aggregates
from sbon.operators.grouping import Groups, physical, positions
from sbon.operators.measures import extreme_of
from sbon.operators.partials import TIME
from sbon.operators.ranges import in_ranges
from sbon.operators.windowed import FRAME_ROWS_MAX, PANE, ROWS_AT_ONCE, Windowed
from sbon.query.limits import SPAN_US_MAX
from sbon.query.params.windowed import SessionParams
from sbon.types import IntArray
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

_LAST = "\0last"
CLOSINGS = 16
"""Number of times per gap at which sessions are emitted; a session waits for a sixteenth of the gap at most."""
CLOSING_US_MIN = 5_000
"""Least time between two closings, in µs: each examines all open sessions, and with a short gap many rows open a session."""


def closing_us(gap_us: int) -> int:
    """Returns the time between two instants at which sessions are emitted."""
    return min(gap_us, max(gap_us // CLOSINGS, CLOSING_US_MIN))


class Session(Windowed):
    """Aggregates sessions by key. Sessions leave ordered by their end, start and key."""

    def __init__(self, params: SessionParams) -> None:
        super().__init__(params)
        self._gap_us = params.gap_us
        self._last = ""

    def _close_up_to(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Emits the sessions that have ended, by ranges of keys if there are many fragments."""
        before, ended = self._ended(self._watermark), self._ended(max(watermark_us, self._watermark))
        may_end = before != ended and self._may_end(ended)
        if may_end:
            self._aggregate_pending()
        self._watermark = max(watermark_us, self._watermark)
        if not may_end or self._aggregates is None or not self._partials:
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
        main = closed["main"] = [pl.concat(closed["main"], rechunk=True)]
        for name, frames in closed.items():
            if name != "main":
                whole = pl.concat(frames, rechunk=True)
                closed[name] = [whole.with_columns_seq(main[0][self._last][pl.Series(positions(main[0], whole, self._by))].alias(_LAST))]
        closed["main"] = [main[0].with_columns_seq(pl.col(self._last).alias(_LAST))]
        for part in in_ranges(closed, [_LAST, *self._by]):
            yield () if part is None else self._answers(aggregates, {name: frame.drop(_LAST) for name, frame in part.items()})

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
        answers = aggregates.answers(closed, self._by, (self._last,)).sort(self._last, maintain_order=True)
        start, end = answers[PANE], answers[self._last] + self._gap_us
        return list(self._named(answers, start, end).iter_slices(FRAME_ROWS_MAX))

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the output watermark; every open session ends after it."""
        if watermark_us <= WATERMARK_MIN or watermark_us >= WATERMARK_END:
            return watermark_us
        return max(WATERMARK_MIN, self._ended(watermark_us))

    def _compile(self, frame: pl.DataFrame) -> Aggregates:
        aggregates = super()._compile(frame)
        self._last = aggregates.main.measure("max", TIME)
        return aggregates

    def _ended(self, watermark_us: int) -> int:
        """Returns the instant up to which sessions have ended."""
        if watermark_us >= WATERMARK_END:
            return WATERMARK_END + SPAN_US_MAX
        step = closing_us(self._gap_us)
        return (watermark_us - self._shared.allowed_lateness_us) // step * step

    def _late_below(self) -> int:
        return self._ended(self._watermark) - self._gap_us + 1

    def _may_end(self, ended: int) -> bool:
        """Tells whether some row or fragment would have ended if it were alone."""
        columns = [physical(frame[self._shared.time_column]) for frame in self._pending]
        if self._aggregates is not None:
            columns += [piece.to_numpy() for piece in self._aggregates.main.pieces(self._last)]
        return any(times.size and int(times.min()) + self._gap_us <= ended for times in columns)

    def _add(self, aggregates: Aggregates, rows: pl.DataFrame) -> None:
        """Adds rows; those that lie within one gap form one fragment per key."""
        times = rows[TIME].to_numpy()
        if int(times.max()) - int(times.min()) < self._gap_us:
            groups = Groups.of(rows, self._keys)
            groups.keys.insert_column(0, extreme_of(groups, rows[TIME], greatest=False).alias(PANE))
        else:
            groups = self._sessions(rows, times, times)
        aggregates.add(rows, groups, self._by)

    def _joined(self, aggregates: Aggregates, tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Returns the tables, the main one not empty, with fragments of one session merged."""
        fragments = tables["main"]
        groups = self._sessions(fragments, fragments[PANE].to_numpy(), fragments[self._last].to_numpy())
        joined = {"main": aggregates.main.merged(fragments, groups)}
        for name, frame in tables.items():
            if name != "main":
                begin = groups.keys[PANE].to_numpy()[groups.ids[positions(fragments, frame, self._by)]]
                joined[name] = aggregates.tables[name].merge(frame.with_columns_seq(pl.Series(PANE, begin)), self._by)
        return joined

    def _sessions(self, rows: pl.DataFrame, first: IntArray, last: IntArray) -> Groups:
        """Groups rows, at least one, by key and session. A row spans the time from `first` to `last`; a session's pane is its start."""
        keyed = Groups.of(rows, self._keys)
        order = _order(keyed, first)
        key, first, last = keyed.ids[order], first[order], last[order]
        begins = np.append(True, key[1:] != key[:-1])
        begins[1:] |= first[1:] - _reached(last, key)[:-1] >= self._gap_us
        ids = np.empty_like(key)
        ids[order] = np.cumsum(begins) - 1
        keys = pl.DataFrame({PANE: first[begins]})
        if self._keys:
            keys = keys.hstack(keyed.keys_at(key[begins]))
        return Groups(ids, keys.height, keys)


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
