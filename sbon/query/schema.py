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


class Field(msgspec.Struct, frozen=True, array_like=True, cache_hash=True):
    """One column."""

    name: str
    type: ColumnType


Schema: TypeAlias = tuple[Field, ...]
