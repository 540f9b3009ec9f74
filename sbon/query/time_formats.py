"""Translates time formats for the engine: the letters of PostgreSQL's TO_CHAR, which plans carry, and of Flink's DATE_FORMAT.

    YYYY YY MM DD DDD HH24 HH12 (or HH) MI SS MS US AM PM Mon FMMonth Dy FMDay IYYY IW ID Q   fields; FM before a number: without zeros
    "text"                                                                                    text as it is
    - / . , : ; and blanks, digits                                                            themselves

Any other letter is refused, as it is most likely a mistake.
"""

import re
from typing import NamedTuple

from sbon.errors import QueryError

FORMAT_LENGTH_MAX = 200


class TimeField(NamedTuple):
    """The meaning of one field's letters."""

    strftime: str
    """Conversion in the syntax of the Rust library chrono."""
    pattern: str
    """Regular expression of the field in a text that is parsed; empty: the field cannot be parsed."""
    part: str
    """Part of a time that the field gives; a format may have each part once."""


_FIELDS: dict[str, TimeField] = {
    "YYYY": TimeField("%Y", "[0-9]{4}", "year"),
    "YY": TimeField("%y", "", "year"),
    "MM": TimeField("%m", "[0-9]{1,2}", "month"),
    "DDD": TimeField("%j", "[0-9]{1,3}", "day of the year"),
    "DD": TimeField("%d", "[0-9]{1,2}", "day"),
    "HH24": TimeField("%H", "[0-9]{1,2}", "hour"),
    "HH12": TimeField("%I", "[0-9]{1,2}", "hour of twelve"),
    "HH": TimeField("%I", "[0-9]{1,2}", "hour of twelve"),
    "MI": TimeField("%M", "[0-9]{1,2}", "minute"),
    "SS": TimeField("%S", "[0-5]?[0-9]", "second"),
    "MS": TimeField("%3f", "[0-9]{3}", "fraction"),
    "US": TimeField("%6f", "[0-9]{6}", "fraction"),
    "IYYY": TimeField("%G", "", "ISO year"),
    "IW": TimeField("%V", "", "ISO week"),
    "ID": TimeField("%u", "", "ISO day"),
    "Q": TimeField("%q", "", "quarter"),
}
"""Fields with numbers; their letters may have any case."""
_NAMES: dict[str, TimeField] = {
    "FMMonth": TimeField("%B", "[A-Za-z]+", "month"),
    "Mon": TimeField("%b", "[A-Za-z]{3}", "month"),
    "FMDay": TimeField("%A", "", "day of the week"),
    "Dy": TimeField("%a", "", "day of the week"),
    "AM": TimeField("%p", "[AaPp][Mm]", "half"),
    "PM": TimeField("%p", "[AaPp][Mm]", "half"),
    "am": TimeField("%P", "[AaPp][Mm]", "half"),
    "pm": TimeField("%P", "[AaPp][Mm]", "half"),
}
"""Fields whose letters are case-sensitive."""
_HOURS = ("hour", "hour of twelve")
_PADDED = ("YYYY", "MM", "DD", "DDD", "HH24", "HH12", "HH", "MI", "SS")
"""Number fields that FM writes without leading zeros."""
_TO_CHAR = "the letters are YYYY MM DD HH24 MI SS MS US and others of docs/sql.md; text stands in double quotes"
_DATE_FORMAT = "the letters are yyyy MM dd HH mm ss SSS and others of docs/sql.md; text stands in doubled quotes, such as ''T''"
_OF_FLINK: dict[str, str] = {
    "yyyy": "YYYY", "yy": "YY", "MM": "MM", "M": "FMMM", "MMM": "Mon", "MMMM": "FMMonth", "dd": "DD", "d": "FMDD", "D": "FMDDD",
    "DDD": "DDD", "HH": "HH24", "H": "FMHH24", "hh": "HH12", "h": "FMHH12", "mm": "MI", "m": "FMMI", "ss": "SS", "s": "FMSS",
    "SSS": "MS", "SSSSSS": "US", "a": "AM", "E": "Dy", "EEE": "Dy", "EEEE": "FMDay",
}  # fmt: skip
_LETTERS = re.compile(r'(?P<names>FMMonth|FMDay|Month|Day|Mon|Dy|AM|PM|am|pm)|(?P<text>"[^"]*")|(?P<other>[^A-Za-z"]+)')
_NUMBERS = re.compile(r"(FM)?(IYYY|YYYY|DDD|HH24|HH12|YY|MM|DD|HH|MI|SS|MS|US|IW|ID|Q)", re.IGNORECASE)


def pieces(text: str) -> list[TimeField | str]:
    """Splits a format into fields and literal texts, in order.

    Raises
    ------
    QueryError
        The format has letters that are no field. The error has no place in the query.

    Examples
    --------
    >>> [piece if isinstance(piece, str) else piece.strftime for piece in pieces('YYYY-FMMM"T"')]
    ['%Y', '-', '%-m', 'T']
    """
    if not 0 < len(text) <= FORMAT_LENGTH_MAX:
        raise QueryError(f"a format of {len(text)} characters, expected 1 to {FORMAT_LENGTH_MAX}", hint=_TO_CHAR)
    found: list[TimeField | str] = []
    place = 0
    while place < len(text):
        match = _LETTERS.match(text, place) or _NUMBERS.match(text, place)
        if match is None:
            raise QueryError(f"format '{text}' has {_word(text[place:])} at character {place + 1}, which is no field", hint=_TO_CHAR)
        found.append(_piece(text, match))
        place = match.end()
    hours = [i for i, piece in enumerate(found) if isinstance(piece, TimeField) and piece.part in _HOURS]
    for i in hours:
        if found[i + 1 : i + 2] == [":"] and i + 2 < len(found) and found[i + 2] == _FIELDS["MM"]:
            raise QueryError(f"format '{text}' has MM, the month, after the hour", hint="minutes are MI")
    return found


