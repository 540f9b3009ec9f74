"""Attempts to match the rows of one partition from one row on: which rows the preferred match has, once no later row can change it."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from sbon.operators.match.bindings import States, ValueAt
from sbon.operators.match.conditions import Conditions
from sbon.operators.match.program import END, Automaton, Program

Path: TypeAlias = tuple[Any, int]
"""The rows of an attempt: the path up to the row before, and the row's place in the program."""


class Labels(NamedTuple):
    """What the rows of a match were taken for, in their order."""

    variables: list[int]
    excluded: list[bool]


class Attempt(Protocol):
    """One attempt. Rows are given to it one behind the other."""

    alive: bool
    """A later row can change what it has found."""

    @property
    def length(self) -> int | None:
        """Returns the rows of the match found so far; None if there is no match."""

    def take(self, masks: Sequence[int], first: int, end: int, base: int) -> int:
        """Takes the rows from `first` up to `end`, as long as it is alive; returns the place behind the last one taken.

        Parameters
        ----------
        base : place in the partition of the first one of `masks`
        """

    def labels(self, masks: Sequence[int], first: int) -> Labels:
        """Returns what the rows of the match were taken for. The match begins at the place `first`."""


class PlainAttempt:
    """An attempt where conditions depend on single rows alone: an automaton runs over the rows, and only the match is looked at again."""

    __slots__ = ("_automaton", "_program", "_state", "_taken", "alive", "length")

    def __init__(self, program: Program, automaton: Automaton) -> None:
        if automaton.is_full:
            automaton.begin()
        self._program = program
        self._automaton = automaton
        self._state = automaton.first
        self._taken = 0
        self.alive = self._state != 0
        self.length: int | None = 0 if automaton.takes_nothing else None

    def take(self, masks: Sequence[int], first: int, end: int, base: int) -> int:
        """Takes rows; see `Attempt`."""
        automaton, state, ended_at, place = self._automaton, self._state, -1, first
        transitions = automaton.next
        while place < end:
            mask = masks[place]
            known = transitions[state].get(mask)
            state, ended = known if known is not None else automaton.step(state, mask)
            place += 1
            if ended:
                ended_at = place
            if state == 0:
                break
        if ended_at >= 0:
            self.length = self._taken + ended_at - first
        self._taken += place - first
        self._state, self.alive = state, state != 0
        return place

    def labels(self, masks: Sequence[int], first: int) -> Labels:
        """Follows the preferred way through the match."""
        program = self._program
        waiting: list[tuple[int, Path | None]] = [(place, None) for place in program.start if place != END]
        ended: Path | None = None
        for mask in masks[first : first + (self.length or 0)]:
            following: dict[int, Path] = {}
            ended = None
            for place, path in waiting:
                if not mask >> program.variables[place] & 1:
                    continue
                behind = (path, place)
                for target in program.follow[place]:
                    if target == END:
                        ended = behind
                        break
                    following.setdefault(target, behind)
                if ended is not None:
                    break
            waiting = list(following.items())
        return _labels(program, ended)


class BoundAttempt:
    """An attempt where conditions depend on the match so far. Of several ways to one place of the pattern with equal states, the preferred
    one goes on alone."""

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
        """Takes rows; see `Attempt`. Values are read at the places of the rows."""
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

    def labels(self, masks: Sequence[int], first: int) -> Labels:
        """Returns the way that was found."""
        return _labels(self._program, self._ended)


def _labels(program: Program, path: Path | None) -> Labels:
    places = []
    while path is not None:
        path, place = path
        places.append(place)
    places.reverse()
    return Labels([program.variables[place] for place in places], [program.excluded[place] for place in places])
