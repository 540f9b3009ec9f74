"""Queries with several instances of operators: plans, signatures, refusals, and links that carry a part of the rows."""

import polars as pl
import pytest

from sbon.errors import LocalProtocolError, QueryError
from sbon.execution.rows import Rows
from sbon.operators.merge import Merge
from sbon.operators.registry import build
from sbon.query.instances import sets_of
from sbon.query.limits import LimitError
from sbon.query.params.matched import MatchParams
from sbon.query.params.streams import MergeParams
from sbon.query.params.windowed import WindowParams
from sbon.query.plan import INCOMPLETE, LEAVE_OUT, Part, after_crash
from sbon.schema import ColumnType, Field
from sbon.watermarks import WATERMARK_END
from tests.query_worlds import CATALOG, lines, make_catalog, plan_of, run

WINDOW = "SELECT window_end, k, sum(v) AS total, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY window_end, k"
JOIN = (
    "SELECT x.k, x.v, y.w FROM TUMBLE(s, ts, INTERVAL '10 s') x JOIN TUMBLE(u, ts, INTERVAL '10 s') y "
    "ON x.k = y.k AND x.window_start = y.window_start"
)
FIRST = "SELECT DISTINCT ON (window_start, k) * FROM TUMBLE(s, ts, INTERVAL '10 s')"
MATCH = (
    "SELECT k, began, n FROM s MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES FIRST(a.v) AS began, COUNT(*) AS n, "
    "MATCH_ROWTIME() AS at PATTERN (a b+) WITHIN INTERVAL '5 seconds' DEFINE a AS v > 0, b AS v > a.v)"
)
ENDLESS = MATCH.replace("WITHIN INTERVAL '5 seconds'", "").replace("SELECT k,", "SELECT at, k,")
QUERIES = {"window": WINDOW, "session": WINDOW.replace("TUMBLE", "SESSION"), "join": JOIN, "first rows": FIRST, "match": MATCH}

AFTER_CRASH_OPTIONS = ("after_crash = 'leave_out'", "after_crash = 'incomplete'")


def sink(select: str, instances: int | str) -> str:
    return f"CREATE SINK o AS {select} WITH (connector = 'file', path = 'o.csv', instances = {instances})"


def test_each_branch_is_dealt_where_it_is_and_answers_are_merged() -> None:
    assert lines(plan_of(sink(WINDOW, 2))) == [
        "0 a source s (datagen)",
        "1 a select ts, k, v <- 0",
        "2 c source s (datagen)",
        "3 c select ts, k, v <- 2",
        "4 a exchange by k to 2 instances <- 1",
        "5 c exchange by k to 2 instances <- 3",
        "6 - window 10 s by k: count(*), sum(v) <- 4 5",
        "7 - window 10 s by k: count(*), sum(v) <- 4 5",
        "8 - merge by window_end, window_start, k <- 6 7",
        "9 - select window_end, k, count(*), sum(v) <- 8",
        "10 b sink o (file) of window_end, k, sum(v) as total, count(*) as n <- 9",
    ]


def test_links_from_an_exchange_have_a_part_and_are_expected_to_carry_it() -> None:
    plan = plan_of(sink(WINDOW, 4))
    parts = [(link.part, link.rate_rows_per_s) for link in plan.links if link.source == "q.4"]

    assert parts == [(Part(number, 4), 25.0) for number in range(4)]
    assert all(link.part is None for link in plan.links if link.source not in ("q.4", "q.5"))
    one = {link.target: link.rate_rows_per_s for link in plan_of(sink(WINDOW, 1)).links}
    merged = next(link.rate_rows_per_s for link in plan.links if link.source == "q.10")
    assert merged == one["q.5"]


@pytest.mark.parametrize("query", QUERIES)
def test_answers_are_those_of_one_instance_in_its_order(query: str) -> None:
    one = run(plan_of(sink(QUERIES[query], 1)))

    assert one.height > 2
    for instances in (2, 3, 8):
        assert run(plan_of(sink(QUERIES[query], instances))).equals(one)


@pytest.mark.parametrize("query", QUERIES)
def test_signatures_tell_parts_and_numbers_of_instances_apart(query: str) -> None:
    two, again, three = (plan_of(sink(QUERIES[query], n), query=name) for n, name in ((2, "q"), (2, "r"), (3, "q")))
    signed = [{spec.signature for spec in plan.operators if spec.pinned is None} for plan in (two, again, three)]

    assert len({spec.signature for spec in two.operators}) == len(two.operators)
    assert signed[0] == signed[1]
    exchanged = [{spec.signature for spec in plan.operators if "Exchange" in type(spec.params).__name__} for plan in (two, again, three)]
    assert exchanged[0] == exchanged[1]
    assert exchanged[0].isdisjoint(exchanged[2])


def test_windows_that_may_be_answered_without_rows_are_not_shared_with_others() -> None:
    plain, incomplete = (plan_of(sink(WINDOW, 1).replace("instances = 1", option)) for option in AFTER_CRASH_OPTIONS)
    windows = [[one for one in plan.operators if isinstance(one.params, WindowParams)] for plan in (plain, incomplete)]
    assert [[one.params.omits_begun for one in found] for found in windows] == [[True], [False]]
    assert windows[0][0].signature != windows[1][0].signature
    catalog = make_catalog(
        "CREATE SOURCE s (ts TIMESTAMP, k TEXT, v DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'b');"
        f"CREATE VIEW w WITH (after_crash = 'incomplete') AS {WINDOW};"
    )
    said = [sink("SELECT * FROM w", 1).replace("instances = 1", option) for option in AFTER_CRASH_OPTIONS]
    assert [after_crash(plan_of(sql, catalog).operators) for sql in ("SELECT * FROM w", *said)] == [INCOMPLETE, LEAVE_OUT, INCOMPLETE]


