"""Binds aggregates OVER the rows before each row.

    SELECT k, v, AVG(v) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS mean FROM stream

All such aggregates of a SELECT share one PARTITION BY and one ORDER BY, the event time. A frame is a number of rows.
"""

from sqlglot import exp

from sbon.errors import QueryError
from sbon.query.aggregate_calls import aggregate_function, find_aggregate, read_aggregate
from sbon.query.dialect import Text
from sbon.query.expression import Column, Expression
from sbon.query.functions import aggregate_type
from sbon.query.limits import PRECEDING_MAX
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.ordered import OVER_FUNCTIONS
from sbon.query.projection import free_name
from sbon.query.relation import Over, Relation, Select
from sbon.query.rewrite import columns_of
from sbon.query.scalar import Scalars
from sbon.query.scalar_calls import Bound
from sbon.query.scope import Scope
from sbon.query.text import aggregate_text
from sbon.schema import ColumnType

_FORM = "write SUM(x) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 9 PRECEDING AND CURRENT ROW)"
_HAVE_IT = f"OVER goes with COUNT, SUM, AVG, MIN and MAX, and with ROW_NUMBER() for the first rows of a window: {_FORM}"
_ROWS = "write ROWS BETWEEN 9 PRECEDING AND CURRENT ROW; a frame of time is a window: FROM TUMBLE(...) or HOP(...)"


def has_over(tree: exp.Select) -> bool:
    """Tells whether the SELECT list has an aggregate over rows."""
    return any(_is_over(part) for item in tree.expressions for part in item.walk(prune=lambda part: isinstance(part, exp.Query)))


def _is_over(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Window) and not isinstance(tree.this, exp.RowNumber)


