"""Converts rows to polars frames with the columns of their table. Loads polars, so idle agents do not import it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import polars as pl

from sbon.telemetry.rows import VERSION, Part, Row
from sbon.telemetry.schema import VERSION_KEY, Table
from sbon.types import NodeId

METADATA = {VERSION_KEY: str(VERSION)}
"""Metadata of every file."""


class Recorded(NamedTuple):
    """A row with the columns common to all rows."""

    time_us: int
    agent: NodeId
    start: str
    sequence: int
    row: Row


def frame_of(table: Table, rows: Sequence[Recorded]) -> tuple[pl.DataFrame, int]:
    """Returns a frame of these rows, sorted by time, and the number of rows left out because a value does not fit its column (numbers
    beyond 64 bits).

    Every row must be of the table's kind.
    """
    schema = table.polars_schema()
    parts, refused = _frames(schema, table.row.__struct_fields__, rows)
    frame = pl.concat(parts) if parts else pl.DataFrame(schema=schema)
    return frame.sort("time", "agent", "sequence"), refused


def _frames(schema: pl.Schema, names: tuple[str, ...], rows: Sequence[Recorded]) -> tuple[list[pl.DataFrame], int]:
    """Converts rows, halving the list at an error until only the faulty rows, normally none, are left out."""
    if not rows:
        return [], 0
    columns: dict[str, list[Any]] = {
        "time": [row.time_us for row in rows],
        "agent": [row.agent for row in rows],
        "start": [row.start for row in rows],
        "sequence": [row.sequence for row in rows],
        "version": [VERSION] * len(rows),
    }
    for name in names:
        columns[name] = [_plain(getattr(row.row, name)) for row in rows]
    try:
        series = [pl.Series(name, values, dtype=schema[name], strict=True) for name, values in columns.items()]
        return [pl.DataFrame(series, schema=schema)], 0
    except (OverflowError, TypeError, pl.exceptions.PolarsError):
        if len(rows) == 1:
            return [], 1
    half = len(rows) // 2
    first, refused_first = _frames(schema, names, rows[:half])
    second, refused_second = _frames(schema, names, rows[half:])
    return first + second, refused_first + refused_second


def _plain(value: Any) -> Any:
    """Converts parts to dicts by name, and tuples to lists."""
    if isinstance(value, Part):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def rows_of(table: Table, frame: pl.DataFrame) -> list[Recorded]:
    """Returns the rows as they were recorded; the inverse of `frame_of` up to order."""
    ints = frame.with_columns_seq(pl.col(pl.Datetime("us", "UTC")).to_physical())
    found = []
    for values in ints.iter_rows(named=True):
        own = {name: values[name] for name in table.row.__struct_fields__}
        found.append(Recorded(values["time"], values["agent"], values["start"], values["sequence"], _row(table.row, own)))
    return found


def _row(kind: type[Row], values: dict[str, Any]) -> Row:
    return msgspec.convert([_positional(value) for value in (kind.__struct_config__.tag, *values.values())], kind)


def _positional(value: Any) -> Any:
    """Converts dicts of structs to lists, which is the form of rows."""
    if isinstance(value, dict):
        return [_positional(item) for item in value.values()]
    if isinstance(value, list):
        return [_positional(item) for item in value]
    return value
