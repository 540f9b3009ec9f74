"""Functions with a state for each key: their calls in SQL, and their operators, compared with a plain loop over keys."""

import contextlib
import itertools
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from sbon.errors import QueryError, RemoteProtocolError, StateError, StateFullError
from sbon.execution.work import _take
from sbon.extensions import Extensions, described
from sbon.functions import BatchFunction, FunctionError, KeyedFunction, keyed_function
from sbon.migration.snapshot import Writer
from sbon.migration.state_copy import Assembly, InputLog, state_pieces
from sbon.operators.keyed import Keyed
from sbon.operators.operator import Operator
from sbon.operators.registry import build
from sbon.operators.sizes import held_bytes
from sbon.planning.resources import keys_of
from sbon.query.params.rowwise import FunctionParams
from sbon.query.plan import OperatorSpec, Plan
from sbon.query.planner import plan
from sbon.query.sql import CreateSink, SelectQuery, parse
from sbon.query.text import describe
from sbon.state.ids import identities
from sbon.state.room import StateRoom
from sbon_testbed.simulator.disk import VirtualDisk
from tests.examples import seeds
from tests.query_worlds import CATALOG, NODES

START = datetime(2026, 1, 1)


@pytest.fixture(scope="module")
def example() -> Iterator[dict[str, BatchFunction]]:
    where = str(Path(__file__).parents[1] / "example_package")
    sys.path.insert(0, where)
    from example_functions.frequent_words import FrequentWords  # type: ignore[import-not-found]
    from example_functions.sessions import SessionsOf  # type: ignore[import-not-found]

    yield {one.name: one for one in (FrequentWords, SessionsOf)}
    sys.path.remove(where)


@keyed_function(
    name="counted",
    version="1",
    inputs={"ts": "time", "k": "text", "v": "float"},
    outputs={"ts": "time", "k": "text", "n": "int", "total": "float", "first": "text"},
    states={"n": "int", "total": "float", "seen": "bool", "at": "time", "note": "text"},
    event_time="ts",
    windows=True,
)
class Counted(KeyedFunction):
    def init(self, keys: pl.DataFrame) -> pl.DataFrame:
        count = keys.height
        zero = pl.zeros(count, dtype=pl.Int64)
        return pl.select(n=zero, total=zero.cast(pl.Float64), seen=zero.cast(pl.Boolean), at=zero.cast(pl.Datetime("us"))).with_columns(
            note=pl.lit("new")
        )

    def update(self, rows: pl.DataFrame, states: pl.DataFrame) -> tuple[pl.DataFrame, None]:
        more = rows.group_by("state").agg(pl.len().cast(pl.Int64).alias("more"), pl.col("v").sum(), pl.col("ts").max()).sort("state")
        return (
            states.select(
                n=states["n"] + more["more"], total=states["total"] + more["v"], seen=pl.lit(True), at=more["ts"], note=pl.lit("old")
            ),
            None,
        )

    def finalize(self, states: pl.DataFrame) -> pl.DataFrame:
        return states.select(ts="window_end", k="k", n="n", total="total", first="note")


def known(*functions: BatchFunction) -> Extensions:
    return Extensions(functions={one.name: lambda one=one: one for one in functions})


def params(function: BatchFunction, *keys: str, **arguments: Any) -> FunctionParams:
    given = function.bind((), arguments)
    columns = function.input_schema, function.output_schema
    return FunctionParams(function.name, function.version, given, *columns, function.event_time, 1.0, True, keys)


def planned(sql: str, extensions: Extensions) -> Plan:
    (statement,) = parse(sql)
    assert isinstance(statement, SelectQuery | CreateSink)
    return plan(statement, CATALOG, NODES, "b", "q", extensions=extensions)


def outputs(operator: Operator, frames: list[pl.DataFrame]) -> pl.DataFrame:
    found = [made for frame in frames for made in operator.process(0, frame)]
    return pl.concat(found) if found else pl.DataFrame()


def cut(frame: pl.DataFrame, rng: np.random.Generator) -> list[pl.DataFrame]:
    """Cuts the frame into batches of random sizes."""
    edges = [0, *sorted(rng.choice(np.arange(1, frame.height), 6, replace=False).tolist()), frame.height]
    return [frame[start:end] for start, end in itertools.pairwise(edges)]


