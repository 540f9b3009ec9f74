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
}
"""Types as CREATE SOURCE and CAST have them."""
