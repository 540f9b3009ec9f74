"""JSON as text: checks whether a text is JSON, and returns parts of it as they are written.

A JSON text is kept as it came, without the blanks between its tokens: members keep their order, numbers and strings their form. A text that
is nested deeper than `JSON_DEPTH_MAX` does not count as JSON, so that no reader needs an unbounded stack.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

JSON_DEPTH_MAX = 100
"""Most arrays and objects nested in each other."""

Key: TypeAlias = str | int
"""Name of a member, or index of an element: from 0, or from -1 backwards."""

_NONE = msgspec.Raw()
_REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKETS = {ord(b"["): 1, ord(b"{"): 1, ord(b"]"): -1, ord(b"}"): -1}
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


def json_text(text: str | bytes) -> str | None:
    """Returns the text without blanks between its tokens; None if it is not JSON, or nested too deep.

    Examples
    --------
    >>> json_text(' {"b": [1, 2.50], "a": "x y"} '), json_text("{a: 1}")
    ('{"b":[1,2.50],"a":"x y"}', None)
    """
    try:
        compact = msgspec.json.format(text.encode() if isinstance(text, str) else text, indent=-1)
        if compact.count(b"[") + compact.count(b"{") > JSON_DEPTH_MAX and _depth(compact) > JSON_DEPTH_MAX:
            return None
        return compact.decode()
    except _REFUSED:
        return None


def _depth(text: bytes) -> int:
    depth = deepest = 0
    for octet in _TEXT.sub(b"", text):
        depth += _BRACKETS.get(octet, 0)
        deepest = max(deepest, depth)
    return deepest


def part_of(text: str, keys: Sequence[Key]) -> str | None:
    """Returns the part of a JSON text at a path of keys, as JSON; None if the path does not exist.

    If a name occurs twice, the last member counts. A name does not exist in an array, nor an index in an object.

    Examples
    --------
    >>> part_of('{"a":[1,{"b":null}]}', ["a", -1, "b"]), part_of('{"a":[1]}', ["a", 1])
    ('null', None)
    """
    found = _part(text, keys)
    return None if found is None else found.decode()


def text_of_part(text: str, keys: Sequence[Key]) -> str | None:
    """Returns the part of a JSON text at a path of keys, like `part_of`, but strings unquoted, and None for `null`.

    Examples
    --------
    >>> text_of_part('{"a":"x\\\\ty"}', ["a"]), text_of_part('{"a":null}', ["a"])
    ('x\\ty', None)
    """
    found = _part(text, keys)
    if found is None or found == b"null":
        return None
    try:
        return _text(found) if found[:1] == b'"' else found.decode()
    except _REFUSED:
        return None


def _part(text: str, keys: Sequence[Key]) -> bytes | None:
    part: Any = text
    try:
        for key in keys:
            if isinstance(key, int):
                elements = _elements(part)
                if not -len(elements) <= key < len(elements):
                    return None
                part = elements[key]
            else:
                part = _member(key)(part)
                if not part:
                    return None
        return bytes(part) if keys else text.encode()
    except _REFUSED:
        return None


@lru_cache(1024)
def _member(name: str) -> Callable[[Any], Any]:
    """Returns a function that returns the member of this name; empty if there is none."""
    try:
        kind = msgspec.defstruct("Object", [("value", msgspec.Raw, _NONE)], rename={"value": name}, gc=False)
    except (ValueError, TypeError):  # a name with a quote or a control character in it
        return lambda text: _members(text).get(name, _NONE)
    decode: Callable[[Any], Any] = msgspec.json.Decoder(kind).decode
    return lambda text: decode(text).value


def elements_of(text: str) -> list[str] | None:
    """Returns the elements of an array, as JSON; None if the text is not an array.

    Examples
    --------
    >>> elements_of('[1,"a",[2]]'), elements_of("{}")
    (['1', '"a"', '[2]'], None)
    """
    try:
        return [bytes(element).decode() for element in _elements(text)]
    except _REFUSED:
        return None


def length_of(text: str) -> int | None:
    """Returns the number of elements of an array; None if the text is not an array."""
    try:
        return len(_elements(text))
    except _REFUSED:
        return None


_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


def kind_of(text: str) -> str | None:
    """Returns the kind of a JSON text: `object`, `array`, `string`, `number`, `boolean` or `null`; None if it is empty."""
    return _KINDS.get(text[:1], "number") if text else None


def json_of_text(text: str) -> str:
    """Returns a text as a JSON string, in quotes.

    Examples
    --------
    >>> json_of_text('say "é"')
    '"say \\\\"é\\\\""'
    """
    return _encode(text).decode()
