"""The planner takes all forms in `docs/reference/functions.md`."""

import re

import msgspec
import pytest

from sbon.query.catalog import Catalog
from sbon.query.forms import AGGREGATES, AGGREGATES_ALSO, CALLS, MADE_OF_OTHERS, OPERATORS, PARSED_AS
from sbon.query.function_names import SYNONYMS
from sbon.query.planner import plan
from sbon.query.sql import parse
from tests.query_worlds import NODES

SOURCE = """CREATE SOURCE s (ts TIMESTAMP, text TEXT, x FLOAT, y FLOAT, n INT, a BOOLEAN, j JSON, numbers BIGINT[],
  place STRUCT<lat DOUBLE>, WATERMARK FOR ts AS ts) WITH (connector = 'datagen')"""

NAMES = {
    "(y, z, ...)": "(1, 2)", "x, ...": "x, 'z'", "key, ...": "'key'", "THEN x ...": "THEN x", "THEN z ...": "THEN 1", "WHEN y": "WHEN 1",
    "from, to": "ts, ts", "ELSE w": "ELSE 2", "x::type": "x::TEXT", "AS type": "AS TEXT", "format": "'YYYY'", "unit": "DAY",
    "pattern": "'p'",
    "share": "0.5", "separator": "','", "key": "'key'", "precision": "3", "seconds": "n", "part": "'p'", "new": "'q'", "characters": "'c'",
    "low AND high": "1 AND 2", "FROM start FOR length": "FROM 1 FOR 2", "AND b": "AND a", "OR b": "OR a", "base": "2",
}  # fmt: skip
"""Placeholders in the forms, and values for them."""

OTHER_VALUES = {
    "x -> key": {"x": "j"},
    "x ->> key": {"x": "j"},
    "JSON_": {"x": "j"},
    "a[1]": {"a": "numbers"},
    "CARDINALITY": {"a": "numbers"},
    "CAST(x AS BIGINT[])": {"x": "j"},
    "CAST(x AS STRUCT": {"x": "j"},
    "DATE_FORMAT": {"YYYY": "yyyy"},
    "TO_TIMESTAMP(text, ": {"YYYY": "YYYY-MM-DD"},
}
"""Replacements for single forms, by the beginning of the form."""


@pytest.fixture(scope="module")
def catalog():
    (created,) = parse(SOURCE)
    known = Catalog()
    known.put("source", "s", sql=created.sql, owner="a", stamp=1, source=msgspec.structs.replace(created.definition, home="a"))
    return known


def examples(form):
    """Yields the alternatives of a form, with columns and values in place of placeholders."""
    for one in re.split(r", (?=[A-Za-z_]+[(:]|a IS)", form):
        example = one
        for name, value in NAMES.items():
            example = re.sub(rf"(?<![A-Z'a-z_]){re.escape(name)}(?![A-Za-z_'])", lambda _, value=value: value, example)
        for beginning, values in OTHER_VALUES.items():
            if one.startswith(beginning):
                for name, value in values.items():
                    example = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", value, example)
        yield example


def planned(catalog, value, rest):
    statement = f"SELECT {value} AS v FROM {rest}"
    (query,) = parse(statement)
    return plan(query, catalog, NODES, "a", "q")


OTHER_FORMS = [example for form in AGGREGATES_ALSO.values() if ")" in form for example in examples(form)]
FORMS = [*OPERATORS.values(), *(form.call for form in MADE_OF_OTHERS), *(form.call for form in CALLS.values())]


@pytest.mark.parametrize("value", [example for form in FORMS for example in examples(form)])
def test_every_form_of_a_function_can_be_planned(catalog, value):
    assert planned(catalog, value, "s").operators


@pytest.mark.parametrize("value", [example for form in AGGREGATES.values() for example in examples(form.call)] + OTHER_FORMS)
def test_every_form_of_an_aggregate_can_be_planned(catalog, value):
    assert planned(catalog, value, "TUMBLE(s, ts, INTERVAL '1 second') GROUP BY window_start").operators


ARGUMENTS = {
    "ceil": "x", "coalesce": "x, y", "ends_with": "text, 'p'", "json_array_length": "j", "json_extract_path": "j, 'key'",
    "json_extract_path_text": "j, 'key'", "json_typeof": "j", "length": "text", "lower": "text", "power": "x, y",
    "regexp_like": "text, 'p'",
    "starts_with": "text, 'p'", "strpos": "text, 'p'", "substr": "text, 1", "to_json": "x", "trim": "text", "trunc": "x", "upper": "text",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SYNONYMS | PARSED_AS))
def test_other_names_mean_the_same_function(catalog, name):
    same = (SYNONYMS | PARSED_AS)[name]
    queries = [planned(catalog, f"{one}({ARGUMENTS[same]})", "s") for one in (name, same)]

    assert queries[0].operators == queries[1].operators


@pytest.mark.parametrize(
    ("name", "other"), [(name, other) for name, others in AGGREGATES_ALSO.items() for other in others.split(", ") if ")" not in others]
)
def test_other_names_mean_the_same_aggregate(catalog, name, other):
    (value, *_) = examples(AGGREGATES[name].call)
    queries = [
        planned(catalog, one, "TUMBLE(s, ts, INTERVAL '1 second') GROUP BY window_start")
        for one in (value, value.replace(name.upper(), other))
    ]

    assert queries[0].operators == queries[1].operators
