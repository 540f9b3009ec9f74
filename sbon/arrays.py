"""Arrays and structs as JSON texts: an array whose elements have one type, or an object, in the form that sinks write.

Integers have no decimal point, times are ISO 8601 in UTC, NULL is `null`; elements of type JSON are unchanged. A struct has exactly the
members of its type, in their order.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from sbon.json_texts import elements_of, json_text, length_of, text_of_part
from sbon.schema import ColumnType, element_type, members_of

ELEMENTS_MAX = 65_536
"""Most elements of an array in a source's column or in UNNEST, so that one line cannot become any number of rows."""

_EPOCH, _MICROSECOND = datetime(1970, 1, 1), timedelta(microseconds=1)
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)
_DECODERS: dict[ColumnType, Callable[[Any], Any]] = {
    ColumnType.BOOL: msgspec.json.Decoder(list[bool | None]).decode,
    ColumnType.INT: msgspec.json.Decoder(list[int | None]).decode,
    ColumnType.FLOAT: msgspec.json.Decoder(list[float | None]).decode,
    ColumnType.TEXT: msgspec.json.Decoder(list[str | None]).decode,
    ColumnType.TIME: msgspec.json.Decoder(list[str | None]).decode,
}
_numbers = msgspec.json.Decoder(list[int | float | None]).decode
_encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_PLAIN: dict[ColumnType, Any] = {
    ColumnType.BOOL: bool,
    ColumnType.INT: Annotated[int, msgspec.Meta(ge=_INT_MIN, le=_INT_MAX)],
    ColumnType.FLOAT: float,
    ColumnType.TEXT: str,
}
"""Member types for which a single decoder reads the whole object."""
_NULL = "null"


def nested_text(text: str | bytes, kind: ColumnType) -> str | None:
    """Returns a text in the form that a column of JSON, arrays or structs keeps; None if the text is not of the type, or an array is too
    long.

    Parameters
    ----------
    kind : type of the column
    """
    if kind is ColumnType.JSON:
        return json_text(text)
    if members_of(kind):
        return struct_text(text, kind)
    found = array_text(text, element_type(kind) or ColumnType.JSON)
    return None if found is None or is_long(found) else found


def array_text(text: str | bytes, kind: ColumnType) -> str | None:
    """Returns the kept form of a text that is an array; None if the text is not an array with elements of this type.

    Parameters
    ----------
    kind : type of the elements

    Examples
    --------
    >>> array_text("[1, 2, null]", ColumnType.INT), array_text('["a", 1]', ColumnType.TEXT), array_text("[1.5]", ColumnType.INT)
    ('[1,2,null]', '["a","1"]', None)
    """
    compact = json_text(text)
    if compact is None or kind is ColumnType.JSON:
        return compact if compact is not None and elements(compact, kind) is not None else None
    if members_of(kind):
        parts = elements_of(compact)
        told = None if parts is None else [part if part == _NULL else _struct_text(part, kind) for part in parts]
        return None if told is None or None in told else f"[{','.join(map(str, told))}]"
    found = elements(compact, kind)
    if found is None and kind is ColumnType.TEXT:
        parts = elements_of(compact)  # elements that are not texts are kept as their JSON
        found = None if parts is None else [text_of_part(part, ()) for part in parts]
    if found is None:
        return None
    try:
        return _encode(list(map(_time, found)) if kind is ColumnType.TIME else found).decode()
    except _REFUSED:
        return None


def struct_text(text: str | bytes, kind: ColumnType) -> str | None:
    """Returns the kept form of a text that is an object; None if the text is not an object of this struct type.

    Missing members become NULL, unknown members are left out. If a name occurs twice, the last member counts.

    Examples
    --------
    >>> kind = ColumnType('struct[["lat","float"],["name","text"]]')
    >>> struct_text('{"name": "x", "lat": 1, "z": 2}', kind), struct_text('{"name": 5}', kind), struct_text('{"lat": "a"}', kind)
    ('{"lat":1.0,"name":"x"}', '{"lat":null,"name":"5"}', None)
    """
    compact = json_text(text)
    return None if compact is None else _struct_text(compact, kind)


def _struct_text(compact: str, kind: ColumnType) -> str | None:
    plainly = _decoder(kind)
    if plainly is not None:
        try:
            return _encode(plainly(compact)).decode()
        except _REFUSED:
            pass  # a member is written in another form, such as 5.0 for an integer
    try:
        found = _members(compact)
    except _REFUSED:
        return None
    told = []
    for member in members_of(kind):
        raw = found.get(member.name)
        value = _NULL if raw is None else _value_text(bytes(raw).decode(), member.type)
        if value is None:
            return None
        told.append(f"{_encode(member.name).decode()}:{value}")
    return f"{{{','.join(told)}}}"


