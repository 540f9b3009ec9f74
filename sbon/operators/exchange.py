"""Deals rows to the instances of the next operator, by slices of a hash of their keys (`sbon.operators.hashes`).

An instance has a range of slices, so the same key always goes to the same instance. Each batch is hashed once and split once, whatever the
number of instances.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of, compile_column
from sbon.operators.frames import computed
from sbon.operators.hashes import SLICES, slices
from sbon.operators.operator import Operator
from sbon.query.params.streams import ExchangeParams

FILTERS_MAX = 4
"""Most instances for which each part is filtered out of a batch; for more, sorting the rows by part is cheaper."""


class Exchange(Operator):
    """Splits each batch into one frame for each instance, in the order of instances; frames may be empty."""

    effect_free = True
    deals = True

    def __init__(self, params: ExchangeParams) -> None:
        self._params = params
        self._part = part_of_slices(params.instances)
        self._schema: pl.Schema | None = None
        self._keys: list[pl.Expr] = []

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Splits one batch; rows of a part stay in their order."""
        if self._schema is None or frame.schema != self._schema:
            columns = columns_of(frame)
            compiled = [compile_column(key, columns) for key in self._params.keys]
            self._keys = [value.alias(f"k{place}") for place, (value, _, _) in enumerate(compiled)]
            self._schema = frame.schema
        frame = frame.rechunk()
        return split(frame, self._part[slices(computed(frame, self._keys).get_columns())], self._params.instances)

    def restore(self, state: bytes) -> None:
        """Accepts the empty snapshot of an operator without state."""
        if state:
            raise RemoteProtocolError(f"snapshot of {len(state)} bytes for an operator without state, expected none")


def part_of_slices(instances: int) -> npt.NDArray[np.uint8]:
    """Returns the instance of each slice, (SLICES,): ranges of slices in the order of instances.

    Examples
    --------
    >>> np.bincount(part_of_slices(3)).tolist()
    [22, 21, 21]
    """
    return (np.arange(SLICES) * instances // SLICES).astype(np.uint8)


def split(frame: pl.DataFrame, part: npt.NDArray[np.uint8], parts: int) -> list[pl.DataFrame]:
    """Splits a frame of one chunk into `parts` frames; each keeps the order of its rows.

    Parameters
    ----------
    part : (rows,), from 0 to below `parts`
    """
    if parts <= FILTERS_MAX:
        masks = (pl.Series(part == number) for number in range(parts))
        return [pl.DataFrame([column.filter(mask) for column in frame.get_columns()]) for mask in masks]
    ordered = frame[pl.Series(np.argsort(part, kind="stable").astype(np.uint32))]
    ends = np.cumsum(np.bincount(part, minlength=parts)).tolist()
    return [ordered.slice(begin, end - begin) for begin, end in zip([0, *ends], ends, strict=False)]
