"""Tells how well any estimator can know the work of an event from a sample, whatever it does with the sample.

A sample of n source events shows the cost and the rows out of every event at every operator. Costs are gamma-distributed with a known
scatter and rows out are one or none, so their averages use all information about their operator (exponential families): the variance of
each average is the inverse of its Fisher information. The variance of the work of an event follows by its gradient (Cramér-Rao); no
unbiased estimator has less.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from sbon.cost.load import OperatorCost, Polynomial, Source, deterministic_load
from sbon.errors import ShapeError


def work_of_event(operators: Sequence[OperatorCost]) -> float:
    """Returns the work that one event of each source brings to all operators."""
    found = deterministic_load(operators, np.ones((_sources(operators), 1)))
    return float(found.work.sum())


def least_deviation(operators: Sequence[OperatorCost], events: int, cost_scatter: float) -> float:
    """Returns the least standard deviation of an unbiased estimate of `work_of_event`, as a share of it.

    Parameters
    ----------
    operators : linear, each with one cost and one selectivity for all inputs, above 0 and 1 at most
    events : events of each source in the sample
    cost_scatter : standard deviation of an event's cost divided by its mean

    Raises
    ------
    ShapeError
        The operators are of another kind.

    Source
    ------
    Cramér-Rao bound; Lehmann and Casella, *Theory of Point Estimation*, section 2.6.

    Examples
    --------
    A select keeps half of 100 events, known with a deviation of 0.05; what follows has all the work.

    >>> from sbon.cost.load import Source, Upstream
    >>> select = OperatorCost((Source(0),), Polynomial((0.5,)), Polynomial((0.0,)))
    >>> rest = OperatorCost((Upstream(0),), Polynomial((1.0,)), Polynomial((3.0,)))
    >>> round(least_deviation([select, rest], 100, 0.0), 4)
    0.1
    """
    if any(one.rows.products or one.work.products or one.rows.constant or one.work.constant for one in operators):
        raise ShapeError("products or constants, expected linear operators")
    if any(len({*one.rows.linear}) != 1 or len({*one.work.linear}) != 1 or not 0 < one.rows.linear[0] <= 1 for one in operators):
        raise ShapeError("several costs or selectivities of one operator, expected one of each, rows above 0 up to 1")
    whole = work_of_event(operators)
    rows_out = deterministic_load(operators, np.ones((_sources(operators), 1))).rows[:, 0]
    variance = 0.0
    for number, one in enumerate(operators):
        cost, selectivity = one.work.linear[0], one.rows.linear[0]
        rows_in = float(rows_out[number]) / selectivity
        behind = (whole - work_of_event(_without_rows(operators, number))) / selectivity
        variance += ((rows_in * cost * cost_scatter) ** 2 + behind**2 * selectivity * (1 - selectivity)) / (rows_in * events)
    return math.sqrt(variance) / whole


def _sources(operators: Sequence[OperatorCost]) -> int:
    return 1 + max(taken.index for one in operators for taken in one.inputs if isinstance(taken, Source))


def _without_rows(operators: Sequence[OperatorCost], number: int) -> list[OperatorCost]:
    """Returns the operators with one of them giving no rows."""
    none = Polynomial((0.0,) * len(operators[number].inputs))
    return [*operators[:number], msgspec.structs.replace(operators[number], rows=none), *operators[number + 1 :]]
