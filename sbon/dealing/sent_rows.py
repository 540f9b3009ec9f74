"""Rows that a splitter has sent to an instance and that the instance has not reported as taken, with the turns that were open for them.

Turns open and close between two reports. So neither what rows cost, nor how much work waits, follows from the turns at a report: an
instance whose turns have all closed may still have the rows of many.
"""

from collections import deque

PIECES_MAX = 4_096
"""Most pieces, each of rows that were sent together; beyond, the oldest rows are forgotten. An instance that reports has far fewer."""


class SentRows:
    """The rows of one instance."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, int]] = deque()
        """Rows that were sent together, and the turns open for each; the oldest first."""
        self.rows = self.turns = 0
        """Rows that are not reported as taken, and their open turns, summed over the rows."""
        self._recent = 0
        """Rows sent since the last report."""
        self._reported: int | None = None
        """Rows taken by the last report; None before the first."""
        self._taken_rows = self._taken_turns = 0

    def add(self, rows: int, turns: int) -> None:
        """Notes rows that are sent while so many turns are open."""
        self._pieces.append((rows, turns))
        self.rows += rows
        self.turns += rows * turns
        self._recent += rows
        if len(self._pieces) > PIECES_MAX:
            self._take(self._pieces[0][0])

    def report(self, taken: int, waiting: int) -> None:
        """Takes a report of the instance.

        Parameters
        ----------
        taken : rows that it has taken since it was made
        waiting : rows that wait at it. Beside these, only rows sent since the last report can be on their way
        """
        if self._reported is None:  # it may have taken rows of a former copy of the splitter, too
            self._take(self.rows - waiting)
        elif taken < self._reported:  # it was made again, without these rows
            self._pieces.clear()
            self.rows = self.turns = 0
        else:
            self._take(taken - self._reported)
            self._take(self.rows - waiting - self._recent)
        self._reported, self._recent = taken, 0

    def mean_turns(self) -> float | None:
        """Returns the mean number of turns open for the rows taken since the last call; None if no row is known to be taken."""
        rows, turns = self._taken_rows, self._taken_turns
        self._taken_rows = self._taken_turns = 0
        return turns / rows if rows else None

    def _take(self, rows: int) -> None:
        """Moves the oldest rows to those that are taken."""
        rest = rows
        while rest > 0 and self._pieces:
            count, turns = self._pieces.popleft()
            if count > rest:
                self._pieces.appendleft((count - rest, turns))
                count = rest
            rest -= count
            self.rows -= count
            self.turns -= count * turns
            self._taken_rows += count
            self._taken_turns += count * turns
