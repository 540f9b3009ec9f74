"""The parts `memory`, `overload` and `disk`: rows in time under each policy when one update instance is overloaded (figure 7)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sbon_testbed.deadlines.jobs import in_memory
from sbon_testbed.deadlines.overload import compare, trace

Report = Callable[[str, int, int], None]
MEMORY_S = 2e-6
"""Cost of a row whose key is in memory."""
DISK_S = 30e-6
"""Default cost of a row whose key is not in memory: an SSD's random read with its overhead."""
LOAD = 0.9
"""Load of the instance at the normal rate, with all keys in memory."""
NORMAL = 1.1
"""The normal rate, in millions of the paper's tweets."""
ALL_MB = 200.0
KEYS = 1_000_000
POLICIES = ("none", "batch_edf", "dover", "tree", "cells")
SCALE = 20.0
"""Rows cost this many times as much and are as many times fewer, as policies in Python are slow; ten thousands still act as a fluid."""


def _compare(seed: int, seconds: float, load: float, on_disk: float, disk_s: float, bound_s: float, burst: float) -> dict[str, float]:
    """Returns the utilities and the bound; `load` is computed as if all keys were in memory."""
    rows_per_s = load / (MEMORY_S * SCALE)
    shares, costs = ((1 - on_disk, on_disk), (MEMORY_S * SCALE, disk_s * SCALE)) if on_disk > 0 else ((1.0,), (MEMORY_S * SCALE,))
    drawn = trace(
        np.random.default_rng(seed),
        seconds=seconds,
        rows_per_s=rows_per_s,
        shares=shares,
        costs_s=costs,
        bound_s=bound_s,
        before_s=0.3 * bound_s,
        burst=burst,
    )
    found = compare(drawn, POLICIES, seed)
    found["of_bound"] = found["cells"] / found["bound"]
    found["load"] = drawn.load
    return found


def evaluate_memory(seconds: float, seed: int, report: Report) -> dict[str, Any]:
    """Returns the part `memory` (figure 7 a): the most frequent keys are in memory, from all keys down to an eighth; bound 1 s."""
    found = {}
    sizes = (200.0, 150.0, 100.0, 50.0, 25.0)
    for number, size in enumerate(sizes):
        report("memory", number, len(sizes))
        on_disk = 0.0 if size >= ALL_MB else 1 - in_memory(1.0, KEYS, size / ALL_MB)
        found[f"{size:g}"] = {"on_disk": on_disk, **_compare(seed, seconds, LOAD, on_disk, DISK_S, 1.0, 0.0)}
    report("memory", len(sizes), len(sizes))
    return found


def evaluate_overload(seconds: float, seed: int, report: Report) -> dict[str, Any]:
    """Returns the part `overload` (figure 7 c): all keys in memory, 1.1, 1.5 and 2.0 M rows/s; bound 1 s."""
    found = {}
    rates = (1.1, 1.5, 2.0)
    for number, rate in enumerate(rates):
        report("overload", number, len(rates))
        found[f"{rate:g}"] = _compare(seed, seconds, LOAD * rate / NORMAL, 0.0, DISK_S, 1.0, 0.0)
    report("overload", len(rates), len(rates))
    return found


def evaluate_disk(seconds: float, seed: int, report: Report) -> dict[str, Any]:
    """Returns the part `disk` (figure 7 d): a fifth of the rows are on disk, at different costs; bound 0.5 s, with and without bursts."""
    found: dict[str, Any] = {}
    costs_us = (10, 30, 50, 100)
    for number, cost_us in enumerate(costs_us):
        report("disk", number, len(costs_us))
        even = _compare(seed, seconds, 0.8, 0.2, cost_us * 1e-6, 0.5, 0.0)
        found[str(cost_us)] = {**even, "burst": _compare(seed + 1, seconds, 0.8, 0.2, cost_us * 1e-6, 0.5, 0.5)}
    report("disk", len(costs_us), len(costs_us))
    return found
