"""The cost law of a batch: a per batch + b per row + c per (row, open window), fitted to measured batches. For a join, c is the cost of a
row out, because its rows meet rows of the other side, not windows.

Rows of a batch beyond each of two knees have a b of their own. The rows of a filter no longer fit the caches of its core there: a row takes
7 ns in a batch of 10,000 rows and 14 ns beyond. A window by key finds its groups already open: a row takes 60 ns in small batches and 25 ns
beyond. Sessions of 10 ms close once in each batch of some thousand rows, and no more often in a larger one.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from sbon.cost.figure import RULE_FACTOR, Edge, Figure, Source, around
from sbon.errors import ShapeError

KNEES = (4_096.0, 16_384.0)
"""Numbers of rows in a batch beyond which further rows have a cost of their own. In a batch of the first size most keys have been met and
sessions have closed once; in one of the second size a few columns of 8 bytes fill the cache of a core."""
CLASSES_MAX = 16
SCATTER_FIRST = 0.3
_ERROR_MAX = 1_000.0
"""Greatest relative error of a prior's coefficient. It says that nothing is known; with a larger one, its covariance loses its rank."""
_ROUNDED = 1e-8
"""Greatest amount by which rounding makes an eigenvalue of a correlation negative; times `_ERROR_MAX` squared, it is far below 1/4."""
LEADING = 2 + len(KNEES)
"""Coefficients before those of the classes: of a batch, of a row with an open window, and of a row beyond each knee."""


