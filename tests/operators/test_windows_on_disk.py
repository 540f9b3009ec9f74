"""With most partial aggregates on disk, windows answer, row by row, as with all in memory, and as DuckDB does."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import RemoteProtocolError, StateError
from sbon.operators import cold_partials
from sbon.operators.sizes import held_bytes
from sbon.operators.window import Window
from sbon.query.params.windowed import WindowParams
from sbon.state import sorted_runs
from sbon.state.sorted_runs import SortedRows, SortedWriting, below, edges
from sbon.watermarks import WATERMARK_END
from sbon_testbed.simulator.disk import VirtualDisk
from tests.examples import examples
from tests.operators.stories_on_disk import EVENTS, FEW, KEYS, MORE, K, drawn, go_through, room_of
from tests.operators.stream_twins import Row, content, frame, rows_of


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    """Makes frames and merged ranges small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "FRAME_ROWS", 30)
        patch.setattr(cold_partials, "RANGE_ROWS_MIN", 150)
        patch.setattr(cold_partials, "RANGE_ROWS_MAX", 150)
        yield


@examples(75)
@given(
    EVENTS,
    st.sampled_from([(50, 50), (400, 400), (90, 30), (400, 100), (20, 70)]),
    st.sampled_from(list(KEYS)),
    st.sampled_from([0, 30]),
    st.integers(0, 2**32),
)
def test_answers_are_those_of_all_in_memory(events: list[str], shape: tuple[int, int], keys: str, lateness: int, seed: int) -> None:
    asked = WindowParams("t", *shape, KEYS[keys], MORE if seed % 2 else FEW, lateness)

    def alike(part: Window, whole: Window) -> None:
        assert repr(content(part)) == repr(content(whole))

    go_through(events, lambda room: Window(asked, room), alike, seed)


def test_a_merge_that_a_full_disk_has_ended_keeps_no_files() -> None:
    """The runs that it was to replace leave the disk with their windows."""
    steps = "pass far, full, pass, free, rows, rows, free, rows, fork, rows, move, rows, full, rows, copy, full, rows, pass far"
    told = test_answers_are_those_of_all_in_memory.hypothesis.inner_test  # type: ignore[attr-defined]
    told(steps.split(", "), (400, 100), "text", 0, 56107)


@pytest.mark.parametrize("shape", [(1_000, 1_000), (1_000, 250)], ids=["tumbling", "hopping"])
def test_answers_are_those_of_duckdb_and_most_partials_are_on_disk(shape: tuple[int, int]) -> None:
    size, slide = shape
    draw, disk = np.random.default_rng(5), VirtualDisk()
    operator = Window(WindowParams("t", size, slide, (("k", K),), FEW), room_of(disk, 60_000))
    whole = Window(WindowParams("t", size, slide, (("k", K),), FEW))
    given_, found, most = list[pl.DataFrame](), list[Row](), 0
    for start in range(0, 2_400, 60):
        numbers = draw.zipf(1.2, 200) % 3_000
        rows = [
            (start + int(after), f"key {number}", float(number % 5), int(number))
            for after, number in zip(draw.integers(0, 60, 200), numbers, strict=True)
        ]
        given_.append(frame(rows, "tkfi"))
        for one in (operator, whole):
            one.process(0, given_[-1])
        found += rows_of(operator.advance(start))
        whole.advance(start)
        cold = operator._cold
        assert cold is not None
        most = max(most, cold.rows)
        if cold.rows > 500:
            assert held_bytes(operator) < 60_000
    found += rows_of(operator.advance(WATERMARK_END))
    rows_given = rows_of(given_)
    windows = f"""
        SELECT s, s + {size}, k, count(*), sum(i)::BIGINT, max(f)
        FROM (SELECT *, unnest(generate_series(t // {slide} * {slide} - {size - slide}, t, {slide})) AS s FROM rows)
        GROUP BY s, k ORDER BY s, k
    """
    oracle = duckdb.connect()
    oracle.sql("CREATE TABLE rows (t BIGINT, k TEXT, f DOUBLE, i BIGINT)")
    oracle.sql(f"INSERT INTO rows VALUES {', '.join(map(str, rows_given))}")
    assert found == oracle.sql(windows).fetchall()
    assert most > 700
    assert disk.files == {}


def test_memory_below_a_batch_is_refused_when_the_operator_is_made() -> None:
    asked = WindowParams("t", 10, 10, (("k", K),), FEW)
    Window(asked, room_of(VirtualDisk(), 8_000))
    with pytest.raises(StateError, match=r"cannot hold the states of one batch of 40 keys, .*state_memory_max"):
        Window(asked, room_of(VirtualDisk(), 4_000))
    Window(WindowParams("t", 10, 10, (), FEW), room_of(VirtualDisk(), 4_000))


