"""The cost of a row in overlapping windows: a for the row, b for each window open for it, c for each pair of it and an earlier row.

The paper takes the cost of a row as the number of its windows times its cost in one window (section 4.2). That holds only where windows
share no work, and hides that a row which is compared with all before it costs more in an old window than in a young one. The three parts
are fitted to the measurements of instances.
"""

import math

import msgspec
import numpy as np

from sbon.cost.least_squares import least_squares_from_zero
from sbon.errors import ShapeError
from sbon.types import FloatArray

KINDS_MAX = 64
SAMPLES_MIN = 8
"""Measured rows of a kind below which its law is the mean cost of a window, as the paper has it."""
KEPT = 0.995
"""Share of its weight that a measured row keeps at each later one of its kind."""
_RIDGE = np.array([1e-4, 1e-6, 1e-9, 1e-9])
"""Penalty on each coefficient. If all rows were in the same number of windows, their cost is attributed to the windows, not to the row.
This is the paper's assumption, and the more expensive one if there will be more windows."""


class RowLaw(msgspec.Struct, frozen=True):
    """Cost in s of a row of one kind.

    Raises
    ------
    ShapeError
        A cost is negative or not finite.
    """

    row_s: float = 0.0
    """For the row, in however many windows."""
    opening_s: float = 0.0
    """For the window that the row opens, if it opens one."""
    window_s: float = 0.0
    """For each other window that is open for it."""
    pair_s: float = 0.0
    """For each earlier counted row in each of its windows."""

    def __post_init__(self) -> None:
        if not all(0 <= cost < math.inf for cost in (self.row_s, self.opening_s, self.window_s, self.pair_s)):
            raise ShapeError(f"a law with a cost that is negative or not finite: {self}")

    def cost_s(self, opens: bool, windows: float, pairs: float) -> float:
        """Returns the cost in s of a row in so many windows, the one that it opens among them.

        Examples
        --------
        >>> RowLaw(row_s=1.0, opening_s=0.5, window_s=0.25, pair_s=0.125).cost_s(True, 3, 8)
        3.0
        """
        return self.row_s + (self.opening_s if opens else 0.0) + self.window_s * (windows - opens) + self.pair_s * pairs


class OverlapLaw(msgspec.Struct, frozen=True):
    """Laws of all kinds of rows of an operator, and which kinds its windows remember."""

    kinds: tuple[RowLaw, ...]
    counted: tuple[bool, ...]
    """A window remembers rows of this kind, and later rows are compared with them."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.kinds) == len(self.counted) <= KINDS_MAX:
            raise ShapeError(
                f"laws of {len(self.kinds)} kinds, {len(self.counted)} counted or not; expected 1 to {KINDS_MAX}, and a flag for each"
            )


class OverlapFit:
    """Fits an `OverlapLaw` to rows that instances have measured.

    Squared relative errors are minimised under costs of 0 or more, as for other laws of cost, so that cheap rows count as much as expensive
    ones.

    Parameters
    ----------
    counted : for each kind, whether windows remember its rows
    """

    def __init__(self, counted: tuple[bool, ...]) -> None:
        self._counted = counted
        self._squares = [np.zeros((4, 4)) for _ in counted]
        self._products = [np.zeros(4) for _ in counted]
        self._samples = [0] * len(counted)

    def took(self, kind: int, opens: bool, windows: float, pairs: float, cost_s: float) -> None:
        """Takes the measured cost of a row in so many windows, which held `pairs` earlier rows in all.

        A row in no window, or without a finite cost above 0, is left out.
        """
        if not (windows > 0 and 0 < cost_s < math.inf):
            return
        inputs = np.array([1.0, float(opens), windows - opens, pairs]) / cost_s
        squares, products = self._squares[kind], self._products[kind]
        squares *= KEPT
        squares += inputs[:, None] * inputs
        products *= KEPT
        products += inputs
        self._samples[kind] += 1

    @property
    def taken(self) -> int:
        """Rows measured so far."""
        return sum(self._samples)

    @property
    def is_known(self) -> bool:
        """Tells whether enough rows of each kind have been measured."""
        return min(self._samples) >= SAMPLES_MIN

    def law(self) -> OverlapLaw:
        """Returns the law so far; a kind that was never measured costs nothing."""
        return OverlapLaw(tuple(self._law(kind) for kind in range(len(self._counted))), self._counted)

    def _law(self, kind: int) -> RowLaw:
        squares, products = self._squares[kind], self._products[kind]
        if not self._samples[kind]:
            return RowLaw()
        # Inputs differ much in size, so each is scaled to 1. A small ridge is added because some inputs never vary.
        scale = np.sqrt(np.maximum(np.diag(squares), 1e-300))
        used = np.diag(squares) > 0
        matrix = squares / np.outer(scale, scale) + np.diag(_RIDGE)
        found: FloatArray = np.where(used, least_squares_from_zero(matrix, products / scale) / scale, 0.0)
        return RowLaw(*(float(one) for one in found))
