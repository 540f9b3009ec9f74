"""Parameters of operators that take each row by itself: filter and projection, unnested arrays, users' functions."""

import msgspec

from sbon.query.expression import Expression
from sbon.query.limits import LimitError, check_count, check_expressions, check_share
from sbon.schema import ARRAY_TYPES, ColumnType, Schema, array_type


class MapParams(msgspec.Struct, frozen=True, tag="map"):
    """Filter, then projection: rows for which `predicate` is true, with `columns` computed from them."""

    predicate: Expression | None
    columns: tuple[tuple[str, Expression], ...] | None
    """Name and value of each output column; None: all input columns unchanged."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.columns or ()))
        check_expressions((self.predicate, *(value for _, value in self.columns or ())))


class UnnestParams(msgspec.Struct, frozen=True, tag="unnest"):
    """Rows with an array unnested: one row for each element, in the order of the elements.

    Output columns: `columns`, then the element, then its number if that is wanted. Event times are those of the input, and no row is late.
    A row whose array is NULL, empty, not of the type or longer than `sbon.arrays.ELEMENTS_MAX` gives none.
    """

    array: str
    """A column of arrays, as `sbon.arrays` holds them."""
    kind: ColumnType
    """Type of the elements."""
    element: str
    """The column of the elements."""
    columns: tuple[str, ...]
    """Columns of the input that the output has, too."""
    ordinal: str | None = None
    """The column of the elements' numbers within their arrays, from 1; None: there is none."""

    def __post_init__(self) -> None:
        if array_type(self.kind) is None:
            raise LimitError(
                f"array of {self.kind.value[:200]}, expected one of {', '.join(kind.value for kind in ARRAY_TYPES)} or a struct"
            )
        check_count("columns", len(self.columns))
        made = (self.element,) if self.ordinal is None else (self.element, self.ordinal)
        if len({*self.columns, *made}) != len(self.columns) + len(made):
            raise LimitError(f"elements named {', '.join(made)} beside columns {', '.join(self.columns)[:200]}, expected different names")


class FunctionParams(msgspec.Struct, frozen=True, tag="function"):
    """A user's function. Every host must have it installed in this version; see `sbon.functions`."""

    name: str
    version: str
    arguments: tuple[tuple[str, bool | int | float | str], ...]
    """All arguments, in the order of their declaration."""
    inputs: Schema
    """The columns that the function takes, in this order."""
    outputs: Schema
    time_column: str | None
    """The event time, a column of inputs and outputs; None: the output has no event time."""
    selectivity: float = 1.0
    """Output rows for each input row, as its author expects."""
    deterministic: bool = True
    """Equal inputs give equal outputs, so queries may share the operator."""
    partition: tuple[str, ...] = ()
    """Columns of the key by which a keyed function keeps state."""
    commutes: bool = False
    """The function may get rows in any order, as its author has declared."""
    defers: bool = False
    """Rows that would be late are put off until nothing else waits."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.inputs) + len(self.outputs))
        if self.defers and not (self.commutes and self.partition):
            raise LimitError("rows are put off, expected a function with keys whose updates commute")
        if not set(self.partition) <= {column.name for column in self.inputs}:
            raise LimitError(f"states by {', '.join(self.partition)[:200]}, expected columns of the input")
        check_count("arguments", len(self.arguments))
        check_share("selectivity", self.selectivity)
