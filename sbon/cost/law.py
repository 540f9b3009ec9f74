"""The cost law of a batch: a per batch + b per row + c per (row, open window), fitted to measured batches. For a join, c is the cost of a
row out, because its rows meet rows of the other side, not windows.

Rows of a batch beyond each of two knees have a b of their own. The rows of a filter no longer fit the caches of its core there: a row takes
7 ns in a batch of 10,000 rows and 14 ns beyond. A window by key finds its groups already open: a row takes 60 ns in small batches and 25 ns
beyond. Sessions of 10 ms close once in each batch of some thousand rows, and no more often in a larger one.

`sbon.batching.Cost` answers how large the next batch should be, and forgets within eight batches. A prediction needs a law over all
sizes with its error, so it is fitted here, over hundreds of batches:

- Errors count relative to the cost, as the scatter of a batch's cost grows with it: a batch of 100 rows tells as much as one of
  65,536.
- A coefficient is never below 0.
- Many operators gather rows and work on them once in a while, so that one batch pays for hundreds. Batches of similar size are therefore
  summed, which preserves the law, and no batch is cut off below 300 times its expected cost.
- The prior is a rule of thumb with a wide covariance. It decides where batches cannot (if all have one size: fixed cost or cost per row?).
- No law is exact: batches of one size, however many, do not make it hold for all sizes. So each size is weighted by the error of its mean
  and the error of the law itself (`MISFIT`).

Model: y = x theta (1 + e), where e has mean 0 and a variance v that depends on the size of a batch (by octave o, of n_o batches). theta
minimises sum_i w_i ((y_i - x_i theta) / (x_i theta'))^2 / (v_o + n_o MISFIT^2) + (theta - theta_0)^T C_0^-1 (theta - theta_0) for
theta >= 0, where theta' is the last estimate, w_i falls with age and (theta_0, C_0) is the prior; the first sum is scaled to its weight
without MISFIT. The covariance is the inverse of the weight of both sums.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from sbon.cost.figure import RULE_FACTOR, Edge, Figure, Source, around
from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray

MEMORY_BATCHES = 2048.0
"""Batches after which the weight of one has fallen to 1 / e."""
KNEES = (4_096.0, 16_384.0)
"""Numbers of rows in a batch beyond which further rows have a cost of their own. In a batch of the first size most keys have been met and
sessions have closed once; in one of the second size a few columns of 8 bytes fill the cache of a core."""
BLOCK = 64
"""Number of batches folded into the fit at once, so that recording a single batch costs the engine only an append to a list."""
BLOCK_LATER = 256
"""Number of batches folded at once after the first `LATER` batches: a fold of more batches costs as much."""
LATER = 1024
CLASSES_MAX = 16
LEAST_NS = 50.0
"""Least cost of a batch relative to which errors count: clocks show 0 for short times."""
LEAST_SHARE = 0.01
"""Share of the mean cost below which errors count relative to it, not to the cost of their batch."""
MISFIT = 0.05
"""Relative deviation of the law itself from the mean cost of batches of a size."""
OCTAVES = 48
"""Sizes of batches that differ by a factor of two."""
PARTS = 4
"""Parts of an octave: batches within one of them are of about one size."""
_UNSEEN = 8.0
"""Weight, in batches, of the scatter of all sizes in the scatter of one size."""
_SCATTER_FIRST = 0.3
_SCATTER_MIN = 0.01
_OFF = 2.0
_CAP = 300.0
"""Relative excess at which the cost of a batch is cut off after the first block, so that a storm of page faults does not spoil the law."""
_ERROR_MAX = 1_000.0
"""Greatest relative error of a prior's coefficient. It says that nothing is known; with a larger one, its covariance loses its rank."""
_ROUNDED = 1e-8
"""Greatest amount by which rounding makes an eigenvalue of a correlation negative; times `_ERROR_MAX` squared, it is far below 1/4."""
_LEADING = 2 + len(KNEES)
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
    scatter: float = _SCATTER_FIRST
    """Relative deviation of the cost of a single batch."""
    classes: tuple[str, ...] = ("",)
    """Classes of rows that cost different amounts, such as types of events."""
    shares: tuple[float, ...] = (1.0,)
    """Share of all rows that each class has, (k,)."""
    samples: float = 0.0
    """Number of batches that the law rests on, without forgotten ones."""
    age_s: float = 0.0

    def __post_init__(self) -> None:
        size = _LEADING + len(self.classes)
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
        return sum(share * cost for share, cost in zip(self.shares, self.coefficients[_LEADING:], strict=True)) / sum(self.shares)

    @property
    def per_row_beyond_ns(self) -> tuple[float, ...]:
        """Cost of a row beyond each knee (and up to the next), of any class."""
        return self.coefficients[2:_LEADING]

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


