"""Parts of a latency: their shapes, means and variances; quantiles of their sum, and the greatest of several sums.

All are arrays over the same settings.

Source: Latency-constrained analytics (Li, Diao, Shenoy, VLDB 2015), sections 3.3 and 3.4.
"""

import math
from collections.abc import Sequence
from enum import Enum
from statistics import NormalDist

import msgspec
import numpy as np

from sbon.errors import ShapeError
from sbon.types import FloatArray


class Kind(Enum):
    """Shape of a part of the latency."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    WAIT = "wait"
    """At times 0, otherwise with an exponential tail; or of a gamma distribution where it scatters less."""
    NORMAL = "normal"


class Part(msgspec.Struct, frozen=True):
    """One summand of the latency, for all settings."""

    phase: int
    """From 1."""
    kind: Kind
    mean_s: FloatArray
    variance: FloatArray

    @property
    def cumulants(self) -> FloatArray:
        """Returns the first four cumulants, (4, ...)."""
        nothing = np.zeros_like(self.mean_s)
        if self.kind is Kind.FIXED:
            return np.stack([self.mean_s, nothing, nothing, nothing])
        if self.kind is Kind.NORMAL:
            return np.stack([self.mean_s, self.variance, nothing, nothing])
        if self.kind is Kind.UNIFORM:
            return np.stack([self.mean_s, self.variance, nothing, -1.2 * self.variance**2])
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(self.mean_s > 0, self.variance / self.mean_s, 0.0)
        return np.stack([self.mean_s, self.variance, 2 * self.variance * scale, 6 * self.variance * scale**2])


class StageLatency(msgspec.Struct, frozen=True):
    """Latency of rows, or of windows, for each setting; infinite where queues grow without end."""

    parts: tuple[Part, ...]
    """Parts of the latency of rows of an update instance with an average share of them, or of windows."""
    cumulants: FloatArray
    """Cumulants of the latency over all rows, (4, ...)."""
    phase_means_s: FloatArray
    """(12, ...)"""
    uses: FloatArray
    """Use of a node's cores, of a map's thread, of a network interface and of the hottest update's thread, 1: fully used; (4, ...)."""
    senders: FloatArray
    """Map instances of all nodes."""

    @property
    def load(self) -> FloatArray:
        """Greatest of the uses."""
        found: FloatArray = self.uses.max(axis=0)
        return found

    @property
    def mean_s(self) -> FloatArray:
        """Mean latency."""
        found: FloatArray = self.cumulants[0]
        return found

    @property
    def deviation_s(self) -> FloatArray:
        """Standard deviation."""
        found: FloatArray = np.sqrt(np.maximum(self.cumulants[1], 0.0))
        return found

    def quantile_s(self, share: float) -> FloatArray:
        """Returns the quantile by the Cornish-Fisher expansion of four cumulants, limited to the maximum of the uniform parts plus the
        quantile of the rest.

        Raises
        ------
        ShapeError
            `share` is not between 0 and 1.
        """
        return _quantile(self.cumulants, self.parts, _share(share))

    def normal_quantile_s(self, share: float) -> FloatArray:
        """Returns the quantile as if the latency were normal (section 3.4)."""
        return self.mean_s + self.deviation_s * NormalDist().inv_cdf(_share(share))

    def cantelli_quantile_s(self, share: float) -> FloatArray:
        """Returns a bound of the quantile for any distribution with this mean and deviation (equation 4)."""
        return self.mean_s + self.deviation_s * math.sqrt(_share(share) / (1 - share))


def _share(share: float) -> float:
    if not 0 < share < 1:
        raise ShapeError(f"quantile {share}, expected a share between 0 and 1")
    return share


