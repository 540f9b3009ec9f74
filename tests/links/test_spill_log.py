"""Batches on a real disk come back as they were written; their files are deleted with them."""

import stat
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from sbon.delivery.spill_log import SpillLog
from sbon.errors import SpillError
from sbon.execution.rows import Rows
from sbon.links.batch import Batch
from sbon.schema import ColumnType, Field, Schema
from sbon_agent.disk import FolderDisk
from sbon_testbed.simulator.disk import VirtualDisk

SCHEMA: Schema = (Field("n", ColumnType.INT), Field("t", ColumnType.TEXT))


def batch(sequence: int, rows: int = 3) -> Batch:
    frame = pl.DataFrame({"n": range(sequence, sequence + rows), "t": [f"row {i}" for i in range(rows)]})
    return Batch(sequence, sequence / 2, sequence * 10, Rows.of_frame(frame, SCHEMA) if rows else None)


def same(found: Sequence[Batch], expected: Sequence[Batch]) -> bool:
    for a, b in zip(found, expected, strict=True):
        if (a.sequence, a.stimulus_s, a.watermark_us, a.rows) != (b.sequence, b.stimulus_s, b.watermark_us, b.rows):
            return False
        if isinstance(a.payload, Rows) and isinstance(b.payload, Rows) and not a.payload.frame().equals(b.payload.frame()):
            return False
    return True


def test_batches_come_back_in_order_and_files_go_with_them(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path / "spill")
    log = SpillLog(disk, "link", SCHEMA, segment_bytes=4_000)
    batches = [batch(number, rows=number % 3 * 40) for number in range(1, 31)]
    written = sum(log.append(batches[begin : begin + 5]) for begin in range(0, 30, 5))
    assert len(disk.names()) > 2
    assert all(stat.S_IMODE((tmp_path / "spill" / name).stat().st_mode) == 0o600 for name in disk.names())
    found: list[Batch] = []
    freed = 0
    while len(found) < 30:
        some, gone = log.read(batches_max=4, bytes_max=3_000)
        assert len(some) <= 4
        found.extend(some)
        freed += gone
    assert same(found, batches)
    assert freed == written
    assert disk.names() == []
    with pytest.raises(SpillError):
        log.read(1, 1)


def test_a_batch_larger_than_what_is_asked_for_comes_alone() -> None:
    log = SpillLog(VirtualDisk(), "link", SCHEMA, segment_bytes=1 << 20)
    batches = [batch(1, rows=5_000), batch(2)]
    log.append(batches)
    assert same(log.read(8, 1_000)[0], batches[:1])
    assert same(log.read(8, 1_000)[0], batches[1:])


def test_what_could_not_be_written_whole_is_never_read() -> None:
    disk = VirtualDisk()
    log = SpillLog(disk, "link", SCHEMA, segment_bytes=1 << 20)
    log.append([batch(1)])
    disk.capacity_bytes = disk.used_bytes + 50
    with pytest.raises(OSError, match="No space"):
        log.append([batch(2)])
    disk.capacity_bytes = float("inf")
    log.append([batch(2), batch(3)])
    assert same(log.read(8, 1_000_000)[0], [batch(1)])
    assert same(log.read(8, 1_000_000)[0], [batch(2), batch(3)])
    assert disk.files == {}


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_damage_is_an_error_with_a_name(harm: str) -> None:
    disk = VirtualDisk()
    log = SpillLog(disk, "link", SCHEMA, segment_bytes=1 << 20)
    log.append([batch(1), batch(2)])
    content = disk.files["link-000001.spill"]
    if harm == "flip":
        content[-1] ^= 1
    elif harm == "cut":
        del content[-1:]
    else:
        disk.files.clear()
    with pytest.raises(SpillError, match=r"link-000001\.spill"):
        log.read(8, 1_000_000)


def test_remove_leaves_nothing(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path)
    log = SpillLog(disk, "link", SCHEMA, segment_bytes=100)
    log.append([batch(1)])
    log.append([batch(2)])
    assert len(disk.names()) == 2
    log.remove()
    assert disk.names() == []
