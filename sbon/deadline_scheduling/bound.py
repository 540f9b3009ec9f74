"""Computes the most rows that any policy can finish in time, by linear programming with all arrivals known in advance.

Rows of one class that arrive in the same time slot and are due in the same slot form a group. Any fraction of a group may be processed, in
parts, from the beginning of the arrival slot to the end of the deadline slot. Arrivals are rounded down and deadlines up, so the result is
an upper bound.
"""

import numpy as np

from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray


def most_in_time(arrival_s: FloatArray, deadline_s: FloatArray, cost_s: FloatArray, width_s: float) -> float:
    """Returns an upper bound of the number of rows that one server can finish by their deadlines.

    Parameters
    ----------
    arrival_s, deadline_s, cost_s : (rows,)
    width_s : length of a time slot; best the interval between batches

    Raises
    ------
    ShapeError
        There are no rows, or the arrays differ in length.
    """
    if not arrival_s.size or not arrival_s.shape == deadline_s.shape == cost_s.shape:
        raise ShapeError(f"{arrival_s.shape} arrivals, {deadline_s.shape} deadlines, {cost_s.shape} costs, expected equal lengths above 0")
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    start_s = float(arrival_s.min())
    slots = int(np.ceil((float(deadline_s.max()) - start_s) / width_s)) + 1
    first: IntArray = np.floor((arrival_s - start_s) / width_s + 1e-9).astype(np.int64)
    last: IntArray = np.minimum(np.ceil((deadline_s - start_s) / width_s - 1e-9).astype(np.int64) - 1, slots - 1)
    groups, count = np.unique(np.stack([first, last, np.unique(cost_s, return_inverse=True)[1]]), axis=1, return_counts=True)
    costs = np.unique(cost_s)[groups[2]]
    # One variable for each group and each slot from its arrival to its deadline: seconds of work.
    length = np.maximum(groups[1] - groups[0] + 1, 0)
    group = np.repeat(np.arange(len(count)), length)
    slot = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length) + groups[0][group]
    ones = np.ones(len(group))
    upper = coo_array(
        (np.concatenate([ones, ones]), (np.concatenate([slot, slots + group]), np.concatenate([np.arange(len(group))] * 2))),
        shape=(slots + len(count), len(group)),
    )
    limits = np.concatenate([np.full(slots, width_s), count * costs])
    found = linprog(-1 / costs[group], A_ub=upper.tocsr(), b_ub=limits, bounds=(0, None), method="highs")
    if found.status != 0:
        raise ShapeError(f"no bound found: {found.message}")
    return float(-found.fun)
