"""Turns a pattern into a program, and finds in linear time where the preferred match ends if conditions depend on single rows alone.

A program is a list of places that each wait for one row. After a row, the places that may come next have an order of preference. It does
not depend on rows, so it is computed once for each place. All places that are waiting at once, in their order, are a state of a
deterministic automaton, whose transitions are computed when they are first needed.
"""

from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple, TypeAlias

from sbon.query.row_pattern import Choice, Excluded, Pattern, Repeat, Sequence, Variable, may_be_empty

END = -1
"""Stands for the end of a match among places."""
ANY = 1 << 62
"""A bit that every row has, in addition to the bits of the variables whose conditions it meets."""
STATES_MAX = 4_096
"""Most states of the automaton that are kept; with more, states are forgotten and computed again."""
Follow: TypeAlias = tuple[int, ...]


class Program(NamedTuple):
    """A pattern as places that wait for a row."""

    variables: tuple[int, ...]
    """For each place, the variable that its row must be of."""
    excluded: tuple[bool, ...]
    """For each place, True if its row is left out of the answer."""
    follow: tuple[Follow, ...]
    """For each place, the places that may come next, best first; END is last, if it is among them."""
    start: Follow
    """The places of the first row."""


class _Code:
    """Instructions while they are made.

    `row` waits for a row. `split` continues at either of two instructions, the better one first; at one, if both are the same. A repetition
    of a part that may be empty has a `round` before the part, and an `again` behind it, with the instructions of another round and of the
    end of the repetition, the better one first.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[str, int, int]] = []

    def add(self, kind: str, first: int = 0, second: int = 0) -> int:
        self.steps.append((kind, first, second))
        return len(self.steps) - 1

    def emit(self, pattern: Pattern, excluded: bool) -> None:
        match pattern:
            case Variable(index=index):
                self.add("row", index, int(excluded))
            case Sequence(parts=parts):
                for part in parts:
                    self.emit(part, excluded)
            case Excluded(part=part):
                self.emit(part, True)
            case Choice(parts=parts):
                self._choice(parts, excluded)
            case Repeat():
                self._repeat(pattern, excluded)

    def _choice(self, parts: SequenceOf[Pattern], excluded: bool) -> None:
        ends = []
        for part in parts[:-1]:
            split = self.add("split")
            self.emit(part, excluded)
            ends.append(self.add("split"))
            self.steps[split] = ("split", split + 1, len(self.steps))
        self.emit(parts[-1], excluded)
        for end in ends:
            self.steps[end] = ("split", len(self.steps), len(self.steps))

    def _repeat(self, repeat: Repeat, excluded: bool) -> None:
        for _ in range(repeat.least):
            self.emit(repeat.part, excluded)
        if repeat.most is None:
            # A part that may be empty goes round at least once: an empty round ends the repetition, before less preferred rounds.
            if may_be_empty(repeat.part):
                self._rounds(repeat, excluded)
            else:
                split = self.add("split")
                self.emit(repeat.part, excluded)
                self.add("split", split, split)
                self._set(split, split + 1, len(self.steps), repeat.reluctant)
            return
        splits = []
        for _ in range(repeat.most - repeat.least):
            splits.append(self.add("split"))
            self.emit(repeat.part, excluded)
        for split in splits:
            self._set(split, split + 1, len(self.steps), repeat.reluctant)

    def _rounds(self, repeat: Repeat, excluded: bool) -> None:
        outer = self.add("split")
        begin = self.add("round")
        self.emit(repeat.part, excluded)
        again = self.add("again")
        self._set(again, begin, again + 1, repeat.reluctant)
        self._set(outer, begin, again + 1, repeat.reluctant)

    def _set(self, split: int, inside: int, behind: int, reluctant: bool) -> None:
        self.steps[split] = (self.steps[split][0], *((behind, inside) if reluctant else (inside, behind)))


def compile_pattern(pattern: Pattern) -> Program:
    """Returns the program of a pattern.

    Examples
    --------
    >>> compile_pattern(Sequence((Variable(0), Repeat(Variable(1), 0, None)))).follow
    ((1, -1), (1, -1))
    """
    code = _Code()
    code.emit(pattern, False)
    steps = code.steps
    places = [at for at, (kind, _, _) in enumerate(steps) if kind == "row"]
    number = {at: place for place, at in enumerate(places)}

    def closure(at: int) -> Follow:
        found = dict[int, None]()
        seen: set[tuple[int, Follow]] = set()
        stack: list[tuple[int, Follow]] = [(at, ())]  # with the rounds that have begun and have no row yet, the innermost last
        while stack:
            step, empty = stack.pop()
            if (step, empty) in seen:
                continue
            seen.add((step, empty))
            if step == len(steps):
                found[END] = None
                break  # whatever is less preferred than an end is never needed
            kind, first, second = steps[step]
            if kind == "row":
                found.setdefault(number[step])
            elif kind == "round":
                stack.append((step + 1, (*empty, step)))
            elif kind == "again" and empty and empty[-1] == min(first, second):
                stack.append((step + 1, empty[:-1]))  # an empty round ends the repetition
            else:
                stack += ((second, empty), (first, empty))
        return tuple(found)

    return Program(
        tuple(steps[at][1] for at in places),
        tuple(bool(steps[at][2]) for at in places),
        tuple(closure(at + 1) for at in places),
        closure(0),
    )


class Automaton:
    """Finds the end of the preferred match, for conditions that depend on single rows alone.

    A state is the waiting places in the order of preference. State 0 is dead: no place waits.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.begin()

    def begin(self) -> None:
        """Forgets all states but the dead one and the first, which is 1."""
        waiting = tuple(place for place in self._program.start if place != END)
        self._places: list[Follow] = [(), waiting]
        self._numbers: dict[Follow, int] = {(): 0} | ({waiting: 1} if waiting else {})
        self.next: list[dict[int, tuple[int, bool]]] = [{}, {}]
        """For each state, by the conditions that a row meets: the next state, and whether a match ends with the row."""

    @property
    def first(self) -> int:
        """Returns the state before any row."""
        return 1 if self._places[1] else 0

    @property
    def takes_nothing(self) -> bool:
        """Tells whether there is a match without rows, if no better match is found."""
        return END in self._program.start

    def step(self, state: int, mask: int) -> tuple[int, bool]:
        """Returns the next state, and whether a match ends with this row; computes the transition the first time.

        Parameters
        ----------
        mask : bits of the variables whose conditions the row meets
        """
        known = self.next[state].get(mask)
        if known is not None:
            return known
        program, found = self._program, dict[int, None]()
        ended = False
        for place in self._places[state]:
            if mask >> program.variables[place] & 1:
                for target in program.follow[place]:
                    if target == END:
                        ended = True
                        break
                    found.setdefault(target)
                if ended:
                    break
        after = self._number(tuple(found))
        self.next[state][mask] = after, ended
        return after, ended

    def places(self, state: int) -> Follow:
        """Returns the places that wait in a state, best first."""
        return self._places[state]

    def renumber(self, states: SequenceOf[int]) -> list[int]:
        """Forgets all other states; returns the new numbers of these."""
        kept = [self._places[state] for state in states]
        self.begin()
        return [self._number(places) for places in kept]

    def _number(self, places: Follow) -> int:
        number = self._numbers.get(places)
        if number is None:
            number = self._numbers[places] = len(self._places)
            self._places.append(places)
            self.next.append({})
        return number

    @property
    def is_full(self) -> bool:
        """Tells whether there are more than `STATES_MAX` states, so that some should be forgotten between two matches."""
        return len(self._places) > STATES_MAX


def follow_way(program: Program, masks: SequenceOf[int], *, ended: bool) -> list[int]:
    """Returns the places of the preferred way through rows, for conditions that depend on single rows alone.

    Parameters
    ----------
    masks : for each row, the bits of the variables whose conditions it meets
    ended : whether the way ends a match with the last row; otherwise it is the preferred way of those that wait for more rows
    """
    waiting: list[tuple[int, tuple[Any, int] | None]] = [(place, None) for place in program.start if place != END]
    path: tuple[Any, int] | None = None
    for mask in masks:
        following: dict[int, tuple[Any, int]] = {}
        path = None
        for place, before in waiting:
            if not mask >> program.variables[place] & 1:
                continue
            behind = (before, place)
            for target in program.follow[place]:
                if target == END:
                    path = behind
                    break
                following.setdefault(target, behind)
            if path is not None:
                break
        waiting = list(following.items())
    if not ended:
        path = waiting[0][1] if waiting else None
    places = []
    while path is not None:
        path, place = path
        places.append(place)
    places.reverse()
    return places
