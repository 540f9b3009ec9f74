"""Random numbers for searches that draw many, one at a time."""

import numpy as np


class Draws:
    """Random numbers between 0 and 1, drawn from the generator many at a time."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._left = rng, list[float]()

    def one(self) -> float:
        """Returns the next number."""
        if not self._left:
            self._left = self._rng.random(512).tolist()
        return self._left.pop()

    def below(self, count: int) -> int:
        """Returns a whole number of 0 to count - 1."""
        return int(self.one() * count)