def _octave(sizes: FloatArray) -> IntArray:
    """Returns the octave of each size; those below 1 are in the first."""
    found: IntArray = np.minimum(np.frexp(np.maximum(sizes, 1.0))[1], OCTAVES - 1).astype(np.int64)
    return found


def _part(sizes: FloatArray) -> IntArray:
    """Returns the part of its octave that each size is in."""
    found: IntArray = (PARTS * (np.log2(np.maximum(sizes, 1.0)) % 1.0)).astype(np.int64)
    return found


def _add(to: FloatArray, places: IntArray, values: FloatArray) -> None:
    """Adds each value to its place, in order: quicker for a few dozen than `np.add.at`."""
    for place, value in zip(places.tolist(), values, strict=True):
        to[place] += value


def _weighted(weights: FloatArray, values: FloatArray) -> FloatArray:
    """Returns the sum of the weighted values: (n,), (n, ...) -> (...,)."""
    found: FloatArray = np.dot(weights[None, :], values.reshape(len(weights), -1)).reshape(values.shape[1:])
    return found


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
    errors[2:_LEADING, _LEADING:] = 1 / len(classes)
    errors[2:_LEADING, 2:_LEADING] = np.tril(np.ones((len(KNEES), len(KNEES))))
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
    return msgspec.structs.replace(law, coefficients=coefficients, covariance=found, scatter=max(law.scatter, _SCATTER_FIRST))


