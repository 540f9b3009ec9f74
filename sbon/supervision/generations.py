"""Epochs of operators by generation: a migration raises the epoch of an operator by one, a recovery to the next generation."""

GENERATION = 2**16
"""Epochs of one generation: a migration raises the epoch by one, a recovery to the next multiple."""
GENERATIONS = 2**16
"""Generations of one owner of a query: the next owner begins above them, whatever of them it has heard of."""


def generation(epoch: int) -> int:
    """Returns how often an operator with this epoch has begun anew.

    Examples
    --------
    >>> generation(7), generation(next_generation(7)), next_generation(65_536)
    (0, 1, 131072)
    """
    return epoch // GENERATION


def next_generation(epoch: int) -> int:
    """Returns the first epoch of the next generation."""
    return (generation(epoch) + 1) * GENERATION


def first_epoch(ownership: int) -> int:
    """Returns the epoch above which the generations of an owner of a query begin: no two owners use the same one.

    Examples
    --------
    >>> first_epoch(0), generation(first_epoch(2))
    (0, 131072)
    """
    return ownership * GENERATIONS * GENERATION