def cornish_fisher(cumulants: FloatArray, share: float | FloatArray) -> FloatArray:
    """Returns quantiles from four cumulants, (4, ...); infinite where the mean is.

    Source
    ------
    Cornish and Fisher, Moments and cumulants in the specification of distributions (1937).
    """
    mean, variance, third, fourth = cumulants
    deviation = np.sqrt(np.maximum(variance, 1e-30))
    with np.errstate(invalid="ignore", over="ignore"):
        skewness, excess = third / deviation**3, fourth / deviation**4
        z = _normal_inverse(share)
        bent = z + (z**2 - 1) * skewness / 6 + (z**3 - 3 * z) * excess / 24 - (2 * z**3 - 5 * z) * skewness**2 / 36
        found: FloatArray = np.where(np.isfinite(mean), mean + deviation * bent, np.inf)
    return found


def _quantile(cumulants: FloatArray, parts: Sequence[Part], share: float | FloatArray) -> FloatArray:
    """Returns quantiles of a sum, limited because a long uniform wait has a maximum, which an expansion ignores."""
    found = cornish_fisher(cumulants, share)
    bounded = [one for one in parts if one.kind is Kind.UNIFORM]
    if not bounded:
        return found
    greatest = sum((one.mean_s + np.sqrt(3 * one.variance) for one in bounded), np.zeros_like(found))
    rest = cumulants - np.sum([one.cumulants for one in bounded], axis=0)
    with np.errstate(invalid="ignore"):
        found = np.fmin(found, greatest + np.maximum(cornish_fisher(rest, share), rest[0]))
    return np.where(np.isfinite(cumulants[0]), found, np.inf)


def _normal_inverse(share: float | FloatArray) -> FloatArray:
    if isinstance(share, float):
        return np.asarray(NormalDist().inv_cdf(share))
    known, where = np.unique(share, return_inverse=True)
    return np.array([NormalDist().inv_cdf(float(one)) for one in known])[where].reshape(share.shape)


def part_of(phase: int, kind: Kind, mean: FloatArray, variance: FloatArray | float) -> Part:
    """Returns a part of a phase, with one variance or one for each setting."""
    return Part(phase, kind, mean, np.broadcast_to(np.asarray(variance, dtype=np.float64), mean.shape))


def uniform(phase: int, width: FloatArray) -> Part:
    """Returns a wait of any length up to `width` s."""
    return Part(phase, Kind.UNIFORM, width / 2, width**2 / 12)


def mixed(of_groups: Part, weights: FloatArray) -> Part:
    """Returns a part for the rows of all groups together; the variance between the groups' means is added later."""
    mean, variance = (_weighted(weights, value) for value in (of_groups.mean_s, of_groups.variance))
    return Part(of_groups.phase, of_groups.kind, mean, variance)


def _weighted(weights: FloatArray, values: FloatArray) -> FloatArray:
    """Returns the weighted sum over groups, of those that have a weight."""
    with np.errstate(invalid="ignore"):
        found: FloatArray = np.where(weights > 0, weights * values, 0.0).sum(axis=0)
    return found


def between(means: FloatArray, weights: FloatArray) -> FloatArray:
    """Returns the variance of the means of groups."""
    with np.errstate(invalid="ignore"):
        found = _weighted(weights, (means - _weighted(weights, means)) ** 2)
    return np.where(np.isfinite(found), found, 0.0)


def greatest(parts: Sequence[Part], count: FloatArray) -> Part:
    """Returns the greatest of `count` independent sums of these parts, as one part of phase 6."""
    cumulants = np.sum([one.cumulants for one in parts], axis=0)
    middle = _quantile(cumulants, parts, np.clip((count - 0.375) / (count + 0.25), 0.5, 1 - 1e-12))  # Blom's place of the greatest
    mean = np.where(count > 1, middle, cumulants[0])
    upper, lower = (_quantile(cumulants, parts, at ** (1 / count)) for at in (0.8413, 0.1587))
    with np.errstate(invalid="ignore"):
        deviation = np.maximum(upper - lower, 0.0) / 2
    return Part(6, Kind.NORMAL, mean, np.where(np.isfinite(deviation), deviation, 0.0) ** 2)
