"""`sbon bench scheduling`: what the scheduler's queue costs a batch, by the number of ways and of batches that wait."""

import time
from collections.abc import Callable
from typing import Any

from sbon.cli.output import count, print_table
from sbon.cli.tables import Column
from sbon.errors import UsageError
from sbon.links.batch import Batch
from sbon.scheduling import EarliestStimulusFirst, StimulusFifo

WAYS = (1, 4, 64)
WAITING = (10, 1_000, 100_000)
OPERATIONS = 20_000


def measure(repeat: int = 5, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Nanoseconds of processor time to put one batch in, and to take the one out whose turn it is; the least of the repetitions.

    Raises
    ------
    UsageError
        The number of repetitions is below 1.
    """
    if repeat < 1:
        raise UsageError(f"--repeat {repeat}, expected at least 1")
    rows = []
    for ways in WAYS:
        for waiting in WAITING:
            progress(f"ways: {ways}, batches that wait: {waiting:,}")
            enqueue_ns, dequeue_ns = map(min, zip(*(_once(ways, waiting) for _ in range(repeat)), strict=True))
            rows.append({"ways": ways, "waiting": waiting, "enqueue_ns": round(enqueue_ns), "dequeue_ns": round(dequeue_ns)})
    return {"repeat": repeat, "queues": rows}


def show(result: dict[str, Any]) -> None:
    """The result as a table for people."""
    columns = tuple(Column(title, right=True) for title in ("ways", "waiting", "enqueue ns", "dequeue ns"))
    names = ("ways", "waiting", "enqueue_ns", "dequeue_ns")
    print_table(columns, [[count(row[name]) for name in names] for row in result["queues"]])


def _once(ways: int, waiting: int) -> tuple[float, float]:
    """So many batches wait on so many ways; then as many come as go, in groups of which each way gets its share."""
    fifos: list[StimulusFifo[Batch]] = [StimulusFifo() for _ in range(ways)]
    merge = EarliestStimulusFirst[int]()
    group = min(waiting, 1_000)
    made = 0

    def make(much: int) -> list[Batch]:
        nonlocal made
        made += much
        return [Batch(i, float(i), 0, None) for i in range(made - much, made)]

    def put(batches: list[Batch]) -> None:
        for batch in batches:
            way = batch.sequence % ways
            fifo = fifos[way]
            fifo.append(batch)
            merge.push(way, fifo.earliest_s)

    def take(much: int) -> None:
        for _ in range(much):
            way = merge.first()
            assert way is not None
            fifo = fifos[way]
            fifo.popleft()
            if fifo:
                merge.push(way, fifo.earliest_s)
            else:
                merge.remove(way)

    put(make(waiting))
    enqueue_ns = dequeue_ns = 0
    for _ in range(OPERATIONS // group):
        batches = make(group)
        began = time.process_time_ns()
        put(batches)
        between = time.process_time_ns()
        take(group)
        enqueue_ns += between - began
        dequeue_ns += time.process_time_ns() - between
    done = OPERATIONS // group * group
    return enqueue_ns / done, dequeue_ns / done
