"""Types and names of the columns of a stream."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec


class ColumnType(enum.Enum):
    """The type of a column. Every type may be NULL.

    Beside those listed here there is a type for each struct, and for arrays of it: `struct_type` and `array_type` make it. Its value says
    what it consists of, so that plans carry it like any other. Equal types are one object.
    """

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

    @classmethod
    def _missing_(cls, value: object) -> ColumnType | None:
        """Returns the struct type, or array of structs, that a value stands for; None where it stands for none, or there are too many."""
        found = _STRUCTS.get(value) if isinstance(value, str) else None
        return found if found is not None or not isinstance(value, str) else _read(value)

    __hash__ = object.__hash__  # members are singletons; that of Enum is a function of its own for every look into a dict


class Field(msgspec.Struct, frozen=True, array_like=True, cache_hash=True):
    """One column."""

    name: str
    type: ColumnType


Schema: TypeAlias = tuple[Field, ...]

STRUCT_LENGTH_MAX = 4_000
"""Characters of a struct type in a plan."""
STRUCT_DEPTH_MAX = 8
"""Structs within each other."""
STRUCTS_MAX = 10_000
"""Struct types that a process knows; they are kept for ever, as equal ones are one object."""
_STRUCT, _STRUCTS_OF = "struct", "struct[]"
_STRUCTS: dict[str, ColumnType] = {}
_MEMBERS: dict[ColumnType, Schema] = {}
_ELEMENTS: dict[ColumnType, ColumnType] = {}
"""Struct types by their values; the members of each, and the elements of arrays of them."""


def struct_type(members: Sequence[Field]) -> ColumnType:
    """Returns the type of structs with these members.

    Raises
    ------
    ValueError
        There is no such type: it has no members, two of one name, one of a type that structs do not hold, or is too large.

    Examples
    --------
    >>> place = struct_type([Field("lat", ColumnType.FLOAT), Field("tags", ColumnType.TEXTS)])
    >>> place.value, type_name(place), place is ColumnType(place.value)
    ('struct[["lat","float"],["tags","text[]"]]', 'STRUCT<lat DOUBLE, tags TEXT[]>', True)
    """
    return ColumnType(_STRUCT + _told([[member.name, _form(member.type)] for member in members]))


def array_type(kind: ColumnType) -> ColumnType | None:
    """Returns the type of arrays with such elements; None where there is none."""
    return ColumnType(_STRUCTS_OF + kind.value.removeprefix(_STRUCT)) if kind in _MEMBERS else ARRAY_TYPES.get(kind)


def element_type(kind: ColumnType | None) -> ColumnType | None:
    """Returns the type of an array's elements; None where the type is none of arrays."""
    return None if kind is None else ELEMENT_TYPES.get(kind) or _ELEMENTS.get(kind)


def members_of(kind: ColumnType | None) -> Schema:
    """Returns the members of a struct type, in their order; none of any other type."""
    return () if kind is None else _MEMBERS.get(kind, ())


def family(kind: ColumnType) -> ColumnType:
    """Returns the type of the list above whose values come and go as those of a type do: JSON for structs, JSON[] for arrays of them."""
    return ColumnType.JSON if kind in _MEMBERS else ColumnType.DOCUMENTS if kind in _ELEMENTS else kind


def _form(kind: ColumnType) -> Any:
    """Returns a type as it stands within the value of a struct type."""
    inner = _ELEMENTS.get(kind, kind)
    if inner not in _MEMBERS:
        return kind.value
    return {"struct" if inner is kind else "structs": [[member.name, _form(member.type)] for member in _MEMBERS[inner]]}


def _told(form: Any) -> str:
    return msgspec.json.encode(form).decode()


