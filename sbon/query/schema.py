"""Types and names of the columns of a stream."""

import enum
from typing import TypeAlias

import msgspec


class ColumnType(enum.Enum):
    """What a column holds. Every type may be NULL."""

    BOOL = "bool"
    INT = "int"
    """64 bits, signed."""
    FLOAT = "float"
    """64 bits."""
    TEXT = "text"
    TIME = "time"
    """An instant, microseconds since 1970 in UTC; polars Datetime("us") without a zone."""
    INTERVAL = "interval"
    """A span of microseconds; polars Duration("us")."""
    JSON = "json"
    """Any value of JSON, held as its text without blanks between: members in their order, numbers and texts as they were written."""

    __hash__ = object.__hash__  # members are singletons; that of Enum is a function of its own for every look into a dict


class Field(msgspec.Struct, frozen=True, array_like=True, cache_hash=True):
    """One column."""

    name: str
    type: ColumnType


Schema: TypeAlias = tuple[Field, ...]

TYPE_NAMES: dict[ColumnType, str] = {
    ColumnType.BOOL: "BOOLEAN",
    ColumnType.INT: "BIGINT",
    ColumnType.FLOAT: "DOUBLE",
    ColumnType.TEXT: "TEXT",
    ColumnType.TIME: "TIMESTAMP",
    ColumnType.INTERVAL: "INTERVAL",
    ColumnType.JSON: "JSON",
}
"""Types as CREATE SOURCE and CAST have them."""

_HELD_AS = {ColumnType.JSON: ColumnType.TEXT}
PLAIN_TYPES: tuple[ColumnType, ...] = tuple(kind for kind in ColumnType if kind not in _HELD_AS)
"""Types that are held as themselves."""


def held_type(kind: ColumnType) -> ColumnType:
    """Returns the type whose values stand for those of a type in frames, on links and in snapshots: TEXT for JSON, otherwise the type.

    What JSON a text is, and whether, is known where a query is planned, and to sources and sinks; operators see texts.
    """
    return _HELD_AS.get(kind, kind)
