"""The conversions of CAST. A value that does not convert gives NULL; a pair of types without a conversion is refused.

To INT from FLOAT: to the nearest, halves away from zero. Numbers stand for times as seconds since 1970 in UTC, and for intervals as
seconds. To TEXT: `true`/`false`, decimal numbers, ISO 8601 times, intervals as seconds (`90.5 s`). From TEXT: the same forms, and intervals
in any unit from `us` to `weeks`. ASCII blanks and line ends around a text are ignored, other white space is not.
"""

from collections.abc import Callable

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.division import quotient
from sbon.operators.times import BLANKS, format_time, microseconds_to_time, parse_time, parse_timestamps
from sbon.schema import ColumnType

BOOL, INT, FLOAT = ColumnType.BOOL, ColumnType.INT, ColumnType.FLOAT
TEXT, TIME, INTERVAL = ColumnType.TEXT, ColumnType.TIME, ColumnType.INTERVAL

_SECOND_US = 1_000_000
_UNITS_US = {
    "us": 1,
    "microsecond": 1,
    "ms": 1_000,
    "millisecond": 1_000,
    "s": _SECOND_US,
    "sec": _SECOND_US,
    "second": _SECOND_US,
    "m": 60 * _SECOND_US,
    "min": 60 * _SECOND_US,
    "minute": 60 * _SECOND_US,
    "h": 3600 * _SECOND_US,
    "hour": 3600 * _SECOND_US,
    "d": 86_400 * _SECOND_US,
    "day": 86_400 * _SECOND_US,
    "w": 7 * 86_400 * _SECOND_US,
    "week": 7 * 86_400 * _SECOND_US,
}
_UNITS_US |= {f"{unit}s": length_us for unit, length_us in _UNITS_US.items() if len(unit) > 2}
_UNIT = r"(us|ms|s|m|h|d|w|(?:microsecond|millisecond|sec|second|min|minute|hour|day|week)s?)"
_INTERVAL = rf"^([+-]?[0-9]+(?:\.[0-9]+)?)\s*{_UNIT}$"


def cast(value: pl.Expr, source: ColumnType, target: ColumnType) -> pl.Expr:
    """Converts a value.

    Raises
    ------
    RemoteProtocolError
        The types have no conversion.
    """
    if source is target:
        return value
    try:
        return _CASTS[source, target](value)
    except KeyError:
        raise RemoteProtocolError(f"cast from {source.value} to {target.value}, expected types that convert") from None


def _to_int(value: pl.Expr) -> pl.Expr:
    return value.round(0, mode="half_away_from_zero").cast(pl.Int64, strict=False)


def _text_to_int(value: pl.Expr) -> pl.Expr:
    text = value.str.strip_chars(BLANKS)
    return pl.when(text.str.contains(r"^[+-]?[0-9]+$")).then(text.str.strip_prefix("+").cast(pl.Int64, strict=False))


def _text_to_float(value: pl.Expr) -> pl.Expr:
    return value.str.strip_chars(BLANKS).cast(pl.Float64, strict=False)


def _text_to_bool(value: pl.Expr) -> pl.Expr:
    word = value.str.strip_chars(BLANKS).str.to_lowercase()
    truth = word.is_in(["true", "t", "yes", "1"])
    return pl.when(truth | word.is_in(["false", "f", "no", "0"])).then(truth)


def _text_to_interval(value: pl.Expr) -> pl.Expr:
    text = value.str.strip_chars(BLANKS).str.to_lowercase()
    number = text.str.extract(_INTERVAL, 1).cast(pl.Float64, strict=False)
    unit = text.str.extract(_INTERVAL, 2).replace_strict(_UNITS_US, default=None, return_dtype=pl.Float64)
    return _to_int(number * unit).cast(pl.Duration("us"))


def _seconds(value: pl.Expr) -> pl.Expr:
    return quotient(value.cast(pl.Int64), _SECOND_US)


def _interval_to_text(value: pl.Expr) -> pl.Expr:
    return pl.concat_str([_seconds(value).cast(pl.String).str.strip_suffix(".0"), pl.lit(" s")])


def _seconds_to_interval(value: pl.Expr) -> pl.Expr:
    return _to_int(value.cast(pl.Float64) * _SECOND_US).cast(pl.Duration("us"))


def _seconds_to_time(value: pl.Expr) -> pl.Expr:
    return parse_timestamps(value.cast(pl.Float64), _SECOND_US)


_CASTS: dict[tuple[ColumnType, ColumnType], Callable[[pl.Expr], pl.Expr]] = {
    (BOOL, INT): lambda value: value.cast(pl.Int64),
    (BOOL, FLOAT): lambda value: value.cast(pl.Float64),
    (BOOL, TEXT): lambda value: pl.when(value).then(pl.lit("true")).when(~value).then(pl.lit("false")),
    (INT, BOOL): lambda value: value != 0,
    (INT, FLOAT): lambda value: value.cast(pl.Float64),
    (INT, TEXT): lambda value: value.cast(pl.String),
    (INT, TIME): lambda value: microseconds_to_time(_within_seconds(value) * _SECOND_US),
    (INT, INTERVAL): lambda value: (_within_seconds(value) * _SECOND_US).cast(pl.Duration("us")),
    (FLOAT, BOOL): lambda value: value != 0.0,
    (FLOAT, INT): _to_int,
    (FLOAT, TEXT): lambda value: value.cast(pl.String),
    (FLOAT, TIME): _seconds_to_time,
    (FLOAT, INTERVAL): _seconds_to_interval,
    (TEXT, BOOL): _text_to_bool,
    (TEXT, INT): _text_to_int,
    (TEXT, FLOAT): _text_to_float,
    (TEXT, TIME): parse_time,
    (TEXT, INTERVAL): _text_to_interval,
    (TIME, INT): lambda value: value.cast(pl.Int64).floordiv(_SECOND_US),
    (TIME, FLOAT): _seconds,
    (TIME, TEXT): format_time,
    (INTERVAL, INT): lambda value: _to_int(_seconds(value)),
    (INTERVAL, FLOAT): _seconds,
    (INTERVAL, TEXT): _interval_to_text,
}


def _within_seconds(value: pl.Expr) -> pl.Expr:
    """Replaces a number of seconds that does not fit into 64 bits of microseconds with NULL."""
    return pl.when(value.is_between(-(2**63 // _SECOND_US), 2**63 // _SECOND_US)).then(value)
