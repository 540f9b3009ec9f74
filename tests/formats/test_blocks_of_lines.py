"""Reading blocks of lines by columns gives the same rows and misfits as reading the lines one by one."""

import json
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.formats import json_blocks
from sbon.formats.csv_rows import CsvRows
from sbon.formats.json_blocks import JsonBlocks
from sbon.formats.json_rows import JsonRows
from sbon.formats.time_format import TimeFormat
from sbon.misfits import Misfits
from sbon.operators.time_digits import regular_times
from sbon.operators.times import parse_time, parse_times
from sbon.operators.values import FEW_ROWS
from tests.connector_world import columns
from tests.examples import examples

SCHEMA = columns(ts="time", n="int", x="float", s="text", b="bool")
NAMES = [field.name for field in SCHEMA]
GOOD = b'{"ts": "2026-01-31T12:00:00.250Z", "n": 7, "x": 0.5, "s": "a", "b": true}'
NUMBERED = b'{"ts": 1577836802, "n": 7, "x": 0.5, "s": "a", "b": true}'
RAW_TYPES = {"ts": pl.String(), "n": pl.Int64(), "x": pl.Float64(), "s": pl.String(), "b": pl.Boolean()}
TRICKY = [
    b'{"n": 1, "n": 2}',
    b'{"n": null, "n": 2}',
    b'{"n": 1, "q": {"n": 2}}',
    b'{"n" : 1, "n" :2}',
    b'{"n": 1, "\\u006e": 2}',
    b'{"n": 1, "\\n": 2}',
    b'{"s": 1.50}',
    b'{"s": 1e3}',
    b'{"s": -0}',
    b'{"s": {"a":  1.0}}',
    b'{"s": [1,2]}',
    b'{"s": true, "b": null}',
    b'{"s": "-5"}',
    b'{"s": "\\ud800"}',
    b'{"q": "\\ud800"}',
    b'{"s": "\\ud83d\\ude00"}',
    b'{"x": -0}',
    b'{"x": -0.0}',
    b'{"x": 18446744073709551615}',
    b'{"n": 5.0}',
    b'{"n": "7"}',
    b'{"n": 1}, {"n": 2}',
    b'{"n": 1}\r',
    b'{"s": "\xff"}',
    b'{"q": "\xff"}',
    b"\xef\xbb\xbf{}",
    b"[]",
    b"null",
    b" ",
    b"\r",
    b"\x0c",
    b'{"ts": 1577836802.5}',
    b'{"ts": 1e9}',
    b'{"ts": true}',
    b'{"ts": {"a": 1}}',
    b'{"ts": "1577836802"}',
    b'{"ts": "soon"}',
    b'{"q": ' + b"[" * 200 + b"]" * 200 + b"}",
]


def line_by_line(lines: list[bytes], misfits: Misfits) -> pl.DataFrame:
    reader = JsonRows(SCHEMA, TimeFormat(), misfits)
    return pl.concat([reader.read_many([line]) for line in lines])


def places_of(lines: list[bytes]) -> list[int]:
    """Returns the places of the lines that have a row."""
    reader = JsonRows(SCHEMA, TimeFormat(), Misfits())
    return [place for place, line in enumerate(lines) if line == GOOD or reader.read_many([line]).height]


def causes(misfits: Misfits) -> dict[tuple[str, str], int]:
    return {(kind.column, kind.cause): kind.rows for kind in misfits.told()}


def expect_same(lines: list[bytes], good: bytes = GOOD) -> None:
    """Compares lines read in a block, among good lines, with the same lines read one by one.

    The block's reader has read a block of good lines before.
    """
    of_block, of_lines = Misfits(), Misfits()
    many = [good] * FEW_ROWS + lines + [GOOD]
    reader = JsonRows(SCHEMA, TimeFormat(), of_block)
    reader.read_block(b"\n".join([good] * 2 * FEW_ROWS))

    block, places = reader.read_block_placed(b"\n".join(many) + b"\n")

    plain = line_by_line([*lines, GOOD], of_lines)
    assert [repr(row) for row in block.rows()[FEW_ROWS:]] == [repr(row) for row in plain.rows()]  # -0.0 is not 0.0 here
    assert block.schema == plain.schema
    if len(lines) == 1:
        assert of_block.told() == of_lines.told()
    # The order may differ: a block counts last the lines that it reads member by member.
    assert causes(of_block) == causes(of_lines)
    kept = places_of([GOOD if line == good else line for line in many if line.strip()])
    assert (list(range(len(kept))) if places is None else places.to_list()) == kept


