"""The default search for order and placement: exact for a small query, else by relief and annealing; once the target is carried, it
minimises network usage."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from sbon.search.draws import Draws
from sbon.search.exact import exhaustive
from sbon.search.interface import Budget, Record
from sbon.search.metaheuristics import ITERATIONS, TEMPERATURES, anneal, reactive_tabu
from sbon.search.plain_moves import PlainMoves
from sbon.search.rates import RatesPlacement, Taken
from sbon.search.relief import relieve

SMALL = 4096
"""Most configurations that are tried one by one."""
ROUNDS = 10
"""Rounds without improvement after which the search ends, unless the budget says otherwise."""
USAGE_ITERATIONS = 100
"""Iterations of tabu search for less usage, once the target is carried."""
COOL = (0.06, 0.02, 0.005)
"""Temperatures of annealing from the result of relief. Hotter ones leave it, and find no more than from any other start."""
COOL_ITERATIONS = 500
"""Iterations at each of these: 9 of 1,000 queries of 40 operators end worse than with reactive tabu. With 400 iterations, which take a
tenth less time, 14 do."""


def best_rates(configuration: RatesPlacement, budget: Budget, rng: np.random.Generator, *, small: int = SMALL) -> Record[Taken]:
    """Searches for the order and placement with the highest rates, or with the least usage among those that carry the target.

    Parameters
    ----------
    configuration : the start of the search
    budget : each multiple that is tried is a round
    small : most configurations that are tried one by one
    """
    found = exhaustive(configuration, budget, most=small)
    if found is not None:
        return found
    record = relieve(configuration, budget, rng)
    if configuration.is_plain and not budget.is_used_up:
        # Relief ends where no other order has less work; annealing from there seldom fails on the same queries.
        _offer(record, annealed(configuration, budget.rest(), rng, COOL, COOL_ITERATIONS), budget)
        if configuration.loads.has_links and not budget.is_used_up:
            # A full link holds back what both its ends have: a second start, from an even load, ends elsewhere.
            configuration.arrange()
            _offer(record, annealed(configuration, budget.rest(), rng), budget)
        return record.finish()
    if math.isfinite(configuration.target) and configuration.quality >= configuration.target:
        return reactive_tabu(configuration, budget, rng, iterations=USAGE_ITERATIONS)
    return record


def _offer(record: Record[Taken], other: Record[Taken], budget: Budget) -> None:
    """Keeps what another search found if it is better, and counts its evaluations."""
    budget.spend(other.evaluated)
    record.offer(other.value, lambda: other.best)


def annealed(
    configuration: RatesPlacement,
    budget: Budget,
    rng: np.random.Generator,
    temperatures: Sequence[float] = TEMPERATURES,
    iterations: int = ITERATIONS,
) -> Record[Taken]:
    """Anneals (`sbon.search.metaheuristics`), with plain numbers instead of arrays where processors and links are the only limits."""
    if not configuration.is_plain:
        return anneal(configuration, budget, rng, temperatures=temperatures, iterations=iterations)
    record = Record(configuration, budget)
    budget.spend(1)
    record.offer(configuration.value())
    moves = PlainMoves(*configuration.plain_tree(), configuration.hosts, Draws(rng), configuration.alpha)
    found = anneal(moves, budget, rng, temperatures=temperatures, iterations=iterations)
    record.offer(found.value, partial(configuration.taken, found.best))
    return record.finish()