def words(rng: np.random.Generator, count: int = 400) -> pl.DataFrame:
    drawn = rng.zipf(1.5, count) % 30
    return pl.DataFrame(
        {"ts": [START + timedelta(seconds=i) for i in range(count)], "word": [None if word == 7 else f"w{word}" for word in drawn]},
        schema={"ts": pl.Datetime("us"), "word": pl.String},
    )


@pytest.mark.parametrize("seed", range(5))
def test_words_are_counted_as_by_a_plain_loop(example: dict[str, BatchFunction], seed: int):
    rng = np.random.default_rng(seed)
    frame = words(rng)
    counts, expected = dict[Any, int](), []
    for ts, word in frame.rows():
        counts[word] = counts.get(word, 0) + 1
        if counts[word] == 5:
            expected.append((ts, word, 5))

    found = outputs(build(params(example["frequent_words"], "word", threshold=5), known(example["frequent_words"])), cut(frame, rng))

    assert found.rows() == expected


@pytest.mark.parametrize("seed", range(5))
def test_sessions_are_those_of_a_plain_loop(example: dict[str, BatchFunction], seed: int):
    rng = np.random.default_rng(seed)
    frame = pl.DataFrame(
        {
            "ts": [START + timedelta(seconds=int(s)) for s in np.cumsum(rng.choice([1, 2, 40], 300))],
            "visitor": rng.integers(0, 6, 300),
        },
        schema={"ts": pl.Datetime("us"), "visitor": pl.Int64},
    )
    last: dict[int, tuple[datetime, int, int]] = {}
    expected = []
    for ts, visitor in frame.rows():
        before = last.get(visitor)
        if before is None or abs((ts - before[0]).total_seconds()) > 60:
            last[visitor] = (ts, before[1] + 1 if before else 1, 1)
        else:
            last[visitor] = (ts, before[1], before[2] + 1)
        expected.append((ts, visitor, *last[visitor][1:]))

    found = outputs(build(params(example["sessions_of"], "visitor", gap_s=60.0), known(example["sessions_of"])), cut(frame, rng))

    assert found.rows() == expected


