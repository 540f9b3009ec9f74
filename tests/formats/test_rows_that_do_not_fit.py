"""Reading lines gives the rows that fit, and the column and cause of each misfit, as a plain line-by-line reader does.

A line's row or cause depends neither on its neighbours nor on the reader used: for one line, a few, or many.
"""

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from sbon.formats.csv_rows import CsvRows
from sbon.formats.json_rows import JsonRows
from sbon.formats.time_format import TimeFormat
from sbon.misfits import Misfits
from sbon.operators.values import FEW_ROWS
from tests.connector_world import columns
from tests.examples import examples

SCHEMA = columns(ts="time", n="int", x="float", s="text", b="bool")
NAMES = [field.name for field in SCHEMA]
NOT_INTEGER, BEYOND = "is not an integer (BIGINT)", "is beyond 64 bits (BIGINT)"
ISO = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class UnfitError(Exception):
    """A value does not fit its column; arguments are the column and the cause."""


# ----------------------------------------------------------------------------------------------------- the plain twin


def time_of(text: str) -> datetime | None:
    found = ISO.fullmatch(text)
    if found:
        try:
            time = datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00'}{found[3] or 'Z'}")
            return time.astimezone(UTC).replace(tzinfo=None)
        except (ValueError, OverflowError):
            return None
    if NUMBER.fullmatch(text) and abs(float(text)) < 1e11:
        return datetime(1970, 1, 1) + timedelta(seconds=float(text))
    return None


def value_of(text: str, name: str) -> Any:
    """Converts a non-empty text to its column's type."""
    if name == "s":
        return text
    if name == "ts":
        time = time_of(text)
        if time is None:
            raise UnfitError(name, "is not a time in the format iso")
        return time
    if name == "n":
        if not re.fullmatch(r"[+-]?[0-9]+(\.0*)?", text):
            raise UnfitError(name, NOT_INTEGER)
        number = int(text.split(".")[0])
        if not -(2**63) <= number < 2**63:
            raise UnfitError(name, BEYOND)
        return number
    if name == "x":
        if not NUMBER.fullmatch(text):
            raise UnfitError(name, "is not a number (FLOAT)")
        return float(text)
    if text.lower() in ("true", "t", "yes", "1", "false", "f", "no", "0"):
        return text.lower() in ("true", "t", "yes", "1")
    raise UnfitError(name, "is not true or false (BOOLEAN)")


CAUSES = {"ts": "is not a time in the format iso", "n": NOT_INTEGER, "x": "is not a number (FLOAT)", "b": "is not true or false (BOOLEAN)"}


def member(raw: str | None, name: str) -> Any:
    """Converts an object's member, given its JSON text."""
    if raw is None or raw == "null":
        return None
    if raw.startswith('"'):
        text = json.loads(raw)
        return text if name == "s" else None if not text.strip() else value_of(text.strip(), name)
    if name == "s":
        return raw
    if raw[0] in "[{" or (raw in ("true", "false") and name != "b"):
        raise UnfitError(name, CAUSES[name])
    if raw in ("true", "false"):
        return raw == "true"
    if name == "n":
        number = Decimal(raw)
        if number != number.to_integral_value():
            raise UnfitError(name, NOT_INTEGER)
        return value_of(str(int(number)), name)
    if name != "b" and abs(Decimal(raw)) > Decimal("1.8e308"):
        raise UnfitError(name, CAUSES[name])
    return value_of(raw, name)


def plain_json(lines: list[Any]) -> tuple[list[tuple[Any, ...]], Counter[tuple[str, str]]]:
    """Returns the rows, and the number of misfits by column and cause."""
    rows, left_out = [], Counter[tuple[str, str]]()
    for line in lines:
        try:
            if isinstance(line, tuple):
                raise UnfitError("", line[1])
            rows.append(tuple(member(line.get(name), name) for name in NAMES))
        except UnfitError as why:
            left_out[why.args] += 1
    return rows, left_out


# -------------------------------------------------------------------------------------------------------------- JSON

NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.integers(-9, 9).map(str),
    st.floats(-1e6, 1e6).map(lambda x: repr(round(x, 3))),
    st.sampled_from(["5.0", "5.5", "-0.0", "1e3", "1.5e1", "1e-3", "1e30", "1e400", "9007199254740993.0", "9223372036854775807.0"]),
)
TIMES = st.one_of(
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda time: time.isoformat()),
    st.sampled_from(
        ["2026-01-31", "2026-01-31 12:00", "2026-01-31T12:00:00.25+02:00", "2026-01-31T12:00:00Z", "2026-02-30T00:00:00", "soon"]
    ),
)
LETTERS = st.characters(codec="utf-8", exclude_characters="\0\x1c\x1d\x1e\x1f")
"""Excludes characters that only some of the readers take for white space."""
TEXTS = st.one_of(st.text(LETTERS, max_size=5), NUMBERS, TIMES, st.sampled_from(["true", "No", ""]))
RAW = st.one_of(
    NUMBERS,
    TEXTS.map(json.dumps),
    TEXTS.map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(["true", "false", "null", '{"a": [1, {}]}', "[]", "[1.50]"]),
)
FITTING = {
    "ts": st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda time: json.dumps(time.isoformat())),
    "n": st.integers(-(2**63), 2**63 - 1).map(str),
    "x": st.integers(-99, 99).map(lambda number: str(number / 8)),
    "s": TEXTS.map(json.dumps),
    "b": st.sampled_from(["true", "false", "null"]),
}
OBJECTS = st.one_of(
    st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, RAW)),
    st.fixed_dictionaries({}, optional=FITTING),
    st.fixed_dictionaries({}, optional=FITTING | {"n": RAW}),
)
"""JSON texts by member name."""
BROKEN = st.sampled_from(
    [
        (b"{", "is not JSON"),
        (b'{"n": 1}, {"n": 2}', "is not JSON"),
        (b'{"n": [{}', "is not JSON"),
        (b"{}]}", "is not JSON"),
        (b"\x00\xff", "is not JSON"),
        (b'{"n": NaN}', "is not JSON"),
        (b"[1, 2]", "is not a JSON object"),
        (b'"text"', "is not a JSON object"),
    ]
)


def line_of(given: Any) -> bytes:
    if isinstance(given, tuple):
        return bytes(given[0])
    return ("{" + ", ".join(f'"{name}": {raw}' for name, raw in given.items()) + "}").encode()


def causes(misfits: Misfits) -> Counter[tuple[str, str]]:
    return Counter({(kind.column, kind.cause): kind.rows for kind in misfits.told()})


def texts_of(rows: list[tuple[Any, ...]]) -> list[str]:
    return [repr(row) for row in rows]  # -0.0 is not 0.0 here


@examples(30)
@given(st.lists(st.one_of(OBJECTS, BROKEN), max_size=6))
@example([{"n": "5.5"}, {"n": "99999999999999999999", "x": '"wide"'}, {"s": "1.50", "x": '"wide"', "b": "2"}])
@example([{"n": '"7"', "x": '"20.5"', "b": '"true"', "s": "1.50"}, {"n": "5.0"}, {"s": '{"a": 1}'}])
@example([(b'{"n": [{}', "is not JSON"), {"n": "1"}, (b"{}]}", "is not JSON"), (b'{"n": 1}, {"n": 2}', "is not JSON")])
def test_json_lines_are_the_rows_of_a_plain_reading(given_lines: list[Any]) -> None:
    lines = [line_of(given) for given in given_lines]
    rows, left_out = plain_json(given_lines)
    good = b'{"ts": "2026-01-01T00:00:00", "n": 1}'

    for before in (0, FEW_ROWS):
        misfits = Misfits()
        frame = JsonRows(SCHEMA, TimeFormat(), misfits).read([good] * before + [b" "] + lines)
        assert texts_of(frame.rows()[before:]) == texts_of(rows)
        assert causes(misfits) == left_out

    misfits = Misfits()
    reader = JsonRows(SCHEMA, TimeFormat(), misfits)
    alone = [reader.read([line]).rows() for line in lines]
    assert texts_of([row for found in alone for row in found]) == texts_of(rows)
    assert causes(misfits) == left_out