def _piece(text: str, match: re.Match[str]) -> TimeField | str:
    groups = match.groupdict()
    if groups.get("text") is not None:
        return match[0][1:-1]
    if groups.get("other") is not None:
        return match[0]
    if groups.get("names") is not None:
        if match[0] in ("Month", "Day"):
            raise QueryError(f"format '{text}' has {match[0]}, which pads names with blanks", hint=f"write FM{match[0]}, or {match[0][:3]}")
        return _NAMES[match[0]]
    letters = match[2].upper()
    field = _FIELDS[letters]
    if not match[1]:
        return field
    if letters not in _PADDED:
        raise QueryError(f"format '{text}' has {match[0]}: {letters} has no form without zeros", hint=_TO_CHAR)
    return field._replace(strftime=field.strftime.replace("%", "%-"), pattern=field.pattern.replace("{4}", "{1,4}"))


def _word(text: str) -> str:
    """Returns the letters at the start of a text."""
    found = re.match(r"[A-Za-z]+", text)
    return found[0] if found is not None else text[:1]


def strftime_of(text: str) -> str:
    """Translates a format for writing times with the engine.

    Raises
    ------
    QueryError
        As from `pieces`.

    Examples
    --------
    >>> strftime_of("YYYY-MM-DD HH24:MI:SS.US")
    '%Y-%m-%d %H:%M:%S.%6f'
    """
    return _strftime(pieces(text))


def _strftime(found: list[TimeField | str]) -> str:
    return "".join(piece.replace("%", "%%") if isinstance(piece, str) else piece.strftime for piece in found)


def reading_of(text: str) -> tuple[str, str]:
    """Translates a format for reading times with the engine, and returns the regular expression of acceptable texts.

    Raises
    ------
    QueryError
        As from `pieces`; or a field cannot be read or is repeated, or the fields do not determine an instant.
    """
    found = pieces(text)
    parts: list[str] = []
    for piece in found:
        if isinstance(piece, str):
            continue
        if not piece.pattern:
            raise QueryError(f"format '{text}' has the {piece.part}, which TO_TIMESTAMP does not read", hint="write YYYY, MM and DD")
        if piece.part in parts:
            hint = "minutes are MI, MM is the month" if piece.part == "month" else "write each field once"
            raise QueryError(f"format '{text}' has the {piece.part} twice", hint=hint)
        parts.append(piece.part)
    _check_whole(text, set(parts))
    pattern = "".join(re.escape(piece) if isinstance(piece, str) else piece.pattern for piece in found)
    with_zeros = [piece if isinstance(piece, str) else piece._replace(strftime=piece.strftime.replace("-", "")) for piece in found]
    return _strftime(with_zeros), f"^(?:{pattern})$"


def _check_whole(text: str, parts: set[str]) -> None:
    """Refuses a format that does not determine an instant."""
    if not ({"year", "month", "day"} <= parts or {"year", "day of the year"} <= parts - {"month", "day"}):
        raise QueryError(f"format '{text}' does not say which day", hint="write YYYY, MM and DD")
    if ("hour of twelve" in parts) != ("half" in parts):
        raise QueryError(f"format '{text}' has only one of HH12 and AM", hint="write HH24 for 0 to 23, or HH12 with AM")
    steps = [bool(parts & set(_HOURS)), "minute" in parts, "second" in parts, "fraction" in parts]
    if steps != sorted(steps, reverse=True) or steps[:2] == [True, False] or len(parts & set(_HOURS)) > 1:
        raise QueryError(f"format '{text}' does not say which time of the day", hint="write HH24 and MI, and SS before MS or US")


def of_flink(text: str) -> str:
    """Translates the letters of Flink's DATE_FORMAT, which are those of Java, into those of TO_CHAR.

    Raises
    ------
    QueryError
        The format has letters without a counterpart here.

    Examples
    --------
    >>> of_flink("yyyy-MM-dd'T'HH:mm")
    'YYYY-MM-DD"T"HH24:MI'
    """
    made, place = "", 0
    while place < len(text):
        character = text[place]
        if character == "'":
            end = text.find("'", place + 1)
            if end < 0:
                raise QueryError(f"format '{text}' has a quote at character {place + 1} that is not closed", hint=_DATE_FORMAT)
            made += f'"{text[place + 1 : end] or chr(39)}"'
            place = end + 1
        elif character.isascii() and character.isalpha():
            letters = text[place : place + len(text[place:]) - len(text[place:].lstrip(character))]
            if letters not in _OF_FLINK:
                raise QueryError(f"format '{text}' has {letters} at character {place + 1}, which is no field", hint=_DATE_FORMAT)
            made += _OF_FLINK[letters]
            place += len(letters)
        elif character in '%"':
            raise QueryError(f"format '{text}' has {character} at character {place + 1}", hint=_DATE_FORMAT)
        else:
            made, place = made + character, place + 1
    return made
