"""MATCH_RECOGNIZE equals a row-wise twin that tries all ways, for any batches and watermarks, wherever a snapshot falls."""

import re
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from statistics import median, pvariance
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.errors import QueryError
from sbon.operators.frames import arranged
from sbon.operators.match import choice, conditions, grown, labels, log, matcher, operator, program, scan, sequential, starts, store, trials
from sbon.operators.operator import Operator
from sbon.operators.registry import build
from sbon.query.params.matched import MatchParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.watermarks import WATERMARK_END
from tests.examples import examples
from tests.operators.match_twin import Here, Query, Row, answers
from tests.query_worlds import plan_of

NAMES = ("a", "b", "c")


def less(one: Any, other: Any) -> bool | None:
    return None if one is None or other is None else one < other


def either(one: Any, other: Any) -> bool | None:
    return True if one is True or other is True else None if one is None or other is None else False


CONDITIONS: list[tuple[str, Any]] = [
    ("v > 1", lambda here: less(1, here.value(None))),
    ("v < 2", lambda here: less(here.value(None), 2)),
    ("ok", lambda here: here.rows[here.taken[-1][0]].ok),
    ("v > PREV(v)", lambda here: less(here.value(None, shift=-1), here.value(None))),
    ("v <= NEXT(v)", lambda here: (lambda more: None if more is None else not more)(less(here.value(None, shift=1), here.value(None)))),
    ("PREV(v, 2) IS NULL", lambda here: here.value(None, shift=-2) is None),
    ("v > LAST(a.v)", lambda here: less(here.value("a"), here.value(None))),
    ("v > FIRST(v)", lambda here: less(here.value(None, first=True), here.value(None))),
    ("LAST(v, 1) IS NULL OR v >= LAST(v, 1)", lambda here: either(here.value(None, skip=1) is None, at_least(here))),
    ("COUNT(*) < 3", lambda here: len(here.taken) < 3),
    ("COUNT(a.*) < 3 AND v > 0", lambda here: both(len(here.places("a")) < 3, less(0, here.value(None)))),
    ("SUM(a.v) < 5", lambda here: less(sum(here.values("a")), 5) if here.values("a") else None),
    ("AVG(v) > 1", lambda here: less(1, sum(here.values(None)) / len(here.values(None))) if here.values(None) else None),
    ("MAX(v) < 4", lambda here: less(max(here.values(None), default=None), 4)),
    ("LAST(CLASSIFIER(), 1) = 'a'", lambda here: None if len(here.taken) < 2 else here.taken[-2][1] == "a"),
    ("PREV(CLASSIFIER(), 2) = 'a'", lambda here: None if len(here.taken) < 3 else here.taken[-3][1] == "a"),
    ("PREV(CLASSIFIER(a)) = 'b'", lambda here: same(here.label("a", shift=-1), "b")),
    ("NEXT(FIRST(CLASSIFIER(a)), 1) = 'b'", lambda here: same(here.label("a", first=True, shift=1), "b")),
    ("NEXT(LAST(CLASSIFIER(a), 1)) = 'a'", lambda here: same(here.label("a", skip=1, shift=1), "a")),
    ("CLASSIFIER() = 'a'", lambda here: here.taken[-1][1] == "a"),
    ("MATCH_NUMBER() < 3", lambda here: here.number < 3),
    ("PREV(FIRST(a.v)) > 0", lambda here: less(0, here.value("a", first=True, shift=-1))),
    ("v * 2 - 1 > LAST(a.v, 1)", lambda here: less(here.value("a", skip=1), twice(here.value(None)))),
    ("ABS(v) > ABS(LAST(a.v))", lambda here: less(size(here.value("a")), size(here.value(None)))),
    ("SUM(1) < 4", lambda here: len(here.taken) < 4),
    ("COUNT_IF(a.v > 1) < 2", lambda here: sum(value > 1 for value in here.values("a")) < 2),
    ("COUNT_IF(CLASSIFIER() = 'a') < 3 AND MAX(CLASSIFIER()) < 'c'", lambda here: len(here.places("a")) < 3 and not here.places("c")),
    ("COUNT(DISTINCT v) < 3", lambda here: len(set(here.values(None))) < 3),
    ("NOT BOOL_OR(ok) OR ARG_MAX(n, v) < n", lambda here: either(opposite(any_true(here)), less(of_greatest(here, None), here_n(here)))),
]


