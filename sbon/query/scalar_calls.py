"""Binds functions of SQL with a syntax of their own - CASE, CAST, CONCAT, EXTRACT and the like. Operators are in `sbon.query.scalar`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from sqlglot import exp

from sbon.errors import QueryError
from sbon.query.catalog import did_you_mean
from sbon.query.expression import Case, Cast, Expression, Literal
from sbon.query.functions import TIME_UNITS, MaybeType, common_type
from sbon.query.literals import column_type
from sbon.schema import ColumnType

if TYPE_CHECKING:
    from sbon.query.scalar import Scalars

Bound: TypeAlias = tuple[Expression, MaybeType]
"""An expression and its type; None is the type of a bare NULL."""

INT, TEXT = ColumnType.INT, ColumnType.TEXT
NULL = Literal(None, TEXT)

_EXTRACT = ("year", "quarter", "month", "week", "day", "dow", "doy", "hour", "minute", "second", "epoch")


def widen(bound: Bound, target: MaybeType) -> Bound:
    """Converts an integer to a float, or gives a NULL the target type, if the target differs."""
    expression, type_ = bound
    if target is None or type_ is target:
        return bound
    if type_ is None:
        return Literal(None, target), target
    if isinstance(expression, Literal) and isinstance(expression.value, int):
        return Literal(float(expression.value), target), target
    return Cast(expression, target), target


def _case(scalars: Scalars, tree: exp.Expr) -> Bound:
    subject = tree.args.get("this")
    branches = []
    for branch in tree.args["ifs"]:
        if subject is None:
            condition = scalars.condition(branch.this, "WHEN")
        else:
            condition, _ = scalars.call(branch.this, "eq", [scalars.bind(subject), scalars.bind(branch.this)])
        branches.append((condition, scalars.bind(branch.args["true"])))
    default = tree.args.get("default")
    return chosen(scalars, tree, branches, (NULL, None) if default is None else scalars.bind(default))


def chosen(scalars: Scalars, tree: exp.Expr, branches: list[tuple[Expression, Bound]], default: Bound) -> Bound:
    """Makes a CASE of bound branches, in the type that all their values share.

    Raises
    ------
    QueryError
        The values have no type in common.
    """
    try:
        result = common_type("case", [type_ for _, (_, type_) in branches] + [default[1]])
    except QueryError as error:
        raise scalars.mismatch(tree, error) from None
    widened = tuple((condition, widen(value, result)[0]) for condition, value in branches)
    return Case(widened, widen(default, result)[0]), result


def _if(scalars: Scalars, tree: exp.Expr) -> Bound:
    default = tree.args.get("false")
    branch = (scalars.condition(tree.this, "IF"), scalars.bind(tree.args["true"]))
    return chosen(scalars, tree, [branch], (NULL, None) if default is None else scalars.bind(default))


def _nullif(scalars: Scalars, tree: exp.Expr) -> Bound:
    first, second = scalars.bind(tree.this), scalars.bind(tree.expression)
    same, _ = scalars.call(tree, "eq", [first, second])
    return chosen(scalars, tree, [(same, (NULL, None))], first)


def _cast(scalars: Scalars, tree: exp.Expr) -> Bound:
    return scalars.cast(tree, scalars.bind(tree.this), column_type(scalars.text, tree.args.get("to"), tree))


def _list(scalars: Scalars, tree: exp.Expr) -> Bound:
    name = "coalesce" if isinstance(tree, exp.Coalesce) else "greatest" if isinstance(tree, exp.Greatest) else "least"
    return scalars.call(tree, name, [scalars.bind(part) for part in (tree.this, *tree.expressions)])


def _concat(scalars: Scalars, tree: exp.Expr) -> Bound:
    # CONCAT treats NULL as an empty text; || does not.
    parts = [scalars.as_text(tree, scalars.bind(part)) for part in tree.expressions]
    filled = [scalars.call(tree, "coalesce", [part, (Literal("", TEXT), TEXT)]) for part in parts]
    return filled[0] if len(filled) == 1 else scalars.call(tree, "concat", filled)


def _round(scalars: Scalars, tree: exp.Expr) -> Bound:
    arguments = [scalars.bind(tree.this)]
    decimals = tree.args.get("decimals")
    if decimals is not None:
        digits = scalars.bind(decimals)
        if not isinstance(digits[0], Literal) or not isinstance(digits[0].value, int) or not 0 <= digits[0].value <= 15:
            hint = f"write it as a number, such as {scalars.typed(tree)}(x, 2)"
            raise scalars.refuse(decimals, "the number of decimals is a literal from 0 to 15", hint)
        arguments.append(digits)
    return scalars.call(tree, "round", arguments)


def _log(scalars: Scalars, tree: exp.Expr) -> Bound:
    # LOG(x) has base 10; LOG(base, x) has the base first. LOG10(x) is parsed as LOG(10, x).
    first, second = tree.this, tree.args.get("expression")
    if second is None:
        return scalars.call(tree, "log10", [scalars.bind(first)])
    if isinstance(first, exp.Literal) and first.this == "10":
        return scalars.call(tree, "log10", [scalars.bind(second)])
    parts = [scalars.call(tree, "ln", [scalars.bind(part)]) for part in (second, first)]
    return scalars.call(tree, "div", parts)


def _substring(scalars: Scalars, tree: exp.Expr) -> Bound:
    arguments = [scalars.bind(tree.this)]
    start, length = tree.args.get("start"), tree.args.get("length")
    arguments.append((Literal(1, INT), INT) if start is None else scalars.bind(start))
    if length is not None:
        arguments.append(scalars.bind(length))
    return scalars.call(tree, "substr", arguments)


def _left(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Binds LEFT. A negative number -n leaves out the last n characters, as in PostgreSQL."""
    text, number = scalars.bind(tree.this), scalars.bind(tree.expression)
    if not (isinstance(number[0], Literal) and isinstance(number[0].value, int) and number[0].value >= 0):
        negative, _ = scalars.call(tree, "lt", [number, (Literal(0, INT), INT)])
        rest = scalars.call(tree, "add", [scalars.call(tree, "length", [text]), number])
        number = chosen(scalars, tree, [(negative, rest)], number)
    return scalars.call(tree, "substr", [text, (Literal(1, INT), INT), number])


