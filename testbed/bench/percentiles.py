"""Percentiles of measured times, which rest on enough samples or are not told."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from sbon.digest import quantile

SAMPLES_MIN = 1_000
"""Fewer make no 99th percentile: it would be one of the greatest ten."""
Buckets: TypeAlias = dict[int, int]
"""Samples by bucket of `sbon.digest`."""


def p99(samples: Sequence[float]) -> float | None:
    """Returns the 99th percentile; None of fewer than `SAMPLES_MIN` samples."""
    return float(np.percentile(samples, 99)) if len(samples) >= SAMPLES_MIN else None


def pooled(runs: Sequence[Buckets | list[float]]) -> tuple[float, float | None]:
    """Returns median and 99th percentile of the samples of all runs together, all given in the same way; None of too few."""
    buckets, samples = Counter[int](), list[float]()
    for run in runs:
        if isinstance(run, dict):
            buckets.update(run)
        else:
            samples += run
    if not buckets:
        return float(np.median(samples)), p99(samples)
    return quantile(buckets, 0.5), quantile(buckets, 0.99) if sum(buckets.values()) >= SAMPLES_MIN else None
