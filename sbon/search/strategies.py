"""Searches over any configuration: random draws, hill climbing from random starts (Mace-HC), and climbing from a constructed start."""

from typing import TypeVar

from sbon.search.interface import Budget, Configuration, Record

C = TypeVar("C")

_BETTER = 1e-12
"""Least relative improvement that counts: rounding must not make a search go in circles."""


def baseline(configuration: Configuration[C], budget: Budget) -> Record[C]:
    """Draws one configuration.

    Source
    ------
    Mace (Chandramouli et al., ICDE 2011), section IX-B.1, Baseline.
    """
    record = Record(configuration, budget)
    configuration.scatter()
    budget.spend(1)
    record.offer(configuration.value())
    return record.finish()


def random_search(configuration: Configuration[C], budget: Budget) -> Record[C]:
    """Draws configurations until the budget is spent, and keeps the best.

    Source
    ------
    Mace, section IX-B.1, Random.
    """
    record = Record(configuration, budget)
    while True:
        configuration.scatter()
        budget.spend(1)
        budget.end_round(is_better=record.offer(configuration.value()))
        if budget.is_spent:
            return record.finish()


def climb_from_random(configuration: Configuration[C], budget: Budget) -> Record[C]:
    """Draws a configuration, improves it by moves until none is better, and begins again: Mace-HC.

    Source
    ------
    Mace, section IX-B, figure 11.
    """
    record = Record(configuration, budget)
    while True:
        configuration.scatter()
        budget.spend(1)
        budget.end_round(is_better=_climb(configuration, budget, record))
        if budget.is_spent:
            return record.finish()


def climb_from_arranged(configuration: Configuration[C], budget: Budget) -> Record[C]:
    """Improves a configuration made in one pass; then disturbs the best a little and improves that, again and again.

    The paper begins each round from a random placement. That loses the good parts of the last one, which matters with many operators.
    """
    record = Record(configuration, budget)
    configuration.arrange()
    budget.spend(1)
    _climb(configuration, budget, record)
    while not budget.is_spent:
        configuration.restore(record.best)
        configuration.disturb()
        budget.spend(1)
        budget.end_round(is_better=_climb(configuration, budget, record))
    return record.finish()


def _climb(configuration: Configuration[C], budget: Budget, record: Record[C]) -> bool:
    """Makes better moves until there is none, or the budget is spent; tells whether the record was beaten."""
    value = configuration.value()
    is_better = record.offer(value)
    while not budget.is_spent:
        for moves in configuration.neighbourhoods():
            after = configuration.values_after(moves)
            budget.spend(len(moves))
            best = int(after.argmin())
            if after[best] < value * (1 - _BETTER):
                configuration.apply(moves[best])
                value = float(after[best])
                is_better = record.offer(value) or is_better
                break
            if budget.is_spent:
                return is_better
        else:
            return is_better
    return is_better
