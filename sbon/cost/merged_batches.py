"""Estimates how many batches operators process in a burst: those that wait are processed together, and those without rows not at all.

A batch costs something beside its rows. At their usual pace, sources give a batch every few ms, and each operator behind them gets as many.
But an operator that is behind takes all batches that wait, up to a quantum of work or `SLICE_ROWS` rows, and pays once. If a node is
behind by d seconds and b batches a second come to an operator, 1 + d b of them wait when it takes the next ones. So work per row falls
while a node is behind, and a query whose small batches alone would overload its node does not fall behind for ever. Filters leave some
batches without a row, and these are not processed.
"""

import numpy as np

from sbon.types import FloatArray

SLICE_ROWS = 64.0
"""Rows that an operator takes at once at least, if so many wait (`sbon.engine.execution.SLICE_ROWS_MIN`)."""
NEWTON = 8
"""Most steps that find the backlog of an interval."""
CLOSE_S = 1e-6
"""Accuracy of the backlog."""


def shares_of_batches(
    rows: FloatArray,
    batches: FloatArray,
    fixed: FloatArray,
    of_rows: FloatArray,
    capacity: FloatArray,
    width_s: float,
    most: FloatArray,
    *,
    is_bound: bool = False,
) -> FloatArray:
    """Returns the share of the batches into each operator of a node that are processed one by one: (operators, intervals).

    Parameters
    ----------
    rows, batches : (operators, intervals), into each operator
    fixed : (operators, intervals), work of batches beside their rows, if each is processed
    of_rows : (operators, intervals), work of rows
    capacity : (intervals,), work that the node can do
    width_s : width of an interval
    most : (operators,), rows that are taken at once
    is_bound : True: no greater share is possible with this work of rows and batches. A backlog within an interval tends to the one that
        neither grows nor shrinks; so its lesser end is that at the start if it grows, else that at the end. False: in the middle

    Examples
    --------
    A batch of one row comes every 10 ms and takes 9 ms, and its row takes 4 ms: 1.3 s a second. Two thirds of the batches fill the node.

    >>> one = np.full((1, 8), 0.25)
    >>> shares = shares_of_batches(100 * one, 100 * one, 0.9 * one, 0.4 * one, one[0], 0.25, np.array([64.0]))
    >>> shares[0, [0, 7]].round(2).tolist()
    [0.7, 0.66]
    """
    filled = np.minimum(1.0, np.divide(rows, batches, out=np.ones_like(rows), where=batches > 0))
    fixed, batches = fixed * filled, batches * filled
    least = np.minimum(1.0, np.divide(rows, batches, out=np.ones_like(rows), where=batches > 0) / np.maximum(1.0, most)[:, None])
    # Plain numbers: an interval has a few operators only.
    needed, whole, can_do = of_rows.sum(axis=0).tolist(), (of_rows + fixed).sum(axis=0).tolist(), capacity.tolist()
    of_interval = np.stack([batches / width_s, fixed, least]).transpose(2, 1, 0).tolist()
    found = np.ones_like(rows)
    behind_s = 0.0
    for interval, can in enumerate(can_do):
        if can <= 0 or (behind_s <= 0 and whole[interval] <= can):
            continue
        operators = of_interval[interval]
        fewest = needed[interval] + sum(work * few for _, work, few in operators)
        # The backlog in the middle of the interval is behind + (load / capacity - 1) width / 2, and the load falls with it. Newton's steps
        # from below stay below, because the load is convex.
        half_s, load = width_s if is_bound else width_s / 2, fewest
        middle_s = max(0.0, behind_s + (fewest / can - 1) * half_s)
        for _ in range(NEWTON):
            load, slope = needed[interval], 1.0
            for per_s, work, few in operators:
                alone = 1 / (1 + middle_s * per_s)
                load += work * max(few, alone)
                if alone > few:
                    slope += alone * alone * per_s * work / can * half_s
            step_s = (behind_s + (load / can - 1) * half_s - middle_s) / slope
            middle_s = max(0.0, middle_s + step_s)
            if abs(step_s) < CLOSE_S:
                break
        if is_bound and middle_s > behind_s:
            middle_s = behind_s
            load = needed[interval] + sum(work * max(few, 1 / (1 + middle_s * per_s)) for per_s, work, few in operators)
        found[:, interval] = [max(few, 1 / (1 + middle_s * per_s)) for per_s, _, few in operators]
        behind_s = max(0.0, behind_s + (load / can - 1) * width_s)
    return found * filled


def wait_for_later_rows_s(rows: FloatArray, width_s: float, behind_s: FloatArray, most: float, most_s: float) -> FloatArray:
    """Returns the time by which the last row of a batch is later than a row in it, as expected: (intervals + 1,), for a row at each end.

    A row is answered with the last row of its batch. Where a node is behind by more than the work of a full batch, batches are full, and a
    row is in the middle of one on average. Smaller batches make rows late by less than they take.

    Parameters
    ----------
    rows : (intervals,), rows of all sources
    behind_s : (intervals + 1,), backlog at each end
    most : rows of a full batch
    most_s : work of a full batch

    Examples
    --------
    100 rows a second, of which 50 are taken at once: a row in the middle waits for those of the next 0.25 s, if so many wait.

    >>> wait_for_later_rows_s(np.full(4, 100.0), 1.0, np.array([0.0, 0.9, 3.0, 3.0, 3.0]), 50.0, 0.7).round(3).tolist()
    [0.0, 0.1, 0.25, 0.25, 0.0]
    """
    ends_s = width_s * np.arange(len(rows) + 1)
    until = np.concatenate([[0.0], np.cumsum(rows)]) + 1e-9 * np.arange(len(rows) + 1)  # increasing, for the inverse
    last_s = np.interp(until + most / 2, until, ends_s)
    found: FloatArray = np.minimum(last_s - ends_s, np.maximum(0.0, behind_s - most_s) / 2)
    return found
