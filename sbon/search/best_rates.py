"""The default search for order and placement: exact for a small query, else by relief, then for less usage once the target is carried."""

import math

import numpy as np

from sbon.search.exact import exhaustive
from sbon.search.interface import Budget, Record
from sbon.search.metaheuristics import reactive_tabu
from sbon.search.rates import RatesPlacement, Taken
from sbon.search.relief import relieve

SMALL = 4096
"""Most configurations that are tried one by one."""
ROUNDS = 20
"""Rounds without anything better after which the search ends, unless the budget says otherwise."""
USAGE_ITERATIONS = 100
"""Iterations of tabu search for less usage, once the target is carried."""


def best_rates(configuration: RatesPlacement, budget: Budget, rng: np.random.Generator, *, small: int = SMALL) -> Record[Taken]:
    """Searches for the order and placement with the highest rates, or with the least usage among those that carry the target.

    Parameters
    ----------
    configuration : where it begins
    budget : each multiple that is tried is a round
    small : most configurations that are tried one by one
    """
    found = exhaustive(configuration, budget, most=small)
    if found is not None:
        return found
    record = relieve(configuration, budget, rng)
    if math.isfinite(configuration.target) and configuration.quality >= configuration.target:
        return reactive_tabu(configuration, budget, rng, iterations=USAGE_ITERATIONS)
    return record
