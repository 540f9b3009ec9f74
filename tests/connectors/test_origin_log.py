"""A file sink notes the input and origin of its rows, so that no row comes twice when the sink and its feeders begin again."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from sbon.execution.ends import Input
from sbon.execution.instance import Instance
from sbon.execution.operators import Operators
from sbon.formats.formatting import LineFormat
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.link_names import link_id
from sbon.links.origins import Giving, short
from sbon.links.receiver import LinkReceiver
from sbon.query.params.source import SinkParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.reach import Reach
from sbon.schema import ColumnType, Field
from sbon_agent.connectors import origin_log
from sbon_agent.connectors.line_file import LineSink
from sbon_agent.connectors.opening import Folder
from sbon_agent.connectors.origin_log import OriginLog, noted
from sbon_agent.connectors.parquet_parts import ParquetSink

SCHEMA = (Field("v", ColumnType.INT),)
FIRST, SECOND = (7, 1), (7, 2)


def opened(folder: Path, kind: str) -> Any:
    sink: Any = (
        LineSink("sink k", folder / "k.csv", Reach("a", None), LineFormat("csv", SCHEMA), "append")
        if kind == "csv"
        else ParquetSink("sink k", folder / "k", Reach("a", None), SCHEMA, False, 3)
    )
    sink.open()
    return sink


def log_of(folder: Path, kind: str) -> Path:
    return folder / ".k.csv.origins" if kind == "csv" else folder / "k" / ".origins"


def write(sink: Any, key: tuple[int, int], *values: int) -> None:
    sink.next_of(*key)
    sink.write(pl.DataFrame({"v": values}))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_sink_finds_its_rows_by_origin_after_a_crash(tmp_path: Path, kind: str) -> None:
    first = opened(tmp_path, kind)
    write(first, FIRST, 1, 2)
    write(first, SECOND, 3, 4, 5)
    write(first, FIRST, 6)
    again = opened(tmp_path, kind)
    assert again.rows_since(first.begun_at) == 6
    assert again.rows_by_origin == {FIRST: 3, SECOND: 3}
    write(again, SECOND, 7)
    third = opened(tmp_path, kind)
    assert (third.rows_since(first.begun_at), third.rows_by_origin) == (7, {FIRST: 3, SECOND: 4})


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_of_an_input_that_begins_anew_are_not_counted_any_more(tmp_path: Path, kind: str) -> None:
    first = opened(tmp_path, kind)
    write(first, FIRST, 1, 2)
    write(first, (8, 1), 3, 4, 5)
    again = opened(tmp_path, kind)
    again.rows_since(first.begun_at)
    again.begin_inputs({7})
    assert again.rows_by_origin == {(8, 1): 3}
    write(again, FIRST, 6)
    third = opened(tmp_path, kind)
    assert third.rows_since(first.begun_at) == 6
    assert third.rows_by_origin == {FIRST: 1, (8, 1): 3}
    third.begin_inputs({7, 8})
    assert third.rows_by_origin == {}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_log_stays_for_an_agent_that_comes_back_and_goes_with_the_query(tmp_path: Path, kind: str) -> None:
    sink = opened(tmp_path, kind)
    write(sink, FIRST, 1)
    assert log_of(tmp_path, kind).exists()
    sink.keep()
    sink.close()
    again = opened(tmp_path, kind)
    assert (again.rows_since(sink.begun_at), again.rows_by_origin) == (1, {FIRST: 1})
    getattr(again, "finish", bool)()
    assert log_of(tmp_path, kind).exists(), "the host may crash before the query has ended"
    again.close()
    assert not log_of(tmp_path, kind).exists()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_only_input_without_origins_needs_no_log(tmp_path: Path, kind: str) -> None:
    sink = opened(tmp_path, kind)
    write(sink, (0, 0), 1, 2)
    assert not log_of(tmp_path, kind).exists()
    write(sink, (0, 1), 3)
    assert not log_of(tmp_path, kind).exists(), "the origin of the first rows is unknown"
    again = opened(tmp_path, kind)
    assert (again.rows_since(sink.begun_at), again.rows_by_origin) == (3, None)


def test_rows_that_were_noted_and_not_written_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(tmp_path, "csv")
    write(sink, FIRST, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(sink, "_append", lambda data: (_ for _ in ()).throw(OSError(28, "full")))
        sink.next_of(*SECOND)
        with pytest.raises(Exception, match="full"):
            sink.write(pl.DataFrame({"v": [3, 4, 5]}))
    write(sink, FIRST, 6)
    again = opened(tmp_path, "csv")
    assert (again.rows_since(sink.begun_at), again.rows_by_origin) == (3, {FIRST: 3})


def test_a_new_query_does_not_take_up_the_log_of_a_former_one(tmp_path: Path) -> None:
    former = opened(tmp_path, "csv")
    write(former, FIRST, 1, 2)
    sink = opened(tmp_path, "csv")
    write(sink, SECOND, 3)
    again = opened(tmp_path, "csv")
    assert (again.rows_since(sink.begun_at), again.rows_by_origin) == (1, {SECOND: 1})


def test_a_long_log_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_log, "NOTES_MAX", 5)
    folder, log = Folder(tmp_path, make=True), OriginLog("log")
    for number in range(23):
        key = FIRST if number % 3 else SECOND
        log.note(folder, key, 2)
        log.written(key, 2)
    assert (tmp_path / "log").stat().st_size <= 7 * origin_log._NOTE.size
    assert noted((tmp_path / "log").read_bytes(), 46) == {FIRST: 30, SECOND: 16}
    assert os.listdir(tmp_path) == ["log"]


def spec() -> Instance:
    return Instance(OperatorSpec("q.2", SinkParams("k", "file", ()), (), None, None, ""), 0)


def given(instance: Instance, source: str, processed: int, taken: tuple[int, ...] | None) -> Input:
    link = LinkSpec(link_id(source, "q.2", 0), source, "q.2", 0, 1.0, 1.0)
    incoming = instance.inputs[link.id] = Input(link, "a", (), LinkReceiver(link.id, LinkConfig(), 3, processed))
    incoming.origin.taken = taken
    return incoming


def test_a_sink_leaves_out_of_each_origin_what_is_written_and_not_acknowledged() -> None:
    instance = spec()
    incoming = given(instance, "u", 30, (10, 20))
    instance.waiting.had_written(45, 0, {(0, 1): 14, (0, 2): 20, (0, 3): 11})
    assert (incoming.written.rows, incoming.written.by_origin, instance.waiting.lost_rows) == (0, [4, 0, 11], 0)
    assert instance.waiting.is_found


def test_a_sink_counts_by_origin_what_was_acknowledged_and_is_not_written() -> None:
    instance = spec()
    incoming = given(instance, "u", 30, (10, 20))
    instance.waiting.had_written(27, 0, {(0, 1): 12, (0, 2): 15})
    assert (incoming.written.by_origin, instance.waiting.lost_rows) == ([2, 0], 5)


def test_a_sink_with_several_inputs_leaves_out_what_is_written_of_each() -> None:
    instance = spec()
    union, plain = given(instance, "u", 30, (10, 20)), given(instance, "s", 5, None)
    by_origin = {(short(union.link.id), 1): 11, (short(union.link.id), 2): 20, (short(plain.link.id), 0): 9}
    instance.waiting.had_written(40, 0, by_origin)
    assert (union.written.by_origin, plain.written.rows, instance.waiting.is_found) == ([1, 0], 4, True)


@pytest.mark.parametrize(
    "by_origin",
    [None, {(0, 0): 3, (0, 1): 27}, {(9, 1): 30}],
    ids=["no log", "some rows without an origin", "another input"],
)
def test_a_sink_that_does_not_find_its_rows_by_origin_says_so(by_origin: dict[tuple[int, int], int] | None) -> None:
    instance = spec()
    incoming = given(instance, "u", 25, (10, 15))
    instance.waiting.had_written(30, 0, by_origin)
    assert (incoming.written.rows, instance.waiting.is_found) == (5, False)
    several = spec()
    first, second = given(several, "u", 25, (10, 15)), given(several, "s", 5, None)
    several.waiting.had_written(35, 0, by_origin)
    assert not first.written.is_due
    assert not second.written.is_due
    assert not several.waiting.is_found


def test_what_is_acknowledged_meanwhile_does_not_come_and_is_not_left_out() -> None:
    """The host of the sink's feeder was away when the sink began again."""
    written = Giving()
    written.by_origin, written.rows = [9, 4], 0
    written.acknowledged(8, (0, 2), (5, 5))
    assert written.by_origin == [4, 1]
    written.rows = 7
    written.acknowledged(5, None, None)
    assert (written.rows, written.by_origin, written.next(10, 1), written.next(1, 2)) == (2, [4, 1], 6, 1)


