"""Binds scalar expressions of SQL to expressions of the plan, with their types."""

import math
from collections.abc import Callable, Sequence

from sqlglot import exp

from sbon.errors import QueryError
from sbon.query.aggregate_calls import aggregate_function
from sbon.query.aggregate_names import no_aggregate
from sbon.query.catalog import did_you_mean
from sbon.query.dialect import Text
from sbon.query.expression import Call, Cast, Column, Expression, Literal
from sbon.query.flink import bound_hint
from sbon.query.functions import TypeMismatchError, common_type, result_type
from sbon.query.instead import FUNCTIONS_HINT, INSTEAD, INSTEAD_OF_TREES, NOW_HINT
from sbon.query.literal_arguments import ArgumentError, check_literals, check_slips
from sbon.query.literals import interval_of
from sbon.query.named_calls import function_names, named
from sbon.query.nested import NESTED_TREES, field
from sbon.query.rewrite import check_size
from sbon.query.scalar_calls import CALLS, NULL, Bound, widen
from sbon.query.scope import Scope
from sbon.query.spans import parse_interval, parse_time
from sbon.schema import ELEMENT_TYPES, TYPE_NAMES, ColumnType, element_type, family, held_type, members_of

BOOL, INT, FLOAT = ColumnType.BOOL, ColumnType.INT, ColumnType.FLOAT
TEXT, TIME, INTERVAL, JSON = ColumnType.TEXT, ColumnType.TIME, ColumnType.INTERVAL, ColumnType.JSON

CONVERTIBLE = frozenset(
    {(BOOL, t) for t in (INT, FLOAT, TEXT)}
    | {(INT, t) for t in (BOOL, FLOAT, TEXT, TIME, INTERVAL)}
    | {(FLOAT, t) for t in (BOOL, INT, TEXT, TIME, INTERVAL)}
    | {(TEXT, t) for t in (BOOL, INT, FLOAT, TIME, INTERVAL)}
    | {(TIME, t) for t in (INT, FLOAT, TEXT)}
    | {(INTERVAL, t) for t in (INT, FLOAT, TEXT)}
    | {(JSON, t) for t in (BOOL, INT, FLOAT, TEXT)}
    | {(TEXT, JSON)}
    | {(t, array) for array in ELEMENT_TYPES for t in (TEXT, JSON)}
    | {(array, t) for array in ELEMENT_TYPES for t in (TEXT, JSON)}
)
"""Pairs of types that CAST converts."""

_BINARY: dict[type[exp.Expr], str] = {
    exp.Add: "add",
    exp.Sub: "sub",
    exp.Mul: "mul",
    exp.Div: "div",
    exp.Mod: "mod",
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
    exp.Pow: "power",
    exp.Like: "like",
    exp.ILike: "ilike",
    exp.DPipe: "concat",
    exp.StartsWith: "starts_with",
}
_UNARY: dict[type[exp.Expr], str] = {
    exp.Abs: "abs",
    exp.Sign: "sign",
    exp.Sqrt: "sqrt",
    exp.Ln: "ln",
    exp.Exp: "exp",
    exp.Lower: "lower",
    exp.Upper: "upper",
    exp.Length: "length",
    exp.Floor: "floor",
    exp.Ceil: "ceil",
}
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1