@pytest.mark.parametrize("line", TRICKY)
def test_a_tricky_line_among_many_is_read_as_alone(line: bytes) -> None:
    expect_same([line])
    expect_same([line], good=NUMBERED)


@pytest.mark.parametrize("number", [b"-0", b"1e9", b"1577836802.0", b"99999999999999", b"9223372036854775808", b"null"])
def test_numbers_of_times_are_read_as_alone_where_times_were_whole_numbers_so_far(number: bytes) -> None:
    expect_same([b'{"ts": ' + number + b', "n": 1}'], good=NUMBERED)


def test_times_that_are_no_whole_numbers_any_more_are_not_read_as_such() -> None:
    reader = JsonRows(SCHEMA, TimeFormat(), Misfits())
    read = reader._blocks.read
    asked: list[tuple[bool, bool]] = []

    def seen(data: bytes, numbers: set[str]) -> pl.DataFrame | None:
        before = "ts" in numbers
        found = read(data, numbers)
        asked.append((before, found is not None))
        return found

    reader._blocks.read = seen  # type: ignore[method-assign]
    for line in (NUMBERED, NUMBERED, GOOD, GOOD, NUMBERED, NUMBERED):
        assert reader.read_block(b"\n".join([line] * 2 * FEW_ROWS)).height == 2 * FEW_ROWS

    assert asked == [(False, True), (True, True), (True, True), (False, True), (False, True), (True, True)]


@examples(25)
@given(st.lists(st.sampled_from([GOOD, *TRICKY]), max_size=6))
@example([b'{"n": 1}', b'{"n": 1, "n": 2}'])
@example([b"{}", b'{"n": 1, "n": null}'])
def test_tricky_lines_beside_each_other_are_read_as_alone(lines: list[bytes]) -> None:
    expect_same(lines)


@examples(35)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "n": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
                "x": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**64), 2**64)),
                "s": st.one_of(st.none(), st.text(max_size=4), st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
                "b": st.one_of(st.none(), st.booleans()),
                "q": st.recursive(st.none() | st.text(max_size=2), lambda inner: st.dictionaries(st.sampled_from([*NAMES, "z"]), inner)),
            },
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_any_objects_among_many_are_read_as_alone(rows: list[dict[str, Any]], ascii_only: bool) -> None:
    expect_same([json.dumps(row, ensure_ascii=ascii_only).encode() for row in rows])


def test_regular_lines_are_read_in_columns() -> None:
    """Checks that the column-wise reader accepts these lines, not only that its rows are right."""
    lines = [
        GOOD,
        GOOD.replace(b": ", b":"),
        GOOD.replace(b'"a"', b'"10.0.0.1"'),
        GOOD.replace(b"7", b"null"),
        GOOD.replace(b', "b": true', b""),
        GOOD.replace(b"true}", b'true, "more": [1, {"a": 2}]}'),
        GOOD.replace(b'"a"', b'"caf\\u00e9"'),
    ]
    for line in lines:
        frame = JsonBlocks(SCHEMA, RAW_TYPES).read(b"\n".join([GOOD] * 9 + [line] * 9) + b"\n", set())
        assert frame is not None, line
        assert frame.height == 18


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("zero", [b"-0", b" -0", b"-0e1", b"\t-0"])
def test_zeros_with_a_sign_are_found_wherever_a_block_is_cut(zero: bytes, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_blocks, "_OCTETS_AT_ONCE", 64 + place)
    for before in range(5):
        line = b'{"s": "' + b"a" * before + b'", "x":' + zero + b"}\n"
        for padding in range(0, 70, 3):
            data = b'{"x": 0.0, "ts": "2026-01-05T00:00:00", "s": "' + b"b" * padding + b'"}\n' + line
            assert JsonBlocks(SCHEMA, RAW_TYPES).read(data, set()) is None
    good = b'{"x": -0.5, "ts": "2026-01-05T00:00:00"}\n{"x": -0.0}\n{"x": 0}\n{"x": -7}\n{"n": -1}\n'
    assert JsonBlocks(SCHEMA, RAW_TYPES).read(good, set()) is not None


