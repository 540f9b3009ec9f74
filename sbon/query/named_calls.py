"""Rewrites SQL functions that are called by name into calls of the plan; those with a syntax of their own are in `scalar_calls`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlglot import exp

from sbon.errors import QueryError
from sbon.query.dialect import counted
from sbon.query.expression import Literal
from sbon.query.function_names import EXTRACTS, SYNONYMS
from sbon.query.functions import FUNCTIONS
from sbon.query.literal_arguments import SPANS_US
from sbon.query.nested import NESTED_NAMES
from sbon.query.scalar_calls import Bound, chosen
from sbon.query.time_formats import of_flink
from sbon.schema import ColumnType

if TYPE_CHECKING:
    from sbon.query.scalar import Scalars

INT, FLOAT, TEXT, TIME = ColumnType.INT, ColumnType.FLOAT, ColumnType.TEXT, ColumnType.TIME
INTERVAL = ColumnType.INTERVAL
_HIDDEN = frozenset({
    "json", "json_get", "json_text", "json_length", "bool_array", "int_array", "float_array", "text_array", "time_array", "json_array",
    "struct_of",
    "add", "sub", "mul", "div", "neg", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "in", "is_null", "like", "ilike",
})  # fmt: skip
"""Functions of the table that are written as operators, not as calls."""
_WHETHER = "REGEXP_LIKE(text, pattern) tells whether it matches, REGEXP_EXTRACT(text, pattern) gives the match"
_SECONDS = "EXTRACT(EPOCH FROM ts) gives seconds since 1970, TO_TIMESTAMP(seconds) the time"
_HASHES = "there are MD5(text) and SHA256(text)"
_INSTEAD = {
    **dict.fromkeys(("regexp_match", "regexp_count", "regexp_substr", "regexp_instr"), _WHETHER),
    **dict.fromkeys(("unix_timestamp", "from_unixtime"), _SECONDS),
    **dict.fromkeys(("sha1", "sha224", "sha384", "sha512"), _HASHES),
}


def function_names() -> list[str]:
    """Returns the names of the functions that people may call, for hints."""
    shown = [name for name in FUNCTIONS if name not in _HIDDEN and not name.startswith("extract_")]
    return sorted({*shown, *SYNONYMS, *EXTRACTS, *(name for name in _BY_NAME if name not in _INSTEAD), "extract", "cast", "nullif"})


def named(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Binds a call that is recognised by its name.

    Raises
    ------
    QueryError
        The function does not exist, or its arguments do not fit; points at the place.
    """
    name = str(tree.this).lower()
    if name in EXTRACTS:
        return _extract(scalars, tree, EXTRACTS[name])
    if name in _BY_NAME:
        return _BY_NAME[name](scalars, tree)
    name = SYNONYMS.get(name, name)
    if name not in FUNCTIONS or name in _HIDDEN or name.startswith("extract_"):
        raise scalars.unknown(tree)
    return scalars.call(tree, name, [scalars.bind(part) for part in tree.expressions], tree.expressions)


def _arguments(scalars: Scalars, tree: exp.Expr, form: str, least: int, most: int) -> list[exp.Expr]:
    """Returns the arguments after checking their number against the form."""
    if not least <= len(tree.expressions) <= most:
        expected = str(least) if least == most else f"{least} to {most}"
        raise scalars.refuse(tree, f"{tree.this} got {counted(len(tree.expressions), 'argument')}, expected {expected}", f"write {form}")
    return list(tree.expressions)


def _refused(scalars: Scalars, tree: exp.Expr) -> Bound:
    raise scalars.refuse(tree, f"there is no function {tree.this}", _INSTEAD[str(tree.this).lower()])


def _extract(scalars: Scalars, tree: exp.Expr, field: str) -> Bound:
    (time,) = _arguments(scalars, tree, f"{tree.this}(ts)", 1, 1)
    return scalars.call(tree, f"extract_{field}", [scalars.bind(time)])


