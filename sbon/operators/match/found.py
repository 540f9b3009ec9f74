"""Matches that are known, as arrays."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sbon.types import IntArray

NO_NUMBER = 0


class Matches(NamedTuple):
    """Matches, rows that are in no match, and matches that ran out of time. Arrays up to `offsets` have an entry for each of these, the
    others one for each of their rows.
    """

    lanes: IntArray
    known: IntArray
    """Instants at which the matches were known."""
    first: IntArray
    """Position of the first row, or of the row at which a match without rows is."""
    numbers: IntArray
    """Number of the match in its partition; NO_NUMBER for a row that is in no match, and for a match that ran out of time."""
    timed_out: npt.NDArray[np.bool_]
    offsets: IntArray
    """Place where the rows of each entry begin in the arrays below, and at the end the number of all rows."""
    rows: IntArray
    """Positions of the rows."""
    variables: IntArray
    """Variables that the rows were taken for."""
    excluded: npt.NDArray[np.bool_]
    """True for rows that are left out of the answer."""

    def and_(self, other: "Matches") -> "Matches":
        """Returns these matches, followed by others."""
        offsets = np.append(self.offsets, other.offsets[1:] + self.offsets[-1])
        joined = [np.concatenate([one, more]) for one, more in zip(self, other, strict=True)]
        return Matches(*joined)._replace(offsets=offsets)

    def ordered(self, order: IntArray) -> "Matches":
        """Returns the matches in this order, which may leave some out."""
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
