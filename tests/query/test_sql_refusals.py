"""Refusals name what the dialect cannot do, with the place in the text and what to write instead."""

import pytest

from sbon.errors import QueryError
from sbon.extensions import Extensions
from sbon.query.planner import plan
from sbon.query.sql import CreateSink, CreateSource, CreateView, SelectQuery, parse
from sbon_agent.extensions import installed
from tests.query_worlds import CATALOG, NODES, make_catalog, plan_of

WINDOW = "FROM TUMBLE(s, ts, INTERVAL '1 s') GROUP BY window_start, k"

TIMED = "CREATE SOURCE t (a TIMESTAMP, WATERMARK FOR a AS a) WITH (connector = 'tcp', "

NUMBERED = "SELECT *, ^ROW_NUMBER() OVER (PARTITION BY window_start, k ORDER BY ts) AS r FROM TUMBLE(s, ts, INTERVAL '1 s')"
LATEST = "SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, k ORDER BY ^ts DESC) AS r FROM SESSION(s, ts, INTERVAL '1 s')"

VIEW_OPTIONS = (
    "a view takes no option but delay_bound, max_latency, on_miss, shed_fairness, instances, dealing, turn, dealer and after_crash"
)

PAIRED = (
    "FROM TUMBLE(s, ts, INTERVAL '5 s') AS x JOIN TUMBLE(u, ts, INTERVAL '5 s') AS y "
    "ON x.window_start = y.window_start AND x.k = y.k GROUP BY window_start"
)