@pytest.mark.parametrize(("size_s", "slide_s"), [(10.0, 0.0), (20.0, 5.0), (7.0, 3.0)])
def test_windows_are_those_of_a_plain_loop(size_s: float, slide_s: float):
    rng = np.random.default_rng(3)
    times = np.sort(rng.uniform(0, 100, 200))
    columns = {"ts": pl.Datetime("us"), "k": pl.String, "v": pl.Float64}
    instants = [START + timedelta(seconds=round(t, 3)) for t in times]
    frame = pl.DataFrame({"ts": instants, "k": [f"k{i}" for i in rng.integers(0, 4, 200)], "v": rng.random(200)}, schema=columns)
    operator = build(params(Counted, "k", size_s=size_s, slide_s=slide_s), known(Counted))
    size, slide, epoch = timedelta(seconds=size_s), timedelta(seconds=slide_s or size_s), datetime(1970, 1, 1)
    sums: dict[tuple[datetime, str], tuple[int, float]] = {}
    for ts, k, v in frame.rows():
        end = epoch + ((ts - epoch) // slide + 1) * slide
        while end <= ts + size:
            n, total = sums.get((end, k), (0, 0.0))
            sums[end, k] = (n + 1, total + v)
            end += slide

    found: list[Any] = []
    for batch in cut(frame, rng):
        operator.process(0, batch)
        watermark_us = int(batch["ts"].to_physical().to_numpy().max())
        found += [row for made in operator.advance(watermark_us) for row in made.rows()]
        operator = operator.fork()
    found += [row for made in operator.advance(2**62) for row in made.rows()]

    assert [(row[0], row[1], row[2]) for row in found] == [(*key, sums[key][0]) for key in sorted(sums)]
    assert [row[3] for row in found] == pytest.approx([sums[key][1] for key in sorted(sums)])
    assert operator.state_rows == operator.late_rows == 0


def test_late_rows_are_counted():
    operator = build(params(Counted, "k", size_s=10.0), known(Counted))
    frame = pl.DataFrame({"ts": [START], "k": ["a"], "v": [1.0]}, schema={"ts": pl.Datetime("us"), "k": pl.String, "v": pl.Float64})
    operator.advance(int(frame["ts"].to_physical()[0]) + 60_000_000)

    assert list(operator.process(0, frame)) == []
    assert operator.late_rows == 1


def test_states_go_on_elsewhere(example: dict[str, BatchFunction]):
    function = example["frequent_words"]
    rng = np.random.default_rng(9)
    first, second = words(rng)[:150], words(rng)[150:]
    one, other = (build(params(function, "word", threshold=5), known(function)) for _ in range(2))
    outputs(one, [first])
    forked = one.fork()
    other.restore(one.snapshot())

    expected = outputs(one, [second])
    assert outputs(other, [second]).equals(expected)
    assert outputs(forked, [second]).equals(expected)
    assert other.snapshot() == one.snapshot()
    with pytest.raises(RemoteProtocolError, match="other parameters"):
        build(params(function, "word", threshold=6), known(function)).restore(one.snapshot())


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (lambda rows, states: (states[:1], None), "update gave 1 states for 2 keys, expected one for each"),
        (lambda rows, states: (states.drop("n"), None), "update gave states without n Int64"),
        (lambda rows, states: (states.with_columns(n=pl.lit(None, pl.Int64)), None), "a state whose n is NULL"),
        (lambda rows, states: states, "expected a pair of states and output"),
        (lambda rows, states: (states, 1), "gave a int, expected a polars DataFrame"),
        (lambda rows, states: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_what_a_function_does_wrong_is_said(gives: Any, said: str):
    class Wrong(KeyedFunction):
        def init(self, keys: pl.DataFrame) -> pl.DataFrame:
            return pl.select(n=pl.zeros(keys.height, dtype=pl.Int64))

        def update(self, rows: pl.DataFrame, states: pl.DataFrame) -> Any:
            return gives(rows, states)

    wrong = keyed_function(name="wrong", version="1", inputs={"v": "int"}, outputs={"v": "int"}, states={"n": "int"})(Wrong)
    operator = build(params(wrong, "v"), known(wrong))

    with pytest.raises(FunctionError, match=said):
        operator.process(0, pl.DataFrame({"v": [1, 2, 2]}))


class TestSql:
    def calls(self) -> Extensions:
        class Flag(KeyedFunction):
            def __init__(self, x: int) -> None: ...

            def init(self, keys: pl.DataFrame) -> pl.DataFrame:
                return pl.DataFrame()

            def update(self, rows: pl.DataFrame, states: pl.DataFrame) -> tuple[pl.DataFrame, None]:
                return states, None

        columns = {"inputs": {"v": "float", "k": "int"}, "outputs": {"k": "int"}}
        return known(keyed_function(name="flag", version="2", **columns, states={"n": "int"}, arguments={"x": 1})(Flag))

    def test_partition_by_names_the_key(self):
        made = planned("SELECT k FROM flag((SELECT v, CAST(v AS BIGINT) AS k FROM s), PARTITION BY k, x => 3)", self.calls())
        (operator,) = [one for one in made.operators if isinstance(one.params, FunctionParams)]

        assert isinstance(operator, OperatorSpec)
        assert operator.params.partition == ("k",)
        assert operator.params.arguments == (("x", 3),)
        assert keys_of(operator) == 1
        assert describe(operator.params) == "function flag 2(PARTITION BY k, x => 3)"
        assert described(self.calls())[0]["call"] == "flag(stream, PARTITION BY ..., x => 1)"

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            ("flag(t)", "flag keeps state by key, and no key is given"),
            ("flag(t, PARTITION BY w)", "PARTITION BY w: flag takes no such column"),
            ("flag(t, PARTITION BY v)", "PARTITION BY v is a float, which cannot be a key"),
        ],
    )
    def test_wrong_calls_are_refused(self, call: str, message: str):
        with pytest.raises(QueryError, match=message):
            planned(f"SELECT k FROM {call.replace('(t', '((SELECT v, CAST(v AS BIGINT) AS k FROM s)')}", self.calls())

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"states": {}}, "a keyed function needs states"),
            ({"states": {"v": "int"}}, "state v int, expected one of the types"),
            ({"states": {"n": "json"}}, "state n json, expected one of the types"),
            ({"windows": True}, "windows need event_time and states"),
        ],
    )
    def test_nonsense_is_refused(self, wrong: dict[str, Any], message: str):
        given = {"name": "f", "version": "1", "inputs": {"v": "int"}, "outputs": {"v": "int"}, "states": {"n": "int"}, **wrong}
        with pytest.raises(FunctionError, match=message):
            keyed_function(**given)(Counted.make)


