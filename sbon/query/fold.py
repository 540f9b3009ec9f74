"""Constant folding: computes the parts of an expression that need no row.

Comparisons, conditions, texts, whole numbers and times are folded here; other expressions without columns are computed by polars
(`sbon.operators.compile`), so that the value equals the one a host computes. Only NaN and the infinities are not folded.
Predicates over the node and its labels fold to TRUE, FALSE or NULL on each physical source, and FALSE or NULL prunes it.
"""

from collections.abc import Callable, Iterable
from functools import reduce

from sbon.errors import RemoteProtocolError
from sbon.query.expression import Call, Case, Cast, Expression, Literal, is_bare_null
from sbon.query.functions import result_type
from sbon.query.rewrite import FALSE, TRUE, children, columns_of, conjoin, conjuncts, rebuild, type_of
from sbon.schema import ColumnType, held_type

TEXT_FOLDED_MAX = 200
"""Most characters of a folded text in a plan. A longer one is computed where it is used, which keeps plans short."""
_INT_RANGE = range(-(2**63), 2**63)
_WHOLE = (ColumnType.INT, ColumnType.TIME, ColumnType.INTERVAL)

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}
_TEXTS: dict[str, Callable[[str], str]] = {"lower": str.lower, "upper": str.upper}


def fold(expression: Expression) -> Expression:
    """Returns the expression with its constant parts computed; its value is the same for every row."""
    parts = children(expression)
    if not parts:
        return expression
    whole = _folded(rebuild(expression, tuple(fold(part) for part in parts)))
    return whole if isinstance(whole, Literal) or columns_of([whole]) else _computed(whole)


def _computed(expression: Expression) -> Expression:
    """Returns the literal that polars computes for an expression without columns; the expression itself if its value has no literal, is a
    long text, or a host would refuse it."""
    from sbon.operators.compile import constant  # polars loads only when an expression needs it

    try:
        folded = constant(expression)
    except RemoteProtocolError:
        return expression
    kind = type_of(expression, {})
    if folded is not None and kind is not None and held_type(kind) is not kind:  # the engine holds such values as texts
        folded = Literal(folded.value, kind)
    long = folded is not None and isinstance(folded.value, str) and len(folded.value) > TEXT_FOLDED_MAX
    return expression if folded is None or long else folded


def _folded(whole: Expression) -> Expression:
    """Folds an expression whose parts are folded already."""
    match whole:
        case Call(function="and" | "or" as name, arguments=arguments):
            return _fold_boolean(name, arguments)
        case Call(function=name, arguments=arguments) if all(isinstance(argument, Literal) for argument in arguments):
            return _fold_call(name, tuple(argument for argument in arguments if isinstance(argument, Literal))) or whole
        case Call(function="coalesce", arguments=(Literal(value=value) as first, *_)) if value is not None:
            return first
        case Case(branches=branches, default=default):
            return _fold_case(branches, default)
        case Cast(operand=Literal() as literal, type=type_) if literal.value is None or literal.type is type_:
            return Literal(literal.value, type_)
        case _:
            return whole


def met(conditions: Iterable[Expression]) -> tuple[Expression, ...]:
    """Returns the conditions folded and split at AND, each once, in canonical order."""
    return conjuncts(conjoin(part for condition in conditions for part in conjuncts(fold(condition))))


def _fold_boolean(name: str, arguments: tuple[Expression, ...]) -> Expression:
    """Folds AND and OR in three-valued logic: the deciding literal wins, the neutral one is dropped."""
    deciding, neutral = (FALSE, TRUE) if name == "and" else (TRUE, FALSE)
    if deciding in arguments:
        return deciding
    rest = tuple(argument for argument in arguments if argument != neutral)
    if not rest:
        return neutral
    if all(isinstance(argument, Literal) for argument in rest):
        return Literal(None, ColumnType.BOOL)
    return rest[0] if len(rest) == 1 else Call(name, rest)