def _read(value: str) -> ColumnType | None:
    """Makes the type of a value; None where it is none. Called for each value once, so that equal types are one object."""
    is_array = value.startswith(_STRUCTS_OF + "[[")
    if (not value.startswith(_STRUCT + "[[") and not is_array) or len(value) > STRUCT_LENGTH_MAX:
        return None
    form = value.removeprefix(_STRUCTS_OF if is_array else _STRUCT)
    try:
        members = _members(msgspec.json.decode(form), STRUCT_DEPTH_MAX)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return None
    if _told([[member.name, _form(member.type)] for member in members]) != form or len(_STRUCTS) >= STRUCTS_MAX:
        return None
    made = object.__new__(ColumnType)
    made._name_ = made._value_ = value
    if is_array:
        _ELEMENTS[made] = ColumnType(_STRUCT + form)
    else:
        _MEMBERS[made] = members
    found = _STRUCTS.setdefault(value, made)  # another thread may have been faster
    if found is not made:
        _ELEMENTS.pop(made, None)
        _MEMBERS.pop(made, None)
    return found


def _members(form: Any, depth: int) -> Schema:
    """Returns the members that a form stands for.

    Raises
    ------
    ValueError, TypeError
        It stands for none.
    """
    found = []
    for name, kind in form:
        if isinstance(kind, dict):
            ((tag, inner),) = kind.items()
            if depth <= 1 or tag not in ("struct", "structs"):
                raise ValueError("no struct")
            _members(inner, depth - 1)
            kind = ColumnType((_STRUCT if tag == "struct" else _STRUCTS_OF) + _told(inner))
        else:
            kind = ColumnType(kind)
        if kind is ColumnType.INTERVAL or not isinstance(name, str) or not name:
            raise ValueError("no member")
        found.append(Field(name, kind))
    if not found or len({member.name for member in found}) < len(found):
        raise ValueError("no members, or two of one name")
    return tuple(found)


class _Names(dict[ColumnType, str]):
    """Names of types; those of structs are made."""

    def __missing__(self, kind: ColumnType) -> str:
        inner = _ELEMENTS.get(kind, kind)
        told = ", ".join(f"{_identifier(member.name)} {self[member.type]}" for member in _MEMBERS[inner])
        return f"STRUCT<{told}>" + ("" if inner is kind else "[]")


def _identifier(name: str) -> str:
    return name if name.isidentifier() and name.islower() else '"{}"'.format(name.replace('"', '""'))


def type_name(kind: ColumnType) -> str:
    """Returns a type as CREATE SOURCE and CAST write it."""
    return TYPE_NAMES[kind]


TYPE_NAMES: dict[ColumnType, str] = _Names(
    {
        ColumnType.BOOL: "BOOLEAN",
        ColumnType.INT: "BIGINT",
        ColumnType.FLOAT: "DOUBLE",
        ColumnType.TEXT: "TEXT",
        ColumnType.TIME: "TIMESTAMP",
        ColumnType.INTERVAL: "INTERVAL",
        ColumnType.JSON: "JSON",
    }
)
"""Type names as CREATE SOURCE and CAST write them; of a struct too."""

ELEMENT_TYPES: dict[ColumnType, ColumnType] = {
    ColumnType.BOOLS: ColumnType.BOOL,
    ColumnType.INTS: ColumnType.INT,
    ColumnType.FLOATS: ColumnType.FLOAT,
    ColumnType.TEXTS: ColumnType.TEXT,
    ColumnType.TIMES: ColumnType.TIME,
    ColumnType.DOCUMENTS: ColumnType.JSON,
}
"""Element type of each type of arrays, but for arrays of structs: `element_type` has those, too."""
ARRAY_TYPES: dict[ColumnType, ColumnType] = {element: array for array, element in ELEMENT_TYPES.items()}
TYPE_NAMES |= {array: f"{TYPE_NAMES[element]}[]" for array, element in ELEMENT_TYPES.items()}

_HELD_AS = dict.fromkeys((ColumnType.JSON, *ELEMENT_TYPES), ColumnType.TEXT)
PLAIN_TYPES: tuple[ColumnType, ...] = tuple(kind for kind in ColumnType if kind not in _HELD_AS)
"""Types that are held as themselves."""


def held_type(kind: ColumnType) -> ColumnType:
    """Returns the type whose values stand for those of a type in frames, on links and in snapshots: TEXT for JSON, arrays and structs.

    What a text stands for is known where a query is planned, and to sources and sinks; operators see texts.
    """
    return _HELD_AS.get(family(kind), kind)
