"""Checks arguments that must be literals: the planner points at one that does not fit, a host refuses it."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from sbon.errors import QueryError
from sbon.query.patterns import FLAGS, check_pattern, replacement_of, with_flags
from sbon.query.time_formats import reading_of, strftime_of
from sbon.schema import ColumnType, family

TEXT_MADE_MAX = 1_000
"""Most characters that LPAD, RPAD and REPEAT produce; more could fill the memory."""
DECIMALS_MAX = 15
SPANS_US: dict[str, int] = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
"""Units of TIMESTAMPDIFF that have a fixed length, in microseconds."""

Literals: TypeAlias = Sequence[Any]
"""The value of each argument; None if it is no literal."""
Check: TypeAlias = Callable[[Literals, int], None]


class ArgumentError(QueryError):
    """An argument is no literal, or a literal that does not fit.

    Parameters
    ----------
    place : position of the argument, from 0
    """

    def __init__(self, message: str, place: int, hint: str) -> None:
        self.place = place
        super().__init__(message, hint=hint)


def check_literals(name: str, literals: Literals) -> None:
    """Refuses literal arguments that a function does not accept; functions without such a rule accept everything.

    Raises
    ------
    ArgumentError
        Names the first argument that does not fit.
    """
    _check(_NEEDED.get(name, {}), literals)


def check_slips(name: str, literals: Literals) -> None:
    """Refuses literals that would make the value NULL on every row, which must be a mistake.

    Raises
    ------
    ArgumentError
        Names the first such argument.
    """
    _check(_SLIPS.get(name, {}), literals)


def _check(checks: dict[int, Check], literals: Literals) -> None:
    for place, check in checks.items():
        if place < len(literals):
            try:
                check(literals, place)
            except ArgumentError:
                raise
            except QueryError as error:
                raise ArgumentError(error.message, place, error.hint) from error


def _text(what: str, example: str) -> Check:
    def check(literals: Literals, place: int) -> None:
        if not isinstance(literals[place], str):
            raise ArgumentError(f"{what} is a literal text", place, f"write one, such as {example}")

    return check


def _format(read: Callable[[str], object]) -> Check:
    def check(literals: Literals, place: int) -> None:
        _text("the format", "'YYYY-MM-DD HH24:MI:SS'")(literals, place)
        read(literals[place])

    return check


def _pattern(literals: Literals, place: int) -> None:
    _text("the pattern", "'a.*b'")(literals, place)
    check_pattern(literals[place])
    from sbon.operators.regexes import check_engine  # polars is loaded where a pattern is used, not before

    check_engine(literals[place])


def _flags(function: str) -> Check:
    def check(literals: Literals, place: int) -> None:
        _text("the flags", f"'{FLAGS[function]}'")(literals, place)
        with_flags(function, "", literals[place])

    return check


def _group(literals: Literals, place: int) -> None:
    group = literals[place]
    from sbon.operators.regexes import group_count

    most = group_count(literals[place - 1])
    if not isinstance(group, int) or not 0 <= group <= most:
        raise ArgumentError(f"the group is a literal from 0 to {most}, the groups of the pattern", place, "0 is the whole match")


def _replacement(literals: Literals, place: int) -> None:
    _text("the replacement", "'b'")(literals, place)
    replacement_of(literals[place])


def _separator(literals: Literals, place: int) -> None:
    if not literals[place] or not isinstance(literals[place], str):
        raise ArgumentError("the separator is a literal text, not empty", place, "write one, such as ','")


def _not_zero(literals: Literals, place: int) -> None:
    if literals[place] == 0:
        raise ArgumentError("parts are counted from 1", place, "1 is the first part, -1 the last")


def _at_most(literals: Literals, place: int) -> None:
    if isinstance(literals[place], int) and literals[place] > TEXT_MADE_MAX:
        raise ArgumentError(f"{literals[place]} is too many, expected at most {TEXT_MADE_MAX}", place, "longer texts are not made")


def _decimals(literals: Literals, place: int) -> None:
    if not isinstance(literals[place], int) or not 0 <= literals[place] <= DECIMALS_MAX:
        raise ArgumentError(f"the number of decimals is a literal from 0 to {DECIMALS_MAX}", place, "write it as a number, such as 2")


def _unit(literals: Literals, place: int) -> None:
    if literals[place] not in SPANS_US:
        hint = "longer units have no fixed length: use EXTRACT(year FROM ts)"
        raise ArgumentError(f"the unit is one of {', '.join(SPANS_US)}", place, hint)


def _struct(literals: Literals, place: int) -> None:
    try:
        kind = ColumnType(literals[place])
    except ValueError:
        kind = ColumnType.TEXT
    if family(kind) is kind:
        raise ArgumentError("the type is that of a struct, or of an array of structs", place, "write CAST(x AS STRUCT<a BIGINT>)")


_CHARACTERS = _text("the set of characters", "'x'")
_NEEDED: dict[str, dict[int, Check]] = {
    "to_char": {1: _format(strftime_of)},
    "to_timestamp": {1: _format(reading_of)},
    "regexp_like": {1: _pattern, 2: _flags("regexp_like")},
    "regexp_extract": {1: _pattern, 2: _group},
    "regexp_replace": {1: _pattern, 2: _replacement, 3: _flags("regexp_replace")},
    "split_part": {1: _separator},
    "split_index": {1: _separator},
    "lpad": {2: _text("the filling", "'0'")},
    "rpad": {2: _text("the filling", "' '")},
    "concat_ws": {0: _text("the separator", "', '")},
    "trunc": {1: _decimals},
    "trim": {1: _CHARACTERS},
    "ltrim": {1: _CHARACTERS},
    "rtrim": {1: _CHARACTERS},
    "timestampdiff": {0: _unit},
    "struct_of": {1: _struct},
}
"""Checks by function and position of the argument."""
_SLIPS: dict[str, dict[int, Check]] = {
    "split_part": {2: _not_zero},
    "lpad": {1: _at_most},
    "rpad": {1: _at_most},
    "repeat": {1: _at_most},
}