class Scalars:
    """Binds the scalar expressions of one SELECT."""

    def __init__(self, text: Text, scope: Scope) -> None:
        self.text = text
        self.scope = scope

    def bind(self, tree: exp.Expr) -> Bound:
        """Binds the expression of a tree.

        Raises
        ------
        QueryError
            The tree is not in the dialect, or has an unknown name or types that do not fit; points at the place.
        """
        handler = _HANDLERS.get(type(tree))
        if handler is not None:
            return handler(self, tree)
        name = _BINARY.get(type(tree))
        if name is not None:
            return self._binary(name, tree)
        name = _UNARY.get(type(tree))
        if name is not None:
            if not isinstance(tree.this, exp.Expr) or any(
                value not in (None, False, [], tree.this) for key, value in tree.args.items() if key not in ("this", "big_int")
            ):
                hint = "for a time write DATE_TRUNC('hour', ts)" if name in ("floor", "ceil") else f"write {name}(x)"
                raise self.refuse(tree, f"{self.text.written(tree)}: {self.typed(tree)} takes one argument", hint)
            return self.call(tree, name, [self.bind(tree.this)])
        raise self.unknown(tree)

    def condition(self, tree: exp.Expr, clause: str) -> Expression:
        """Binds a tree that must be a condition."""
        expression, type_ = self.bind(tree)
        if type_ is not None and type_ is not BOOL:
            shown = f"{self.text.written(tree)} is {TYPE_NAMES[type_]}"
            raise self.text.error(tree, f"{clause} needs a condition, {shown}", "compare it with something")
        return self.checked(tree, expression if type_ is BOOL else Literal(None, BOOL))

    def value(self, tree: exp.Expr) -> tuple[Expression, ColumnType]:
        """Binds a tree that is an output column; a bare NULL is a TEXT."""
        expression, type_ = self.bind(tree)
        return self.checked(tree, expression), type_ or TEXT

    def checked(self, tree: exp.Expr, expression: Expression) -> Expression:
        """Returns the expression after checking its size."""
        try:
            return check_size(expression)
        except QueryError as error:
            raise self.text.error(tree, error.message, error.hint) from None

    def call(self, tree: exp.Expr, name: str, arguments: Sequence[Bound], trees: Sequence[exp.Expr] = ()) -> Bound:
        """Builds a call with its types and literals checked; texts beside times are parsed as times, integers beside floats widened.

        Parameters
        ----------
        trees : trees of the arguments, so that an error can point at a literal that does not fit
        """
        bound = [self._as_neighbour(tree, name, argument, arguments) for argument in arguments]
        types = [type_ for _, type_ in bound]
        try:
            result = result_type(name, types)
            if name in ("coalesce", "greatest", "least", "in"):
                bound = [widen(argument, common_type(name, types)) for argument in bound]
            if None not in types or name == "concat_ws":
                literals = [expression.value if isinstance(expression, Literal) else None for expression, _ in bound]
                check_literals(name, literals)
                check_slips(name, literals)
        except ArgumentError as error:
            where = trees[error.place] if error.place < len(trees) else tree
            raise self.text.error(where, f"{self.typed(tree) or name}: {error.message}", error.hint) from None
        except QueryError as error:
            raise self.mismatch(tree, error) from None
        return Call(name, tuple(expression for expression, _ in bound)), result

    def _as_neighbour(self, tree: exp.Expr, name: str, argument: Bound, others: Sequence[Bound]) -> Bound:
        """Converts a literal text beside a time or an interval to a time or an interval, as in PostgreSQL: ts > '2026-01-31'."""
        expression, type_ = argument
        if type_ is not TEXT or not isinstance(expression, Literal) or not isinstance(expression.value, str):
            return argument
        if name not in ("eq", "ne", "lt", "le", "gt", "ge", "in", "coalesce", "greatest", "least"):
            return argument
        types = {other for _, other in others}
        if TIME not in types and INTERVAL not in types:
            return argument
        target = TIME if TIME in types else INTERVAL
        return self._literal_of(tree, expression.value, target), target

    def _literal_of(self, tree: exp.Expr, value: str, type_: ColumnType) -> Literal:
        try:
            return Literal(parse_time(value) if type_ is TIME else parse_interval(value), type_)
        except QueryError as error:
            where = next((literal for literal in tree.find_all(exp.Literal) if literal.this == value), tree)
            raise self.text.error(where, error.message, error.hint) from None

    def mismatch(self, tree: exp.Expr, error: QueryError) -> QueryError:
        """Returns the error about the types of a tree, with the user's text of the tree."""
        message = f"{self.text.written(tree)} {error.predicate}" if isinstance(error, TypeMismatchError) else error.message
        return self.text.error(tree, message, error.hint)

    def refuse(self, tree: exp.Expr, message: str, hint: str = "") -> QueryError:
        """Returns an error that points at a tree."""
        return self.text.error(tree, message, hint)

    def unknown(self, tree: exp.Expr) -> QueryError:
        """Returns the error for a tree that has no meaning in this dialect, with a hint what to write instead."""
        if isinstance(tree, exp.Window):
            hint = "OVER belongs into a SELECT list without GROUP BY: write it in a SELECT in brackets"
            return self.refuse(tree, "OVER is not supported here", hint)
        if isinstance(tree, exp.Subquery | exp.Exists | exp.Select | exp.SetOperation):
            hint = "JOIN the other stream within an interval"
            return self.text.keyword_error(tree, "SELECT", "a subquery cannot be a value here", hint)
        if isinstance(tree, exp.Filter):
            return self.unknown(tree.this)
        if aggregate_function(tree) is not None:
            hint = "aggregates belong into the SELECT list or HAVING, with FROM TUMBLE(...) or HOP(...)"
            return self.refuse(tree, f"{self.typed(tree)}: an aggregate is not allowed here", hint)
        if isinstance(tree, exp.Star):
            return self.refuse(tree, "* is not a value", "name the column")
        typed = self.typed(tree)
        missing = no_aggregate(tree, typed, function_names())
        if missing is not None:
            return self.refuse(tree, *missing)
        hint = bound_hint(typed) or INSTEAD.get(typed.lower(), "")
        if hint == NOW_HINT:
            return self.refuse(tree, f"{typed}: the current time is not a value of a stream", hint)
        if isinstance(tree, exp.Binary) and "typed" not in tree.meta:
            return self.refuse(tree, f"there is no operator {typed}", hint or FUNCTIONS_HINT)
        if typed:
            similar = did_you_mean(typed.lower(), function_names())
            return self.refuse(tree, f"there is no function {typed}", hint or similar or FUNCTIONS_HINT)
        shown = tree.sql(dialect="risingwave")
        return self.refuse(tree, f"{shown[:60]} is not supported", INSTEAD_OF_TREES.get(type(tree), FUNCTIONS_HINT))

    def typed(self, tree: exp.Expr) -> str:
        """Returns the name of a function, or the operator, as it was typed; "" if the tree is neither."""
        if isinstance(tree, exp.WithinGroup):
            return self.typed(tree.this)
        if "typed" in tree.meta:
            return str(tree.meta["typed"])
        if isinstance(tree, exp.Binary):
            return self.text.operator(tree)
        return tree.name if isinstance(tree, exp.Anonymous) else ""

    def _binary(self, name: str, tree: exp.Expr) -> Bound:
        left, right = self.bind(tree.this), self.bind(tree.expression)
        if name in ("like", "ilike") and not (isinstance(right[0], Literal) and isinstance(right[0].value, str)):
            raise self.refuse(tree.expression, "the pattern of LIKE is a literal text", "use starts_with for the start of a text")
        if name in ("like", "ilike") and isinstance(right[0], Literal) and _ends_escaped(str(right[0].value)):
            raise self.refuse(tree.expression, "the pattern of LIKE ends in a backslash that escapes nothing", "write two of them")
        if name == "concat":
            left, right = self.as_text(tree, left), self.as_text(tree, right)
        bound = self.call(tree, name, [left, right])
        return self.call(tree, "not", [bound]) if tree.args.get("negate") else bound

    def key(self, tree: exp.Expr, clause: str) -> tuple[Expression, ColumnType]:
        """Binds a tree by which rows are grouped or ordered."""
        expression, type_ = self.value(tree)
        if held_type(type_) is not type_:
            what = f"{clause} {self.text.written(tree)}: {TYPE_NAMES[type_]} has no order and no equality"
            hint = "take a value out of it, x ->> 'name'" if type_ is JSON else "UNNEST it, or take an element, a[1]"
            hint = "take a field out of it, (x).name" if members_of(type_) else hint
            raise self.refuse(tree, what, f"{hint}, or CAST it to TEXT")
        return expression, type_

    def as_text(self, tree: exp.Expr, bound: Bound) -> Bound:
        """Converts the value to a text."""
        return bound if bound[1] in (TEXT, None) else self.cast(tree, bound, TEXT)

    def as_time(self, tree: exp.Expr, bound: Bound) -> Bound:
        """Returns the value unchanged, but parses a literal text as a time."""
        expression, type_ = bound
        return self.cast(tree, bound, TIME) if type_ is TEXT and isinstance(expression, Literal) else bound

    def cast(self, tree: exp.Expr, bound: Bound, target: ColumnType) -> Bound:
        """Converts a value to another type; literal texts become times and intervals at once."""
        expression, type_ = bound
        if type_ is target:
            return bound
        if type_ is None:
            return Literal(None, target), target
        if not _converts(type_, target):
            what = f"{self.text.written(tree)}: {TYPE_NAMES[type_]} does not convert to {TYPE_NAMES[target]}"
            hint = "write TO_JSON(x)" if target is JSON else "take a value out of it as text, x ->> 'name', and CAST that"
            if members_of(target) or members_of(type_):
                hint = "a struct is read from JSON, or from a TEXT that is JSON; take a field out of one with (x).name"
            elif element_type(target) is not None or element_type(type_) is not None:
                hint = (
                    "an array is read from JSON, or from a TEXT that is JSON; to change the element type, CAST(CAST(a AS TEXT) AS DOUBLE[])"
                )
            elif JSON not in (type_, target):
                hint = "go through TEXT, or EXTRACT(EPOCH FROM ...)"
            raise self.refuse(tree, what, hint)
        if target is JSON:
            return self.call(tree, "json", [bound])
        if family(target) is not target:  # structs
            return self.call(tree, "struct_of", [bound, (Literal(target.value, TEXT), TEXT)])[0], target
        if target in ELEMENT_TYPES:
            return self.call(tree, f"{ELEMENT_TYPES[target].value}_array", [bound])
        if type_ is JSON and target is not TEXT:  # a number or a truth; a JSON string has quotes, and becomes NULL
            return Cast(Cast(expression, TEXT), target), target
        if isinstance(expression, Literal) and isinstance(expression.value, str) and target in (TIME, INTERVAL):
            return self._literal_of(tree, expression.value, target), target
        return Cast(expression, target), target

    # Handlers of single kinds of trees; `_HANDLERS` below lists them.

    def _column(self, tree: exp.Expr) -> Bound:
        assert isinstance(tree, exp.Column)
        if isinstance(tree.this, exp.Star):
            raise self.refuse(tree, "* is not a value", "name the column")
        found, fields = self.scope.path(self.text, tree)
        bound: Bound = Column(found.column), found.type
        for name in fields:
            bound = field(self, tree, bound, name)
        return bound

    def _literal(self, tree: exp.Expr) -> Bound:
        value = str(tree.this)
        if tree.args.get("is_string"):
            return Literal(value, TEXT), TEXT
        if value.isdecimal() and value.isascii():
            # Up to 64 bits. 2**63 itself does not fit: `_negative` reads -2**63.
            number = int(value) if len(value) <= 19 else _INT_MAX + 1
            if number > _INT_MAX:
                raise self.refuse(tree, f"number {value} does not fit into 64 bits", "write it with a point, as a float")
            return Literal(number, INT), INT
        try:
            real = float(value)
        except ValueError:
            raise self.refuse(tree, f"number {value} cannot be read") from None
        if not math.isfinite(real):
            raise self.refuse(tree, f"number {value} is too large", "floats reach to about 1.8e308")
        return Literal(real, FLOAT), FLOAT


