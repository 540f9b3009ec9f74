"""Predicts the longest time that a row will take at an instance, waiting and being processed, by the tail of its queue.

Rows come in batches, which are processed one by one: a row of `sbon.dealing.tail` is a batch here, with the cost of all its rows.
"""

import math

import numpy as np

from sbon.dealing.tail import allowed, log_tail
from sbon.types import FloatArray

CHANCE = 0.1
"""Probability, by the tail, that some batch takes longer than the peak; the tail is an upper bound."""
PRECISION = 1.02
MOST_S = 1e4
"""Greatest peak that is returned: where it is reached, waits grow without end."""


def peak_s(batches_per_s: float, costs_s: FloatArray, width_s: float, begun_s: FloatArray, over_s: float) -> float:
    """Returns the least time that no batch exceeds, except with probability `CHANCE`; at most `MOST_S`, within 2 %.

    Parameters
    ----------
    batches_per_s : batches that come to each instance
    costs_s : (instances, intervals), time to process a batch in coming intervals
    width_s : length of an interval
    begun_s : (instances,), work that waits already
    over_s : time whose longest wait is asked for

    Examples
    --------
    Ten batches a second of 10 ms each rarely take longer than four times that, in a minute.

    >>> round(peak_s(10.0, np.full((1, 10), 0.01), 1.0, np.zeros(1), 60.0), 2)
    0.04
    >>> peak_s(10.0, np.full((1, 10), 0.2), 1e4, np.zeros(1), 60.0) == MOST_S
    True
    """
    if not costs_s.size:
        return 0.0
    rates = np.full((1, costs_s.shape[1]), batches_per_s)
    limit = allowed(batches_per_s * over_s, CHANCE)

    def keeps(bound_s: float) -> bool:
        return float(log_tail(rates, costs_s[None], width_s, begun_s, bound_s).max()) <= limit

    low = high = max(1e-6, float(costs_s.max()), float(begun_s.max()))
    while not keeps(high):
        low, high = high, 2 * high
        if low >= MOST_S:
            return MOST_S
    while high > PRECISION * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high
