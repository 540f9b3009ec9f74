"""The owners of turns: the instance that gets the windows which open within a turn of event time.

The owner of a turn is decided once. A row may come behind rows of later turns, so before a row is dealt, all turns are decided whose
windows may hold it. Hence it does not matter for the answers who decides, or when.
"""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from sbon.types import IntArray


class Owners:
    """Decided turns.

    Parameters
    ----------
    turn_us, within_us : length of a turn and of a window, in microseconds of event time
    """

    def __init__(self, instances: int, turn_us: int, within_us: int) -> None:
        self.instances, self.turn_us, self.within_us = instances, turn_us, within_us
        self.of: dict[int, int] = {}
        """The instance of each decided turn."""
        self.newest: int | None = None
        """The latest turn that has had a row."""

    def decide(self, turn: int, opens: Callable[[int | None], int], *, by_number: bool) -> None:
        """Decides a turn that has a row, and all earlier turns whose windows may hold a row of it.

        Parameters
        ----------
        opens : called if the turn is later than all before, with the owner that it has already; returns its owner
        by_number : decides turns by their numbers alone
        """
        first = (turn * self.turn_us - self.within_us + 1) // self.turn_us
        for one in range(first, turn + 1):
            is_next = one == turn and (self.newest is None or one > self.newest)
            if one not in self.of:
                if by_number:
                    self.of[one] = one % self.instances
                elif not is_next:  # no row of it has come yet, or it is older than a turn that is dealt
                    self.of[one] = self.of.get(one - 1, 0)
            if is_next:
                self.newest = one
                self.of[one] = opens(self.of.get(one))

    def of_rows(self, times_us: IntArray) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Tells for each instance which rows are in its windows, and which rows may open one of them; both (instances, rows).

        Parameters
        ----------
        times_us : (rows,), event times of decided turns

        Examples
        --------
        >>> owners = Owners(2, 10, 6)
        >>> owners.restored([(-1, 1), (0, 0), (1, 0)], 1)
        >>> gets, opens = owners.of_rows(np.array([0, 9, 10, 19]))
        >>> gets.astype(int).tolist(), opens.astype(int).tolist()
        ([[1, 1, 1, 1], [1, 0, 0, 0]], [[1, 1, 1, 1], [0, 0, 0, 0]])
        """
        last = times_us // self.turn_us
        first = (times_us - (self.within_us - 1)) // self.turn_us
        spans, inverse = np.unique(np.stack([first, last]), axis=1, return_inverse=True)
        gets, opens = np.zeros((2, self.instances, spans.shape[1]), np.bool_)
        for place, (begin, end) in enumerate(spans.T.tolist()):
            for turn in range(begin, end + 1):
                gets[self.of[turn], place] = True
            opens[self.of[end], place] = True
        at = inverse.reshape(-1)
        return gets[:, at], opens[:, at]

    def forget(self, watermark_us: int) -> None:
        """Forgets turns that no row in time needs, with one window to spare."""
        least = (watermark_us - 2 * self.within_us) // self.turn_us
        self.of = {turn: owner for turn, owner in self.of.items() if turn >= least}

    def restored(self, turns: Iterable[tuple[int, int]], newest: int | None) -> None:
        """Takes the turns of a former copy."""
        self.of, self.newest = dict(turns), newest
