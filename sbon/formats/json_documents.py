"""Rows in JSON as one block of lines, each with one object, for `json_rows`: what messages hold is put into this form before it is read.

A line end may stand between the tokens of JSON, and never in a text: so a blank in its place changes nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from sbon.formats.json_blocks import lines_of

_BLANK_LINE = re.compile(rb"\n\s*\n")
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_any = msgspec.json.Decoder(msgspec.Raw).decode


class Lines(NamedTuple):
    """Lines without blank ones among them."""

    data: bytes
    """With line ends between the lines, and none behind the last."""
    rows: int


NO_LINES = Lines(b"", 0)


def dense(data: bytes) -> Lines:
    """Returns lines without those that are blank, which are no rows.

    Examples
    --------
    >>> dense(b'{"a": 1}\\n\\n{"a": 2}\\r\\n')
    Lines(data=b'{"a": 1}\\n{"a": 2}', rows=2)
    """
    text = data.strip()
    if not text:
        return NO_LINES
    if _BLANK_LINE.search(text):
        text = b"\n".join(lines_of(text))
    return Lines(text, text.count(b"\n") + 1)


def of_object(text: bytes) -> bytes:
    """Returns one JSON value, which may be written over several lines, as one line.

    Raises
    ------
    msgspec.MsgspecError, UnicodeDecodeError, RecursionError
        It is not JSON, or more than one value.
    """
    _any(text)
    return text.replace(b"\n", b" ")


def of_array(text: bytes) -> Lines:
    """Returns the members of a JSON array as lines.

    Raises
    ------
    msgspec.MsgspecError, UnicodeDecodeError, RecursionError
        It is not JSON, or no array.
    """
    rows = _list(text.replace(b"\n", b" ") if b"\n" in text else text)
    return Lines(b"\n".join(rows), len(rows))
