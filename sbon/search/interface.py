"""The interface of searches: configurations, budgets, and records of results.

A configuration (for example an assignment of operators) returns its value, and its value after each of some moves without making them.
Searches use nothing else, so that one search serves all configurations, and all searches can be compared on one problem.
"""

import math
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray

C = TypeVar("C")
REST = 1e12
"""Most evaluations of a search whose budget has no other limit."""


class Restorable(Protocol[C]):
    """A state that can go back to where it was."""

    def snapshot(self) -> C:
        """Returns the state that `restore` takes."""

    def restore(self, taken: C) -> None:
        """Goes back to an earlier configuration."""


class Configuration(Restorable[C], Protocol[C]):
    """A configuration that changes by moves; less value is better. Moves are rows of numbers whose meaning each configuration defines."""

    def value(self) -> float:
        """Returns the value now."""

    def neighbourhoods(self) -> Iterator[IntArray]:
        """Yields moves in groups, promising ones first: (moves, numbers). A search stops after a group with a better configuration."""

    def values_after(self, moves: IntArray) -> FloatArray:
        """Returns the value after each of a group's moves alone: (moves,)."""

    def apply(self, move: IntArray) -> None:
        """Makes a move."""

    def scatter(self) -> None:
        """Draws a new random configuration."""

    def arrange(self) -> None:
        """Makes a good configuration in one pass."""

    def disturb(self) -> None:
        """Changes a small part at random."""


class Budget:
    """The limits of a search. It always evaluates at least one configuration.

    Parameters
    ----------
    evaluations : most configurations and moves that are evaluated
    seconds : most time, by `clock`
    clock : returns seconds; needed for `seconds`, and for the times in a record
    stale : most consecutive rounds without improvement

    Raises
    ------
    ShapeError
        A search would never end, or there is no clock for a limit of time.

    Examples
    --------
    >>> budget = Budget(evaluations=10)
    >>> budget.spend(9), budget.is_spent, budget.spend(1), budget.is_spent
    (None, False, None, True)
    """

    def __init__(
        self,
        *,
        evaluations: float = math.inf,
        seconds: float = math.inf,
        clock: Callable[[], float] | None = None,
        stale: float = math.inf,
    ) -> None:
        if math.isinf(evaluations) and math.isinf(seconds) and math.isinf(stale):
            raise ShapeError("a budget without any limit, expected evaluations, seconds or stale")
        if clock is None and not math.isinf(seconds):
            raise ShapeError(f"a budget of {seconds} s without a clock, expected one")
        self._evaluations, self._seconds, self._stale = evaluations, seconds, stale
        self._clock = clock
        self._began_s = clock() if clock is not None else 0.0
        self._rounds = 0
        self.evaluated = 0
        """Configurations and moves evaluated so far."""

    def spend(self, evaluations: int) -> None:
        """Records so many evaluations."""
        self.evaluated += evaluations

    def end_round(self, *, is_better: bool) -> None:
        """Records the end of a round of the search."""
        self._rounds = 0 if is_better else self._rounds + 1

    @property
    def seconds(self) -> float:
        """Returns the time since the start; 0 without a clock."""
        return self._clock() - self._began_s if self._clock is not None else 0.0

    def rest(self) -> "Budget":
        """Returns a budget of the rest, for another search whose rounds do not count here; at most `REST` evaluations."""
        left = min(self._evaluations - self.evaluated, REST)
        return Budget(evaluations=left, seconds=max(0.0, self._seconds - self.seconds), clock=self._clock)

    @property
    def is_used_up(self) -> bool:
        """Tells whether no evaluations or no time are left, whatever the rounds."""
        return self.evaluated >= self._evaluations or (self._clock is not None and self.seconds >= self._seconds)

    @property
    def is_spent(self) -> bool:
        """Tells whether the search must end."""
        return self.is_used_up or self._rounds >= self._stale


class Record(Generic[C]):
    """The best configuration so far, and when each better one was found.

    Parameters
    ----------
    configuration : the configuration that the search changes
    budget : gives the times that are recorded
    """

    def __init__(self, configuration: Restorable[C], budget: Budget) -> None:
        self._configuration, self._budget = configuration, budget
        self._best = configuration.snapshot()
        self._make: Callable[[], C] | None = None
        self.value = math.inf
        """Infinite until something is offered."""
        self.curve: list[tuple[float, int, float]] = []
        """Seconds, evaluations and value of each configuration that was better than all before."""

    @property
    def evaluated(self) -> int:
        """Returns the configurations and moves that the search has evaluated."""
        return self._budget.evaluated

    @property
    def best(self) -> C:
        """Returns the snapshot of the best configuration, for `restore`."""
        if self._make is not None:
            self._best, self._make = self._make(), None
        return self._best

    def offer(self, value: float, make: Callable[[], C] | None = None) -> bool:
        """Keeps the configuration if it is better than all before; returns whether it is.

        Parameters
        ----------
        make : makes the snapshot, if another representation of the configuration was searched
        """
        if not value < self.value:
            return False
        self.value, self._make = value, make
        if make is None:
            self._best = self._configuration.snapshot()
        self.curve.append((self._budget.seconds, self._budget.evaluated, value))
        return True

    def finish(self) -> "Record[C]":
        """Restores the best configuration, and returns the record."""
        self._configuration.restore(self.best)
        return self
