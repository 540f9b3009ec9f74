"""Adds the bounds of a row's windows as columns; operators downstream treat rows with equal bounds as simultaneous.

The operator keeps no state. It converts the watermark of the rows' event times into the end of the first window that is still open.
"""

from collections.abc import Sequence

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of
from sbon.operators.operator import Operator
from sbon.operators.windowed import FRAME_ROWS_MAX
from sbon.query.params.windowed import AssignParams
from sbon.query.relation import BOUNDS
from sbon.schema import ColumnType
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

_START = "\0"
"""Name of a helper column that no query can use."""


def bounds(start_us: pl.Expr, size_us: int) -> list[pl.Expr]:
    """Returns the columns window_start and window_end of windows that start at these instants."""
    instants = (start_us, start_us + size_us)
    return [instant.cast(pl.Datetime("us")).alias(name) for name, instant in zip(BOUNDS, instants, strict=True)]


class Assign(Operator):
    """Adds tumbling or hopping windows to rows. A row without an event time gets NULL bounds."""

    effect_free = True

    def __init__(self, params: AssignParams) -> None:
        self._params = params
        self.spread = -(-params.size_us // params.slide_us)

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Returns the rows in their order; the copies of one row are ordered by window."""
        if columns_of(frame).get(self._params.time_column) is not ColumnType.TIME:
            raise RemoteProtocolError(f"event time {self._params.time_column!r} is no time column of the input")
        size, slide, time = self._params.size_us, self._params.slide_us, pl.col(self._params.time_column).cast(pl.Int64)
        others = pl.all().exclude(*BOUNDS)
        latest = time // slide * slide
        if size == slide:
            return (frame.select_seq(*bounds(latest, size), others),)
        starts = pl.int_ranges((time - size) // slide * slide + slide, latest + 1, slide).alias(_START)
        found = []
        for part in frame.iter_slices(max(1, FRAME_ROWS_MAX * slide // size)):
            spread = part.select_seq(starts, others).explode(_START)
            found.append(spread.select_seq(*bounds(pl.col(_START), size), pl.all().exclude(_START)))
        return found

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the end of the first window that is still open."""
        if watermark_us <= WATERMARK_MIN or watermark_us >= WATERMARK_END:
            return watermark_us
        size, slide = self._params.size_us, self._params.slide_us
        first = (watermark_us - size - self._params.allowed_lateness_us) // slide * slide + slide
        return max(WATERMARK_MIN, first + size)
