"""Pairs of rows with equal keys, by whichever of the columnar library's two engines is faster for so many rows."""

from typing import Literal

import polars as pl

STREAMED_ROWS_MIN = 4_096
"""Rows of both sides from which the streaming engine's join is faster: half the time a row, but 0.2 ms more a call."""


def paired(left: pl.DataFrame, right: pl.DataFrame, left_on: list[str], right_on: list[str], how: Literal["inner", "left"]) -> pl.DataFrame:
    """Rows of both sides with equal keys, NULL equal to nothing, in the order of the left rows, then of the right ones.

    Parameters
    ----------
    left, right : without a column name in common
    left_on, right_on : the keys; those of the right side are not in the answer
    how : "left" gives left rows without a partner, too
    """
    if left.height + right.height < STREAMED_ROWS_MIN:
        return left.join(right, left_on=left_on, right_on=right_on, how=how, maintain_order="left_right")
    pairs = left.lazy().join(right.lazy(), left_on=left_on, right_on=right_on, how=how, maintain_order="left_right", coalesce=True)
    return pairs.collect(engine="streaming")
