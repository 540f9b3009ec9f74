"""The owners of turns: the instance that gets the windows which open within a turn of event time.

The owner of a turn is decided once. A row may come behind rows of later turns, so before a row is dealt, all turns are decided whose
windows may hold it. Hence it does not matter for the answers who decides, or when.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sbon.errors import RemoteProtocolError
from sbon.types import IntArray

TURNS_MAX = 10_000
"""At least this many turns are remembered, those decided last; more than two windows have (`PIECES_MAX`). Twice as many at most."""
_GAP = "~"
"""Begins a note behind which turns are missing."""


class Owners:
    """Decided turns.

    Parameters
    ----------
    turn_us, within_us : length of a turn and of a window, in microseconds of event time
    """

    def __init__(self, instances: int, turn_us: int, within_us: int) -> None:
        self.instances, self.turn_us, self.within_us = instances, turn_us, within_us
        self.of: dict[int, int] = {}
        """The instance of each decided turn, in the order of the decisions."""
        self.is_whole = True
        """False if some turn has been forgotten."""
        self._new: list[list[int]] = [[] for _ in range(instances)]
        """Turns that each instance has not been told, in the order of the decisions."""
        self._gaps = [False] * instances
        """True for an instance that was not told of a turn which is forgotten now."""
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
                    self._decided(one, one % self.instances)
                elif not is_next:  # no row of it has come yet, or it is older than a turn that is dealt
                    self._decided(one, self.of.get(one - 1, 0))
            if is_next:
                self.newest = one
                owner = opens(self.of.get(one))
                if one not in self.of:
                    self._decided(one, owner)

    def _decided(self, turn: int, owner: int) -> None:
        self.of[turn] = owner
        for new in self._new:
            new.append(turn)

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

    def forget(self) -> None:
        """Forgets the turns that were decided first, if there are twice as many as are remembered.

        Rows may come once more after a crash of the splitter, so event time does not say which turns are over.
        """
        if len(self.of) < 2 * TURNS_MAX:
            return
        self.of, self.is_whole = kept(self.of), False
        for index, new in enumerate(self._new):
            there = [turn for turn in new if turn in self.of]
            self._gaps[index] |= len(there) < len(new)
            self._new[index] = there

    def note(self, index: int) -> str:
        """Returns what an instance has not been told, as a text for `Known.take`; empty if there is nothing new."""
        turns = self._new[index]
        return (_GAP if self._gaps[index] else "") + noted([(turn, self.of[turn]) for turn in turns]) if turns else ""

    def told(self, index: int) -> None:
        """Notes that an instance gets its present note with its next rows."""
        self._new[index], self._gaps[index] = [], False

    def restored(self, turns: Iterable[tuple[int, int]], newest: int | None, *, is_whole: bool = True) -> None:
        """Takes the turns of a former copy. Instances are told all of them again."""
        self.of, self.newest, self.is_whole = dict(turns), newest, is_whole
        self._new = [list(self.of) for _ in range(self.instances)]
        self._gaps = [not is_whole] * self.instances


class Known:
    """The owners of turns that an instance knows: all that were decided before its last rows. The splitter's next copy learns them."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.is_whole = True
        """False if turns are missing that were decided before others here."""

    def take(self, note: str) -> None:
        """Learns a note of the splitter.

        Raises
        ------
        RemoteProtocolError
            The text is no such note.
        """
        turns, is_whole = read_note(note)
        self.add(turns, is_whole=is_whole)

    def add(self, turns: Iterable[tuple[int, int]], *, is_whole: bool) -> None:
        """Learns turns, with their owners."""
        self.of.update(turns)
        self.is_whole = self.is_whole and is_whole
        if len(self.of) >= 2 * TURNS_MAX:
            self.of, self.is_whole = kept(self.of), False


def kept(of: Mapping[int, int]) -> dict[int, int]:
    """Returns the turns that were decided last."""
    return dict(list(of.items())[-TURNS_MAX:])


def noted(turns: Sequence[tuple[int, int]]) -> str:
    """Returns turns and owners as a text: each run of turns by its first turn and the owners.

    Examples
    --------
    >>> noted([(7, 0), (8, 11), (9, 0), (-2, 1)])
    '7=0.11.0;-2=1'
    """
    runs: list[tuple[int, list[str]]] = []
    for turn, owner in turns:
        if not runs or turn != runs[-1][0] + len(runs[-1][1]):
            runs.append((turn, []))
        runs[-1][1].append(str(owner))
    return ";".join(f"{first}={'.'.join(owners)}" for first, owners in runs)


def read_note(note: str) -> tuple[list[tuple[int, int]], bool]:
    """Returns the turns of a note with their owners, and whether none are missing before them.

    Raises
    ------
    RemoteProtocolError
        The text is no note.

    Examples
    --------
    >>> read_note("7=0.11.0;-2=1"), read_note("~3=1")
    (([(7, 0), (8, 11), (9, 0), (-2, 1)], True), ([(3, 1)], False))
    """
    try:
        runs = [run.split("=") for run in note.removeprefix(_GAP).split(";")]
        turns = [(int(first) + place, int(owner)) for first, owners in runs for place, owner in enumerate(owners.split("."))]
        return turns, not note.startswith(_GAP)
    except ValueError as problem:
        raise RemoteProtocolError(f"a note of {len(note)} characters on the owners of turns cannot be read") from problem
