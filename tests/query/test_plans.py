"""Plans of queries: golden plans, pinning, pruning, sharing, rates."""

import msgspec
import pytest

from sbon.query.estimate import Rate, estimate
from sbon.query.link_bytes import Pace, batch_bytes, expected_pace, link_bytes_per_s
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.windowed import WindowParams
from sbon.query.plan import Plan
from sbon.query.planner import plan
from sbon.query.sql import CreateSink, SelectQuery, parse
from sbon.schema import ColumnType, Field
from tests.query_worlds import CATALOG, NODES, SOURCES, lines, make_catalog, plan_of

GOLDEN = {
    "SELECT * FROM s": [
        "0 a source s (datagen)",
        "1 c source s (datagen)",
        "2 b sink q (tail) <- 0 1",
    ],
    "SELECT k, v * 2 AS d FROM s WHERE v > 1 AND k = 'x'": [
        "0 a source s (datagen)",
        "1 a where k = 'x' and v > 1 select k, v * 2 <- 0",
        "2 c source s (datagen)",
        "3 c where k = 'x' and v > 1 select k, v * 2 <- 2",
        "4 b sink q (tail) of k, v * 2 as d <- 1 3",
    ],
    "SELECT window_start, region, count(*) AS n, avg(rtt_ms) FROM TUMBLE(sys.probes, ts, INTERVAL '10 s') "
    "WHERE region = 'eu' GROUP BY window_start, region HAVING count(*) > 3": [
        "0 a source sys.probes",
        "1 a select ts, region, rtt_ms <- 0",
        "2 c source sys.probes",
        "3 c select ts, region, rtt_ms <- 2",
        "4 - window 10 s by region: avg(rtt_ms), count(*) <- 1 3",
        "5 - where count(*) > 3 select window_start, region, avg(rtt_ms), count(*) <- 4",
        "6 b sink q (tail) of window_start, region, count(*) as n, avg(rtt_ms) <- 5",
    ],
    "SELECT s.k, v, w FROM s JOIN u ON s.k = u.k AND u.ts BETWEEN s.ts - INTERVAL '5 s' AND s.ts + INTERVAL '1 s' WHERE v > w AND n = 3": [
        "0 a source s (datagen)",
        "1 a where n = 3 select ts, k, v <- 0",
        "2 c source s (datagen)",
        "3 c where n = 3 select ts, k, v <- 2",
        "4 b source u (datagen)",
        "5 - join on k = k within -5 s to 1 s where v > w <- 1 3 4:1",
        "6 b sink q (tail) <- 5",
    ],
    "SELECT k FROM (SELECT k, v FROM s UNION ALL SELECT k, w FROM u) WHERE v > 1": [
        "0 a source s (datagen)",
        "1 a where v > 1 select k <- 0",
        "2 c source s (datagen)",
        "3 c where v > 1 select k <- 2",
        "4 b source u (datagen)",
        "5 b where w > 1 select k <- 4",
        "6 b sink q (tail) <- 1 3 5",
    ],
    # A condition on one side of an equality holds on the other too, so that both sides are one stream.
    "SELECT a.k, a.total, b.rows FROM per_key AS a JOIN per_key AS b ON a.k = b.k AND a.window_end = b.window_end WHERE a.k <> 'x'": [
        "0 a source s (datagen)",
        "1 a where k <> 'x' select ts, k <- 0",
        "2 c source s (datagen)",
        "3 c where k <> 'x' select ts, k <- 2",
        "4 - window 10 s by k: count(*) <- 1 3",
        "5 a where k <> 'x' select ts, k, v <- 0",
        "6 c where k <> 'x' select ts, k, v <- 2",
        "7 - window 10 s by k: sum(v) <- 5 6",
        "8 - join on k = k, window_end = window_end within 0 s to 0 s <- 4 7:1",
        "9 b sink q (tail) of k, sum(v) as total, count(*) as rows <- 8",
    ],
    "CREATE SINK out AS SELECT k FROM u WITH (connector = 'file', path = 'x', node = 'c')": [
        "0 b source u (datagen)",
        "1 b select k <- 0",
        "2 c sink out (file) <- 1",
    ],
}  # fmt: skip


