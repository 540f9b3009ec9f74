"""With most keys on disk, first rows equal, row by row, those with all keys in memory, and those of a plain twin."""

import random
from itertools import count
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.errors import RemoteProtocolError, StateError, StateFullError
from sbon.operators.deduplicate import Deduplicate
from sbon.operators.seen_states import SeenStates
from sbon.operators.sizes import held_bytes
from sbon.query.params.ordered import DeduplicateParams, OrderColumn
from sbon.state.room import StateRoom
from sbon.watermarks import WATERMARK_END
from sbon_testbed.simulator.disk import VirtualDisk
from tests.examples import examples
from tests.operators.stories_on_disk import moved
from tests.operators.stream_twins import Row, content, frame, rows_of
from tests.operators.test_first_rows import as_twin, twin

BATCH = 40
LITTLE = 6_000
"""Memory in bytes, enough for about 40 keys."""
PROCESSES = count()
EVENTS = st.lists(st.sampled_from(["rows", "rows", "old", "pass", "pass far", "fork", "move", "copy", "full", "free"]), max_size=40)


def params(span: int, session: bool, lateness: int = 0) -> DeduplicateParams:
    return DeduplicateParams("t", ("k",), (OrderColumn("f", True, False),), (), span, session, lateness)


def room_of(disk: VirtualDisk, memory_bytes: int = LITTLE) -> StateRoom:
    """Returns the room of another process. Its files have names of their own, since a state may move from one room to another."""
    return StateRoom(disk, memory_bytes, 10**9, 10**12, BATCH, f"{next(PROCESSES)}-")


@examples(150)
@given(EVENTS, st.sampled_from([1, 50, 400, 5_000]), st.booleans(), st.sampled_from([0, 30]), st.integers(0, 2**32))
@example(["rows"] * 6 + ["pass", "move"], 400, True, 0, 0)
@example(["rows"] * 9 + ["pass", "rows", "move"], 400, True, 0, 1_172)
@example(["rows", "rows", "full", *["rows"] * 7, "pass", "rows", "rows", "move"], 50, True, 0, 1_173)
def test_first_rows_are_those_of_all_in_memory(events: list[str], span: int, session: bool, lateness: int, seed: int) -> None:
    asked, rng, draw = params(span, session, lateness), random.Random(seed), np.random.default_rng(seed)
    disk, now, steps = VirtualDisk(), 0, list[Any]()
    whole, part = Deduplicate(asked), Deduplicate(asked, room_of(disk))
    expected, found = list[Row](), list[Row]()
    for event in [*events, "free", "end"]:
        match event:
            case "rows" | "old":
                count = rng.randint(1, BATCH)
                numbers = rng.randint(0, 800) + draw.integers(0, 200, count) if event == "old" else draw.zipf(1.3, count) % 1_000
                keys = [
                    None if one == 7 else ("k" if one % 3 else "a key longer than twelve bytes ") + str(one) for one in numbers.tolist()
                ]
                values = [rng.choice([None, 1.0, 2.5]) for _ in keys]
                rows = list(zip((now + draw.integers(-40, 60, count)).tolist(), keys, values, strict=True))
                try:
                    part.process(0, frame(rows, "tkf"))
                except StateFullError:
                    disk.capacity_bytes = float("inf")
                    part.process(0, frame(rows, "tkf"))
                whole.process(0, frame(rows, "tkf"))
                steps.append(rows)
            case "pass" | "pass far" | "end":
                now += rng.randint(1, 60) if event == "pass" else rng.randint(100, 2_000)
                watermark = WATERMARK_END if event == "end" else now - rng.choice([0, 50])
                expected += rows_of(whole.advance(watermark))
                found += rows_of(part.advance(watermark))
                steps.append(watermark)
            case "fork":  # continues with the copy; changing the original must not change it
                old, part = part, part.fork()
                old.advance(now + 10)
            case "move" | "copy" if disk.capacity_bytes == float("inf"):
                there = Deduplicate(asked, room_of(disk) if event == "move" else None)
                if event == "move":
                    part = moved(part, there, rng)
                else:  # through a host that keeps all keys in memory
                    there.restore(part.snapshot())
                    assert content(there) == content(whole)
                    part = Deduplicate(asked, room_of(disk))
                    part.restore(there.snapshot())
            case "full":
                disk.capacity_bytes = disk.used_bytes + rng.choice([0, 3_000])
            case "free":
                disk.capacity_bytes = float("inf")
    assert found == expected
    answers, late = twin(steps, span, session, lateness)
    assert as_twin(found) == as_twin(answers)
    assert (part.late_rows, part.state_rows) == (late, 0)
    del part
    assert disk.files == {} or "fork" in events


