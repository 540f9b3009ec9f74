"""The table of scalar functions: which functions an expression may call, with which types, and what exactly each computes.

The SQL front end checks calls against this table, `sbon.operators.compile` turns them into polars expressions. A function gives
NULL when any argument is NULL, unless its text here says otherwise. Division by zero, the root of a negative number, the logarithm
of a number that is not positive, and a power without a real value give NULL, so that one odd row never stops a stream.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from sbon.errors import QueryError
from sbon.schema import ELEMENT_TYPES, TYPE_NAMES, ColumnType, family, held_type, members_of

MaybeType: TypeAlias = ColumnType | None
"""The type of an argument; None for a bare NULL, which takes any type."""

Rule: TypeAlias = Callable[[str, Sequence[MaybeType]], MaybeType]
"""Maps a function name and argument types to the result's type; raises QueryError if they do not fit."""

BOOL, INT, FLOAT = ColumnType.BOOL, ColumnType.INT, ColumnType.FLOAT
TEXT, TIME, INTERVAL, JSON = ColumnType.TEXT, ColumnType.TIME, ColumnType.INTERVAL, ColumnType.JSON
_NUMBERS = (INT, FLOAT)
_NUMBERS_ONLY = "use CAST(... AS DOUBLE), or EXTRACT(EPOCH FROM ...) for an INTERVAL"
_MEMBER_HINT = "take a value out of it as text, x ->> 'name', and CAST that"
_FIELD_HINT = "take a field out of it, (x).name"
_ELEMENT_HINT = "take an element out of it, a[1], or UNNEST it"
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "in", "=")

TIME_UNITS = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year")
"""Units of DATE_TRUNC, given as a literal; weeks start on Monday."""


class Function(msgspec.Struct, frozen=True):
    """One entry of the table."""

    name: str
    arguments_min: int
    arguments_max: int | None
    """Most arguments; None: any number."""
    rule: Rule
    meaning: str
    symbol: str = ""
    """Infix symbol that `sbon.query.text` writes between two arguments; empty: written as a call."""
    commutative: bool = False
    """Swapping the arguments leaves the value the same, bit for bit."""


class TypeMismatchError(QueryError):
    """Arguments whose types a function does not accept.

    Parameters
    ----------
    subject : the function's name, used if the text of the call is not known
    predicate : what the function accepts and what it got, written after the call
    """

    def __init__(self, subject: str, predicate: str, hint: str) -> None:
        self.predicate = predicate
        super().__init__(f"{subject} {predicate}", hint=hint)


def types_text(types: Sequence[MaybeType], last: str = " and ") -> str:
    """Lists types as `TEXT, BIGINT and DOUBLE`, one for each argument; bare NULLs, which fit any type, are left out."""
    names = [TYPE_NAMES[t] for t in types if t is not None]
    return last.join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _refuse(name: str, types: Sequence[MaybeType], wanted: str, hint: str) -> TypeMismatchError:
    """Returns an error such as `takes numbers, not TEXT and BIGINT`."""
    return TypeMismatchError(name, f"takes {wanted}, not {types_text(types)}", hint)


def common_type(name: str, types: Sequence[MaybeType]) -> MaybeType:
    """Returns the one type that all arguments share; INT widens to FLOAT."""
    known = [t for t in types if t is not None]
    if not known:
        return None
    if all(t in _NUMBERS for t in known):
        return FLOAT if FLOAT in known else INT
    if any(t is not known[0] for t in known):
        different = list(dict.fromkeys(known))
        told = "compares" if name in _COMPARISONS else "has values of"
        # A text converts to all types, a number to most.
        target = next((t for t in different if t is not TEXT), None) if {TEXT, INT, FLOAT} & set(different) else None
        if any(held_type(t) is not t for t in different):
            raise TypeMismatchError(name, f"{told} {types_text(different, ' with ' if told == 'compares' else ' and ')}", _MEMBER_HINT)
        hint = "all of them need one type" + (f": use CAST(... AS {TYPE_NAMES[target]})" if target is not None else "")
        raise TypeMismatchError(name, f"{told} {types_text(different, ' with ' if told == 'compares' else ' and ')}", hint)
    return known[0]


