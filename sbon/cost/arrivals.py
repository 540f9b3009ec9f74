"""How rows arrive at a source or a port: by interval, their gaps, and what to expect next."""

import msgspec
import numpy as np

from sbon.errors import ShapeError
from sbon.types import FloatArray


class Series(msgspec.Struct, frozen=True):
    """Arrivals by interval of equal width, all (d,). An interval without arrivals is a 0; one that was not observed is not in the series.

    Raises
    ------
    ShapeError
        The arrays differ in length, the width is not above 0, or a number is negative or not finite.
    """

    start_s: float
    """Start of the first interval."""
    width_s: float
    rows: FloatArray
    batches: FloatArray
    size_bytes: FloatArray

    def __post_init__(self) -> None:
        if not (0 < self.width_s < np.inf and abs(self.start_s) < np.inf):
            raise ShapeError(f"intervals of {self.width_s} s from {self.start_s}, expected finite and wider than 0")
        if not self.rows.shape == self.batches.shape == self.size_bytes.shape == (len(self.rows),):
            raise ShapeError(f"series of {self.rows.shape}, {self.batches.shape}, {self.size_bytes.shape}, expected the same length")
        for values in (self.rows, self.batches, self.size_bytes):
            if len(values) and not (values.min() >= 0 and values.max() < np.inf):
                raise ShapeError("a series with a number that is negative or not finite")


def series_of(rows: FloatArray, width_s: float, *, start_s: float = 0.0, rows_per_batch: float = 1.0, row_bytes: float = 0.0) -> Series:
    """Returns a series of rows whose batches and bytes follow from the rows."""
    return Series(start_s, width_s, rows, np.ceil(rows / rows_per_batch), rows * row_bytes)
