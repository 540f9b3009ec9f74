"""Merges the matches that several instances found into the answers that one instance would give.

An instance finds the match of each of its starts as if there were no other matches, and promises by its watermark that no match with an
earlier first row will come. When all instances have passed the first row of a match, the match is emitted, unless it begins before the row
where AFTER MATCH SKIP of the previous match lets the next one begin.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of
from sbon.operators.grouping import in_order
from sbon.operators.merge import Merge
from sbon.operators.partials import TIME
from sbon.operators.snapshots import Parts
from sbon.query.params.streams import MergeParams, WindowChoice
from sbon.schema import ColumnType

_CHOSEN = "chosen"
_KEPT = {"resumes": pl.Int64(), "row": pl.Int64(), "number": pl.Int64()}


class Merger(Merge):
    """Emits matches in the order of their first rows, and numbers them. Its state is where the next match may begin."""

    def __init__(self, params: MergeParams, choice: WindowChoice) -> None:
        super().__init__(params)
        self._choice = choice
        self._resumes: tuple[int, int] | None = None
        """Event time of the rows where the next match may begin, and the least number of such a row at that time; None: any row."""
        self._number = 0
        """Matches so far."""

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Emits the matches whose first rows the watermark has passed."""
        self._watermark = max(watermark_us, self._watermark)
        due = self._waiting.take(self._watermark)
        return () if due is None else (self._chosen(in_order(due, self._by, stable=True)),)

    def _chosen(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        """Returns the rows of the matches to emit. Rows of one match are adjacent."""
        times, places = rows[TIME].to_numpy(), rows[self._row].to_numpy()
        begins = np.append(True, (times[1:] != times[:-1]) | (places[1:] != places[:-1]))
        first = np.flatnonzero(begins)
        starts = zip(times[first].tolist(), places[first].tolist(), strict=True)
        behind = zip(*(rows[name].cast(pl.Int64).gather(first).to_list() for name in self._next), strict=True)
        numbers = np.zeros(first.size, np.int64)
        for at, (start, resumes) in enumerate(zip(starts, behind, strict=True)):
            if self._resumes is None or start >= self._resumes:
                self._number += 1
                numbers[at], self._resumes = self._number, resumes
        of_rows = numbers[np.cumsum(begins) - 1]
        told = rows.with_columns_seq(pl.Series(name, of_rows) for name in self._numbers).filter(pl.Series(of_rows > 0))
        return self._named(told) if told.height else []

    def _compile(self, frame: pl.DataFrame) -> None:
        super()._compile(frame)
        columns, choice = columns_of(frame), self._choice
        expected = {choice.row: ColumnType.INT, choice.resumes: ColumnType.TIME, choice.resumes_row: ColumnType.INT}
        expected |= dict.fromkeys(choice.numbers, ColumnType.INT)
        for name, kind in expected.items():
            if columns.get(name) is not kind:
                raise RemoteProtocolError(f"column {name!r} of a merger is {columns.get(name)}, expected {kind}")
        names = {name: f"c{place}" for place, name in enumerate(columns)}
        self._row, self._next = names[choice.row], (names[choice.resumes], names[choice.resumes_row])
        self._numbers = [names[name] for name in choice.numbers]

    def _kept(self) -> dict[str, pl.DataFrame]:
        """Returns where the next match may begin, and the number of the last match."""
        if self._resumes is None:
            return {}
        return {_CHOSEN: pl.DataFrame([(*self._resumes, self._number)], schema=_KEPT, orient="row")}

    def _kept_columns(self, prepared: pl.DataFrame) -> dict[str, pl.Schema | None]:
        return {_CHOSEN: pl.Schema(_KEPT)}

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        frames = self._adopted(parts)
        self._resumes, self._number = None, 0
        if _CHOSEN in frames:
            kept = frames[_CHOSEN]
            if kept.height != 1 or any(kept.null_count().row(0)):
                raise RemoteProtocolError(f"a merger's snapshot with {kept.height} places where the next match may begin, expected one")
            time, row, self._number = kept.row(0)
            self._resumes = time, row