def at_least(here: Here) -> bool | None:
    below = less(here.value(None), here.value(None, skip=1))
    return None if below is None else not below


def both(one: bool | None, other: bool | None) -> bool | None:
    return False if one is False or other is False else None if one is None or other is None else True


def twice(value: float | None) -> float | None:
    return None if value is None else value * 2 - 1


def size(value: float | None) -> float | None:
    return None if value is None else abs(value)


def same(one: Any, other: Any) -> bool | None:
    return None if one is None or other is None else one == other


def opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def any_true(here: Here) -> bool | None:
    given = [row.ok for row in here.kept(None) if row.ok is not None]
    return any(given) if given else None


def here_n(here: Here) -> int:
    return here.rows[here.taken[-1][0]].n


def of_greatest(here: Here, name: str | None, *, final: bool = False) -> int | None:
    """Returns n of the row with the greatest v; of equal rows the greatest n."""
    return max(((row.v, row.n) for row in here.kept(name, final=final) if row.v is not None), default=(None, None))[1]


def texts(here: Here, name: str | None, between: str) -> str | None:
    return between.join(str(row.n) for row in here.kept(name)) or None


MEASURES: list[tuple[str, Any]] = [
    ("a.v", lambda here: here.value("a")),
    ("FIRST(b.v)", lambda here: here.value("b", first=True)),
    ("LAST(v, 1)", lambda here: here.value(None, skip=1)),
    ("COUNT(*)", lambda here: len(here.taken)),
    ("COUNT(a.*)", lambda here: len(here.places("a"))),
    ("COUNT(b.v)", lambda here: len(here.values("b"))),
    ("SUM(b.v)", lambda here: sum(here.values("b")) if here.values("b") else None),
    ("AVG(v)", lambda here: sum(here.values(None)) / len(here.values(None)) if here.values(None) else None),
    ("MIN(u.v)", lambda here: min(here.values("u"), default=None)),
    ("FINAL COUNT(*)", lambda here: len(here.whole)),
    ("FINAL LAST(v)", lambda here: here.value(None, final=True)),
    ("PREV(v)", lambda here: here.value(None, shift=-1)),
    ("NEXT(v, 2)", lambda here: here.value(None, shift=2)),
    ("PREV(ts) IS NULL", lambda here: not here.taken or here.taken[-1][0] == 0),
    ("PREV(FIRST(a.v), 1)", lambda here: here.value("a", first=True, shift=-1)),
    ("CLASSIFIER()", lambda here: here.label(None)),
    ("FIRST(CLASSIFIER(u))", lambda here: here.label("u", first=True)),
    ("PREV(CLASSIFIER())", lambda here: here.label(None, shift=-1)),
    ("MATCH_NUMBER()", lambda here: here.number),
    ("COALESCE(LAST(a.v), -1.0) + 1", lambda here: (-1.0 if here.value("a") is None else here.value("a")) + 1),
    ("7", lambda here: 7),
    ("SUM(2)", lambda here: 2 * len(here.taken) or None),
    ("PREV(FINAL LAST(v))", lambda here: here.value(None, shift=-1, final=True)),
    ("NEXT(FINAL LAST(u.v, 1), 2)", lambda here: here.value("u", skip=1, shift=2, final=True)),
    ("COUNT(DISTINCT b.v)", lambda here: len(set(here.values("b")))),
    ("FINAL ARG_MAX(b.n, b.v)", lambda here: of_greatest(here, "b", final=True)),
    ("BOOL_OR(ok)", any_true),
    ("COUNT(*) FILTER (WHERE v > 1)", lambda here: sum(value > 1 for value in here.values(None))),
    (
        "SUM(b.v) FILTER (WHERE b.ok)",
        lambda here: sum(given) if (given := [r.v for r in here.kept("b") if r.ok and r.v is not None]) else None,
    ),
    ("STRING_AGG(n, '-')", lambda here: texts(here, None, "-")),
    ("FINAL VAR_POP(u.v)", lambda here: pvariance(given) if (given := here.values("u", final=True)) else None),
    ("STRING_AGG(CLASSIFIER(u), '')", lambda here: "".join(label for _, label, _ in here.taken if label in here.subsets["u"]) or None),
    ("MIN(CLASSIFIER())", lambda here: min((label for _, label, _ in here.taken), default=None)),
    ("FIRST_VALUE(u.v)", lambda here: next(iter(here.values("u")), None)),
    ("MEDIAN(b.v)", lambda here: median(given) if (given := here.values("b")) else None),
]
MODES = ("ONE ROW PER MATCH", "ALL ROWS PER MATCH", "ALL ROWS PER MATCH OMIT EMPTY MATCHES", "ALL ROWS PER MATCH WITH UNMATCHED ROWS")
MODES += ("ONE ROW PER MATCH SHOW TIMEOUT MATCHES", "ALL ROWS PER MATCH OMIT EMPTY MATCHES SHOW TIMEOUT MATCHES")
COUNTS = [(0, None), (1, None), (0, 1), (2, 2), (1, 3), (0, 2), (2, None)]


