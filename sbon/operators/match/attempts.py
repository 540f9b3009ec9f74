"""Attempts to match the rows of one partition from one row on: which rows the preferred match has, once no later row can change it."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from sbon.operators.match.bindings import States, ValueAt
from sbon.operators.match.conditions import Conditions
from sbon.operators.match.program import END, Program

Path: TypeAlias = tuple[Any, int]
"""The rows of an attempt: the path up to the row before, and the row's place in the program."""


class Labels(NamedTuple):
    """The labels of a match's rows, in their order."""

    variables: list[int]
    excluded: list[bool]


class Attempt:
    """One attempt. Rows are given to it one behind the other, and conditions may depend on the match so far.

    Of several ways to one place of the pattern with equal states, the preferred one goes on alone.
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
        """Takes the rows from `first` up to `end`, as long as it is alive; returns the place behind the last one taken.

        Parameters
        ----------
        base : place in the partition of the first one of `masks`
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
        """Returns what the rows of the match were taken for."""
        return _labels(self._program, self._ended)

    def waiting(self) -> Labels:
        """Returns what the rows so far were taken for by the preferred way that waits for more."""
        return _labels(self._program, self._waiting[0][1])


def _labels(program: Program, path: Path | None) -> Labels:
    places = []
    while path is not None:
        path, place = path
        places.append(place)
    places.reverse()
    return Labels([program.variables[place] for place in places], [program.excluded[place] for place in places])
