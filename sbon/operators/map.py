"""Filter and projection."""

from collections.abc import Callable, Sequence

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of, compile_column, compile_expression
from sbon.operators.few_rows import few_rows
from sbon.operators.frames import computed, evaluated
from sbon.operators.operator import Operator
from sbon.operators.values import Values
from sbon.query.expression import Column
from sbon.query.params.rowwise import MapParams
from sbon.schema import ColumnType, Schema


class Map(Operator):
    """Keeps rows for which the predicate is true (not NULL), and computes the output columns from them. Stateless."""

    effect_free = True

    def __init__(self, params: MapParams) -> None:
        self._params = params
        self._types: list[pl.DataType] | None = None
        self._names: list[str] = []
        self._predicate: pl.Expr | None = None
        self._columns: list[pl.Expr] | None = None
        self._plain: list[tuple[str, str]] | None = None
        self._few_of: Schema | None = None
        self._few: Callable[[Values], Values] | None = None

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Filters and projects one batch."""
        if self._types != frame.dtypes or self._names != frame.columns:  # building a `schema` takes six times as long
            self._compile(frame)
        if self._plain is not None:
            # Nothing is computed: twenty times as cheap as `select`, which matters for small batches.
            kept = self._kept(frame, [frame.get_column(column).alias(name) for name, column in self._plain])
            return (kept,) if kept.height else ()
        if self._predicate is not None:
            frame = self._kept(frame, frame.get_columns())
            if frame.is_empty():
                return ()
        if self._columns is None:
            return (frame,)
        return (computed(frame, self._columns),)

    def of_values(self, schema: Schema) -> Callable[[Values], Values] | None:
        """Filters and projects a few rows without a frame, if the expressions are simple enough."""
        if self._few_of is not schema:
            self._few_of, self._few = schema, few_rows(self._params, schema)
        return self._few

    def restore(self, state: bytes) -> None:
        """Accepts the empty snapshot of a stateless operator."""
        if state:
            raise RemoteProtocolError(f"snapshot of {len(state)} bytes for an operator without state, expected none")

    def _kept(self, frame: pl.DataFrame, columns: list[pl.Series]) -> pl.DataFrame:
        """Returns the rows of these columns for which the predicate is true.

        Filters column by column on this thread. polars would run `filter` of a frame as a query on a thread of its own. For a batch of 200
        rows that costs three times as much as the rest, and all executor threads that filter large batches wait for that one thread.
        """
        if self._predicate is not None:
            mask = evaluated(frame, self._predicate)
            columns = [column.filter(mask) for column in columns]
        return columns[0].to_frame().hstack(columns[1:])

    def _compile(self, frame: pl.DataFrame) -> None:
        """Compiles expressions for the column types of a batch, which later batches share."""
        columns = columns_of(frame)
        if self._params.predicate is not None:
            predicate = compile_expression(self._params.predicate, columns)
            if predicate.type not in (ColumnType.BOOL, None):
                raise RemoteProtocolError(f"predicate of type {predicate.type}, expected a condition")
            self._predicate = predicate.value.cast(pl.Boolean)
        if self._params.columns is not None:
            compiled = [(name, *compile_column(expression, columns)) for name, expression in self._params.columns]
            self._columns = [value.alias(name) for name, value, _, _ in compiled]
            plain = [(name, expression.name) for name, expression in self._params.columns if isinstance(expression, Column)]
            self._plain = plain if len(plain) == len(self._params.columns) else None
        self._types, self._names = frame.dtypes, frame.columns