def _numeric(name: str, types: Sequence[MaybeType]) -> MaybeType:
    for t in types:
        if t is not None and t not in _NUMBERS:
            hint = "use CAST(... AS DOUBLE)" + (", or || to join texts" if name == "add" and TEXT in types else "")
            raise _refuse(name, types, "numbers", hint)
    return common_type(name, types)


def _add(name: str, types: Sequence[MaybeType]) -> MaybeType:
    pair = set(types)
    if TIME in pair:
        if pair <= {TIME, INTERVAL, None} and types.count(TIME) == 1:
            return TIME
        raise _refuse(name, types, "a TIMESTAMP and an INTERVAL", "write ts + INTERVAL '1 second'")
    if INTERVAL in pair:
        if pair <= {INTERVAL, None}:
            return INTERVAL
        raise _refuse(name, types, "an INTERVAL and an INTERVAL or a TIMESTAMP", "write n * INTERVAL '1 second' for a number of seconds")
    return _numeric(name, types)


def _sub(name: str, types: Sequence[MaybeType]) -> MaybeType:
    left, right = types
    if left is TIME and right in (TIME, INTERVAL, None):
        return INTERVAL if right is TIME else TIME
    if left is INTERVAL and right in (INTERVAL, None):
        return INTERVAL
    if left is None and right is INTERVAL:
        return INTERVAL
    if TIME in types or INTERVAL in types:
        wanted = "a TIMESTAMP and a TIMESTAMP or INTERVAL, or two INTERVALs"
        raise _refuse(name, types, wanted, "write ts - INTERVAL '1 second', or CAST(... AS TIMESTAMP)")
    return _numeric(name, types)


def _mul(name: str, types: Sequence[MaybeType]) -> MaybeType:
    if INTERVAL in types:
        other = types[1] if types[0] is INTERVAL else types[0]
        if other is None or other in _NUMBERS:
            return INTERVAL
        raise _refuse(name, types, "an INTERVAL and a number", "use CAST(... AS DOUBLE)")
    return _numeric(name, types)


def _div(name: str, types: Sequence[MaybeType]) -> MaybeType:
    if types[0] is INTERVAL and (types[1] is None or types[1] in _NUMBERS):
        return INTERVAL
    return _numeric(name, types)


def _neg(name: str, types: Sequence[MaybeType]) -> MaybeType:
    return INTERVAL if types[0] is INTERVAL else _numeric(name, types)


def _comparison(name: str, types: Sequence[MaybeType]) -> MaybeType:
    _ordered(name, types)
    return BOOL


def _ordered(name: str, types: Sequence[MaybeType]) -> MaybeType:
    common = common_type(name, types)
    if common is not None and held_type(common) is not common:
        told = "compares" if name in _COMPARISONS else "takes"
        raise TypeMismatchError(name, f"{told} {TYPE_NAMES[common]}, whose values have no order and no equality", _member_hint(common))
    return common


def _boolean(name: str, types: Sequence[MaybeType]) -> MaybeType:
    if any(t not in (BOOL, None) for t in types):
        raise _refuse(name, types, "conditions", "make it a condition by a comparison")
    return BOOL


def _any_to(result: ColumnType) -> Rule:
    return lambda name, types: result


def _float(name: str, types: Sequence[MaybeType]) -> MaybeType:
    _numeric(name, types)
    return FLOAT


def _round(name: str, types: Sequence[MaybeType]) -> MaybeType:
    if len(types) == 2 and types[1] is not INT:
        raise _refuse(name, types, "a BIGINT as number of decimals", "write it as a number, such as 2")
    return _numeric(name, types[:1])


def _typed(result: ColumnType, *expected: ColumnType) -> Rule:
    """Returns the rule of a function with these argument types, the last one repeating; a NULL fits everywhere."""

    def rule(name: str, types: Sequence[MaybeType]) -> MaybeType:
        for index, t in enumerate(types):
            want = expected[min(index, len(expected) - 1)]
            if t is not None and t is not want and not (want is FLOAT and t is INT):
                place = f" as argument {index + 1}" if len(set(expected)) > 1 else ""
                raise TypeMismatchError(
                    name, f"takes {TYPE_NAMES[want]}{place}, not {TYPE_NAMES[t]}", f"use CAST(... AS {TYPE_NAMES[want]})"
                )
        return result

    return rule


