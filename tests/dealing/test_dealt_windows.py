"""Queries whose windows are dealt to several instances: plans, copies, refusals, and parameters that operators accept."""

import msgspec
import numpy as np
import polars as pl
import pytest

from sbon.errors import QueryError, RemoteProtocolError
from sbon.operators.merger import Merger
from sbon.operators.registry import build
from sbon.operators.splitter import in_windows_of
from sbon.query.instances import sets_of
from sbon.query.limits import LimitError
from sbon.query.params.matched import MatchParams
from sbon.query.params.streams import ExchangeParams, MergeParams, Turns, WindowChoice, WindowPart
from sbon.query.plan import Part
from sbon.watermarks import WATERMARK_END
from tests.query_worlds import lines, make_catalog, plan_of, run

MATCH = (
    "SELECT began, found, number FROM s MATCH_RECOGNIZE ("
    "ORDER BY ts MEASURES FIRST(a.v) AS began, COUNT(*) AS found, MATCH_NUMBER() AS number "
    "PATTERN (a b+) WITHIN INTERVAL '6 seconds' DEFINE a AS v > 0, b AS v > a.v)"
)
EPISODE = "SELECT episode, k, v FROM EPISODE(s, ts, opens => v > 1, closes => v > 1 AND k = opening.k, within => INTERVAL '6 seconds') AS e"
QUERIES = {
    "match": MATCH,
    "to the next row": MATCH.replace("PATTERN", "AFTER MATCH SKIP TO NEXT ROW PATTERN"),
    "to the last of a variable": MATCH.replace("PATTERN", "AFTER MATCH SKIP TO LAST b PATTERN"),
    "to its first": MATCH.replace("PATTERN", "AFTER MATCH SKIP TO FIRST b PATTERN").replace("v > a.v", "v > -5"),
    "all rows": MATCH.replace("PATTERN", "ALL ROWS PER MATCH PATTERN"),
    "episode": EPISODE,
    "episodes": "SELECT episode, COUNT(*) AS n, MAX(v) AS v FROM" + EPISODE.split("FROM")[1] + " GROUP BY episode",
}
WINDOW = "SELECT window_end, k, sum(v) AS total FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY window_end, k"
SPLIT_AT = Turns("ts", 10, 6)


def sink(select: str, instances: int | str, more: str = "", dealing: str = "window") -> str:
    said = f", instances = {instances}, dealing = '{dealing}'{more}" if instances != 1 else ""
    return f"CREATE SINK o AS {select} WITH (connector = 'file', path = 'o.csv'{said})"


def test_each_branch_is_split_where_it_is_and_matches_are_merged() -> None:
    assert lines(plan_of(sink(MATCH, 3))) == [
        "0 a source s (datagen)",
        "1 a select ts, v <- 0",
        "2 c source s (datagen)",
        "3 c select ts, v <- 2",
        "4 a splitter of windows of 6 s to 3 instances, in turns of 3 s <- 1",
        "5 c splitter of windows of 6 s to 3 instances, in turns of 3 s <- 3",
        "6 - match a b+ within 6 s <- 4 5",
        "7 - match a b+ within 6 s <- 4 5",
        "8 - match a b+ within 6 s <- 4 5",
        "9 - merger of matches by their first rows <- 6 7 8",
        "10 b sink o (file) of measure 1 as began, measure 2 as found, measure 3 as number <- 9",
    ]


@pytest.mark.parametrize(("more", "copies"), [("", 3.0), (", turn = '12 s'", 1.5), (", turn = '1 ms'", 3.0)])
def test_links_from_a_splitter_are_expected_to_carry_the_copies(more: str, copies: float) -> None:
    plan = plan_of(sink(MATCH, 3, more))
    links = [link for link in plan.links if link.source == "q.4"]

    assert [(link.part.index, link.part.of) for link in links if link.part is not None] == [(0, 3), (1, 3), (2, 3)]
    whole = next(link for link in plan.links if link.target == "q.4")
    assert sum(link.rate_rows_per_s for link in links) == pytest.approx(copies * whole.rate_rows_per_s, rel=1e-5)
    assert sum(link.rate_bytes_per_s for link in links) == pytest.approx(copies * whole.rate_bytes_per_s, rel=1e-5)


