"""Reading arrays gives what a plain Python reader and DuckDB give. Any text gives an array of the type or NULL."""

import json
from datetime import UTC, datetime
from typing import Any

import duckdb
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.arrays import array_text, elements, plain_value, struct_text
from sbon.json_texts import json_text
from sbon.schema import ARRAY_TYPES, ColumnType, Field, struct_type

BOOL, INT, FLOAT, TEXT, TIME = ColumnType.BOOL, ColumnType.INT, ColumnType.FLOAT, ColumnType.TEXT, ColumnType.TIME
ELEMENTS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
    | st.datetimes().map(lambda time: time.isoformat())
    | st.dictionaries(st.text(max_size=2), st.none(), max_size=1)
)
LISTS = st.lists(ELEMENTS, max_size=3) | st.lists(st.none() | st.integers(-(2**64), 2**64), max_size=3) | st.lists(st.text(), max_size=3)
CONNECTION = duckdb.connect(config={"threads": 1})


def element(value: Any, kind: ColumnType, ascii_only: bool) -> Any:
    """Converts a JSON value to a type; raises ValueError if it does not fit."""
    if value is None:
        return None
    if kind is TEXT:
        return value if isinstance(value, str) else json_text(json.dumps(value, ensure_ascii=ascii_only))
    if kind is TIME and isinstance(value, str):
        time = datetime.fromisoformat(value)
        return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
    if kind is BOOL and isinstance(value, bool):
        return value
    if kind is FLOAT and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
    if kind is INT and whole and -(2**63) <= value < 2**63:
        return int(value)
    raise ValueError(f"{value!r} is no {kind}")


@given(LISTS, st.sampled_from([kind for kind in ARRAY_TYPES if kind is not ColumnType.JSON]), st.booleans())
@example([1.0, 1e3, 2.5], INT, True)
@example(["2026-01-31T10:00:00+02:00"], TIME, True)
@example([2**63], INT, True)
@example([0.1, -0.0, 1e300], FLOAT, True)
def test_elements_are_those_of_a_plain_reading(values: list[Any], kind: ColumnType, ascii_only: bool) -> None:
    kept = array_text(json.dumps(values, ensure_ascii=ascii_only), kind)
    try:
        expected = [element(value, kind, ascii_only) for value in values]
    except ValueError:
        assert kept is None
        return

    assert kept is not None
    found = elements(kept, kind)
    assert found is not None
    told = [None if one is None else datetime.fromisoformat(one).replace(tzinfo=None) for one in found] if kind is TIME else found
    assert [(type(one), one) for one in told] == [(type(one), one) for one in expected]
    assert array_text(kept, kind) == kept


PLAIN = {"i": INT, "f": FLOAT, "s": TEXT, "b": BOOL}
KINDS = {"of plain fields": PLAIN, "with a time": {**PLAIN, "t": TIME}}
"""The reader parses the first kind at once, the second field by field."""


@given(
    st.sampled_from(list(KINDS)),
    st.dictionaries(st.sampled_from(["i", "f", "s", "b", "t", "z"]), ELEMENTS, max_size=4) | ELEMENTS,
    st.booleans(),
)
@example("of plain fields", {"i": 5.0, "f": 1}, True)
@example("of plain fields", {"i": 2**63 - 1, "s": {"a": None}}, True)
@example("of plain fields", {"i": 2**63}, True)
@example("of plain fields", {"b": 1}, True)
@example("with a time", {"t": "2026-01-31T10:00:00+02:00", "f": 1}, True)
def test_structs_are_those_of_a_plain_reading(name: str, value: Any, ascii_only: bool) -> None:
    kind = struct_type([Field(member, of) for member, of in KINDS[name].items()])
    kept = struct_text(json.dumps(value, ensure_ascii=ascii_only), kind)
    among = array_text(json.dumps([value, None], ensure_ascii=ascii_only), kind)
    try:
        if not isinstance(value, dict):
            raise ValueError("no object")
        expected = {member: element(value.get(member), of, ascii_only) for member, of in KINDS[name].items()}
    except ValueError:
        assert kept is None
        assert among == (None if value is not None else "[null,null]")
        return

    assert kept is not None
    found = plain_value(kept, kind)
    assert list(found) == list(expected)
    assert [(type(one), one) for one in found.values()] == [(type(one), one) for one in expected.values()]
    assert (struct_text(kept, kind), among) == (kept, f"[{kept},null]")


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=4), st.integers(1, 5))
def test_elements_are_those_that_duckdb_finds(values: list[int | None], place: int) -> None:
    text = json.dumps(values)
    query = "SELECT ?::JSON::BIGINT[], (?::JSON::BIGINT[])[?], len(?::JSON::BIGINT[])"
    found = CONNECTION.execute(query, [text, text, place, text]).fetchone()
    kept = array_text(text, INT)

    assert found is not None
    assert kept is not None
    ours = elements(kept, INT)
    assert ours == found[0]
    assert ours is not None
    assert (ours[place - 1] if place <= len(ours) else None, len(ours)) == found[1:]


DEEP = struct_type([Field("e", struct_type([Field("u", INT)])), Field("0", ColumnType.JSON)])


@given(st.text(max_size=20) | st.text('[]{}:,"\\ue0-1.truefalsn', max_size=12), st.sampled_from([*ARRAY_TYPES, DEEP]))
@example('[{"e":{}},{"e":null,"0":[]}]', DEEP)
@example('[{"e":[]}]', DEEP)
@example('[[{"e":{}}]]', DEEP)
@example("[" * 100_000, ColumnType.JSON)
@example("[" * 100_000, TEXT)
@example('["\\ud800"]', TEXT)
@example("[1e999]", FLOAT)
@example('["0001-01-01T00:00:00+14:00"]', TIME)
@example("{}", TEXT)
def test_what_is_no_array_is_no_error(text: str, kind: ColumnType) -> None:
    kept = array_text(text, kind)
    if kept is not None:
        assert json.loads(text.strip()) is not None
        assert elements(kept, kind) is not None