def random_pattern(random: Random, levels: int) -> Any:
    """Returns a pattern of few parts. Every form is frequent."""
    kind = random.choice(["var", "var", "seq", "seq", "rep", "rep", "alt", "perm", "out"]) if levels else "var"
    if kind == "var":
        return "var", random.choice(NAMES)
    if kind == "rep":
        return "rep", random_pattern(random, levels - 1), *random.choice(COUNTS), random.random() < 0.4
    if kind == "out":
        return "out", random_pattern(random, levels - 1)
    return kind, [random_pattern(random, levels - 1) for _ in range(random.choice([2, 2, 3]))]


def random_query(random: Random, conditions: list[tuple[str, Any]] = CONDITIONS) -> Query:
    """Returns a random query that matches many rows."""
    pattern = random_pattern(random, random.choice([1, 2, 2, 3]))
    present = [name for name in NAMES if f"'{name}'" in repr(pattern)]
    usable = [one for one in conditions if not re.search(r"\ba\.|\(a\)", one[0]) or "a" in present]
    define = {name: random.choice(usable) for name in present if random.random() < 0.7}
    subsets = {"u": tuple(present[:2])}
    told = [one for one in MEASURES if all(f"{name}." not in one[0] or name in present for name in NAMES)]
    skips = [("past", "")] * 3 + [("next", "")] * 2 + [(edge, name) for edge in ("first", "last") for name in present]
    mode = random.choice(MODES)
    within = random.choice(
        [random.randint(1, 9) if "TIMEOUT" in mode else None, random.randint(1, 6), random.randint(4, 12), random.randint(4, 12)]
    )
    return Query(
        pattern, define, random.sample(told, random.randint(1, 5)), mode, random.choice(skips), within, subsets, random.random() < 0.2
    )


def random_rows(random: Random) -> list[Row]:
    values = [None, -1.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.5]
    keys = random.choice([["x"], ["x", "y"], ["x", "x", "y", None]])
    span = random.choice([8, 20])
    return [
        Row(random.randint(0, span), random.choice(keys), random.choice(values), n, random.choice([True, True, False, None]))
        for n in range(random.randint(2, 14))
    ]


def operators(sql: str) -> tuple[list[Any], MatchParams, tuple[tuple[str, str], ...] | None]:
    """Returns the operators before the pattern, the pattern, and the names of the answer's columns."""
    plan = plan_of(sql)
    sink = plan.operators[-1].params
    assert isinstance(sink, SinkParams)
    place = next(place for place, one in enumerate(plan.operators) if isinstance(one.params, MatchParams))
    params = plan.operators[place].params
    assert isinstance(params, MatchParams)
    assert place >= len(plan.operators) - 2, "an operator follows the pattern"
    sources = [one.params for one in plan.operators[:place] if not isinstance(one.params, SourceParams)][:1]
    return sources, params, sink.columns


