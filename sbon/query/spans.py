"""Parses times and intervals as people write them, into microseconds."""

import re
from datetime import UTC, datetime, timedelta

from sbon.errors import QueryError

_SECOND = 1_000_000
_UNITS = {
    "us": 1,
    "microsecond": 1,
    "ms": 1_000,
    "millisecond": 1_000,
    "s": _SECOND,
    "sec": _SECOND,
    "second": _SECOND,
    "m": 60 * _SECOND,
    "min": 60 * _SECOND,
    "minute": 60 * _SECOND,
    "h": 3_600 * _SECOND,
    "hr": 3_600 * _SECOND,
    "hour": 3_600 * _SECOND,
    "d": 86_400 * _SECOND,
    "day": 86_400 * _SECOND,
    "w": 7 * 86_400 * _SECOND,
    "week": 7 * 86_400 * _SECOND,
}
_UNEVEN = ("month", "mon", "quarter", "year", "y", "yr", "decade", "century")
_PART = re.compile(r"\s*([+-]?)(\d{1,18})(?:\.(\d{1,6}))?\s*([a-z]+)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SPAN_MAX_US = 2**60
"""About 36,000 years, so that sums of a few spans stay within 64 bits."""

_FORM = "write a number and a unit from microseconds to weeks, such as INTERVAL '10 seconds'"


def parse_interval(text: str) -> int:
    """Returns the microseconds of `10 seconds`, `1 minute 30 s`, `-0.5 h`.

    Raises
    ------
    QueryError
        The text has another form, or a unit without a fixed length. The error has no place in the query.

    Examples
    --------
    >>> parse_interval("1 minute 30 seconds")
    90000000
    """
    rest, total, parts = text.strip().lower(), 0, 0
    while rest:
        match = _PART.match(rest)
        if match is None:
            raise QueryError(f"interval {text!r} cannot be read", hint=_FORM)
        total += _part(match, text)
        parts += 1
        rest = rest[match.end() :].strip()
    if not parts or abs(total) > SPAN_MAX_US:
        raise QueryError(f"interval {text!r} cannot be read", hint=_FORM)
    return total


def _part(match: re.Match[str], text: str) -> int:
    sign, whole, fraction, unit = match.groups()
    size = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s"))
    if size is None:
        if unit in _UNEVEN or unit.removesuffix("s") in _UNEVEN:
            raise QueryError(f"interval {text!r} has no fixed length", hint="count in days or weeks")
        raise QueryError(f"interval {text!r} has the unknown unit {unit}", hint=_FORM)
    value = int(whole) * size + (int((fraction or "0").ljust(6, "0")) * size) // 10**6
    return -value if sign == "-" else value


def parse_time(text: str) -> int:
    """Returns the microseconds since 1970 in UTC of an ISO 8601 date or time; a missing zone means UTC.

    Raises
    ------
    QueryError
        The text has another form. The error has no place in the query.

    Examples
    --------
    >>> parse_time("1970-01-01 00:00:01.5")
    1500000
    """
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise QueryError(f"time {text!r} cannot be read", hint="write it as '2026-01-31 23:59:59.5'") from None
