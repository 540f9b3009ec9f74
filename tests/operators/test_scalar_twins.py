"""Functions of texts and numbers equal plain Python, row by row, for any characters and numbers of any size."""

from collections.abc import Callable
from decimal import ROUND_DOWN, Decimal
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sbon.operators.compile import columns_of, compile_column
from sbon.query.expression import Call, Column, Expression, Literal
from sbon.schema import ColumnType

TEXTS = st.lists(st.none() | st.text(st.sampled_from("aB-é日🎉 ß\u0301\n"), max_size=12), min_size=1, max_size=5)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-15, 15)
MOST = 1_000


def computed(name: str, rows: list[Any], *literals: Any) -> list[Any]:
    """Returns the engine's values of a function of a column and literals."""
    kinds = {str: ColumnType.TEXT, int: ColumnType.INT}
    arguments: list[Expression] = [Literal(value, kinds[type(value)]) for value in literals]
    frame = pl.DataFrame({"row": range(len(rows)), "value": rows}, schema_overrides={"value": pl.String} if rows != [] else {})
    return _values(Call(name, (Column("value"), *arguments)), frame)


def by_row(name: str, texts: list[str | None], numbers: list[int | None], *literals: str) -> list[Any]:
    """Returns the engine's values of a function of a text column, literals and a number column, in this order."""
    frame = pl.DataFrame({"text": texts, "number": numbers}, schema={"text": pl.String, "number": pl.Int64})
    middle = [Literal(value, ColumnType.TEXT) for value in literals]
    return _values(Call(name, (Column("text"), *middle, Column("number"))), frame)


def _values(call: Call, frame: pl.DataFrame) -> list[Any]:
    value, _, _ = compile_column(call, columns_of(frame))
    return frame.select(value.alias("made"), pl.len().alias("rows"))["made"].to_list()


def of_each(twin: Callable[..., Any], *columns: list[Any]) -> list[Any]:
    return [None if None in row else twin(*row) for row in zip(*columns, strict=True)]


@given(TEXTS, st.integers(-3, 20) | st.just(MOST + 1), st.text(st.sampled_from("xé日"), max_size=3))
def test_padding(texts: list[str | None], size: int, fill: str) -> None:
    def filling(text: str) -> str:
        return (fill * MOST)[: max(0, size - len(text))]

    def padded(text: str, *, left: bool) -> str | None:
        cut = text[: max(0, size)]
        return None if size > MOST else filling(text) + cut if left else cut + filling(text)

    assert computed("lpad", texts, size, fill) == of_each(lambda text: padded(text, left=True), texts)
    assert computed("rpad", texts, size, fill) == of_each(lambda text: padded(text, left=False), texts)


@given(TEXTS, st.data())
def test_repeating_and_parts(texts: list[str | None], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.none() | NUMBERS, min_size=len(texts), max_size=len(texts)))
    separator = data.draw(st.sampled_from(("-", "a", "é日", "--")))

    def repeated(text: str, times: int) -> str | None:
        return None if len(text) * max(0, times) > MOST else text * max(0, times) if text else ""

    def part(text: str, number: int) -> str | None:
        parts = text.split(separator)
        place = number - 1 if number > 0 else number
        return None if number == 0 else parts[place] if -len(parts) <= place < len(parts) else ""

    def at(text: str, index: int) -> str | None:
        parts = text.split(separator)
        return parts[index] if 0 <= index < len(parts) else None

    assert by_row("repeat", texts, numbers) == of_each(repeated, texts, numbers)
    assert by_row("split_part", texts, numbers, separator) == of_each(part, texts, numbers)
    assert by_row("split_index", texts, numbers, separator) == of_each(at, texts, numbers)


@given(TEXTS, st.text(st.sampled_from("aB-é日"), max_size=2))
def test_positions_and_ends(texts: list[str | None], part: str) -> None:
    assert computed("strpos", texts, part) == of_each(lambda text: text.find(part) + 1, texts)
    assert computed("ends_with", texts, part) == of_each(lambda text: text.endswith(part), texts)
    assert computed("trim", texts, part) == of_each(lambda text: text.strip(part) if part else text, texts)


FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.decimals(-1000, 1000, places=3).map(float)


@given(st.lists(FLOATS, min_size=1), st.integers(0, 6))
def test_truncated_numbers_have_the_decimals_that_are_written(numbers: list[float], decimals: int) -> None:
    frame = pl.DataFrame({"value": numbers})
    found = _values(Call("trunc", (Column("value"), Literal(decimals, ColumnType.INT))), frame)

    for number, cut in zip(numbers, found, strict=True):
        if abs(number) < 1e9:
            assert cut == float(Decimal(repr(number)).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_DOWN))
        else:
            assert abs(cut - number) <= 10.0**-decimals


@given(TEXTS, st.sampled_from((r"\&", r"\0-\&", r"<\1>", "$", r"\\")))
def test_replaced_matches(texts: list[str | None], new: str) -> None:
    group, whole = {r"\&": ("", "{0}"), r"\0-\&": ("", "{0}-{0}"), r"<\1>": ("", "<{1}>"), "$": ("", "$"), r"\\": ("", "\\")}[new]

    def replaced(text: str) -> str:
        made = group
        for character in text:  # the pattern is (a)|(é)
            made += whole.format(character, character if character == "a" else "") if character in "aé" else character
        return made

    assert computed("regexp_replace", texts, "(a)|(é)", new, "g") == of_each(replaced, texts)
