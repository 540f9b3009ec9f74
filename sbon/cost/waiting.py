"""Measures how long work waits for a processor on a node, as a series.

A batch that has arrived does not run at once: the event loop may be busy, another program may have the core, the interpreter's lock may be
held. Cost laws do not include this time, because no operator works in it. Free capacity does not exclude it either: with a core that is
free half of the time, each second batch waits. So it is measured in two places. The event loop reports how late its timers fire. Each task
reports how much longer than its processor time it took, from being handed out until its results were taken. A batch that passes a node
waits for both.
"""

import math
from collections import deque
from itertools import pairwise

import msgspec
import numpy as np

from sbon.cost.figure import Edge
from sbon.digest import LEAST_MS, PER_LOG, Digest
from sbon.errors import ShapeError

LEVELS = (0.5, 0.1, 0.01, 0.001, 0.0001)
"""Shares of waits that are longer than each quantile."""
WAITING_MAX = 65_536
"""Waits that are kept before they are counted, within a second."""
HALF = 30
"""Number of bins after which the current digest replaces the one before it."""
BINS = 60
"""Bins of each of the two series, one in bins of 1 s and one in bins of 10 s."""
WAIT_S_MAX = 60.0
UNKNOWN_WAIT_S = 0.001
"""Expected wait on a node that has not reported its waits; at worst `UNKNOWN_WAIT_S_MAX`."""
UNKNOWN_WAIT_S_MAX = 0.02


