"""Attempts to match the rows of one partition from one row on. An attempt finds the rows of the preferred match, once no later row can
change it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from sbon.operators.match.bindings import States, ValueAt
from sbon.operators.match.conditions import Conditions
from sbon.operators.match.program import END, Program

Path: TypeAlias = tuple[Any, int]
"""Rows of an attempt as a linked list: the path up to the previous row, and the place in the program that took the last row."""


class Labels(NamedTuple):
    """The labels of a match's rows, in their order."""

    variables: list[int]
    excluded: list[bool]


class Attempt:
    """One attempt. It takes rows one after the other, and conditions may depend on the match so far.

    If several ways lead to one place of the pattern with equal states, only the preferred way continues.
    """

    __slots__ = ("_conditions", "_ended", "_number", "_program", "_taken", "_value_at", "_waiting", "alive", "length")

    def __init__(self, program: Program, conditions: Conditions, match_number: int, value_at: ValueAt) -> None:
        self._program = program
        self._conditions = conditions
        self._number = match_number
        self._value_at = value_at
        states = conditions.begin()
        self._waiting: list[tuple[int, Path | None, States]] = [(place, None, states) for place in program.start if place != END]
        self._ended: Path | None = None
        self._taken = 0
        self.alive = bool(self._waiting)
        self.length: int | None = 0 if END in program.start else None

    def take(self, masks: Sequence[int], first: int, end: int, base: int) -> int:
        """Takes the rows from `first` up to `end`, as long as the attempt is alive; returns the place after the last row taken.

        Parameters
        ----------
        base : place in the partition of the row of `masks[0]`
        """
        place = first
        while place < end and self.alive:
            self._step(masks[place], base + place)
            place += 1
        return place

    def _step(self, mask: int, row: int) -> None:
        program, conditions = self._program, self._conditions
        following: dict[tuple[int, States], Path] = {}
        self._taken += 1
        ended = False
        for place, path, states in self._waiting:
            variable = program.variables[place]
            if not mask >> variable & 1:
                continue
            after = conditions.after(states, row, variable, self._number, self._value_at)
            if after is None:
                continue
            behind = (path, place)
            for target in program.follow[place]:
                if target == END:
                    self._ended, self.length, ended = behind, self._taken, True
                    break
                following.setdefault((target, after), behind)
            if ended:
                break
        self._waiting = [(target, path, states) for (target, states), path in following.items()]
        self.alive = bool(self._waiting)

    def labels(self) -> Labels:
        """Returns the labels of the match's rows."""
        return _labels(self._program, self._ended)

    def waiting(self) -> Labels:
        """Returns the labels of the rows so far, by the preferred way that waits for more rows."""
        return _labels(self._program, self._waiting[0][1])


def _labels(program: Program, path: Path | None) -> Labels:
    places = []
    while path is not None:
        path, place = path
        places.append(place)
    places.reverse()
    return Labels([program.variables[place] for place in places], [program.excluded[place] for place in places])
