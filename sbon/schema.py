"""Types and names of the columns of a stream."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec


class ColumnType(enum.Enum):
    """The type of a column. Every type may be NULL.

    Besides the types listed here, there is a type for each struct, and one for arrays of it: `struct_type` and `array_type` return them.
    Their values list the members, so that plans contain them like other types. Equal types are one object.
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
    """Any JSON value, held as its text without blanks between tokens; members keep their order, numbers and strings their form."""

    BOOLS = "bool[]"
    """Arrays are held as the text of a JSON array, with values in the form that sinks write (`sbon.arrays`)."""
    INTS = "int[]"
    FLOATS = "float[]"
    TEXTS = "text[]"
    TIMES = "time[]"
    DOCUMENTS = "json[]"

    @classmethod
    def _missing_(cls, value: object) -> ColumnType | None:
        """Returns the type of a struct, or of an array of structs, for a value; None if the value is not one, or there are too many
        types."""
        found = _STRUCTS.get(value) if isinstance(value, str) else None
        return found if found is not None or not isinstance(value, str) else _read(value)

    __hash__ = object.__hash__  # members are singletons; Enum.__hash__ is a Python function that would run on every dict lookup


class Field(msgspec.Struct, frozen=True, array_like=True, cache_hash=True):
    """One column."""

    name: str
    type: ColumnType


Schema: TypeAlias = tuple[Field, ...]

STRUCT_LENGTH_MAX = 4_000
"""Most characters of a struct type in a plan."""
STRUCT_DEPTH_MAX = 8
"""Most structs nested in each other."""
STRUCTS_MAX = 10_000
"""Most struct types of a process. They are kept for ever, because equal types must be one object."""
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
        There are no members, two with the same name, or one of a type that structs cannot hold; or the type is too large.

    Examples
    --------
    >>> place = struct_type([Field("lat", ColumnType.FLOAT), Field("tags", ColumnType.TEXTS)])
    >>> place.value, type_name(place), place is ColumnType(place.value)
    ('struct[["lat","float"],["tags","text[]"]]', 'STRUCT<lat DOUBLE, tags TEXT[]>', True)
    """
    return ColumnType(_STRUCT + _told([[member.name, _form(member.type)] for member in members]))


def array_type(kind: ColumnType) -> ColumnType | None:
    """Returns the type of arrays with elements of this type; None if there is none."""
    return ColumnType(_STRUCTS_OF + kind.value.removeprefix(_STRUCT)) if kind in _MEMBERS else ARRAY_TYPES.get(kind)


def element_type(kind: ColumnType | None) -> ColumnType | None:
    """Returns the type of an array's elements; None if the type is not an array type."""
    return None if kind is None else ELEMENT_TYPES.get(kind) or _ELEMENTS.get(kind)


def members_of(kind: ColumnType | None) -> Schema:
    """Returns the members of a struct type, in their order; empty for any other type."""
    return () if kind is None else _MEMBERS.get(kind, ())


def family(kind: ColumnType) -> ColumnType:
    """Returns the listed type whose values are read and written like those of `kind`: JSON for structs, JSON[] for arrays of structs."""
    return ColumnType.JSON if kind in _MEMBERS else ColumnType.DOCUMENTS if kind in _ELEMENTS else kind


def _form(kind: ColumnType) -> Any:
    """Returns the form of a type within the value of a struct type."""
    inner = _ELEMENTS.get(kind, kind)
    if inner not in _MEMBERS:
        return kind.value
    return {"struct" if inner is kind else "structs": [[member.name, _form(member.type)] for member in _MEMBERS[inner]]}


def _told(form: Any) -> str:
    return msgspec.json.encode(form).decode()


def _read(value: str) -> ColumnType | None:
    """Makes the type for a value; None if the value is not a type. Called once for each value, so that equal types are one object."""
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
    """Returns the members in the form of a struct type.

    Raises
    ------
    ValueError, TypeError
        The form is not that of a struct type.
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
    """Names of types; a struct's name is made from its members."""

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
"""Type names as CREATE SOURCE and CAST write them, including those of structs."""

ELEMENT_TYPES: dict[ColumnType, ColumnType] = {
    ColumnType.BOOLS: ColumnType.BOOL,
    ColumnType.INTS: ColumnType.INT,
    ColumnType.FLOATS: ColumnType.FLOAT,
    ColumnType.TEXTS: ColumnType.TEXT,
    ColumnType.TIMES: ColumnType.TIME,
    ColumnType.DOCUMENTS: ColumnType.JSON,
}
"""Element type of each array type, except arrays of structs; `element_type` covers those, too."""
ARRAY_TYPES: dict[ColumnType, ColumnType] = {element: array for array, element in ELEMENT_TYPES.items()}
TYPE_NAMES |= {array: f"{TYPE_NAMES[element]}[]" for array, element in ELEMENT_TYPES.items()}

_HELD_AS = dict.fromkeys((ColumnType.JSON, *ELEMENT_TYPES), ColumnType.TEXT)
PLAIN_TYPES: tuple[ColumnType, ...] = tuple(kind for kind in ColumnType if kind not in _HELD_AS)
"""Types that are held as themselves."""


def held_type(kind: ColumnType) -> ColumnType:
    """Returns the type that holds a type's values in frames, on links and in snapshots: TEXT for JSON, arrays and structs.

    Planning, sources and sinks know the type behind a text; operators see texts.
    """
    return _HELD_AS.get(family(kind), kind)
