"""Distributions of sums of phases: convolved on a grid, from the parts of a model or from measured histograms, and a bound by Chernoff.

The quantile of a sum of a few uniform waits is not that of a normal variable: a bound of the mean and deviation alone (Cantelli) is twice
the truth. Where the shapes of the parts are known, the convolution is as exact as its grid; where only their kinds are known, Chernoff's
inequality is never below the truth and rarely a third above it.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from sbon.cost.stage_parts import Kind, StageLatency
from sbon.errors import ShapeError
from sbon.types import FloatArray

STEPS = 4096
"""Points of the grid of the whole sum."""
_TAIL = 12.0
"""Deviations above the mean that the grid covers."""


class Sum(msgspec.Struct, frozen=True):
    """A distribution on a grid from 0: `mass[i]` is the probability of i x `step_s`."""

    step_s: float
    mass: FloatArray

    @property
    def mean_s(self) -> float:
        """Mean."""
        return float(self.mass @ np.arange(len(self.mass))) * self.step_s / float(self.mass.sum())

    def quantile_s(self, share: float) -> float:
        """Returns the value below which a share of the probability is.

        Raises
        ------
        ShapeError
            `share` is not between 0 and 1.
        """
        if not 0 < share < 1:
            raise ShapeError(f"quantile {share}, expected a share between 0 and 1")
        total = np.cumsum(self.mass)
        return float(np.searchsorted(total, share * total[-1])) * self.step_s


def _spread(kind: Kind, mean_s: float, variance: float, step_s: float) -> FloatArray:
    """Returns the mass of one part on the grid."""
    if kind is Kind.FIXED or variance <= step_s**2 / 12:
        return _between_points(mean_s, mean_s, step_s)
    if kind is Kind.UNIFORM:
        half = math.sqrt(3 * variance)
        return _between_points(mean_s - half, mean_s + half, step_s)
    points = step_s * np.arange(STEPS + 1)
    if kind is Kind.WAIT and variance >= mean_s**2:
        # 0, or exponential: two parameters for mean and variance.
        scale = (variance + mean_s**2) / (2 * mean_s)
        waits = min(1.0, mean_s / scale)
        edges = 1 - np.exp(-np.maximum(points - step_s / 2, 0.0) / scale)
        mass = waits * np.diff(edges)
        mass[0] += 1 - waits
        return np.asarray(mass)
    shape, scale = mean_s**2 / variance, variance / mean_s
    if kind is Kind.NORMAL or shape > 400:
        middle = np.exp(-((points[:-1] - mean_s) ** 2) / (2 * variance))
        return np.asarray(middle / middle.sum())
    with np.errstate(divide="ignore"):
        logs = np.where(points[1:] > 0, (shape - 1) * np.log(points[1:] / scale) - points[1:] / scale, -np.inf)
    density = np.exp(logs - logs.max())
    mass = np.concatenate([[0.0], density])[:STEPS]
    return np.asarray(mass / mass.sum())


def _between_points(low_s: float, high_s: float, step_s: float) -> FloatArray:
    """Returns a mass of 1 spread evenly between two values, with their mean kept."""
    low, high = max(0.0, low_s / step_s), max(0.0, high_s / step_s)
    mass = np.zeros(max(STEPS, math.ceil(high) + 2))
    if high - low < 1e-9:
        place = math.floor(low)
        mass[place] += 1 - (low - place)
        mass[place + 1] += low - place
        return mass[:STEPS] if high < STEPS - 2 else mass
    edges = np.clip(np.arange(len(mass) + 1) - 0.5, low, high)
    return np.asarray(np.diff(edges) / (high - low))


def summed(masses: Iterable[FloatArray], step_s: float) -> Sum:
    """Returns the distribution of the sum of independent values given by their masses on one grid."""
    given = list(masses)
    size = 1 << math.ceil(math.log2(sum(len(one) for one in given) + 1))
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    for one in given:
        product *= np.fft.rfft(one, size)
    return Sum(step_s, np.maximum(np.fft.irfft(product, size), 0.0))


def distribution(latency: StageLatency, which: tuple[int, ...] = ()) -> Sum:
    """Returns the distribution of the latency of one setting.

    Parameters
    ----------
    which : index of the setting

    Raises
    ------
    ShapeError
        The latency of the setting is infinite.
    """
    mean, variance = float(latency.mean_s[which]), float(latency.cumulants[1][which])
    if not math.isfinite(mean):
        raise ShapeError("the distribution of a latency without end, expected a setting that keeps up")
    step_s = (mean + _TAIL * math.sqrt(max(variance, 0.0)) + 1e-9) / STEPS
    return summed((_spread(one.kind, float(one.mean_s[which]), float(one.variance[which]), step_s) for one in latency.parts), step_s)


def of_histograms(phases: Sequence[Sequence[tuple[float, float, float]]]) -> Sum:
    """Returns the distribution of the sum of phases that were measured apart, each as buckets (from, to, rows), in s.

    Phases that depend on each other, such as two that wait for one busy core, must be measured together, as one histogram.

    Raises
    ------
    ShapeError
        A histogram is empty.
    """
    if not phases or not all(any(rows > 0 for *_, rows in one) for one in phases):
        raise ShapeError("a phase without a measured row, expected a row in each")
    step_s = sum(max(end_s for _, end_s, rows in one if rows > 0) for one in phases) / STEPS
    masses = []
    for one in phases:
        total = sum(rows for *_, rows in one)
        mass = np.zeros(STEPS + 2)
        for start_s, end_s, rows in one:
            part = _between_points(start_s, end_s, step_s)
            mass[: len(part)] += part[: len(mass)] * (rows / total)
        masses.append(mass)
    return summed(masses, step_s)


def chernoff_quantile_s(latency: StageLatency, share: float, which: tuple[int, ...] = ()) -> float:
    """Returns an upper bound of the quantile from the kinds of the parts alone, without their exact distributions.

    min over r of (sum of the logarithms of E[exp(r part)] - log(1 - share)) / r; a part that is fixed or uniform is known, a wait is
    taken to have an exponential tail.

    Raises
    ------
    ShapeError
        `share` is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise ShapeError(f"quantile {share}, expected a share between 0 and 1")
    if not math.isfinite(float(latency.mean_s[which])):
        return math.inf
    fixed, normal, widths, waits = 0.0, 0.0, [], []
    for one in latency.parts:
        mean, variance = float(one.mean_s[which]), float(one.variance[which])
        if one.kind is Kind.UNIFORM and variance > 0:
            half = math.sqrt(3 * variance)
            fixed += mean - half
            widths.append(2 * half)
        elif one.kind is Kind.NORMAL:
            fixed += mean
            normal += variance
        elif one.kind is Kind.WAIT and variance > 0:
            scale = math.sqrt(variance)
            fixed += max(0.0, mean - scale)
            waits.append((min(mean, scale), max((variance + mean**2) / (2 * mean), scale)) if mean > 0 else (0.0, scale))
        else:
            fixed += mean
    # Differences between groups of instances are in the total variance alone.
    between = max(0.0, float(latency.cumulants[1][which]) - sum(float(one.variance[which]) for one in latency.parts))
    steepest = 1 / max((scale for _, scale in waits), default=1e-6)
    rates = steepest * np.linspace(0.002, 0.998, 500)
    total = rates * fixed + rates**2 * (between + normal) / 2
    for width in widths:
        x = rates * width
        total += np.log(np.expm1(x) / x)
    for mean, scale in waits:
        total += np.log1p(mean / scale * (1 / (1 - rates * scale) - 1))
    return float(np.min((total - math.log(1 - share)) / rates))
