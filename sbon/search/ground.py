"""The interface of configurations to relief (`sbon.search.relief`)."""

from typing import Protocol

from sbon.search.interface import Budget, Record
from sbon.search.rates import Taken

STEPS = 60
"""Most moves for one multiple."""
MEMORY = 10
"""Number of last moves that are not undone."""
NOISE = 0.08
"""Share of moves that are drawn at random."""
LIGHTER = 1e-3
"""Weight of work within limits, relative to work beyond them."""


class Ground(Protocol):
    """A configuration on which moves are made at one multiple of the profile."""

    def quality(self) -> float:
        """Returns the multiple of the profile that the configuration carries."""

    def begin(self, x: float) -> None:
        """Sets the multiple of the profile."""

    def shake(self, count: int) -> None:
        """Makes some random swaps."""

    def lighten(self, budget: Budget) -> None:
        """Makes swaps as long as one lowers the total work of all operators."""

    def clear(self, budget: Budget) -> bool:
        """Makes moves until no limit is exceeded; returns whether that succeeded."""

    def offer(self, record: Record[Taken]) -> bool:
        """Keeps the configuration if it is better than all before; returns whether it is."""

    def back(self) -> None:
        """Goes back to the best configuration."""
