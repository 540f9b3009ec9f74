"""Columns and rows that the file sources of a plan must read."""

import msgspec
import pytest

from sbon.query.expression import Call, Column, Literal
from sbon.query.limits import LimitError
from sbon.query.params.source import Reads, SourceParams
from sbon.query.plan import Plan
from sbon.query.planner import plan
from sbon.query.signature import signature
from sbon.query.sql import SelectQuery, parse
from sbon.schema import ColumnType
from tests.query_worlds import NODES, make_catalog

CATALOG = make_catalog("""
CREATE SOURCE f (ts TIMESTAMP, k TEXT, v DOUBLE, n BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'file', path = 'f.parquet');
CREATE SOURCE slow (ts TIMESTAMP, k TEXT, v DOUBLE, WATERMARK FOR ts AS ts)
    WITH (connector = 'file', path = 'f.parquet', replay = 'event_time');
CREATE SOURCE d (ts TIMESTAMP, k TEXT, v DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen');
""")


def planned(sql: str) -> Plan:
    (statement,) = parse(sql)
    assert isinstance(statement, SelectQuery)
    return plan(statement, CATALOG, NODES, "b", "q")


def reads_of(sql: str) -> list[Reads | None]:
    return [operator.params.reads for operator in planned(sql).operators if isinstance(operator.params, SourceParams)]


def test_a_filter_and_projection_right_behind_a_file_says_what_it_needs() -> None:
    conditions = (
        Call("eq", (Column("k"), Literal("a", ColumnType.TEXT))),
        Call("gt", (Column("v"), Literal(0.5, ColumnType.FLOAT))),
    )
    assert reads_of("SELECT k FROM f WHERE v > 0.5 AND k = 'a' AND n % 4 = 0") == [Reads(("k", "n", "v"), conditions)]


def test_conditions_that_are_no_comparisons_with_a_constant_are_left_to_the_filter() -> None:
    assert reads_of("SELECT n FROM f WHERE v > n OR v > 1") == [Reads(("n", "v"))]
    assert reads_of("SELECT n FROM f WHERE v > n AND k <> 'a'") == [Reads(("k", "n", "v"))]


def test_a_window_reads_its_columns_and_the_event_time() -> None:
    sql = "SELECT window_end, k, sum(v) AS total FROM TUMBLE(f, ts, INTERVAL '10 s') GROUP BY window_end, k"
    assert reads_of(sql) == [Reads(("k", "ts", "v"))]


def test_two_branches_of_a_query_share_the_columns_and_leave_out_no_row() -> None:
    assert reads_of("SELECT k FROM f WHERE v > 1 UNION ALL SELECT k FROM f WHERE n > 1") == [Reads(("k", "n", "v"))]


@pytest.mark.parametrize("sql", ["SELECT * FROM f", "SELECT k FROM slow WHERE v > 1", "SELECT k FROM d WHERE v > 1"])
def test_whole_rows_and_sources_that_queries_share_are_read_whole(sql: str) -> None:
    assert reads_of(sql) == [None]


def test_two_queries_with_other_needs_have_sources_of_other_signatures() -> None:
    sources = [planned(sql).operators[0] for sql in ("SELECT k FROM f", "SELECT k FROM f WHERE v > 1", "SELECT k FROM f WHERE v > 2")]
    assert len({source.signature for source in sources}) == 3
    for source in sources:
        assert source.signature == signature(source.params, source.schema, [], source.pinned or "")


def test_too_many_needs_are_refused() -> None:
    with pytest.raises(LimitError, match="conditions"):
        Reads((), (Call("eq", (Column("k"), Literal("a", ColumnType.TEXT))),) * 100_000)
    many = msgspec.json.encode({"columns": ["k"] * 100_000})
    with pytest.raises(msgspec.ValidationError, match="columns"):
        msgspec.json.decode(many, type=Reads)
