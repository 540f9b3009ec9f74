"""Statements of the dialect, each planned and run through the real operators; schemas must be those of the plan."""

import polars as pl
import pytest

from sbon.errors import QueryError
from sbon.operators.frames import polars_schema
from tests.query_worlds import plan_of, run

STATEMENTS = [
    "SELECT * FROM s",
    "SELECT s.* FROM s",
    "SELECT k FROM s",
    "SELECT k AS key, v AS value FROM s",
    "SELECT t.k FROM s AS t",
    'SELECT "k" AS "Key" FROM s',
    "SELECT k, v FROM s WHERE v > 1",
    "SELECT k FROM s WHERE v >= 1 AND n <> 3 OR NOT ok",
    "SELECT k FROM s WHERE k LIKE 'k%' AND k NOT LIKE '%9'",
    "SELECT k FROM s WHERE k ILIKE 'K_'",
    "SELECT k FROM s WHERE n IN (1, 2, 3) AND k NOT IN ('k1', 'k2')",
    "SELECT k FROM s WHERE v IN (1, 2.5) OR n IN (1, NULL)",
    "SELECT k FROM s WHERE v BETWEEN 1 AND 5 AND n NOT BETWEEN 2 AND 3",
    "SELECT k FROM s WHERE v IS NULL OR n IS NOT NULL",
    "SELECT k FROM s WHERE ok IS TRUE OR ok IS NOT FALSE",
    "SELECT k FROM s WHERE ok",
    "SELECT CASE WHEN v > 1 THEN 'high' WHEN v > 0 THEN 'low' ELSE 'none' END AS level FROM s",
    "SELECT CASE n WHEN 1 THEN 1.5 ELSE 2 END AS x, CASE WHEN ok THEN n END AS y FROM s",
    "SELECT CAST(v AS BIGINT) AS i, n::DOUBLE AS f, CAST(n AS TEXT) AS t, CAST(k AS DOUBLE) AS d FROM s",
    "SELECT COALESCE(v, n, 0) AS x, NULLIF(n, 3) AS y FROM s",
    "SELECT ABS(v), ROUND(v), ROUND(v, 2), FLOOR(v), CEIL(v), SIGN(v) FROM s",
    "SELECT SQRT(v), LN(v), LOG10(n), LOG(2, n), EXP(v), POWER(v, 2), v ^ 3, MOD(n, 3), n % 2 FROM s",
    "SELECT GREATEST(v, n, 1), LEAST(v, n) FROM s",
    "SELECT n / 2 AS half, v / n AS ratio, -v AS minus, n - 1 AS less, 2 * (n + 1) AS twice FROM s",
    "SELECT LOWER(k), UPPER(k), LENGTH(k), SUBSTR(k, 1, 2), SUBSTRING(k FROM 2), LEFT(k, 1) FROM s",
    "SELECT CONCAT(k, n, 'x') AS a, k || '-' || n AS b, TRIM(k), LTRIM(k), RTRIM(k), REPLACE(k, 'k', 'q') FROM s",
    "SELECT STARTS_WITH(k, 'k1') AS yes FROM s",
    "SELECT ts + INTERVAL '1 minute' AS later, ts - INTERVAL '1 hour 30 minutes' AS before FROM s",
    "SELECT DATE_TRUNC('minute', ts) AS m, EXTRACT(EPOCH FROM ts) AS e, EXTRACT(HOUR FROM ts) AS h, DATE_PART('dow', ts) AS d FROM s",
    "SELECT (ts - DATE_TRUNC('hour', ts)) * 2 AS d FROM s WHERE ts - TIMESTAMP '1970-01-01' > INTERVAL '5 seconds'",
    "SELECT k FROM s WHERE ts > '1970-01-01 00:00:10' AND ts < TIMESTAMP '2030-01-01'",
    "SELECT NULL AS nothing, 1 AS one, 'x' AS text, TRUE AS yes, INTERVAL '1 s' AS span, 1.5e3 AS real FROM s",
    "SELECT _node, _region, _site, v FROM s",
    "SELECT v FROM s WHERE _node = 'a' OR _site IS NOT NULL",
    "SELECT x.v FROM s AS x WHERE x._region IN ('eu', 'us')",
    "SELECT * FROM (SELECT k, v * 2 AS d FROM s) WHERE d > 1",
    "SELECT d + 1 AS e FROM (SELECT v * 2 AS d, n FROM (SELECT v, n FROM s WHERE n > 1) AS i) AS o WHERE n < 6",
    "WITH big AS (SELECT k, v FROM s WHERE v > 1), bigger AS (SELECT k FROM big WHERE v > 2) SELECT * FROM bigger",
    "SELECT * FROM fast",
    "SELECT k FROM fast WHERE v < 5",
    "SELECT k, v FROM s UNION ALL SELECT k, w FROM u",
    "SELECT k, n FROM s UNION ALL SELECT k, w FROM u UNION ALL SELECT k, v FROM plain",
    "(SELECT k FROM s) UNION ALL (SELECT k FROM s)",
    "SELECT k FROM (SELECT k, v FROM s UNION ALL SELECT k, w FROM u) AS all_rows WHERE v > 1",
    "SELECT k, v FROM plain WHERE v > 0",
    "SELECT * FROM sys.probes",
    "SELECT node, rtt_ms FROM sys.probes WHERE region = 'eu' AND rtt_ms > 1.5 * estimated_ms",
    "SELECT node, cpu FROM sys.load WHERE node <> 'a'",
    "SELECT link, bytes_per_s FROM sys.links",
    "SELECT count(*) FROM TUMBLE(s, ts, INTERVAL '10 seconds') GROUP BY window_start",
    "SELECT window_start, window_end, k, count(*) FROM TUMBLE(s, ts, INTERVAL '10' SECOND) GROUP BY window_start, window_end, k",
    "SELECT k, count(v), count(DISTINCT n), sum(n), sum(v), min(v), max(v), avg(v), first(v), last(v), stddev(v) "
    "FROM TUMBLE(s, ts, INTERVAL '5 s') GROUP BY window_end, k",
    "SELECT k, approx_count_distinct(n), approx_percentile(v, 0.5), approx_percentile(n, 1) FILTER (WHERE ok) AS high "
    "FROM TUMBLE(s, ts, INTERVAL '5 s') GROUP BY window_end, k HAVING approx_percentile(v, 0.9) < 100",
    "SELECT window_start, window_end, k, count(*), avg(v), approx_percentile(v, 0.5) FROM SESSION(s, ts, INTERVAL '5' SECOND) "
    "GROUP BY window_start, window_end, k",
    "SELECT session.k, count(*) FROM SESSION((SELECT ts, k FROM s WHERE v > 1), ts, INTERVAL '3 s', lateness => INTERVAL '1 s') AS session "
    "WHERE session.k <> 'k1' GROUP BY session.window_end, k HAVING count(*) > 1",
    "SELECT DISTINCT window_start AS start, k, n % 2 AS parity, 1 AS one FROM TUMBLE(s, ts, INTERVAL '5 s') WHERE v > 1",
    "SELECT DISTINCT window_end, k FROM per_key",
    "SELECT p.window_end, p.k, m.most FROM per_key AS p "
    "JOIN (SELECT window_end, max(rows) AS most FROM per_key GROUP BY window_end) AS m ON p.window_end = m.window_end AND p.rows = m.most",
    "SELECT DISTINCT window_end, k FROM per_key ORDER BY k DESC LIMIT 1",
    "SELECT * FROM per_key ORDER BY total DESC NULLS LAST, rows LIMIT 2",
    "SELECT k, total FROM per_key ORDER BY window_end LIMIT 2",
    "SELECT DISTINCT t.k, t.ts FROM s AS t",
    "SELECT * FROM TUMBLE(s, ts, INTERVAL '10 s')",
    "SELECT t.window_end, t.k, _node FROM HOP(s, ts, INTERVAL '5 s', INTERVAL '15 s') AS t "
    "WHERE t.window_start > '1970-01-01 00:00:05' AND n > 1",
    "SELECT e, window_end, total FROM TUMBLE((SELECT window_end AS e, total FROM per_key), e, INTERVAL '1 minute')",
    "SELECT window_end, max(v) FROM (SELECT window_end, v FROM TUMBLE(s, ts, INTERVAL '10 s')) GROUP BY window_end",
    "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, k ORDER BY ts) AS row FROM TUMBLE(s, ts, INTERVAL '10 s')) "
    "WHERE row = 1",
    "SELECT k, ts FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, upper(k) ORDER BY t.ts, v DESC) AS row "
    "FROM TUMBLE(s, ts, INTERVAL '10 s', lateness => INTERVAL '1 s') AS t WHERE ok AND window_start > '1970-01-01 00:00:05') "
    "WHERE 1 = row AND v > 0",
    "SELECT row, k, v FROM (SELECT ROW_NUMBER() OVER (PARTITION BY window_end, k ORDER BY ts DESC NULLS LAST) AS row, k, v "
    "FROM HOP(s, ts, INTERVAL '5 s', INTERVAL '15 s')) WHERE row BETWEEN 2 AND 3",
    "SELECT k, ts FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, k, n ORDER BY ts) AS row "
    "FROM SESSION(s, ts, INTERVAL '9 s')) WHERE row < 2",
    "WITH r AS (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY total DESC) AS place FROM per_key) "
    "SELECT window_end, k, place * 2 AS double FROM r WHERE place IN (1, 2) AND total > 0",
    "SELECT k FROM (SELECT window_end, k, ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY sum(v) DESC) AS n "
    "FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY window_end, k) WHERE n <= 2",
    "SELECT count(*) FROM (SELECT * FROM (SELECT ts, k, ROW_NUMBER() OVER (PARTITION BY window_start, k ORDER BY ts) AS row "
    "FROM TUMBLE(s, ts, INTERVAL '10 s')) WHERE row = 1) GROUP BY ts",
    "SELECT window_start, count(*) FROM TUMBLE((SELECT DISTINCT ON (window_start, k) k, ts FROM SESSION(s, ts, INTERVAL '9 s')), ts, "
    "INTERVAL '20 s') GROUP BY window_start",
    "SELECT DISTINCT ON (window_start, k) * FROM TUMBLE(s, ts, INTERVAL '10 s') ORDER BY k, window_start, v DESC",
    "SELECT DISTINCT ON (ts) ts, k, v FROM s ORDER BY ts, 3 DESC",
    "SELECT DISTINCT ON (ts) * FROM s",
    "SELECT DISTINCT ON (window_start, k) * FROM TUMBLE((SELECT * FROM s UNION ALL SELECT * FROM s), ts, INTERVAL '10 s')",
    "SELECT * FROM HOP((SELECT * FROM s UNION ALL SELECT * FROM s), ts, INTERVAL '5 s', INTERVAL '10 s') WHERE n > 2",
    "SELECT a.k, b.w FROM (SELECT DISTINCT ON (window_start, k) k, ts FROM TUMBLE(s, ts, INTERVAL '10 s')) AS a "
    "JOIN u AS b ON a.k = b.k AND b.ts = a.ts",
    "SELECT k, max(k), min(ts), last(ok) FROM HOP(s, ts, INTERVAL '5 s', INTERVAL '15 s') GROUP BY 1, window_end",
    "SELECT n % 2 AS parity, avg(v) * 2 AS a FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY window_start, n % 2 HAVING count(*) > 1",
    "SELECT upper(k) AS big, count(*) AS c FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY window_start, big",
    "SELECT k FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY window_start, k",
    "SELECT t.k, sum(t.v) FROM TUMBLE(s, ts, INTERVAL '10 s') AS t WHERE t.n > 1 GROUP BY t.window_start, t.k",
    "SELECT count(*) FILTER (WHERE v > 1) AS high, sum(v) FILTER (WHERE ok) FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY window_end",
    "SELECT k, count(*) FROM TUMBLE(s, ts, INTERVAL '10 s', lateness => INTERVAL '5 s') GROUP BY window_end, k",
    "SELECT k, avg(v) FROM TUMBLE((SELECT ts, k, v FROM s WHERE n > 1), ts, INTERVAL '10 s') GROUP BY window_start, k",
    "SELECT region, max(cpu) FROM TUMBLE(sys.load, ts, INTERVAL '10 s') GROUP BY window_end, region",
    "SELECT k, total / rows AS mean FROM per_key WHERE rows > 1",
    "SELECT window_end, max(total) AS top FROM per_key GROUP BY window_end",
    "SELECT window_end, sum(total) AS minute FROM TUMBLE(per_key, window_end, INTERVAL '1 minute') GROUP BY window_end",
    "SELECT s.k, v, w FROM s JOIN u ON s.k = u.k AND u.ts BETWEEN s.ts - INTERVAL '5 s' AND s.ts + INTERVAL '1 s'",
    "SELECT s.k, v - w AS d FROM s, u WHERE s.k = u.k AND s.ts >= u.ts - INTERVAL '3 s' AND s.ts < u.ts AND v > w",
    "SELECT l.k, l.v + r.v AS both FROM s AS l JOIN s AS r ON l.k = r.k AND l.ts = r.ts AND l.n < 5 WHERE r.ok",
    "SELECT k, s.v, u.k AS again FROM s JOIN u USING (k) WHERE s.ts - u.ts BETWEEN INTERVAL '-2 s' AND INTERVAL '2 s'",
    "SELECT * FROM s JOIN (SELECT ts AS at, k, w FROM u) AS r USING (k) WHERE s.ts = r.at",
    "SELECT s.n, u.w FROM s JOIN u ON s.k = upper(lower(u.k)) AND u.ts BETWEEN s.ts AND s.ts + INTERVAL '2 s'",
    "SELECT a.k, a.total, b.total AS other FROM per_key AS a JOIN per_key AS b ON a.k = b.k AND a.window_end = b.window_end",
    "SELECT a.k FROM s AS a JOIN s AS b ON a.k = b.k AND a.ts = b.ts JOIN u AS c ON c.k = b.k AND c.ts = b.ts",
    "SELECT count(*) FROM TUMBLE((SELECT s.ts, v FROM s JOIN u ON s.k = u.k AND s.ts = u.ts), ts, INTERVAL '9 s') GROUP BY window_end",
    "SELECT s.v = u.w AS same FROM s JOIN u ON s.n = u.w AND s.ts = u.ts",
    "SELECT 1 AS one FROM s JOIN u ON s.k = u.k AND s.ts = u.ts",
    "SELECT NULL::BIGINT AS n, NULL::DOUBLE AS x, NULL AS t, NULL::TEXT AS u, -(NULL::DOUBLE) AS y, NULL::TIMESTAMP - ts AS z FROM s",
    "SELECT k = NULL AS never, n * NULL::INTERVAL AS span, v % NULL AS rest FROM s",
    "SELECT v AS x FROM s UNION ALL SELECT -(NULL::DOUBLE % 2.0) AS x FROM s UNION ALL SELECT 1 AS x FROM s",
    "SELECT first(n) FILTER (WHERE FALSE), first(ts) FILTER (WHERE FALSE), stddev(v) FILTER (WHERE 1 > 2), sum(n) FILTER (WHERE NULL) "
    "FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY window_end",
    'SELECT "1" AS a, sum("1") AS b, sum(1) AS c FROM TUMBLE((SELECT ts, v AS "1" FROM s), ts, INTERVAL \'1 s\') GROUP BY window_end, "1"',
    "SELECT \"count(*)\", count(*) AS c FROM TUMBLE((SELECT window_end, count(*) FROM TUMBLE(s, ts, INTERVAL '5 s') GROUP BY window_end), "
    "window_end, INTERVAL '10 s') GROUP BY window_end, \"count(*)\"",
    "SELECT \"1\", 1 AS one FROM (SELECT v AS \"1\" FROM s) WHERE \"1\" > 0",
    "SELECT a, b FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start ORDER BY k) AS b FROM TUMBLE((SELECT * FROM (SELECT "
    "window_end AS e, k, ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY k) AS a FROM TUMBLE(s, ts, INTERVAL '5 s')) WHERE a = 1), e, "
    "INTERVAL '10 s')) WHERE b = 1",
    "CREATE SINK out AS SELECT k FROM s WITH (connector = 'discard')",
    "CREATE SINK out FROM fast WITH (connector = 'file', path = 'out.csv', node = 'c')",
]  # fmt: skip