def planned(sql: str) -> tuple[list[Any], MatchParams, tuple[tuple[str, str], ...] | None] | None:
    """Returns `operators(sql)`, or None if the planner rightly refuses the statement."""
    try:
        return operators(sql)
    except QueryError as refused:
        if any(why in refused.message for why in ("repeated without an end", "that row may be missing", "WITH UNMATCHED ROWS")):
            return None
        raise


def frame(rows: list[Row], before: list[Any], params: MatchParams) -> pl.DataFrame:
    whole = pl.DataFrame(rows, schema={"ts": pl.Int64, "k": pl.String, "v": pl.Float64, "n": pl.Int64, "ok": pl.Boolean}, orient="row")
    whole = whole.with_columns((pl.col("ts") * 1_000_000).cast(pl.Datetime("us")))
    for one in before:
        (whole,) = build(one).process(0, whole)
    return whole


def run(operator: Operator, batches: list[pl.DataFrame], marks: list[int | None], snapshots: list[bool], params: MatchParams) -> list[Any]:
    """Returns the answers. After each batch comes a watermark, and maybe a move to another host."""
    found: list[Any] = []
    last = -(2**62)
    for batch, mark, moved in zip(batches, marks, snapshots, strict=True):
        if batch.height:
            found += [row for answer in operator.process(0, batch) for row in answer.rows()]
        if mark is not None:
            last = max(last, mark)
            found += [row for answer in operator.advance(last) for row in answer.rows()]
            assert operator.output_watermark(last) <= last
        if moved:
            state, operator = operator.snapshot(), build(params)
            operator.restore(state)
    return found + [row for answer in operator.advance(WATERMARK_END) for row in answer.rows()]


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(round(value.timestamp()) if hasattr(value, "timestamp") else value for value in row)


def by_partition(rows: list[Any], key: int) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def pieces(rows: list[Row], cuts: list[int]) -> Iterator[tuple[list[Row], int | None]]:
    """Yields batches, each with the least event time in later batches."""
    edges = [0, *sorted({at for at in cuts if 0 < at < len(rows)}), len(rows)]
    for begin, end in pairwise(edges):
        yield rows[begin:end], min((row.ts * 1_000_000 for row in rows[end:]), default=None)


@examples(200)
@given(seed=st.integers(0, 2**40))
@example(seed=7_164)
def test_matches_are_those_of_a_twin_that_tries_all_ways(seed: int) -> None:
    random = Random(seed)
    query, rows = random_query(random), random_rows(random)
    cuts, moved = [random.randint(1, 13) for _ in range(random.randint(0, 5))], random.random() < 0.5
    check(query, rows, cuts, moved=moved, disorder=random.random() < 0.5)


@pytest.mark.soak
@pytest.mark.parametrize("thousand", range(20))
def test_twenty_thousand_patterns(thousand: int) -> None:
    for seed in range(thousand * 1_000, (thousand + 1) * 1_000):
        random = Random(seed)
        query, rows = random_query(random), random_rows(random)
        cuts, moved = [random.randint(1, 13) for _ in range(random.randint(0, 8))], random.random() < 0.3
        check(query, rows, cuts, moved=moved, disorder=random.random() < 0.5)


OF_ROWS = [one for one in CONDITIONS if one[0] in ("v > 1", "v < 2", "ok", "v > PREV(v)", "v <= NEXT(v)", "PREV(v, 2) IS NULL")]
"""Conditions that depend only on a row and its neighbours."""

EXCLUSIVE = [
    ("v < 1 AND COUNT(*) < 5", lambda here: False),
    ("v > 1 AND v < 2 AND AVG(v) > FIRST(v)", lambda here: False),
    ("v > 2 AND SUM(v) > 3.3", lambda here: False),
    ("v > 1 AND v < 2", lambda here: False),
    ("v > 2 AND v < NEXT(v) + LAST(v, 1)", lambda here: False),
]
"""Conditions of which a row seldom meets two, so that one way remains. The twin does not compute them."""


