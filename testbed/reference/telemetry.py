"""Makes the page of the telemetry tables."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

from sbon.config import field_docstrings
from sbon.telemetry.rows import Part
from sbon.telemetry.schema import COMMON, TABLES, Column
from sbon_testbed.reference.markdown import code, page, prose, table

INTRODUCTION = """\
Every agent writes Parquet files under `telemetry` in its data directory, in folders `kind=KIND/date=YYYY-MM-DD/hour=HH`. Each kind is a
table. Timestamps are in UTC, to the microsecond. Names of columns contain their units. A column marked *later* was added after the first
release of the schema: files of older agents lack it, and its values are null for them."""


def telemetry_page() -> str:
    """Returns the page."""
    common = ["## Columns of every kind", _table(COMMON, frozenset())]
    return page("Telemetry", "`sbon/telemetry/rows.py` and `sbon/telemetry/decisions.py`", prose(INTRODUCTION), *common, *_kinds())


def _kinds() -> Iterator[str]:
    for kind in TABLES.values():
        yield f"## {code(kind.kind)}"
        yield f"One row: {prose(kind.meaning)}"
        yield _table(kind.columns[len(COMMON) :], kind.later)


def _table(columns: tuple[Column, ...], later: frozenset[str]) -> str:
    rows = [row for column in columns for row in _rows(column, later)]
    return table(("column", "type", "null", "meaning"), rows)


def _rows(column: Column, later: frozenset[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yields the column's own row, and one for each field of the structs in it."""
    part = _part(column.annotation)
    kind = column.type if part is None else "list of structs"
    null = "later" if column.name in later else "yes" if column.nullable else ""
    yield code(column.name), kind.replace("<", " of ").replace(">", ""), null, column.meaning
    if part is not None:
        yield from _part_rows(column.name, part)


def _part_rows(path: str, part: type[Part]) -> Iterator[tuple[str, str, str, str]]:
    hints, meanings = get_type_hints(part, include_extras=True), field_docstrings(part)
    for name in part.__struct_fields__:
        inner = _part(hints[name])
        kinds = get_args(hints[name]) if inner is None and get_origin(hints[name]) is not None else (hints[name],)
        nullable = type(None) in kinds
        kind = "list of structs" if inner is not None else _NAMES[next(one for one in kinds if one is not type(None))]
        yield code(f"{path}[].{name}"), kind, "yes" if nullable else "", meanings.get(name, "")
        if inner is not None:
            yield from _part_rows(f"{path}[].{name}", inner)


_NAMES: dict[Any, str] = {str: "string", int: "int64", float: "float64", bool: "bool"}


def _part(annotation: Any) -> type[Part] | None:
    """Returns the struct of a list of structs; None for other types."""
    inner = get_args(annotation)[0] if get_origin(annotation) is tuple else None
    return inner if isinstance(inner, type) and issubclass(inner, Part) else None
