"""Rows that do not fit: counted by column and cause, shown printable and short, logged once for each kind."""

from datetime import datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import polars as pl
import pytest
from structlog.testing import capture_logs

from sbon.connectors.interface import Polled
from sbon.connectors.required import RequiredColumns
from sbon.execution.instance import Instance
from sbon.execution.misfit_log import REPEAT_S, MisfitLog
from sbon.execution.reporting import operator_report
from sbon.execution.telemetry_rows import operator_statistics
from sbon.misfits import KINDS_MAX, KINDS_REPORTED_MAX, LINE_CHARACTERS_MAX, OTHER, Misfits, clause, cut
from sbon.operators.values import Values
from sbon.query.params.source import SourceParams
from sbon.query.plan import OperatorSpec
from sbon.telemetry.rows import MisfitCount
from sbon.wire.messages import decode, encode
from sbon.wire.reports import OperatorReports
from sbon_agent.logs import structlog
from tests.connector_world import columns

INTEGER = "is not an integer (BIGINT)"
SCHEMA = columns(ts="time", n="int", x="float")


def test_rows_are_counted_by_column_and_cause_and_the_first_of_a_kind_is_shown():
    misfits = Misfits()
    misfits.add("age", INTEGER, value='"abc"', line=b'{"age": "abc"}')
    misfits.add("age", INTEGER, rows=2, value='"later"', line="later")
    misfits.add("", "is not JSON", text="the line is not JSON: it ends too early", line=b"{")
    misfits.null("x", rows=3)

    assert misfits.rows == 7
    assert [(kind.column, kind.rows, kind.text, kind.line) for kind in misfits.told()] == [
        ("age", 3, 'column age: "abc" is not an integer (BIGINT)', '{"age": "abc"}'),
        ("x", 3, "column x is NULL, declared NOT NULL", ""),
        ("", 1, "the line is not JSON: it ends too early", "{"),
    ]


def test_a_flood_of_kinds_and_long_lines_takes_bounded_room():
    misfits = Misfits()
    for number in range(10 * KINDS_MAX):
        misfits.add(f"c{number}" * 100, "x" * 10_000, value="y" * 10_000, text="z" * 10_000, line=b"\x1b\x00" * 100_000)

    told = misfits.told()
    assert len(told) == KINDS_MAX + 1
    assert misfits.rows == sum(kind.rows for kind in told) == 10 * KINDS_MAX
    assert (told[0].cause, told[0].rows) == (OTHER, 9 * KINDS_MAX)
    assert len(msgspec.msgpack.encode(told)) < 40_000
    assert not misfits.is_new("another", "cause")


def test_lines_are_made_printable_and_cut():
    assert cut(b"\x1b[2J\xff\x00" + b"a" * 500, LINE_CHARACTERS_MAX) == r"\x1b[2J\xff\x00" + "a" * (LINE_CHARACTERS_MAX - 16) + "…"
    assert cut("Zürich\u202e", 20) == r"Zürich\u202e"


def test_a_clause_names_two_kinds_and_counts_the_rest():
    misfits = Misfits()
    misfits.add("a", INTEGER, rows=5, value="5.5")
    misfits.add("b", INTEGER, rows=4, value="x")
    misfits.add("c", INTEGER, rows=2, value="y")

    assert clause(misfits.told(), 1012) == (
        "1,012 rows left out: column a: 5.5 is not an integer (BIGINT) (5 rows), column b: x is not an integer (BIGINT) (4 rows), "
        "other causes (1,003 rows)"
    )
    assert clause((), 12) == ""


class Rows:
    """A source that gives these polls one after the other."""

    dropped_rows = 4

    def __init__(self, *polled: Polled) -> None:
        self.polled = list(polled)

    def start(self, ready: Any) -> None: ...
    def stop(self) -> None: ...

    def poll(self, now: float, wall: float) -> Polled:
        return self.polled.pop(0)


def test_rows_with_null_in_a_not_null_column_are_left_out_with_a_reason():
    params = SourceParams("s", "mine", (), SCHEMA, None, not_null=("n", "x"))
    times = [datetime(2026, 1, day) for day in (1, 2, 3)]
    frame = pl.DataFrame({"ts": times, "n": [1, None, None], "x": [1.0, 2.0, None]}).cast({"ts": pl.Datetime("us")})
    values = Values(3, ((7, 8, 9), (1, None, 3), (None, None, 1.5)))
    whole, none = Values(1, ((7,), (1,), (1.0,))), Values(1, ((7,), (1,), (None,)))
    source = RequiredColumns(
        Rows(
            Polled(frame, 5, None),
            Polled(None, 6, None, values=values),
            Polled(None, 7, None, values=whole),
            Polled(None, 8, None, values=none),
            Polled(frame[2:], 9, None),
            Polled(None, 9, None),
        ),
        params,
    )

    first = source.poll(0, 0)
    assert first.frame is not None
    assert first.frame.rows() == [(times[0], 1, 1.0)]
    assert source.poll(0, 0).values == Values(1, ([9], [3], [1.5]))
    assert source.poll(0, 0).values is whole
    assert [source.poll(0, 0)[:2] for _ in range(3)] == [(None, 8), (None, 9), (None, 9)]
    assert source.dropped_rows == 4 + 2 + 2 + 1 + 1
    assert [(kind.text, kind.rows, kind.line) for kind in source.misfits.told()] == [
        ("column n is NULL, declared NOT NULL", 4, '{"ts": "2026-01-02 00:00:00", "n": null, "x": 2.0}'),
        ("column x is NULL, declared NOT NULL", 2, '{"ts": "1970-01-01 00:00:00.000007", "n": 1, "x": null}'),
    ]