@pytest.mark.parametrize("sql", GOLDEN)
def test_a_query_has_its_plan(sql: str) -> None:
    assert lines(plan_of(sql)) == GOLDEN[sql]


def test_operators_are_upstream_first_and_the_sink_is_last() -> None:
    for sql in GOLDEN:
        made = plan_of(sql)
        at = {operator.id: index for index, operator in enumerate(made.operators)}
        assert all(at[link.source] < at[link.target] for link in made.links)
        assert at[made.links[-1].target] == len(made.operators) - 1


def test_the_shortest_delay_bound_of_a_query_and_its_views_holds() -> None:
    catalog = make_catalog(
        SOURCES
        + """CREATE VIEW slow WITH (delay_bound = '2 s') AS SELECT ts, k FROM s;
        CREATE VIEW quick WITH (delay_bound = '300 ms') AS SELECT ts, k FROM slow;"""
    )

    def bound(sql: str) -> float | None:
        (statement,) = parse(sql)
        assert isinstance(statement, SelectQuery | CreateSink)
        return plan(statement, catalog, NODES, "b", "q").delay_bound_ms

    assert bound("SELECT k FROM s") is None
    assert bound("SELECT k FROM slow") == 2000.0
    assert bound("SELECT k FROM quick") == 300.0
    assert bound("SELECT k FROM fast UNION ALL SELECT k FROM slow") == 2000.0
    assert bound("CREATE SINK o FROM slow WITH (connector = 'discard', delay_bound = '1 s')") == 1000.0
    assert bound("CREATE SINK o FROM quick WITH (connector = 'discard', delay_bound = '1 s')") == 300.0


def test_the_least_of_the_latencies_that_a_query_and_its_views_accept_holds() -> None:
    catalog = make_catalog(
        SOURCES
        + """CREATE VIEW slow WITH (max_latency = '2 s', delay_bound = '90 ms') AS SELECT ts, k FROM s;
        CREATE VIEW quick WITH (max_latency = '300 ms') AS SELECT ts, k FROM slow;"""
    )

    def bounds(sql: str) -> tuple[float | None, float | None]:
        (statement,) = parse(sql)
        assert isinstance(statement, SelectQuery | CreateSink)
        made = plan(statement, catalog, NODES, "b", "q")
        return made.max_latency_ms, made.delay_bound_ms

    assert bounds("SELECT k FROM s") == (None, None)
    assert bounds("SELECT k FROM quick") == (300.0, 90.0)
    assert bounds("CREATE SINK o FROM slow WITH (connector = 'discard', max_latency = '1 s')") == (1000.0, 90.0)


def test_a_plan_travels() -> None:
    for sql in GOLDEN:
        made = plan_of(sql)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Plan) == made


def test_conditions_on_the_node_or_its_labels_prune_sources() -> None:
    def nodes_read(condition: str) -> list[str | None]:
        made = plan_of(f"SELECT rtt_ms FROM sys.probes WHERE {condition}")
        return [operator.pinned for operator in made.operators if isinstance(operator.params, SourceParams)]

    assert nodes_read("node = 'a'") == ["a"]
    assert nodes_read("node IN ('a', 'c') AND region <> 'us'") == ["a", "c"]
    assert nodes_read("region = 'us' OR rtt_ms > 5") == ["a", "b", "c"]
    assert nodes_read("_site = 'x'") == ["c"]
    assert nodes_read("_site IS NULL") == ["a", "b"]
    assert nodes_read("NOT (node LIKE 'a%') AND upper(region) = 'EU'") == ["c"]


def test_what_pruning_has_decided_is_not_asked_again_of_each_row() -> None:
    made = plan_of("SELECT rtt_ms FROM sys.probes WHERE (region = 'us' OR rtt_ms > 5) AND peer <> 'a'")
    predicates = {o.pinned: o.params.predicate for o in made.operators if isinstance(o.params, MapParams)}
    assert lines(made)[1] == "1 a where rtt_ms > 5 and peer <> 'a' select rtt_ms <- 0"
    assert lines(made)[3] == "3 b where peer <> 'a' select rtt_ms <- 2"
    assert len(predicates) == 3


def test_a_projection_that_widens_the_stream_waits_for_the_sink() -> None:
    made = plan_of("SELECT v, v + 1 AS a, v + 2 AS b, v + 3 AS c, v + 4 AS d, v + 5 AS e FROM s")
    assert [operator.pinned for operator in made.operators] == ["a", "c", "b", "b"]


def test_a_named_node_that_is_not_alive_is_left_out_and_told() -> None:
    (statement,) = parse("SELECT k FROM u UNION ALL SELECT k FROM s")
    assert isinstance(statement, SelectQuery)
    notes: list[str] = []
    made = plan(statement, CATALOG, {"a": NODES["a"]}, "a", "q", notes=notes)
    assert [operator.pinned for operator in made.operators] == ["a", "a", "a"]
    assert notes == ["source u: node b is not alive; planned without it"]


def test_inner_names_are_not_in_the_plan() -> None:
    one = plan_of("SELECT key, total FROM (SELECT k AS key, sum(v) AS total FROM TUMBLE(s, ts, INTERVAL '5 s') GROUP BY window_start, k)")
    other = plan_of("WITH x AS (SELECT ts AS t, k AS a, v AS b FROM s) SELECT a AS key, sum(b) AS total FROM TUMBLE(x, t, INTERVAL '5 s') "
                    "GROUP BY a, window_end")  # fmt: skip
    assert one.operators == other.operators


def test_the_source_and_its_node_are_in_the_signature() -> None:
    signatures = [operator.signature for operator in plan_of("SELECT rtt_ms FROM sys.probes").operators]
    assert len(set(signatures)) == len(signatures) == 7
    again = [operator.signature for operator in plan_of("SELECT rtt_ms FROM sys.probes", query="other").operators]
    assert signatures == again


def test_other_constants_are_other_signatures_and_another_order_of_columns_is_not() -> None:
    def window(sql: str) -> str:
        return next(operator.signature for operator in plan_of(sql).operators if isinstance(operator.params, WindowParams))

    base = "SELECT k, count(*) FROM TUMBLE(s, ts, INTERVAL '5 s') WHERE v > 1 GROUP BY window_start, k"
    assert window(base) == window(base.replace("5 s", "5000 ms"))
    for old, new in (
        ("5 s", "6 s"),
        ("v > 1", "v > 2"),
        ("v > 1", "v >= 1"),
        ("count(*)", "count(v)"),
        ("TUMBLE(s, ts,", "HOP(s, ts, INTERVAL '1 s',"),
    ):
        assert window(base) != window(base.replace(old, new))
    maps = [plan_of(f"SELECT {columns} FROM u").operators[1] for columns in ("k, w", "w, k", "w AS x, k AS y, k AS z", "w")]
    assert len({operator.signature for operator in maps[:3]}) == 1
    assert maps[0].signature != maps[3].signature


def test_the_sink_gives_the_columns_their_authors_names_and_order() -> None:
    made = plan_of("SELECT w AS x, k, k AS again FROM u")
    assert made.operators[1].schema == (Field("k", ColumnType.TEXT), Field("w", ColumnType.FLOAT))
    sink = made.operators[-1]
    assert sink.schema == (Field("x", ColumnType.FLOAT), Field("k", ColumnType.TEXT), Field("again", ColumnType.TEXT))
    assert isinstance(sink.params, SinkParams)
    assert sink.params.columns == (("x", "w"), ("k", "k"), ("again", "k"))


def test_a_column_with_a_long_text_has_a_short_name() -> None:
    value = " || ".join(f"k || '{number}'" for number in range(30))
    made = plan_of(f"SELECT {value} AS long, {value} || 'x' AS longer FROM u")
    names = [column.name for column in made.operators[1].schema]
    assert len(set(names)) == 2
    assert all(len(name) <= 80 for name in names)
    assert [column.name for column in made.operators[-1].schema] == ["long", "longer"]


