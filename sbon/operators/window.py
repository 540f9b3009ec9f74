"""Tumbling and hopping windows, aggregated by key.

Rows are aggregated into *panes*, the stretches of time between any two window edges, so that a row is touched once however many windows it
belongs to (Li et al., No pane, no gain, SIGMOD Record 34, 2005). The length of a pane is the greatest common divisor of size and slide;
panes are numbered from 1970 on. When a window closes, its panes are merged; many panes are merged in ranges of their keys (`ranges`). A
pane is dropped when the last window over it has closed. The answer does not depend on how rows were batched or links interleaved (see
`aggregates`), as long as rows come before the watermark.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import polars as pl

from sbon.operators.aggregates import Aggregates
from sbon.operators.cold_partials import ColdPartials
from sbon.operators.frames import rows_where
from sbon.operators.grouping import Groups
from sbon.operators.partials import TIME, Table
from sbon.operators.ranges import PIECE_ROWS, in_ranges
from sbon.operators.windowed import FRAME_ROWS_MAX, PANE, ROWS_AT_ONCE, Windowed
from sbon.query.limits import SPAN_US_MAX
from sbon.query.params.windowed import WindowParams
from sbon.state.room import StateRoom
from sbon.state.sorted_runs import counted
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

_WINDOW = "w"
FOLDED_FRAMES = 8
"""Partials of hopping windows in more frames are folded before windows close, since each range of keys is cut from each pane and frame."""


class Window(Windowed):
    """Windows of one length. A row is late when all windows that can contain it have closed.

    Parameters
    ----------
    room : memory and disk for partials of windows with keys; None: all are in memory
    """

    def __init__(self, params: WindowParams, room: StateRoom | None = None) -> None:
        super().__init__(params, room if params.keys else None)
        self._params = params
        self._pane_us = math.gcd(params.size_us, params.slide_us)

    def _close_up_to(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Emits the windows that have closed, by ranges of windows and keys if there are many of them."""
        before = self._open_from(self._watermark)
        after = self._open_from(max(watermark_us, self._watermark))
        if before != after:
            self._aggregate_pending()
        self._watermark = max(watermark_us, self._watermark)
        if self._aggregates is None or before == after or not self._partials + (self._cold.rows if self._cold else 0):
            return ()
        first, end = before // self._pane_us, -(-after // self._pane_us)
        if self._cold and (self._cold.rows or self._partials > self._cold.range_rows(self._aggregates.tables)):
            return self._close_from_disk(self._cold, self._aggregates, first, end)
        slide, size = self._in_panes
        for table in self._aggregates.tables.values():
            if table.rows <= ROWS_AT_ONCE:
                table.folded(self._by)
        if self._partials * min(-(-size // slide), (end - first) // slide) > ROWS_AT_ONCE:
            return self._close_many(self._aggregates, first, end)
        answers = self._close(self._aggregates, first, end)
        for _ in self._let_go(self._aggregates, end):
            pass
        return (answers,)

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the end of the first window that is still open; for windows of one instant the start, as the key may be the instant
        itself."""
        if watermark_us <= WATERMARK_MIN or watermark_us >= WATERMARK_END:
            return watermark_us
        size = self._params.size_us if self._params.size_us > 1 else 0
        return max(WATERMARK_MIN, self._open_from(watermark_us) + size)

    def _open_from(self, watermark_us: int) -> int:
        """Returns the start of the first window that has not closed."""
        if watermark_us >= WATERMARK_END:
            return WATERMARK_END + SPAN_US_MAX
        slide = self._params.slide_us
        return (watermark_us - self._params.size_us - self._params.allowed_lateness_us) // slide * slide + slide

    def _late_below(self) -> int:
        return self._open_from(self._watermark)

    def _add(self, aggregates: Aggregates, rows: pl.DataFrame) -> None:
        slide, size, pane = self._params.slide_us, self._params.size_us, self._pane_us
        if slide > size:
            rows = rows.filter(pl.col(TIME) - pl.col(TIME) // slide * slide < size)
            if rows.is_empty():
                return
        times = rows[TIME].to_numpy()
        first, last = int(times.min()) // pane, int(times.max()) // pane
        if first == last:
            groups = Groups.of(rows, self._by, (PANE, first))
        else:
            groups = Groups.of(rows.hstack([pl.Series(PANE, times // pane)]), self._by)
        aggregates.add(rows, groups, self._by)

    @property
    def _in_panes(self) -> tuple[int, int]:
        """Returns slide and size in panes."""
        return self._params.slide_us // self._pane_us, self._params.size_us // self._pane_us

    def _close(self, aggregates: Aggregates, first: int, end: int) -> list[pl.DataFrame]:
        """Returns the answers of the windows that start with the panes from `first` to below `end`."""
        slide, size = self._in_panes
        merged: dict[str, pl.DataFrame] = {}
        for name, table in aggregates.tables.items():
            frame = table.folded(self._by)
            assert frame is not None
            spread = self._spread(frame, first, end - slide)
            merged[name] = spread if size == slide else table.merge(spread, [_WINDOW, *self._keys])
        return self._answers(aggregates, merged)

    def _close_many(self, aggregates: Aggregates, first: int, end: int) -> Iterator[Sequence[pl.DataFrame]]:
        """Yields the answers that `_close` would return, in steps, then drops the panes that are no longer needed."""
        slide, size = self._in_panes
        by = [_WINDOW, *self._keys]
        if size == slide:
            stretches: Iterable[tuple[int, int]] = [(first, end - slide)]
        else:
            stretches = self._stretches(self._main_counts(aggregates.main), first, end, ROWS_AT_ONCE)
        for low, high in stretches:
            spread: dict[str, list[pl.DataFrame]] = {}
            for name, table in aggregates.tables.items():
                spread[name] = [self._spread(table.frames[0].clear(), low, high)]
                for frame in table.frames:
                    for piece in frame.iter_slices(PIECE_ROWS):
                        spread[name].append(self._spread(piece, low, high))
                        yield ()
            for part in in_ranges(spread, by):
                merged = {name: aggregates.tables[name].merge(rows, by) for name, rows in (part or {}).items()}
                yield self._answers(aggregates, merged) if merged else ()
        yield from self._let_go(aggregates, end)

    def _close_from_disk(self, cold: ColdPartials, aggregates: Aggregates, first: int, end: int) -> Iterator[Sequence[pl.DataFrame]]:
        """Yields the answers that `_close` would return, with partials read from disk, then drops those that are no longer needed."""
        (slide, size), by, tables = self._in_panes, [_WINDOW, *self._keys], aggregates.tables
        if size > slide and max(len(table.frames) for table in tables.values()) > FOLDED_FRAMES:
            for _ in cold.fold(tables):
                yield ()
        sources = cold.sources(tables)
        yield ()
        panes, counts = counted(sources)
        for low, high in self._stretches(pl.DataFrame({PANE: panes, "count": counts}), first, end, cold.range_rows(tables)):
            held = (panes >= low) & (panes < high + size)
            for part in cold.window(sources, tables, panes[held].tolist(), int(counts[held].sum())):
                merged = {name: tables[name].merge(self._spread(rows, low, high), by) for name, rows in part.items()}
                yield self._answers(aggregates, cold.checked(merged, by)) if merged["main"].height else ()
        cold.forget(-(-end // slide) * slide)
        yield from self._let_go(aggregates, end)

    def _passed_pane(self) -> int:
        return max(WATERMARK_MIN, min(self._watermark, WATERMARK_END)) // self._pane_us

    def _main_counts(self, main: Table) -> pl.DataFrame:
        return pl.concat([frame[PANE].value_counts() for frame in main.frames]).group_by(PANE).sum().sort(PANE)

    def _stretches(self, counts: pl.DataFrame, first: int, end: int, most: int) -> Iterator[tuple[int, int]]:
        """Yields stretches of windows to close together, as the first panes of their first and last window. Each begins and ends with a
        window that has rows.

        Parameters
        ----------
        counts : panes with their numbers of rows, in order
        most : most rows of a stretch of several windows
        """
        slide, size = self._in_panes
        panes, before = counts[PANE].to_numpy(), np.append(0, counts["count"].to_numpy().cumsum())
        starts = self._spread(counts.select_seq(PANE), first, end - slide)[_WINDOW].unique().sort().to_numpy()
        rows = before[np.searchsorted(panes, starts + size)] - before[np.searchsorted(panes, starts)]
        together, low = 0, 0
        for at, count in enumerate(rows.tolist()):
            if at > low and together + count > most:
                yield int(starts[low]), int(starts[at - 1])
                together, low = 0, at
            together += count
        if low < starts.size:
            yield int(starts[low]), int(starts[-1])

    def _answers(self, aggregates: Aggregates, merged: dict[str, pl.DataFrame]) -> list[pl.DataFrame]:
        """Returns the answers of windows, given tables with one row per group. `_WINDOW` is the first pane of a window."""
        answers = aggregates.answers(merged, [_WINDOW, *self._keys])
        start = answers[_WINDOW] * self._pane_us
        return list(self._named(answers, start, start + self._params.size_us).iter_slices(FRAME_ROWS_MAX))

    def _let_go(self, aggregates: Aggregates, end: int) -> Iterator[Sequence[pl.DataFrame]]:
        """Drops the panes that no window from `end` on needs."""
        slide, _ = self._in_panes
        for table in aggregates.tables.values():
            table.keep(PANE, lambda panes: panes // slide * slide >= end)
            yield ()

    def _spread(self, partials: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
        """Repeats partials of panes for every window that contains the pane and starts with a pane in `first` to `last`."""
        (slide, size), pane = self._in_panes, pl.col(PANE)
        if size == slide:
            panes = partials[PANE].to_numpy()
            held = rows_where(partials, (panes >= first) & (panes <= last)).clone()
            held.columns = [_WINDOW if name == PANE else name for name in held.columns]
            return held
        if first == last:
            held = partials.filter(pane.is_between(first, first + size, closed="left"))
            # One value per row: a literal would be stored once and distort rates measured in bytes.
            return held.select_seq(pl.repeat(first, pl.len(), dtype=pl.Int64()).alias(_WINDOW), pl.all().exclude(PANE))
        earliest = ((pane - size) // slide * slide + slide).clip(lower_bound=first)
        latest = (pane // slide * slide).clip(upper_bound=last)
        held = partials.filter(earliest <= latest)
        windows = pl.int_ranges(earliest, latest + 1, slide).alias(_WINDOW)
        return held.select_seq(windows, pl.all().exclude(PANE)).explode(_WINDOW)
