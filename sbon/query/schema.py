"""Types and names of the columns of a stream."""

import enum
from typing import TypeAlias

import msgspec


class ColumnType(enum.Enum):
    """The type of a column. Every type may be NULL."""

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
    """Any JSON value, held as its text without blanks between: members in their order, numbers and texts as they were written."""

    BOOLS = "bool[]"
    """Arrays are held as the text of an array of JSON, with their values as sinks write them; see `sbon.arrays`."""
    INTS = "int[]"
    FLOATS = "float[]"
    TEXTS = "text[]"
    TIMES = "time[]"
    DOCUMENTS = "json[]"

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
"""Type names as CREATE SOURCE and CAST write them."""

ELEMENT_TYPES: dict[ColumnType, ColumnType] = {
    ColumnType.BOOLS: ColumnType.BOOL,
    ColumnType.INTS: ColumnType.INT,
    ColumnType.FLOATS: ColumnType.FLOAT,
    ColumnType.TEXTS: ColumnType.TEXT,
    ColumnType.TIMES: ColumnType.TIME,
    ColumnType.DOCUMENTS: ColumnType.JSON,
}
"""Element type of each type of arrays."""
ARRAY_TYPES: dict[ColumnType, ColumnType] = {element: array for array, element in ELEMENT_TYPES.items()}
TYPE_NAMES |= {array: f"{TYPE_NAMES[element]}[]" for array, element in ELEMENT_TYPES.items()}

_HELD_AS = dict.fromkeys((ColumnType.JSON, *ELEMENT_TYPES), ColumnType.TEXT)
PLAIN_TYPES: tuple[ColumnType, ...] = tuple(kind for kind in ColumnType if kind not in _HELD_AS)
"""Types that are held as themselves."""


def held_type(kind: ColumnType) -> ColumnType:
    """Returns the type whose values stand for those of a type in frames, on links and in snapshots: TEXT for JSON and arrays.

    What a text stands for is known where a query is planned, and to sources and sinks; operators see texts.
    """
    return _HELD_AS.get(kind, kind)