def fed(operator: Window, rounds: int, keys: int = 400) -> None:
    """Gives rows of one window: three keys in each batch, and rare ones."""
    for number in range(rounds):
        rare = [f"rare {(number * 37 + one) % keys}" for one in range(37)]
        operator.process(0, frame([(number, key, 1.0, 1) for key in (*rare, "a", "b", "c")], "tkfi"))
        operator.advance(0)


def test_frequent_groups_stay_in_memory() -> None:
    operator = Window(WindowParams("t", 10**6, 10**6, (("k", K),), FEW), room_of(VirtualDisk()))
    fed(operator, 100)
    assert operator._cold is not None
    assert operator._aggregates is not None
    operator._cold.make_room(operator._aggregates.tables, 0)
    held = operator._aggregates.main.folded(operator._by)
    assert held is not None
    counts = dict(held.select("k0", "n").rows())
    assert operator._cold.rows > 300
    assert [counts["a"], counts["b"], counts["c"]] == [100 - operator._pending_rows // 40] * 3


def test_half_of_the_groups_leave_if_all_are_frequent() -> None:
    operator, whole = (  # the memory is enough for all
        Window(WindowParams("t", 10**6, 10**6, (("k", K),), FEW), room_of(VirtualDisk(), 10**6)),
        Window(WindowParams("t", 10**6, 10**6, (("k", K),), FEW)),
    )
    for number in range(3):
        rows = [(number, f"key {one}", 1.0, 1) for one in range(120) for _ in range(1 + one % 5)]
        for one in (operator, whole):
            one.process(0, frame(rows, "tkfi"))
            one._aggregate_pending()
    cold, aggregates = operator._cold, operator._aggregates
    assert cold is not None
    assert aggregates is not None
    for _ in cold._moved(aggregates.tables, 0):
        pass
    held = pl.concat(aggregates.main.frames)
    assert 0 < held.height <= 60
    assert held["n"].min() >= 12  # type: ignore[operator]
    assert cold.rows == 120 - held.height
    assert rows_of(operator.advance(WATERMARK_END)) == rows_of(whole.advance(WATERMARK_END))


def test_hopping_windows_close_by_ranges_of_keys_while_all_is_in_memory() -> None:
    """A copy of all partials for each window would exceed the budget."""
    shape = (400, 100)
    operator, whole = (Window(WindowParams("t", *shape, (("k", K),), FEW), room) for room in (room_of(VirtualDisk(), 10**7), None))
    for number in range(10):
        rows = frame([(number * 10, f"key {one}", 1.0, 1) for one in range(100 * number, 100 * number + 100)], "tkfi")
        for one in (operator, whole):
            one.process(0, rows)
    steps = list(operator.advance_in_steps(WATERMARK_END))
    assert max(sum(one.height for one in frames) for frames in steps) < 600
    assert rows_of([one for frames in steps for one in frames]) == rows_of(whole.advance(WATERMARK_END))


def test_copies_between_the_steps_of_a_fold_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "FRAME_ROWS", 10)
    monkeypatch.setattr(cold_partials, "RANGE_ROWS_MIN", 20)
    monkeypatch.setattr(cold_partials, "RANGE_ROWS_MAX", 20)
    operator = Window(WindowParams("t", 10**6, 10**6, (("k", K),), MORE), room_of(VirtualDisk(), 10**6))
    draw = np.random.default_rng(3)
    for number in range(4):
        operator.process(0, drawn(number, 40, draw))
        operator._aggregate_pending()
    expected = rows_of(operator.fork().advance(WATERMARK_END))
    assert operator._cold is not None
    assert operator._aggregates is not None
    main, steps = operator._aggregates.main, 0
    before = main.rows
    for _ in operator._cold.fold(operator._aggregates.tables):
        steps += 1
        assert repr(rows_of(operator.fork().advance(WATERMARK_END))) == repr(expected)
    assert steps > 5
    assert main.rows == len(expected) < before
    assert repr(rows_of(operator.advance(WATERMARK_END))) == repr(expected)


def test_runs_are_merged_so_that_there_are_few() -> None:
    disk = VirtualDisk()
    operator = Window(WindowParams("t", 10**6, 10**6, (("k", K),), FEW), room_of(disk))
    fed(operator, 80, 2_000)
    assert operator._cold is not None
    assert operator._cold.rows < 4_000
    assert 2 <= len(disk.files) <= 12


def test_panes_of_closed_windows_leave_the_disk() -> None:
    disk = VirtualDisk()
    operator = Window(WindowParams("t", 40, 20, (("k", K),), FEW), room_of(disk))
    most = 0
    for start in range(0, 800, 10):
        operator.process(0, frame([(start, f"{start} {one}", 1.0, 1) for one in range(40)], "tkfi"))
        operator.advance(start)
        most = max(most, operator.state_rows)
    assert most < 1_500
    assert disk.peak_bytes < 200_000


