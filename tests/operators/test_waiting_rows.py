"""Rows that wait until the watermark has passed them: which are taken, and what memory the others keep."""

from collections.abc import Iterable

import polars as pl
import psutil
import pytest

from sbon.operators.partials import TIME
from sbon.operators.waiting import Waiting

ROWS = 1_000
MANY, BLOCKS, TEXT_BYTES = 60_000, 20, 100


def waiting_of(times: list[int]) -> Waiting:
    waiting = Waiting()
    waiting.add(pl.DataFrame({TIME: times, "text": [f"{time:0{TEXT_BYTES}}" for time in times]}))
    return waiting


@pytest.mark.parametrize("step", [1, 7], ids=["in order", "in disorder"])
def test_rows_are_taken_once_in_order_of_arrival_and_the_others_wait(step: int):
    times = [index * step % ROWS for index in range(ROWS)]
    waiting = waiting_of(times)

    for before_us, after_us in ((0, 400), (400, 700), (700, 701), (701, ROWS)):
        due = waiting.take(after_us)
        assert due is not None
        assert due[TIME].to_list() == [time for time in times if before_us <= time < after_us]
        assert waiting.rows == ROWS - after_us
    assert waiting.take(ROWS) is None


@pytest.mark.parametrize("takes", [[MANY - 10], range(MANY // 10, MANY - 9, MANY // 10 - 1)], ids=["at once", "little by little"])
def test_a_few_rows_do_not_keep_the_texts_of_many(takes: Iterable[int]):
    """Measures the memory of the process, because polars does not say whose memory a text is in."""
    before = psutil.Process().memory_info().rss
    several: list[Waiting] = []
    for _ in range(BLOCKS):
        waiting = waiting_of(list(range(MANY)))
        for before_us in takes:
            waiting.take(before_us)
        several.append(waiting)

    assert all(0 < waiting.rows < MANY // 5 for waiting in several)
    assert psutil.Process().memory_info().rss - before < BLOCKS * MANY * TEXT_BYTES / 2
