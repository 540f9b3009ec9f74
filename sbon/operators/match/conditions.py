"""The conditions of a pattern's variables, in two parts: one that a row and its neighbours decide, and one that depends on the match so
far.

The first part is computed in columns, for all rows of a batch, and kept as one number per row with a bit for each variable. The second part
is computed for one row and one attempt at a time (`sbon.operators.match.bindings`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from sbon.errors import QueryError, RemoteProtocolError
from sbon.operators.compile import compile_column, compile_expression
from sbon.operators.frames import computed
from sbon.operators.match.bindings import Binding, States, ValueAt
from sbon.operators.match.gathering import gathering_of
from sbon.operators.match.plain import Plain, evaluator
from sbon.operators.match.program import ANY
from sbon.query.expression import Expression, Literal
from sbon.query.functions import aggregate_type
from sbon.query.params.matched import ROW_LABEL, MatchNumber, MatchParams, Navigation, Operand, Tally
from sbon.query.rewrite import columns_of, conjoin, conjuncts, substitute
from sbon.schema import ColumnType
from sbon.types import IntArray


def operand_type(operand: Operand, columns: Mapping[str, ColumnType]) -> ColumnType:
    """Returns the type of an operand over rows with these columns.

    Raises
    ------
    RemoteProtocolError
        The operand's expression is not one that the planner makes.
    """
    match operand:
        case Navigation(value=None):
            return ColumnType.TEXT
        case Navigation(value=value):
            assert value is not None
            return compile_column(value, columns)[1]
        case Tally(aggregate=aggregate):
            of, by = (None if part is None else compile_column(part, columns)[1] for part in (aggregate.operand, aggregate.by))
            try:
                return aggregate_type(aggregate.function, of, by)
            except QueryError as error:
                raise RemoteProtocolError(str(error)) from error
        case MatchNumber():
            return ColumnType.INT


def reads_label(operand: Operand) -> bool:
    """Tells whether an operand reads for which variable each row was taken."""
    parts = (operand.aggregate.operand, operand.aggregate.by) if isinstance(operand, Tally) else ()
    return ROW_LABEL in columns_of(part for part in parts if part is not None)


def own_shift(operand: Operand, variable: int) -> int | None:
    """Returns how far the row that an operand reads is from the row being taken for a variable; None if that depends on the match."""
    if not isinstance(operand, Navigation) or operand.first or operand.skip:
        return None
    return operand.shift if not operand.variables or variable in operand.variables else None


class Conditions:
    """The conditions of all variables.

    Parameters
    ----------
    columns : types of the rows' columns and of ROW_LABEL

    Raises
    ------
    RemoteProtocolError
        A condition is not one that the planner makes.
    """

    def __init__(self, params: MatchParams, columns: Mapping[str, ColumnType]) -> None:
        self._count = len(params.variables)
        self._types = {one.name: operand_type(one, columns) for one in params.operands}
        self._own: dict[str, tuple[pl.Expr, int]] = {}
        """Operands of the first part: the expression, and the shift."""
        self._plain: dict[int, pl.Expr] = {}
        """The first part of each variable that has one."""
        self._late: dict[int, tuple[Plain, tuple[str, ...]]] = {}
        """The second part, and the operands that it reads."""
        self.late_columns: dict[int, tuple[pl.Expr, tuple[str, ...]]] = {}
        """The second part for many rows at once, over columns with the operands' values; and the operands that it reads."""
        by_name = {one.name: one for one in params.operands}
        late: dict[str, None] = {}
        for variable, condition in enumerate(params.conditions):
            if condition is None:
                continue
            first, second = self._parted(condition, variable, by_name, params.variables)
            if first is not None:
                self._add_plain(variable, first, by_name, columns)
            if second is not None:
                names = columns_of([second])
                late.update(dict.fromkeys(names))
                types = {name: self._types[name] for name in names}
                self._late[variable] = evaluator(second, types), names
                column = compile_column(second, types)[0].cast(pl.Boolean).fill_null(False)
                self.late_columns[variable] = column.alias(f"v{variable}"), names
        self._values: list[tuple[pl.Expr, bool, str | None]] = []
        """Values that each row has: the expression, whether it is a time or an interval, and, if it reads ROW_LABEL, the variable."""
        self.bindings = [self._binding(by_name[name], columns, params.variables) for name in late]
        self._place = {name: place for place, name in enumerate(late)}

    @property
    def read_columns(self) -> list[str]:
        """Returns the columns of a row that the first parts read."""
        return list(dict.fromkeys(name for value, _ in self._own.values() for name in value.meta.root_names()))

    @property
    def value_count(self) -> int:
        """Returns the number of operands with a value on each row."""
        return len(self._values)

    @property
    def depends_on_match(self) -> bool:
        """Tells whether a condition has a second part."""
        return bool(self._late)

    def _parted(
        self, condition: Expression, variable: int, operands: Mapping[str, Operand], names: Sequence[str]
    ) -> tuple[Expression | None, Expression | None]:
        """Returns the part of a condition that the row and its neighbours decide, and the rest."""
        known: dict[str, Expression] = {}
        for name, operand in operands.items():
            if isinstance(operand, Navigation) and operand.value is None and own_shift(operand, variable) == 0:
                known[name] = Literal(names[variable], ColumnType.TEXT)
        first: list[Expression] = []
        second: list[Expression] = []
        for part in conjuncts(substitute(condition, known)):
            reads = [operands.get(name) for name in columns_of([part])]
            if None in reads:
                raise RemoteProtocolError(f"a condition of a pattern reads {', '.join(columns_of([part]))[:100]}, expected its operands")
            own = all(one is not None and own_shift(one, variable) is not None for one in reads)
            own = own and not any(isinstance(one, Navigation) and one.value is None for one in reads)
            (first if own else second).append(part)
        return conjoin(first), conjoin(second)

    def _add_plain(self, variable: int, condition: Expression, operands: Mapping[str, Operand], columns: Mapping[str, ColumnType]) -> None:
        types = {}
        for name in columns_of([condition]):
            operand = operands[name]
            assert isinstance(operand, Navigation)
            assert operand.value is not None
            value, types[name], _ = compile_column(operand.value, columns)
            self._own[name] = value.alias(name), operand.shift
        compiled = compile_expression(condition, types)
        if compiled.type not in (ColumnType.BOOL, None):
            raise RemoteProtocolError(f"a condition of a pattern is {compiled.type}, expected a truth value")
        self._plain[variable] = compiled.value.cast(pl.Boolean).fill_null(False).alias(f"v{variable}")

    def _binding(self, operand: Operand, columns: Mapping[str, ColumnType], names: tuple[str, ...]) -> Binding:
        gathering = gathering_of(operand, columns)
        value = operand.aggregate.operand if isinstance(operand, Tally) else getattr(operand, "value", None)
        given: list[tuple[pl.Expr, ColumnType]] = []
        if gathering is not None:
            given = list(zip(gathering.columns, gathering.types, strict=True))
        elif value is not None:
            given = [compile_column(value, columns)[:2]]
        if reads_label(operand):
            numbers = [self._added(given, name) for name in names]
        else:
            numbers = [self._added(given, None)] * len(names)
        return Binding(operand, numbers, names, gathering)

    def _added(self, values: Sequence[tuple[pl.Expr, ColumnType]], label: str | None) -> tuple[int, ...]:
        """Adds values that each row has; returns their numbers."""
        begin = len(self._values)
        for number, (value, kind) in enumerate(values, begin):
            self._values.append((value.alias(f"x{number}"), kind in (ColumnType.TIME, ColumnType.INTERVAL), label))
        return tuple(range(begin, len(self._values)))

    def masks(self, rows: pl.DataFrame, lanes: IntArray | None = None) -> IntArray:
        """Returns for each row the bits of the variables whose first part holds.

        Parameters
        ----------
        rows : in any order if conditions read no neighbours; otherwise rows of one partition are adjacent and in order
        lanes : for each row, a number of its partition; needed for neighbours
        """
        masks = np.full(rows.height, ANY | sum(1 << place for place in range(self._count) if place not in self._plain), np.int64)
        if self._plain and rows.height:
            own = rows.select_seq([value for value, _ in self._own.values()])
            columns = [_shifted(own[name], shift, lanes) for name, (_, shift) in self._own.items()]
            truths = computed(pl.DataFrame(columns) if columns else rows, list(self._plain.values()))
            for variable in self._plain:
                masks |= np.left_shift(truths[f"v{variable}"].to_numpy(), variable, dtype=np.int64)
        return masks

    def values(self, rows: pl.DataFrame) -> list[list[Any]]:
        """Returns the values on all rows of each operand that has a value on each row."""
        values = []
        for value, is_number, label in self._values:
            labelled = rows if label is None else rows.with_columns_seq(pl.lit(label).alias(ROW_LABEL))
            column = computed(labelled, [value])[value.meta.output_name()]
            values.append((column.cast(pl.Int64) if is_number else column).to_list())
        return values

    # ------------------------------------------------------------------------------------------------------ the second part

    def begin(self) -> States:
        """Returns the states before the first row of a match."""
        return tuple(binding.begin() for binding in self.bindings)

    def after(self, states: States, place: int, variable: int, match_number: int, value_at: ValueAt) -> States | None:
        """Returns the states after a row that is taken for a variable; None if the variable's condition does not hold."""
        found = tuple(binding.after(state, place, variable, value_at) for binding, state in zip(self.bindings, states, strict=True))
        late = self._late.get(variable)
        if late is not None:
            holds, names = late
            row = {name: self._value(name, found, match_number, value_at) for name in names}
            if holds(row) is not True:
                return None
        return found

    def _value(self, name: str, states: States, match_number: int, value_at: ValueAt) -> Any:
        place = self._place[name]
        return self.bindings[place].value(states[place], match_number, value_at)


def _shifted(column: pl.Series, shift: int, lanes: IntArray | None) -> pl.Series:
    """Returns for each row the value of the row `shift` rows after it in its partition; NULL if there is no such row."""
    if shift == 0 or lanes is None:
        return column
    same = np.zeros(lanes.size, np.bool_)
    near, far = (slice(shift, None), slice(None, -shift)) if shift > 0 else (slice(None, shift), slice(-shift, None))
    same[far] = lanes[near] == lanes[far]
    shifted = column.shift(-shift)
    return shifted if same.all() else shifted.set(pl.Series(~same), None)
