"""Scalar expressions of SQL to expressions of the plan, with their types."""

import math
from collections.abc import Callable, Sequence

from sqlglot import exp

from sbon.errors import QueryError
from sbon.query.catalog import did_you_mean
from sbon.query.dialect import Text
from sbon.query.expression import Call, Case, Cast, Column, Expression, Literal
from sbon.query.functions import FUNCTIONS, TIME_UNITS, MaybeType, common_type, result_type
from sbon.query.rewrite import check_size
from sbon.query.schema import ColumnType
from sbon.query.scope import Scope
from sbon.query.spans import parse_interval, parse_time
from sbon.query.statements import column_type, interval_of

Bound = tuple[Expression, MaybeType]
"""An expression and its type; None: a bare NULL."""

BOOL, INT, FLOAT = ColumnType.BOOL, ColumnType.INT, ColumnType.FLOAT
TEXT, TIME, INTERVAL = ColumnType.TEXT, ColumnType.TIME, ColumnType.INTERVAL
NULL = Literal(None, TEXT)

CONVERTIBLE = frozenset(
    {(BOOL, t) for t in (INT, FLOAT, TEXT)}
    | {(INT, t) for t in (BOOL, FLOAT, TEXT, TIME, INTERVAL)}
    | {(FLOAT, t) for t in (BOOL, INT, TEXT, TIME, INTERVAL)}
    | {(TEXT, t) for t in (BOOL, INT, FLOAT, TIME, INTERVAL)}
    | {(TIME, t) for t in (INT, FLOAT, TEXT)}
    | {(INTERVAL, t) for t in (INT, FLOAT, TEXT)}
)
"""What CAST takes."""

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
_NAMED = {"truncate": "trunc", "char_length": "length", "substring": "substr", "pow": "power", "ceiling": "ceil"}
_EXTRACT = ("year", "quarter", "month", "week", "day", "dow", "doy", "hour", "minute", "second", "epoch")
_NOW_HINT = "queries depend on their rows alone: use the event time, such as ts"
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1