def test_what_the_source_itself_counts_is_told_beside_its_nulls():
    rows = Rows(Polled(None, 0, None, values=Values(1, ((7,), (None,), (None,)))))
    rows.misfits = Misfits()  # type: ignore[attr-defined]
    rows.misfits.add("n", INTEGER, rows=4)  # type: ignore[attr-defined]
    source = RequiredColumns(rows, SourceParams("s", "mine", (), SCHEMA, None, not_null=("n",)))
    source.poll(0, 0)

    assert source.dropped_rows == 5
    assert [kind.rows for kind in source.misfits.told()] == [4, 1]


def running_source(misfits: Misfits) -> Any:
    instance = Instance(OperatorSpec("q.0", SourceParams("people", "file", (), SCHEMA, None), SCHEMA, None, "n1", "signature", 0), 0)
    source: Any = SimpleNamespace(misfits=misfits, dropped_rows=0)
    instance.source = source
    return instance


def test_a_report_and_telemetry_carry_the_kinds_with_the_most_rows():
    misfits = Misfits()
    for number in range(KINDS_MAX):
        misfits.add(f"c{number}", INTEGER, rows=number + 1, line="secret")
    instance = running_source(misfits)

    message = OperatorReports((operator_report(instance, "n1"),))
    assert decode(encode(message)) == message
    assert [kind.rows for kind in message.reports[0].misfits] == [KINDS_MAX - number for number in range(KINDS_REPORTED_MAX)]
    row = operator_statistics(instance, "n1", 0.0)
    assert row.misfits[0] == MisfitCount(f"c{KINDS_MAX - 1}", INTEGER, KINDS_MAX)
    assert b"secret" not in msgspec.json.encode(row)


def test_a_report_with_too_many_kinds_is_refused():
    misfits = Misfits()
    for number in range(KINDS_REPORTED_MAX + 1):
        misfits.add(f"c{number}", INTEGER)
    report = msgspec.structs.replace(operator_report(running_source(Misfits()), "n1"), misfits=misfits.told())
    with pytest.raises(Exception, match="length <= 8"):
        decode(encode(OperatorReports((report,))))


def test_the_log_tells_of_a_new_kind_at_once_and_of_the_rest_once_a_minute():
    misfits = Misfits()
    instance = running_source(misfits)
    log = MisfitLog(structlog.get_logger())

    def looked(now: float, column: str = "", rows: int = 0) -> list[dict[str, Any]]:
        if rows:
            misfits.add(column, INTEGER, rows=rows, value="x", line="a line")
        instance.source.dropped_rows = misfits.rows
        with capture_logs() as said:
            log.look([instance], now)
        return [dict(line) for line in said]

    assert looked(0.0) == []
    (line,) = looked(1.0, "n", 100)
    assert (line["event"], line["why"], line["rows"], line["line"]) == (
        "source.row_left_out",
        "column n: x is not an integer (BIGINT)",
        100,
        "a line",
    )
    assert (line["source"], line["operator"]) == ("people", "q.0")
    assert [looked(1.0 + second, "n", 100) for second in range(1, int(REPEAT_S))] == [[]] * 59
    assert [line["why"] for line in looked(60.5, "x", 1)] == ["column x: x is not an integer (BIGINT)"]
    (line,) = looked(1.0 + REPEAT_S)
    assert (line["event"], line["rows"], line["rows_in_all"], line["seconds"]) == ("source.rows_left_out", 5901, 6001, 60)
    assert looked(200.0) == []


def test_the_log_forgets_sources_that_have_gone():
    misfits = Misfits()
    misfits.add("n", INTEGER)
    instance = running_source(misfits)
    instance.source.dropped_rows = 1
    log = MisfitLog(structlog.get_logger())
    with capture_logs() as said:
        log.look([instance], 0.0)
        log.look([], 1.0)
        log.look([instance], 2.0)
    assert len(said) == 2


def test_what_is_known_where_all_will_be_moved_needs_no_other_sample():
    known = Misfits()
    known.add("n", "is not an integer (BIGINT)", value='"x"', line="x,1")
    part = Misfits(after=known)
    assert not part.is_new("n", "is not an integer (BIGINT)")
    assert part.is_new("x", "is not a number (FLOAT)")

    part.add("n", "is not an integer (BIGINT)", rows=2)
    part.move_to(known)

    assert [(kind.rows, kind.line) for kind in known.told()] == [(3, "x,1")]
    assert part.rows == 0
