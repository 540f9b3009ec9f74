"""Statements that users of Flink SQL, RisingWave or PostgreSQL try first are planned, or refused with a helpful message."""

import re

import msgspec
import pytest

from sbon.errors import QueryError
from tests.first_hour.rows import Row, answer, listed, understood

ROWS = listed()


@pytest.mark.parametrize("row", [row for _, row in ROWS if row.works], ids=lambda row: row.sql)
def test_what_works_is_planned_and_gives_these_rows(row: Row) -> None:
    made = understood(row.sql)

    if row.rows is not None:
        assert made is not None
        assert [[(type(value), value) for value in one] for one in answer(made)] == [
            [(type(value), value) for value in one] for one in sorted(row.rows, key=repr)
        ]


@pytest.mark.parametrize("row", [row for _, row in ROWS if row.refused], ids=lambda row: row.sql)
def test_what_is_refused_says_what_was_typed_and_what_to_write(row: Row) -> None:
    with pytest.raises(QueryError) as refusal:
        understood(row.sql)

    error = refusal.value
    assert [word for word in row.refused if word not in str(error)] == [], str(error)
    assert error.line > 0
    assert error.hint, str(error)
    assert called_at(row.sql, error) in str(error)


@pytest.mark.parametrize("row", [row for _, row in ROWS if row.hint_works], ids=lambda row: row.sql)
def test_what_a_hint_proposes_is_planned(row: Row) -> None:
    understood(row.hint_works)


def test_every_row_is_listed_once() -> None:
    assert len({row.sql for _, row in ROWS}) == len(ROWS) > 0


def called_at(sql: str, error: QueryError) -> str:
    """Returns the name, as typed, of the function call at an error's position; empty if there is none."""
    rest = sql.splitlines()[error.line - 1][error.column - 1 :] if sql else ""
    found = re.match(r"(\w+)\s*\(", rest)
    return found[1] if found else ""


@pytest.mark.parametrize(
    "row",
    [
        {"sql": "SELECT 1"},
        {"sql": "SELECT 1", "works": True, "refused": ["x"]},
        {"sql": "SELECT 1", "works": True, "hint_works": "SELECT 2"},
        {"sql": "SELECT 1", "refused": ["x"], "rows": [[1]]},
        {"sql": "SELECT 1", "refused": ["x"], "hint_work": "SELECT 2"},
    ],
)
def test_a_row_that_says_nothing_or_too_much_is_an_error(row: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(row, Row)
