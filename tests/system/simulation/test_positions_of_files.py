"""A lost file source restarts at the position that its host has kept: no row is lost or repeated, whatever crashes.

The hosts of source, filter and sink crash at random moments, one by one or together, with the operators on them.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbon.supervision.account import Account
from sbon_agent.connectors import file_blocks
from sbon_agent.connectors.file_reader import FileReader
from sbon_agent.node import Agent
from sbon_agent.positions import FileProgress
from sbon_testbed.leftovers import run_directory
from sbon_testbed.simulator.harness import World
from tests.crash_stories import HOME, SETTINGS, UNNEST, finish, read_files, write_file, written
from tests.examples import seeds
from tests.worlds import settled_world

SOURCE, SINK = 1, 2
ROWS = 400
ITEMS = {v: (v, v + ROWS) if v % 3 else (v,) for v in range(ROWS)}
FILTER = "SELECT v FROM s WHERE v % 4 <> 1"
COUNTED = "SELECT COUNT(*) AS n, MAX(v) AS v FROM TUMBLE(s, ts, INTERVAL '1 second') GROUP BY window_start"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_blocks, "BLOCK_BYTES", 2_000)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yields the row numbers at which sources have restarted."""
    found: list[int] = []
    before = FileProgress.begin_behind

    def begin_behind(source: FileProgress, rows: int) -> None:
        before(source, rows)
        found.append(rows)

    monkeypatch.setattr(FileProgress, "begin_behind", begin_behind)
    return found


def settings(**more: Any) -> dict[str, Any]:
    return {**SETTINGS, "engine": {**SETTINGS["engine"], "position_bytes_min": 1, **more}}