@pytest.mark.parametrize("sql", STATEMENTS)
def test_a_statement_runs_and_gives_the_columns_of_its_plan(sql: str) -> None:
    plan = plan_of(sql)
    assert plan.operators[-1].ports == 1
    rows = run(plan)
    assert dict(rows.schema) == dict(polars_schema(plan.operators[-1].schema))
    assert len({operator.id for operator in plan.operators}) == len(plan.operators)
    assert len({link.id for link in plan.links}) == len(plan.links)


def test_a_window_over_two_nodes_counts_the_rows_of_both() -> None:
    rows = run(plan_of("SELECT window_start, k, count(*) AS c, max(v) AS top FROM TUMBLE(s, ts, INTERVAL '20 s') GROUP BY window_start, k"))
    assert rows["c"].sum() == 80
    assert rows.columns == ["window_start", "k", "c", "top"]
    assert rows["window_start"].dt.epoch("s").unique().to_list() == [0, 20]


def test_a_union_with_itself_gives_every_row_twice() -> None:
    once, twice = run(plan_of("SELECT n FROM s")), run(plan_of("SELECT n FROM s UNION ALL SELECT n FROM s"))
    assert sorted(twice["n"].to_list(), key=str) == sorted(once["n"].to_list() * 2, key=str)


def test_an_interval_join_gives_the_pairs_within_the_interval() -> None:
    sql = "SELECT s.ts AS a, u.ts AS b, s.k FROM s JOIN u ON s.k = u.k AND u.ts BETWEEN s.ts - INTERVAL '5 s' AND s.ts + INTERVAL '1 s'"
    rows = run(plan_of(sql))
    away = rows.select((pl.col("b") - pl.col("a")).dt.total_seconds())["b"]
    # Keys repeat every fourth second: partners are 4 s before, or at the same time. NULL keys at 5, 16, 27, 38.
    assert sorted(away.unique().to_list()) == [-4, 0]


def test_conditions_on_the_node_leave_its_rows_only() -> None:
    assert run(plan_of("SELECT _node, v FROM s WHERE _node <> 'a'"))["_node"].unique().to_list() == ["c"]


def test_the_same_answer_comes_with_conditions_inside_and_outside() -> None:
    inside = run(plan_of("SELECT k, count(*) AS c FROM TUMBLE(s, ts, INTERVAL '10 s') WHERE k = 'k1' GROUP BY window_start, k"))
    outside = run(
        plan_of("SELECT k, c FROM (SELECT k, count(*) AS c FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY window_start, k) WHERE k = 'k1'")
    )
    assert inside.equals(outside)
    assert inside.height == 4


def test_a_second_aggregation_sees_each_window_once() -> None:
    per_key = run(plan_of("SELECT * FROM per_key"))
    top = run(plan_of("SELECT window_end, max(total) AS top, count(*) AS keys FROM per_key GROUP BY window_end"))
    expected = (
        per_key.group_by("window_end").agg(pl.col("total").max().alias("top"), pl.len().cast(pl.Int64).alias("keys")).sort("window_end")
    )
    assert top.sort("window_end").equals(expected)


def test_distinct_is_each_row_of_a_window_once() -> None:
    """DISTINCT has the same operators as GROUP BY, so that both can be shared."""
    call = "TUMBLE(s, ts, INTERVAL '7 s')"
    distinct, grouped = (
        plan_of(f"SELECT DISTINCT window_end, n % 3 AS r, k FROM {call}"),
        plan_of(f"SELECT window_end, n % 3 AS r, k FROM {call} GROUP BY k, window_start, n % 3"),
    )
    rows = run(distinct)
    assert rows.height == rows.unique().height > 10
    assert rows.equals(run(grouped))
    assert [operator.signature for operator in distinct.operators[:-1]] == [operator.signature for operator in grouped.operators[:-1]]