@pytest.mark.parametrize("damage", ["bit", "gone"])
def test_damaged_partials_are_refused(damage: str) -> None:
    disk = VirtualDisk()
    operator = Window(WindowParams("t", 10**6, 10**6, (("k", K),), FEW), room_of(disk))
    fed(operator, 40)
    assert disk.files
    for name in list(disk.files):
        if damage == "bit":
            disk.files[name][100] ^= 4
        else:
            del disk.files[name]
    with pytest.raises(StateError, match="damaged" if damage == "bit" else "cannot be read"):
        operator.advance(WATERMARK_END)


def test_pieces_that_do_not_fit_are_refused() -> None:
    disk = VirtualDisk()
    asked = WindowParams("t", 10**6, 10**6, (("k", K),), MORE)
    operator = Window(asked, room_of(disk))
    fed(operator, 20)
    head, pieces = operator.pieces()
    frames = list(pieces)
    main = next(rows for name, rows in frames if name == "main")
    distinct, values = next((name, rows) for name, rows in frames if name.startswith("distinct") and rows.height)
    wrong = [([], "main", main), (frames[:1], "input", main), (frames[:1], "other", main), (frames[:1], "main", values)]
    for before, name, rows in wrong:
        take = Window(asked, room_of(disk)).adopting(head)
        assert take is not None
        for one in before:
            take(*one)
        with pytest.raises(RemoteProtocolError, match="snapshot"):
            take(name, rows)
    other = Window(asked, room_of(disk))
    take = other.adopting(head)
    assert take is not None
    take(*frames[0])
    take(distinct, values.with_columns(("nobody " + values["k0"]).alias("k0")))
    fed(other, 20)
    with pytest.raises(StateError, match="groups that the main table does not have"):
        other.advance(WATERMARK_END)
    disk.capacity_bytes = disk.used_bytes
    take = Window(asked, room_of(disk)).adopting(head)
    assert take is not None
    with pytest.raises(RemoteProtocolError, match=r"window snapshot: .*No space left"):
        _ = [take(name, rows) for name, rows in frames]


VALUES: dict[str, tuple[pl.DataType, st.SearchStrategy[Any]]] = {
    "int": (pl.Int64(), st.none() | st.integers(-3, 3)),
    "text": (pl.String(), st.none() | st.sampled_from(["", "a", "b", "ä", "zz"])),
    "float": (pl.Float64(), st.none() | st.sampled_from([0.0, -1.5, 2.0, math.nan, math.inf])),
    "bool": (pl.Boolean(), st.none() | st.booleans()),
    "time": (pl.Datetime("us"), st.none() | st.integers(-(10**17), 10**17)),
}


@examples(100)
@given(st.data(), st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=2), st.integers(1, 9))
def test_ranges_of_rows_on_disk_and_in_memory_follow_each_other(data: st.DataObject, kinds: list[str], ranges: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "FRAME_ROWS", 3)
        _check_ranges(data, kinds, ranges)


def _check_ranges(data: st.DataObject, kinds: list[str], ranges: int) -> None:
    by = ["p", *(f"b{number}" for number in range(len(kinds)))]
    schema = {"p": pl.Int64(), **{name: VALUES[kind][0] for name, kind in zip(by[1:], kinds, strict=True)}}
    row = st.tuples(st.integers(0, 2), *(VALUES[kind][1] for kind in kinds))
    parts = [pl.DataFrame(data.draw(st.lists(row, max_size=30)), schema=schema, orient="row").sort(by) for _ in range(3)]
    writing = SortedWriting(room_of(VirtualDisk()), by)
    for piece in parts[0].iter_slices(4) if parts[0].height else [parts[0]]:
        writing.add("x", piece)
    written = writing.finished()
    sources = [written, SortedRows({"x": parts[1:]}, by)]
    bounds = edges(sources, ["x"], by, ranges)
    found, seen = list[pl.DataFrame](), 0
    for low, high in pairwise(bounds):
        assert low is not None
        found.append(pl.concat([parts[0].clear(), *(rows for source in sources for rows in source.between("x", low, high))]))
        sizes = [below(part, by, low) for part in parts]
        assert sum(sizes) == seen
        seen += found[-1].height
    assert pl.concat(found).sort(by).equals(pl.concat(parts).sort(by))
    for pane in range(3):
        wanted = parts[0].filter(pl.col("p") == pane)
        assert pl.concat([parts[0].clear(), *written.between("x", (pane,), (pane + 1,))]).equals(wanted)