REFUSED = [
    # text with ^ before the place, a part of the message, a part of the hint
    ("SELECT ^a FROM s", "there is no column a", "there is k, n, ok, ts, v"),
    ("SELECT ^valu FROM (SELECT v AS value FROM s)", "there is no column valu", "did you mean value?"),
    ("SELECT k FROM ^t", "there is no source or view t", ""),
    ("SELECT k FROM ^sys.prob", "there is no source or view sys.prob", "did you mean sys.probes?"),
    ("SELECT ^z.k FROM s", "there is no input z", "there is s"),
    ("SELECT k FROM s WHERE ^_nod = 'a'", "there is no column _nod", "did you mean _node?"),
    ("SELECT ^ts FROM s AS a JOIN s AS b ON a.k = b.k AND a.ts = b.ts", "column ts is ambiguous", "write a.ts or b.ts"),
    ("SELECT ^sqr(v) FROM s", "there is no function sqr", "did you mean sqrt?"),
    ("SELECT ^now() FROM s", "current time", "use the event time"),
    ("SELECT ^k + 1 FROM s", "k + 1 takes numbers, not TEXT and BIGINT", "or || to join texts"),
    ("SELECT v FROM s WHERE ^k > 3", "k > 3 compares TEXT with BIGINT", "use CAST(... AS BIGINT)"),
    ("SELECT v FROM s WHERE ^v", "WHERE needs a condition, v is DOUBLE", "compare it"),
    ("SELECT v FROM s WHERE ts > ^'yesterday'", "time 'yesterday' cannot be read", "write it as '2026-01-31"),
    ("SELECT ts + ^INTERVAL '1 month' AS x FROM s", "has no fixed length", "count in days or weeks"),
    ("SELECT ^CAST(k AS DATE) FROM s", "type DATE is not supported", "write TIMESTAMP"),
    ("SELECT ^CAST(ok AS TIMESTAMP) FROM s", "CAST(ok AS TIMESTAMP): BOOLEAN does not convert to TIMESTAMP", "go through TEXT"),
    ("SELECT ^9223372036854775808 AS x FROM s", "does not fit into 64 bits", "as a float"),
    ("SELECT k LIKE ^ts FROM s", "the pattern of LIKE is a literal text", "starts_with"),
    ("SELECT k LIKE ^'a\\' FROM s", "ends in a backslash", "write two"),
    ("SELECT round(v, ^1.5) FROM s", "the number of decimals", ""),
    ("SELECT v FROM s WHERE ^v IN (SELECT w FROM u)", "IN takes a list of literals", "JOIN it within an interval"),
    ("SELECT v FROM s WHERE v = (^SELECT max(w) FROM u)", "a subquery cannot be a value", "JOIN the other stream"),
    ("SELECT ^sum(v) OVER (PARTITION BY k) FROM s", "OVER goes by the event time", "ROWS BETWEEN 9 PRECEDING AND CURRENT ROW"),
    ("SELECT k FROM s WHERE ^sum(v) OVER (PARTITION BY k ORDER BY ts ROWS 1 PRECEDING) > 1", "OVER is not supported here", "in brackets"),
    ("SELECT k, ^v AS k FROM s", "two columns are named k", "name one of them with AS"),
    ("SELECT ^* FROM s AS a JOIN s AS b ON a.k = b.k AND a.ts = b.ts", "two columns are named ts", "one by one"),
    ("SELECT ^DISTINCT k FROM s", "DISTINCT without a time window would keep every row", "SELECT DISTINCT window_start, keys FROM TUMBLE"),
    ("SELECT ^DISTINCT k FROM TUMBLE(s, ts, INTERVAL '1 s')", "DISTINCT without a time window would keep", "window_start, keys"),
    ("SELECT ^DISTINCT ON (k) k, ts FROM s", "DISTINCT ON without a time window", "write DISTINCT ON (window_start, key)"),
    ("SELECT ^DISTINCT ON (k) k FROM TUMBLE(s, ts, INTERVAL '1 s')", "DISTINCT ON without a time window among its keys", "window_start"),
    ("SELECT DISTINCT ON (^k, ts) k, ts FROM s LIMIT 3", "DISTINCT ON beside LIMIT", "in brackets"),
    ("SELECT DISTINCT ON (k, ts) k, ts, v FROM s ORDER BY ^v, k, ts", "ORDER BY begins with other columns than DISTINCT ON", "PostgreSQL"),
    (f"SELECT window_start, ^first(x.v) AS f {PAIRED}", "first of rows with the same event time", "write min(x)"),
    (f"SELECT window_start, 1 + ^last(y.w) AS f {PAIRED}", "last of rows with the same event time", "write max(x)"),
    (f"SELECT window_start, ^last(y.w) FILTER (WHERE x.v > 1) AS f {PAIRED}", "the same event time", ""),
    ("SELECT ^first(v) AS f FROM (SELECT * FROM TUMBLE(s, ts, INTERVAL '1 s')) GROUP BY window_end", "the same event time", "own times"),
    (f"SELECT * FROM ({NUMBERED.replace('window_start, ', '')}) WHERE r = 1", "without a time window", "PARTITION BY window_start"),
    ("SELECT * FROM (SELECT *, ^ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) AS r FROM s) WHERE r = 1", "keep rows for ever", "SESSION("),
    (f"SELECT * FROM ({NUMBERED})", "ROW_NUMBER() without a condition on how many rows", "WHERE n = 1"),
    (f"SELECT * FROM ({NUMBERED}) WHERE r > 1", "ROW_NUMBER() without a condition on how many rows", "WHERE n = 1"),
    (f"SELECT * FROM ({NUMBERED}) WHERE r = 1 OR v > 1", "ROW_NUMBER() without a condition on how many rows", "WHERE n = 1"),
    (NUMBERED, "ROW_NUMBER() without a condition on how many rows", "WHERE n = 1"),
    (f"CREATE VIEW w AS {NUMBERED}", "ROW_NUMBER() without a condition on how many rows", "WHERE n = 1"),
    (f"SELECT k FROM s UNION ALL SELECT k FROM ({NUMBERED})", "ROW_NUMBER() without a condition on how many rows", "WHERE n = 1"),
    (f"SELECT a.k FROM s AS a JOIN ({NUMBERED}) AS b ON a.k = b.k AND a.ts = b.ts", "ROW_NUMBER() without a condition", "WHERE n = 1"),
    (f"SELECT * FROM ({NUMBERED.replace('^', '')}) WHERE ^r < 1", "rows are numbered from 1", "WHERE n = 1"),
    (f"SELECT * FROM ({NUMBERED.replace('^', '')}) WHERE ^r <= 20000", "at most 10000 kept of each partition", "n <= 10"),
    (NUMBERED.replace(" ORDER BY ts", ""), "ROW_NUMBER() without ORDER BY", "say which row is the first"),
    (NUMBERED.replace(" AS r", ""), "ROW_NUMBER() has no name", "add AS n"),
    (NUMBERED.replace("ORDER BY ts", "ORDER BY ts ROWS BETWEEN 1 PRECEDING AND CURRENT ROW"), "counts all rows of its partition", "frame"),
    (NUMBERED + " ORDER BY k LIMIT 1", "ROW_NUMBER() beside ORDER BY", "in brackets"),
    (NUMBERED.replace("SELECT *", "SELECT DISTINCT k"), "ROW_NUMBER() beside DISTINCT", "in brackets"),
    ("SELECT ^RANK() OVER (PARTITION BY k ORDER BY ts) AS r FROM s", "RANK has no OVER here", "ROW_NUMBER()"),
    ("SELECT k FROM s ^QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) = 1", "QUALIFY is not supported", "WHERE n = 1"),
    (f"SELECT * FROM ({LATEST}) WHERE r = 1", "ROW_NUMBER() over sessions goes by the event time", "while it lasts"),
    (f"SELECT * FROM ({LATEST.replace('^ts DESC', 'ts')}) WHERE ^r <= 2", "over sessions, only the first row is available", "n = 1"),
    (f"SELECT ^DISTINCT k {WINDOW}", "DISTINCT beside GROUP BY", "leave it out"),
    ("SELECT ^DISTINCT max(v) FROM TUMBLE(s, ts, INTERVAL '1 s')", "DISTINCT beside GROUP BY or aggregates", "leave it out"),
    ("SELECT DISTINCT ^* FROM TUMBLE(s, ts, INTERVAL '1 s')", "* does not go with DISTINCT", "name the columns"),
    ("SELECT k FROM s ^ORDER BY k", "ORDER BY is not supported", "ordered by its start and keys"),
    ("SELECT k FROM s ^LIMIT 5", "LIMIT is not supported", "sbon tail QUERY --limit N"),
    ("SELECT k\nFROM s\n^LIMIT 5", "LIMIT is not supported", "sbon tail QUERY --limit N"),
    ("SELECT k FROM s ^ORDER BY k LIMIT 5", "gives the first rows of each window, and there is no window", "FROM TUMBLE"),
    (f"SELECT k {WINDOW} ^ORDER BY k", "ORDER BY is not supported", "ORDER BY x DESC LIMIT 10 over a window"),
    (f"SELECT k {WINDOW} ^LIMIT 5", "LIMIT is not supported", "ORDER BY x DESC LIMIT 10 over a window"),
    (f"SELECT k {WINDOW} ORDER BY k LIMIT ^0", "LIMIT takes a number from 1 to 10000", "the rows of each window"),
    (f"SELECT k {WINDOW} ORDER BY ^2 LIMIT 5", "ORDER BY 2: there are 1 columns", ""),
    (f"SELECT k {WINDOW} ORDER BY ^v LIMIT 5", "column v is neither grouped nor aggregated", "max(v)"),
    (f"SELECT k {WINDOW} ORDER BY ^z LIMIT 5", "there is no column z", ""),
    (
        "SELECT k FROM SESSION(s, ts, INTERVAL '1 s') GROUP BY window_end, k ^ORDER BY k LIMIT 1",
        "gives the first rows of each window, and there is no window",
        "FROM TUMBLE",
    ),
    ("SELECT k FROM s UNION ALL SELECT k FROM s ^ORDER BY k LIMIT 5", "ORDER BY is not supported here", "in brackets"),
    ("SELECT k FROM s ^UNION SELECT k FROM u", "UNION without ALL", "write UNION ALL"),
    ("SELECT k FROM s ^EXCEPT SELECT k FROM u", "EXCEPT is not supported", "JOIN"),
    ("SELECT k, v FROM s UNION ALL SELECT ^k FROM u", "UNION ALL of 2 columns and 1", "the same columns"),
    ("SELECT k FROM s UNION ALL SELECT ^ok FROM s", "column k has other types", "use CAST"),
    ("SELECT ^count(*) FROM s", "an aggregate without GROUP BY would never end", "FROM TUMBLE"),
    ("SELECT k, count(*) FROM s GROUP BY ^k", "GROUP BY without a time window would never end", "FROM TUMBLE"),
    ("SELECT k, count(*) FROM TUMBLE(s, ts, INTERVAL '1 s') ^GROUP BY k", "names neither window_start nor", "window_start, keys"),
    ("SELECT count(*) FROM ^TUMBLE(s, ts, INTERVAL '1 s')", "a window without GROUP BY", "GROUP BY window_start, keys"),
    (f"SELECT ^v, count(*) {WINDOW}", "column v is neither grouped nor aggregated", "max(v)"),
    (f"SELECT ^* {WINDOW}", "* does not go with GROUP BY", "name the keys"),
    (f"SELECT max(^max(v)) {WINDOW}", "max(v): an aggregate within max", "SELECT in brackets"),
    (f"SELECT ^sum(k) {WINDOW}", "sum(k) takes numbers, not TEXT", "use CAST(... AS DOUBLE)"),
    (f"SELECT ^sum(DISTINCT v) {WINDOW}", "DISTINCT is not supported in sum", "count(DISTINCT column)"),
    (f"SELECT ^approx_count_distinct(*) {WINDOW}", "approx_count_distinct needs a column", "only COUNT takes *"),
    (f"SELECT ^approx_percentile(v) {WINDOW}", "approx_percentile got 1 arguments, expected 2", "approx_percentile(column, 0.99)"),
    (f"SELECT approx_percentile(v, ^99) {WINDOW}", "the share of approx_percentile is a number from 0 to 1", "(column, 0.99)"),
    (f"SELECT approx_percentile(v, ^n) {WINDOW}", "the share of approx_percentile is a number from 0 to 1", "(column, 0.99)"),
    (f"SELECT ^approx_percentile(k, 0.5) {WINDOW}", "approx_percentile(k, 0.5) takes numbers, not TEXT", "use CAST(... AS DOUBLE)"),
    ("SELECT k FROM s WHERE ^approx_percentile(v, 0.5) > 1", "an aggregate is not allowed here", "HAVING"),
    ("SELECT k FROM s WHERE ^max(v) > 1", "an aggregate is not allowed here", "HAVING"),
    ("SELECT count(*) FROM TUMBLE(plain, ^v, INTERVAL '1 s') GROUP BY window_start", "this input has none", "WATERMARK"),
    ("SELECT count(*) FROM TUMBLE(s, ^k, INTERVAL '1 s') GROUP BY window_start", "column k is not an event time", "there is ts"),
    ("SELECT count(*) FROM ^TUMBLE(s, ts) GROUP BY window_start", "TUMBLE got 2 arguments", "TUMBLE(input, ts, size)"),
    ("SELECT count(*) FROM TUMBLE(s, ts, ^5) GROUP BY window_start", "a positive INTERVAL is expected", "INTERVAL '10 seconds'"),
    ("SELECT count(*) FROM HOP(s, ts, INTERVAL '9 s', ^INTERVAL '3 s') GROUP BY window_start", "a size below its slide", ""),
    ("SELECT count(*) FROM ^SESSION(s, ts) GROUP BY window_start", "SESSION got 2 arguments", "SESSION(input, ts, gap)"),
    ("SELECT count(*) FROM SESSION(s, ts, ^3) GROUP BY window_start", "a positive INTERVAL is expected", "SESSION(input, ts, gap)"),
    ("SELECT count(*) FROM SESSION(s, ^k, INTERVAL '1 s') GROUP BY window_start", "column k is not an event time", "there is ts"),
    ("SELECT k FROM ^SESSION(s, ts, INTERVAL '1 s')", "a SESSION without GROUP BY", "GROUP BY window_start, keys"),
    ("SELECT count(*) FROM ^CUMULATE(s, ts, 1) GROUP BY window_start", "there is no table function CUMULATE", "use TUMBLE"),
    ("SELECT s.k FROM s LEFT JOIN ^u ON s.k = u.k", "no bound on the time", "AND u.ts BETWEEN s.ts - INTERVAL"),
    ("SELECT s.k FROM s LEFT JOIN ^u ON s.k = u.k WHERE s.ts = u.ts", "no bound on the time", "AND u.ts BETWEEN s.ts - INTERVAL"),
    ("SELECT s.k FROM s ^LEFT ANTI JOIN u ON s.k = u.k", "LEFT ANTI JOIN is not supported", "write LEFT JOIN, and WHERE b.key IS NULL"),
    ("SELECT s.k FROM s ^NATURAL JOIN u", "NATURAL JOIN is not supported", "write ON a.key = b.key"),
    ("SELECT s.k FROM s FULL JOIN u USING (^k)", "USING does not go with FULL JOIN", "COALESCE(s.k, u.k)"),
    ("SELECT s.k FROM s ^LEFT SEMI JOIN u ON s.k = u.k", "LEFT SEMI JOIN is not supported", "write JOIN"),
    (
        "SELECT count(*) FROM TUMBLE((SELECT u.ts FROM s LEFT JOIN u USING (k, ts)), ^ts, INTERVAL '1 s') GROUP BY window_end",
        "column ts is not an event time",
        "WATERMARK",
    ),
    ("SELECT s.k FROM s JOIN ^u ON s.k = u.k", "no bound on the time", "AND u.ts BETWEEN s.ts - INTERVAL"),
    ("SELECT s.k FROM s JOIN ^u ON s.k = u.k AND s.ts > u.ts", "bounded on one side only", "AND u.ts BETWEEN s.ts - INTERVAL"),
    ("SELECT s.k FROM s JOIN ^u ON s.k = u.k AND s.ts BETWEEN u.ts AND u.ts - INTERVAL '1 s'", "interval of the JOIN is empty", ""),
    ("SELECT s.k FROM s JOIN ^u ON s.k = u.k AND s.ts BETWEEN u.ts AND u.ts + INTERVAL '90 d'", "would keep rows for 90 d", "at most 30 d"),
    ("SELECT s.k FROM s JOIN ^u ON s.ts BETWEEN u.ts AND u.ts + INTERVAL '1 s'", "without an equality", "ON a.key = b.key"),
    ("SELECT s.k FROM s JOIN ^plain ON s.k = plain.k", "input plain of the JOIN has no event time", "WATERMARK"),
    ("SELECT k FROM s JOIN ^s ON s.k = s.k", "two inputs are named s", "AS"),
    ("SELECT ^1", "FROM is missing", "SELECT ... FROM name"),
    ("SELECT k frm ^s", "the statement cannot be read at 's'", "misspelt"),
    ("SELECT k FROM s WHERE ^'abc", "a quote is opened here and not closed", "close it"),
    ("SELECT (k ^FROM s", "expecting )", "bracket"),
    ("^UPDATE s SET k = 1", "UPDATE is not a statement", "streams do not change"),
    ("^EXPLAIN SELECT k FROM s", "EXPLAIN is not a statement", "sbon explain"),
    ("SELECT k FROM s; SHOW ^JOBS", "SHOW JOBS is not a statement", "write SHOW QUERIES"),
    ("SHOW ^sorces;", "SHOW sorces is not a statement", "did you mean sources?"),
    ("SHOW ^whatever", "SHOW whatever is not a statement", "write SHOW SOURCES"),
    ("SHOW TABLES ^LIKE 'x%'", "LIKE is one word too many", "write SHOW TABLES"),
    ("SHOW^", "SHOW does not say what to show", "write SHOW SOURCES"),
    ("SHOW ^CREATE per_key", "SHOW CREATE does not say what", "SHOW CREATE VIEW name"),
    ("SHOW ^COLUMNS s", "SHOW COLUMNS does not say of what", "write SHOW COLUMNS FROM name"),
    ("DESCRIBE^", "the name is missing", "write DESCRIBE name"),
    ("DESCRIBE sys.load ^now", "now is one word too many", "write DESCRIBE name"),
    ("CREATE TABLE t (a INT)^", "the connector is missing", "add WITH (connector = 'datagen'"),
    ("CREATE ^TABLE t AS SELECT k FROM s", "CREATE TABLE AS is not supported", "write CREATE MATERIALIZED VIEW name AS SELECT"),
    ("CREATE ^TABLE t LIKE s", "CREATE TABLE LIKE is not supported", "write the columns"),
    ("CREATE SOURCE t (a INT, b INT, ^c AS a * b) WITH (connector = 'datagen')", "c is computed", "SELECT *, a * b AS c FROM t"),
    ("CREATE SOURCE t (a INT, ^p AS PROCTIME()) WITH (connector = 'datagen')", "p is the time of processing", "leave it out"),
    ("CREATE SOURCE t (^a INT UNIQUE) WITH (connector = 'datagen')", "UNIQUE is not supported", "DISTINCT ON (window_start, a)"),
    ("CREATE SOURCE t (^a INT DEFAULT 3) WITH (connector = 'datagen')", "column a has a DEFAULT", "COALESCE(a, 3)"),
    ("CREATE SOURCE t (^a INT CHECK (a > 3)) WITH (connector = 'datagen')", "column a has a CHECK", "WHERE a > 3"),
    ("CREATE SOURCE t (a INT, PRIMARY KEY (^b)) WITH (connector = 'datagen')", "no column b for the PRIMARY KEY", "there is a"),
    ("^INSERT INTO out SELECT k FROM s", "INSERT INTO is not a statement", "write CREATE SINK out AS SELECT"),
    ("CREATE ^TEMPORARY VIEW w AS SELECT k FROM s", "TEMPORARY is not supported", "leave it out"),
    ("SELECT ^`k` FROM s", "` does not quote names here", 'as "name"'),
    ("CREATE SOURCE t (^`k` TEXT) WITH (connector = 'tcp')", "` does not quote names here", "without quotes"),
    ("CREATE ^OR REPLACE VIEW t AS SELECT k FROM s", "OR REPLACE is not supported", "DROP it first"),
    ("CREATE SOURCE t (a INT) WITH (^connector='kafka')", "there is no connector 'kafka'", "datagen, file, http, mqtt, tcp"),
    ("CREATE SOURCE t (a INT)^", "the connector is missing", "connector = 'datagen'"),
    ("CREATE SOURCE ^t WITH (connector='file')", "the columns of source t are missing", "(column type, ...)"),
    ("CREATE SOURCE t (a ^MAP<INT, INT>) WITH (connector='file')", "type MAP is not supported", "declare it JSON"),
    ("CREATE SOURCE t (a INT, ^a INT) WITH (connector='file')", "column a is declared twice", "its own name"),
    ("CREATE SOURCE t (a INT, ^\"*\" INT) WITH (connector='file')", '"*" cannot be the name of a column', "begins with"),
    ("SELECT n AS ^\"^.*$\" FROM s", "cannot be the name of a column", "begins with"),
    ("CREATE SOURCE t (a INT, WATERMARK FOR ^b AS b) WITH (connector='file')", "there is no column b", "there is a"),
    ("CREATE SOURCE t (a INT, WATERMARK FOR ^a AS a) WITH (connector='file')", "the event time a is int", "TIMESTAMP"),
    ("CREATE SOURCE t (a TIMESTAMP, WATERMARK FOR a AS ^a + 1) WITH (connector='file')", "watermark cannot be read", "WATERMARK FOR a"),
    ("CREATE SOURCE t (a INT) WITH (connector='file', x = 1, ^x = 2)", "option x is given twice", ""),
    ("CREATE SINK k AS SELECT k FROM s^", "the connector is missing", "connector = 'discard'"),
    ("CREATE SINK k AS SELECT k FROM s WITH (connector='discard', ^node='zz')", "node zz is not alive", "a, b, c"),
    ("^SELECT k FROM s WHERE _region = 'us'", "no row can come", "a (region=eu), b (region=us), c (region=eu, site=x)"),
    ("CREATE SOURCE t (a INT) WITH (connector = 'file', ^path)", "an option is a name, =, and a value", "name = 'value'"),
    ("CREATE SOURCE t (a INT) WITH (connector = 'file', path = ^x)", "the value of path is neither", "path = 'x'"),
    ("CREATE SOURCE t (a INT) WITH (connector = 'file', nodes = 'a', ^labels = 'x=y')", "both nodes and labels", "one of them"),
    ("CREATE SOURCE t (a INT) WITH (connector = 'file', ^labels = 'eu')", "label 'eu' has no value", "region=eu"),
    ("CREATE SOURCE t (a INT) WITH (connector = 'file', ^nodes = ' ,')", "nodes is empty", "name at least one"),
    ("CREATE SOURCE t (a INT) WITH (connector = 'file', ^estimated_rows_per_second = 'x')", "expected a number", ""),
    (TIMED + "^idle_after = '10 lightyears')", "idle_after: interval '10 lightyears' has the unknown unit", "'10 seconds'"),
    (TIMED + "^idle_after = 10)", "idle_after: interval '10' cannot be read", "idle_after = '10 seconds'"),
    (TIMED + "^idle_after = '0 s')", "idle_after is '0 s', expected '100 ms' to '30 days'", "idle_after = '10 seconds'"),
    (TIMED + "^idle_after = '-5 s')", "idle_after is '-5 s', expected '100 ms' to '30 days'", "idle_after = '10 seconds'"),
    (TIMED + "^idle_after = '31 days')", "idle_after is '31 days', expected '100 ms' to '30 days'", "idle_after = '10 seconds'"),
    ("CREATE SOURCE t (a INT) WITH (connector = 'tcp', ^idle_after = '1 s')", "the source has none", "WATERMARK FOR"),
    (TIMED.replace("tcp", "file") + "^idle_after = '1 s')", "a file is never idle", "leave idle_after out"),
    ("CREATE SOURCE t (a INT) WITH (^connector = 'datagne', nodes = 'a')", "there is no connector 'datagne'", "did you mean datagen?"),
    ("CREATE SOURCE t (a INT) WITH (^connector = 'kafka')", "there is no connector 'kafka'", "there is datagen, file, http, mqtt, tcp"),
    ("CREATE SOURCE t (a INT) WITH (connector = 'file') ^FORMAT PLAIN ENCODE JSON", "FORMAT is not supported", "WITH (format = 'csv'"),
    ("CREATE VIEW v AS SELECT k FROM s WITH (^x = 1)", VIEW_OPTIONS, "sources and sinks"),
    ("CREATE VIEW v WITH (^x = 1, delay_bound = '1 s') AS SELECT k FROM s", VIEW_OPTIONS, "sources and sinks"),
    ("CREATE VIEW v WITH (^delay_bound = '250') AS SELECT k FROM s", "delay_bound: interval '250' cannot be read", "'250 ms'"),
    ("CREATE VIEW v WITH (^delay_bound = '0 s') AS SELECT k FROM s", "delay_bound is '0 s', expected more than 0", "'250 ms'"),
    ("CREATE VIEW v WITH (^max_latency = '0 s') AS SELECT k FROM s", "max_latency is '0 s', expected more than 0", "'500 ms'"),
    ("CREATE SINK k WITH (connector='discard') AS SELECT k FROM s WITH (^delay_bound='1 s')", "WITH is given twice", "one of them"),
    ("DROP ^INDEX s", "DROP INDEX is not supported", "DROP SOURCE"),
    ("DROP SOURCE^", "the name of the source is missing", "DROP SOURCE name"),
    ("DROP QUERY b.q1 ^now", "now is one word too many", "DROP QUERY name"),
    ("WITH RECURSIVE ^x AS (SELECT k FROM x) SELECT k FROM x", "RECURSIVE", "cannot feed itself"),
    ("", "there is no statement", "write a SELECT"),
    ("-- nothing", "there is no statement", "write a SELECT"),
]  # fmt: skip


