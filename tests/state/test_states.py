"""States of keys in memory and on disk equal a plain dict, for any operations and any memory size."""

import errno
import tracemalloc
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import StateError, StateFullError
from sbon.state import runs, store
from sbon.state.ids import grouped, identities
from sbon.state.index import Index
from sbon.state.room import StateRoom
from sbon.state.store import States
from sbon_agent.disk import FolderDisk
from sbon_testbed.simulator.disk import VirtualDisk
from tests.examples import examples

EPOCH = datetime(1970, 1, 1)
BATCH = 40
KINDS: dict[str, dict[str, pl.DataType]] = {
    "int": {"k": pl.Int64()},
    "text": {"k": pl.String()},
    "two": {"k": pl.String(), "b": pl.Int64()},
    "time": {"k": pl.Int64(), "end": pl.Datetime("us")},
}
STATES = {"n": pl.Int64(), "total": pl.Float64(), "seen": pl.Boolean()}
Twin = dict[tuple[Any, ...], tuple[Any, ...]]


def room_of(disk: VirtualDisk, memory_bytes: int, disk_bytes: int = 10**12) -> StateRoom:
    return StateRoom(disk, memory_bytes, 10**12, disk_bytes, BATCH, "t")


def keys_of(kind: str, numbers: Sequence[int]) -> pl.DataFrame:
    """Returns keys; some are NULL, some texts are long."""
    frame = pl.DataFrame({"k": pl.Series([None if one % 50 == 7 else one for one in numbers], dtype=pl.Int64)})
    if kind in ("text", "two"):
        texts = [None if one % 50 == 7 else ("k" if one % 3 else "a key longer than twelve bytes ") + str(one) for one in numbers]
        frame = pl.DataFrame({"k": pl.Series(texts, dtype=pl.String)})
    if kind == "two":
        frame = frame.with_columns_seq(b=pl.Series([one % 2 for one in numbers], dtype=pl.Int64))
    if kind == "time":
        frame = frame.with_columns_seq(end=pl.Series([one % 9 for one in numbers], dtype=pl.Int64).cast(pl.Datetime("us")))
    return frame


def raise_counts(states: States, twin: Twin, rows: pl.DataFrame, texts: bool) -> None:
    """Adds the rows of each key to its state, in `states` and in the dict."""
    found = grouped(identities(rows.get_columns()))
    each = rows[found.first]
    at = states.places(each, found.ids, found.rows)
    new = np.flatnonzero(at < 0)
    if new.size:
        zero = pl.zeros(new.size, dtype=pl.Int64, eager=True)
        made = pl.DataFrame({"n": zero, "total": zero.cast(pl.Float64), "seen": zero.cast(pl.Boolean)})
        at[new] = states.add(each[new], found.ids[new], made.with_columns_seq(note=pl.lit("")) if texts else made)
    before = states.at(at)
    n = before["n"] + pl.Series(found.rows)
    after = pl.DataFrame({"n": n, "total": before["total"] + 0.5, "seen": n % 2 == 1})
    states.put(at, after.with_columns_seq(note=n.cast(pl.String) + "!") if texts else after)
    for key, more in zip(each.rows(), found.rows.tolist(), strict=True):
        had, total = twin.get(key, (0, 0.0))[:2]
        twin[key] = (had + more, total + 0.5, (had + more) % 2 == 1, *((f"{had + more}!",) if texts else ()))


def held(states: States, kind: str) -> Twin:
    """Returns all states; each key must occur once."""
    rows = states.all().rows()
    found = {row[: len(KINDS[kind])]: row[len(KINDS[kind]) :] for row in rows}
    assert len(found) == len(rows) == len(states)
    return found


@examples(120)
@given(
    st.sampled_from(sorted(KINDS)),
    st.booleans(),
    st.sampled_from([9_000, 14_000, 40_000, None]),
    st.integers(0, 10_000),
    st.lists(st.sampled_from(["few", "many", "new", "fork", "copy", "end"]), min_size=1, max_size=40),
)
def test_states_are_those_of_a_dict(kind: str, texts: bool, memory: int | None, seed: int, events: list[str]):
    rng, disk, twin = np.random.default_rng(seed), VirtualDisk(), Twin()
    schema = {**STATES, "note": pl.String()} if texts else STATES
    room = None if memory is None else room_of(disk, memory + 12_000 * texts)
    time = "end" if kind == "time" else ""
    states, ended = States(KINDS[kind], schema, room, time), -1
    for step, event in enumerate(events):
        match event:
            case "fork":  # continues with the copy; changing the original must not change it
                states, old = states.fork(), states
                raise_counts(old, dict(twin), keys_of(kind, [3, 5, 100_000 + step]), texts) if not time else None
            case "copy":
                copied = States(KINDS[kind], schema, room, time)
                for piece in states.pieces():
                    copied.take(piece)
                states = copied
            case "end" if time:
                ended += 1
                gone = {key: twin.pop(key) for key in list(twin) if (key[1] - EPOCH).microseconds <= ended}
                rows = states.ended(ended).rows()
                assert {row[:2]: row[2:] for row in rows} == gone
                assert len(rows) == len(gone)
            case _:
                most = {"few": 20, "many": 2_000}.get(event, 2_000)
                drawn = np.minimum(rng.zipf(1.3, BATCH), most) if event != "new" else 10_000 + step * BATCH + np.arange(BATCH)
                raise_counts(states, twin, keys_of(kind, [int(one) for one in drawn if not time or one % 9 > ended]), texts)
    assert held(states, kind) == twin
    if memory is not None:
        assert states.in_memory <= max(BATCH, 1.3 * (memory + 12_000 * texts) / states.entry_bytes)