def test_lines_nested_so_deep_that_a_stack_would_not_hold_them_are_left_out() -> None:
    deep = b'{"q": ' + b"[" * 60_000 + b"]" * 60_000 + b"}"
    misfits = Misfits()

    rows = JsonRows(SCHEMA, TimeFormat(), misfits).read_block(b"\n".join([b""] * 60_000 + [GOOD] * FEW_ROWS + [deep, GOOD]) + b"\n")

    assert (rows.height, [kind.cause for kind in misfits.told()]) == (FEW_ROWS + 1, ["is not JSON"])


# --------------------------------------------------------------------------------------------------------------- CSV

PLAIN = b"1577836800,1,1.5,a,true\n"
ODD_NUMBERS = ["+5", " 5", "5 ", "5.0", "007", "1.50", "-0", '"5"', '" 5"', '""', " ", "", ".5", "5.", "1e3", "0x1", "1_0", "-", "--5"]
NUMBERS = st.one_of(st.integers(-(2**64), 2**64).map(str), st.floats().map(repr), st.sampled_from(ODD_NUMBERS))
FIELDS = st.one_of(NUMBERS, st.sampled_from(["true", "TRUE", "t", "0", "1577836802", "253402300800", "2026-01-31T12:00:00Z", "é"]))
RECORDS = st.lists(st.tuples(*[FIELDS] * 5).map(lambda record: (",".join(record) + "\n").encode()), max_size=4).map(b"".join)


@examples(25)
@given(st.lists(st.one_of(RECORDS, st.just(PLAIN)), max_size=4), st.booleans())
@example([b"007,+5, 5,x,TRUE\n", b"1,5.0,1.50,x,true\n", b"2,6,7,x,true\n"], True)
@example([b"253402300800,1,1,007,true\n"], True)
def test_numbers_of_csv_are_the_same_read_as_numbers_or_as_texts(blocks: list[bytes], learns: bool) -> None:
    """A reader whose blocks had only plain numbers parses numbers directly; any other reader parses texts."""
    at_once, as_texts = Misfits(), Misfits()
    numbers, texts = (CsvRows(SCHEMA, NAMES, ",", TimeFormat(), misfits) for misfits in (at_once, as_texts))
    if learns:
        numbers.read(PLAIN)
    texts.read(b"1.5, 1 ,1.0 ,a,t\n")

    for block in blocks:
        assert [repr(row) for row in numbers.read(block).rows()] == [repr(row) for row in texts.read(block).rows()]

    assert at_once.told() == as_texts.told()


# ------------------------------------------------------------------------------------------------------------- times

ZONES = ("", "Z", "+02:00", "-11:30", "+23:59")
CHARACTERS = "0123456789-:. TZ+/;é"


@st.composite
def near_times(draw: st.DrawFn) -> str:
    """A time, with some characters changed."""
    time = draw(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)))
    digits = draw(st.integers(0, 7))
    text = time.strftime("%m-%d" + draw(st.sampled_from("T ")) + "%H:%M:%S")
    fraction = f".{time.microsecond:06}0"[: digits + 1] if digits else ""
    written = list(f"{time.year:04}-{text}{fraction}{draw(st.sampled_from(ZONES))}")
    for place in draw(st.lists(st.integers(0, len(written) - 1), max_size=2)):
        written[place] = draw(st.sampled_from(CHARACTERS))
    return "".join(written)