def _converts(source: ColumnType, target: ColumnType) -> bool:
    """Tells whether CAST converts a type to another; structs, and arrays of them, convert like JSON."""
    if family(source) is source and family(target) is target:
        return (source, target) in CONVERTIBLE
    return (source if family(source) is source else target) in (TEXT, JSON)


def _ends_escaped(pattern: str) -> bool:
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


def _negative(scalars: Scalars, tree: exp.Expr) -> Bound:
    operand = tree.this
    if isinstance(operand, exp.Literal) and not operand.args.get("is_string") and str(operand.this) == str(-_INT_MIN):
        return Literal(_INT_MIN, INT), INT
    expression, type_ = scalars.bind(operand)
    if isinstance(expression, Literal) and type_ in (INT, FLOAT, INTERVAL):
        value = expression.value
        if isinstance(value, int | float) and value != _INT_MIN:
            return Literal(-value, expression.type), type_
    return scalars.call(tree, "neg", [(expression, type_)])


def _boolean(scalars: Scalars, tree: exp.Expr) -> Bound:
    return Literal(bool(tree.this), BOOL), BOOL


def _null(scalars: Scalars, tree: exp.Expr) -> Bound:
    return NULL, None


def _paren(scalars: Scalars, tree: exp.Expr) -> Bound:
    return scalars.bind(tree.this)


def _interval(scalars: Scalars, tree: exp.Expr) -> Bound:
    span = interval_of(scalars.text, tree)
    if span is None:
        raise scalars.refuse(tree, "an INTERVAL is a literal", "write INTERVAL '10 seconds', or multiply one: n * INTERVAL '1 second'")
    return Literal(span, INTERVAL), INTERVAL


def _connective(scalars: Scalars, tree: exp.Expr) -> Bound:
    assert isinstance(tree, exp.Connector)
    name = "and" if isinstance(tree, exp.And) else "or"
    # sqlglot nests to the left; long chains are flattened without recursion.
    parts = [scalars.bind(part) for part in tree.flatten(unnest=False)]
    return scalars.call(tree, name, parts)


def _not(scalars: Scalars, tree: exp.Expr) -> Bound:
    return scalars.call(tree, "not", [scalars.bind(tree.this)])


def _is(scalars: Scalars, tree: exp.Expr) -> Bound:
    operand, other = scalars.bind(tree.this), tree.expression
    if isinstance(other, exp.Null):
        bound = scalars.call(tree, "is_null", [operand])
    elif isinstance(other, exp.Boolean):
        truth = scalars.call(tree, "eq", [operand, (Literal(bool(other.this), BOOL), BOOL)])
        bound = scalars.call(tree, "coalesce", [truth, (Literal(False, BOOL), BOOL)])
    else:
        raise scalars.refuse(other, "IS takes NULL, TRUE or FALSE", "compare with = instead")
    return scalars.call(tree, "not", [bound]) if tree.args.get("negate") else bound