def _fold_case(branches: tuple[tuple[Expression, Expression], ...], default: Expression) -> Expression:
    open_branches: list[tuple[Expression, Expression]] = []
    for condition, value in branches:
        if condition == TRUE:
            return Case(tuple(open_branches), value) if open_branches else value
        if not isinstance(condition, Literal):
            open_branches.append((condition, value))
    return Case(tuple(open_branches), default) if open_branches else default


def _fold_call(name: str, arguments: tuple[Literal, ...]) -> Literal | None:
    values = [argument.value for argument in arguments]
    if name == "is_null":
        return Literal(values[0] is None, ColumnType.BOOL)
    if name == "coalesce":
        return next((argument for argument in arguments if argument.value is not None), arguments[0])
    if name == "in" and values[0] is not None:
        return _truth(any(_equal(arguments[0], other) for other in arguments[1:])) if _comparable(arguments) else None
    if None in values:
        return _null_result(name, arguments)
    if name == "not":
        return _truth(values[0] is False)
    if name in _COMPARE and _comparable(arguments):
        return _truth(_compare(name, arguments))
    texts = [value for value in values if isinstance(value, str)]
    if texts and len(texts) == len(values):
        return _fold_text(name, texts)
    return _fold_whole(name, arguments)


def _null_result(name: str, arguments: tuple[Literal, ...]) -> Literal | None:
    if name in ("greatest", "least", "concat_ws"):
        return None
    types = [None if is_bare_null(argument) else argument.type for argument in arguments]
    return Literal(None, result_type(name, types) or ColumnType.TEXT)


def _fold_text(name: str, texts: list[str]) -> Literal | None:
    match name:
        case "concat":
            return Literal("".join(texts), ColumnType.TEXT)
        case "like":
            return _truth(like_matches(texts[1], texts[0]))
        case "starts_with":
            return _truth(texts[0].startswith(texts[1]))
        case "lower" | "upper" if texts[0].isascii():
            return Literal(_TEXTS[name](texts[0]), ColumnType.TEXT)
        case _:
            return None


def _fold_whole(name: str, arguments: tuple[Literal, ...]) -> Literal | None:
    whole = [argument.value for argument in arguments if argument.type in _WHOLE and type(argument.value) is int]
    if len(whole) != len(arguments):
        return None
    if name == "neg":
        value = -whole[0]
    elif name in _ARITHMETIC:
        value = reduce(_ARITHMETIC[name], whole)
    else:
        return None
    result = result_type(name, [argument.type for argument in arguments])
    return Literal(value, result) if value in _INT_RANGE and result is not None else None


def _comparable(arguments: tuple[Literal, ...]) -> bool:
    """Tells whether literals can be compared here. Floats are left to polars, whose order of NaN and -0.0 differs from Python's."""
    types = {argument.type for argument in arguments}
    return len(types) == 1 and ColumnType.FLOAT not in types


def _equal(left: Literal, right: Literal) -> bool:
    return left.value == right.value


def _compare(name: str, arguments: tuple[Literal, ...]) -> bool:
    left, right = (argument.value for argument in arguments)
    if isinstance(left, str) and isinstance(right, str):
        # UTF-8 keeps the order of code points, which is the order of Python's texts.
        return _COMPARE[name]((left > right) - (left < right), 0)
    return isinstance(left, int) and isinstance(right, int) and _COMPARE[name](left, right)


def _truth(value: bool) -> Literal:
    return TRUE if value else FALSE


def like_matches(pattern: str, text: str) -> bool:
    """Tells whether a text matches a LIKE pattern of %, _ and backslash, in time proportional to the product of both lengths at worst."""
    characters = iter(pattern)
    wild: dict[str, str | None] = {"%": None, "_": ""}  # None is any text, "" any character, anything else itself.
    tokens = [next(characters, "\\") if character == "\\" else wild.get(character, character) for character in characters]
    reached = {0}
    for token in tokens:
        if token is None:
            reached = set(range(min(reached), len(text) + 1))
        else:
            reached = {i + 1 for i in sorted(reached) if i < len(text) and token in ("", text[i])}
        if not reached:
            return False
    return len(text) in reached