def understand(text: str) -> None:
    for statement in parse(text):
        if isinstance(statement, CreateView):
            plan(statement.query, CATALOG, NODES, "b", "check")
        elif isinstance(statement, SelectQuery | CreateSink):
            plan(statement, CATALOG, NODES, "b", "q")


@pytest.mark.parametrize(("marked", "message", "hint"), REFUSED)
def test_a_refusal_gives_the_place_and_a_way_out(marked: str, message: str, hint: str) -> None:
    before, _, after = marked.partition("^")
    with pytest.raises(QueryError) as refusal:
        understand(before + after)
    error = refusal.value
    assert message in error.message
    assert hint in error.hint
    if "^" in marked:
        assert (error.line, error.column) == (before.count("\n") + 1, len(before) - before.rfind("\n"))


def test_a_view_of_itself_is_refused() -> None:
    catalog_sql = "CREATE VIEW one AS SELECT k FROM two; CREATE VIEW two AS SELECT k FROM one;"
    (select,) = parse("SELECT k FROM one")
    assert isinstance(select, SelectQuery)
    with pytest.raises(QueryError, match="refers to itself: one -> two -> one") as refusal:
        plan(select, make_catalog(catalog_sql), NODES, "b", "q")
    assert (refusal.value.line, refusal.value.column) == (1, 15)