def test_distinct_of_a_common_table_that_is_used_twice() -> None:
    once = "WITH d AS (SELECT DISTINCT window_end, k FROM TUMBLE(s, ts, INTERVAL '5 s')) SELECT window_end, k FROM d"
    assert run(plan_of(f"{once} UNION ALL SELECT window_end, k FROM d")).height == 2 * run(plan_of(once)).height > 0


def test_a_column_is_not_taken_for_the_constant_of_its_name() -> None:
    sql = (
        'SELECT "1" AS a, sum("1") AS b, sum(1) AS c FROM TUMBLE((SELECT ts, n * 100 AS "1" FROM s), ts, INTERVAL \'1 day\') '
        'GROUP BY window_end, "1"'
    )
    for a, b, c in run(plan_of(sql)).rows():
        assert b == (None if a is None else a * c)


def test_a_value_that_is_always_null_has_a_row_for_each_row() -> None:
    rows = run(plan_of("SELECT k = NULL AS never FROM s"))["never"]
    assert len(rows) == len(run(plan_of("SELECT k FROM s")))
    assert rows.null_count() == len(rows)


NEAR = "s.k = u.k AND u.ts BETWEEN s.ts AND s.ts + INTERVAL '1 s'"
IN_WINDOWS = "s.k = u.k AND s.window_start = u.window_start"
WINDOWS = "TUMBLE(s, ts, INTERVAL '2 s') AS s {} TUMBLE(u, ts, INTERVAL '2 s') AS u"