class Law(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a batch in reference ns, with its errors. k is the number of classes of rows.

    Raises
    ------
    ShapeError
        The lengths disagree, or a number is negative or not finite.
    """

    coefficients: tuple[float, ...]
    """Cost per batch, per (row, open window), per row beyond each knee, and per row of each class up to the first: (2 + knees + k,)."""
    covariance: tuple[tuple[float, ...], ...]
    """Covariance of the coefficients: a row and a column for each."""
    source: Source
    scatter: float = SCATTER_FIRST
    """Relative deviation of the cost of a single batch."""
    classes: tuple[str, ...] = ("",)
    """Classes of rows that cost different amounts, such as types of events."""
    shares: tuple[float, ...] = (1.0,)
    """Share of all rows that each class has, (k,)."""
    samples: float = 0.0
    """Number of batches that the law rests on, without forgotten ones."""
    age_s: float = 0.0

    def __post_init__(self) -> None:
        size = LEADING + len(self.classes)
        if not 1 <= len(self.classes) <= CLASSES_MAX or len(self.shares) != len(self.classes):
            raise ShapeError(
                f"a law for {len(self.classes)} classes with {len(self.shares)} shares, expected 1 to {CLASSES_MAX}, and a share for each"
            )
        if len(self.coefficients) != size or [len(row) for row in self.covariance] != [size] * size:
            raise ShapeError(f"a law with {len(self.coefficients)} coefficients, expected {size} and their covariance")
        numbers = (*self.coefficients, *self.shares, self.scatter, self.samples, self.age_s, *(self.covariance[i][i] for i in range(size)))
        if not all(0 <= number < math.inf for number in numbers):
            raise ShapeError("a law with a number that is negative or not finite")
        if not all(math.isfinite(number) for row in self.covariance for number in row):
            raise ShapeError("a law with a covariance that is not finite")
        if not sum(self.shares) > 0:
            raise ShapeError("a law whose classes have no rows")

    @property
    def per_batch_ns(self) -> float:
        """Cost of a batch beside its rows."""
        return self.coefficients[0]

    @property
    def per_row_window_ns(self) -> float:
        """Cost of a row for each window that is open for it."""
        return self.coefficients[1]

    @property
    def per_row_ns(self) -> float:
        """Cost of a row up to the first knee, over the mix of classes."""
        return sum(share * cost for share, cost in zip(self.shares, self.coefficients[LEADING:], strict=True)) / sum(self.shares)

    @property
    def per_row_beyond_ns(self) -> tuple[float, ...]:
        """Cost of a row beyond each knee (and up to the next), of any class."""
        return self.coefficients[2:LEADING]

    def cost_ns(self, rows: float, open_windows: float = 0.0, batches: float = 1.0) -> Figure:
        """Returns the expected cost of batches with so many rows in all, and two standard errors of that mean.

        The bounds leave out `scatter`, by which single batches differ.
        """
        total = sum(self.shares)
        return self.cost_of_classes_ns([rows * share / total for share in self.shares], open_windows, batches)

    def cost_of_classes_ns(self, rows: Sequence[float], open_windows: float = 0.0, batches: float = 1.0) -> Figure:
        """Returns the expected cost of batches with so many rows of each class, and two standard errors of that mean.

        Raises
        ------
        ShapeError
            The number of counts is not that of `classes`.
        """
        if len(rows) != len(self.classes):
            raise ShapeError(f"rows of {len(rows)} classes, expected {len(self.classes)}")
        total = sum(rows)
        first, *beyond = between_knees(total, batches)
        below = first / total if total > 0 else 1.0
        inputs = [batches, total * open_windows, *beyond, *(count * below for count in rows)]
        value = sum(map(math.prod, zip(inputs, self.coefficients, strict=True)))
        variance = sum(x * y * entry for x, row in zip(inputs, self.covariance, strict=True) for y, entry in zip(inputs, row, strict=True))
        figure = around(value, math.sqrt(max(0.0, variance)), self.source, samples=self.samples)
        return figure.aged(self.age_s)

    def at(self, edge: Edge, rows: float, open_windows: float = 0.0) -> tuple[float, float]:
        """Returns the costs per batch and per row (open windows and knees included) with which a batch of so many rows costs its value at
        the edge.

        Fixed cost and cost per row err in opposite directions, so both at their bounds would be too much.
        """
        per_batch_ns, per_row_ns, per_window_ns = self.apart(edge, rows, open_windows)
        return per_batch_ns, per_row_ns + open_windows * per_window_ns

    def apart(self, edge: Edge, rows: float, open_windows: float = 0.0) -> tuple[float, float, float]:
        """Returns the costs at the edge per batch, per row, and per (row, open window)."""
        figure = self.cost_ns(rows, open_windows)
        factor = figure.at(edge) / figure.value if figure.value > 0 else 1.0
        costs = (self.per_row_ns, *self.per_row_beyond_ns)
        per_row_ns = sum(map(math.prod, zip(between_knees(rows, 1.0), costs, strict=True))) / rows if rows > 0 else self.per_row_ns
        return self.per_batch_ns * factor, per_row_ns * factor, self.per_row_window_ns * factor


def between_knees(rows: float, batches: float) -> list[float]:
    """Splits the rows of batches of one size into those up to the first knee, from each knee to the next, and beyond the last."""
    edges = (0.0, *(knee * batches for knee in KNEES), math.inf)
    return [max(0.0, min(rows, end) - start) for start, end in pairwise(edges)]


def rule_law(
    per_batch_ns: float = 200_000.0, per_row_ns: float = 100.0, per_row_window_ns: float = 20.0, classes: tuple[str, ...] = ("",)
) -> Law:
    """Returns a law by rule: bounds of a factor of 4 on each coefficient.

    Rows beyond a knee are assumed to cost as much as those before it, within the same bounds, so that small batches inform about large
    ones.
    """
    coefficients = (per_batch_ns, per_row_window_ns, *(per_row_ns for _ in (*KNEES, *classes)))
    # Each coefficient as a sum of independent errors, (coefficients, errors).
    errors = np.eye(len(coefficients))
    errors[2:LEADING, LEADING:] = 1 / len(classes)
    errors[2:LEADING, 2:LEADING] = np.tril(np.ones((len(KNEES), len(KNEES))))
    errors *= (RULE_FACTOR - 1) / 2 * np.array(coefficients)
    covariance = tuple(map(tuple, (errors @ errors.T).tolist()))
    shares = tuple(1 / len(classes) for _ in classes)
    return Law(coefficients=coefficients, covariance=covariance, source=Source.RULE, classes=classes, shares=shares)


def widened(law: Law) -> Law:
    """Returns a law as a prior: each coefficient may be wrong by about half, and by twice its error, at most `_ERROR_MAX` times itself.
    Coefficients near 0 are raised, to 100 ns per batch and 0.1 ns per row.

    Any law may be widened, also a peer's: the covariance of the result has full rank. If that of the law is none, its errors count as
    independent.
    """
    coefficients = tuple(
        max(value, least) for value, least in zip(law.coefficients, (100.0, *(0.1 for _ in law.coefficients[1:])), strict=True)
    )
    scale, known = np.array(coefficients), np.array(law.covariance)
    deviations = np.sqrt(known.diagonal())
    there = np.where(deviations > 0, deviations, 1.0)
    with np.errstate(over="ignore"):
        correlation = (known + known.T) / 2 / there[:, None] / there
    if not np.isfinite(correlation).all() or np.linalg.eigvalsh(correlation).min() < -_ROUNDED:
        correlation = np.diag((deviations > 0).astype(float))
    errors = np.minimum(2 * deviations / scale, _ERROR_MAX)
    covariance = (correlation * np.outer(errors, errors) + np.eye(len(scale)) / 4) * np.outer(scale, scale)
    found = tuple(map(tuple, covariance.tolist()))
    return msgspec.structs.replace(law, coefficients=coefficients, covariance=found, scatter=max(law.scatter, SCATTER_FIRST))
