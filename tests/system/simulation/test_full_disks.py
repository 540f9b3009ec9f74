"""A file sink whose disk is full waits, reports that, and continues where it stopped; a finished query has its file in place."""

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sbon.errors import PlacementError, SbonError
from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

ROWS = 60_000
SOURCE = f"""
CREATE SOURCE numbers (ts TIMESTAMP, n BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{}}',
    rows_per_second = 20000, rows = {ROWS}, batch_rows_max = 2000, fields.n.kind = 'sequence', 'start' = '2026-01-01T00:00:00');
"""
SINK = "CREATE SINK kept FROM (SELECT n FROM numbers) WITH (connector = 'file', path = '{}', node = '{}', {})"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Yields a file system of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "sbon-test", place], capture_output=True).returncode:
        pytest.skip("needs root, to mount a small file system")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture
def world() -> Iterator[World]:
    made = settled_world(2, seed=3, settings={"optimiser": {"enabled": False}})
    made.submit(SOURCE.format(made.nodes[1]))
    yield made
    made.close()


@pytest.mark.parametrize("options", ["mode = 'append'", "mode = 'replace'", "format = 'parquet', rows_per_file = 7000"])
def test_a_full_disk_holds_the_query_up_and_nothing_is_lost_or_doubled(small: Path, world: World, options: str):
    (small / "ballast").write_bytes(bytes(1_048_576 - (40_000 if "parquet" in options else 180_000)))
    path = small / ("kept" if "parquet" in options else "kept.csv")
    query = world.submit(SINK.format(path, world.nodes[0], options))

    def told() -> tuple[str, str]:
        (sink,) = [operator for operator in world.ask(0, "operators") if operator["kind"] == "sink"]
        return sink["state"], sink["reason"]

    world.run_until(lambda: told()[0] == "stalled", 60, "the disk is full")
    world.run(30)
    state, reason = told()
    assert (state, reason) == ("stalled", f"sink kept: {path} cannot be written: No space left on device")
    (row,) = world.ask(0, "queries")
    assert (row["state"], row["rows_out"] < ROWS) == ("running", True)
    assert row["reason"].endswith(f"waits on {world.nodes[0]}: {reason}")
    (small / "ballast").unlink()
    world.run_until(lambda: [row["state"] for row in world.ask(0, "queries") if row["id"] == query] == ["finished"], 120)
    if path.suffix:
        assert path.read_text().splitlines() == ["n", *map(str, range(ROWS))]
    else:
        assert pl.read_parquet(path / "*.parquet")["n"].to_list() == list(range(ROWS))
    assert [name.name for name in small.iterdir()] == [path.name]
    (row,) = world.ask(0, "queries")
    assert row["reason"] == ""


def test_a_disk_that_is_full_from_the_start_holds_the_header_back_too(small: Path, world: World):
    (small / "kept.csv").touch()
    with (small / "ballast").open("wb") as ballast:
        subprocess.run(["dd", "if=/dev/zero", f"of={ballast.name}", "bs=4k"], capture_output=True)
    world.submit(SINK.format(small / "kept.csv", world.nodes[0], "mode = 'append'"))
    world.run(10)
    assert (small / "kept.csv").read_bytes() == b""
    (small / "ballast").unlink()
    world.run_until(lambda: world.ask(0, "queries")[0]["state"] == "finished", 120)
    assert (small / "kept.csv").read_text().splitlines() == ["n", *map(str, range(ROWS))]


@pytest.mark.parametrize("at", [0, 1], ids=["here", "elsewhere"])
def test_a_query_is_finished_when_its_file_is_in_place(tmp_path: Path, at: int):
    world = settled_world(2, seed=3, settings={"optimiser": {"enabled": False}, "connectors": {"file": {"allow": [str(tmp_path)]}}})
    world.submit(SOURCE.format(world.nodes[1]))
    path = tmp_path / "kept.csv"
    path.write_text("old")
    world.submit(SINK.format(path, world.nodes[at], "mode = 'replace'"))
    seen: list[tuple[str, str]] = []

    def finished() -> bool:
        """Checks both agents; called after each step of the world."""
        states = [operator["state"] for number in (0, 1) for operator in world.ask(number, "operators") if operator["kind"] == "sink"]
        states += [row["state"] for row in world.ask(0, "queries")]
        seen.extend((state, path.read_text()[:3]) for state in states)
        return "finished" in states

    world.run_until(finished, 60)
    assert {text for state, text in seen if state == "finished"} == {"n\n0"}
    assert ("running", "old") in seen
    world.close()


@pytest.fixture
def file_size_max() -> Iterator[int]:
    """Limits the size of this process's files, so that a write fails permanently."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield 100_000
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_failed_sink_leaves_the_former_file_and_says_where_its_rows_are(tmp_path: Path, world: World, file_size_max: int):
    path = tmp_path / "kept.csv"
    path.write_text("old")
    query = world.submit(SINK.format(path, world.nodes[0], "mode = 'replace'"))

    world.run_until(lambda: world.ask(0, "queries")[0]["state"] == "degraded", 60)
    (row,) = world.ask(0, "queries")
    unfinished = tmp_path / ".kept.csv.unfinished"
    assert f"{path} cannot be written: File too large; {path} is as it was, rows written so far are in {unfinished}" in row["reason"]
    world.ask(0, "drop", query=query)
    world.run(5)

    assert path.read_text() == "old"
    written = unfinished.read_text().splitlines()
    assert written == ["n", *map(str, range(len(written) - 1))]
    assert 1000 < len(written) < ROWS


def test_dropped_sink_puts_what_it_has_written_in_place(tmp_path: Path, world: World):
    path = tmp_path / "kept.csv"
    path.write_text("old")
    world.submit(SINK.format(path, world.nodes[0], "mode = 'replace'"))
    world.run_until(lambda: world.ask(0, "queries")[0]["rows_out"] > 0, 60)
    assert path.read_text() == "old"

    world.submit("DROP SINK kept")
    world.run(5)

    written = path.read_text().splitlines()
    assert written == ["n", *map(str, range(len(written) - 1))]
    assert 1 < len(written) < ROWS
    assert [name.name for name in tmp_path.iterdir()] == ["kept.csv"]


def test_sink_whose_query_is_refused_leaves_the_former_file(tmp_path: Path, world: World):
    path = tmp_path / "kept.csv"
    path.write_text("old")
    operators: Any = world.agents[1].execution.operators  # type: ignore[union-attr]

    def refuse(*more: Any, **further: Any) -> None:
        raise PlacementError("refused by the test")

    operators.instantiate = refuse
    with pytest.raises(SbonError, match="refused by the test"):
        world.submit(SINK.format(path, world.nodes[0], "mode = 'replace'"))
    world.run(5)

    assert path.read_text() == "old"
    assert [name.name for name in tmp_path.iterdir()] == ["kept.csv"]