def _between(scalars: Scalars, tree: exp.Expr) -> Bound:
    operand, low, high = (scalars.bind(tree.args[part]) for part in ("this", "low", "high"))
    above, below = scalars.call(tree, "ge", [operand, low]), scalars.call(tree, "le", [operand, high])
    bound = scalars.call(tree, "and", [above, below])
    if tree.args.get("symmetric"):
        turned = scalars.call(tree, "and", [scalars.call(tree, "ge", [operand, high]), scalars.call(tree, "le", [operand, low])])
        bound = scalars.call(tree, "or", [bound, turned])
    return scalars.call(tree, "not", [bound]) if tree.args.get("negate") else bound


def _in(scalars: Scalars, tree: exp.Expr) -> Bound:
    if tree.args.get("query") is not None or tree.args.get("unnest") is not None or tree.args.get("field") is not None:
        raise scalars.refuse(tree, "IN takes a list of literals", "to match against another stream, JOIN it within an interval")
    operand = scalars.bind(tree.this)
    values = [scalars.bind(value) for value in tree.expressions]
    for value_tree, (value, _) in zip(tree.expressions, values, strict=True):
        if not isinstance(value, Literal):
            raise scalars.refuse(value_tree, "IN takes a list of literals", "write (a = x OR a = y)")
    present = [value for value in values if value[1] is not None]
    bound: Bound = scalars.call(tree, "in", [operand, *present]) if present else (Literal(None, BOOL), BOOL)
    if present and len(present) < len(values):
        bound = scalars.call(tree, "or", [bound, (Literal(None, BOOL), None)])
    return scalars.call(tree, "not", [bound]) if tree.args.get("negate") else bound


_HANDLERS: dict[type[exp.Expr], Callable[[Scalars, exp.Expr], Bound]] = {
    exp.Column: Scalars._column,
    exp.Literal: Scalars._literal,
    exp.Neg: _negative,
    exp.Boolean: _boolean,
    exp.Null: _null,
    exp.Paren: _paren,
    exp.Interval: _interval,
    exp.And: _connective,
    exp.Or: _connective,
    exp.Not: _not,
    exp.Is: _is,
    exp.Between: _between,
    exp.In: _in,
    exp.Anonymous: named,
    **CALLS,
    **NESTED_TREES,
}
