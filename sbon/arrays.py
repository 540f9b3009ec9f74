"""Arrays as texts: the JSON of an array whose elements are of one type, written as sinks write them.

Whole numbers have no point, times are ISO 8601 in UTC, NULL is `null`; elements of JSON stay as they came.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from sbon.json_texts import elements_of, json_text, length_of, text_of_part
from sbon.query.schema import ELEMENT_TYPES, ColumnType

ELEMENTS_MAX = 65_536
"""Elements of an array in a source's column, and of one that UNNEST takes apart: one line must not become any number of rows."""

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


def nested_text(text: str | bytes, kind: ColumnType) -> str | None:
    """Returns a text as a column of JSON, or of arrays of some type, keeps it; None where it is none, or an array that is too long.

    Parameters
    ----------
    kind : of the column
    """
    if kind is ColumnType.JSON:
        return json_text(text)
    found = array_text(text, ELEMENT_TYPES[kind])
    return None if found is None or is_long(found) else found


def array_text(text: str | bytes, kind: ColumnType) -> str | None:
    """Returns the array of elements of a type that a text is, as it is kept; None where it is none.

    Parameters
    ----------
    kind : of the elements

    Examples
    --------
    >>> array_text("[1, 2, null]", ColumnType.INT), array_text('["a", 1]', ColumnType.TEXT), array_text("[1.5]", ColumnType.INT)
    ('[1,2,null]', '["a","1"]', None)
    """
    compact = json_text(text)
    if compact is None or kind is ColumnType.JSON:
        return compact if compact is not None and elements(compact, kind) is not None else None
    found = elements(compact, kind)
    if found is None and kind is ColumnType.TEXT:
        parts = elements_of(compact)  # of what is no text, its JSON
        found = None if parts is None else [text_of_part(part, ()) for part in parts]
    if found is None:
        return None
    try:
        return _encode(list(map(_time, found)) if kind is ColumnType.TIME else found).decode()
    except _REFUSED:
        return None


def elements(text: str, kind: ColumnType) -> list[Any] | None:
    """Returns the elements of an array: bool, int, float, str or None, times as texts, JSON as its texts; None where it is none.

    Examples
    --------
    >>> elements("[1,null]", ColumnType.INT), elements('[1,{"a":2}]', ColumnType.JSON), elements("[1]", ColumnType.TEXT)
    ([1, None], ['1', '{"a":2}'], None)
    """
    try:
        found: Any = elements_of(text) if kind is ColumnType.JSON else _DECODERS[kind](text)
    except _REFUSED:
        found = None if kind is not ColumnType.INT else _whole(text)
    if found is None:
        return None
    if kind is ColumnType.INT and any(number is not None and not _INT_MIN <= number <= _INT_MAX for number in found):
        return None
    return list(found)


def is_long(text: str) -> bool:
    """Tells whether a text is an array of more than `ELEMENTS_MAX` elements, of any type."""
    return text.count(",") >= ELEMENTS_MAX and (length_of(text) or 0) > ELEMENTS_MAX


def values_of(text: str, kind: ColumnType) -> list[Any] | None:
    """Returns the elements of an array as columns hold them: as `elements`, but times in whole microseconds since 1970.

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


def _whole(text: str) -> list[int | None] | None:
    """Returns the numbers of an array of which some are written with a point or an exponent, 5.0 or 5e3; None where one is not whole."""
    try:
        numbers: list[Any] = _numbers(text)
    except _REFUSED:
        return None
    if any(isinstance(number, float) and not number.is_integer() for number in numbers):
        return None
    return [None if number is None else int(number) for number in numbers]


def _time(text: str | None) -> str | None:
    """A time in ISO 8601 as sinks write it; without a zone it is in UTC.

    Raises
    ------
    ValueError
        It is none.
    """
    if text is None:
        return None
    return _instant(text).isoformat(timespec="microseconds") + "Z"


def _instant(text: str) -> datetime:
    """A time in UTC, without its zone.

    Raises
    ------
    ValueError
        It is none.
    """
    time = datetime.fromisoformat(text)
    return time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)