def filled(disk: VirtualDisk, count: int = 3_000, memory_bytes: int = 20_000) -> tuple[States, Twin]:
    """Returns states, most of them on disk, and their twin."""
    states, twin = States(KINDS["int"], STATES, room_of(disk, memory_bytes)), Twin()
    for start in range(0, count, BATCH):
        raise_counts(states, twin, keys_of("int", range(start, start + BATCH)), False)
    return states, twin


def test_runs_are_few_and_files_go_with_them():
    disk = VirtualDisk()
    states, twin = filled(disk, 20_000)
    assert states.in_memory < 400
    assert len(disk.files) <= 2 * 18
    assert held(states, "int") == twin
    fork = states.fork()
    del states
    assert held(fork, "int") == twin
    del fork
    assert disk.files == {}


def test_what_is_used_often_stays_in_memory():
    rng = np.random.default_rng(4)
    states, twin = filled(VirtualDisk(), 4_000, 40_000)
    for _ in range(400):
        drawn = np.where(rng.random(BATCH) < 0.7, rng.integers(0, 100, BATCH), rng.integers(0, 4_000, BATCH))
        raise_counts(states, twin, keys_of("int", drawn.tolist()), False)
    hot = keys_of("int", [one for one in range(100) if one % 50 != 7])
    assert states.held(identities(hot.get_columns())).mean() > 0.95
    assert states.in_memory < 700
    assert held(states, "int") == twin


@pytest.mark.parametrize("damage", ["bit", "short", "gone"])
@pytest.mark.parametrize("which", ["w", "t"])
def test_damaged_states_are_refused(which: str, damage: str):
    disk = VirtualDisk()
    states, _ = filled(disk)
    for name in [name for name in disk.files if name.startswith(which)]:
        if damage == "bit":
            disk.files[name][100] ^= 4
        elif damage == "short":
            del disk.files[name][-9:]
        else:
            del disk.files[name]
    expected = "cannot be read: No such file" if damage == "gone" else "are damaged: .* lost, submit the query again"
    with pytest.raises(StateError, match=expected):
        states.all()


@pytest.mark.parametrize("full", ["disk", "share", "broken"])
def test_a_batch_that_finds_the_disk_full_can_be_taken_again(full: str):
    disk = VirtualDisk()
    states, twin = filled(disk)
    room = states._room
    assert room is not None
    disk.capacity_bytes = disk.used_bytes + 5_000 if full == "disk" else float("inf")
    disk.failing = full == "broken"
    room.disk_bytes = room.used_bytes if full == "share" else room.disk_bytes
    failed = 0
    said = {"disk": "No space left", "share": "engine.state_disk_max", "broken": "Input/output"}[full]
    start = 50_000
    while start < 55_000:
        try:
            raise_counts(states, twin, keys_of("int", range(start, start + BATCH)), False)
            start += BATCH
        except StateFullError as problem:
            failed += said in str(problem)
        if failed > 5:
            disk.capacity_bytes, disk.failing, room.disk_bytes = float("inf"), False, 10**12
    assert failed > 5
    assert held(states, "int") == twin


def test_memory_below_a_batch_is_refused_in_one_line():
    with pytest.raises(
        StateError, match=r"memory for states, 0.002 MB, cannot hold the states of one batch of 40 keys, .*state_memory_max"
    ) as found:
        States(KINDS["int"], STATES, room_of(VirtualDisk(), 2_000))
    assert "\n" not in str(found.value)


def test_operators_share_the_memory():
    room = StateRoom(VirtualDisk(), 10**9, 30_000, 10**12, BATCH)
    kept = [States(KINDS["int"], STATES, room) for _ in range(3)]
    assert room.memory_bytes == 10_000
    with pytest.raises(StateError, match="cannot hold the states of one batch"):
        kept += [States(KINDS["int"], STATES, room) for _ in range(9)]
    del kept[1:]
    assert room.memory_bytes >= 10_000