class CostFit:
    """Fits a law while batches are measured.

    Parameters
    ----------
    prior : law before the first batch; its coefficients are above 0
    speed : reference ns per ns of this machine; measured times are multiplied by it
    source : measured, or sampled where rows were sent only to measure
    memory : batches after which the weight of one has fallen to 1 / e

    Raises
    ------
    ShapeError
        A coefficient of the prior is 0, which no batch could correct, or has no error.

    Examples
    --------
    >>> fit = CostFit()
    >>> for rows in (100, 1_000, 10_000) * 30:
    ...     fit.took(rows, 50_000 + 20 * rows, at_s=1.0)
    >>> law = fit.law(now=1.0)
    >>> round(law.per_batch_ns), round(law.per_row_ns), law.samples
    (50000, 20, 89.0)
    """

    def __init__(
        self, prior: Law | None = None, *, speed: float = 1.0, source: Source = Source.MEASURED, memory: float = MEMORY_BATCHES
    ) -> None:
        self.prior = prior if prior is not None else rule_law()
        if not all(value > 0 for value in self.prior.coefficients):
            raise ShapeError(f"a prior of {self.prior.coefficients}, expected costs above 0")
        self._speed, self._source, self._kept = speed, source, math.exp(-1 / memory)
        self._waiting: list[tuple[float, float, float, Sequence[float] | None]] = []
        self._first: list[tuple[float, float, float, Sequence[float] | None]] | None = []
        """The first batches, until there are `BLOCK`: a few of them say too little about the scale of the prior. None then."""
        self._block = BLOCK
        self._latest_s = -math.inf
        self._known: Law | None = None
        """The law as `law` returned it last; None after a fold."""
        self._begin()

    def _begin(self) -> None:
        """Forgets all batches."""
        self._scale = np.array(self.prior.coefficients)
        # Coefficients are kept as multiples of the prior's, so that all are of the same order.
        covariance = np.array(self.prior.covariance) / np.outer(self._scale, self._scale)
        if not np.linalg.matrix_rank(covariance) == len(covariance):
            raise ShapeError("a prior without error, expected a covariance of full rank")
        self._belief = np.linalg.inv(covariance)
        size = len(covariance)
        self._squares, self._products = np.zeros((OCTAVES, size, size)), np.zeros((OCTAVES, size))
        self._counts, self._errors = np.zeros(OCTAVES), np.zeros(OCTAVES)
        """Batches of each octave, and the sum of their squared relative errors."""
        self._theta = np.ones(len(covariance))
        self._variance = _SCATTER_FIRST**2
        self._rows = np.zeros(len(self.prior.classes))
        self._samples = 0.0

    def took(self, rows: float, ns: float, *, at_s: float, open_windows: float = 0.0, by_class: Sequence[float] | None = None) -> None:
        """Records the processor time of a batch.

        Parameters
        ----------
        rows : of all classes
        ns : of this machine
        open_windows : per row, as a mean
        by_class : rows of each class; None: all of the first
        """
        self._latest_s = at_s
        self._waiting.append((rows, ns, rows * open_windows, by_class))
        if len(self._waiting) >= self._block:
            self._fold()

    @property
    def samples(self) -> float:
        """Number of batches that the law rests on, without forgotten ones."""
        self._fold()
        return self._samples

    def law(self, now: float) -> Law:
        """Returns the law so far; the prior before the first batch."""
        self._fold()
        if not self._samples:
            return self.prior
        age_s = max(0.0, now - self._latest_s)
        if self._known is not None:
            return msgspec.structs.replace(self._known, age_s=age_s)
        theta = self._theta * self._scale
        squares = _weighted(self._trust(self._counts), self._squares)
        covariance = np.linalg.inv(squares + self._believed(squares)) * np.outer(self._scale, self._scale)
        self._known = Law(
            coefficients=tuple(theta.tolist()),
            covariance=tuple(map(tuple, covariance.tolist())),
            source=self._source,
            scatter=math.sqrt(self._variance),
            classes=self.prior.classes,
            shares=tuple((self._rows / self._rows.sum()).tolist()) if self._rows.sum() > 0 else self.prior.shares,
            samples=round(self._samples, 0),
            age_s=age_s,
        )
        return self._known

    def _fold(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._known = self._waiting, [], None
        if self._first is not None:
            waiting = [*self._first, *waiting]
            self._first = waiting if len(waiting) < BLOCK else None
            self._begin()
        count, classes = len(waiting), len(self.prior.classes)
        inputs = np.empty((count, _LEADING + classes))
        inputs[:, 0] = 1.0
        inputs[:, 1] = met = np.array([row_windows for _, _, row_windows, _ in waiting])
        inputs[:, _LEADING:] = [(rows, *(0.0,) * (classes - 1)) if of_class is None else of_class for rows, _, _, of_class in waiting]
        rows = inputs[:, _LEADING:].sum(1)
        for column, (start, end) in enumerate(pairwise((*KNEES, math.inf)), 2):
            inputs[:, column] = np.minimum(np.maximum(rows, start), end) - start
        rows_of_classes = inputs[:, _LEADING:].sum(0)
        inputs[:, _LEADING:] *= (np.minimum(rows, KNEES[0]) / np.maximum(rows, 1.0))[:, None]
        costs = np.array([ns for _, ns, _, _ in waiting]) * self._speed
        if not self._samples:
            self._rescale(inputs, costs)
        before = self._kept**count
        self._rows = self._rows * before + rows_of_classes
        inputs *= self._scale
        expected = np.maximum(inputs @ self._theta, LEAST_NS)
        if self._samples >= BLOCK:
            costs = np.minimum(costs, expected * (1 + _CAP))
        # Batches of about one size whose rows meet about as many windows count with their sums. With several classes of rows they do not,
        # because sums would hide how the classes differ. Sums of sizes a factor of 2 apart that come in a short cycle would hide it, too.
        octave, alike = _octave(rows), _octave(met)
        kinds, place = np.unique((PARTS * octave + _part(rows)) * OCTAVES + alike, return_inverse=True)
        octaves = kinds // (PARTS * OCTAVES)
        if classes > 1:
            octaves, place = octave, np.arange(count)
        sizes = np.bincount(place).astype(np.float64)
        sums, total = np.zeros((len(sizes), inputs.shape[1])), np.bincount(place, costs)
        _add(sums, place, inputs)
        squares, products = self._squares * before, self._products * before
        self._errors *= before
        counts = self._counts * before + np.bincount(octave, minlength=OCTAVES)
        trust = self._trust(counts)
        samples = self._samples * before + count
        share = count / samples
        # The first block corrects the prior, whose weights may be far off. Later blocks are weighed by the costs expected before them: a
        # weight that falls with a batch's own cost would make the law too cheap.
        for _ in range(1 if self._samples >= BLOCK else 8):
            former = self._theta
            weights = sizes / np.maximum(sums @ self._theta, LEAST_NS * sizes) ** 2
            new_squares, new_products = squares.copy(), products.copy()
            _add(new_squares, octaves, sums[:, :, None] * (sums * weights[:, None])[:, None, :])
            _add(new_products, octaves, sums * (weights * total)[:, None])
            trusted = _weighted(trust, new_squares)
            belief = self._believed(trusted)
            self._theta = least_squares_from_zero(trusted + belief, trust @ new_products + belief.sum(1))
            expected = np.maximum(inputs @ self._theta, LEAST_NS)
            errors = ((costs - expected) / expected) ** 2
            if np.array_equal(self._theta, former):  # further rounds would change nothing
                break
        # What is small beside the mean batch, such as batches without a row, says nothing about the scatter of those that count.
        errors = ((costs - expected) / np.maximum(expected, LEAST_SHARE * float(costs.mean()))) ** 2
        error = float(errors.mean())
        latest = error * count / max(1, count - len(self._theta)) if samples <= count else error
        self._variance = max(_SCATTER_MIN**2, (1 - share) * self._variance + share * latest)
        self._squares, self._products, self._samples, self._counts = new_squares, new_products, samples, counts
        self._errors += np.bincount(octave, errors, OCTAVES)
        self._block = BLOCK if samples < LATER else BLOCK_LATER

    def _trust(self, counts: FloatArray) -> FloatArray:
        """Returns the weight of the squares of each octave: 1 / (variance of its batches + their number x `MISFIT`^2).

        The weights are scaled so that all octaves together weigh as much as without `MISFIT`, which balances sizes and must not favour the
        prior.
        """
        variances = (self._errors + _UNSEEN * self._variance) / (np.minimum(self._counts, counts) + _UNSEEN)
        variances = np.maximum(_SCATTER_MIN**2, variances)
        weight: FloatArray = 1 / (variances + counts * MISFIT**2)
        return weight * float((counts / variances).sum() / (counts * weight).sum())

    def _believed(self, squares: FloatArray) -> FloatArray:
        """Returns the weight of the prior beside that of the batches.

        A prior that is far off makes the scatter huge and thereby the weight of the batches small; its own weight falls as well. A small
        share of the batches' weight keeps the sum from being singular where they are many and all alike.
        """
        trace = 1e-10 * float(np.trace(squares))
        weight: FloatArray = min(1.0, 1.0 / self._variance) * self._belief + trace * np.eye(len(squares))
        return weight

    def _rescale(self, inputs: FloatArray, costs: FloatArray) -> None:
        """Scales the prior to the cost of the first batches if it is off by more than a factor of 2.

        The rule knows the ratio of fixed costs to costs per row, but not how expensive an operator is.
        """
        factor = float(costs.sum() / (inputs @ self._scale).sum())
        if factor <= 0 or 1 / _OFF <= factor <= _OFF:
            return
        scale = np.full(len(self._scale), factor)
        if self.prior.source is Source.RULE and len(costs) > 1:
            self._doubt_ratio(inputs, costs, scale)
        self._scale = self._scale * scale

    def _doubt_ratio(self, inputs: FloatArray, costs: FloatArray, scale: FloatArray) -> None:
        """Corrects the factors by which the rule is scaled, and its errors, for operators that are expensive row by row.

        The rule knows no operator whose batches cost more than `RULE_FACTOR` times its fixed cost whatever their rows, as a user's function
        does that takes a millisecond for each row. Beyond that, the cost counts as that of rows; but all of it may be fixed, as for a
        function that calls a model once a batch. What is beyond `_OFF` times the rule may be of rows. The costliest batch is left out: the
        first one loads code.
        """
        usual = np.arange(len(costs)) != int(costs.argmax())
        by_rule = inputs[usual] @ self._scale
        fixed, cost = float((inputs[usual, 0] * self._scale[0]).sum()), float(costs[usual].sum())
        factor, of_rows = cost / float(by_rule.sum()), float(by_rule.sum()) - fixed
        if factor <= _OFF or of_rows <= 0:
            return
        scale[:] = factor
        covariance = np.linalg.inv(self._belief)
        if factor > RULE_FACTOR:
            scale[0], scale[1:] = RULE_FACTOR, (cost - RULE_FACTOR * fixed) / of_rows
            covariance[0, 0] *= (factor / RULE_FACTOR) ** 2
        may_be = (cost - _OFF * float(by_rule.sum())) / (of_rows * float(scale[-1]))
        covariance[2:, 2:] += may_be**2
        self._belief = np.linalg.inv(covariance)


def least_squares_from_zero(matrix: FloatArray, vector: FloatArray) -> FloatArray:
    """Returns the x >= 0 that minimises x^T `matrix` x - 2 `vector`^T x, for a positive definite matrix: (n, n), (n,) -> (n,).

    Source
    ------
    Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23; on normal equations as Bro and de Jong (1997).

    Examples
    --------
    >>> least_squares_from_zero(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([2.0, -1.0])).tolist()
    [1.0, 0.0]
    """
    size = len(vector)
    found: FloatArray = np.asarray(np.linalg.solve(matrix, vector), dtype=np.float64)
    if found.min() >= 0:
        return found
    found, tried = np.zeros(size), np.zeros(size)
    free = np.zeros(size, dtype=bool)
    tolerance = 1e-12 * float(np.abs(vector).max())
    for _ in range(8 * size):
        gradient = np.where(free, -math.inf, vector - matrix @ found)
        best = int(gradient.argmax())
        if gradient[best] <= tolerance:
            break
        free[best] = True
        while True:
            tried = np.zeros(size)
            tried[free] = np.linalg.solve(matrix[np.ix_(free, free)], vector[free])
            negative = free & (tried <= 0)
            if not negative.any():
                break
            step = float((found[negative] / (found[negative] - tried[negative])).min())
            found += step * (tried - found)
            free &= found > 1e-15
            found[~free] = 0.0
        found = tried
    return found
