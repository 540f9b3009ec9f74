"""Epochs of operators by generation: a migration raises the epoch of an operator by one, a recovery to the next generation."""

GENERATION = 2**16
"""Number of epochs in a generation: a migration raises the epoch by one, a recovery to the next multiple."""
GENERATIONS = 2**16
"""Number of generations reserved for each owner of a query. The next owner begins above them, whether or not it has heard of them."""


def generation(epoch: int) -> int:
    """Returns the generation of an epoch: 0 until a recovery makes the operator again.

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
    """Returns the epoch above which the generations of an owner begin. No two owners of a query use the same epochs.

    Parameters
    ----------
    ownership : the owner's ownership epoch

    Examples
    --------
    >>> first_epoch(0), generation(first_epoch(2))
    (0, 131072)
    """
    return ownership * GENERATIONS * GENERATION
