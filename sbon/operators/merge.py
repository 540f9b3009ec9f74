"""Merges the answers of several instances of one operator into the order in which one instance would give them.

An instance promises by its watermark that it will give no earlier answer. When all instances have passed an event time, the rows of that
time are put in the order of the columns that one instance orders its answers by. Rows that are equal in these columns come from one
instance, on one link, and keep their order.
"""

from collections.abc import Iterable, Iterator, Sequence

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of
from sbon.operators.grouping import in_order
from sbon.operators.partials import TIME
from sbon.operators.patient import PatientOperator
from sbon.operators.ranges import in_ranges
from sbon.operators.windowed import FRAME_ROWS_MAX
from sbon.query.params.streams import MergeParams
from sbon.schema import ColumnType
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

STEP_ROWS = 65_536
"""Most rows put in order in one step."""


class Merge(PatientOperator[MergeParams]):
    """Gives rows in the order of their event times and columns. A row behind the watermark, or without an event time, is late."""

    def __init__(self, params: MergeParams) -> None:
        super().__init__(params)
        self._by: list[str] = []
        self._given: list[pl.Expr] = []

    @property
    def state_rows(self) -> int:
        """Returns the number of waiting rows."""
        return self._waiting.rows

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Gives the rows that the watermark has passed."""
        self._watermark = max(watermark_us, self._watermark)
        due = self._waiting.take(self._watermark)
        if due is None:
            return ()
        if due.height > STEP_ROWS:
            return self._give_many(due)
        return (self._named(in_order(due, self._by, stable=True)),)

    def _give_many(self, due: pl.DataFrame) -> Iterator[Sequence[pl.DataFrame]]:
        for part in in_ranges({"due": [due]}, self._by):
            yield () if part is None else self._named(in_order(part["due"], self._by, stable=True))

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the watermark of the output's event times, which may be behind the times that rows are merged by."""
        if watermark_us <= WATERMARK_MIN or watermark_us >= WATERMARK_END:
            return watermark_us
        return max(WATERMARK_MIN, watermark_us - self._params.delay_us)

    def _compile(self, frame: pl.DataFrame) -> None:
        """Compiles expressions for the column types of the first batch, which later batches share. Waiting rows have the event time, then
        the columns as c0, c1, ...
        """
        columns = columns_of(frame)
        if columns.get(self._params.time_column) is not ColumnType.TIME:
            raise RemoteProtocolError(f"event time {self._params.time_column!r} is no time column of the input")
        missing = [name for name in (*self._params.order, *self._params.hidden) if name not in columns]
        if missing:
            raise RemoteProtocolError(f"column {missing[0]!r} of a merge is not among the input columns {', '.join(columns)}")
        names = {name: f"c{place}" for place, name in enumerate(columns)}
        time = pl.col(self._params.time_column).cast(pl.Int64).alias(TIME)
        self._prepared = [time, *(pl.col(name).alias(own) for name, own in names.items())]
        self._by = [TIME, *(names[name] for name in self._params.order)]
        self._given = [pl.col(own).alias(name) for name, own in names.items() if name not in self._params.hidden]

    def _named(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        """Returns rows with the columns of the output."""
        return list(rows.select_seq(self._given).iter_slices(FRAME_ROWS_MAX))
