"""Unnests arrays: gives a row for each element, with those columns of the array's row that a query uses.

An array is stored as JSON text (`sbon.arrays`). NULL, an empty array and a text that is no array of the type give no row. To bound the
output of one input row, there is also none for an array of more than `sbon.arrays.ELEMENTS_MAX` elements, or if the other columns' texts,
repeated for each element, take more than `KEPT_BYTES_MAX`. Such rows are counted (`Unnest.misfits`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import polars as pl

from sbon.arrays import ELEMENTS_MAX, is_long, values_of
from sbon.errors import RemoteProtocolError
from sbon.misfits import Misfits
from sbon.operators.frames import column_type, polars_type
from sbon.operators.operator import Operator
from sbon.operators.values import Values
from sbon.operators.windowed import FRAME_ROWS_MAX
from sbon.query.params.rowwise import UnnestParams
from sbon.schema import ColumnType, Schema, held_type

KEPT_BYTES_MAX = 2**27
"""Most bytes of other columns' texts in the output for one input row: their bytes times the number of elements."""
TOO_LONG = f"has more than {ELEMENTS_MAX:,} elements"
TOO_WIDE = f"would have more than {KEPT_BYTES_MAX >> 20} MiB of other columns' texts beside its elements"
SPREAD_FIRST = 16
"""Elements per row that are assumed before the first batch."""
SPREAD_MIN = 8
"""Mean number of elements per row below which the next batch is taken whole."""


class Unnest(Operator):
    """Gives a row for each element of an array, in the order of the input rows, then of the elements. Stateless."""

    def __init__(self, params: UnnestParams) -> None:
        self._params = params
        self.spread = SPREAD_FIRST
        self.misfits: Misfits = Misfits()

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Unnests the arrays of one batch."""
        params = self._params
        missing = [name for name in (params.array, *params.columns) if name not in frame.columns]
        if missing or column_type(frame[params.array].dtype) is not ColumnType.TEXT:
            raise RemoteProtocolError(f"UNNEST of arrays in column {(missing or [params.array])[0]!r}, which is missing or is not TEXT")
        kept = [frame[name] for name in params.columns]
        texts = [column.str.len_bytes().fill_null(0).to_list() for column in kept if column.dtype == pl.String()]
        found = []
        for rows, elements, numbers in _in_pieces(self._taken_apart(frame[params.array].to_list(), texts)):
            places = pl.Series(rows, dtype=pl.UInt32())
            made = [_column(params.element, elements, params.kind)]
            if params.ordinal is not None:
                made.append(pl.Series(params.ordinal, numbers, dtype=pl.Int64()))
            found.append(pl.DataFrame([*(column.gather(places) for column in kept), *made]))
        self._expect(sum(one.height for one in found), frame.height)
        return found

    def of_values(self, schema: Schema) -> Callable[[Values], Values] | None:
        """Unnests the arrays of a few rows without a frame."""
        params = self._params
        names = [field.name for field in schema]
        if not {params.array, *params.columns}.issubset(names) or held_type(schema[names.index(params.array)].type) is not ColumnType.TEXT:
            return None
        array, kept = names.index(params.array), [names.index(name) for name in params.columns]
        of_texts = [place for place in kept if held_type(schema[place].type) is ColumnType.TEXT]

        def take(values: Values) -> Values:
            texts = [[0 if text is None else len(text.encode()) for text in values.columns[place]] for place in of_texts]
            rows, found, numbers = list[int](), list[Any](), list[int]()
            for row, elements in self._taken_apart(values.columns[array], texts):
                _append(row, elements, rows, found, numbers)
            self._expect(len(rows), values.rows)
            columns = [[values.columns[place][row] for row in rows] for place in kept]
            return Values(len(rows), (*columns, found) if params.ordinal is None else (*columns, found, numbers))

        return take

    def _expect(self, elements: int, rows: int) -> None:
        """Sets `spread`, assuming that the next arrays are as long as those of the last batch. No answer depends on it."""
        mean = elements // max(1, rows)
        self.spread = mean if mean >= SPREAD_MIN else 1

    def _taken_apart(self, arrays: Sequence[str | None], texts: Sequence[Sequence[int]]) -> Iterator[tuple[int, list[Any]]]:
        """Yields rows with their elements, and counts rows whose output would be too large.

        Parameters
        ----------
        texts : for each kept text column, the bytes of each row's text
        """
        for row, array in enumerate(arrays):
            if array is None:
                continue
            if is_long(array):
                self.misfits.add(self._params.array, TOO_LONG, value=array)
                continue
            elements = values_of(array, self._params.kind)
            if elements and len(elements) * sum(column[row] for column in texts) > KEPT_BYTES_MAX:
                self.misfits.add(self._params.array, TOO_WIDE, value=array)
            elif elements:
                yield row, elements


def _in_pieces(rows: Iterator[tuple[int, list[Any]]]) -> Iterator[tuple[list[int], list[Any], list[int]]]:
    """Yields the row of each element, the elements, and their numbers, for about `FRAME_ROWS_MAX` of them at a time."""
    places, values, numbers = list[int](), list[Any](), list[int]()
    for row, elements in rows:
        _append(row, elements, places, values, numbers)
        if len(values) >= FRAME_ROWS_MAX:
            yield places, values, numbers
            places, values, numbers = [], [], []
    if values:
        yield places, values, numbers


def _append(row: int, elements: list[Any], places: list[int], values: list[Any], numbers: list[int]) -> None:
    """Appends the elements of one row, each with its row and its number in the array, from 1."""
    places += [row] * len(elements)
    values += elements
    numbers += range(1, len(elements) + 1)


def _column(name: str, values: list[Any], kind: ColumnType) -> pl.Series:
    dtype = polars_type(kind)
    if kind is ColumnType.TIME:
        return pl.Series(name, values, dtype=pl.Int64()).cast(dtype)
    return pl.Series(name, values, dtype=dtype)