@pytest.mark.parametrize("query", [f"SELECT s.n, u.w FROM s {{}} u ON {NEAR}", f"SELECT s.n, u.w FROM {WINDOWS} ON {IN_WINDOWS}"])
@pytest.mark.parametrize("condition", ["FALSE", "(TRUE AND 'a' LIKE '__')"])
def test_a_condition_of_a_join_that_is_never_true_leaves_left_rows_alone(query, condition):
    """If all conditions were folded into one, the equality and the bound on the times would be lost."""
    left = run(plan_of(query.format("LEFT JOIN") + f" AND {condition}"))

    assert left.height == 2 * 40  # of both nodes
    assert left["w"].null_count() == left.height
    with pytest.raises(QueryError, match="no row can come"):
        plan_of(query.format("JOIN") + f" AND {condition}")


def test_left_rows_without_an_event_time_are_left_out_where_the_right_side_has_no_row_either():
    """They are left out where the right side has rows, too: see `IntervalJoin`."""
    times = pl.Series("ts", [None, 1_000_000], dtype=pl.Int64).cast(pl.Datetime("us"))
    rows = (
        pl.DataFrame([times, pl.Series("k", ["a", "b"])])
        .with_columns(v=1.0, n=pl.lit(1, pl.Int64), ok=True)
        .select("ts", "k", "v", "n", "ok")
    )
    empty_side = "(SELECT ts, k, w FROM u WHERE FALSE) AS u"

    answer = run(plan_of(f"SELECT s.k, u.w FROM s LEFT JOIN {empty_side} ON {NEAR}"), {"s": rows})

    assert answer.rows() == [("b", None)] * 2
