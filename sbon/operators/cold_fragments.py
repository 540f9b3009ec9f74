"""Fragments of sessions that exceed memory: partial aggregates by pane and key, as of other windows, that leave pane by pane."""

import polars as pl

from sbon.operators.cold_partials import RANGE_ROWS_MIN, ColdPartials, Part, Tables
from sbon.state.sorted_runs import Counts, counted

SESSIONS_SHARE = 0.2
"""Share of the memory for fragments; fragments are copied when they move into other panes."""
KNOWN_ROW_BYTES = 3000
"""Bytes counted for each fragment of which pane, key, first and last row are in memory, with copies, if these may take the whole memory."""


class ColdFragments(ColdPartials):
    """Fragments on disk, of all tables of one session operator."""

    @property
    def known_rows_max(self) -> int:
        """Returns the number of fragments of sessions whose ends may be in memory at once."""
        return max(RANGE_ROWS_MIN, self._room.memory_bytes // KNOWN_ROW_BYTES)

    def counted(self, tables: Tables, end: int) -> Counts:
        """Returns the panes before `end`, in order, and the number of partials of each, unmerged."""
        panes, counts = counted(self.sources(tables))
        held = (panes >= self.alive_from) & (panes < end)
        return panes[held], counts[held]

    def has_before(self, end: int) -> bool:
        """Tells whether partials of panes before `end` are on disk."""
        return any(((run.counts[0] >= self.alive_from) & (run.counts[0] < end)).any() for run in self._runs)

    def of_panes(self, tables: Tables, low: int, high: int) -> Part:
        """Returns the partials of the panes from `low` to `high`, unmerged.

        Raises
        ------
        StateError
            Partials on disk cannot be read.
        """
        sources = self.sources(tables)
        found = {name: [frame for source in sources for frame in source.between(name, (low,), (high + 1,))] for name in tables}
        return {name: pl.concat([table.frames[0].clear(), *found[name]], rechunk=True) for name, table in tables.items()}
