"""Deals the windows of a pattern, each with all its rows, to instances by turns: windows that open in the same span of event time go to one
instance.

The instance of a window depends only on the event time of its first row. So a splitter keeps no state, all splitters of a query agree, and
rows that are sent again go to the same instances.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.operator import Operator
from sbon.query.params.streams import ExchangeParams, Turns
from sbon.types import IntArray


class Splitter(Operator):
    """Gives each instance, in the order of instances, the rows of its windows; a row in windows of several instances goes to each."""

    effect_free = True
    deals = True

    def __init__(self, params: ExchangeParams, turns: Turns) -> None:
        self._params = params
        self._turns = turns

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Splits one batch; rows stay in their order. A row without an event time goes to the first instance, which counts it as late."""
        name = self._turns.time_column
        if frame.schema.get(name) != pl.Datetime("us"):
            raise RemoteProtocolError(f"event time {name!r} is no time column of the input")
        times = frame[name].cast(pl.Int64)
        masks = in_windows_of(times.fill_null(0).to_numpy(), self._turns, self._params.instances)
        if times.null_count():
            missing = times.is_null().to_numpy()
            masks[:, missing] = False
            masks[0, missing] = True
        return [frame if mask.all() else frame.filter(pl.Series(mask)) for mask in masks]

    def restore(self, state: bytes) -> None:
        """Accepts the empty snapshot of an operator without state."""
        if state:
            raise RemoteProtocolError(f"snapshot of {len(state)} bytes for an operator without state, expected none")


def in_windows_of(times_us: IntArray, turns: Turns, instances: int) -> npt.NDArray[np.bool_]:
    """Tells for each instance which rows are in its windows; shape (instances, rows).

    Parameters
    ----------
    times_us : (rows,), event times

    Examples
    --------
    >>> in_windows_of(np.array([0, 9, 10, 14, 15]), Turns("ts", 10, 6), 2).astype(int).tolist()
    [[1, 1, 1, 1, 0], [1, 0, 1, 1, 1]]
    """
    last = times_us // turns.turn_us
    first = (times_us - (turns.within_us - 1)) // turns.turn_us
    numbers = np.arange(instances)[:, None]
    found: npt.NDArray[np.bool_] = (numbers - first) % instances <= last - first
    return found