class OverRows(Scalars):
    """Binds a SELECT list with aggregates over rows."""

    def __init__(self, text: Text, scope: Scope, relation: Relation) -> None:
        super().__init__(text, scope)
        self._relation = relation
        self._time: str | None = None
        self._partition: tuple[Expression, ...] | None = None
        self._types: dict[Expression, ColumnType] = {}
        self._found: dict[str, tuple[Aggregate, ColumnType, int]] = {}

    def bind(self, tree: exp.Expr) -> Bound:
        """Binds an aggregate over rows, or an expression of such aggregates."""
        return self._over(tree) if _is_over(tree) else super().bind(tree)

    def select(self, conditions: tuple[Expression, ...], columns: tuple[tuple[str, Expression, ColumnType], ...]) -> Select:
        """Returns the SELECT, once all its columns are bound."""
        assert self._time is not None
        types = {column.name: column.type for column in self._relation.schema}
        operands = [aggregate.operand for aggregate, _, _ in self._found.values() if aggregate.operand is not None]
        used = dict.fromkeys([self._time, *columns_of([*operands, *(value for _, value, _ in columns)])])
        rows = [(name, Column(name), types[name]) for name in used if name in types]
        inner: list[tuple[str, Expression, ColumnType]] = list(rows)
        partition = []
        for value in self._partition or ():
            name = next((name for name, other, _ in inner if other == value), None)
            if name is None:
                name = free_name("key", (*types, *self._found))
                inner.append((name, value, self._types[value]))
            partition.append(name)
        over = Over(
            Select(self._relation, conditions, tuple(inner)),
            self._time,
            tuple(partition),
            tuple(name for name, _, _ in rows),
            tuple((aggregate, type_) for aggregate, type_, _ in self._found.values()),
            tuple(preceding for _, _, preceding in self._found.values()),
        )
        return Select(over, (), columns)

    def _over(self, tree: exp.Expr) -> Bound:
        called = tree.this
        name = aggregate_function(called)
        if isinstance(called, exp.Filter):
            raise self.text.error(called, "FILTER does not go with OVER", "write SUM(CASE WHEN condition THEN x END) OVER (...)")
        if name is None:
            raise self.text.error(called, f"{_typed(tree)} has no OVER here", _HAVE_IT)
        call = read_aggregate(self.text, called, name)
        function, operand_tree = call.function, call.operand
        if function not in OVER_FUNCTIONS:
            raise self.text.error(called, f"{_typed(tree)} has no OVER here", _HAVE_IT)
        self._agree(tree)
        preceding = self._preceding(tree)
        operand, type_ = None, None
        if operand_tree is not None:
            if find_aggregate(operand_tree) is not None or operand_tree.find(exp.Window) is not None:
                raise self.text.error(
                    operand_tree, "an aggregate of an aggregate", "aggregate in a SELECT in brackets, and again around it"
                )
            operand, type_ = self.value(operand_tree)
        try:
            result = aggregate_type(function, type_)
        except QueryError as error:
            raise self.text.error(called, error.message, error.hint) from None
        for known, (aggregate, known_type, rows) in self._found.items():
            if (aggregate.function, aggregate.operand, rows) == (function, operand, preceding):
                return Column(known), known_type
        taken = (*(column.name for column in self._relation.schema), *self._found)
        found = free_name(f"{aggregate_text(Aggregate('', function, operand))} over {preceding}", taken)
        self._found[found] = Aggregate(found, function, operand), result, preceding
        return Column(found), result

    def _agree(self, tree: exp.Expr) -> None:
        """Checks that all aggregates have one partition and one order, and that the order is the event time."""
        if tree.args.get("alias") is not None:
            raise self.text.error(tree, f"{_typed(tree)}: a named WINDOW is not supported", f"spell it out: {_FORM}")
        order = tree.args.get("order")
        items = list(order.expressions) if order is not None else []
        if len(items) != 1 or items[0].args.get("desc") or not isinstance(items[0].this, exp.Column):
            raise self.text.error(tree, f"{_typed(tree)}: OVER goes by the event time, ascending, and nothing else", _FORM)
        found = self.scope.resolve(self.text, items[0].this)
        if self._relation.times.get(found.column) != (found.column, 0):
            bases = [column.name for column in self.scope.columns if self._relation.times.get(column.column) == (column.column, 0)]
            hint = f"write ORDER BY {bases[0]}" if bases else "declare WATERMARK FOR it in CREATE SOURCE, and keep the column in subqueries"
            raise self.text.error(items[0].this, f"{found.name} is not the event time, by which OVER goes", hint)
        bound = [self.key(part, "PARTITION BY") for part in tree.args.get("partition_by") or ()]
        partition = tuple(value for value, _ in bound)
        self._types |= dict(bound)
        if self._partition not in (None, partition) or self._time not in (None, found.column):
            raise self.text.error(
                tree,
                f"{_typed(tree)}: two OVER of one SELECT differ in PARTITION BY or ORDER BY",
                "use a SELECT in brackets for the second",
            )
        self._partition, self._time = partition, found.column

    def _preceding(self, tree: exp.Expr) -> int:
        """Returns the number of rows before the current one."""
        spec = tree.args.get("spec")
        if spec is None:
            raise self.text.error(tree, f"{_typed(tree)}: OVER without a frame would include all rows that ever came", _ROWS)
        start, end = spec.args.get("start"), spec.args.get("end")
        ends_here = end in (None, "CURRENT ROW")
        if spec.args.get("kind") != "ROWS" or not ends_here or spec.args.get("exclude"):
            raise self.text.error(tree, f"{_typed(tree)}: OVER takes a frame of ROWS that ends at the CURRENT ROW", _ROWS)
        if start == "CURRENT ROW":
            return 0
        number = str(start.this) if isinstance(start, exp.Literal) and not start.args.get("is_string") else ""
        if spec.args.get("start_side") != "PRECEDING" or not number.isdecimal() or len(number) > 9 or int(number) > PRECEDING_MAX:
            raise self.text.error(tree, f"{_typed(tree)}: a frame begins at a number of rows PRECEDING, at most {PRECEDING_MAX}", _ROWS)
        return int(number)


def _typed(tree: exp.Expr) -> str:
    """Returns the function before OVER, as it was typed."""
    called = tree.this
    return str(called.meta.get("typed", called.sql_name() if isinstance(called, exp.Func) else "OVER"))