# --------------------------------------------------------------------------------------------------------------- CSV

FIELDS = st.one_of(TEXTS.filter(lambda text: text == text.strip()), NUMBERS, TIMES)
"""Without white space around values, which only TEXT columns keep."""


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


@st.composite
def csv_fields(draw: st.DrawFn) -> tuple[str, str | None]:
    """Draws a field as written in the record, and its value; None if it is empty and not quoted."""
    text = draw(FIELDS)
    if draw(st.booleans()) or re.search('[",\r\n]', text):
        return quoted(text), text
    return text, text or None


def plain_csv(records: list[list[tuple[str, str | None]]]) -> tuple[list[tuple[Any, ...]], Counter[tuple[str, str]]]:
    rows, left_out = [], Counter[tuple[str, str]]()
    for record in records:
        try:
            if len(record) != len(NAMES):
                raise UnfitError("", "has another number of fields")
            rows.append(
                tuple(
                    (text if name == "s" else value_of(text, name) if text else None) if text is not None else None
                    for name, (_, text) in zip(NAMES, record, strict=True)
                )
            )
        except UnfitError as why:
            left_out[why.args] += 1
    return rows, left_out


def whole(raw: str) -> tuple[str, str]:
    """Converts a JSON text to an unquoted CSV field and its value."""
    text = json.loads(raw) if raw.startswith('"') else raw
    return text, text


FITTING_FIELDS = st.tuples(*(FITTING[name].map(whole) for name in ("ts", "n", "x")), csv_fields(), st.just(("true", "true"))).map(list)
RECORDS = st.one_of(
    st.lists(csv_fields(), min_size=len(NAMES), max_size=len(NAMES)),
    FITTING_FIELDS,
    st.lists(csv_fields(), min_size=2, max_size=len(NAMES) + 2),
)


@examples(30)
@given(st.lists(RECORDS, max_size=6), st.sampled_from(["\n", "\r\n"]))
@example([[("", None)] * 5, [("1", "1")] * 3], "\n")
@example([[("", None), ("5.0", "5.0"), ("", None), ('""', ""), ("", None)]], "\n")
def test_csv_records_are_the_rows_of_a_plain_reading(records: list[list[tuple[str, str | None]]], end: str) -> None:
    data = "".join(",".join(shown for shown, _ in record) + end for record in records).encode()
    rows, left_out = plain_csv(records)
    good = b"2026-01-01,1,1.5,a,true" + end.encode()

    for before in (b"", good, b"\n"):
        misfits = Misfits()
        frame = CsvRows(SCHEMA, NAMES, ",", TimeFormat(), misfits).read(before + data)
        assert texts_of(frame.rows()[before == good :]) == texts_of(rows)
        assert causes(misfits) == left_out


@given(st.lists(st.sampled_from(["a,b,c\n", *'a1",,\n\r ']), max_size=12).map("".join))
@example('a,b,c\n""a""')
@example('a,b,c\n,,""a""')
@example("a,b,c\na,b")
@example("a,b,c\n\nd,e,f")
@example('a,b,c\n,""aa"""",c')
@example("a,b,c\na,b\rx,c")
@example('a,b,c\n"","",\n"",,""')
def test_a_bad_record_changes_nothing_for_those_beside_it(text: str) -> None:
    """With the bad record all are read one by one, without it together."""
    data = text.encode() + b"\n"
    if data.count(b'"') % 2:
        return  # no block ends between quotes
    schema = columns(a="text", b="text", c="text")

    together, one_by_one = Misfits(), Misfits()
    rows = CsvRows(schema, "abc", ",", TimeFormat(), together).read(data).rows()
    beside = CsvRows(schema, "abc", ",", TimeFormat(), one_by_one).read(b"\xff,,\n" + data).rows()

    assert rows == beside
    assert causes(one_by_one) == causes(together) + Counter({("", "is not UTF-8"): 1})