class Scalars:
    """Binds the scalar expressions of one SELECT."""

    def __init__(self, text: Text, scope: Scope) -> None:
        self.text = text
        self.scope = scope

    def bind(self, tree: exp.Expr) -> Bound:
        """The expression of a tree.

        Raises
        ------
        QueryError
            It is not of the dialect, names what is not there, or its types do not fit; points at the place.
        """
        handler = _HANDLERS.get(type(tree))
        if handler is not None:
            return handler(self, tree)
        name = _BINARY.get(type(tree))
        if name is not None:
            return self._binary(name, tree)
        name = _UNARY.get(type(tree))
        if name is not None:
            if any(value not in (None, False, [], tree.this) for key, value in tree.args.items() if key not in ("this", "big_int")):
                raise self._refuse(tree, f"{name} takes one argument")
            return self.call(tree, name, [self.bind(tree.this)])
        raise self._unknown(tree)

    def condition(self, tree: exp.Expr, clause: str) -> Expression:
        """The expression of a tree that must be a condition."""
        expression, type_ = self.bind(tree)
        if type_ not in (BOOL, None):
            shown = type_.value if type_ is not None else "null"
            raise self.text.error(tree, f"{clause} needs a condition, this is {shown}", "compare it with something")
        return self.checked(tree, expression if type_ is BOOL else Literal(None, BOOL))

    def value(self, tree: exp.Expr) -> tuple[Expression, ColumnType]:
        """The expression of a tree that is a column of an output; a bare NULL is a TEXT."""
        expression, type_ = self.bind(tree)
        return self.checked(tree, expression), type_ or TEXT

    def checked(self, tree: exp.Expr, expression: Expression) -> Expression:
        """The expression, if it is not too large."""
        try:
            return check_size(expression)
        except QueryError as error:
            raise self.text.error(tree, error.message, error.hint) from None

    def call(self, tree: exp.Expr, name: str, arguments: Sequence[Bound]) -> Bound:
        """A call with its types checked; texts beside times are read as times, whole numbers beside floats widened."""
        bound = [self._as_neighbour(tree, name, argument, arguments) for argument in arguments]
        types = [type_ for _, type_ in bound]
        try:
            result = result_type(name, types)
            if name in ("coalesce", "greatest", "least", "in"):
                bound = [_widen(argument, common_type(name, types)) for argument in bound]
        except QueryError as error:
            raise self.text.error(tree, error.message, error.hint) from None
        return Call(name, tuple(expression for expression, _ in bound)), result

    def _as_neighbour(self, tree: exp.Expr, name: str, argument: Bound, others: Sequence[Bound]) -> Bound:
        """A literal text beside a time or an interval is one, as in PostgreSQL: ts > '2026-01-31'."""
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
            raise self.text.error(tree, error.message, error.hint) from None

    def _refuse(self, tree: exp.Expr, message: str, hint: str = "") -> QueryError:
        return self.text.error(tree, message, hint)

    def _unknown(self, tree: exp.Expr) -> QueryError:
        if isinstance(tree, exp.Window):
            return self._refuse(tree, "OVER is not supported", "aggregate over a time window: FROM TUMBLE(...) GROUP BY window_start")
        if isinstance(tree, exp.Subquery | exp.Exists | exp.Select | exp.SetOperation):
            return self._refuse(tree, "a subquery cannot be a value here", "JOIN the other stream within an interval")
        if isinstance(tree, exp.AggFunc | exp.Filter | exp.First | exp.Last):
            return self._refuse(
                tree, "an aggregate is not allowed here", "aggregates stand in the SELECT list or HAVING over FROM TUMBLE(...) or HOP(...)"
            )
        if isinstance(tree, exp.Star):
            return self._refuse(tree, "* is not a value", "name the column")
        if isinstance(tree, exp.CurrentTimestamp | exp.CurrentDate | exp.CurrentTime):
            return self._refuse(tree, "the current time is not a value of a stream", _NOW_HINT)
        if isinstance(tree, exp.Func):
            name = tree.name if isinstance(tree, exp.Anonymous) else tree.sql_name()
            return self._refuse(tree, f"there is no function {name.lower()}", did_you_mean(name.lower(), _function_names()))
        shown = tree.sql(dialect="risingwave")
        return self._refuse(tree, f"{shown[:60]} is not supported", "write it with the functions of the README")

    def _binary(self, name: str, tree: exp.Expr) -> Bound:
        left, right = self.bind(tree.this), self.bind(tree.expression)
        if name in ("like", "ilike") and not (isinstance(right[0], Literal) and isinstance(right[0].value, str)):
            raise self._refuse(tree.expression, "the pattern of LIKE is a literal text", "use starts_with for the start of a text")
        if name == "concat":
            left, right = self._as_text(tree, left), self._as_text(tree, right)
        bound = self.call(tree, name, [left, right])
        return self.call(tree, "not", [bound]) if tree.args.get("negate") else bound

    def _as_text(self, tree: exp.Expr, bound: Bound) -> Bound:
        return bound if bound[1] in (TEXT, None) else self.cast(tree, bound, TEXT)

    def cast(self, tree: exp.Expr, bound: Bound, target: ColumnType) -> Bound:
        """A conversion; of literal texts to times and intervals, at once."""
        expression, type_ = bound
        if type_ is target:
            return bound
        if type_ is None:
            return Literal(None, target), target
        if (type_, target) not in CONVERTIBLE:
            raise self._refuse(tree, f"{type_.value} does not convert to {target.value}", "go through TEXT, or EXTRACT(EPOCH FROM ...)")
        if isinstance(expression, Literal) and isinstance(expression.value, str) and target in (TIME, INTERVAL):
            return self._literal_of(tree, expression.value, target), target
        return Cast(expression, target), target

    # Handlers of single kinds of trees; `_HANDLERS` below lists them.

    def _column(self, tree: exp.Expr) -> Bound:
        assert isinstance(tree, exp.Column)
        if isinstance(tree.this, exp.Star):
            raise self._refuse(tree, "* is not a value", "name the column")
        found = self.scope.resolve(self.text, tree)
        return Column(found.column), found.type

    def _literal(self, tree: exp.Expr) -> Bound:
        value = str(tree.this)
        if tree.args.get("is_string"):
            return Literal(value, TEXT), TEXT
        if value.isdecimal() and value.isascii():
            # Up to 64 bits; -2**63 is one more than the greatest, and is made of its negative here.
            number = int(value) if len(value) <= 19 else _INT_MAX + 1
            if number > _INT_MAX:
                raise self._refuse(tree, f"number {value} does not fit into 64 bits", "write it with a point, as a float")
            return Literal(number, INT), INT
        try:
            real = float(value)
        except ValueError:
            raise self._refuse(tree, f"number {value} cannot be read") from None
        if not math.isfinite(real):
            raise self._refuse(tree, f"number {value} is too large", "floats reach to about 1.8e308")
        return Literal(real, FLOAT), FLOAT

    def _negative(self, tree: exp.Expr) -> Bound:
        operand = tree.this
        if isinstance(operand, exp.Literal) and not operand.args.get("is_string") and str(operand.this) == str(-_INT_MIN):
            return Literal(_INT_MIN, INT), INT
        expression, type_ = self.bind(operand)
        if isinstance(expression, Literal) and type_ in (INT, FLOAT, INTERVAL):
            value = expression.value
            if isinstance(value, int | float) and value != _INT_MIN:
                return Literal(-value, expression.type), type_
        return self.call(tree, "neg", [(expression, type_)])

    def _boolean(self, tree: exp.Expr) -> Bound:
        return Literal(bool(tree.this), BOOL), BOOL

    def _null(self, tree: exp.Expr) -> Bound:
        return NULL, None

    def _paren(self, tree: exp.Expr) -> Bound:
        return self.bind(tree.this)

    def _interval(self, tree: exp.Expr) -> Bound:
        span = interval_of(self.text, tree)
        if span is None:
            raise self._refuse(tree, "an INTERVAL is a literal", "write INTERVAL '10 seconds', or multiply one: n * INTERVAL '1 second'")
        return Literal(span, INTERVAL), INTERVAL

    def _connective(self, tree: exp.Expr) -> Bound:
        assert isinstance(tree, exp.Connector)
        name = "and" if isinstance(tree, exp.And) else "or"
        # sqlglot nests to the left; long chains are taken apart without recursion.
        parts = [self.bind(part) for part in tree.flatten(unnest=False)]
        return self.call(tree, name, parts)

    def _not(self, tree: exp.Expr) -> Bound:
        return self.call(tree, "not", [self.bind(tree.this)])

    def _is(self, tree: exp.Expr) -> Bound:
        operand, other = self.bind(tree.this), tree.expression
        if isinstance(other, exp.Null):
            bound = self.call(tree, "is_null", [operand])
        elif isinstance(other, exp.Boolean):
            truth = self.call(tree, "eq", [operand, (Literal(bool(other.this), BOOL), BOOL)])
            bound = self.call(tree, "coalesce", [truth, (Literal(False, BOOL), BOOL)])
        else:
            raise self._refuse(other, "IS takes NULL, TRUE or FALSE", "compare with = instead")
        return self.call(tree, "not", [bound]) if tree.args.get("negate") else bound

    def _between(self, tree: exp.Expr) -> Bound:
        operand, low, high = (self.bind(tree.args[part]) for part in ("this", "low", "high"))
        above, below = self.call(tree, "ge", [operand, low]), self.call(tree, "le", [operand, high])
        if tree.args.get("symmetric"):
            raise self._refuse(tree, "BETWEEN SYMMETRIC is not supported", "put the lower bound first")
        bound = self.call(tree, "and", [above, below])
        return self.call(tree, "not", [bound]) if tree.args.get("negate") else bound

    def _in(self, tree: exp.Expr) -> Bound:
        if tree.args.get("query") is not None or tree.args.get("unnest") is not None or tree.args.get("field") is not None:
            raise self._refuse(tree, "IN takes a list of literals", "to match against another stream, JOIN it within an interval")
        operand = self.bind(tree.this)
        values = [self.bind(value) for value in tree.expressions]
        for value_tree, (value, _) in zip(tree.expressions, values, strict=True):
            if not isinstance(value, Literal):
                raise self._refuse(value_tree, "IN takes a list of literals", "write (a = x OR a = y)")
        present = [value for value in values if value[1] is not None]
        bound: Bound = self.call(tree, "in", [operand, *present]) if present else (Literal(None, BOOL), BOOL)
        if present and len(present) < len(values):
            bound = self.call(tree, "or", [bound, (Literal(None, BOOL), None)])
        return self.call(tree, "not", [bound]) if tree.args.get("negate") else bound

    def _case(self, tree: exp.Expr) -> Bound:
        subject = tree.args.get("this")
        branches = []
        for branch in tree.args["ifs"]:
            if subject is None:
                condition = self.condition(branch.this, "WHEN")
            else:
                condition, _ = self.call(branch, "eq", [self.bind(subject), self.bind(branch.this)])
            branches.append((condition, self.bind(branch.args["true"])))
        default = tree.args.get("default")
        return self._chosen(tree, branches, (NULL, None) if default is None else self.bind(default))

    def _chosen(self, tree: exp.Expr, branches: list[tuple[Expression, Bound]], default: Bound) -> Bound:
        try:
            result = common_type("case", [type_ for _, (_, type_) in branches] + [default[1]])
        except QueryError as error:
            raise self._refuse(tree, error.message, error.hint) from None
        widened = tuple((condition, _widen(value, result)[0]) for condition, value in branches)
        return Case(widened, _widen(default, result)[0]), result

    def _if(self, tree: exp.Expr) -> Bound:
        default = tree.args.get("false")
        branch = (self.condition(tree.this, "IF"), self.bind(tree.args["true"]))
        return self._chosen(tree, [branch], (NULL, None) if default is None else self.bind(default))

    def _nullif(self, tree: exp.Expr) -> Bound:
        first, second = self.bind(tree.this), self.bind(tree.expression)
        same, _ = self.call(tree, "eq", [first, second])
        return self._chosen(tree, [(same, (NULL, None))], first)

    def _cast(self, tree: exp.Expr) -> Bound:
        return self.cast(tree, self.bind(tree.this), column_type(self.text, tree.args.get("to"), tree))

    def _list(self, tree: exp.Expr) -> Bound:
        name = "coalesce" if isinstance(tree, exp.Coalesce) else "greatest" if isinstance(tree, exp.Greatest) else "least"
        return self.call(tree, name, [self.bind(part) for part in (tree.this, *tree.expressions)])

    def _concat(self, tree: exp.Expr) -> Bound:
        # CONCAT takes NULL for an empty text; || does not.
        parts = [self._as_text(tree, self.bind(part)) for part in tree.expressions]
        filled = [self.call(tree, "coalesce", [part, (Literal("", TEXT), TEXT)]) for part in parts]
        return filled[0] if len(filled) == 1 else self.call(tree, "concat", filled)

    def _round(self, tree: exp.Expr) -> Bound:
        arguments = [self.bind(tree.this)]
        decimals = tree.args.get("decimals")
        if decimals is not None:
            digits = self.bind(decimals)
            if not isinstance(digits[0], Literal) or not isinstance(digits[0].value, int) or not 0 <= digits[0].value <= 15:
                raise self._refuse(decimals, "the number of decimals is a literal from 0 to 15")
            arguments.append(digits)
        return self.call(tree, "round", arguments)

    def _log(self, tree: exp.Expr) -> Bound:
        if tree.args.get("expression") is not None:
            raise self._refuse(tree, "LOG takes one argument and has base 10", "write ln(x) / ln(base)")
        return self.call(tree, "log10", [self.bind(tree.this)])

    def _substring(self, tree: exp.Expr) -> Bound:
        arguments = [self.bind(tree.this)]
        start, length = tree.args.get("start"), tree.args.get("length")
        arguments.append((Literal(1, INT), INT) if start is None else self.bind(start))
        if length is not None:
            arguments.append(self.bind(length))
        return self.call(tree, "substr", arguments)

    def _left(self, tree: exp.Expr) -> Bound:
        return self.call(tree, "substr", [self.bind(tree.this), (Literal(1, INT), INT), self.bind(tree.expression)])

    def _trim(self, tree: exp.Expr) -> Bound:
        if tree.args.get("expression") is not None:
            raise self._refuse(tree, "TRIM takes away blanks only", "use replace(text, 'x', '')")
        position = str(tree.args.get("position") or "BOTH").upper()
        return self.call(tree, {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(position, "trim"), [self.bind(tree.this)])

    def _replace(self, tree: exp.Expr) -> Bound:
        parts = [self.bind(tree.this), self.bind(tree.expression), self.bind(tree.args.get("replacement") or exp.Literal.string(""))]
        if not all(isinstance(part, Literal) for part, _ in parts[1:]):
            raise self._refuse(tree, "what REPLACE seeks and puts are literal texts")
        return self.call(tree, "replace", parts)

    def _date_trunc(self, tree: exp.Expr) -> Bound:
        unit = (tree.args["unit"].name if tree.args.get("unit") is not None else "").lower()
        if unit not in TIME_UNITS:
            raise self._refuse(tree, f"DATE_TRUNC has no unit {unit}", did_you_mean(unit, TIME_UNITS))
        return self.call(tree, "date_trunc", [(Literal(unit, TEXT), TEXT), self.bind(tree.this)])

    def _extract(self, tree: exp.Expr) -> Bound:
        unit = tree.this.name.lower()
        unit = {"dayofweek": "dow", "dayofyear": "doy"}.get(unit, unit)
        if unit not in _EXTRACT:
            raise self._refuse(tree, f"EXTRACT has no field {unit}", did_you_mean(unit, _EXTRACT))
        return self.call(tree, f"extract_{unit}", [self.bind(tree.expression)])

    def _anonymous(self, tree: exp.Expr) -> Bound:
        name = str(tree.this).lower()
        name = _NAMED.get(name, name)
        if name in ("now", "current_timestamp", "localtimestamp"):
            raise self._refuse(tree, "the current time is not a value of a stream", _NOW_HINT)
        if name not in FUNCTIONS or name in ("and", "or", "not", "in", "is_null") or name.startswith("extract_"):
            raise self._unknown(tree)
        return self.call(tree, name, [self.bind(argument) for argument in tree.expressions])


def _widen(bound: Bound, target: MaybeType) -> Bound:
    expression, type_ = bound
    if target is None or type_ is target:
        return bound
    if type_ is None:
        return Literal(None, target), target
    if isinstance(expression, Literal) and isinstance(expression.value, int):
        return Literal(float(expression.value), target), target
    return Cast(expression, target), target


def _function_names() -> list[str]:
    hidden = ("add", "sub", "mul", "div", "neg", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "in", "is_null")
    return [name for name in FUNCTIONS if name not in hidden and not name.startswith("extract_")] + ["extract", "cast", "nullif"]


_HANDLERS: dict[type[exp.Expr], Callable[[Scalars, exp.Expr], Bound]] = {
    exp.Column: Scalars._column,
    exp.Literal: Scalars._literal,
    exp.Neg: Scalars._negative,
    exp.Boolean: Scalars._boolean,
    exp.Null: Scalars._null,
    exp.Paren: Scalars._paren,
    exp.Interval: Scalars._interval,
    exp.And: Scalars._connective,
    exp.Or: Scalars._connective,
    exp.Not: Scalars._not,
    exp.Is: Scalars._is,
    exp.Between: Scalars._between,
    exp.In: Scalars._in,
    exp.Case: Scalars._case,
    exp.If: Scalars._if,
    exp.Nullif: Scalars._nullif,
    exp.Cast: Scalars._cast,
    exp.TryCast: Scalars._cast,
    exp.Coalesce: Scalars._list,
    exp.Greatest: Scalars._list,
    exp.Least: Scalars._list,
    exp.Concat: Scalars._concat,
    exp.Round: Scalars._round,
    exp.Log: Scalars._log,
    exp.Substring: Scalars._substring,
    exp.Left: Scalars._left,
    exp.Trim: Scalars._trim,
    exp.Replace: Scalars._replace,
    exp.TimestampTrunc: Scalars._date_trunc,
    exp.DateTrunc: Scalars._date_trunc,
    exp.Extract: Scalars._extract,
    exp.Anonymous: Scalars._anonymous,
}
