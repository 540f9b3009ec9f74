"""What every join of two inputs is: two sides that keep rows for partners to come, and a condition on pairs."""

import abc
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import polars as pl

from sbon.errors import QueryError, RemoteProtocolError
from sbon.operators.compile import compile_expression
from sbon.operators.operator import Operator
from sbon.query.expression import Expression
from sbon.query.schema import ColumnType


class HeldSide(Protocol):
    """What a join keeps of one of its inputs."""

    input: pl.DataFrame | None
    """An empty frame with the columns of the input, once they are known."""

    @property
    def rows(self) -> int:
        """Rows kept."""

    def compile(self, frame: pl.DataFrame) -> None:
        """The input has the columns of this frame from now on."""


AnySide = TypeVar("AnySide", bound=HeldSide)


class TwoSidedJoin(Operator, Generic[AnySide]):
    """A join, as far as it does not matter which rows are partners."""

    def __init__(self, left: AnySide, right: AnySide, apart: bool) -> None:
        self._sides = (left, right)
        self._apart = apart

    @property
    def state_rows(self) -> int:
        """Rows of both sides that wait for partners."""
        return self._sides[0].rows + self._sides[1].rows

    def rows_ahead(self) -> Sequence[int]:
        """Those of both sides, unless one source feeds both."""
        return tuple(side.rows for side in self._sides) if self._apart else ()

    @abc.abstractmethod
    def _input_known(self) -> None:
        """One more side has its columns now."""

    def _side_of(self, port: int, frame: pl.DataFrame) -> AnySide:
        """The side that takes a frame, which has the columns of all those before it."""
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
    """What pairs of equal keys must meet besides, over the columns of the output; None: nothing."""
    if residual is None:
        return None
    try:
        compiled = compile_expression(residual, types)
    except QueryError as error:
        raise RemoteProtocolError(f"residual: {error}") from error
    if compiled.type not in (ColumnType.BOOL, None):
        raise RemoteProtocolError(f"residual of type {compiled.type}, expected a condition")
    if compiled.constant:  # as many values as rows, whatever pieces they lie in
        return pl.repeat(bool(pl.select(compiled.value.cast(pl.Boolean)).item()), pl.len(), dtype=pl.Boolean())
    return compiled.value.cast(pl.Boolean)
