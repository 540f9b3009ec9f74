"""Rewrites expression trees without changing their value: splits conjunctions, substitutes columns, makes the canonical form.

Signatures are made of canonical forms: two texts of one condition (`a > 1 AND b = 2`, `2 = b AND 1 < a`) have one canonical form.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from sbon.errors import QueryError
from sbon.query.expression import Call, Case, Cast, Column, Expression, Literal, is_bare_null
from sbon.query.functions import FUNCTIONS, MaybeType, common_type, result_type
from sbon.schema import ColumnType

REWRITTEN_NODES_MAX = 2_000
"""Most nodes of an expression, as subqueries that double a value at each level could fill the memory."""
REWRITTEN_DEPTH_MAX = 100
"""Most levels of an expression, as decoders and polars walk it recursively on every host."""

TRUE = Literal(True, ColumnType.BOOL)
FALSE = Literal(False, ColumnType.BOOL)

_MIRRORED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}
_NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def children(expression: Expression) -> tuple[Expression, ...]:
    """Returns the direct parts of an expression, left to right."""
    match expression:
        case Call(arguments=arguments):
            return arguments
        case Cast(operand=operand):
            return (operand,)
        case Case(branches=branches, default=default):
            return (*(part for branch in branches for part in branch), default)
        case _:
            return ()


def rebuild(expression: Expression, parts: tuple[Expression, ...]) -> Expression:
    """Returns the same kind of expression over other parts, in the order of `children`."""
    match expression:
        case Call(function=function):
            return Call(function, parts)
        case Cast(type=type_):
            return Cast(parts[0], type_)
        case Case():
            return Case(tuple(zip(parts[:-1:2], parts[1:-1:2], strict=True)), parts[-1])
        case _:
            return expression


def walk(expression: Expression) -> Iterator[Expression]:
    """Yields the expression and all expressions inside it."""
    stack = [expression]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


def columns_of(expressions: Iterable[Expression]) -> tuple[str, ...]:
    """Returns the names of the columns used, sorted, each once."""
    return tuple(sorted({node.name for expression in expressions for node in walk(expression) if isinstance(node, Column)}))


def type_of(expression: Expression, types: Mapping[str, ColumnType]) -> MaybeType:
    """Returns the type of an expression over columns of these types; None for a bare NULL.

    Raises
    ------
    QueryError
        Arguments do not fit, which the planner has ruled out for its expressions.
    """
    match expression:
        case Column(name=name):
            return types[name]
        case Literal(type=type_):
            return None if is_bare_null(expression) else type_
        case Cast(type=type_):
            return type_
        case Case(branches=branches, default=default):
            return common_type("case", [type_of(value, types) for value in (*(value for _, value in branches), default)])
        case Call(function="struct_of", arguments=(_, Literal(value=str() as kind))):  # its type is an argument
            return ColumnType(kind)
        case Call(function=function, arguments=arguments):
            return result_type(function, [type_of(argument, types) for argument in arguments])


def measure(expression: Expression) -> tuple[int, int]:
    """Returns the number of nodes, and the depth."""
    nodes, depth = 0, 0
    stack = [(expression, 1)]
    while stack:
        node, level = stack.pop()
        nodes, depth = nodes + 1, max(depth, level)
        stack.extend((child, level + 1) for child in children(node))
    return nodes, depth


def check_size(expression: Expression) -> Expression:
    """Returns the expression unchanged after checking its size.

    Raises
    ------
    QueryError
        The expression has more than REWRITTEN_NODES_MAX nodes or REWRITTEN_DEPTH_MAX levels.
    """
    nodes, depth = measure(expression)
    if nodes > REWRITTEN_NODES_MAX or depth > REWRITTEN_DEPTH_MAX:
        raise QueryError(
            f"an expression has {nodes} parts in {depth} levels, expected at most {REWRITTEN_NODES_MAX} in {REWRITTEN_DEPTH_MAX}",
            hint="split the query, or compute less",
        )
    return expression


def substitute(expression: Expression, values: Mapping[str, Expression]) -> Expression:
    """Returns the expression with columns replaced; columns that are not in `values` stay.

    Raises
    ------
    QueryError
        The result is larger than REWRITTEN_NODES_MAX or REWRITTEN_DEPTH_MAX.
    """
    sizes: dict[str, int] = {}
    total = 0
    for node in walk(expression):
        if isinstance(node, Column) and node.name in values:
            if node.name not in sizes:
                sizes[node.name] = measure(values[node.name])[0]
            total += sizes[node.name]
        if total > REWRITTEN_NODES_MAX:
            raise QueryError(f"an expression grows beyond {REWRITTEN_NODES_MAX} parts", hint="split the query, or compute less")
    return check_size(_substitute(expression, values))


def _substitute(expression: Expression, values: Mapping[str, Expression]) -> Expression:
    if isinstance(expression, Column):
        return values.get(expression.name, expression)
    parts = children(expression)
    return rebuild(expression, tuple(_substitute(part, values) for part in parts)) if parts else expression


def conjuncts(expression: Expression | None) -> tuple[Expression, ...]:
    """Returns the conditions that AND joins, nested ANDs split; TRUE gives none."""
    if expression is None or expression == TRUE:
        return ()
    if isinstance(expression, Call) and expression.function == "and":
        return tuple(part for argument in expression.arguments for part in conjuncts(argument))
    return (expression,)


def conjoin(parts: Iterable[Expression]) -> Expression | None:
    """Returns the conditions joined by AND, each once, in canonical form and order; None if there is none."""
    unique = {sort_key(form): form for part in parts for form in conjuncts(canonical(part))}
    ordered = [unique[key] for key in sorted(unique)]
    if not ordered:
        return None
    return ordered[0] if len(ordered) == 1 else Call("and", tuple(ordered))


def sort_key(expression: Expression) -> bytes:
    """Returns a key that sorts columns first, literals last, and the rest by content: `a = 1` rather than `1 = a`."""
    rank = b"0" if isinstance(expression, Column) else b"2" if isinstance(expression, Literal) else b"1"
    return rank + msgspec.json.encode(expression)


def canonical(expression: Expression) -> Expression:
    """Returns one form for expressions that differ only in the order of commuting arguments, mirrored comparisons, or inner negations.

    The value is the same bit for bit: sums of more than two terms are not re-associated.
    """
    if not children(expression):
        return expression
    parts = tuple(canonical(part) for part in children(expression))
    if not isinstance(expression, Call):
        return rebuild(expression, parts)
    name = expression.function
    if name in _MIRRORED and sort_key(parts[0]) > sort_key(parts[1]):
        name, parts = _MIRRORED[name], parts[::-1]
    if name == "not" and isinstance(parts[0], Call):
        inner = parts[0]
        if inner.function == "not":
            return inner.arguments[0]
        if inner.function in ("and", "or"):  # de Morgan's laws hold in three-valued logic
            other = "or" if inner.function == "and" else "and"
            return canonical(Call(other, tuple(Call("not", (argument,)) for argument in inner.arguments)))
        if inner.function in _NEGATED:
            return canonical(Call(_NEGATED[inner.function], inner.arguments))
    if name in ("and", "or"):
        flat = [p for part in parts for p in (part.arguments if isinstance(part, Call) and part.function == name else (part,))]
        unique = {sort_key(part): part for part in (_merged(flat) if name == "or" else flat)}
        parts = tuple(unique[key] for key in sorted(unique))
        return parts[0] if len(parts) == 1 else Call(name, parts)
    if name in ("in", "coalesce", "greatest", "least"):
        return _canonical_list(name, parts)
    if FUNCTIONS[name].commutative:
        parts = tuple(sorted(parts, key=sort_key))
    return Call(name, parts)


def _merged(alternatives: list[Expression]) -> list[Expression]:
    """Merges `x = 1 OR x IN (2, 3)` into `x IN (1, 2, 3)`, if all constants have one type and none is NULL, as IN requires."""
    found: dict[tuple[bytes, ColumnType], list[Expression]] = {}
    rest: list[Expression] = []
    for part in alternatives:
        match part:
            case Call(function="eq" | "in", arguments=(value, *options)) if not isinstance(value, Literal):
                literals = [option for option in options if isinstance(option, Literal) and option.value is not None]
                types = {literal.type for literal in literals}
                if len(literals) == len(options) and len(types) == 1:
                    found.setdefault((sort_key(value), types.pop()), [value]).extend(literals)
                    continue
        rest.append(part)
    return [*rest, *(_canonical_list("in", tuple(parts)) for parts in found.values())]


def _canonical_list(name: str, parts: tuple[Expression, ...]) -> Expression:
    """Puts the values of IN into canonical order; other functions keep their order, as ties of 0.0 and -0.0 would reveal a change."""
    if name != "in":
        return Call(name, parts)
    unique = {sort_key(part): part for part in parts[1:]}
    values = tuple(unique[key] for key in sorted(unique))
    return Call("eq", (parts[0], values[0])) if len(values) == 1 else Call("in", (parts[0], *values))
