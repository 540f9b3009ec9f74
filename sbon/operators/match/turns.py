"""Tells which instance has a window, if the windows of a pattern are dealt to several instances."""

import numpy as np
import numpy.typing as npt

from sbon.operators.match.log import Log
from sbon.operators.match.program import ANY
from sbon.query.params.matched import VARIABLES_MAX
from sbon.query.params.streams import WindowPart
from sbon.types import IntArray

OPENS_BIT = 61
"""Bit of a row's conditions that tells whether the row may open a window of this instance; variables have lower bits."""
assert OPENS_BIT >= VARIABLES_MAX
assert 1 << OPENS_BIT < ANY


def opens_at(log: Log, positions: IntArray, part: WindowPart) -> npt.NDArray[np.bool_]:
    """Tells which rows belong to this instance, if they open windows: by the column of a splitter that asks a dealer, otherwise by turns.

    Parameters
    ----------
    positions : (rows,), of rows in the log
    """
    return opens_in(log.times.values[positions], part) if part.opens is None else log.opens.values[positions]


def opens_in(times_us: IntArray, part: WindowPart) -> npt.NDArray[np.bool_]:
    """Tells which rows belong to this instance by turns, if they open windows.

    Examples
    --------
    >>> opens_in(np.array([-1, 0, 9, 10, 29]), WindowPart(10, 1, 2, ("a", "b", "c", "d"))).tolist()
    [True, False, False, True, False]
    """
    found: npt.NDArray[np.bool_] = times_us // part.turn_us % part.of == part.index
    return found