class Waits(msgspec.Struct, frozen=True):
    """Waits of batches on a node, in seconds: the last 60 s in bins of 1 s, the time before in bins of 10 s, oldest first.

    Raises
    ------
    ShapeError
        The lengths disagree, there are too many or none, or a wait is negative, absurd or not finite.
    """

    mean_s: tuple[float, ...]
    """Mean lateness of the event loop plus mean wait of a task, of each second."""
    most_s: tuple[float, ...]
    """Longest single wait of either kind, of each second."""
    mean_tens_s: tuple[float, ...] = ()
    most_tens_s: tuple[float, ...] = ()
    quantiles_s: tuple[float, ...] = (0.0,) * len(LEVELS)
    """Quantiles of single waits of the last 30 to 60 s, at `LEVELS`."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.mean_s) == len(self.most_s) <= BINS or not len(self.mean_tens_s) == len(self.most_tens_s) <= BINS:
            raise ShapeError(f"waits of {len(self.mean_s)} and {len(self.most_s)} s, expected as many, 1 to {BINS}")
        if len(self.quantiles_s) != len(LEVELS) or list(self.quantiles_s) != sorted(self.quantiles_s):
            raise ShapeError(f"quantiles {self.quantiles_s}, expected {len(LEVELS)} in order")
        waits = (*self.mean_s, *self.most_s, *self.mean_tens_s, *self.most_tens_s, *self.quantiles_s)
        if not all(0 <= wait_s <= WAIT_S_MAX for wait_s in waits):
            raise ShapeError(f"a wait that is negative, not finite or above {WAIT_S_MAX:g} s")

    def usual_s(self, edge: Edge = Edge.EXPECTED) -> float:
        """Returns the mean wait of a batch: over the last minute as expected; LOW and HIGH are the least and the greatest of any bin."""
        if edge is Edge.EXPECTED:
            return sum(self.mean_s) / len(self.mean_s)
        both = (*self.mean_s, *self.mean_tens_s)
        return min(both) if edge is Edge.LOW else max(both)

    def longest_s(self, edge: Edge = Edge.EXPECTED) -> float:
        """Returns the longest single wait: of the last minute as expected; HIGH is that of all bins, LOW the shortest of any bin."""
        if edge is Edge.EXPECTED:
            return max(self.most_s)
        both = (*self.most_s, *self.most_tens_s)
        return min(both) if edge is Edge.LOW else max(both)

    def exceeded_s(self, share: float) -> float:
        """Returns the wait in s that this share of single waits exceeds, interpolated between levels in the logarithm of the share."""
        if share >= LEVELS[0]:
            return self.quantiles_s[0]
        for (more, shorter_s), (less, longer_s) in pairwise(zip(LEVELS, self.quantiles_s, strict=True)):
            if share >= less:
                return shorter_s + (longer_s - shorter_s) * math.log(more / share) / math.log(more / less)
        return self.quantiles_s[-1]


class WaitRecorder:
    """Records waits as they are measured, and folds them once a second.

    Examples
    --------
    >>> recorder = WaitRecorder()
    >>> for wait_s in (0.001, 0.003):
    ...     recorder.late(wait_s)
    >>> recorder.waited(0.005)
    >>> recorder.fold()
    >>> waits = recorder.waits()
    >>> waits.mean_s, waits.most_s, round(waits.exceeded_s(0.5), 3), waits.exceeded_s(0.1)
    ((0.007,), (0.005,), 0.003, 0.005)
    """

    def __init__(self) -> None:
        self._mean_s: deque[float] = deque(maxlen=BINS)
        self._most_s: deque[float] = deque(maxlen=BINS)
        self._mean_tens_s: deque[float] = deque(maxlen=BINS)
        self._most_tens_s: deque[float] = deque(maxlen=BINS)
        self._old: list[tuple[float, float]] = []
        self._lates, self._late_s = 0, 0.0
        self._tasks, self._task_s = 0, 0.0
        self._waiting: list[float] = []
        self._most = 0.0
        self._bins = 0
        self._before, self._current = Digest(), Digest()

    def late(self, late_s: float) -> None:
        """Takes how late a timer of the event loop has fired; negative numbers are 0."""
        late_s = min(WAIT_S_MAX, max(0.0, late_s))
        self._lates += 1
        self._late_s += late_s
        self._most = max(self._most, late_s)
        self._current.add(late_s * 1e3, 1)

    def waited(self, wait_s: float) -> None:
        """Takes by how much longer a task took than its processor time; negative numbers are 0."""
        self._waiting.append(wait_s)
        if len(self._waiting) >= WAITING_MAX:
            self._count()

    def _count(self) -> None:
        """Counts all collected waits at once, so that a single wait costs the engine only an append to a list."""
        if not self._waiting:
            return
        waits_s = np.clip(np.array(self._waiting), 0.0, WAIT_S_MAX)
        self._waiting.clear()
        most_s = float(waits_s.max())
        self._tasks += len(waits_s)
        self._task_s += float(waits_s.sum())
        self._most = max(self._most, most_s)
        buckets, counts = np.unique(np.floor(np.log(np.maximum(waits_s * 1e3, LEAST_MS)) * PER_LOG), return_counts=True)
        self._current.add_buckets(zip(buckets.astype(int).tolist(), counts.tolist(), strict=True), most_s * 1e3)

    def fold(self) -> None:
        """Ends a bin, once a second. In a second without tasks, a task would have waited as long as the event loop."""
        self._count()
        late_s = self._late_s / self._lates if self._lates else 0.0
        mean_s = late_s + (self._task_s / self._tasks if self._tasks else late_s)
        if len(self._mean_s) == BINS:
            self._old.append((self._mean_s[0], self._most_s[0]))
            if len(self._old) == 10:
                self._mean_tens_s.append(sum(mean for mean, _ in self._old) / 10)
                self._most_tens_s.append(max(most for _, most in self._old))
                self._old.clear()
        self._bins += 1
        if self._bins % HALF == 0:
            self._before, self._current = self._current, Digest()
        self._mean_s.append(min(WAIT_S_MAX, mean_s))
        self._most_s.append(self._most)
        self._lates, self._late_s, self._tasks, self._task_s, self._most = 0, 0.0, 0, 0.0, 0.0

    def waits(self) -> Waits | None:
        """Returns the waits so far, without the current second; None before the first second has ended."""
        if not self._mean_s:
            return None
        recent = Digest()
        for digest in (self._before, self._current):
            recent.add_buckets(digest.buckets, digest.max_ms)
        quantiles = tuple(recent.quantile(1 - share) / 1e3 for share in LEVELS)
        return Waits(tuple(self._mean_s), tuple(self._most_s), tuple(self._mean_tens_s), tuple(self._most_tens_s), quantiles)