def _member_hint(kind: ColumnType) -> str:
    return _MEMBER_HINT if kind is JSON else _FIELD_HINT if members_of(kind) else _ELEMENT_HINT


def _of_json(result: ColumnType, *, keys: bool = False) -> Rule:
    def rule(name: str, types: Sequence[MaybeType]) -> MaybeType:
        # A host knows JSON as TEXT: `sbon.schema.held_type`.
        if types[0] is not None and family(types[0]) not in (JSON, TEXT, *ELEMENT_TYPES):
            raise _refuse(name, types[:1], "JSON", "declare the column JSON, or CAST a TEXT to it")
        if keys and any(t not in (TEXT, INT, None) for t in types[1:]):
            raise _refuse(
                name, types[1:], "the name of a member (TEXT) or the place of an element (BIGINT)", "write x -> 'name', or x -> 0"
            )
        return result

    return rule


def _extract(result: ColumnType, *, interval: bool = False) -> Rule:
    def rule(name: str, types: Sequence[MaybeType]) -> MaybeType:
        if types[0] is INTERVAL and not interval:
            raise _refuse(name, types, "a TIMESTAMP", "EXTRACT(EPOCH FROM ...) gives the seconds of an INTERVAL")
        if types[0] not in (TIME, INTERVAL, None):
            raise _refuse(name, types, "a TIMESTAMP", "use CAST(... AS TIMESTAMP)")
        return result

    return rule


