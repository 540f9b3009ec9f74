"""State of a match so far that conditions read: a small state for each operand that reads rows other than the current one.

Two ways at the same place of the pattern with equal states have the same future, so one of them is enough. States are tuples and numbers.
They compare equal if all values that conditions can read are equal.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

from sbon.operators.match.gathering import Gathering
from sbon.query.params.matched import MatchNumber, Navigation, Operand, Tally

State: TypeAlias = Any
States: TypeAlias = tuple[State, ...]
ValueAt: TypeAlias = Callable[[int, int], Any]
"""Value of an operand's expression, by its number and the place of a row in its partition; None if there is no such row."""
SUM_MAX = 2**63
_NO_VARIABLE = -1


class Binding:
    """An operand, with the functions that update and read its state.

    Parameters
    ----------
    numbers : for each variable, the numbers of the row values that the operand reads on a row taken for it; mostly one, or none
    names : names of the pattern's variables
    gathering : computes the operand, if it is an aggregate that `added` does not support
    """

    def __init__(
        self, operand: Operand, numbers: Sequence[tuple[int, ...]], names: tuple[str, ...], gathering: Gathering | None = None
    ) -> None:
        self._operand = operand
        self._numbers = numbers
        self._names = names
        self._gathering = gathering
        self._beside: Navigation | None = None
        """The operand, if it is PREV or NEXT of CLASSIFIER."""
        if isinstance(operand, Navigation) and operand.value is None and operand.shift:
            self._beside = operand
        self.variables: frozenset[int] | None = None
        """Variables whose rows change the state; None: all."""
        if not isinstance(operand, MatchNumber) and operand.variables:
            self.variables = frozenset(operand.variables)

    @property
    def name(self) -> str:
        """Returns the name of the operand's column in conditions."""
        return self._operand.name

    def begin(self) -> State:
        """Returns the state before the first row."""
        match self._operand:
            case Tally(aggregate=aggregate) if self._gathering is None:
                return begun(aggregate.function)
            case Navigation() if self._beside is not None:
                return (), ()
            case _:
                return ()

    def after(self, state: State, place: int, variable: int, value_at: ValueAt) -> State:
        """Returns the state after a row that is taken for a variable."""
        is_read = self.variables is None or variable in self.variables
        if self._beside is not None:
            return _beside(self._beside, state, variable, is_read=is_read)
        if not is_read:
            return state
        if self._gathering is not None:
            return (*state, tuple(value_at(number, place) for number in self._numbers[variable]))
        match self._operand:
            case Navigation(first=True, skip=skip):
                return state if len(state) > skip else (*state, (place, variable))
            case Navigation(skip=skip):
                return (*state, (place, variable))[-skip - 1 :]
            case Tally(aggregate=aggregate):
                value = 1 if aggregate.operand is None else value_at(self._numbers[variable][0], place)
                return state if value is None else added(aggregate.function, state, value)
            case MatchNumber():
                return state

    def value(self, state: State, match_number: int, value_at: ValueAt) -> Any:
        """Returns the value that conditions read."""
        match self._operand:
            case MatchNumber():
                return match_number
            case Navigation(value=expression, skip=skip, first=first, shift=shift):
                rows = state if self._beside is None else state[1]
                if len(rows) <= skip:
                    return None
                place, variable = rows[skip] if first else rows[0]
                if expression is not None:
                    return value_at(self._numbers[variable][0], place + shift)
                return None if variable == _NO_VARIABLE else self._names[variable]
            case Tally(aggregate=aggregate):
                return answered(aggregate.function, state) if self._gathering is None else self._gathering.of_values(state)


def _beside(operand: Navigation, state: State, variable: int, *, is_read: bool) -> State:
    """Returns the state of PREV or NEXT of CLASSIFIER after a row.

    The state has the variables of the last rows, as many as PREV goes back. For each row that is read, it also has the number of rows still
    to come until the row that PREV or NEXT names, and that row's variable.

    Parameters
    ----------
    is_read : whether the row was taken for one of the operand's variables
    """
    (before, rows), shift = state, operand.shift
    rows = tuple((left - 1, variable if left == 1 else known) if left else (left, known) for left, known in rows)
    if is_read and not (operand.first and len(rows) > operand.skip):
        known = before[shift] if len(before) >= -shift > 0 else _NO_VARIABLE
        rows = (*rows, (max(0, shift), known))
    if not operand.first:
        rows = rows[-operand.skip - 1 :]
    return ((*before, variable)[shift:] if shift < 0 else ()), rows


def begun(function: str) -> State:
    """Returns the state of an aggregate before any value."""
    return 0 if function == "count" else None if function in ("min", "max") else (0, 0)


def added(function: str, state: State, value: Any) -> State:
    """Returns the state of an aggregate with one more value, which is not NULL. MIN and MAX skip NaN unless there is nothing else."""
    if function == "count":
        return state + 1
    if function in ("min", "max"):
        if state is None or (state != state and value == value):
            return value
        return state if value != value else min(state, value) if function == "min" else max(state, value)
    count, total = state
    return count + 1, _sum(total, value)


def _sum(total: Any, value: Any) -> Any:
    """Adds exactly; if there are infinities or NaNs, only those are added, as floats."""
    if type(value) is float and not math.isfinite(value):
        return total + value if type(total) is float else value
    if type(total) is float:
        return total
    return total + (Fraction(value) if type(value) is float else value)


def answered(function: str, state: State) -> Any:
    """Returns the answer of an aggregate: sums of integers are exact, NULL beyond 64 bits; sums of floats are rounded once."""
    if function in ("count", "min", "max"):
        return state
    count, total = state
    if count == 0:
        return None
    if function == "avg":
        return total if type(total) is float else _rounded(Fraction(total) / count)
    if type(total) is int:
        return total if -SUM_MAX <= total < SUM_MAX else None
    return total if type(total) is float else _rounded(total)


def _rounded(value: Fraction) -> float:
    return ratio(value.numerator, value.denominator)


def ratio(numerator: int, denominator: int) -> float:
    """Returns a quotient as the nearest float."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf
