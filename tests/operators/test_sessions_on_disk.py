"""With most fragments on disk, sessions answer, row by row, as with all in memory, and as a plain loop does."""

import random
from collections.abc import Iterator

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import StateError, StateFullError
from sbon.operators import cold_partials, session, session_ends
from sbon.operators.session import Session
from sbon.operators.sizes import held_bytes
from sbon.query.expression import Column
from sbon.query.params.windowed import SessionParams
from sbon.state import sorted_runs
from sbon.watermarks import WATERMARK_END
from sbon_testbed.simulator.disk import VirtualDisk
from tests.examples import examples
from tests.operators.stories_on_disk import EVENTS, FEW, KEYS, MORE, go_through, moved, room_of, same
from tests.operators.stream_twins import Row, frame, rows_of, session_twin
from tests.operators.test_sessions import expected
from tests.operators.test_windows import AGGREGATES

K = Column("k")


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    """Makes frames, merged ranges and panes small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "FRAME_ROWS", 30)
        patch.setattr(cold_partials, "RANGE_ROWS_MIN", 60)
        patch.setattr(cold_partials, "RANGE_ROWS_MAX", 150)
        patch.setattr(session, "CLOSING_US_MIN", 3)
        patch.setattr(session, "PANES", 3)
        patch.setattr(session_ends, "STEP_FRAMES", 2)
        yield


@examples(100)
@given(
    EVENTS,
    st.sampled_from([1, 3, 20, 60, 150, 500]),
    st.sampled_from(list(KEYS)),
    st.sampled_from([0, 30]),
    st.integers(0, 2**32),
)
def test_answers_are_those_of_all_in_memory(events: list[str], gap: int, keys: str, lateness: int, seed: int) -> None:
    asked = SessionParams("t", gap, KEYS[keys], MORE if seed % 2 else FEW, lateness)
    go_through(events, lambda room: Session(asked, room), lambda part, whole: same(part, whole, WATERMARK_END), seed)


@examples(20)
@given(st.sampled_from([1, 8, 40, 200]), st.integers(0, 50), st.integers(0, 2**32))
def test_answers_are_those_of_a_plain_loop(gap: int, disorder: int, seed: int) -> None:
    rng, draw, disk = random.Random(seed), np.random.default_rng(seed), VirtualDisk()
    operator = Session(SessionParams("t", gap, (("k", K),), AGGREGATES, 0), room_of(disk, 40_000))
    rows = [
        (at + rng.randint(0, disorder), f"key {number % 150}", rng.choice([None, 0.5, 1e16, -1e16, 3.25]), int(number % 9))
        for at, number in enumerate(draw.zipf(1.2, 400).tolist())
    ]
    found, at, cold = list[Row](), 0, 0
    while at < len(rows):
        many = rng.randint(1, 40)
        operator.process(0, frame(rows[at : at + many], "tkfi"))
        at += many
        found += rows_of(operator.advance(at))  # later rows are not earlier
        cold = max(cold, operator._cold.rows if operator._cold else 0)
    found += rows_of(operator.advance(WATERMARK_END))
    assert operator.late_rows == 0
    assert found == expected(session_twin(rows, gap, None))
    assert cold > 20 or gap < 40
    assert disk.files == {}


def few(gap: int, disk: VirtualDisk, memory_bytes: int = 60_000) -> Session:
    return Session(SessionParams("t", gap, (("k", K),), FEW), room_of(disk, memory_bytes))


def test_memory_is_bounded_and_ended_sessions_leave_the_disk() -> None:
    disk = VirtualDisk()
    operator, most, rows = few(1_000, disk), 0, 0
    for start in range(0, 6_000, 40):
        operator.process(0, frame([(start + one, f"key {start + one}", 1.0, 1) for one in range(40)], "tkfi"))
        rows += sum(one.height for one in operator.advance(start))
        most = max(most, operator.state_rows)
        assert held_bytes(operator) < 60_000
    assert 1_000 < most < 2_600
    assert disk.peak_bytes < 600_000
    assert rows + sum(one.height for one in operator.advance(WATERMARK_END)) == 6_000
    assert disk.files == {}


def test_fragments_of_a_session_in_memory_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_partials.ColdPartials, "is_due", lambda *_: True)
    operator = few(100, VirtualDisk(), 3 * 10**6)
    for start in range(0, 400, 50):
        operator.process(0, frame([(start, f"key {one}", 1.0, 1) for one in range(40)], "tkfi"))
        operator._aggregate_pending()
    assert operator._aggregates is not None
    assert operator._aggregates.main.rows == 320
    assert operator.advance(0) == []
    assert operator._aggregates.main.rows == 40
    assert rows_of(operator.advance(WATERMARK_END)) == [(0, 450, f"key {one}", 8, 8, 1.0) for one in sorted(range(40), key=str)]


def test_a_full_disk_stops_rows_but_not_answers() -> None:
    disk = VirtualDisk()
    operator, whole = few(100, disk), Session(SessionParams("t", 100, (("k", K),), FEW))
    stopped = False
    for start in range(0, 4_000, 4):
        rows = frame([(start, f"key {start} {one}", 1.0, 1) for one in range(40)], "tkfi")
        if start == 60:
            disk.capacity_bytes = disk.used_bytes
        try:
            operator.process(0, rows)
        except StateFullError:
            stopped = True
            break
        whole.process(0, rows)
        same(operator, whole, start)
    assert stopped
    same(operator, whole, start + 60)
    same(operator, whole, start + 96)
    disk.capacity_bytes = float("inf")
    operator.process(0, rows)
    whole.process(0, rows)
    same(operator, whole, WATERMARK_END)


def test_copies_have_no_sessions_that_have_ended() -> None:
    """Their fragments stay in a run until all panes of the run have ended, or a merge leaves them out."""
    operator, met = few(1_000, VirtualDisk()), 0
    for start in range(0, 3_000, 40):
        operator.process(0, frame([(start + one, f"key {start + one}", 1.0, 1) for one in range(40)], "tkfi"))
        operator.advance(start)
        cold = operator._cold
        assert cold is not None
        if any(run.counts[0][0] < cold.alive_from for run in cold._runs):
            met += 1
            if met % 10 == 1:
                copy = moved(operator, few(1_000, VirtualDisk()), random.Random(start))
                same(copy, operator.fork(), WATERMARK_END)
    assert met > 10


@pytest.mark.parametrize("damage", ["bit", "gone"])
def test_damaged_fragments_are_refused(damage: str) -> None:
    disk = VirtualDisk()
    operator = few(10_000, disk)
    for start in range(0, 2_000, 40):
        operator.process(0, frame([(start + one, f"key {start + one}", 1.0, 1) for one in range(40)], "tkfi"))
        operator.advance(start)
    assert disk.files
    for name in list(disk.files):
        if damage == "bit":
            disk.files[name][100] ^= 4
        else:
            del disk.files[name]
    with pytest.raises(StateError, match="damaged" if damage == "bit" else "cannot be read"):
        operator.advance(WATERMARK_END)


def test_memory_below_a_batch_is_refused_but_sessions_without_keys_need_little() -> None:
    with pytest.raises(StateError, match=r"cannot hold the states of one batch of 40 keys, .*state_memory_max"):
        few(10, VirtualDisk(), 4_000)
    Session(SessionParams("t", 10, (), FEW), room_of(VirtualDisk(), 4_000))


def test_groups_that_the_main_table_lacks_are_refused() -> None:
    asked = SessionParams("t", 100, (("k", K),), MORE)
    operator = Session(asked, room_of(VirtualDisk()))
    operator.process(0, frame([(one, f"key {one}", 1.0, one) for one in range(40)], "tkfi"))
    head, pieces = operator.pieces()
    other = Session(asked, room_of(VirtualDisk()))
    take = other.adopting(head)
    assert take is not None
    for name, rows in pieces:
        take(name, rows if not name.startswith("distinct") else rows.with_columns(pl.lit("nobody").alias("k0")))
    with pytest.raises(StateError, match="groups that the main table does not have"):
        other.advance(WATERMARK_END)