@pytest.mark.parametrize("query", QUERIES)
def test_answers_are_those_of_one_instance_in_its_order(query: str) -> None:
    one = run(plan_of(sink(QUERIES[query], 1)))

    assert one.height > 2
    for instances, more in ((2, ""), (3, ", turn = '1 s'"), (3, ", turn = '20 s'"), (8, "")):
        assert run(plan_of(sink(QUERIES[query], instances, more))).equals(one)


def test_explain_tells_the_turns_and_the_copies() -> None:
    (one,) = sets_of(plan_of(sink(MATCH, 2, ", turn = '12 s'")))

    assert one.text(["a", "b"]) == "match: 2 by windows of 6 s in turns of 12 s, 1.50 copies of a row (a, b)"


def signatures(more: str, kind: type) -> set[str]:
    return {one.signature for one in plan_of(sink(MATCH, 3, more)).operators if isinstance(one.params, kind)}


@pytest.mark.parametrize(("kind", "number"), [(ExchangeParams, 2), (MatchParams, 3), (MergeParams, 1)])
def test_signatures_tell_turns_apart(kind: type, number: int) -> None:
    turns = [signatures(more, kind) for more in ("", ", turn = '12 s'")]

    assert [len(one) for one in turns] == [number, number]
    assert turns[0].isdisjoint(turns[1])


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("ORDER", "PARTITION BY k ORDER", "with PARTITION BY"),
        ("b+) WITHIN INTERVAL '6 seconds'", "b)", "without WITHIN"),
        ("(a b+)", "((a b+)?)", "that may match no row"),
        ("v > a.v", "v > PREV(v)", "that reads rows outside its match"),
        ("v > a.v", "v > NEXT(v)", "that reads rows outside its match"),
        ("v > a.v", "v > MATCH_NUMBER()", "that computes with MATCH_NUMBER()"),
        ("MATCH_NUMBER()", "MATCH_NUMBER() + 1", "that computes with MATCH_NUMBER()"),
        ("PATTERN", "ONE ROW PER MATCH SHOW TIMEOUT MATCHES PATTERN", "that gives more than matches"),
        ("PATTERN", "ALL ROWS PER MATCH WITH UNMATCHED ROWS PATTERN", "that gives more than matches"),
        ("PATTERN (a b+)", "ALL ROWS PER MATCH PATTERN (a {- b+ -})", "that leaves rows of a match out"),
    ],
)
def test_a_pattern_whose_windows_depend_on_others_is_refused(old: str, new: str, why: str) -> None:
    assert old in MATCH
    with pytest.raises(QueryError) as refused:
        plan_of(sink(MATCH.replace(old, new, 1), 2))

    assert refused.value.message == f"dealing = 'window' does not support a pattern {why}"
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (sink("SELECT k FROM s", 2), "dealing = 'window', but the query has no pattern whose windows could be dealt"),
        (sink(WINDOW, 2), "dealing = 'window', but the query has no pattern whose windows could be dealt"),
        (sink(MATCH, 2, dealing="row"), "dealing is 'row', expected key or window"),
        (sink(MATCH, 2, ", turn = '0 s'"), "turn is '0 s', expected more than 0"),
        (sink(MATCH, 2, ", turn = '1 s'", dealing="key"), "turn, but no windows are dealt"),
        (f"CREATE VIEW w WITH (dealing = 'window') AS {MATCH}", "dealing = 'window' needs a number of instances, at least 2, or 'auto'"),
    ],
)
def test_dealing_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(QueryError) as refused:
        plan_of(text)

    assert refused.value.message == message


def test_a_view_deals_windows_for_its_readers() -> None:
    catalog = make_catalog(
        "CREATE SOURCE s (ts TIMESTAMP, k TEXT, v DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'b');"
        f"CREATE VIEW w WITH (instances = 3, dealing = 'window', turn = '12 s') AS {MATCH};"
    )
    said = sets_of(plan_of("SELECT began, found FROM w", catalog))
    read = "SELECT began, found FROM w"

    assert [one.keys for one in said] == [("windows of 6 s in turns of 12 s, 1.50 copies of a row",)]
    assert sets_of(plan_of(sink(read, 1).replace("csv'", "csv', instances = 1"), catalog)) == []
    (chosen,) = plan_of(sink(read, 1).replace("csv'", "csv', instances = 'auto'"), catalog).sizings
    assert chosen.turn_us == 12_000_000


