"""Reads many NDJSON lines as columns at once with polars, if the result is the same as that of `json_rows` line by line.

polars refuses a block with a line that is no object, or with a member of another type than its column. Other differences are searched for
here: a name that occurs twice in a line, a value of a TEXT column that is no text, half of a surrogate pair, and a zero with a sign. A
block with one of these is not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.schema import ColumnType, Schema, held_type

_NAME = re.compile(r"\w+", re.ASCII)
_ESCAPE = re.compile(rb"\\u(?:[dD]|00[2-7])")
"""Escapes for halves of surrogate pairs, and for letters that may be in a name."""
_MAYBE_NO_TEXT = r"^[-0-9\[{]"
"""First characters of numbers, arrays and objects. As texts, polars writes them its own way; `true` and `false` are the same everywhere."""
_LINE_END, _BLANK, _QUOTE, _COLON, _MINUS, _POINT, _ZERO, _NINE = b'\n ":-.09'
_OCTETS_AT_ONCE = 1 << 15
"""Octets that are examined together; arrays made of them fit into the cache of a core."""
_Octets = npt.NDArray[np.uint8]


class JsonBlocks:
    """Reads blocks of whole lines.

    Parameters
    ----------
    types : types of the columns to make, by name
    """

    def __init__(self, schema: Schema, types: Mapping[str, pl.DataType]) -> None:
        self._types = dict(types)
        # polars writes objects and arrays its own way.
        self._possible = all(_NAME.fullmatch(field.name) and held_type(field.type) is field.type for field in schema)
        self._texts = [field.name for field in schema if field.type is ColumnType.TEXT]
        self._floats = [field.name for field in schema if field.type is ColumnType.FLOAT]
        self._patterns = {name: re.compile(rb'"%b"[ \t]*:[ \t]*"' % name.encode()) for name in self._texts if self._possible}

    def read(self, data: bytes, numbers: set[str]) -> pl.DataFrame | None:
        """Returns a row for each line that is not blank; None if some lines must be read one by one.

        Parameters
        ----------
        numbers : names of columns of times that have had whole numbers only, and are read as integers; names for which this fails are
            removed
        """
        if not self._possible or not data or (b"\\" in data and _ESCAPE.search(data)):
            return None
        whole = {name: pl.Int64() for name in self._types if name in numbers}
        frame = _read(data, self._types | whole)
        if frame is None and whole:  # for these polars takes only integers of 64 bits, without point and exponent
            frame = _read(data, self._types)
            numbers.difference_update(whole)
        return frame if frame is not None and self._is_read_well(frame, data) else None

    def _is_read_well(self, frame: pl.DataFrame, data: bytes) -> bool:
        # Without NULLs, each line has each column's name. If the block has no more names in all, each line has each once, and no others.
        all_once = not any(frame[name].null_count() for name in self._types) and (
            _names(np.frombuffer(data, np.uint8)) == len(frame) * len(self._types)
        )
        if not all_once and not all(_is_once(name, frame, data) for name in self._types):
            return False
        for name in self._texts:
            if frame[name].str.contains(_MAYBE_NO_TEXT).any() and not self._are_texts(name, len(frame) - frame[name].null_count(), data):
                return False
        return not any((frame[name] == 0.0).any() for name in self._floats) or not _has_signed_zero(np.frombuffer(data, np.uint8))

    def _are_texts(self, name: str, count: int, data: bytes) -> bool:
        """Tells whether a name occurs `count` times in a block, each time before a text."""
        return data.count(b'"%b"' % name.encode()) == len(self._patterns[name].findall(data)) == count


def _read(data: bytes, types: Mapping[str, pl.DataType]) -> pl.DataFrame | None:
    try:
        return pl.read_ndjson(data, schema=dict(types))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None


def lines_of(data: bytes) -> list[bytes]:
    """Returns the lines that are not blank."""
    return [line for line in data.split(b"\n") if line.strip()]


def _names(octets: _Octets) -> int:
    """Counts quotes that a colon follows, as after names of members; -1 if a blank follows a quote."""
    names = 0
    for first in range(0, len(octets), _OCTETS_AT_ONCE):
        behind = octets[first + 1 : first + 1 + _OCTETS_AT_ONCE]
        quotes = octets[first : first + len(behind)] == _QUOTE
        if (quotes & (behind <= _BLANK)).any():
            return -1
        names += int(np.count_nonzero(quotes & (behind == _COLON)))
    return names


def _has_signed_zero(octets: _Octets) -> bool:
    """Tells whether a zero is written with a sign and without a point, or something in a text looks like one."""
    for first in range(0, len(octets), _OCTETS_AT_ONCE):
        part = octets[first : first + _OCTETS_AT_ONCE + 3]
        before, sign, digit, behind = part[:-3], part[1:-2], part[2:-1], part[3:]
        # Dates have many of these, after digits.
        found = (sign == _MINUS) & ((before == _COLON) | (before <= _BLANK)) & (digit == _ZERO)
        if found.any() and (found & (behind != _POINT) & ((behind < _ZERO) | (behind > _NINE))).any():
            return True
    return False


def _is_once(name: str, frame: pl.DataFrame, data: bytes) -> bool:
    """Tells whether no line has this name, or a text that looks like it, more than once."""
    quoted = b'"%b"' % name.encode()
    if data.count(quoted) == frame.height - frame[name].null_count():
        return True
    places = np.fromiter((found.start() for found in re.finditer(quoted, data)), np.int64)
    return len(places) == len(np.unique(_lines_at(np.frombuffer(data, np.uint8), places)))


def _lines_at(octets: _Octets, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the numbers of the lines in which these places are."""
    return np.searchsorted(np.flatnonzero(octets == _LINE_END), places)
