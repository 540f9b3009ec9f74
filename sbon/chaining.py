"""Decides which operators of a host share a thread as one task, and where such a chain is cut in two.

The engine uses it for each task (`sbon.execution.chains`), and the model of highest rates for a placement (`sbon.cost.chains`).
"""

from collections.abc import Sequence

PART_S_MIN = 0.0004
"""When a chain is split between two threads, each part must take at least this long for a batch, in seconds: several times the cost of a
hand-over between threads."""
PART_SHARE_MIN = 0.15
"""When a chain is split, each part must take at least this share of the whole chain's time, because the second thread gains at most the
time of the shorter part."""


def passes_on(outputs: int, *, is_part: bool) -> bool:
    """Tells whether an operator passes its whole batches to a single consumer: only then can the consumer be in the same task.

    Parameters
    ----------
    outputs : links out of the operator
    is_part : whether the link carries only the rows of some keys
    """
    return outputs == 1 and not is_part


def first_part(costs_s: Sequence[float]) -> int:
    """Returns how many stages of a chain one thread should run. Another thread runs the rest while the first works on the next batch.

    Both parts must take long compared with a hand-over. Chooses the split whose longer part is shortest; returns the number of all stages
    if no split is possible.

    Parameters
    ----------
    costs_s : recent cost of a batch at each stage

    Examples
    --------
    >>> first_part([0.002, 0.001, 0.002]), first_part([0.004, 0.0002]), first_part([0.0003, 0.0003])
    (1, 2, 2)
    """
    whole_s = sum(costs_s)
    least_s = max(PART_S_MIN, PART_SHARE_MIN * whole_s)
    best, best_s, before_s = len(costs_s), whole_s, 0.0
    for count, cost_s in enumerate(costs_s[:-1], 1):
        before_s += cost_s
        shorter_s, longer_s = sorted((before_s, whole_s - before_s))
        if shorter_s >= least_s and longer_s < best_s:
            best, best_s = count, longer_s
    return best


def parts(costs_s: Sequence[float]) -> list[int]:
    """Returns the number of stages of each part of a chain if there are threads for all parts: parts are cut repeatedly.

    Examples
    --------
    >>> parts([0.002, 0.001, 0.002]), parts([0.004, 0.0002]), parts([])
    ([1, 1, 1], [2], [])
    """
    found, left = list[int](), list(costs_s)
    while left:
        count = first_part(left)
        if count < len(left):  # the first part is now a separate task, which may be cut like the rest
            found += parts(left[:count])
            left = left[count:]
        else:
            found.append(count)
            left = []
    return found
