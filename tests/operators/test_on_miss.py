"""`on_miss` in SQL and plans, and the log of a function that defers rows, compared with a function that gets all rows in order."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from sbon.errors import QueryError, RemoteProtocolError, StateError
from sbon.extensions import Extensions
from sbon.functions import keyed_function
from sbon.operators.deferring import PUT_OFF, WORK_OFF, Deferring, since
from sbon.operators.keyed import Keyed
from sbon.operators.registry import build
from sbon.operators.snapshots import Parts
from sbon.query.limits import LimitError
from sbon.query.params.rowwise import FunctionParams, MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.windowed import WindowParams
from sbon.query.plan import MissRule, Plan
from sbon.query.planner import plan
from sbon.query.sql import CreateSink, parse
from sbon.schema import ColumnType, Field
from sbon.state import log, runs
from sbon.state.log import RowLog
from sbon.state.room import StateRoom
from sbon.watermarks import WATERMARK_END
from sbon_testbed.deadlines.agents import NumberedWords
from sbon_testbed.simulator.disk import VirtualDisk
from tests.examples import seeds
from tests.query_worlds import NODES, make_catalog
from tests.system.simulation.test_on_miss import EXTENSIONS, FUNCTIONS

CATALOG = make_catalog("""
CREATE SOURCE s (ts TIMESTAMP, word TEXT, v DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'a');
CREATE VIEW calm WITH (max_latency = '1 s', on_miss = 'shed', shed_fairness = 0.5) AS SELECT ts, word FROM s WHERE v > 1;
""")
PLAIN = "SELECT ts, word FROM s WHERE v > 1"
WINDOW = "SELECT window_end, word, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 s') GROUP BY window_end, word"
COUNTING = "SELECT ts, word, n FROM counting(s, PARTITION BY word)"
STUBBORN = keyed_function(
    name="stubborn",
    version="1",
    inputs={"ts": "time", "word": "text"},
    outputs={"ts": "time", "word": "text", "n": "int"},
    states={"seen": "int"},
    event_time="ts",
)(NumberedWords)
ALL = Extensions(functions={**EXTENSIONS.functions, "stubborn": lambda: STUBBORN})


def planned(select: str, options: str) -> Plan:
    (statement,) = parse(f"CREATE SINK x FROM ({select}) WITH (connector = 'discard'{options})", ALL)
    assert isinstance(statement, CreateSink)
    return plan(statement, CATALOG, NODES, "a", "q", extensions=ALL)


def rules(made: Plan) -> dict[type, MissRule | None]:
    return {type(spec.params): spec.on_miss or None for spec in made.operators}


def test_without_on_miss_and_with_finish_no_operator_may_leave_rows_out():
    for options in ("", ", max_latency = '1 s'", ", max_latency = '1 s', on_miss = 'finish'"):
        assert set(rules(planned(WINDOW, options)).values()) == {None}


def test_operators_where_rows_wait_before_work_may_shed():
    rule = MissRule(1000.0, 0.25)

    assert rules(planned(WINDOW, ", max_latency = '1 s', on_miss = 'shed', shed_fairness = 0.25")) == {
        SourceParams: None,
        MapParams: rule,
        WindowParams: rule,
        SinkParams: None,
    }


def test_only_the_function_defers():
    made = planned(COUNTING, ", max_latency = '500 ms', on_miss = 'defer'")

    (function,) = [spec for spec in made.operators if isinstance(spec.params, FunctionParams)]
    assert function.on_miss == MissRule(500.0)
    assert isinstance(function.params, FunctionParams)
    assert function.params.defers
    assert [spec.on_miss or None for spec in made.operators if spec is not function] == [None] * (len(made.operators) - 1)


def test_a_query_on_a_view_has_its_rule_or_its_own():
    made = planned("SELECT word FROM calm", "")
    assert rules(made)[MapParams] == MissRule(1000.0, 0.5)
    own = planned("SELECT word FROM calm", ", max_latency = '200 ms', on_miss = 'finish'")
    assert rules(own)[MapParams] is None
    assert own.max_latency_ms == 200


def test_operators_that_leave_rows_out_are_shared_by_those_alone_that_want_the_same():
    options = (
        "",
        ", max_latency = '1 s', on_miss = 'shed'",
        ", max_latency = '2 s', on_miss = 'shed'",
        ", max_latency = '1 s', on_miss = 'shed', shed_fairness = 1",
    )
    signed = [{type(spec.params): spec.signature for spec in planned(WINDOW, one).operators} for one in options]

    assert len({one[WindowParams] for one in signed}) == 4
    assert len({one[SourceParams] for one in signed}) == 1
    assert signed[1] == {type(spec.params): spec.signature for spec in planned(WINDOW, options[1]).operators}


@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        (PLAIN, ", ^on_miss = 'shed'", "on_miss, but no max_latency that rows could miss"),
        (PLAIN, ", max_latency = '1 s', ^on_miss = 'drop'", "on_miss is 'drop', expected finish or defer or shed"),
        (PLAIN, ", max_latency = '1 s', on_miss = 'shed', ^shed_fairness = 1.5", "shed_fairness is '1.5', expected 0 to 1"),
        (PLAIN, ", max_latency = '1 s', on_miss = 'shed', ^shed_fairness = 'fair'", "shed_fairness is 'fair', expected 0 to 1"),
        (PLAIN, ", max_latency = '1 s', ^shed_fairness = 0.5", "shed_fairness, but no rows are shed"),
        (PLAIN, ", max_latency = '1 s', ^on_miss = 'defer'", "on_miss = 'defer', but the query has no function with keys"),
        (
            "SELECT ts, word, n FROM stubborn(s, PARTITION BY word)",
            ", max_latency = '1 s', ^on_miss = 'defer'",
            "on_miss = 'defer', but function stubborn 1(PARTITION BY word) does not say that its updates commute",
        ),
        (
            "SELECT window_end, count(*) AS n FROM TUMBLE((SELECT ts FROM counting(s, PARTITION BY word)), ts, INTERVAL '1 s') "
            "GROUP BY window_end",
            ", max_latency = '1 s', ^on_miss = 'defer'",
            "on_miss = 'defer', but window 1 s: count(*) does not say that its updates commute",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line_with_the_place(select: str, options: str, message: str):
    with pytest.raises(QueryError) as refused:
        planned(select, options.replace("^", ""))
    assert message in str(refused.value)
    text = f"CREATE SINK x FROM ({select}) WITH (connector = 'discard'{options.replace('^', '')})"
    assert text[refused.value.column - 1 :].startswith(options.partition("^")[2])


@pytest.mark.parametrize("wrong", [(0.0,), (float("nan"),), (1000.0, 1.5)])
def test_rules_out_of_range_are_refused(wrong: tuple[float, ...]):
    with pytest.raises(LimitError):
        MissRule(*wrong)


# -------------------------------------------------------------------------------------------------------------------- the log

INPUTS = (Field("ts", ColumnType.TIME), Field("word", ColumnType.TEXT))


def made(function: str, *, defers: bool, room: StateRoom | None = None) -> Any:
    declared = FUNCTIONS[function]
    arguments = declared.bind((), {"size_s": 1.0} if function == "in_windows" else {})
    schema = declared.output_schema
    params = FunctionParams(function, "1", arguments, INPUTS, schema, "ts", partition=("word",), commutes=True, defers=defers)
    return build(params, EXTENSIONS, room)


def frame_of(rng: np.random.Generator, at_us: int) -> pl.DataFrame:
    count = int(rng.integers(1, 30))
    ts = pl.Series(np.sort(at_us + rng.integers(-1_500_000, 2_000_000, count))).cast(pl.Datetime("us"))  # some of them late
    return pl.DataFrame({"ts": ts, "word": [f"w{number}" for number in rng.integers(0, 4, count)]})


def rows_of(frames: list[pl.DataFrame]) -> list[tuple[Any, ...]]:
    return [row for frame in frames for row in frame.rows()]


@pytest.mark.parametrize("seed", seeds([0, 3], [1, 2, *range(4, 20)]))
def test_a_log_that_moves_at_any_time_ends_with_the_counts_of_rows_in_order(seed: int, monkeypatch: pytest.MonkeyPatch):
    """The log is in memory, or most of it on a disk that fails now and then."""
    monkeypatch.setattr(log, "RETRY_CALLS", 2)
    rng = np.random.default_rng(seed)
    disk, written = VirtualDisk(), 0
    room = StateRoom(disk, 10**6, 10**12, 10**9, 30, "t", log_bytes=12_000) if seed % 2 else None
    for name in ("counting", "in_windows"):
        plain, deferring = made(name, defers=False), made(name, defers=True, room=room)
        assert type(plain) is Keyed
        assert type(deferring) is Deferring
        expected: list[pl.DataFrame] = []
        given: list[pl.DataFrame] = []
        held: list[int] = []
        for step in range(40):
            at_us = 500_000 * step
            frame = frame_of(rng, at_us)
            expected += plain.process(0, frame)
            late = rng.random(frame.height) < rng.choice([0.0, 0.3, 1.0])
            disk.failing = bool(rng.random() < 0.3)
            if late.any():
                deferring.process(PUT_OFF, since(frame.filter(late), float(rng.integers(step - 1, step + 1))))
            if not late.all():
                given += deferring.process(0, frame.filter(~late))
            if deferring.deferred_rows and rng.random() < (0.4 if room is None else 0.25):
                asked = deferring.rows_to_work_off(int(rng.integers(1, 20)))
                given += deferring.process(WORK_OFF, asked)
            written += deferring._log.on_disk
            if rng.random() < 0.3:
                deferring = copied(deferring, name, room, rng)
            expected += plain.advance(at_us)
            given += deferring.advance(at_us)
            held.append(deferring.output_watermark(at_us))
        assert held == sorted(held)
        expected += plain.advance(WATERMARK_END)
        given += deferring.advance(WATERMARK_END)
        assert deferring.deferred_rows == deferring.deferred_bytes == 0
        assert plain.late_rows == deferring.late_rows
        assert (plain.late_rows > 0) == (name == "in_windows")
        if name == "in_windows":
            assert rows_of(given) == rows_of(expected)
        assert sorted(row[1:] for row in rows_of(given)) == sorted(row[1:] for row in rows_of(expected))
    assert (written > 5) == (room is not None)
    assert not disk.files


def copied(original: Any, name: str, room: StateRoom | None, rng: np.random.Generator) -> Any:
    """Returns a fork, or another operator that has taken the state as a whole or in pieces."""
    twin = made(name, defers=True, room=room)
    kind = rng.integers(3)
    if kind == 0:
        twin = original.fork()
    elif kind == 1:
        twin.adopt(original.parts())
    else:
        head, pieces = original.pieces()
        take = twin.adopting(head)
        for frame_name, frame in pieces:
            take(frame_name, frame)
    assert twin.deferred_rows == original.deferred_rows
    return twin


def filled_log(room: StateRoom) -> RowLog:
    """A log of 200 frames of 50 rows."""
    filled = RowLog(["at"], room)
    for number in range(200):
        filled.append(pl.DataFrame({"n": range(50 * number, 50 * number + 50), "at": [number] * 50}))
    return filled


def test_a_log_keeps_to_its_memory_with_the_oldest_and_newest_rows_there(monkeypatch: pytest.MonkeyPatch):
    for module in (runs, log):
        monkeypatch.setattr(module, "TEXT_ROWS", 256)
    disk = VirtualDisk()
    filled = filled_log(StateRoom(disk, 10**6, 10**12, 10**9, 30, "t", log_bytes=100_000))
    twin = filled.fork()

    assert filled.rows == 10_000
    assert filled.memory_bytes < 100_000
    assert disk.used_bytes > 100_000
    for one in (filled, twin):
        assert pl.concat(one.frames())["n"].to_list() == list(range(10_000))
        found: list[int] = []
        while one:
            assert one.first["at"].n_unique() == 1
            found += one.first["n"].head(30).to_list()
            one.drop(30)
            assert one.memory_bytes < 100_000
            if len(found) == 3000:
                assert pl.concat(one.frames())["n"].to_list() == list(range(3000, 10_000))
        assert found == list(range(10_000))
        assert one.rows == one.memory_bytes == 0
    assert not disk.files


def test_a_log_stays_in_memory_while_the_disk_is_full_and_leaves_it_when_there_is_room(monkeypatch: pytest.MonkeyPatch):
    disk = VirtualDisk()
    room = StateRoom(disk, 10**6, 10**12, 1_000, 30, "t", log_bytes=100_000)
    filled = filled_log(room)
    assert filled.memory_bytes > 300_000
    assert not filled.on_disk
    assert not disk.files

    room.disk_bytes = 10**9
    for _ in range(log.RETRY_CALLS + 1):
        filled.relieve()
    assert filled.on_disk
    assert filled.memory_bytes < 100_000
    assert pl.concat(filled.frames())["n"].to_list() == list(range(10_000))


def test_a_damaged_log_is_an_error():
    disk = VirtualDisk()
    filled = filled_log(StateRoom(disk, 10**6, 10**12, 10**9, 30, "t", log_bytes=100_000))
    for data in disk.files.values():
        data[len(data) // 3] ^= 1

    with pytest.raises(StateError, match="damaged"):
        list(filled.frames())


def test_a_copy_takes_the_same_rows_out_of_the_log():
    original = made("counting", defers=True)
    for number, stimulus_s in enumerate((5.0, 6.0, 5.0)):
        frame = pl.DataFrame({"ts": [None], "word": [f"w{number}"]}, schema_overrides={"ts": pl.Datetime("us")})
        original.process(PUT_OFF, since(frame, stimulus_s))
    copied = original.fork()

    for _ in range(3):
        assert original.deferred_since_s == copied.deferred_since_s
        asked = original.rows_to_work_off(10)
        assert rows_of(original.process(WORK_OFF, asked)) == rows_of(copied.process(WORK_OFF, asked))


def test_a_log_of_other_rows_is_refused():
    original = made("counting", defers=True)
    original.process(PUT_OFF, since(frame_of(np.random.default_rng(1), 0), 1.0))
    head, frames = original.parts()

    with pytest.raises(RemoteProtocolError, match="a log with other columns"):
        made("counting", defers=True).adopt(Parts(head, {**frames, "put off": frames["put off"].drop("word")}))
