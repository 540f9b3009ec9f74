"""Extracting parts of JSON texts gives what a plain Python reader and DuckDB give. Any text gives a value or NULL."""

import json
from typing import Any

import duckdb
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.json_texts import JSON_DEPTH_MAX, elements_of, json_text, kind_of, length_of, part_of, text_of_part

NAMES = st.sampled_from(["a", "b", "", "é", 'q"\\', "x y", "\n", "0"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(NAMES, part, max_size=3),
    max_leaves=12,
)
PATHS = st.lists(NAMES | st.integers(-4, 4), min_size=1, max_size=3)
MISSING = object()
CONNECTION = duckdb.connect(config={"threads": 1})


def plainly(value: Any, path: list[str | int]) -> Any:
    for key in path:
        if isinstance(value, dict) and isinstance(key, str):
            value = value.get(key, MISSING)
        elif isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
            value = value[key]
        else:
            return MISSING
    return value


@given(VALUES, PATHS, st.booleans(), st.booleans())
def test_parts_are_those_of_a_plain_reading(value: Any, path: list[str | int], ascii_only: bool, spaced: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1 if spaced else None)
    kept = json_text(text)
    expected = plainly(value, path)

    assert kept is not None
    assert json.loads(kept) == value
    assert "\n" not in kept
    part, told = part_of(kept, path), text_of_part(kept, path)
    if expected is MISSING:
        assert part is told is None
        return
    assert part is not None
    assert json.loads(part) == expected
    if expected is None or isinstance(expected, str):
        assert told == expected
    else:
        assert told == part
    elements = elements_of(part)
    assert (None if elements is None else [json.loads(one) for one in elements]) == (expected if isinstance(expected, list) else None)
    assert length_of(part) == (len(expected) if isinstance(expected, list) else None)


@given(VALUES.filter(lambda value: isinstance(value, dict | list)), st.sampled_from(["a", "b", "é"]) | st.integers(-3, 3))
def test_parts_are_those_that_duckdb_finds(value: Any, key: str | int) -> None:
    text = json.dumps(value)
    found = CONNECTION.execute("SELECT ?::JSON -> ?, json_type(?::JSON -> ?)", [text, key, text, key]).fetchone()
    part = part_of(text, [key])

    assert found is not None
    assert (None if part is None else json.loads(part)) == (None if found[0] is None else json.loads(found[0]))
    kinds = {"VARCHAR": "string", "UBIGINT": "number", "BIGINT": "number", "DOUBLE": "number", "HUGEINT": "number"}
    assert (None if part is None else kind_of(part)) == (None if found[1] is None else kinds.get(found[1], found[1].lower()))


@given(st.text(max_size=20) | st.text('[]{}:,"\\ue0-1.truefalsn', max_size=12), PATHS)
@example("[" * 100_000, [0])
@example('{"a":' * 2_000 + "1" + "}" * 2_000, ["a"])
@example('"\\ud800"', [0])
@example('{"a": "\\udc00"}', ["a"])
@example("1e999", [0])
def test_what_is_no_json_is_no_error(text: str, path: list[str | int]) -> None:
    kept = json_text(text)
    for found in (part_of(text, path), text_of_part(text, path), length_of(text), elements_of(text)):
        assert kept is not None or found is None
    if kept is not None:
        json.loads(kept)


def test_depth_has_a_bound_and_brackets_in_texts_are_no_depth() -> None:
    deepest = "[" * JSON_DEPTH_MAX + "]" * JSON_DEPTH_MAX
    wide = "[" + ",".join(["[]"] * 500) + "]"
    quoted = json.dumps(["[" * 500, '\\"[[' * 100])

    assert json_text(deepest) == deepest
    assert json_text(f"[{deepest}]") is None
    assert json_text(wide) == wide
    assert json_text(quoted.replace(", ", ",")) == quoted.replace(", ", ",")