def _value_text(compact: str, kind: ColumnType) -> str | None:
    """Returns the kept form of a value within an object; None if the value is not of the type."""
    if compact == _NULL:
        return compact
    if members_of(kind) or element_type(kind) is not None:
        return nested_text(compact, kind)
    found = array_text(f"[{compact}]", kind)
    return None if found is None else found[1:-1]


@lru_cache(1024)
def _decoder(kind: ColumnType) -> Callable[[str], Any] | None:
    """Returns a decoder for objects whose members all have plain types; None if the type has other members."""
    members = members_of(kind)
    if any(member.type not in _PLAIN for member in members):
        return None
    slots = [(f"m{place}", _PLAIN[member.type] | None, None) for place, member in enumerate(members)]
    names = {slot: member.name for (slot, _, _), member in zip(slots, members, strict=True)}
    try:
        return msgspec.json.Decoder(msgspec.defstruct("Struct", slots, rename=names, gc=False)).decode
    except (ValueError, TypeError):  # a name with a quote or a control character in it
        return None


def elements(text: str, kind: ColumnType) -> list[Any] | None:
    """Returns the elements of an array: bool, int, float, str or None; times, JSON and structs as texts. None if the text is not such an
    array.

    Examples
    --------
    >>> elements("[1,null]", ColumnType.INT), elements('[1,{"a":2}]', ColumnType.JSON), elements("[1]", ColumnType.TEXT)
    ([1, None], ['1', '{"a":2}'], None)
    """
    try:
        found: Any = elements_of(text) if kind not in _DECODERS else _DECODERS[kind](text)
    except _REFUSED:
        found = None if kind is not ColumnType.INT else _whole(text)
    if found is None:
        return None
    if members_of(kind):
        return [None if part == _NULL else part for part in found]
    if kind is ColumnType.INT and any(number is not None and not _INT_MIN <= number <= _INT_MAX for number in found):
        return None
    return list(found)


def is_long(text: str) -> bool:
    """Tells whether a text is an array of more than `ELEMENTS_MAX` elements, of any type."""
    return text.count(",") >= ELEMENTS_MAX and (length_of(text) or 0) > ELEMENTS_MAX


def values_of(text: str, kind: ColumnType) -> list[Any] | None:
    """Returns the elements of an array as columns hold them: like `elements`, but times as integer microseconds since 1970.

    Examples
    --------
    >>> values_of('["1970-01-01T00:00:01.000000Z",null]', ColumnType.TIME)
    [1000000, None]
    """
    found = elements(text, kind)
    if found is None or kind is not ColumnType.TIME:
        return found
    try:
        return [None if one is None else (_instant(one) - _EPOCH) // _MICROSECOND for one in found]
    except _REFUSED:
        return None


def plain_value(text: str, kind: ColumnType) -> Any:
    """Returns the Python value of a kept text: structs as dicts, arrays as lists, times as UTC datetimes, JSON as its text.

    Examples
    --------
    >>> plain_value('{"lat":1.0,"at":["1970-01-01T00:00:01.000000Z",null]}', ColumnType('struct[["lat","float"],["at","time[]"]]'))
    {'lat': 1.0, 'at': [datetime.datetime(1970, 1, 1, 0, 0, 1), None]}
    """
    if text == _NULL:
        return None
    members, element = members_of(kind), element_type(kind)
    if members:
        found = _members(text)
        return {member.name: plain_value(bytes(found[member.name]).decode(), member.type) for member in members}
    if element is not None:
        return [plain_value(part, element) for part in elements_of(text) or ()]
    if kind is ColumnType.JSON:
        return text
    (value,) = elements(f"[{text}]", kind) or (None,)
    return _instant(str(value)) if kind is ColumnType.TIME else value


def _whole(text: str) -> list[int | None] | None:
    """Returns the integers of an array that has some written as 5.0 or 5e3; None if a number is not an integer."""
    try:
        numbers: list[Any] = _numbers(text)
    except _REFUSED:
        return None
    if any(isinstance(number, float) and not number.is_integer() for number in numbers):
        return None
    return [None if number is None else int(number) for number in numbers]


def _time(text: str | None) -> str | None:
    """Returns a time in ISO 8601 as sinks write it. A time without a zone counts as UTC.

    Raises
    ------
    ValueError
        The text is not a time.
    """
    if text is None:
        return None
    return _instant(text).isoformat(timespec="microseconds") + "Z"


def _instant(text: str) -> datetime:
    """Returns a time in UTC, without its zone.

    Raises
    ------
    ValueError
        The text is not a time.
    """
    time = datetime.fromisoformat(text)
    return time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)
