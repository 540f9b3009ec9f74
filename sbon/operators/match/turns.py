"""Tells which instance has a window, if the windows of a pattern are dealt to several instances by turns."""

import numpy as np
import numpy.typing as npt

from sbon.query.params.streams import WindowPart
from sbon.types import IntArray


def opens_in(times_us: IntArray, part: WindowPart) -> npt.NDArray[np.bool_]:
    """Tells which rows belong to this instance, if they open windows.

    Examples
    --------
    >>> opens_in(np.array([-1, 0, 9, 10, 29]), WindowPart(10, 1, 2, ("a", "b", "c", "d"))).tolist()
    [True, False, False, True, False]
    """
    found: npt.NDArray[np.bool_] = times_us // part.turn_us % part.of == part.index
    return found
