"""Percentiles of measured times; None if there are too few samples."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from sbon.digest import quantile

SAMPLES_MIN = 1_000
"""Least number of samples for a 99th percentile: with fewer it would be one of the ten greatest."""
Buckets: TypeAlias = dict[int, int]
"""Samples by bucket of `sbon.digest`."""


def p99(samples: Sequence[float]) -> float | None:
    """Returns the 99th percentile; None if there are fewer than `SAMPLES_MIN` samples."""
    return float(np.percentile(samples, 99)) if len(samples) >= SAMPLES_MIN else None


def pooled(runs: Sequence[Buckets | list[float]]) -> tuple[float, float | None]:
    """Returns median and 99th percentile (None if there are too few samples) over all runs; all runs are buckets, or all are lists."""
    buckets, samples = Counter[int](), list[float]()
    for run in runs:
        if isinstance(run, dict):
            buckets.update(run)
        else:
            samples += run
    if not buckets:
        return float(np.median(samples)), p99(samples)
    return quantile(buckets, 0.5), quantile(buckets, 0.99) if sum(buckets.values()) >= SAMPLES_MIN else None