def test_an_error_in_a_view_points_at_its_use() -> None:
    (select,) = parse("SELECT k FROM one")
    assert isinstance(select, SelectQuery)
    with pytest.raises(QueryError, match="view one cannot be used: there is no source or view gone") as refusal:
        plan(select, make_catalog("CREATE VIEW one AS SELECT a\n FROM gone"), NODES, "b", "q")
    assert (refusal.value.line, refusal.value.column) == (1, 15)


def test_expressions_that_double_at_each_level_are_refused() -> None:
    inner = "SELECT v AS x0 FROM s"
    for level in range(20):
        inner = f"SELECT x{level} + x{level} AS x{level + 1} FROM ({inner})"
    with pytest.raises(QueryError, match="an expression has 2047 parts"):
        plan_of(inner)


@pytest.mark.parametrize(
    "text", ["SELECT " + "(" * 5000 + "v" + ")" * 5000 + " FROM s", "SELECT " + "-(" * 500 + "v" + ")" * 500 + " FROM s"]
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match=r"nested too deeply|levels"):
        plan_of(text)


def test_a_long_chain_of_conditions_is_no_deep_nesting() -> None:
    plan = plan_of("SELECT k FROM s WHERE " + " AND ".join(f"n <> {number}" for number in range(500)))
    assert len(plan.operators) == 5


