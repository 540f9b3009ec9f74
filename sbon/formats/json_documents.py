"""Puts rows in JSON, as messages have them, into a block of lines with one object each, for `json_rows`.

JSON allows line ends between tokens, and not within texts, so a blank can take the place of a line end.
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
    """Lines, none of which is blank."""

    data: bytes
    """The lines, with line ends between them and none after the last."""
    rows: int


NO_LINES = Lines(b"", 0)


def dense(data: bytes) -> Lines:
    """Returns the lines of a text without blank lines.

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
        The text is not JSON, or more than one value.
    """
    _any(text)
    return text.replace(b"\n", b" ")


def of_array(text: bytes) -> Lines:
    """Returns the members of a JSON array as lines.

    Raises
    ------
    msgspec.MsgspecError, UnicodeDecodeError, RecursionError
        The text is not JSON, or no array.
    """
    rows = _list(text.replace(b"\n", b" ") if b"\n" in text else text)
    return Lines(b"\n".join(rows), len(rows))
