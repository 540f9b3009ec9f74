"""Common parts of joins of two inputs: two sides that keep rows for later partners, and a condition on pairs."""

import abc
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import polars as pl

from sbon.errors import QueryError, RemoteProtocolError
from sbon.operators.compile import compile_expression
from sbon.operators.operator import Operator
from sbon.query.expression import Expression
from sbon.schema import ColumnType


class HeldSide(Protocol):
    """The rows that a join keeps of one input."""

    input: pl.DataFrame | None
    """An empty frame with the columns of the input, once they are known."""

    @property
    def rows(self) -> int:
        """Returns the number of rows kept."""

    def compile(self, frame: pl.DataFrame) -> None:
        """Sets the columns of the input to those of this frame."""


AnySide = TypeVar("AnySide", bound=HeldSide)


class TwoSidedJoin(Operator, Generic[AnySide]):
    """Base of joins, for everything that does not depend on which rows are partners."""

    def __init__(self, left: AnySide, right: AnySide, apart: bool) -> None:
        self._sides = (left, right)
        self._apart = apart

    @property
    def state_rows(self) -> int:
        """Returns the number of rows of both sides that wait for partners."""
        return self._sides[0].rows + self._sides[1].rows

    def rows_ahead(self) -> Sequence[int]:
        """Returns the number of rows kept of each side; nothing if one source feeds both sides."""
        return tuple(side.rows for side in self._sides) if self._apart else ()

    @abc.abstractmethod
    def _input_known(self) -> None:
        """Reacts when the columns of one more side are known."""

    def _side_of(self, port: int, frame: pl.DataFrame) -> AnySide:
        """Returns the side of a port, after checking that the frame has the columns of earlier frames."""
        if port not in (0, 1):
            raise RemoteProtocolError(f"join input on port {port}, expected 0 or 1")
        side = self._sides[port]
        if side.input is None:
            side.compile(frame)
            self._input_known()
        elif side.input.schema != frame.schema:
            raise RemoteProtocolError(f"join input with columns {dict(frame.schema)}, expected {dict(side.input.schema)}")
        return side


def condition_on_pairs(residual: Expression | None, types: Mapping[str, ColumnType]) -> pl.Expr | None:
    """Compiles the additional condition on pairs with equal keys, over the columns of the output; None if there is none."""
    if residual is None:
        return None
    try:
        compiled = compile_expression(residual, types)
    except QueryError as error:
        raise RemoteProtocolError(f"residual: {error}") from error
    if compiled.type not in (ColumnType.BOOL, None):
        raise RemoteProtocolError(f"residual of type {compiled.type}, expected a condition")
    if compiled.constant:  # one value per row, however the frame is chunked
        return pl.repeat(bool(pl.select(compiled.value.cast(pl.Boolean)).item()), pl.len(), dtype=pl.Boolean())
    return compiled.value.cast(pl.Boolean)