def _trim(scalars: Scalars, tree: exp.Expr) -> Bound:
    position = str(tree.args.get("position") or "BOTH").upper()
    parts = [tree.this, *([tree.expression] if tree.args.get("expression") is not None else [])]
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(position, "trim")
    return scalars.call(tree, name, [scalars.bind(part) for part in parts], parts)


def _position(scalars: Scalars, tree: exp.Expr) -> Bound:
    return scalars.call(tree, "strpos", [scalars.bind(tree.this), scalars.bind(tree.args["substr"])])


def _overlay(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Builds OVERLAY from the text's start, the replacement, and the text after the replaced characters."""
    text, new, start = (scalars.bind(tree.args[part]) for part in ("this", "expression", "from_"))
    given = tree.args.get("for_")
    size = scalars.call(tree, "length", [new]) if given is None else scalars.bind(given)
    one = (Literal(1, INT), INT)
    before = scalars.call(tree, "substr", [text, one, scalars.call(tree, "sub", [start, one])])
    behind = scalars.call(tree, "substr", [text, scalars.call(tree, "add", [start, size])])
    return scalars.call(tree, "concat", [before, new, behind])


def _matches(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Binds text ~ 'pattern', and ~*, which ignores case."""
    flags = exp.Literal.string("i")
    parts = [tree.this, tree.expression, *([flags] if isinstance(tree, exp.RegexpILike) else [])]
    return scalars.call(tree, "regexp_like", [scalars.bind(part) for part in parts], parts)


def _same(scalars: Scalars, tree: exp.Expr) -> Bound:
    """Binds a IS NOT DISTINCT FROM b: equal, or both NULL."""
    first, second = scalars.bind(tree.this), scalars.bind(tree.expression)
    both = scalars.call(tree, "and", [scalars.call(tree, "is_null", [part]) for part in (first, second)])
    bound = scalars.call(tree, "coalesce", [scalars.call(tree, "eq", [first, second]), both])
    return bound if isinstance(tree, exp.NullSafeEQ) else scalars.call(tree, "not", [bound])


def _replace(scalars: Scalars, tree: exp.Expr) -> Bound:
    parts = [scalars.bind(tree.this), scalars.bind(tree.expression), scalars.bind(tree.args.get("replacement") or exp.Literal.string(""))]
    if not all(isinstance(part, Literal) for part, _ in parts[1:]):
        hint = "write them in quotes, such as REPLACE(text, 'a', 'b')"
        raise scalars.refuse(tree, f"{scalars.typed(tree)}: the text to replace and its replacement are literal texts", hint)
    return scalars.call(tree, "replace", parts)


def _date_trunc(scalars: Scalars, tree: exp.Expr) -> Bound:
    unit = (tree.args["unit"].name if tree.args.get("unit") is not None else "").lower()
    if unit not in TIME_UNITS:
        raise scalars.refuse(tree, f"{scalars.typed(tree)} has no unit {unit}", did_you_mean(unit, TIME_UNITS))
    return scalars.call(tree, "date_trunc", [(Literal(unit, TEXT), TEXT), scalars.bind(tree.this)])


def _extract(scalars: Scalars, tree: exp.Expr) -> Bound:
    unit = tree.this.name.lower()
    unit = {"dayofweek": "dow", "dayofyear": "doy"}.get(unit, unit)
    if unit not in _EXTRACT:
        raise scalars.refuse(tree, f"{scalars.typed(tree)} has no field {unit}", did_you_mean(unit, _EXTRACT))
    return scalars.call(tree, f"extract_{unit}", [scalars.bind(tree.expression)])


CALLS: dict[type[exp.Expr], Callable[[Scalars, exp.Expr], Bound]] = {
    exp.Case: _case,
    exp.If: _if,
    exp.Nullif: _nullif,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Coalesce: _list,
    exp.Greatest: _list,
    exp.Least: _list,
    exp.Concat: _concat,
    exp.Round: _round,
    exp.Log: _log,
    exp.Substring: _substring,
    exp.Left: _left,
    exp.Trim: _trim,
    exp.StrPosition: _position,
    exp.Overlay: _overlay,
    exp.RegexpLike: _matches,
    exp.RegexpILike: _matches,
    exp.NullSafeEQ: _same,
    exp.NullSafeNEQ: _same,
    exp.Replace: _replace,
    exp.TimestampTrunc: _date_trunc,
    exp.DateTrunc: _date_trunc,
    exp.Extract: _extract,
}
