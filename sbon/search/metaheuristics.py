"""Hill climbing that leaves local optima: greedy, tabu, reactive tabu and simulated annealing (WhiteWater, section 5.1).

All searches begin with the current configuration, end when their budget is spent, and keep the best configuration that they meet. An
iteration is a round of the budget. Searches of the whole neighbourhood take all its groups together.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from sbon.search.interface import Budget, Configuration, Record, Restorable
from sbon.types import FloatArray, IntArray

C = TypeVar("C")
M = TypeVar("M")

TEMPERATURES = (0.3, 0.1, 0.03, 0.003)
"""Temperatures of annealing, the hottest first."""
ITERATIONS = 400
"""Iterations at each temperature."""
_BETTER = 1e-9
"""Least relative improvement that counts."""


class Keyed(Configuration[C], Protocol[C]):
    """A configuration with a key, for searches that remember the configurations they have met."""

    @property
    def key(self) -> int:
        """Returns a number of 63 bits, equal for equal configurations."""

    def keys_after(self, moves: IntArray) -> IntArray:
        """Returns the key after each move: (moves,)."""


class Drawn(Restorable[C], Protocol[C, M]):
    """A configuration that draws moves one at a time."""

    def value(self) -> float:
        """Returns the value now."""

    def draw(self) -> M | None:
        """Returns a random move; None if there is none."""

    def is_within(self, move: M, value: float) -> bool:
        """Tells whether the value after a move is at most `value`, which is not below the current value."""

    def apply(self, move: M) -> None:
        """Makes a move."""


class Mixed(Keyed[C], Protocol[C]):
    """A configuration with two kinds of moves."""

    alpha: float
    """Share of one kind among drawn moves; 0 and 1 leave only one kind."""

    def draw(self) -> Sequence[int] | None:
        """Returns a random move; None if there is none."""


def greedy(configuration: Configuration[C], budget: Budget) -> Record[C]:
    """Makes the best move until none makes the configuration better.

    Source
    ------
    WhiteWater, section 5.1.1.
    """
    record = Record(configuration, budget)
    value = configuration.value()
    budget.spend(1)
    record.offer(value)
    while not budget.is_spent:
        moves, after = _all(configuration, budget)
        best = int(after.argmin()) if len(moves) else 0
        is_better = len(moves) > 0 and bool(after[best] < value * (1 - _BETTER))
        budget.end_round(is_better=is_better)
        if not is_better:
            break
        configuration.apply(moves[best])
        value = configuration.value()
        record.offer(value)
    return record.finish()


def tabu(configuration: Keyed[C], budget: Budget, rng: np.random.Generator, *, iterations: int = 1000, length: int = 1000) -> Record[C]:
    """Makes the best move that is not on a list of the last ones, even if it makes the configuration worse. If all moves are on the list,
    the one that has been there for longest is made.

    A move on the list is barred in both directions.

    Source
    ------
    WhiteWater, section 5.1.2.
    """
    record = Record(configuration, budget)
    budget.spend(1)
    record.offer(configuration.value())
    barred: dict[int, int] = {}
    for iteration in range(iterations):
        if budget.is_spent:
            break
        moves, after = _all(configuration, budget)
        if not len(moves):
            break
        ways: list[int] = (configuration.keys_after(moves) ^ configuration.key).tolist()
        best = _best(after, [way in barred and iteration - barred[way] <= length for way in ways], rng)
        if best is None:
            best = min(range(len(ways)), key=lambda place: barred[ways[place]])
        barred[ways[best]] = iteration
        configuration.apply(moves[best])
        budget.end_round(is_better=record.offer(configuration.value()))
    return record.finish()


def reactive_tabu(
    configuration: Mixed[C],
    budget: Budget,
    rng: np.random.Generator,
    *,
    iterations: int = 1000,
    cycle_max: int = 50,
    grow: float = 1.1,
    shrink: float = 0.9,
    repeats: int = 3,
) -> Record[C]:
    """Makes the best move to a configuration that is not on a list of the last ones. The list grows each time a configuration comes back.

    The list shrinks if none has come back for as long as cycles last on average. If several configurations have come back more than
    `repeats` times, some random moves lead away, more of them the longer cycles are.

    Source
    ------
    WhiteWater, section 5.1.3; Battiti and Tecchiolli, 1994.
    """
    record = Record(configuration, budget)
    budget.spend(1)
    record.offer(configuration.value())
    length, average, changed, often = 1.0, 1.0, 0, 0
    seen: dict[int, tuple[int, int]] = {configuration.key: (0, 1)}
    for iteration in range(1, iterations + 1):
        if budget.is_spent:
            break
        moves, after = _all(configuration, budget)
        if not len(moves):
            break
        oldest = iteration - length
        is_barred = [key in seen and seen[key][0] >= oldest for key in configuration.keys_after(moves).tolist()]
        best = _best(after, is_barred, rng)
        if best is None:  # all are on the list: it is too long
            length = max(1.0, length * shrink)
            best = int(rng.integers(len(moves)))
        configuration.apply(moves[best])
        budget.end_round(is_better=record.offer(configuration.value()))
        key = configuration.key
        last, times = seen.get(key, (-1, 0))
        seen[key] = (iteration, times + 1)
        if times:
            cycle = iteration - last
            if cycle < cycle_max:
                average = 0.9 * average + 0.1 * cycle
                length, changed = length * grow + 1.0, iteration
            often += times + 1 > repeats
            if often > repeats:
                often = 0
                for _ in range(1 + int((1 + rng.random()) * average)):
                    move = configuration.draw()
                    if move is not None:
                        configuration.apply(np.array(move))
                budget.spend(1)
                record.offer(configuration.value())
        elif iteration - changed > average:
            length, changed = max(1.0, length * shrink), iteration
    return record.finish()


def anneal(
    configuration: Drawn[C, M],
    budget: Budget,
    rng: np.random.Generator,
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    iterations: int = ITERATIONS,
) -> Record[C]:
    """Draws random moves: makes better ones always, and one that makes the value f times as large with probability f ** (-1 / temperature).

    Source
    ------
    WhiteWater, section 5.1.4: four temperatures of 400 iterations.
    """
    record = Record(configuration, budget)
    value = configuration.value()
    budget.spend(1)
    record.offer(value)
    for temperature in temperatures:
        bounds = (rng.random(iterations) ** -temperature).tolist()
        for factor in bounds:
            move = configuration.draw()
            if move is None or budget.is_spent:
                return record.finish()
            budget.spend(1)
            if configuration.is_within(move, value * factor):
                configuration.apply(move)
                value = configuration.value()
                budget.end_round(is_better=record.offer(value))
    return record.finish()


def two_phase(
    search: Callable[[Mixed[C], Budget], Record[C]], configuration: Mixed[C], budget: Budget, first: float = 0.0, then: float = 1.0
) -> Record[C]:
    """Searches with moves of one kind, and then, from the best configuration found, with moves of the other kind.

    Source
    ------
    WhiteWater, section 5.4: swaps first, then placement. It cannot find an order that is better only because of the placement (figure 5).
    """
    alpha = configuration.alpha
    configuration.alpha = first
    search(configuration, budget)
    configuration.alpha = then
    found = search(configuration, budget)
    configuration.alpha = alpha
    return found


def _all(configuration: Configuration[C], budget: Budget) -> tuple[IntArray, FloatArray]:
    groups = list(configuration.neighbourhoods())
    moves = groups[0] if len(groups) == 1 else np.concatenate(groups)
    after = configuration.values_after(moves)
    budget.spend(len(moves))
    return moves, after


def _best(after: FloatArray, barred: list[bool], rng: np.random.Generator) -> int | None:
    """Returns the best move that is not barred; among equal ones a random one, or a search would take them in the order of their
    numbers."""
    left = np.where(barred, math.inf, after)
    if not len(left) or all(barred):
        return None
    equal = np.flatnonzero(left <= left.min() * (1 + _BETTER))
    return int(equal[rng.integers(len(equal))])
