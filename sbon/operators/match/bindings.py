"""State of a match so far that conditions read: a small state for each operand that reads rows other than the current one.

Two attempts at the same place of the pattern with the same states have the same future, so one of them is enough. States are tuples and
numbers. They compare equal if all values that conditions can read are equal.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeAlias

from sbon.query.plan import MatchNumber, Navigation, Operand, Tally

State: TypeAlias = Any
States: TypeAlias = tuple[State, ...]
ValueAt: TypeAlias = Callable[[int, int], Any]
"""Value of an operand's expression, by its number and the place of a row in its partition; None where there is no row."""
SUM_MAX = 2**63


class Binding:
    """One operand.

    Parameters
    ----------
    number : of the operand among those with a value on each row; -1 if it has none
    names : of the pattern's variables
    """

    def __init__(self, operand: Operand, number: int, names: tuple[str, ...]) -> None:
        self._operand = operand
        self._number = number
        self._names = names
        self.variables: frozenset[int] | None = None
        """Variables whose rows change it; None: all."""
        if not isinstance(operand, MatchNumber) and operand.variables:
            self.variables = frozenset(operand.variables)

    @property
    def name(self) -> str:
        """Returns the column by which conditions name it."""
        return self._operand.name

    def begin(self) -> State:
        """Returns the state before the first row."""
        match self._operand:
            case Tally(aggregate=aggregate):
                return begun(aggregate.function)
            case _:
                return ()

    def after(self, state: State, place: int, variable: int, value_at: ValueAt) -> State:
        """Returns the state behind a row that is taken for a variable."""
        if self.variables is not None and variable not in self.variables:
            return state
        match self._operand:
            case Navigation(first=True, skip=skip):
                return state if len(state) > skip else (*state, (place, variable))
            case Navigation(skip=skip):
                return (*state, (place, variable))[-skip - 1 :]
            case Tally(aggregate=aggregate):
                value = 1 if aggregate.operand is None else value_at(self._number, place)
                return state if value is None else added(aggregate.function, state, value)
            case MatchNumber():
                return state

    def value(self, state: State, match_number: int, value_at: ValueAt) -> Any:
        """Returns the value that conditions read."""
        match self._operand:
            case MatchNumber():
                return match_number
            case Navigation(value=expression, skip=skip, first=first, shift=shift):
                if len(state) <= skip:
                    return None
                place, variable = state[skip] if first else state[0]
                return self._names[variable] if expression is None else value_at(self._number, place + shift)
            case Tally(aggregate=aggregate):
                return answered(aggregate.function, state)


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
    """Adds exactly; infinities and NaN go their way as floats."""
    if type(value) is float and not math.isfinite(value):
        return total + value if type(total) is float else value
    if type(total) is float:
        return total
    return total + (Fraction(value) if type(value) is float else value)


def answered(function: str, state: State) -> Any:
    """Returns the answer of an aggregate: sums of integers are exact, NULL beyond 64 bits; those of floats are rounded once."""
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