@pytest.mark.parametrize(("size_s", "slide_s"), [(0.0, 0.0), (10.0, 20.0), (10.0, 0.001)])
def test_windows_that_make_no_sense_are_refused(size_s: float, slide_s: float):
    with pytest.raises(FunctionError, match="expected a size above 0, and a slide of 0"):
        build(params(Counted, "k", size_s=size_s, slide_s=slide_s), known(Counted))


def on_disk(function: BatchFunction, disk: VirtualDisk, *keys: str, memory_bytes: int = 9_000, **arguments: Any) -> Operator:
    """Returns an operator with memory for little more than a batch of 60 keys."""
    return build(params(function, *keys, **arguments), known(function), StateRoom(disk, memory_bytes, 10**12, 10**12, 60, "t"))


def states_of(operator: Operator) -> pl.DataFrame:
    found = operator.parts()
    assert found is not None
    return found.frames["states"]


@pytest.mark.parametrize("seed", seeds([0, 1], [2, 3]))
def test_with_hardly_any_memory_answers_are_the_same(example: dict[str, BatchFunction], seed: int):
    rng = np.random.default_rng(seed)
    function, disk = example["frequent_words"], VirtualDisk()
    drawn = np.minimum(rng.zipf(1.1, 6_000), 3_000)
    frame = pl.DataFrame(
        {"ts": [START + timedelta(seconds=i) for i in range(len(drawn))], "word": [None if one == 7 else f"w{one}" for one in drawn]},
        schema={"ts": pl.Datetime("us"), "word": pl.String},
    )
    whole, little = build(params(function, "word", threshold=5), known(function)), on_disk(function, disk, "word", threshold=5)
    doubtful = 0
    for start in range(0, frame.height, 60):
        part, before = frame[start : start + 60], frame[:start]["word"]
        assert isinstance(little, Keyed)
        is_dear, in_memory = little.cost_classes(part) == 1, little._states.held(identities([part["word"]]))
        has_state = part["word"].is_in(before.implode(), nulls_equal=True).to_numpy()
        assert is_dear[has_state].tolist() == (~in_memory)[has_state].tolist()
        doubtful += is_dear[~has_state].sum()
        expected, found = (outputs(one, [part]) for one in (whole, little))
        assert found.rows() == expected.rows()
        if start % 900 == 0:
            little = little.fork()
    assert disk.files
    assert doubtful < 0.15 * little.state_rows  # new keys that the filter of some sorted run cannot rule out
    assert little.state_rows == whole.state_rows
    assert states_of(little).equals(states_of(whole))
    assert held_bytes(little) < 0.7 * held_bytes(whole)


def test_windows_on_disk_end_as_in_memory():
    rng, disk = np.random.default_rng(5), VirtualDisk()
    times = np.sort(rng.uniform(0, 300, 6_000))
    columns = {"ts": pl.Datetime("us"), "k": pl.String, "v": pl.Float64}
    instants = [START + timedelta(seconds=round(t, 3)) for t in times]
    keys = [f"key {i} of a long name" for i in rng.integers(0, 150, 6_000)]
    frame = pl.DataFrame({"ts": instants, "k": keys, "v": rng.random(6_000)}, schema=columns)
    whole = build(params(Counted, "k", size_s=30.0, slide_s=10.0), known(Counted))
    little = on_disk(Counted, disk, "k", memory_bytes=48_000, size_s=30.0, slide_s=10.0)
    ended, most = 0, 0
    for start in range(0, frame.height, 40):
        batch = frame[start : start + 40]
        watermark_us = int(batch["ts"].to_physical().to_numpy().max()) - 5_000_000
        rows = []
        for one in (whole, little):
            one.process(0, batch)
            rows.append([row for made in one.advance(watermark_us) for row in made.rows()])
        assert rows[0] == rows[1]
        ended, most = ended + len(rows[0]), max(most, len(disk.files))
        assert little.state_rows == whole.state_rows
    assert most > 2
    assert ended > 1_000
    assert [made.rows() for made in little.advance(2**62)] == [made.rows() for made in whole.advance(2**62)]
    assert (little.state_rows, disk.files) == (0, {})


def test_states_on_disk_move_a_piece_at_a_time(example: dict[str, BatchFunction]):
    """The new host never has more than a small part of the states in memory, and the pieces are small."""
    function, disk, there = example["frequent_words"], VirtualDisk(), VirtualDisk()
    one = on_disk(function, disk, "word", threshold=5)
    for start in range(0, 12_000, 60):
        words = [f"w{number}" for number in range(start, start + 60)]
        one.process(0, pl.DataFrame({"ts": [START] * 60, "word": words}, schema={"ts": pl.Datetime("us"), "word": pl.String}))
    spec = OperatorSpec("q.1", params(function, "word", threshold=5), function.output_schema, "ts", None, "s")
    room = StateRoom(there, 9_000, 10**12, 10**12, 60, "o")
    assembly = Assembly(spec, lambda: known(function), room)
    pieces = list(state_pieces(one.fork(), Writer(), lambda: 10_000))
    assert len(pieces) > 10
    assert max(map(len, pieces)) < 30_000
    most = 0
    for piece in pieces:
        assembly.take(piece)
        assert assembly._begun is not None
        most = max(most, held_bytes(assembly))
    moved, _ = assembly.finished()

    assert moved.state_rows == one.state_rows == 12_000
    assert moved.snapshot() == one.snapshot()
    assert most < len(one.snapshot()) / 4
    take = build(spec.params, known(function), room).adopting(one.pieces()[0])  # type: ignore[index]
    assert take is not None
    take("states", states_of(moved)[:50])
    with pytest.raises(RemoteProtocolError, match="a key is there twice"):
        take("states", states_of(moved)[49:60])


def test_memory_below_a_batch_is_refused(example: dict[str, BatchFunction]):
    with pytest.raises(StateError, match=r"cannot hold the states of one batch of 60 keys, .*; raise engine.state_memory_max"):
        on_disk(example["frequent_words"], VirtualDisk(), "word", memory_bytes=3_000)


def test_late_rows_count_once_though_the_disk_is_full():
    disk = VirtualDisk()
    operator = on_disk(Counted, disk, "k", memory_bytes=20_000, size_s=10.0)
    columns = {"ts": pl.Datetime("us"), "k": pl.String, "v": pl.Float64}

    def rows(first: int) -> pl.DataFrame:
        """Returns rows of fifty keys, each with one row in time and one a minute late."""
        keys = [f"key {number}" for number in range(first, first + 50)]
        times = [START] * 50 + [START - timedelta(minutes=1)] * 50
        return pl.DataFrame({"ts": times, "k": keys * 2, "v": [1.0] * 100}, schema=columns)

    operator.advance(int(rows(0)["ts"].to_physical()[0]))
    disk.failing, taken = True, 0
    with contextlib.suppress(StateFullError):
        while taken < 10_000:
            operator.process(0, rows(taken))
            taken += 50
    with pytest.raises(StateFullError, match="Input/output error"):
        operator.process(0, rows(taken))
    assert operator.late_rows == operator.state_rows == taken > 0
    disk.failing = False
    operator.process(0, rows(taken))
    assert operator.late_rows == operator.state_rows == taken + 50


def test_a_batch_that_is_not_taken_is_not_logged_for_the_copy():
    """The batch will be taken again, so it would count twice on the new host."""

    def process(port: int, frame: pl.DataFrame) -> list[pl.DataFrame]:
        if not room:
            raise StateFullError("the disk is full")
        return []

    room: list[int] = []
    log, operator = InputLog(), SimpleNamespace(process=process, output_watermark=lambda watermark_us: watermark_us)
    spec = SimpleNamespace(schema=())
    instance: Any = SimpleNamespace(is_multicast=False, sink=None, operator=operator, log=log, watermark_us=0, spec=spec)
    stage: Any = SimpleNamespace(instance=instance, incoming=SimpleNamespace(link=SimpleNamespace(port=0), schema=()))
    task: Any = SimpleNamespace()
    for _ in range(2):
        with pytest.raises(StateFullError):
            _take(task, stage, None, pl.DataFrame({"n": [1]}), 0, lambda: False)
    assert log.added_calls == 0
    room.append(1)
    with contextlib.suppress(AttributeError):  # the stand-ins cannot take answers
        _take(task, stage, None, pl.DataFrame({"n": [1]}), 0, lambda: False)
    assert log.added_calls == 1
