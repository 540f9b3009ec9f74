"""Session windows: rows of a key less than a gap apart are one session, which ends a gap behind its last row.

Rows are aggregated into *fragments*, what a batch shows of a session; a fragment is a pane that begins at its first row. When the
watermark has passed the end of any fragment, fragments that meet are merged, and sessions that no row can join any more are given. Two
fragments of a key that begin at one instant are of one session, so that the beginning is name enough.

Watermarks come with every batch, and looking through all sessions for each would cost more than their rows do: it is done CLOSINGS times
within a gap, at fixed instants, so that what leaves together does not depend on how often watermarks come.

A row is late when the session that it would make alone has ended. One behind the watermark that is not late joins what is still open.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.aggregates import Aggregates
from sbon.operators.grouping import Groups
from sbon.operators.measures import extreme_of
from sbon.operators.partials import TIME
from sbon.operators.windowed import FRAME_ROWS_MAX, PANE, SPAN_US_MAX, Windowed
from sbon.query.plan import WATERMARK_END, WATERMARK_MIN, SessionParams

CLOSINGS = 16
"""How often sessions are given within the length of a gap: one waits for a sixteenth of it at most."""

_MERGED, _BEGINS = "q", "begins"


class Session(Windowed):
    """Sessions by key. Those that end together leave ordered by their start and key."""

    def __init__(self, params: SessionParams) -> None:
        if not 0 < params.gap_us <= SPAN_US_MAX:
            raise RemoteProtocolError(f"sessions {params.gap_us} µs apart, expected 1 to {SPAN_US_MAX}")
        super().__init__(params)
        self._gap_us = params.gap_us
        self._last = ""

    def advance(self, watermark_us: int) -> Sequence[pl.DataFrame]:
        """Give the sessions that have ended."""
        watermark_us = max(watermark_us, self._watermark)
        ended = self._ended(watermark_us)
        if self._may_end(ended):
            self._aggregate_pending()
        self._watermark = watermark_us
        if self._aggregates is None or not self._may_end(ended):
            return ()
        tables = {name: frame for name, table in self._aggregates.tables.items() if (frame := table.folded(self._by)) is not None}
        tables = self._joined(self._aggregates, tables)
        over = tables["main"].filter(pl.col(self._last) + self._gap_us <= ended).select(self._by)
        closed: dict[str, pl.DataFrame] = {}
        for name, frame in tables.items():
            closed[name] = frame.join(over, on=self._by, how="semi", nulls_equal=True)
            self._aggregates.tables[name].replace(frame.join(over, on=self._by, how="anti", nulls_equal=True))
        if over.is_empty():
            return ()
        start, end = pl.col(PANE), pl.col(self._last) + self._gap_us
        answers = self._named(self._aggregates.answers(closed, self._by, (self._last,)), start, end)
        return list(answers.iter_slices(FRAME_ROWS_MAX))

    def output_watermark(self, watermark_us: int) -> int:
        """A session that is open ends behind this."""
        if watermark_us <= WATERMARK_MIN or watermark_us >= WATERMARK_END:
            return watermark_us
        return max(WATERMARK_MIN, self._ended(watermark_us))

    def _compile(self, frame: pl.DataFrame) -> Aggregates:
        aggregates = super()._compile(frame)
        self._last = aggregates.main.measure("max", TIME)
        return aggregates

    def _ended(self, watermark_us: int) -> int:
        """Sessions that end up to here have ended."""
        if watermark_us >= WATERMARK_END:
            return WATERMARK_END + SPAN_US_MAX
        step = max(1, self._gap_us // CLOSINGS)
        return (watermark_us - self._shared.allowed_lateness_us) // step * step

    def _late_below(self) -> int:
        return self._ended(self._watermark) - self._gap_us + 1

    def _may_end(self, ended: int) -> bool:
        """Some row or fragment would have ended were it alone."""
        columns = [frame[self._shared.time_column].to_physical() for frame in self._pending]
        if self._aggregates is not None:
            columns += self._aggregates.main.pieces(self._last)
        return any(isinstance(last := times.min(), int) and last + self._gap_us <= ended for times in columns)

    def _add(self, aggregates: Aggregates, rows: pl.DataFrame) -> None:
        """A fragment begins at a new key and behind a gap; rows that are all within a gap are one fragment a key."""
        times = rows[TIME]
        least, greatest = times.min(), times.max()
        assert isinstance(least, int)
        assert isinstance(greatest, int)
        if greatest - least < self._gap_us:
            groups = Groups.of(rows, self._keys)
            groups.keys = groups.keys.insert_column(0, extreme_of(groups, times, greatest=False).alias(PANE))
        else:
            rows = rows.sort([*self._keys, TIME])
            begins = rows.select(self._begins(pl.col(TIME) - pl.col(TIME).shift() >= self._gap_us).alias(_BEGINS))[_BEGINS]
            firsts = rows.filter(begins).select(pl.col(TIME).alias(PANE), *self._keys)
            groups = Groups(np.cumsum(begins.to_numpy(), dtype=np.int64) - 1, firsts.height, firsts)
        aggregates.add(rows, groups, self._by)

    def _joined(self, aggregates: Aggregates, tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """The tables with fragments that meet merged."""
        extents = tables["main"].select(*self._by, self._last).sort([*self._keys, PANE])
        reached = pl.col(self._last).cum_max()
        reached = (reached.over(self._keys) if self._keys else reached).shift()
        extents = extents.with_columns(
            pl.when(self._begins(pl.col(PANE) - reached >= self._gap_us)).then(PANE).forward_fill().alias(_MERGED)
        )
        moved = extents.filter(pl.col(_MERGED) != pl.col(PANE)).select(*self._by, _MERGED)
        if moved.is_empty():
            return tables
        joined: dict[str, pl.DataFrame] = {}
        for name, frame in tables.items():
            order = frame.columns
            renamed = frame.join(moved, on=self._by, how="left", nulls_equal=True).with_columns(pl.coalesce(_MERGED, PANE).alias(PANE))
            joined[name] = aggregates.tables[name].merge(renamed.select(order), self._by)
        return joined

    def _begins(self, behind_gap: pl.Expr) -> pl.Expr:
        """Of rows ordered by key and time: whether each has another key or a gap before it."""
        new_key = [pl.col(key).ne_missing(pl.col(key).shift()) for key in self._keys]
        return pl.any_horizontal(pl.int_range(pl.len()) == 0, behind_gap.fill_null(False), *new_key)
