"""Matches that are known, as arrays."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sbon.types import IntArray

NO_NUMBER = 0


class Matches(NamedTuple):
    """Matches, rows that are in none, and matches that ran out of time; one entry each, and one for each of their rows."""

    lanes: IntArray
    known: IntArray
    """Instants at which they were known."""
    first: IntArray
    """Position of the first row, or of the row where a match without rows is."""
    numbers: IntArray
    """Number of the match in its partition; NO_NUMBER for a row that is in none, and for a match that ran out of time."""
    timed_out: npt.NDArray[np.bool_]
    offsets: IntArray
    """Place where the rows of each begin in the arrays below, and the number of all."""
    rows: IntArray
    """Positions."""
    variables: IntArray
    """Variables that the rows were taken for."""
    excluded: npt.NDArray[np.bool_]
    """True for rows that are left out of the answer."""

    def and_(self, other: "Matches") -> "Matches":
        """Returns these matches, and others behind them."""
        offsets = np.append(self.offsets, other.offsets[1:] + self.offsets[-1])
        joined = [np.concatenate([one, more]) for one, more in zip(self, other, strict=True)]
        return Matches(*joined)._replace(offsets=offsets)

    def ordered(self, order: IntArray) -> "Matches":
        """Returns the matches in another order; all of them, or some."""
        lengths = np.diff(self.offsets)[order]
        offsets = np.append(0, np.cumsum(lengths))
        flat = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][order] - offsets[:-1], lengths)
        return Matches(
            self.lanes[order],
            self.known[order],
            self.first[order],
            self.numbers[order],
            self.timed_out[order],
            offsets,
            self.rows[flat],
            self.variables[flat],
            self.excluded[flat],
        )
