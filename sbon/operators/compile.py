"""Compiles expressions of a plan to polars expressions, after checking them against the table of functions.

Expressions come from peers and are checked before anything runs. Unknown columns, functions that are not in the table, arguments that do
not fit, and trees too deep for the stack are refused.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from sbon.errors import QueryError, RemoteProtocolError
from sbon.operators.casts import cast
from sbon.operators.contained import contained, grows, hidden
from sbon.operators.frames import column_type, polars_type
from sbon.operators.scalars import NULL_TAKERS, SCALARS, rest_of
from sbon.query.expression import Call, Case, Cast, Column, Expression, Literal, is_bare_null
from sbon.query.functions import MaybeType, common_type, result_type
from sbon.query.limits import EXPRESSION_DEPTH_MAX
from sbon.query.literal_arguments import check_literals
from sbon.schema import ColumnType, held_type

BRANCHES_MAX = 64
"""Most branches of CASE nested in one expression."""

_LITERALS: dict[ColumnType, tuple[type, ...]] = {ColumnType.BOOL: (bool,), ColumnType.TEXT: (str,), ColumnType.FLOAT: (float, int)}


class Compiled(NamedTuple):
    """A polars expression, with the facts needed to use it."""

    value: pl.Expr
    type: MaybeType
    """The type; None: a bare NULL."""
    constant: bool
    """The value does not depend on a column. If all columns of a projection are constant, polars returns a single row."""


def columns_of(frame: pl.DataFrame) -> dict[str, ColumnType]:
    """Returns column names and types of a frame, for `compile_expression`.

    Raises
    ------
    RemoteProtocolError
        A column has a type that no stream has.
    """
    return {name: column_type(dtype) for name, dtype in frame.schema.items()}


def compile_expression(expression: Expression, columns: Mapping[str, ColumnType]) -> Compiled:
    """Returns the polars form of an expression over rows with these columns. Its constant parts are computed here, once.

    Raises
    ------
    RemoteProtocolError
        The expression is not one that the planner makes.

    Examples
    --------
    >>> doubled = Call("mul", (Column("x"), Literal(2, ColumnType.INT)))
    >>> compiled = compile_expression(doubled, {"x": ColumnType.INT})
    >>> pl.DataFrame({"x": [3]}).select(compiled.value).item()
    6
    """
    return _compile(expression, columns, EXPRESSION_DEPTH_MAX)


def compile_column(expression: Expression, columns: Mapping[str, ColumnType]) -> tuple[pl.Expr, ColumnType, bool]:
    """Compiles an output column as `compile_expression` does; a bare NULL has the type of its literal, or TEXT if that has none."""
    compiled = compile_expression(expression, columns)
    if compiled.type is not None:
        return compiled.value, compiled.type, compiled.constant
    kind = held_type(expression.type) if isinstance(expression, Literal) else ColumnType.TEXT
    return compiled.value.cast(polars_type(kind)), kind, compiled.constant


def constant(expression: Expression) -> Literal | None:
    """Returns the value of an expression without columns, as polars computes it; None if no literal can express it (NaN and the
    infinities).

    Raises
    ------
    RemoteProtocolError
        As from `compile_expression`.
    """
    compiled = compile_expression(expression, {})
    value, kind = _value_of(compiled), compiled.type or ColumnType.TEXT
    return None if isinstance(value, float) and not math.isfinite(value) else Literal(value, kind)


def _value_of(compiled: Compiled) -> bool | int | float | str | None:
    """Returns the value of a constant expression, with times and intervals as microseconds.

    Raises
    ------
    RemoteProtocolError
        polars cannot compute it.
    """
    value = compiled.value
    if compiled.type in (ColumnType.TIME, ColumnType.INTERVAL):
        value = value.cast(pl.Int64)
    try:
        found: bool | int | float | str | None = pl.select(value).item()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise RemoteProtocolError(f"a constant cannot be computed: {str(error)[:200]}") from error
    return found


def _settled(compiled: Compiled) -> Compiled:
    """Replaces a constant expression with its value, because polars may return one row per chunk of a frame for an uncomputed constant."""
    if not compiled.constant or compiled.type is None:
        return compiled
    value = _value_of(compiled)
    if value is None:
        return compiled._replace(value=pl.lit(None, dtype=polars_type(compiled.type)))
    return _literal(Literal(value, compiled.type))


def _compile(expression: Expression, columns: Mapping[str, ColumnType], depth: int) -> Compiled:
    if depth <= 0:
        raise RemoteProtocolError(f"expression is nested more than {EXPRESSION_DEPTH_MAX} deep")
    match expression:
        case Column(name):
            if name not in columns:
                raise RemoteProtocolError(f"column {name!r} is not among the input columns {', '.join(columns)}")
            return Compiled(pl.col(name), columns[name], False)
        case Literal():
            return _literal(expression)
        case Call():
            return _settled(_call(expression, columns, depth - 1))
        case Cast(operand, kind):
            inner = _compile(operand, columns, depth - 1)
            source = inner.type
            if source is None:
                return _settled(Compiled(inner.value.cast(polars_type(kind)), kind, inner.constant))
            value = _of_size(lambda parts: cast(parts[0], source, kind), (inner.value,), kind)
            return _settled(Compiled(value, kind, inner.constant))
        case Case():
            return _settled(_case(expression, columns, depth - 1))


def _literal(literal: Literal) -> Compiled:
    value, kind = literal.value, held_type(literal.type)
    if value is None:
        return Compiled(pl.lit(None), None, True) if is_bare_null(literal) else Compiled(pl.lit(None, dtype=polars_type(kind)), kind, True)
    if type(value) not in _LITERALS.get(kind, (int,)):
        raise RemoteProtocolError(f"literal {value!r} of type {kind.value}, expected a value of that type")
    if kind in (ColumnType.INT, ColumnType.TIME, ColumnType.INTERVAL):
        if not -(2**63) <= int(value) < 2**63:
            raise RemoteProtocolError(f"literal {value!r} of type {kind.value}, expected 64 bits")
        return Compiled(pl.lit(int(value), dtype=pl.Int64).cast(polars_type(kind)), kind, True)
    return Compiled(pl.lit(float(value) if kind is ColumnType.FLOAT else value, dtype=polars_type(kind)), kind, True)


def _call(call: Call, columns: Mapping[str, ColumnType], depth: int) -> Compiled:
    build = SCALARS.get(call.function)
    if build is None:
        raise RemoteProtocolError(f"function {call.function!r} is not in the table of functions")
    divided = _is_divisible(call, columns, depth)
    if divided is not None:
        return divided
    arguments = [_compile(argument, columns, depth) for argument in call.arguments]
    types = [argument.type for argument in arguments]
    literals = [argument.value if isinstance(argument, Literal) else None for argument in call.arguments]
    try:
        result = result_type(call.function, types)
        if None not in types or call.function in NULL_TAKERS:
            check_literals(call.function, literals)
    except QueryError as error:
        raise RemoteProtocolError(str(error)) from error
    kind = None if result is None else held_type(result)
    constant = all(argument.constant for argument in arguments)
    if None in types and call.function not in NULL_TAKERS:
        return Compiled(pl.lit(None) if kind is None else pl.lit(None, dtype=polars_type(kind)), kind, True)
    values = [argument.value for argument in arguments]

    def built(parts: Sequence[pl.Expr]) -> pl.Expr:
        value = build(parts, types, literals)
        return value if kind is None else value.cast(polars_type(kind), strict=False)

    return Compiled(_of_size(built, values, kind), kind, constant)


def _of_size(build: Callable[[Sequence[pl.Expr]], pl.Expr], arguments: Sequence[pl.Expr], kind: MaybeType) -> pl.Expr:
    """Returns `build(arguments)`, contained if the result would repeat its arguments too often."""
    value = build(arguments)
    return contained(build, arguments, polars_type(kind)) if kind is not None and grows(value, arguments) else value


def _is_divisible(call: Call, columns: Mapping[str, ColumnType], depth: int) -> Compiled | None:
    """Compiles `x % 4 = 0` and `x % 4 <> 0` for integers, where the sign of the remainder does not matter; None for anything else."""
    if call.function not in ("eq", "ne") or len(call.arguments) != 2:
        return None
    rest, zero = call.arguments if isinstance(call.arguments[0], Call) else call.arguments[::-1]
    if not (isinstance(rest, Call) and rest.function == "mod" and len(rest.arguments) == 2 and _is_int(zero, 0, 0)):
        return None
    dividend, divisor = rest.arguments
    if not isinstance(divisor, Literal) or not (_is_int(divisor, 1, 2**62) or _is_int(divisor, -(2**62), -1)):
        return None
    compiled = _compile(dividend, columns, depth - 1)
    if compiled.type is not ColumnType.INT:
        return None
    left = rest_of(compiled.value, int(divisor.value or 0))
    return Compiled(left == 0 if call.function == "eq" else left != 0, ColumnType.BOOL, compiled.constant)


def _is_int(expression: Expression, least: int, most: int) -> bool:
    """Tells whether an expression is an integer literal within a range."""
    if not isinstance(expression, Literal) or expression.type is not ColumnType.INT:
        return False
    return type(expression.value) is int and least <= expression.value <= most


def _case(case: Case, columns: Mapping[str, ColumnType], depth: int) -> Compiled:
    if not case.branches:
        raise RemoteProtocolError("CASE without a branch")
    conditions = [_compile(condition, columns, depth) for condition, _ in case.branches]
    results = [_compile(result, columns, depth) for _, result in case.branches]
    default = _compile(case.default, columns, depth)
    for condition in conditions:
        if condition.type not in (ColumnType.BOOL, None):
            raise RemoteProtocolError("CASE has a branch whose condition is not of type BOOL")
    try:
        kind = common_type("case", [result.type for result in (*results, default)])
    except QueryError as error:
        raise RemoteProtocolError(str(error)) from error

    def typed(compiled: Compiled) -> pl.Expr:
        return compiled.value if kind is None else compiled.value.cast(polars_type(kind))

    chosen = typed(default)
    for place, (condition, result) in enumerate(zip(reversed(conditions), reversed(results), strict=True), 1):
        chosen = pl.when(condition.value.cast(pl.Boolean)).then(typed(result)).otherwise(chosen)
        if place % BRANCHES_MAX == 0 and kind is not None:
            chosen = hidden(chosen, polars_type(kind))
    return Compiled(chosen, kind, all(part.constant for part in (*conditions, *results, default)))