def rates(made: Plan) -> list[tuple[float, float]]:
    return [(round(link.rate_rows_per_s, 3), round(link.rate_bytes_per_s, 3)) for link in made.links]


def test_rates_follow_from_declared_rates_and_the_form_of_conditions() -> None:
    made = plan_of("SELECT k, count(*) AS c FROM TUMBLE(s, ts, INTERVAL '10 s') WHERE n = 3 GROUP BY window_end, k")
    # 100 rows/s in 100 batches from each node; a tenth of them, ts and k only; 10 keys every 10 s; the sink gets k and c.
    source, select, window, projection = made.operators[0], made.operators[1], made.operators[4], made.operators[5]
    filtered = expected_pace(select.params, 10.0, [Pace(100.0, 0.0)])
    closed = expected_pace(window.params, 1.0, [filtered, filtered])
    narrowed = expected_pace(projection.params, 1.0, [closed])
    assert rates(made) == [
        *2 * [(100.0, 100 * batch_bytes(source.schema, 1))],
        *2 * [(10.0, round(link_bytes_per_s(select.schema, 10.0, filtered), 3))],
        (1.0, round(link_bytes_per_s(window.schema, 1.0, closed), 3)),
        (1.0, round(link_bytes_per_s(projection.schema, 1.0, narrowed), 3)),
    ]
    assert sum(closed) == sum(narrowed) == pytest.approx(0.1)
    assert [round(operator.selectivity, 3) for operator in made.operators] == [1.0, 0.1, 1.0, 0.1, 0.05, 1.0, 1.0]


def test_measured_rates_take_the_place_of_expected_ones() -> None:
    made = plan_of("SELECT k, count(*) AS c FROM TUMBLE(u, ts, INTERVAL '10 s') GROUP BY window_end, k")
    source, select, window, *_ = made.operators
    measured = {source.signature: Rate(50.0, 5_000.0), window.signature: Rate(20.0)}
    again = estimate(made, measured)
    assert rates(again) == [(50.0, 5_000.0), (50.0, 16_039.563), (20.0, 843.3), (20.0, 513.7)]
    assert again.operators[2].selectivity == 0.4
    assert select.signature not in measured


def test_known_shares_of_rows_take_the_place_of_the_rules() -> None:
    made = plan_of("SELECT k, w FROM u WHERE w > 2")
    source, select, *_ = made.operators
    again = estimate(made, shares={select.signature: 0.02})
    assert [rate for rate, _ in rates(again)][:2] == [10.0, 0.2]
    assert (
        estimate(made, {source.signature: Rate(50.0), select.signature: Rate(5.0)}, {select.signature: 0.02}).operators[1].selectivity
        == 0.1
    )


@pytest.mark.parametrize(
    ("bound", "rate", "asked"),
    [(", max_latency = '1 s'", "", True), (", max_latency = '1 s'", ", estimated_rows_per_second = 5", False), ("", "", False)],
)
def test_a_latency_bound_over_a_source_without_a_rate_asks_for_one(bound: str, rate: str, asked: bool) -> None:
    catalog = make_catalog(f"CREATE SOURCE far (k TEXT) WITH (connector = 'tcp', port = 7000, nodes = 'b'{rate})")
    (statement,) = parse(f"CREATE SINK out WITH (connector = 'discard'{bound}) AS SELECT k FROM far")
    assert isinstance(statement, CreateSink)
    notes: list[str] = []

    plan(statement, catalog, NODES, "a", "q", notes=notes)

    told = "the predicted latency assumes 100 rows/s of source far; declare estimated_rows_per_second in CREATE SOURCE"
    assert notes == ([told] if asked else [])


def test_a_declared_rate_is_each_nodes() -> None:
    catalog_rate = plan_of("SELECT * FROM u").links[0].rate_rows_per_s
    assert catalog_rate == 10.0