def test_a_row_goes_to_the_instances_that_have_windows_open_for_it() -> None:
    times = np.array([-1, 0, 5, 9, 10, 14, 15, 24, 25])

    assert in_windows_of(times, SPLIT_AT, 3).astype(int).tolist() == [
        [0, 1, 1, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 1, 0],
        [1, 1, 0, 0, 0, 0, 0, 1, 1],
    ]


def test_a_row_without_an_event_time_goes_to_one_instance() -> None:
    splitter = build(ExchangeParams((), 2, SPLIT_AT))
    frame = pl.DataFrame({"ts": [None, 12], "v": [1, 2]}, schema={"ts": pl.Datetime("us"), "v": pl.Int64})

    assert [part["v"].to_list() for part in splitter.process(0, frame)] == [[1, 2], [2]]
    with pytest.raises(RemoteProtocolError, match="event time"):
        splitter.process(0, frame.select("v"))
    with pytest.raises(RemoteProtocolError, match="without state"):
        splitter.restore(b"x")


MERGE = MergeParams("at", ("row",), ("at", "row", "to", "to row"), choice=WindowChoice("row", "to", "to row", ("n",)))


def matches(*rows: tuple[int, int, int, int, int]) -> pl.DataFrame:
    """Returns matches: event time and number of the first row and of the row where the next match may begin, and a value."""
    frame = pl.DataFrame(rows, schema=["at", "row", "to", "to row", "v"], orient="row")
    return frame.with_columns(pl.col("at", "to").cast(pl.Datetime("us")), pl.lit(1, pl.Int64).alias("n"))


def test_a_merger_waits_for_earlier_starts_and_skips_what_lies_in_a_match() -> None:
    merger = Merger(MERGE, MERGE.choice or WindowChoice("", "", ""))
    merger.process(0, matches((7, 0, 8, 0, 3), (7, 1, 9, 1, 4)))
    merger.process(0, matches((5, 0, 7, 1, 1), (6, 0, 30, 0, 2)))

    assert not list(merger.advance(5))
    (first,) = merger.advance(8)
    assert first.rows() == [(1, 1), (4, 2)]
    other = build(MERGE)
    other.restore(merger.snapshot())
    other.process(0, matches((9, 0, 12, 0, 5), (9, 1, 12, 0, 6), (9, 1, 12, 0, 7)))
    (rest,) = other.advance(WATERMARK_END)
    assert rest.rows() == [(6, 3), (7, 3)]


def test_a_merger_refuses_columns_that_are_not_there() -> None:
    with pytest.raises(RemoteProtocolError, match="'to row' of a merger"):
        build(MERGE).process(0, matches((7, 0, 8, 0, 3)).with_columns(pl.lit("x").alias("to row")))


def test_parts_and_turns_that_make_no_sense_are_refused() -> None:
    for made in (
        lambda: Part(0, 2, 0.5),
        lambda: Part(0, 2, 2.5),
        lambda: Turns("ts", 0, 5),
        lambda: WindowPart(5, 2, 2, ("a", "b", "c", "d")),
        lambda: WindowPart(5, 0, 2, ("a", "b")),
        lambda: ExchangeParams((), 2),
        lambda: ExchangeParams((), 1, SPLIT_AT),
    ):
        with pytest.raises(LimitError):
            made()


@pytest.mark.parametrize(
    "change", [{"within_us": None}, {"partition": ("k",)}, {"unmatched": True}, {"timeouts": True}, {"known": ("x", "y")}], ids=str
)
def test_a_pattern_that_no_planner_deals_is_refused(change: dict[str, object]) -> None:
    params = next(one.params for one in plan_of(sink(MATCH, 2)).operators if isinstance(one.params, MatchParams))

    build(params)
    with pytest.raises(RemoteProtocolError, match="windows dealt to instances"):
        build(msgspec.structs.replace(params, **change))  # type: ignore[arg-type]