@examples(40)
@given(seed=st.integers(0, 2**40))
def test_starts_that_are_looked_at_together_are_those_of_attempts_one_by_one(seed: int) -> None:
    """Uses more rows than the twin can handle, and caches so small that they are rebuilt often."""
    random = Random(seed)
    query = random_query(random, OF_ROWS)
    made = planned(query.sql)
    if made is None:
        return
    before, params, _ = made
    keys, length = random.choice([["x"], ["x", "y", None], list("abcdefghij")]), random.choice([60, 400])
    odds = random.choice([0.1, 0.5, 0.9])
    rows = [
        Row(n // random.choice([1, 3]), random.choice(keys), 2.5 if random.random() < odds else random.choice([None, 0.5]), n, n % 9 < 8)
        for n in range(length)
    ]
    parts = list(pieces(rows, [random.randint(1, length) for _ in range(random.choice([0, 3, 30]))]))
    batches, marks = [frame(part, before, params) for part, _ in parts], [mark for _, mark in parts]
    small = random.random() < 0.7
    with pytest.MonkeyPatch.context() as patch:
        if small:
            for module, name, value in (
                (scan, "STEPS_MAX", 2),
                (starts, "_SLOTS_MIN", 1),
                (labels, "TOGETHER_MIN", 2),
                (store, "SLACK_ROWS", 1),
                (choice, "_LOOKS", 1),
                (grown, "_LARGE", 8),
                (grown, "_PIECE", 4),
                (log, "_PIECE", 4),
                (log, "_SMALL_MAX", 5),
            ):
                patch.setattr(module, name, value)
            patch.setattr(matcher, "PARTITIONS_MIN", 0)
            patch.setattr(program, "STATES_MAX", 6)
            patch.setattr(operator, "STEP_ROWS", 50)
        together = run(build(params), batches, marks, [False] * len(parts), params)
        patch.setattr(conditions.Conditions, "depends_on_match", True)
        patch.setattr(sequential, "ROWS_MIN", 0)
        tried = run(build(params), batches, marks, [False] * len(parts), params)
        patch.setattr(trials, "ROWS_MAX", 0)
        one_by_one = run(build(params), batches, marks, [False] * len(parts), params)
    assert together == one_by_one
    assert tried == one_by_one


@examples(60)
@given(seed=st.integers(0, 2**40))
def test_starts_that_are_tried_are_those_of_attempts_one_by_one(seed: int) -> None:
    """Uses conditions that depend on the match. Partitions switch between trials and attempts."""
    random = Random(seed)
    query = random_query(random, [*CONDITIONS, *random.choices(EXCLUSIVE, k=40)])
    made = planned(query.sql)
    if made is None:
        return
    before, params, _ = made
    keys, length = random.choice([["x"], ["x", "y", None], list("abcdefghij")]), random.choice([60, 200])
    values = random.choice([[0.5, 1.5, 1.5, 2.5], [None, 0.1, 0.7, 1.3, 1.9, 2.2, 1e300]])
    rows = [Row(n // random.choice([1, 3]), random.choice(keys), random.choice(values), n, n % 9 < 8) for n in range(length)]
    parts = list(pieces(rows, [random.randint(1, length) for _ in range(random.choice([0, 3, 30]))]))
    batches, marks = [frame(part, before, params) for part, _ in parts], [mark for _, mark in parts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequential, "ROWS_MIN", random.choice([0, 20]))
        patch.setattr(trials, "ROWS_MAX", random.choice([1, 3, 32]))
        patch.setattr(trials, "STARTS_MAX", random.choice([1, 7, 8_192]))
        patch.setattr(store, "SLACK_ROWS", random.choice([1, 4_096]))
        patch.setattr(program, "STATES_MAX", random.choice([2, 4_096]))
        patch.setattr(matcher, "PARTITIONS_MIN", 0)
        tried = run(build(params), batches, marks, [random.random() < 0.2 for _ in parts], params)
        patch.setattr(sequential, "ROWS_MIN", 1_000)
        one_by_one = run(build(params), batches, marks, [False] * len(parts), params)
    assert tried == one_by_one


def check(query: Query, rows: list[Row], cuts: list[int], *, moved: bool, disorder: bool) -> None:
    """Compares a query's answers, in batches and in one batch, with those of the twin."""
    check_ways(query, rows, [(cuts, moved)], disorder=disorder)


def check_ways(query: Query, rows: list[Row], ways: list[tuple[list[int], bool]], *, disorder: bool) -> None:
    """Does so for several ways to cut the rows into batches, each with or without moves between them; plans and asks the twin once."""
    made = planned(query.sql)
    if made is None:
        return
    before, params, columns = made
    given_ = rows[::-1] if disorder else sorted(rows, key=lambda row: row.ts)  # reversed, also among equal times
    whole = run(build(params), [frame(given_, before, params)], [None], [False], params)
    for cuts, moved in ways:
        parts = list(pieces(given_, cuts))
        batches = [frame(part, before, params) for part, _ in parts]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sequential, "ROWS_MIN", 0)
            tried = run(build(params), batches, [mark for _, mark in parts], [moved] * len(parts), params)
        found = run(build(params), batches, [mark for _, mark in parts], [moved] * len(parts), params)
        assert found == whole, "answers or their order depend on batches and watermarks"
        assert found == tried, "answers or their order depend on the rows per step"
    expected = []
    for key in ("x", "y", None):
        expected += answers(
            query, sorted((row for row in rows if row.k == key), key=lambda row: (row.ts, -row.n if query.descending else row.n))
        )

    out = build(params)
    names = [*(params.partition if params.passed is None else params.passed), *(name for name, _ in params.measures)]
    assert out.late_rows == 0
    shown = [dict(zip(names, plain(row), strict=True)) for row in whole]
    order = [inner for _, inner in columns] if columns is not None else names
    told = [tuple(row[name] for name in order) for row in shown]
    assert by_partition(told, 0) == by_partition(expected, 0)


def test_arranged_columns_are_those_of_the_statement() -> None:
    before, params, columns = operators(
        "SELECT * FROM s MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES a.v AS x PATTERN (a) DEFINE a AS ok)"
    )
    (answer,) = _run(params, frame([Row(0, "x", 2.0, 0, True)], before, params))
    assert arranged(answer, columns).to_dicts() == [{"k": "x", "x": 2.0}]


def _run(params: MatchParams, rows: pl.DataFrame) -> list[pl.DataFrame]:
    built = build(params)
    built.process(0, rows)
    return [one for one in built.advance(WATERMARK_END) if one.height]


A, B, C = (("var", name) for name in NAMES)
CONDITION, MEASURE = dict(CONDITIONS), dict(MEASURES)


def by(texts: dict[str, str]) -> dict[str, Any]:
    return {name: (text, CONDITION[text]) for name, text in texts.items()}


def told(*texts: str) -> list[Any]:
    return [(text, MEASURE[text]) for text in texts]


def many(part: Any, least: int = 0, most: int | None = None, *, reluctant: bool = False) -> Any:
    return "rep", part, least, most, reluctant


ALL = MODES[1]
STEPS = [
    Row(n, "x", value, n, ok)
    for n, (value, ok) in enumerate([(1.0, True), (2.0, True), (3.0, False), (2.0, True), (4.5, False), (0.5, None)])
]
LATER = [Row(n + n // 2, "xy"[n % 2], float(n % 4), n, n % 3 != 0) for n in range(12)]
CASES = {
    "reluctant": Query(("seq", [A, many(B, reluctant=True), C]), by({"a": "ok", "c": "v > 1"}), told("COUNT(*)"), ALL, ("past", ""), 9, {}),
    "greedy": Query(("seq", [A, many(B), C]), by({"a": "ok", "c": "v > 1"}), told("COUNT(*)"), ALL, ("past", ""), 9, {}),
    "preferred first": Query(("alt", [A, ("seq", [A, B])]), by({"a": "ok"}), told("CLASSIFIER()"), ALL, ("past", ""), None, {}),
    "longer first": Query(("alt", [("seq", [A, B]), A]), by({"a": "ok"}), told("CLASSIFIER()"), ALL, ("past", ""), None, {}),
    "empty rounds": Query(many(many(A, 0, 1, reluctant=True)), by({"a": "ok"}), told("COUNT(*)"), ALL, ("past", ""), None, {}),
    "empty round after rows": Query(
        many(("alt", [A, many(B, 0, 1, reluctant=True)])), by({"a": "ok"}), told("COUNT(*)"), ALL, ("past", ""), 9, {}
    ),
    "bound": Query(
        ("seq", [A, B, ("alt", [C, B])]), by({"b": "v > LAST(a.v)", "c": "v > FIRST(v)"}), told("a.v"), ALL, ("next", ""), None, {}
    ),
    "two ways": Query(
        ("seq", [many(A, 1), many(("alt", [A, B])), C]),
        by({"a": "v > 1", "c": "SUM(a.v) < 5"}),
        told("SUM(b.v)"),
        ALL,
        ("next", ""),
        12,
        {},
    ),
    "within": Query(("seq", [A, B, C]), {}, told("COUNT(*)"), MODES[0], ("next", ""), 2, {}),
    "within three": Query(("seq", [A, B, C]), {}, told("COUNT(*)"), MODES[0], ("next", ""), 3, {}),
    "time up": Query(("seq", [A, many(B)]), by({"a": "ok"}), told("COUNT(*)"), MODES[0], ("next", ""), 4, {}),
    "next": Query(("seq", [A, B]), by({"a": "v <= NEXT(v)"}), told("NEXT(v, 2)"), ALL, ("next", ""), None, {}),
    "prev": Query(A, by({"a": "PREV(v, 2) IS NULL"}), told("PREV(v)"), ALL, ("past", ""), None, {}),
    "prev of the first": Query(("seq", [A, B]), by({"b": "PREV(FIRST(a.v)) > 0"}), told("PREV(v)"), ALL, ("next", ""), None, {}),
    "prev of all": Query(A, by({"a": "ok"}), told("PREV(v)"), MODES[3], ("past", ""), None, {}),
    "empty": Query(many(A, 0, 2), by({"a": "ok"}), told("MATCH_NUMBER()", "COUNT(*)"), ALL, ("past", ""), None, {}),
    "no empty": Query(many(A, 0, 2), by({"a": "ok"}), told("MATCH_NUMBER()", "COUNT(*)"), MODES[2], ("past", ""), None, {}),
    "final": Query(("seq", [A, B]), {}, told("FINAL LAST(v)", "LAST(v, 1)", "FINAL COUNT(*)"), ALL, ("past", ""), None, {}),
    "excluded": Query(("seq", [A, ("out", many(B, 1)), C]), by({"b": "ok"}), told("COUNT(*)"), ALL, ("past", ""), None, {}),
    "skip to last": Query(("seq", [A, many(B, 1), C]), by({"b": "ok"}), told("COUNT(*)"), ALL, ("last", "b"), None, {}),
    "skip to first": Query(("seq", [A, many(B, 1), C]), by({"b": "ok"}), told("COUNT(*)"), ALL, ("first", "b"), None, {}),
    "any order": Query(("perm", [A, B, C]), by({"a": "ok", "b": "v > 1"}), told("CLASSIFIER()"), ALL, ("next", ""), None, {}),
    "timeouts": Query(("seq", [A, many(B), C]), by({"a": "ok", "c": "v > 1"}), told("CLASSIFIER()"), MODES[4], ("past", ""), 2, {}),
    "timeouts, all rows": Query(("seq", [A, many(B), C]), by({"c": "v > 1"}), told("MATCH_NUMBER()"), MODES[5], ("next", ""), 3, {}),
    "unmatched": Query(("seq", [A, B]), by({"a": "ok", "b": "v > PREV(v)"}), told("CLASSIFIER()"), MODES[3], ("next", ""), None, {}),
}
"""Covers each form at least once, independent of the random patterns."""


SINGLY = list(range(1, 12))


@pytest.mark.parametrize(
    ("rows", "ways"),
    [(STEPS, [([], False), (SINGLY, False), (SINGLY, True)]), (LATER, [([3], True), (SINGLY, False)])],
    ids=["steps", "later"],
)
@pytest.mark.parametrize("case", CASES)
def test_every_form_in_any_pieces(case: str, rows: list[Row], ways: list[tuple[list[int], bool]]) -> None:
    check_ways(CASES[case], rows, ways, disorder=False)


def test_a_match_waits_for_an_earlier_start_that_fails_in_a_later_step() -> None:
    pattern = ("alt", [("seq", [A, many(B), C]), B])
    query = Query(pattern, by({"a": "ok", "b": "v > 1", "c": "v < 2"}), told("COUNT(*)"), ALL, ("past", ""), None, {})
    rows = [Row(0, "x", None, 0, True), Row(1, "x", 2.0, 1, False), Row(2, "x", 3.0, 2, None), Row(3, "x", None, 3, False)]
    for cuts in ([], [2], [3], [1, 2, 3]):
        check(query, rows, cuts, moved=False, disorder=False)


def test_windows_wait_for_a_match_that_is_open() -> None:
    pattern = "PATTERN (a b) WITHIN INTERVAL '9 seconds' DEFINE a AS ok"
    before, params, _ = operators(f"SELECT * FROM s MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES MATCH_ROWTIME() AS t {pattern})")
    operator = build(params)
    operator.process(0, frame([Row(3, "x", 1.0, 0, True), Row(4, "y", 1.0, 1, False)], before, params))
    marks = []
    for mark in (2, 5, 11, 12, 20):
        operator.advance(mark * 1_000_000)
        marks.append(operator.output_watermark(mark * 1_000_000) // 1_000_000)
    assert marks == [2, 3, 3, 12, 20]


@pytest.mark.parametrize(
    "clause", ["PATTERN (a b) DEFINE a AS v > 5", "PATTERN (a b* c) WITHIN INTERVAL '9 seconds' DEFINE c AS v > LAST(b.v)"]
)
def test_memory_is_flat_without_matches(clause: str) -> None:
    before, params, _ = operators(f"SELECT * FROM s MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES a.v AS v {clause})")
    machine, sizes = build(params), []
    for second in range(24):
        machine.process(0, frame([Row(second, f"k{n % 7}", 1.0, n, True) for n in range(100)], before, params))
        assert not [one for one in machine.advance(second * 1_000_000) if one.height]
        sizes.append((machine.state_rows, len(machine.snapshot()) // 10_000))
    assert sizes[-1] == sizes[12]
    assert sizes[-1][0] <= 1_000


@pytest.mark.parametrize(
    ("pattern", "rows"), [("(a|a)*b", 61), ("(a?){30}a{30}", 60), ("((a*)*)*b", 61), ("(a|b|a b)*c", 62)], ids=lambda case: str(case)
)
def test_ambiguous_patterns_take_linear_time(pattern: str, rows: int) -> None:
    """Backtracking would take years for these."""
    conditions = {"a": "ok", "b": "NOT ok", "c": "ok IS NULL"}
    define = ", ".join(f"{name} AS {text}" for name, text in conditions.items() if name in pattern)
    clause = f"PATTERN ({pattern}) DEFINE {define}"
    before, params, _ = operators(f"SELECT * FROM s MATCH_RECOGNIZE (ORDER BY ts MEASURES COUNT(*) AS n {clause})")
    given_ = [Row(n, "x", 1.0, n, True) for n in range(60)] + [Row(60, "x", 1.0, 60, False), Row(61, "x", 1.0, 61, None)]
    (answer,) = _run(params, frame(given_, before, params))
    assert answer.rows() == [(rows,)]