def test_rows_of_several_origins_are_not_joined_for_a_sink_that_notes_them() -> None:
    from sbon.execution.chains import backlog

    class Rows:
        rows, size_bytes = 1, 8

    incoming = given(spec(), "u", 0, ())
    incoming.origin.is_noted = True
    for number, origin in enumerate([1, 1, 2], 1):
        incoming.queue.append(Batch(number, 0.0, 0, Rows(), origin=origin))
    assert len(backlog(incoming, 100)) == 2


def test_a_log_that_was_damaged_says_nothing(tmp_path: Path) -> None:
    sink = opened(tmp_path, "csv")
    write(sink, FIRST, 1, 2)
    write(sink, SECOND, 3)
    log = log_of(tmp_path, "csv")
    log.write_bytes(log.read_bytes()[5:])
    again = opened(tmp_path, "csv")
    assert (again.rows_since(sink.begun_at), again.rows_by_origin) == (3, None)


def test_sinks_keep_their_logs_when_their_agent_stops_in_good_order() -> None:
    kept: list[str] = []

    def destroyed(operator: str) -> None:
        kept.append(operator)

    instance = spec()
    instance.sink = SimpleNamespace(keep=lambda: kept.append("kept"))  # type: ignore[assignment]
    operators: Any = SimpleNamespace(instances={"q.2": instance, "q.1": spec()}, destroy=destroyed)
    Operators.close(operators)
    assert kept == ["kept", "q.2", "q.1"]
