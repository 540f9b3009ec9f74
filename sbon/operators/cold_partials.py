"""Partial aggregates of windows that exceed memory: the most frequent groups' stay in memory, the others' go to sorted runs on disk.

Partials merge in any order to the same answer, so a group may have some in memory and some in several runs, and nothing is read from disk
until a window closes. Then rows of all runs and of the memory are read and merged by ranges of keys, in the order in which windows answer.
Runs of similar size are merged piece by piece meanwhile, so that there are few.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from sbon.errors import StateError, StateFullError
from sbon.operators.frames import rows_where
from sbon.operators.grouping import physical, positions
from sbon.operators.measures import rows_apart
from sbon.operators.partials import Table
from sbon.operators.ranges import in_ranges
from sbon.state.room import StateRoom, check_batch, to_merge
from sbon.state.sorted_runs import SortedRows, SortedRun, SortedWriting, Source, edges
from sbon.watermarks import WATERMARK_MIN

HELD_SHARE = 0.3
"""Share of the memory for partials; the rest is for copies while they are folded and sorted, and for rows read from disk."""
PENDING_SHARE = 8
"""Rows that wait to be aggregated take at most 1/8 of the memory."""
RANGE_SHARE = 16
"""Rows that are merged at once take about 1/16 of the memory."""
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
    """

    def __init__(self, by: Sequence[str], room: StateRoom) -> None:
        self._by, self._room = list(by), room
        self._runs: list[SortedRun] = []
        """The newest first."""
        self._merging: list[SortedRun] = []
        self._merge: Iterator[SortedRun | int] | None = None
        self._due_rows = 0
        self._alive_from = WATERMARK_MIN
        self._is_full = False
        """True after the disk took no more; then only `make_room` tries again."""
        room.users.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ColdPartials":
        forked = ColdPartials.__new__(ColdPartials)
        forked._by, forked._room, forked._runs = self._by, self._room, list(self._runs)
        forked._merging, forked._merge, forked._due_rows = [], None, 0
        forked._alive_from, forked._is_full = self._alive_from, False
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

    @property
    def _held_bytes_max(self) -> float:
        memory = self._room.memory_bytes
        return max(HELD_SHARE * memory - sum(run.memory_bytes for run in self._runs), memory / 10)

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
        return self._due_rows > 0 or (not self._is_full and self.is_over(tables))

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
        while self._due_rows > 0:
            self._merge_some(tables)
            yield

    def _moved(self, tables: Tables, passed: int) -> Iterator[None]:
        """Folds the partials and, if many are left, writes those of all but the most frequent groups to a new run."""
        for table in tables.values():
            if table.rows <= RANGE_ROWS_MAX:
                table.folded(self._by)
            elif len(table.frames) > 1:
                yield from table.fold_in_steps(self._by)
        if 2 * _bytes(tables) <= self._held_bytes_max:
            return
        main = tables["main"].frames[0]
        least = _least_count(main, physical(main[self._by[0]]) >= passed)
        if sum(table.rows for table in tables.values()) > OTHERS_MAX * main.height:
            least = 2**62
        staying = {name: [table.frames[0].clear()] for name, table in tables.items()}
        writing = SortedWriting(self._room, self._by)
        for part in in_ranges({name: table.frames for name, table in tables.items()}, self._by):
            if part is not None:
                whole = part["main"]
                stays = (physical(whole[self._by[0]]) >= passed) & (whole["n"].to_numpy() >= least)
                frequent = whole.filter(pl.Series(stays))
                for name, rows in part.items():
                    mask = pl.Series(stays if name == "main" else positions(frequent, rows, self._by) >= 0)
                    staying[name].append(rows_apart(rows.filter(mask)))
                    writing.add(name, tables[name].ordered(rows.filter(~mask), self._by))
            yield
        run = writing.finished()
        self._runs.insert(0, run)
        self._due_rows += MERGE_SHARE * run.rows
        for name, table in tables.items():
            table.replace(pl.concat(staying[name], rechunk=True))

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
            self._merge, self._due_rows = None, 0
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
                alive = physical(frame[self._by[0]]) >= self._alive_from
                writing.add(name, rows_where(frame, alive))
            yield max(1, rows)
        yield writing.finished()

    def sources(self, tables: Tables) -> list[Source]:
        """Returns the partials on disk, and those in memory, which must be folded."""
        held = {name: table.ordered(table.frames[0], self._by) for name, table in tables.items()}
        return [SortedRows(held, self._by), *self._runs]

    def pieces(self, tables: Tables) -> Iterator[tuple[str, pl.DataFrame]]:
        """Yields the partials of all tables in pieces that follow each other, as `Table.ordered` orders them. All in memory must be folded.

        Raises
        ------
        StateError
            Partials on disk cannot be read.
        """
        for _, part in self._in_order(self.sources(tables), tables):
            yield from part.items()

    def _in_order(self, sources: Sequence[Source], tables: Tables) -> Iterator[tuple[int, Part]]:
        """Yields ranges of all groups, merged: the number of rows read, and the rows by table."""
        ranges = -(-sum(source.rows for source in sources) // self.range_rows(tables))
        for low, high in pairwise(edges(sources, list(tables), self._by, ranges)):
            assert low is not None
            rows, part = 0, dict[str, pl.DataFrame]()
            for name, table in tables.items():
                found = [frame for source in sources for frame in source.between(name, low, high)]
                rows += sum(frame.height for frame in found)
                whole = pl.concat([table.frames[0].clear(), *found], rechunk=True)
                part[name] = table.ordered(table.merge(whole, self._by), self._by)
            yield rows, part

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
        self._alive_from = alive_from
        self._runs = [run for run in self._runs if int(run.counts[0][-1]) >= alive_from]
        if self._merge is not None and not any(run in self._runs for run in self._merging):
            self._merge, self._merging = None, []

    def range_rows(self, tables: Tables) -> int:
        """Returns the number of rows of all tables to merge at once."""
        frames = [table.frames[0] for table in tables.values()]
        row_bytes = max(40.0, _bytes(tables) / max(1, sum(frame.height for frame in frames)))
        return min(RANGE_ROWS_MAX, max(RANGE_ROWS_MIN, int(self._room.memory_bytes / RANGE_SHARE / row_bytes)))


def _bytes(tables: Tables) -> float:
    return float(sum(frame.estimated_size() for table in tables.values() for frame in table.frames))


def _least_count(main: pl.DataFrame, open_: "np.ndarray[Any, np.dtype[np.bool_]]") -> int:
    """Returns the number of rows from which a group is frequent: half of all groups have fewer, or one row, or are of a passed pane."""
    counts, most = main["n"].to_numpy()[open_], main.height // 2
    if counts.size <= most:
        return 2
    return max(2, int(np.partition(counts, counts.size - most - 1)[counts.size - most - 1]) + 1)