def test_files_of_a_former_process_are_removed_and_others_left():
    disk = VirtualDisk()
    disk.append("w1-000001.state", [b"x"])
    disk.append("000001.spill", [b"x"])
    room_of(disk, 10**6).clear()
    assert list(disk.files) == ["000001.spill"]


def test_index_finds_every_place_in_spite_of_equal_halves():
    rng = np.random.default_rng(2)
    ids = np.stack([rng.integers(0, 40, 5_000), rng.integers(0, 1_000, 5_000)], axis=1).astype(np.uint64)
    ids = np.unique(ids, axis=0)
    index, half = Index(), len(ids) // 2
    index.add(0, half, ids)
    index.add(half, len(ids) - half, ids)
    assert index.places(ids, ids).tolist() == list(range(len(ids)))
    assert (index.places(ids + np.uint64(2_000), ids) == -1).all()


def test_keys_with_equal_halves_of_their_identities_keep_apart_on_disk(monkeypatch: pytest.MonkeyPatch):
    """NULL and 0, or two texts, may share half of an identity; this test allows only 512 first halves."""
    whole = identities

    def poor(keys: Sequence[pl.Series]) -> Any:
        found = whole(keys)
        found[:, 0] &= np.uint64(511)
        return found

    monkeypatch.setattr(store, "identities", poor)
    monkeypatch.setitem(globals(), "identities", poor)
    disk = VirtualDisk()
    states, twin = filled(disk)
    for start in range(0, 3_000, 3 * BATCH):
        raise_counts(states, twin, keys_of("int", range(start, start + BATCH)), False)
    assert held(states, "int") == twin


def test_merges_do_not_stop_for_long(monkeypatch: pytest.MonkeyPatch):
    """A batch merges only the rows that are due, and at most one range more."""
    monkeypatch.setattr(runs, "MERGE_ROWS", 500)
    merged: list[int] = []
    between = runs.Run.between

    def counted(run: runs.Run, low: int, high: int | None) -> runs.Entries:
        found = between(run, low, high)
        merged[-1] += len(found.words)
        return found

    monkeypatch.setattr(runs.Run, "between", counted)
    states, twin = States(KINDS["int"], STATES, room_of(VirtualDisk(), 20_000)), Twin()
    for start in range(0, 20_000, BATCH):
        merged.append(0)
        raise_counts(states, twin, keys_of("int", [*range(start, start + BATCH - 1), start // 2]), False)
    assert sum(merged) > 20_000
    assert max(merged) < 4_000


def test_a_full_disk_has_the_error_of_a_full_disk():
    room = room_of(VirtualDisk(), 10**6, disk_bytes=10)
    with pytest.raises(OSError, match="state_disk_max") as found:
        room.append("x", [bytes(11)])
    assert found.value.errno == errno.ENOSPC


@pytest.mark.parametrize("seed", range(5))
def test_of_those_used_least_the_oldest_leave(seed: int):
    rng = np.random.default_rng(seed)
    uses = np.minimum(rng.zipf(1.3, 30_000), store._USES_TOLD + 1).astype(np.uint16)
    count = int(rng.integers(1, 30_000))

    leaving = store._least(uses, count)

    assert set(np.flatnonzero(leaving).tolist()) == set(np.argsort(uses, kind="stable")[:count].tolist())


def test_copies_while_states_leave_and_come_back_are_small(tmp_path: Path):
    """Measures peak memory of arrays, as a fraction of the budget."""
    budget, batch = 8_000_000, 4_000

    def peak_of(states: States, first: int, count: int) -> float:
        tracemalloc.reset_peak()
        for start in range(first, first + count, batch):
            keys = pl.DataFrame({"k": np.arange(start, start + batch)})
            ids = identities([keys["k"]])
            new = states.places(keys, ids) < 0
            if new.any():
                states.add(keys, ids, pl.DataFrame({"n": np.zeros(batch, np.int64)}))
        return tracemalloc.get_traced_memory()[1] / budget

    tracemalloc.start()
    try:
        for memory_bytes in (budget // 8, budget):  # the first run loads lazily loaded modules
            states = States({"k": pl.Int64()}, {"n": pl.Int64()}, StateRoom(FolderDisk(tmp_path), memory_bytes, budget, 10**12, batch))
            before = tracemalloc.get_traced_memory()[0] / budget
            peaks = [peak_of(states, first, memory_bytes // 40) - before for first in (0, memory_bytes // 40, 0)]
    finally:
        tracemalloc.stop()
    assert max(peaks) < 1.2, peaks  # seen: 1.10
