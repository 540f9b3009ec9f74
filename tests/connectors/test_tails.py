"""Rows of a query that are kept for `sbon tail`."""

import polars as pl

from sbon.connectors import tails
from sbon.connectors.tails import KEPT_ROWS, Tail
from sbon.schema import ColumnType, Field


def test_the_memory_of_a_tail_is_that_of_the_rows_it_keeps():
    tail = Tail("q", (Field("n", ColumnType.INT), Field("text", ColumnType.TEXT)))
    assert tail.kept_bytes == 0
    frame = pl.DataFrame({"n": range(KEPT_ROWS), "text": ["x" * 100] * KEPT_ROWS})
    for _ in range(3):
        tail.write(frame)
        tail.publish()
    each = tail.kept_bytes / KEPT_ROWS
    assert 8 + 100 + tails.ROW_BYTES + 2 * tails.CELL_BYTES <= each < 400
