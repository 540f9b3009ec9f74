"""Partial aggregates of windows that exceed memory: the most frequent groups' stay in memory, the others' go to sorted runs on disk.

Partials merge in any order to the same answer, so a group may have some in memory and some in several runs, and nothing is read from disk
until a window closes. Then rows of all runs and of the memory are read and merged by ranges of keys, in the order in which windows answer.
Runs of similar size are merged piece by piece meanwhile, so that there are few.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import polars as pl

from sbon.errors import StateError, StateFullError
from sbon.operators.frames import rows_where
from sbon.operators.grouping import in_order, physical, positions
from sbon.operators.measures import rows_apart
from sbon.operators.partials import FOLD_ROWS_MIN, Table
from sbon.state.room import StateRoom, check_batch, to_merge
from sbon.state.sorted_runs import Key, SortedRows, SortedRun, SortedWriting, Source, below, edges
from sbon.watermarks import WATERMARK_MIN

HELD_SHARE = 0.42
"""Share of the memory for partials, unless the operator needs more for copies."""
FOLD_SHARE = 0.8
"""Partials that take more than this part of their share are not folded, which would copy them, but wait to go to disk."""
FRAMES_MAX = 64
"""Most frames added to a table between two folds."""
PENDING_SHARE = 8
"""Rows that wait to be aggregated take at most 1/8 of the memory."""
RANGE_SHARE = 48
"""Rows that are merged at once take about 1/48 of the memory; several copies of them are made."""
RANGE_ROWS_MIN, RANGE_ROWS_MAX = 1024, 65_536
"""Least and most of these rows, whatever the memory."""
MERGE_SHARE = 8
"""Rows merged for each row that goes to disk, while there are runs to merge."""
OTHERS_MAX = 8
"""If a group has on average more rows in other tables than this, no group stays in memory because it is frequent."""

GROUP_BYTES, COLUMN_BYTES, SLACK = 40, 16, 1.5
"""Assumed bytes of a group, and of each key and aggregate of it, before there are any; factor for copies."""

Tables = Mapping[str, Table]
Part = dict[str, pl.DataFrame]


class ColdPartials:
    """Partials on disk, of all tables of one window operator.

    Parameters
    ----------
    by : columns of a group: pane, then keys
    room : memory and disk
    held_share : share of the memory for partials; the rest is for copies of ranges, for rows read from disk, and for freed memory that the
        process keeps
    """

    def __init__(self, by: Sequence[str], room: StateRoom, held_share: float = HELD_SHARE) -> None:
        self._by, self._room, self._held_share = list(by), room, held_share
        self._runs: list[SortedRun] = []
        """The newest first."""
        self._merging: list[SortedRun] = []
        self._merge: Iterator[SortedRun | int] | None = None
        self._due_rows = 0
        self._folded_rows = self._folded_frames = 0
        """Rows and frames in memory after the last fold."""
        self.alive_from = WATERMARK_MIN
        """First pane that counts; earlier ones may still be on disk."""
        self._is_full = False
        """True after the disk took no more; then only `make_room` tries again."""
        room.users.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        forked = type(self).__new__(type(self))
        forked._by, forked._room, forked._runs, forked._held_share = self._by, self._room, list(self._runs), self._held_share
        forked._merging, forked._merge, forked._due_rows = [], None, 0
        forked._folded_rows, forked._folded_frames = self._folded_rows, self._folded_frames
        forked.alive_from, forked._is_full = self.alive_from, False
        return forked

    def check_batch(self, columns: int) -> None:
        """Refuses memory that cannot hold the partials of one batch in which each row is of another group.

        Parameters
        ----------
        columns : number of keys and aggregates

        Raises
        ------
        StateError
            The memory is too small.
        """
        check_batch(self._room, self._room.batch_rows, SLACK * (GROUP_BYTES + COLUMN_BYTES * columns))

    @property
    def rows(self) -> int:
        """Returns the number of partials on disk."""
        return sum(run.rows for run in self._runs)

    @property
    def pending_bytes_max(self) -> int:
        """Returns the most bytes of rows that may wait to be aggregated."""
        return self._room.memory_bytes // PENDING_SHARE

    def is_over(self, tables: Tables) -> bool:
        """Tells whether the partials in memory take more than their share."""
        return _bytes(tables) > self._held_bytes_max

    def is_due(self, tables: Tables) -> bool:
        """Tells whether partials in memory should be folded: those added since the last fold outnumber the others, or are in many frames.
        If they nearly take their share, they soon go to disk anyway.
        """
        rows = sum(table.rows for table in tables.values())
        added = rows - min(rows, self._folded_rows)
        due = added > max(FOLD_ROWS_MIN, self._folded_rows) and _bytes(tables) <= FOLD_SHARE * self._held_bytes_max
        return due or max(len(table.frames) for table in tables.values()) > FRAMES_MAX + self._folded_frames

    @property
    def _held_bytes_max(self) -> float:
        memory = self._room.memory_bytes
        return max(self._held_share * memory - sum(run.memory_bytes for run in self._runs), memory / 10)

    def make_room(self, tables: Tables, passed: int) -> None:
        """Moves partials to disk at once if they take more than their share, before the operator takes further rows.

        Raises
        ------
        StateFullError
            The disk takes no more. No partial has been lost or changed.
        """
        if not self.is_over(tables):
            return
        why = ""
        try:
            for _ in self._moved(tables, passed):
                pass
            self._is_full = False
        except OSError as problem:
            self._is_full = True
            why = f"states cannot be written to disk: {problem.strerror or problem}"
        if why:
            raise StateFullError(why)  # outside the handler, so that no traceback keeps the written data alive

    def has_work(self, tables: Tables) -> bool:
        """Tells whether `work` has anything to do."""
        return self._due_rows > 0 or (not self._is_full and self.is_over(tables)) or self.is_due(tables)

    def work(self, tables: Tables, passed: int) -> Iterator[None]:
        """Moves partials to disk, and merges runs, in steps of a few milliseconds, as far as it is due.

        Parameters
        ----------
        passed : first pane that may still get rows; earlier ones leave the memory first

        Raises
        ------
        StateError
            Partials on disk cannot be read.
        """
        if not self._is_full and self.is_over(tables):
            try:
                yield from self._moved(tables, passed)
            except OSError:  # the operator takes no more rows until `make_room` succeeds
                self._is_full = True
        if self.is_due(tables):
            yield from self.fold(tables)
        while self._due_rows > 0:
            self._merge_some(tables)
            yield

    def fold(self, tables: Tables) -> Iterator[None]:
        """Merges the partials in memory by ranges, in steps, so that each group has one row. A merged range replaces its partials at once:
        that takes little memory, and a copy may be made between any two steps.
        """
        done: dict[str, list[pl.DataFrame]] = {name: [table.frames[0].clear()] for name, table in tables.items()}
        rest = {name: list(table.frames) for name, table in tables.items()}
        rows_max = self.range_rows(tables)
        for _, high in self._spans([_in_memory(tables, self._by)], tables):
            for name, table in tables.items():
                ends = [frame.height if high is None else below(frame, self._by, high) for frame in rest[name]]
                found = [frame.slice(0, end) for frame, end in zip(rest[name], ends, strict=True) if end]
                rest[name] = [frame.slice(end) for frame, end in zip(rest[name], ends, strict=True) if end < frame.height]
                if found:
                    _join(done[name], in_order(table.merge(pl.concat(found, rechunk=True), self._by), self._by), rows_max)
                table.replace_all([*done[name], *rest[name]])
            yield
        self._note_folded(tables)

    def _note_folded(self, tables: Tables) -> None:
        self._folded_rows = sum(table.rows for table in tables.values())
        self._folded_frames = max(len(table.frames) for table in tables.values())

    def _moved(self, tables: Tables, passed: int) -> Iterator[None]:
        """Writes the partials of all but the most frequent groups to a new run; to a second one if too many groups would stay."""
        least = 2 if sum(table.rows for table in tables.values()) <= OTHERS_MAX * tables["main"].rows else 2**62
        groups = yield from self._write(tables, passed, least)
        counts = np.concatenate([frame["n"].to_numpy() for frame in tables["main"].frames])
        if counts.size > groups // 2:
            most = groups // 2
            least = int(np.partition(counts, counts.size - most - 1)[counts.size - most - 1]) + 1
            yield from self._write(tables, passed, least)

    def _write(self, tables: Tables, passed: int, least: int) -> Generator[None, None, int]:
        """Merges the partials in memory by ranges and writes them to a new run, except groups of at least `least` rows, whose pane has not
        passed. Changes nothing in memory before all are written. Returns the number of groups.
        """
        staying: dict[str, list[pl.DataFrame]] = {name: [table.frames[0].clear()] for name, table in tables.items()}
        writing, groups, rows_max = SortedWriting(self._room, self._by), 0, self.range_rows(tables)
        for _, part in self._in_order([_in_memory(tables, self._by)], tables):
            whole = part["main"]
            groups += whole.height
            stays = (physical(whole[self._by[0]]) >= passed) & (whole["n"].to_numpy() >= least)
            frequent = whole.filter(pl.Series(stays))
            for name, rows in part.items():
                mask = pl.Series(stays if name == "main" else positions(frequent, rows, self._by) >= 0)
                if mask.any():
                    _join(staying[name], rows.filter(mask), rows_max)
                writing.add(name, rows.filter(~mask))
            yield
        run = writing.finished()
        if run.rows:
            self._runs.insert(0, run)
            self._due_rows += MERGE_SHARE * run.rows
        for name, table in tables.items():
            table.replace_all(staying[name])
        self._note_folded(tables)
        return groups

    def _merge_some(self, tables: Tables) -> None:
        """Merges some rows of runs. If the disk is full, merging is tried again after more partials have gone to disk."""
        if self._merge is None:
            size = to_merge([run.rows for run in self._runs])
            if size < 2:
                self._due_rows = 0
                return
            self._merging = self._runs[:size]
            self._merge = self._merged(self._merging, tables)
        try:
            done = next(self._merge)
        except OSError:
            self._merge, self._merging, self._due_rows = None, [], 0
            return
        if isinstance(done, int):
            self._due_rows -= done
            return
        at = min(self._runs.index(run) for run in self._merging if run in self._runs)
        self._runs = [run for run in self._runs if run not in self._merging]
        if done.rows:
            self._runs.insert(at, done)
        self._merge, self._merging = None, []

    def _merged(self, runs: Sequence[SortedRun], tables: Tables) -> Iterator[SortedRun | int]:
        writing = SortedWriting(self._room, self._by)
        for rows, part in self._in_order(runs, tables):
            for name, frame in part.items():
                writing.add(name, _alive(frame, self._by[0], self.alive_from))
            yield max(1, rows)
        yield writing.finished()

    def sources(self, tables: Tables) -> list[Source]:
        """Returns the partials on disk, and those in memory."""
        return [_in_memory(tables, self._by), *self._runs]

    def pieces(self, tables: Tables) -> Iterator[tuple[str, pl.DataFrame]]:
        """Yields the partials of all tables in pieces that follow each other, as `Table.ordered` orders them.

        Raises
        ------
        StateError
            Partials on disk cannot be read.
        """
        for _, part in self._in_order(self.sources(tables), tables):
            for name, rows in part.items():
                yield name, _alive(rows, self._by[0], self.alive_from)

    def _in_order(self, sources: Sequence[Source], tables: Tables) -> Iterator[tuple[int, Part]]:
        """Yields ranges of all groups, merged: the number of rows read, and the rows by table."""
        for low, high in self._spans(sources, tables):
            rows, part = 0, dict[str, pl.DataFrame]()
            for name, table in tables.items():
                found = [frame for source in sources for frame in source.between(name, low, high)]
                rows += sum(frame.height for frame in found)
                whole = pl.concat([table.frames[0].clear(), *found], rechunk=True)
                part[name] = table.ordered(table.merge(whole, self._by), self._by)
            yield rows, part

    def _spans(self, sources: Sequence[Source], tables: Tables) -> Iterator[tuple[Key, Key | None]]:
        """Yields ranges of all groups: the first key, and the first key of the next range."""
        ranges = -(-sum(source.rows for source in sources) // self.range_rows(tables))
        for low, high in pairwise(edges(sources, list(tables), self._by, ranges)):
            assert low is not None
            yield low, high

    def window(self, sources: Sequence[Source], tables: Tables, panes: Sequence[int], rows: int) -> Iterator[Part]:
        """Yields the partials of some panes, unmerged: in ranges of keys that follow each other, or, if they are few, all together.

        Parameters
        ----------
        panes : in order, at least one
        rows : number of these partials

        Raises
        ------
        StateError
            Partials on disk cannot be read.
        """
        keys, ranges = self._by[1:], -(-rows // self.range_rows(tables))
        together = ranges == 1
        for low, high in pairwise(edges(sources, list(tables), keys, ranges, panes)):
            assert low is not None
            part: Part = {}
            for name, table in tables.items():
                found = [table.frames[0].clear()]
                for source in sources:
                    if together:
                        found += source.between(name, (panes[0],), (panes[-1] + 1,))
                        continue
                    for pane in panes:
                        found += source.between(name, (pane, *low), (pane + 1,) if high is None else (pane, *high))
                part[name] = pl.concat(found, rechunk=True)
            yield part

    def checked(self, merged: Part, by: list[str]) -> Part:
        """Returns merged partials, after checking that each group is in the main table.

        Raises
        ------
        StateError
            The state came from another host and is not that of a window.
        """
        for name, rows in merged.items():
            if name != "main" and rows.height and (positions(merged["main"], rows, by) < 0).any():
                raise StateError(f"table {name} of a window has groups that the main table does not have")
        return merged

    def forget(self, alive_from: int) -> None:
        """Forgets panes before `alive_from`; some rows stay on disk for a while."""
        self.alive_from = alive_from
        self._runs = [run for run in self._runs if int(run.counts[0][-1]) >= alive_from]
        if self._merge is not None and not any(run in self._runs for run in self._merging):
            self._merge, self._merging = None, []

    def range_rows(self, tables: Tables) -> int:
        """Returns the number of rows of all tables to merge at once."""
        row_bytes = max(40.0, _bytes(tables) / max(1, sum(table.rows for table in tables.values())))
        return min(RANGE_ROWS_MAX, max(RANGE_ROWS_MIN, int(self._room.memory_bytes / RANGE_SHARE / row_bytes)))


def _alive(rows: pl.DataFrame, pane: str, first: int) -> pl.DataFrame:
    return rows_where(rows, physical(rows[pane]) >= first)


def _in_memory(tables: Tables, by: Sequence[str]) -> Source:
    return SortedRows({name: table.frames for name, table in tables.items()}, by)


def _bytes(tables: Tables) -> float:
    return float(sum(frame.estimated_size() for table in tables.values() for frame in table.frames))


def _join(frames: list[pl.DataFrame], rows: pl.DataFrame, rows_max: int) -> None:
    """Appends rows that follow the others, in memory of their own, to the last frame if both together have at most `rows_max` rows."""
    last = frames.pop() if frames[-1].height + rows.height <= rows_max else rows.clear()
    frames.append(rows_apart(pl.concat([last, rows], rechunk=True)))