def test_a_view_says_it_for_queries_that_do_not() -> None:
    catalog = make_catalog(
        "CREATE SOURCE s (ts TIMESTAMP, k TEXT, v DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'b');"
        f"CREATE VIEW w WITH (instances = 3) AS {WINDOW};"
    )
    made = [plan_of(sql, catalog) for sql in ("SELECT * FROM w", sink("SELECT * FROM w", 2), sink("SELECT * FROM w", 1))]

    assert [max((link.part.of for link in plan.links if link.part is not None), default=1) for plan in made] == [3, 2, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (sink(WINDOW, 0), "instances is '0', expected a whole number from 1 to 64"),
        (sink(WINDOW, 65), "instances is '65', expected a whole number from 1 to 64"),
        (sink(WINDOW, -2), "instances is '-2', expected a whole number from 1 to 64"),
        (sink(WINDOW, "'many'"), "instances is 'many', expected a whole number from 1 to 64"),
        (sink(WINDOW, "1, after_crash = 'often'"), "after_crash is 'often', expected leave_out or incomplete"),
        (
            sink("SELECT k FROM s", "1, after_crash = 'incomplete'"),
            "after_crash, but the query has no windows, sessions, joins or OVER",
        ),
        (sink("SELECT k FROM s", 2), "2 instances, but no operator of the query has keys by which its rows can be dealt"),
        (sink(WINDOW.replace(", k", ""), 2), "2 instances, but no operator of the query has keys by which its rows can be dealt"),
        (
            sink(MATCH.replace("WITHIN INTERVAL '5 seconds'", "").replace("SELECT k,", "SELECT at, k,"), 2),
            "no operator of the query has keys",
        ),
    ],
)
def test_instances_that_make_no_sense_are_refused_at_their_place(text: str, message: str) -> None:
    with pytest.raises(QueryError) as refused:
        plan_of(text, CATALOG)

    assert message in refused.value.message
    assert text[refused.value.column - 1 :].startswith(("instances", "after_crash"))


def test_a_part_that_is_not_there_is_refused() -> None:
    for index, of in ((0, 1), (2, 2), (-1, 2), (0, 65)):
        with pytest.raises(LimitError):
            Part(index, of)


SCHEMA = (Field("k", ColumnType.INT),)


def test_a_link_carries_its_part_of_dealt_rows_and_nothing_where_that_is_empty() -> None:
    rows = Rows.dealt([pl.DataFrame({"k": [1, 2]}), pl.DataFrame({"k": []}, schema={"k": pl.Int64()})], SCHEMA)

    assert rows.rows == 2
    first = rows.of_part(Part(0, 2))
    assert first is not None
    assert first.frame()["k"].to_list() == [1, 2]
    assert rows.of_part(Part(1, 2)) is None
    whole = Rows.of_frame(pl.DataFrame({"k": [1]}), SCHEMA)
    assert whole.of_part(None) is whole
    for wrong, part in ((rows, None), (rows, Part(0, 3)), (whole, Part(0, 2))):
        with pytest.raises(LocalProtocolError, match="part"):
            wrong.of_part(part)
    with pytest.raises(LocalProtocolError, match="no one frame"):
        rows.frame()


def test_a_merge_waits_until_all_have_passed_a_time_and_leaves_its_own_columns_out() -> None:
    merge = Merge(MergeParams("at", ("k",), ("at",), 3))
    for times, keys in (([5, 9], [2, 1]), ([5, 7], [1, 1])):
        frame = pl.DataFrame({"at": times, "k": keys, "v": [10 * t + k for t, k in zip(times, keys, strict=True)]})
        assert not merge.process(0, frame.with_columns(pl.col("at").cast(pl.Datetime("us"))))

    assert not list(merge.advance(5))
    (first,) = merge.advance(9)
    (rest,) = merge.advance(WATERMARK_END)
    assert first.rows() == [(1, 51), (2, 52), (1, 71)]
    assert rest.rows() == [(1, 91)]
    assert (merge.output_watermark(9), merge.output_watermark(WATERMARK_END)) == (6, WATERMARK_END)


def test_a_row_that_waits_for_its_match_holds_no_other_instance_back() -> None:
    (spec, *_) = [one for one in plan_of(sink(MATCH, 2)).operators if isinstance(one.params, MatchParams)]
    instance = build(spec.params)
    rows = pl.DataFrame({"ts": [1_000_000], "k": ["a"], "v": [1.0]}, schema_overrides={"ts": pl.Datetime("us")})
    instance.process(0, rows)
    instance.advance(3_000_000)

    assert instance.output_watermark(3_000_000) == 3_000_000


def test_explain_tells_the_instances_of_each_operator() -> None:
    plan = plan_of(sink(JOIN, 3))
    (one,) = sets_of(plan)
    kinds = {spec.id: type(spec.params).__name__ for spec in plan.operators}

    assert (one.kind, one.keys) == ("window_join", ("k",))
    assert [kinds[operator] for operator in one.operators] == ["WindowJoinParams"] * 3
    assert sets_of(plan_of(sink(JOIN, 1))) == []
