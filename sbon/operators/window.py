"""Tumbling and hopping windows, aggregated by key.

Rows are aggregated into *panes*, the stretches of time between any two window edges (their length is the greatest common divisor of
size and slide, and they are numbered from 1970 on), so that a row is touched once however many windows it belongs to (Li et al., No
pane, no gain, SIGMOD Record 34, 2005). When a window closes, its panes are merged; a pane goes when the last window over it has closed.
The answer is the same however rows were cut into batches and links interleaved (see `aggregates`), as long as they come before the
watermark.
"""

import math
from collections.abc import Sequence

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.aggregates import Aggregates
from sbon.operators.grouping import Groups
from sbon.operators.partials import TIME
from sbon.operators.windowed import FRAME_ROWS_MAX, PANE, SPAN_US_MAX, Windowed
from sbon.query.plan import WATERMARK_END, WATERMARK_MIN, WindowParams

SPREAD_ROWS_MAX = 1_000_000
"""Rows of partials that are merged at once where many hopping windows close together."""

_WINDOW = "w"


class Window(Windowed):
    """Windows of one length. A row is late when all windows that can hold it have closed."""

    def __init__(self, params: WindowParams) -> None:
        if not (0 < params.size_us <= SPAN_US_MAX and 0 < params.slide_us <= SPAN_US_MAX):
            raise RemoteProtocolError(f"window of {params.size_us} µs every {params.slide_us} µs, expected 1 to {SPAN_US_MAX}")
        super().__init__(params)
        self._params = params
        self._pane_us = math.gcd(params.size_us, params.slide_us)

    def advance_in_steps(self, watermark_us: int) -> Sequence[Sequence[pl.DataFrame]]:
        """Give the windows that have closed."""
        before = self._open_from(self._watermark)
        after = self._open_from(max(watermark_us, self._watermark))
        if before != after:
            self._aggregate_pending()
        self._watermark = max(watermark_us, self._watermark)
        if self._aggregates is None or before == after or not self._partials:
            return ()
        tables = {name: frame for name, table in self._aggregates.tables.items() if (frame := table.folded(self._by)) is not None}
        first, end = before // self._pane_us, -(-after // self._pane_us)
        frames = self._close(self._aggregates, tables, first, end)
        slide = self._params.slide_us // self._pane_us
        for name, frame in tables.items():
            self._aggregates.tables[name].replace(frame.filter(pl.col(PANE) // slide * slide >= end))
        return (frames,)

    def output_watermark(self, watermark_us: int) -> int:
        """The end of the first window that is still open; the start of one of an instant, as its key may be the instant itself."""
        if watermark_us <= WATERMARK_MIN or watermark_us >= WATERMARK_END:
            return watermark_us
        size = self._params.size_us if self._params.size_us > 1 else 0
        return max(WATERMARK_MIN, self._open_from(watermark_us) + size)

    def _open_from(self, watermark_us: int) -> int:
        """Start of the first window that has not closed."""
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

    def _close(self, aggregates: Aggregates, tables: dict[str, pl.DataFrame], first: int, end: int) -> list[pl.DataFrame]:
        """Answers of the windows that start with the panes from `first` up to before `end`."""
        slide, size = self._params.slide_us // self._pane_us, self._params.size_us // self._pane_us
        starts = self._spread(tables["main"].select(PANE).unique(), first, end - slide)[_WINDOW].unique().sort()
        overlap = -(-size // slide)
        rounds = -(-self._partials * min(overlap, max(1, starts.len())) // SPREAD_ROWS_MAX)
        step = -(-starts.len() // max(1, rounds)) or 1
        by = [_WINDOW, *self._keys]
        frames: list[pl.DataFrame] = []
        for at in range(0, starts.len(), step):
            block = starts.slice(at, step)
            merged = {}
            for name, frame in tables.items():
                spread = self._spread(frame, int(block[0]), int(block[-1]))
                merged[name] = spread if size == slide else aggregates.tables[name].merge(spread, by)
            start = pl.col(_WINDOW) * self._pane_us
            answers = self._named(aggregates.answers(merged, by), start, start + self._params.size_us)
            frames.extend(answers.iter_slices(FRAME_ROWS_MAX))
        return frames

    def _spread(self, partials: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
        """Partials of panes, each once for every window that starts with a pane within `first` to `last` and holds its own."""
        slide, size, pane = self._params.slide_us // self._pane_us, self._params.size_us // self._pane_us, pl.col(PANE)
        earliest = ((pane - size) // slide * slide + slide).clip(lower_bound=first)
        latest = (pane // slide * slide).clip(upper_bound=last)
        held = partials.filter(earliest <= latest)
        if size == slide:
            return held.rename({PANE: _WINDOW})
        windows = pl.int_ranges(earliest, latest + 1, slide).alias(_WINDOW)
        return held.select(windows, pl.all().exclude(PANE)).explode(_WINDOW)