def test_too_long_a_text_is_refused() -> None:
    with pytest.raises(QueryError, match="expected at most 100000"):
        parse("SELECT k FROM s WHERE k = '" + "x" * 100_001 + "'")


INSTALLED = Extensions(("kafka", "nexmark"), offers=lambda name: ("source",) if name == "nexmark" else ("source", "sink"))


@pytest.mark.parametrize(
    ("connector", "message"),
    [
        ("nexmark", "line 1, column 32: connector 'nexmark' is no sink; there is discard, file, http, mqtt, sse, tcp, websocket, kafka"),
        ("kafak", "line 1, column 32: there is no connector 'kafak' for this; did you mean kafka?"),
        (
            "nowhere",
            "line 1, column 32: there is no connector 'nowhere' for this; there is discard, file, http, kafka, mqtt, sse, tcp, websocket",
        ),
    ],
)
def test_a_connector_that_is_only_a_source_is_offered_for_no_sink(connector: str, message: str) -> None:
    with pytest.raises(QueryError) as refusal:
        parse(f"CREATE SINK k FROM s WITH (    connector = '{connector}')", INSTALLED)
    assert str(refusal.value) == message


def test_an_installed_connector_is_taken_for_what_it_is() -> None:
    source, sink = parse("CREATE SOURCE s (a INT) WITH (connector = 'nexmark'); CREATE SINK k FROM s WITH (connector = 'kafka')", INSTALLED)
    assert isinstance(source, CreateSource)
    assert isinstance(sink, CreateSink)


def test_the_connectors_of_this_machine_are_offered_by_what_they_are() -> None:
    assert "nexmark" in installed().connectors_of("source")
    assert "nexmark" not in installed().connectors_of("sink")
