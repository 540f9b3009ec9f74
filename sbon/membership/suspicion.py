"""Lifeguard's two refinements: when a suspect is declared failed, and when an agent doubts itself.

Source: Lifeguard (Dadgar, Phillips, Currey; DSN-W 2018), sections IV-A (local health) and IV-B (dynamic suspicion timeout).
"""

import math

from sbon.types import NodeId


def suspicion_timeout_s(shortest_s: float, longest_s: float, confirmations: int, confirmations_max: int) -> float:
    """Returns the time that a suspect has to object, in seconds from the first suspicion.

    The time starts at `longest_s` and shrinks to `shortest_s` with the logarithm of the independent confirmations. If no member can
    confirm, it is `shortest_s` at once.

    Source
    ------
    Lifeguard, section IV-B: max(min, max - (max - min) log(c + 1) / log(k + 1)).

    Examples
    --------
    >>> [round(suspicion_timeout_s(2.0, 6.0, c, 3), 2) for c in range(4)]
    [6.0, 4.0, 2.83, 2.0]
    """
    if confirmations_max < 1:
        return shortest_s
    share = math.log(confirmations + 1) / math.log(confirmations_max + 1)
    return max(shortest_s, longest_s - (longest_s - shortest_s) * share)


class Suspicion:
    """A suspicion of one incarnation of a member: its beginning and its accusers."""

    def __init__(self, incarnation: int, by: NodeId, now: float, confirmations_max: int) -> None:
        self.incarnation = incarnation
        self.since_s = now
        self.confirmations_max = confirmations_max
        self._accusers = {by}

    def confirm(self, by: NodeId) -> bool:
        """Counts another accuser. Returns False if the accuser is not new, or enough have confirmed already."""
        if by in self._accusers or self.confirmations >= self.confirmations_max:
            return False
        self._accusers.add(by)
        return True

    @property
    def confirmations(self) -> int:
        """Returns the number of accusers after the first."""
        return len(self._accusers) - 1

    def deadline_s(self, shortest_s: float, longest_s: float) -> float:
        """Returns when the suspect is declared failed."""
        return self.since_s + suspicion_timeout_s(shortest_s, longest_s, self.confirmations, self.confirmations_max)


class LocalHealth:
    """Measures how much this agent doubts its own health. With score 0 it does not; it slows down by the factor 1 + `score`."""

    def __init__(self, score_max: int) -> None:
        self.score = 0
        self._score_max = score_max

    def change(self, by: int) -> None:
        """Changes the score: up when we seem to be the slow one, down with each prompt answer."""
        self.score = min(max(self.score + by, 0), self._score_max)

    def limit(self, score_max: int) -> None:
        """Sets another upper bound."""
        self._score_max = score_max
        self.change(0)

    @property
    def factor(self) -> int:
        """Returns the factor for intervals and timeouts."""
        return 1 + self.score