def _second(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Binds SECOND as a whole number, as in Flink; EXTRACT gives the fraction, too."""
    seconds = _extract(scalars, tree, "second")
    return scalars.cast(tree, scalars.call(tree, "floor", [seconds]), INT)


def _day_of_week(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Binds DAYOFWEEK as Sunday 1 to Saturday 7, as in Flink; EXTRACT(dow ...) counts from Sunday 0, as PostgreSQL does."""
    return scalars.call(tree, "add", [_extract(scalars, tree, "dow"), (Literal(1, INT), INT)])


def _locate(scalars: Scalars, tree: exp.Expr) -> Bound:
    part, text = _arguments(scalars, tree, "LOCATE(part, text)", 2, 2)
    return scalars.call(tree, "strpos", [scalars.bind(text), scalars.bind(part)])


def _right(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Binds RIGHT. A negative number -n leaves out the first n characters, as in PostgreSQL."""
    text, number = (scalars.bind(part) for part in _arguments(scalars, tree, "RIGHT(text, n)", 2, 2))
    one, zero = (Literal(1, INT), INT), (Literal(0, INT), INT)
    negative, _ = scalars.call(tree, "lt", [number, zero])
    last = scalars.call(tree, "add", [scalars.call(tree, "sub", [scalars.call(tree, "length", [text]), number]), one])
    start = chosen(scalars, tree, [(negative, scalars.call(tree, "sub", [one, number]))], last)
    return scalars.call(tree, "substr", [text, start])


def _log2(scalars: Scalars, tree: exp.Expr) -> Bound:
    (number,) = _arguments(scalars, tree, "LOG2(x)", 1, 1)
    parts = [scalars.call(tree, "ln", [part]) for part in (scalars.bind(number), (Literal(2, INT), INT))]
    return scalars.call(tree, "div", parts)


def _pi(scalars: Scalars, tree: exp.Expr) -> Bound:
    _arguments(scalars, tree, "PI()", 0, 0)
    return Literal(math.pi, FLOAT), FLOAT


def _date_format(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Binds Flink's DATE_FORMAT, whose format uses the letters of Java."""
    time, given = _arguments(scalars, tree, "DATE_FORMAT(ts, 'yyyy-MM-dd')", 2, 2)
    written, _ = scalars.bind(given)
    if not isinstance(written, Literal) or not isinstance(written.value, str):
        raise scalars.refuse(given, f"{tree.this}: the format is a literal text", "write one, such as 'yyyy-MM-dd HH:mm:ss'")
    try:
        letters = of_flink(written.value)
    except QueryError as error:
        raise scalars.refuse(given, f"{tree.this}: {error.message}", error.hint) from None
    return scalars.call(tree, "to_char", [scalars.bind(time), (Literal(letters, TEXT), TEXT)], (time, given))


def _to_timestamp(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Binds TO_TIMESTAMP of a text with a format, of a text in ISO 8601, or of seconds since 1970."""
    parts = _arguments(scalars, tree, "TO_TIMESTAMP(text, 'YYYY-MM-DD HH24:MI:SS'), or TO_TIMESTAMP(seconds)", 1, 2)
    if len(parts) == 1:
        return scalars.cast(tree, scalars.bind(parts[0]), TIME)
    return scalars.call(tree, "to_timestamp", [scalars.bind(part) for part in parts], parts)


def _to_timestamp_ltz(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Binds Flink's TO_TIMESTAMP_LTZ of seconds (0) or milliseconds (3) since 1970."""
    number, precision = _arguments(scalars, tree, "TO_TIMESTAMP_LTZ(milliseconds, 3)", 2, 2)
    digits = precision.name if isinstance(precision, exp.Literal) else ""
    if digits not in ("0", "3"):
        raise scalars.refuse(precision, f"{tree.this}: the precision is 0 for seconds or 3 for milliseconds", "write one of them")
    span = scalars.call(tree, "mul", [scalars.bind(number), (Literal(1_000_000 if digits == "0" else 1_000, INTERVAL), INTERVAL)])
    return scalars.call(tree, "add", [(Literal(0, TIME), TIME), span])


def _unit(scalars: Scalars, tree: exp.Expr, given: exp.Expr) -> str:
    """Reads a unit written as a word or in quotes."""
    unit = given.name.lower().removeprefix("sql_tsi_")
    if unit not in SPANS_US:
        hint = f"the units are {', '.join(SPANS_US)}; for longer units, whose length varies, use EXTRACT(year FROM ts)"
        raise scalars.refuse(given, f"{tree.this} has no unit {given.name}", hint)
    return unit


def _timestampdiff(scalars: Scalars, tree: exp.Expr) -> Bound:
    unit, first, second = _arguments(scalars, tree, "TIMESTAMPDIFF(SECOND, from, to)", 3, 3)
    times = [scalars.as_time(part, scalars.bind(part)) for part in (first, second)]
    return scalars.call(tree, "timestampdiff", [(Literal(_unit(scalars, tree, unit), TEXT), TEXT), *times])


def _timestampadd(scalars: Scalars, tree: exp.Expr) -> Bound:
    unit, number, time = _arguments(scalars, tree, "TIMESTAMPADD(SECOND, 5, ts)", 3, 3)
    size = SPANS_US[_unit(scalars, tree, unit)]
    span = scalars.call(tree, "mul", [scalars.bind(number), (Literal(size, INTERVAL), INTERVAL)])
    return scalars.call(tree, "add", [scalars.as_time(time, scalars.bind(time)), span])


_BY_NAME: dict[str, Callable[[Scalars, exp.Expr], Bound]] = {
    **dict.fromkeys(_INSTEAD, _refused),
    "second": _second,
    "dayofweek": _day_of_week,
    "locate": _locate,
    "right": _right,
    "log2": _log2,
    "pi": _pi,
    "date_format": _date_format,
    "to_timestamp": _to_timestamp,
    "to_timestamp_ltz": _to_timestamp_ltz,
    "timestampdiff": _timestampdiff,
    "timestampadd": _timestampadd,
    **NESTED_NAMES,
}
