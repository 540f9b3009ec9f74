"""The interface of scheduling policies (latency-constrained analytics, section 4).

A row has a deadline (its stimulus time plus its query's bound) and a cost class, for example one class for rows whose key is in memory and
one for rows whose key is on disk. A row is worth 1 if its work is finished by the deadline and 0 otherwise. A policy is told of rows when
they arrive, and is asked for the next work when the previous work is finished. It may leave rows out; `take_lost` returns them.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray

NOTHING: IntArray = np.zeros(0, dtype=np.int64)


class Policy(Protocol):
    """Chooses rows by deadline and cost. The caller numbers the rows."""

    def release(self, rows: IntArray, deadline_s: FloatArray, cost_class: IntArray, now_s: float) -> None:
        """Adds a batch of rows that have arrived, (n,) each."""

    def next(self, now_s: float) -> IntArray:
        """Returns rows to process now, in order; none if nothing waits."""

    def take_lost(self) -> IntArray:
        """Returns the rows that were left out since the last call."""


class Costs:
    """The processing time of a row of each class, in s; `told` updates it with measurements."""

    def __init__(self, costs_s: Sequence[float]) -> None:
        self.of_class: FloatArray = np.array(costs_s, dtype=np.float64)
        if self.of_class.ndim != 1 or not self.of_class.size or not (self.of_class > 0).all() or not np.isfinite(self.of_class).all():
            raise ShapeError(f"costs {list(costs_s)}, expected a time above 0 for each class")

    def told(self, cost_class: int, took_s: float, rows: int, memory_rows: float = 10_000.0) -> None:
        """Records the time that some rows of a class took; older measurements count less."""
        if rows > 0 and took_s > 0:
            share = min(1.0, rows / memory_rows)
            self.of_class[cost_class] += share * (took_s / rows - self.of_class[cost_class])


class Lost:
    """Rows that were left out."""

    def __init__(self) -> None:
        self._parts: list[IntArray] = []

    def add(self, rows: IntArray) -> None:
        """Adds rows."""
        if rows.size:
            self._parts.append(rows)

    def take(self) -> IntArray:
        """Removes and returns all rows."""
        taken = np.concatenate(self._parts) if self._parts else NOTHING
        self._parts = []
        return taken
