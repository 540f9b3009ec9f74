"""A task joins several waiting batches of a link into one."""

from types import SimpleNamespace
from typing import Any

import pytest

from sbon.execution.chains import BATCHES_MAX, JOINED_ROWS_MAX, backlog
from sbon.links.batch import Batch
from sbon.links.origins import InputRows
from sbon.scheduling import StimulusFifo


def waiting(*rows: int) -> Any:
    queue = StimulusFifo[Batch]()
    for number, count in enumerate(rows):
        queue.append(Batch(number, float(number), 0, SimpleNamespace(rows=count, size_bytes=8 * count)))
    return SimpleNamespace(queue=queue, origin=InputRows())


@pytest.mark.parametrize(
    ("rows", "rows_max", "taken"),
    [
        ((10, 20, 30), 100, 3),
        ((10, 20, 30), 59, 2),
        ((70, 20), 59, 1),
        ((JOINED_ROWS_MAX // 2, JOINED_ROWS_MAX // 2, 1), 10 * JOINED_ROWS_MAX, 2),
        ((JOINED_ROWS_MAX, 1), 10 * JOINED_ROWS_MAX, 1),
        ((1,) * (BATCHES_MAX + 5), 10**6, BATCHES_MAX),
    ],
    ids=["all", "what fits into the quantum", "at least one", "no more than is worth a copy", "a large one alone", "not too many"],
)
def test_a_backlog_is_taken_in_order(rows: tuple[int, ...], rows_max: int, taken: int) -> None:
    assert [batch.sequence for batch in backlog(waiting(*rows), rows_max)] == list(range(taken))