@given(st.lists(st.one_of(st.none(), near_times()), max_size=12))
@example(["2024-02-29T00:00:00", "2023-02-29T00:00:00", "1900-02-29T00:00:00", "2000-02-29T00:00:00", "2100-03-01T00:00:00"])
@example(["2026-01-01T00:00:00", "2026-01-01T24:00:00", "2026-01-01T23:60:00", "2026-01-01T23:59:60", "2026-13-01T00:00:00"])
@example(["0000-01-01T00:00:00", "0001-01-01T00:00:00", "9999-12-31T23:59:59", "2026-00-10T00:00:00", "2026-01-00T00:00:00"])
@example(["2026-01-01T00:00:00.5+02:00", "2026-01-01T00:00:00.5+03:00", "2026-01-01T00:00:00x5+02:00", "2026-01-01x00:00:00.5+02:00"])
@example(["0001-01-01T00:00:00+02:00", "0001-01-01T02:00:00+02:00"])
def test_times_by_their_digits_are_those_of_the_general_way(texts: list[str | None]) -> None:
    given_texts = pl.Series("text", texts, dtype=pl.String())
    general = given_texts.to_frame().select(parse_time(pl.col("text"))).to_series()

    assert parse_times(given_texts).to_list() == general.to_list()


def test_regular_times_need_no_general_way() -> None:
    time = datetime(2024, 2, 29, 23, 59, 58, 120_000)
    written = ["2024-02-29T23:59:58.12Z", "2024-02-29T23:59:58.12Z", "2024-02-29T23:59:58.120000Z", "soon", None, "2024-02-30T23:59:58.12Z"]
    assert regular_times(pl.Series(written)).to_list() == [time, time, time, None, None, None]
    assert regular_times(pl.Series(["2024-02-29 23:59:58.12-01:30"])).to_list() == [datetime(2024, 3, 1, 1, 29, 58, 120_000)]
    assert regular_times(pl.Series([], dtype=pl.String())).to_list() == []


@pytest.mark.parametrize("zone", ["", "Z", "+02:30"])
@pytest.mark.parametrize("digits", range(7))
def test_a_wrong_character_anywhere_is_found_and_right_times_need_no_general_way(digits: int, zone: str) -> None:
    fraction = "." + "987654"[:digits] if digits else ""
    right = [
        f"2024-02-{day}T{hour}:59:{second}{fraction}{zone}" for day in ("28", "29") for hour in ("00", "23") for second in ("00", "59")
    ]
    times = [datetime.fromisoformat(text).replace(tzinfo=None) - timedelta(minutes=150 if zone[:1] == "+" else 0) for text in right]
    assert regular_times(pl.Series(right)).to_list() == times

    wrong = [text[:place] + mark + text[place + 1 :] for text in right[:1] for place in range(len(text)) for mark in "/:9 T"]
    mixed = pl.Series("text", [text for pair in zip(wrong, right * len(wrong), strict=False) for text in pair])
    general = mixed.to_frame().select(parse_time(pl.col("text"))).to_series()
    assert parse_times(mixed).to_list() == general.to_list()
    assert regular_times(mixed)[1::2].to_list() == general[1::2].to_list()


def test_rows_of_a_block_that_is_read_in_parts_have_the_places_of_their_lines() -> None:
    lines = [b'{"n": %d, "s": "%s"}' % (n, b"x" * 60) for n in range(4000)]
    lines[10], lines[2000], lines[2001], lines[3999] = b"no", b"", b'{"n": "x"}', b"{}"
    found = JsonRows(SCHEMA, TimeFormat(), Misfits()).read_block_placed(b"\n".join(lines))
    assert found.places is not None
    there = [line for line in lines if line]
    assert [json.loads(there[place]).get("n") for place in found.places] == found.frame["n"].to_list()
    assert found.places.to_list() == [place for place, line in enumerate(there) if line not in (b"no", b'{"n": "x"}')]
