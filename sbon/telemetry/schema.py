"""The tables of telemetry: kinds, columns, types, meanings. They are derived from the rows (`sbon.telemetry.rows`), so both always agree.

Files lie in `kind=K/date=YYYY-MM-DD/hour=HH/` (`sbon.telemetry.layout`) by the hour of `time`. Each file has the version in its metadata
(`VERSION_KEY`), each row in `version`.
"""

import types
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from sbon.config import field_docstrings
from sbon.telemetry.rows import VERSION, AnyRow, Instant, Part, Row

if TYPE_CHECKING:
    import polars as pl

VERSION_KEY = "sbon.schema_version"
"""Key of a file's metadata; the value is the version (`rows.VERSION`) as text."""

__all__ = ["COMMON", "PERIODIC", "TABLES", "VERSION", "VERSION_KEY", "Column", "Table"]

PERIODIC = ("probes", "coordinates", "load")
"""Kinds for which an agent that runs and has a peer records rows in every hour."""


class Column(NamedTuple):
    """One column."""

    name: str
    type: str
    """string, int64, float64, bool, timestamp (us, UTC), list<...> or struct<name: type, ...>."""
    nullable: bool
    meaning: str
    annotation: Any
    """The Python type."""


class Table(NamedTuple):
    """The table of one kind of rows."""

    kind: str
    meaning: str
    row: type[Row]
    columns: tuple[Column, ...]
    """Columns of all kinds first (`COMMON`), then the row's own."""
    later: frozenset[str]
    """Columns added after the schema's version: files of older agents lack them; read them as null."""

    def polars_schema(self) -> "pl.Schema":
        """Returns names and polars types; loads polars."""
        import polars as pl

        return pl.Schema({column.name: _polars_type(column.annotation) for column in self.columns})


COMMON = (
    Column("time", "timestamp", False, "When the row was recorded, by the agent's wall clock, UTC, microseconds.", Instant),
    Column("agent", "string", False, "The agent that recorded the row.", str),
    Column("start", "string", False, "Id of the agent's run; each start has another.", str),
    Column(
        "sequence", "int64", False, "Number of the row within the run, from 1, over all kinds; a repeated row has the same number.", int
    ),
    Column("version", "int64", False, "Version of this schema.", int),
)
"""Columns that every kind has."""


def _table(row: type[Row]) -> Table:
    hints = get_type_hints(row, include_extras=True)
    meanings = field_docstrings(row)
    columns = [_column(name, hints[name], meanings.get(name, "")) for name in row.__struct_fields__]
    later = frozenset(field.name for field in msgspec.structs.fields(row) if not field.required)
    return Table(str(row.__struct_config__.tag), (row.__doc__ or "").strip(), row, (*COMMON, *columns), later)


def _column(name: str, annotation: Any, meaning: str) -> Column:
    bare = _without_none(annotation)
    return Column(name, _type_name(bare), bare is not annotation, meaning, bare)


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        (bare,) = [kind for kind in get_args(annotation) if kind is not types.NoneType]
        return bare
    return annotation


_NAMES = {str: "string", int: "int64", float: "float64", bool: "bool"}


def _type_name(annotation: Any) -> str:
    if _is_instant(annotation):
        return "timestamp"
    if annotation in _NAMES:
        return _NAMES[annotation]
    if get_origin(annotation) is tuple:
        return f"list<{_type_name(get_args(annotation)[0])}>"
    fields = ", ".join(f"{name}: {_type_name(_without_none(kind))}" for name, kind in _fields(annotation))
    return f"struct<{fields}>"


def _polars_type(annotation: Any) -> Any:
    import polars as pl

    if _is_instant(annotation):
        return pl.Datetime("us", "UTC")
    if annotation in _NAMES:
        return {str: pl.String, int: pl.Int64, float: pl.Float64, bool: pl.Boolean}[annotation]()
    if get_origin(annotation) is tuple:
        return pl.List(_polars_type(get_args(annotation)[0]))
    return pl.Struct({name: _polars_type(_without_none(kind)) for name, kind in _fields(annotation)})


def _is_instant(annotation: Any) -> bool:
    if get_origin(annotation) is not Annotated:
        return False
    return any(isinstance(meta, msgspec.Meta) and bool((meta.extra or {}).get("instant")) for meta in get_args(annotation)[1:])


@lru_cache(maxsize=64)
def _fields(part: type[Part]) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(part, include_extras=True)
    return tuple((name, hints[name]) for name in part.__struct_fields__)


TABLES: dict[str, Table] = {table.kind: table for table in map(_table, get_args(AnyRow))}
"""Tables by kind."""