_TABLE = (
    Function("add", 2, 2, _add, "Sum; a time plus an interval is a time. Integers wrap at 64 bits.", "+", True),
    Function("sub", 2, 2, _sub, "Difference; between two times it is an interval.", "-"),
    Function("mul", 2, 2, _mul, "Product; an interval times a number is an interval, rounded toward zero to a microsecond.", "*", True),
    Function(
        "div",
        2,
        2,
        _div,
        "Quotient; of two integers cut toward zero, of an interval cut to a microsecond. NULL where the divisor is 0.",
        "/",
    ),
    Function("mod", 2, 2, _numeric, "Remainder with the sign of the dividend; NULL where the divisor is 0.", "%"),
    Function("neg", 1, 1, _neg, "The negative."),
    Function("eq", 2, 2, _comparison, "Equal. Floats: NaN equals NaN and is greater than all else.", "=", True),
    Function("ne", 2, 2, _comparison, "Not equal.", "<>", True),
    Function("lt", 2, 2, _comparison, "Less. Texts compare by code point.", "<"),
    Function("le", 2, 2, _comparison, "Less or equal.", "<="),
    Function("gt", 2, 2, _comparison, "Greater.", ">"),
    Function("ge", 2, 2, _comparison, "Greater or equal.", ">="),
    Function("and", 2, None, _boolean, "Three-valued: false if any is false, else NULL if any is NULL.", "and", True),
    Function("or", 2, None, _boolean, "Three-valued: true if any is true, else NULL if any is NULL.", "or", True),
    Function("not", 1, 1, _boolean, "Negation; NULL stays NULL."),
    Function("is_null", 1, 1, _any_to(BOOL), "True where the argument is NULL; never NULL itself."),
    Function("like", 2, 2, _typed(BOOL, TEXT), "SQL pattern, a literal: % any text, _ one character, backslash escapes; case matters."),
    Function("ilike", 2, 2, _typed(BOOL, TEXT), "LIKE regardless of case."),
    Function("in", 2, None, _comparison, "The first argument equals one of the others, which are literals and not NULL."),
    Function("coalesce", 1, None, common_type, "The first argument that is not NULL."),
    Function("greatest", 1, None, _ordered, "The greatest argument that is not NULL."),
    Function("least", 1, None, _ordered, "The least argument that is not NULL."),
    Function("abs", 1, 1, _neg, "Absolute value, also of intervals."),
    Function("sign", 1, 1, _numeric, "-1, 0 or 1, in the argument's type."),
    Function(
        "round", 1, 2, _round, "To the nearest, halves away from zero; the second argument, a literal, is the number of decimals (0 to 15)."
    ),
    Function("trunc", 1, 2, _round, "Toward zero; the second argument, a literal, is the number of decimals (0 to 15)."),
    Function("floor", 1, 1, _numeric, "Toward minus infinity; the type stays."),
    Function("ceil", 1, 1, _numeric, "Toward plus infinity; the type stays."),
    Function("sqrt", 1, 1, _float, "Square root; NULL of a negative number."),
    Function("ln", 1, 1, _float, "Natural logarithm; NULL unless the argument is positive."),
    Function("log10", 1, 1, _float, "Logarithm to base 10; NULL unless the argument is positive."),
    Function("exp", 1, 1, _float, "e to the power of the argument."),
    Function("power", 2, 2, _float, "First argument to the power of the second, as a float; NULL where the result is not a real number."),
    Function("cbrt", 1, 1, _float, "Cube root."),
    Function("sin", 1, 1, _float, "Sine of radians; NULL of an infinity."),
    Function("cos", 1, 1, _float, "Cosine of radians; NULL of an infinity."),
    Function("tan", 1, 1, _float, "Tangent of radians; NULL of an infinity."),
    Function("asin", 1, 1, _float, "Arc sine; NULL outside -1 to 1."),
    Function("acos", 1, 1, _float, "Arc cosine; NULL outside -1 to 1."),
    Function("atan", 1, 1, _float, "Arc tangent."),
    Function("atan2", 2, 2, _float, "Angle of the point whose y is the first argument and x the second."),
    Function("degrees", 1, 1, _float, "Degrees of radians."),
    Function("radians", 1, 1, _float, "Radians of degrees."),
    Function("lower", 1, 1, _typed(TEXT, TEXT), "Lower case."),
    Function("upper", 1, 1, _typed(TEXT, TEXT), "Upper case."),
    Function("length", 1, 1, _typed(INT, TEXT), "Number of characters."),
    Function(
        "substr",
        2,
        3,
        _typed(TEXT, TEXT, INT),
        "The part from a position (1 is the first character; lower ones lie before it), with the given length (at least 0).",
    ),
    Function("concat", 2, None, _typed(TEXT, TEXT), "Texts joined; NULL if any is NULL.", "||"),
    Function(
        "trim",
        1,
        2,
        _typed(TEXT, TEXT),
        "The text without blanks (U+0020) at both ends, or without the characters of the second argument, a literal.",
    ),
    Function("ltrim", 1, 2, _typed(TEXT, TEXT), "As trim, at the start."),
    Function("rtrim", 1, 2, _typed(TEXT, TEXT), "As trim, at the end."),
    Function(
        "replace",
        3,
        3,
        _typed(TEXT, TEXT),
        "The first text with every occurrence of the second replaced by the third; both are literals. NULL beyond a million bytes.",
    ),
    Function("starts_with", 2, 2, _typed(BOOL, TEXT), "The first text starts with the second."),
    Function("ends_with", 2, 2, _typed(BOOL, TEXT), "The first text ends with the second."),
    Function("strpos", 2, 2, _typed(INT, TEXT), "Position of the second text in the first, in characters from 1; 0 where it is not in it."),
    Function(
        "lpad",
        2,
        3,
        _typed(TEXT, TEXT, INT, TEXT),
        "The text with the given number of characters: filled with the literal at the start, or cut at the end; NULL beyond 1,000.",
    ),
    Function("rpad", 2, 3, _typed(TEXT, TEXT, INT, TEXT), "As lpad, filled at the end."),
    Function(
        "repeat",
        2,
        2,
        _typed(TEXT, TEXT, INT),
        "The text repeated the given number of times; NULL where that has more than 1,000 characters.",
    ),
    Function("reverse", 1, 1, _typed(TEXT, TEXT), "Characters from the last to the first; marks stay with their letters."),
    Function(
        "split_part",
        3,
        3,
        _typed(TEXT, TEXT, TEXT, INT),
        "The nth part of a text between separators (a literal), from 1, or from -1 at the end; empty where there is none, NULL for 0.",
    ),
    Function("split_index", 3, 3, _typed(TEXT, TEXT, TEXT, INT), "As split_part, from 0; NULL where there is none."),
    Function("concat_ws", 2, None, _typed(TEXT, TEXT), "The texts from the second on that are not NULL, joined by the first, a literal."),
    Function(
        "initcap", 1, 1, _typed(TEXT, TEXT), "Every word (letters and digits) with a capital first letter and the others in lower case."
    ),
    Function("chr", 1, 1, _typed(TEXT, INT), "The character of a code point; NULL where there is none."),
    Function("ascii", 1, 1, _typed(INT, TEXT), "Code point of the first character; 0 of an empty text."),
    Function("md5", 1, 1, _typed(TEXT, TEXT), "MD5 of the text in UTF-8: 32 hexadecimal digits in lower case."),
    Function("sha256", 1, 1, _typed(TEXT, TEXT), "SHA-256 of the text in UTF-8: 64 hexadecimal digits in lower case."),
    Function(
        "regexp_like",
        2,
        3,
        _typed(BOOL, TEXT),
        "The pattern matches somewhere in the text; with the flag i regardless of case. Pattern and flag are literals.",
    ),
    Function(
        "regexp_extract",
        2,
        3,
        _typed(TEXT, TEXT, TEXT, INT),
        "First match of the pattern, or its group of the given number, both literals; NULL where there is none.",
    ),
    Function(
        "regexp_replace",
        3,
        4,
        _typed(TEXT, TEXT),
        r"The first match of the pattern replaced, all with the flag g; \1 is a group, \& the match. All but the text are literals. "
        "NULL where a million bytes or more could be made.",
    ),
    Function(
        "date_trunc", 2, 2, _typed(TIME, TEXT, TIME), "Start of the unit (a literal, microsecond to year) in which the time lies, in UTC."
    ),
    Function(
        "to_char",
        2,
        2,
        _typed(TEXT, TIME, TEXT),
        "The time in a format, a literal, of PostgreSQL's letters, such as 'YYYY-MM-DD HH24:MI:SS'.",
    ),
    Function("to_timestamp", 2, 2, _typed(TIME, TEXT), "The time that a text gives in a format of to_char; NULL where it gives none."),
    Function(
        "timestampdiff",
        3,
        3,
        _typed(INT, TEXT, TIME),
        "Whole units (a literal, microsecond to week) from the first time to the second, cut toward zero.",
    ),
    Function("json", 1, 1, _of_json(JSON), "The text as JSON; NULL where it is not valid JSON, or nested more than 100 deep."),
    Function(
        "json_get",
        2,
        None,
        _of_json(JSON, keys=True),
        "The member of the name (TEXT), or the element at the place (BIGINT, from 0; from -1 at the end), and so on within it for each "
        "further argument. NULL where there is no such member or element.",
    ),
    Function("json_text", 2, None, _of_json(TEXT, keys=True), "As x -> key, as text; strings without their quotes, null as NULL."),
    Function("json_length", 1, 1, _of_json(INT), "Number of elements of an array; NULL of other JSON."),
    Function("json_typeof", 1, 1, _of_json(TEXT), "object, array, string, number, boolean or null."),
    *(
        Function(
            f"{element.value}_array",
            1,
            1,
            _of_json(array),
            f"JSON as an array of {TYPE_NAMES[element]}; NULL where it is no such array, or has more than 65,536 elements.",
        )
        for array, element in ELEMENT_TYPES.items()
    ),
    Function(
        "struct_of",
        2,
        2,
        _of_json(TEXT, keys=True),
        "JSON as a struct, or array of structs, of the type that the second argument, a literal, names; NULL where it is not of this type.",
    ),
    Function("to_json", 1, 1, _any_to(JSON), "The value as JSON, as sinks write it; NaN and the infinities are null."),
    Function("extract_year", 1, 1, _extract(INT), "Year."),
    Function("extract_quarter", 1, 1, _extract(INT), "1 to 4."),
    Function("extract_month", 1, 1, _extract(INT), "1 to 12."),
    Function("extract_week", 1, 1, _extract(INT), "ISO 8601 week, 1 to 53."),
    Function("extract_day", 1, 1, _extract(INT), "Day of the month."),
    Function("extract_dow", 1, 1, _extract(INT), "Day of the week: Sunday 0 to Saturday 6."),
    Function("extract_doy", 1, 1, _extract(INT), "Day of the year, from 1."),
    Function("extract_hour", 1, 1, _extract(INT), "0 to 23, UTC."),
    Function("extract_minute", 1, 1, _extract(INT), "0 to 59."),
    Function("extract_second", 1, 1, _extract(FLOAT), "0 up to 60, with fraction."),
    Function("extract_epoch", 1, 1, _extract(FLOAT, interval=True), "Seconds since 1970 in UTC, or of the interval, with fraction."),
)

