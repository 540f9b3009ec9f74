"""Searches for the highest rates by looking, again and again, for a configuration that carries a little more. `best_rates` uses it for
queries of many operators.

At a fixed multiple of the profile the load of a limit is a number, so that a move costs a few additions. The search draws a limit that is
exceeded, and moves or swaps operators at it so that the excess over all limits shrinks most or grows least; it does not undo its last
moves. Once no limit is exceeded, the multiple rises; if some limit stays exceeded for too long, a smaller rise is tried.

The paper's searches look at the quality alone, which is that of the worst limit. Most moves do not change it, so these searches walk at
random until that limit is relieved. The excess over all limits tells moves apart.
"""

import numpy as np

from sbon.search.ground import Ground
from sbon.search.interface import Budget, Record
from sbon.search.limits_ground import LimitsGround
from sbon.search.plain_ground import PlainGround
from sbon.search.rates import RatesPlacement, Taken

STEP_MIN = 1e-3
"""Least relative rise of the multiple that is tried: the paper's precision."""
SHAKEN = 20
"""Most random swaps after the smallest rise has failed."""


def relieve(configuration: RatesPlacement, budget: Budget, rng: np.random.Generator, *, step: float = 1.0) -> Record[Taken]:
    """Raises the multiple of the profile that the configuration carries.

    Parameters
    ----------
    configuration : the start of the search, which ends at the configuration's target
    budget : each multiple that is tried is a round
    step : first relative rise; it doubles after a success, and is divided by 4 after a failure

    Once the least rise has failed, each round begins with random swaps from the best configuration.
    """
    record = Record(configuration, budget)
    budget.spend(1)
    record.offer(configuration.value())
    ground: Ground = PlainGround(configuration, rng) if configuration.is_plain else LimitsGround(configuration, rng)
    carried, shaken = configuration.quality, False
    if not budget.is_spent and carried < configuration.target:
        ground.begin(max(carried, STEP_MIN))
        ground.lighten(budget)
        ground.offer(record)
    while not budget.is_spent:
        carried = max(carried, ground.quality())
        if carried >= configuration.target:
            break
        ground.begin(min(max(carried, STEP_MIN) * (1 + step), configuration.target))
        if shaken:
            ground.shake(int(rng.integers(2, SHAKEN)))
            ground.lighten(budget)
        shaken = False
        is_better = ground.clear(budget) and ground.offer(record)
        budget.end_round(is_better=is_better)
        if is_better:
            step = min(1.0, step * 2)
            continue
        ground.back()
        shaken = step <= STEP_MIN
        step = max(STEP_MIN, step / 4)
    return record.finish()
