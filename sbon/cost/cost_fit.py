"""The law of an operator's costs, fitted while its batches are measured.

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

from sbon.cost.figure import RULE_FACTOR, Source
from sbon.cost.law import KNEES, LEADING, SCATTER_FIRST, Law, rule_law
from sbon.cost.least_squares import least_squares_from_zero
from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray

MEMORY_BATCHES = 2048.0
"""Batches after which the weight of one has fallen to 1 / e."""
BLOCK = 64
"""Number of batches folded into the fit at once, so that recording a single batch costs the engine only an append to a list."""
BLOCK_LATER = 256
"""Number of batches folded at once after the first `LATER` batches: a fold of more batches costs as much."""
LATER = 1024
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
_SCATTER_MIN = 0.01
_OFF = 2.0
_CAP = 300.0
"""Relative excess at which the cost of a batch is cut off after the first block, so that a storm of page faults does not spoil the law."""


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
        self._variance = SCATTER_FIRST**2
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
        inputs = np.empty((count, LEADING + classes))
        inputs[:, 0] = 1.0
        inputs[:, 1] = met = np.array([row_windows for _, _, row_windows, _ in waiting])
        inputs[:, LEADING:] = [(rows, *(0.0,) * (classes - 1)) if of_class is None else of_class for rows, _, _, of_class in waiting]
        rows = inputs[:, LEADING:].sum(1)
        for column, (start, end) in enumerate(pairwise((*KNEES, math.inf)), 2):
            inputs[:, column] = np.minimum(np.maximum(rows, start), end) - start
        rows_of_classes = inputs[:, LEADING:].sum(0)
        inputs[:, LEADING:] *= (np.minimum(rows, KNEES[0]) / np.maximum(rows, 1.0))[:, None]
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
