"""Passes a batch through operators before its turn, on the thread that has made it.

Moving rows to another core often costs more than an operator's work on them: measured, eight bytes that one core has written and another
has read cost three nanoseconds when their memory is used again, as much as making them. So a thread that makes a batch of a source ahead
also passes it through the operators behind the source, as long as these are `effect_free`. The resulting rows wait for the batch's turn.

Nothing else changes: the task of the batch still goes from operator to operator in order, with their links, watermarks and figures. It
takes an answer that was computed ahead, if the operator is still the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sbon.execution.rows import Rows
from sbon.ports import Meter

if TYPE_CHECKING:
    import polars as pl

    from sbon.connectors.interface import Polled
    from sbon.operators.operator import Operator
    from sbon.schema import Schema


class Behind(NamedTuple):
    """An operator behind a source that may compute ahead."""

    operator: Operator
    port: int
    schema: Schema
    """Schema of the operator's output."""


class Ahead(NamedTuple):
    """Answer of an operator to a batch, computed ahead."""

    operator: Operator
    payload: Rows | None
    spent_s: float
    cpu_ns: int


def rows_of(polled: Polled, schema: Schema) -> Rows | None:
    """Returns the rows that a source has given; None if there are none."""
    if polled.frame is not None and polled.frame.height:
        return Rows.of_frame(polled.frame, schema)
    if polled.values is not None and polled.values.rows:
        return Rows.of_values(polled.values, schema)
    return None


def rows_given(operator: Operator, produced: Sequence[pl.DataFrame], schema: Schema) -> Rows | None:
    """Returns the frames that an operator has produced as rows; None if there are none."""
    there = [frame for frame in produced if frame.height]
    if not there:
        return None
    return Rows.dealt(produced, schema, operator.noted) if operator.deals else Rows.of_frames(there, schema)


def computed_ahead(rows: Rows, behind: Sequence[Behind], clock: Callable[[], float], meter: Meter) -> list[Ahead]:
    """Passes rows through operators. Stops before one that fails: the task of the batch calls that one again, and gets the error."""
    found: list[Ahead] = []
    payload: Rows | None = rows
    for operator, port, schema in behind:
        if payload is None or payload.values() is not None:
            break
        began = clock()
        try:
            given = rows_given(operator, operator.process(port, payload.frame()), schema)
        except KeyboardInterrupt:  # in the simulation, whose only thread this is
            raise
        except BaseException:  # a panic of polars is no Exception
            break
        taken, payload = payload.rows, given
        found.append(Ahead(operator, payload, clock() - began, meter.lap(taken)))
    return found
