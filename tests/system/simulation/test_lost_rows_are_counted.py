"""Rows that a query counts as lost are exactly those that are missing, if hosts crash while links have spilled rows to their disks.

Rows on a disk count as safe, so no other host keeps them. Later the ends of the query crash, too, and process the file again: lost rows
stay lost, and no other row is missing or comes twice.
"""

from pathlib import Path

import numpy as np
import pytest

from sbon.supervision.account import Account
from sbon.supervision.record import QueryRecord
from sbon_testbed.leftovers import run_directory
from sbon_testbed.simulator.checkers.crashes import unaccounted
from sbon_testbed.simulator.harness import World
from tests.crash_stories import (
    HOME,
    SETTINGS,
    UNNEST,
    crash,
    cut,
    finish,
    may_move,
    moved,
    read_files,
    sometimes_restart,
    the_movable,
    write_file,
    written,
)
from tests.examples import seeds
from tests.worlds import settled_world

SOURCE, SINK = 1, 2
ROWS = 300
ITEMS = {v: (v, v + ROWS) for v in range(ROWS)}


def trouble(world: World, record: QueryRecord, operator: str, rng: np.random.Generator) -> None:
    """Moves the operator to a host that is cut off from the sink for a while, and then crashes."""
    there = moved(world, record, operator, rng, (HOME, SOURCE, SINK))
    if there is None:
        return
    world.run(float(rng.uniform(0.0, 1.0)))
    cut(world, there, [SINK])
    world.run(float(rng.uniform(0.5, 4.0)))
    crash(world, record, there, rng, 60.0)


def ended(folder: Path, seed: int) -> tuple[Account, list[tuple[int, ...]]]:
    """Runs a query with UNNEST while hosts crash; returns the query's account of lost rows, and the rows in its file."""
    rng = np.random.default_rng(seed)
    links = {"spill_bytes": 2**20, "spill_after_s": 0.1, "window_batches": int(rng.choice([4, 8, 16]))}
    world = settled_world(6, seed=seed, data_dir=folder, settings={**SETTINGS, "links": links})
    read_files(world, {SOURCE: ITEMS})
    record = write_file(world, "k", UNNEST, SINK)
    operator = the_movable(record)
    for _ in range(int(rng.integers(1, 4))):
        world.run(float(rng.uniform(0.2, 2.0)))
        if may_move(world, record.nodes[operator], operator):
            trouble(world, record, operator, rng)
        sometimes_restart(world, (SOURCE, SINK), rng)
    finish(world, record)
    found = written(world, "k", SINK)
    world.close()
    return record.health.healing.account, found


@pytest.mark.parametrize("numbers", seeds([[0, 6, 41]], [[*range(first, first + 20)] for first in range(1, 101, 20)]))
def test_rows_that_are_counted_as_lost_are_exactly_those_that_are_missing(numbers: list[int]) -> None:
    """If an operator crashes together with the sink that it feeds, the query cannot count exactly and reports that."""
    expected = [(v, item) for v, items in ITEMS.items() for item in items]
    counted = []
    for seed in numbers:
        with run_directory() as folder:  # other paths would lead to other schedules
            account, found = ended(folder, seed)
        assert unaccounted(found, expected, account) == "", seed
        if account.is_exact:
            assert found == [row for row in expected if row in set(found)], f"seed {seed}: the rows must be in order"
            counted.append(account.rows)
    assert any(counted)