FUNCTIONS: dict[str, Function] = {function.name: function for function in _TABLE}


def result_type(name: str, types: Sequence[MaybeType]) -> MaybeType:
    """Returns the type of a call.

    Parameters
    ----------
    name : of a function in the table
    types : of the arguments; None for a bare NULL

    Returns
    -------
    ColumnType or None
        None if all arguments are bare NULLs and the result has the type of its arguments.

    Raises
    ------
    QueryError
        No such function, or arguments that do not fit; without a place in the text.

    Examples
    --------
    >>> result_type("sub", [ColumnType.TIME, ColumnType.TIME])
    <ColumnType.INTERVAL: 'interval'>
    """
    function = FUNCTIONS.get(name)
    if function is None:
        raise QueryError(f"there is no function {name}")
    if len(types) < function.arguments_min or (function.arguments_max is not None and len(types) > function.arguments_max):
        expected = str(function.arguments_min)
        if function.arguments_max is None:
            expected += " or more"
        elif function.arguments_max != function.arguments_min:
            expected += f" to {function.arguments_max}"
        raise TypeMismatchError(
            name, f"has {len(types)} argument{'' if len(types) == 1 else 's'}, expected {expected}", f"{function.name}: {function.meaning}"
        )
    return function.rule(name, types)


def aggregate_type(function: str, operand: MaybeType, by: MaybeType = None) -> ColumnType:
    """Returns the type of an aggregate of `sbon.query.params.aggregate.AGGREGATE_FUNCTIONS`; `operand` is None for COUNT(*).

    Raises
    ------
    QueryError
        The operands' types do not fit.
    """
    for kind, may_be_any in ((operand, function in _OF_ANY), (by, False)):
        if kind is not None and held_type(kind) is not kind and not may_be_any:
            raise _refuse(function, [kind], "values that can be compared", _member_hint(kind))
    if function in ("count", "count_distinct") or (function == "approx_count_distinct" and operand is not None):
        return INT
    if operand is None:
        raise QueryError(f"{function} needs a column", hint="only COUNT takes *")
    if function in _OF_PAIRS and by not in _NUMBERS:
        raise _refuse(function, [operand, by], "numbers", _NUMBERS_ONLY)
    if function in (*_OF_NUMBERS, *_OF_PAIRS):
        if operand not in _NUMBERS:
            raise _refuse(function, [operand, by] if function in _OF_PAIRS else [operand], "numbers", _NUMBERS_ONLY)
        return FLOAT if function != "sum" else operand
    if function in ("string_agg", "string_agg_distinct") and operand is not TEXT:
        raise _refuse(function, [operand], "texts", "CAST it to TEXT")
    if function in ("min", "max") and operand is BOOL:
        raise _refuse(function, [operand], "values with an order", "use BOOL_AND or BOOL_OR")
    if function in ("bool_and", "bool_or") and operand is not BOOL:
        raise _refuse(function, [operand], "conditions", "compare it with something")
    if function in ("bit_and", "bit_or", "bit_xor") and operand is not INT:
        raise _refuse(function, [operand], "whole numbers", "use CAST(... AS BIGINT)")
    return operand


_OF_ANY = ("count", "first", "last", "arg_min", "arg_max")
"""Aggregates that accept operands of any type, as they neither compare operands nor compute with them."""
_OF_NUMBERS = ("sum", "avg", "stddev", "stddev_pop", "var_samp", "var_pop", "approx_percentile", "percentile_cont")
_OF_PAIRS = ("covar_samp", "covar_pop", "corr", "regr_slope", "regr_intercept")