def ended(folder: Path, seed: int) -> tuple[Account, list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Crashes hosts; returns the query's account of lost rows, the rows in its file, and the expected rows."""
    rng = np.random.default_rng(seed)
    links = {"window_batches": int(rng.choice([4, 8, 64]))}
    if rng.random() < 0.2:
        links |= {"spill_bytes": 2**20}
    world = settled_world(5, seed=seed, data_dir=folder, settings={**settings(), "links": links})
    read_files(world, {SOURCE: ITEMS})
    is_filter = bool(rng.integers(2))
    sink = int(rng.choice([SOURCE, SINK]))
    record = write_file(world, "k", FILTER if is_filter else UNNEST, sink)
    for _ in range(int(rng.integers(1, 5))):
        world.run(float(rng.uniform(0.3, 5.0)))
        gone = [number for number in range(1, 5) if rng.random() < (0.7 if number == SOURCE else 0.25)]
        for number in gone:
            world.kill(number, silent=bool(rng.integers(2)))
        if rng.random() < 0.2:
            world.world.network.cut(HOME, 3)
        for number in gone:
            world.run(float(rng.uniform(0.0, 3.0 if rng.random() < 0.7 else 8.0)))
            world.start(number)
        world.heal()
    finish(world, record)
    found = written(world, "k", sink)
    world.close()
    expected = [(v,) for v in ITEMS if v % 4 != 1] if is_filter else [(v, item) for v, items in ITEMS.items() for item in items]
    return record.health.healing.account, found, expected


@pytest.mark.parametrize("numbers", seeds([[*range(3)]], [[*range(8)], *([*range(first, first + 20)] for first in range(100, 400, 20))]))
def test_nothing_is_lost_and_nothing_comes_twice(numbers: list[int], begun: list[int]) -> None:
    for seed in numbers:
        with run_directory() as folder:
            account, found, expected = ended(folder, seed)
        if account.is_exact and not account.rows:
            assert found == expected, seed
        else:
            assert len(set(expected) - set(found)) <= account.rows or not account.is_exact, seed
    assert any(begun), "some sources must restart in the middle of their files"


def run_once(sql: str, sink: int, folder: Path, crash_at_s: float = 8.0) -> tuple[World, list[tuple[int, ...]], Any]:
    """Crashes the host of the source once; returns the world, the rows in the sink's file, and the query's account."""
    world = settled_world(5, seed=3, data_dir=folder, settings=settings())
    read_files(world, {SOURCE: ITEMS})
    record = write_file(world, "k", sql, sink)
    world.run(crash_at_s)
    world.kill(SOURCE)
    world.run(0.5)
    world.start(SOURCE)
    finish(world, record)
    return world, written(world, "k", sink), record.health.healing.account


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets the file positions at which reads begin."""
    found: list[int] = []
    before = FileReader.read_part

    def read_part(reader: FileReader) -> Any:
        part = before(reader)
        if part.frame is not None:
            found.append(part.begin)
        return part

    monkeypatch.setattr(FileReader, "read_part", read_part)
    return found


@pytest.mark.parametrize("sink", [SOURCE, SINK])
def test_a_source_begins_where_everything_was_safe(sink: int, tmp_path: Path, begun: list[int], reads: list[int]) -> None:
    world, found, account = run_once(FILTER, sink, tmp_path)
    assert found == [(v,) for v in ITEMS if v % 4 != 1]
    assert account.is_exact
    assert not account.rows
    assert len(begun) == 1
    assert 100 < begun[0] < ROWS
    again = [number for number, (one, two) in enumerate(pairwise(reads)) if two < one]
    assert again
    assert all(reads[number + 1] > 0 for number in again), "the file must not be read from its start again"
    world.close()


def test_a_position_goes_with_its_query(tmp_path: Path) -> None:
    world, _, _ = run_once(FILTER, SINK, tmp_path)
    world.run(5.0)
    assert not [*(world.data_dir_of(SOURCE) / "positions").glob("*.json")]
    world.close()


def test_a_window_that_is_lost_with_its_source_has_the_file_read_from_the_first_row(tmp_path: Path, begun: list[int]) -> None:
    world = settled_world(5, seed=3, data_dir=tmp_path, settings=settings())
    read_files(world, {SOURCE: ITEMS})
    record = write_file(world, "k", COUNTED, SINK)
    world.run(8.0)
    gone = {SOURCE} | {world.nodes.index(node) for one, node in record.nodes.items() if record.specs[one].pinned is None}
    assert not gone & {HOME, SINK}, "the seed places the window elsewhere"
    for number in sorted(gone):
        world.kill(number)
    world.run(0.5)
    for number in sorted(gone):
        world.start(number)
    finish(world, record)
    assert begun == []
    assert sum(n for n, _ in written(world, "k", SINK)) == ROWS
    world.close()


def test_a_file_that_has_changed_is_read_from_the_first_row(tmp_path: Path, begun: list[int], reads: list[int]) -> None:
    world = settled_world(5, seed=3, data_dir=tmp_path, settings=settings())
    read_files(world, {SOURCE: ITEMS})
    record = write_file(world, "k", FILTER, SINK)
    world.run(8.0)
    world.kill(SOURCE)
    path = world.data_dir_of(SOURCE) / "files" / "s.ndjson"
    with path.open("a") as file:
        file.write(json.dumps({"ts": "2026-01-01T00:00:30", "v": 10_000, "items": []}) + "\n")
    world.start(SOURCE)
    finish(world, record)
    assert written(world, "k", SINK) == [*((v,) for v in ITEMS if v % 4 != 1), (10_000,)]
    assert len(begun) == 1, "the source must refuse to begin there"
    assert reads.count(0) == 2
    world.close()


def test_damaged_positions_cost_the_time_to_read_the_file(tmp_path: Path, begun: list[int]) -> None:
    world = settled_world(5, seed=3, data_dir=tmp_path, settings=settings())
    read_files(world, {SOURCE: ITEMS})
    record = write_file(world, "k", FILTER, SINK)
    world.run(8.0)
    world.kill(SOURCE)
    for path in (world.data_dir_of(SOURCE) / "positions").glob("*.json"):
        path.write_bytes(path.read_bytes()[:40])
    world.start(SOURCE)
    finish(world, record)
    assert begun == []
    assert written(world, "k", SINK) == [(v,) for v in ITEMS if v % 4 != 1]
    world.close()


def test_a_small_file_has_no_position(tmp_path: Path) -> None:
    world = settled_world(5, seed=3, data_dir=tmp_path, settings=settings(position_bytes_min=10**6))
    read_files(world, {SOURCE: ITEMS})
    write_file(world, "k", FILTER, SINK)
    world.run(8.0)
    agent = world.agents[SOURCE]
    assert isinstance(agent, Agent)
    assert not (world.data_dir_of(SOURCE) / "positions").exists()
    world.close()
