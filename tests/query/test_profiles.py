"""Profiles of sources: how they are read and put together, and refusals that name the place."""

import pytest

from sbon.errors import QueryError
from sbon.query.planner import plan
from sbon.query.profiles import parse_profile, together
from sbon.query.sql import parse
from tests.query_worlds import NODES, make_catalog

SOURCE = "CREATE SOURCE {name} (ts TIMESTAMP, k BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'tcp', port = 1{more})"


def planned(sql, sources):
    (statement,) = parse(sql)
    return plan(statement, make_catalog(sources), NODES, "b", "q")


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("1000/s", (("", 1000.0),)),
        (" 90 /min", (("", 1.5),)),
        ("day: 7200/h, launch:8000/s", (("day", 2.0), ("launch", 8000.0))),
    ],
)
def test_a_profile_is_one_rate_or_named_points(text, points):
    assert parse_profile(text) == points


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1000", "expected rows a second"),
        ("0/s", "more than 0"),
        ("-3/s", "more than 0"),
        ("nan/s", "more than 0"),
        ("inf/s", "more than 0"),
        ("fast/s", "expected rows a second"),
        ("", "expected rows a second"),
        ("day: 1/s, day: 2/s", "'day' twice"),
        ("1/s, 2/s", "not a point and a rate"),
        (": 2/s", "not a point and a rate"),
        (", ".join(f"p{i}: 1/s" for i in range(17)), "17 points"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused(text, problem):
    with pytest.raises(QueryError, match=problem):
        parse_profile(text)


def test_a_profile_is_refused_where_it_stands():
    sql = SOURCE.format(name="a", more=",\n  profile = 'day: 1/s, day: 2/s'")

    with pytest.raises(QueryError, match="twice") as refusal:
        parse(sql)

    assert (refusal.value.line, refusal.value.column) == (2, 3)
    assert "leave one" in refusal.value.hint


def test_a_source_with_one_rate_has_it_at_the_points_of_the_others():
    points = together({"a": (("", 5.0),), "b": (("day", 1.0), ("night", 2.0)), "c": (("night", 7.0),)})

    assert [(point.name, dict(point.rates)) for point in points] == [
        ("day", {"a": 5.0, "b": 1.0}),
        ("night", {"a": 5.0, "b": 2.0, "c": 7.0}),
    ]
    assert together({}) == ()


def test_a_plan_has_the_profile_of_its_sources_and_their_signatures_do_not_depend_on_it():
    plain, profiled = (
        planned("SELECT k FROM a", SOURCE.format(name="a", more=more)) for more in ("", ", profile = 'day: 10/s, launch: 80/s'")
    )

    source = profiled.operators[0]
    assert [(point.name, dict(point.rates)) for point in profiled.profile] == [("day", {source.id: 10.0}), ("launch", {source.id: 80.0})]
    assert plain.profile == ()
    assert [spec.signature for spec in plain.operators[:-1]] == [spec.signature for spec in profiled.operators[:-1]]
