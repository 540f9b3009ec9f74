"""Implements every function of `sbon.query.functions` as a polars expression; that module defines what each function computes.

`sbon.operators.builder` defines the arguments of a builder; functions of texts are in `sbon.operators.texts`.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.builder import Builder, literal_text, plainly
from sbon.operators.contained import contained, halved
from sbon.operators.division import quotient
from sbon.operators.frames import polars_type
from sbon.operators.json_calls import JSON_CALLS
from sbon.operators.texts import TEXTS
from sbon.operators.times import calendar, parse_time
from sbon.query.functions import MaybeType, common_type
from sbon.query.literal_arguments import SPANS_US
from sbon.query.time_formats import reading_of, strftime_of
from sbon.schema import ColumnType

INT, FLOAT, TIME, INTERVAL = ColumnType.INT, ColumnType.FLOAT, ColumnType.TIME, ColumnType.INTERVAL
PICKED_MAX = 3
"""Most arguments of GREATEST or LEAST compared in one expression: each is repeated three times as often as the next one."""
LISTED_MIN = 16
"""Number of constants above which IN uses a lookup."""

NULL_TAKERS = frozenset({"and", "or", "is_null", "coalesce", "greatest", "least", "concat_ws"})
"""Functions that accept a bare NULL. All others give NULL for it, and their builders get typed arguments only."""


def _common(name: str, values: Sequence[pl.Expr], types: Sequence[MaybeType]) -> list[pl.Expr]:
    """Returns the arguments cast to the one type that they share."""
    kind = common_type(name, types)
    if kind is None:
        return list(values)
    return [value if given is kind else value.cast(polars_type(kind)) for value, given in zip(values, types, strict=True)]


def _add(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    if FLOAT in types:
        for literal, other in zip(literals, reversed(values), strict=True):
            if _is_zero(literal, "0.0"):  # polars simplifies x + 0.0 to x, which is wrong for x = -0.0
                return pl.when(other == 0).then(0.0).otherwise(other)
    return values[0] + values[1]


def _sub(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    if FLOAT in types and _is_zero(literals[0], "0.0"):  # polars simplifies 0.0 - x to -x, which is wrong for x = 0.0
        return pl.when(values[1] == 0).then(0.0).otherwise(-values[1])
    if FLOAT in types and _is_zero(literals[1], "-0.0"):
        return pl.when(values[0] == 0).then(0.0).otherwise(values[0])
    return values[0] - values[1]


def _is_zero(literal: Any, text: str) -> bool:
    """Returns whether a literal is the zero of this sign."""
    return isinstance(literal, int | float) and str(float(literal)) == text


def _mul(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    if INTERVAL not in types:
        return values[0] * values[1]
    span, factor, kind = (values[0], values[1], types[1]) if types[0] is INTERVAL else (values[1], values[0], types[0])
    product = span.cast(pl.Int64) * factor
    return product.truncate().cast(pl.Int64, strict=False) if kind is FLOAT else product


def _cut(dividend: pl.Expr, divisor: pl.Expr) -> pl.Expr:
    """Divides integers toward zero (polars rounds down); NULL if the divisor is 0."""
    safe = _not_zero(divisor)
    down = dividend // safe
    uneven = (down * safe != dividend) & ((dividend < 0) != (safe < 0))
    return down + uneven.cast(pl.Int64)


def _not_zero(divisor: pl.Expr) -> pl.Expr:
    return pl.when(divisor != 0).then(divisor)


def _div(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    dividend, divisor = values
    if types[0] is INTERVAL:
        dividend = dividend.cast(pl.Int64)
        if types[1] is FLOAT:
            return quotient(dividend, _not_zero(divisor)).truncate().cast(pl.Int64, strict=False)
        return _cut(dividend, divisor.cast(pl.Int64))
    if FLOAT in types:
        return quotient(dividend, _not_zero(divisor))
    return _cut(dividend.cast(pl.Int64), divisor.cast(pl.Int64))


def _mod(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    dividend, divisor = _common("mod", values, types)
    if types[0] is types[1] is INT and literals[1] and abs(literals[1]) <= 2**62:
        rest = rest_of(dividend, literals[1])
        return pl.when((dividend < 0) & (rest != 0)).then(rest - abs(literals[1])).otherwise(rest)
    safe = _not_zero(divisor)
    if FLOAT in types:
        known = dividend.is_not_null() & safe.is_not_null()
        return pl.when(known).then(pl.map_batches([dividend, safe], _float_rest, return_dtype=pl.Float64(), is_elementwise=True))
    rest = dividend % safe  # has the sign of the divisor
    return pl.when((rest != 0) & ((dividend < 0) != (safe < 0))).then(rest - safe).otherwise(rest)


def _float_rest(columns: Sequence[pl.Series]) -> pl.Series:
    """Returns the exact remainder, with the sign of the dividend; polars computes `x - floor(x / y) * y`, which has rounding errors."""
    dividend, divisor = (column.to_numpy() for column in columns)
    with np.errstate(invalid="ignore"):
        return pl.Series(np.fmod(dividend, divisor))


def rest_of(dividend: pl.Expr, divisor: int) -> pl.Expr:
    """Returns the remainder of integers by a nonzero number, from 0 to below its absolute value. It is 0 exactly when SQL's remainder
    is 0, and for powers of two it takes a third of the time of a division."""
    size = abs(divisor)
    return dividend & (size - 1) if size & (size - 1) == 0 else dividend % size


def _neg(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    return -values[0]


def _compare(name: str, compare: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> Builder:
    def build(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
        left, right = _common(name, values, types)
        return compare(left, right)

    return build


def _fold(combine: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> Builder:
    def build(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
        return halved(combine, [value.cast(pl.Boolean) for value in values])

    return build


def _pick(name: str, better: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> Builder:
    """Builds GREATEST or LEAST: the second value wins if the first is NULL or the second is better."""

    def build(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
        def choose(first: pl.Expr, second: pl.Expr) -> pl.Expr:
            return pl.when(first.is_null() | better(second, first)).then(second).otherwise(first)

        kind = common_type(name, types)
        if len(values) <= PICKED_MAX or kind is None:
            return functools.reduce(choose, _common(name, values, types))
        dtype = polars_type(kind)
        return halved(lambda first, second: contained(lambda pair: choose(*pair), (first, second), dtype), _common(name, values, types))

    return build


def _in(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    first, *rest = _common("in", values, types)
    if len(rest) > LISTED_MIN and None not in literals[1:] and len(set(types)) == 1 and types[0] is not FLOAT:
        options = pl.Series(literals[1:], dtype=pl.Int64 if types[0] in (TIME, INTERVAL) else None)
        return (first.cast(pl.Int64) if types[0] in (TIME, INTERVAL) else first).is_in(options.implode())
    return halved(lambda a, b: a | b, [first == value for value in rest])


def _coalesce(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    return pl.coalesce(_common("coalesce", values, types))


def like_pattern(pattern: str) -> str:
    """Returns the regular expression of a SQL LIKE pattern."""
    parts, escaped = [], False
    for character in pattern:
        if escaped:
            parts.append(re.escape(character))
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
    if escaped:
        raise RemoteProtocolError(f"LIKE pattern {pattern!r} ends in a lone backslash")
    return "".join(parts)


def _like(flags: str) -> Builder:
    def build(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
        return values[0].str.contains(f"(?{flags})^{like_pattern(literal_text('like', literals[1]))}$")

    return build


def _abs(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    return values[0].cast(pl.Int64).abs() if types[0] is INTERVAL else values[0].abs()


def _sign(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    return values[0].sign()


def _round(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    digits = literals[1] if len(values) == 2 else 0
    if not isinstance(digits, int) or not 0 <= digits <= 15:
        raise RemoteProtocolError(f"round to {digits!r} decimals, expected a literal from 0 to 15")
    return values[0].round(digits, mode="half_away_from_zero") if types[0] is FLOAT else values[0]


def _of_float(apply: Callable[[pl.Expr], pl.Expr]) -> Builder:
    """Builds functions that leave integers unchanged."""
    return lambda values, types, literals: apply(values[0]) if types[0] is FLOAT else values[0]


def _real(apply: Callable[[pl.Expr], pl.Expr], holds: Callable[[pl.Expr], pl.Expr]) -> Builder:
    """Builds functions of a float that give NULL unless `holds`."""

    def build(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
        x = values[0].cast(pl.Float64)
        return apply(pl.when(holds(x)).then(x))

    return build


def _trunc(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    if types[0] is not FLOAT:
        return values[0]
    x, decimals = values[0], literals[1] if len(values) == 2 else 0
    if not decimals:
        return x.truncate()
    # Truncating the scaled value is wrong: 1.15 * 100 is 114.99999999999999. The rounded value is right unless it is beyond x; then it is
    # one step too far.
    nearest, scale = x.round(decimals, mode="half_away_from_zero"), 10.0**decimals
    inward = quotient((nearest.abs() * scale).round(0) - 1, scale) * x.sign()
    fine = ~x.is_finite() | (x.abs() * scale >= 2.0**53)  # floats this large have no further decimals
    return pl.when(fine).then(x).when(nearest.abs() <= x.abs()).then(nearest).otherwise(inward)


def _bounded(x: pl.Expr) -> pl.Expr:
    """Tells where sine or cosine is defined; NaN counts as defined and gives NaN."""
    return x.is_finite() | x.is_nan()


def _within_one(x: pl.Expr) -> pl.Expr:
    return (x.abs() <= 1) | x.is_nan()


def _atan2(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    return pl.arctan2(*(value.cast(pl.Float64) for value in values))


def _power(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    base, exponent = (value.cast(pl.Float64) for value in values)
    result = base.pow(exponent)
    return pl.when(result.is_finite() | ~base.is_finite() | ~exponent.is_finite()).then(result)


def _substr(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    text, start = values[0], values[1]
    offset = (start.clip(lower_bound=1) - 1).cast(pl.Int64)
    if len(values) == 2:
        return pl.when(start.is_not_null()).then(text.str.slice(offset))
    # Positions before the first character use up length, as in SQL: substr('hello', -1, 4) is 'he'.
    far = 2**40  # longer than any text, far from overflow
    count = values[2].clip(lower_bound=0, upper_bound=far)
    length = (start.clip(-far, far) + count - 1 - offset).clip(lower_bound=0)
    return pl.when(length.is_not_null()).then(text.str.slice(offset, length))


_TRUNCATE = {
    "microsecond": "1us",
    "millisecond": "1ms",
    "second": "1s",
    "minute": "1m",
    "hour": "1h",
    "day": "1d",
    "week": "1w",
    "month": "1mo",
    "quarter": "1q",
    "year": "1y",
}


def _date_trunc(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    unit = _TRUNCATE.get(literal_text("date_trunc", literals[0]).lower())
    if unit is None:
        raise RemoteProtocolError(f"date_trunc to {literals[0]!r}, expected one of {', '.join(_TRUNCATE)}")
    return calendar(values[1]).dt.truncate(unit)


def _to_char(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    return calendar(values[0]).dt.strftime(strftime_of(literal_text("to_char", literals[1])))


def _to_timestamp(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    written, pattern = reading_of(literal_text("to_timestamp", literals[1]))
    # The engine would also accept signs and blanks before numbers.
    return parse_time(pl.when(values[0].str.contains(pattern)).then(values[0]), written)


def _timestampdiff(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    size = SPANS_US[literal_text("timestampdiff", literals[0])]
    return _cut(values[2].cast(pl.Int64) - values[1].cast(pl.Int64), pl.lit(size, dtype=pl.Int64))


def _extract(apply: Callable[[pl.Expr], pl.Expr]) -> Builder:
    return lambda values, types, literals: apply(calendar(values[0]))


def _epoch(values: Sequence[pl.Expr], types: Sequence[MaybeType], literals: Sequence[Any]) -> pl.Expr:
    return quotient(values[0].cast(pl.Int64), 1_000_000)


SCALARS: dict[str, Builder] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "mod": _mod,
    "neg": _neg,
    "eq": _compare("eq", lambda a, b: a == b),
    "ne": _compare("ne", lambda a, b: a != b),
    "lt": _compare("lt", lambda a, b: a < b),
    "le": _compare("le", lambda a, b: a <= b),
    "gt": _compare("gt", lambda a, b: a > b),
    "ge": _compare("ge", lambda a, b: a >= b),
    "and": _fold(lambda a, b: a & b),
    "or": _fold(lambda a, b: a | b),
    "not": lambda values, types, literals: ~values[0],
    "is_null": lambda values, types, literals: values[0].is_null(),
    "like": _like("s"),
    "ilike": _like("si"),
    "in": _in,
    "coalesce": _coalesce,
    "greatest": _pick("greatest", lambda second, first: second > first),
    "least": _pick("least", lambda second, first: second < first),
    "abs": _abs,
    "sign": _sign,
    "round": _round,
    "floor": _of_float(lambda x: x.floor()),
    "ceil": _of_float(lambda x: x.ceil()),
    "sqrt": _real(lambda x: x.sqrt(), lambda x: x >= 0),
    "ln": _real(lambda x: x.log(), lambda x: x > 0),
    "log10": _real(lambda x: x.log10(), lambda x: x > 0),
    "exp": _real(lambda x: x.exp(), lambda x: x.is_not_null()),
    "power": _power,
    "cbrt": _real(lambda x: x.cbrt(), lambda x: x.is_not_null()),
    "sin": _real(lambda x: x.sin(), _bounded),
    "cos": _real(lambda x: x.cos(), _bounded),
    "tan": _real(lambda x: x.tan(), _bounded),
    "asin": _real(lambda x: x.arcsin(), _within_one),
    "acos": _real(lambda x: x.arccos(), _within_one),
    "atan": _real(lambda x: x.arctan(), lambda x: x.is_not_null()),
    "atan2": _atan2,
    "degrees": _real(lambda x: x.degrees(), lambda x: x.is_not_null()),
    "radians": _real(lambda x: x.radians(), lambda x: x.is_not_null()),
    "trunc": _trunc,
    "lower": plainly(lambda text: text.str.to_lowercase()),
    "upper": plainly(lambda text: text.str.to_uppercase()),
    "length": plainly(lambda text: text.str.len_chars()),
    "substr": _substr,
    "concat": plainly(lambda *texts: pl.concat_str(texts)),
    "starts_with": plainly(lambda text, start: text.str.starts_with(start)),
    **TEXTS,
    **JSON_CALLS,
    "date_trunc": _date_trunc,
    "to_char": _to_char,
    "to_timestamp": _to_timestamp,
    "timestampdiff": _timestampdiff,
    "extract_year": _extract(lambda time: time.dt.year()),
    "extract_quarter": _extract(lambda time: time.dt.quarter()),
    "extract_month": _extract(lambda time: time.dt.month()),
    "extract_week": _extract(lambda time: time.dt.week()),
    "extract_day": _extract(lambda time: time.dt.day()),
    "extract_dow": _extract(lambda time: time.dt.weekday().cast(pl.Int64) % 7),
    "extract_doy": _extract(lambda time: time.dt.ordinal_day()),
    "extract_hour": _extract(lambda time: time.dt.hour()),
    "extract_minute": _extract(lambda time: time.dt.minute()),
    "extract_second": _extract(lambda time: quotient(time.dt.second().cast(pl.Int64) * 1_000_000 + time.dt.microsecond(), 1_000_000)),
    "extract_epoch": _epoch,
}