def fed(operator: Deduplicate, keys: int, each: int = 2, batch: int = BATCH, after: int = 0) -> list[Row]:
    """Returns the answers for keys that repeat in random order within one window."""
    rng, found = np.random.default_rng(1), list[Row]()
    for round_ in range(each):
        order = rng.permutation(keys).tolist()
        for start in range(0, keys, batch):
            time = after + round_ * keys + start
            operator.process(0, frame([(time, f"k{one}", 1.0) for one in order[start : start + batch]], "tkf"))
            found += rows_of(operator.advance(time + 1))
    return found


@pytest.mark.parametrize("session", [False, True])
def test_most_keys_are_on_disk_and_the_memory_is_that_of_few(session: bool) -> None:
    disk = VirtualDisk()
    whole, part = Deduplicate(params(10**6, session)), Deduplicate(params(10**6, session), room_of(disk, 100_000))
    assert fed(part, 10_000, 2, 400) == fed(whole, 10_000, 2, 400)
    assert part.state_rows == 10_000
    assert disk.used_bytes > 250_000
    assert held_bytes(part._seen) < 100_000 < held_bytes(whole._seen) / 2
    part.advance(10**8)
    assert (part.state_rows, disk.files) == (0, {})


def test_keys_of_closed_windows_leave_the_disk() -> None:
    disk = VirtualDisk()
    part = Deduplicate(params(1_000, False), room_of(disk, 20_000))
    most = 0
    for start in range(0, 10_000, BATCH):
        part.process(0, frame([(start + n, f"k{start + n}", 1.0) for n in range(BATCH)], "tkf"))
        part.advance(start + BATCH)
        most = max(most, part.state_rows)
    assert 1_000 <= most < 1_500
    assert disk.peak_bytes < 125_000


def test_a_full_disk_stops_rows_and_not_answers() -> None:
    """The operator answers rows that the watermark has passed, keeps their keys in memory, and takes no more rows."""
    disk = VirtualDisk()
    whole, part = Deduplicate(params(10**6, False)), Deduplicate(params(10**6, False), room_of(disk, 20_000))
    assert fed(part, 1_000, 1) == fed(whole, 1_000, 1)
    disk.capacity_bytes = disk.used_bytes
    rows = frame([(2_000, f"new{one}", 1.0) for one in range(500)], "tkf")
    for operator in (whole, part):
        operator.process(0, rows)
    assert rows_of(part.advance(3_000)) == rows_of(whole.advance(3_000))
    for _ in range(2):
        with pytest.raises(StateFullError, match="No space left"):
            part.process(0, rows)
    assert part._waiting.rows == 0
    assert isinstance(part._seen, SeenStates)
    assert part._seen._states.in_memory > 500
    disk.capacity_bytes = float("inf")
    part.process(0, rows)
    assert part._seen._states.in_memory < 200
    late = [operator.late_rows for operator in (whole, part)]
    assert fed(part, 1_000, 1, after=10_000) == fed(whole, 1_000, 1, after=10_000) == []
    assert late == [0, 500]


@pytest.mark.parametrize("damage", ["bit", "gone"])
def test_damaged_keys_are_refused(damage: str) -> None:
    disk = VirtualDisk()
    part = Deduplicate(params(10**6, False), room_of(disk))
    fed(part, 1_000, 1)
    for name in list(disk.files):
        if damage == "bit":
            disk.files[name][100] ^= 4
        else:
            del disk.files[name]
    with pytest.raises(StateError, match="damaged" if damage == "bit" else "cannot be read"):
        fed(part, 1_000, 1, after=10_000)


def test_memory_below_a_batch_is_refused_when_the_operator_is_made() -> None:
    with pytest.raises(StateError, match=r"cannot hold the states of one batch of 40 keys, .*state_memory_max"):
        Deduplicate(params(10, False), room_of(VirtualDisk(), 2_000))


def test_pieces_that_do_not_fit_are_refused() -> None:
    disk = VirtualDisk()
    part = Deduplicate(params(10**6, False), room_of(disk))
    fed(part, 300, 1)
    head, pieces = part.pieces()
    frames = list(pieces)
    wrong: list[tuple[str, pl.DataFrame]] = [("other", frames[0][1]), ("seen", frames[0][1]), ("input", frames[0][1])]
    for name, rows in wrong:
        take = Deduplicate(params(10**6, False), room_of(disk)).adopting(head)
        assert take is not None
        take(*frames[0])
        with pytest.raises(RemoteProtocolError, match="snapshot"):
            take(name, rows)
    take = Deduplicate(params(10**6, False), room_of(disk)).adopting(head)
    assert take is not None
    take(*frames[0])
    disk.capacity_bytes = disk.used_bytes
    seen = pl.concat([rows for name, rows in frames if name == "seen"])
    with pytest.raises(RemoteProtocolError, match=r"snapshot of first rows: .*No space left"):
        take("seen", seen)
