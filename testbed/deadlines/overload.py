"""Simulates one overloaded update instance in virtual time, to compare scheduling policies.

Batches of rows arrive in intervals, after the time that map and exchange took. A row costs more if its key is not in memory. Work that has
begun is finished. The policy decides whenever the server is free.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from sbon.deadline_scheduling.batches import BatchEdf, InOrder
from sbon.deadline_scheduling.bound import most_in_time
from sbon.deadline_scheduling.cells import Cells
from sbon.deadline_scheduling.dover import Dover
from sbon.deadline_scheduling.interface import Costs, Policy
from sbon.deadline_scheduling.tree import Tree
from sbon.types import FloatArray, IntArray

UNITS = 50
"""Number of deadline units into which `Cells` divides the bound."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of some seconds, in the order of their batches."""

    entered_s: FloatArray
    """(rows,)"""
    arrived_s: FloatArray
    """(rows,): arrival at the update instance."""
    cost_class: IntArray
    costs_s: tuple[float, ...]
    bound_s: float
    batch_s: float = 0.02
    cost_scatter: float = 0.0

    @property
    def deadline_s(self) -> FloatArray:
        """Returns the deadline of each row, in s."""
        return self.entered_s + self.bound_s

    @property
    def load(self) -> float:
        """Returns the work divided by the time."""
        work_s = float(np.array(self.costs_s)[self.cost_class].sum())
        return work_s / float(self.entered_s.max() - self.entered_s.min())


class Served(msgspec.Struct, frozen=True):
    """Outcome of a trace."""

    in_time: int
    rows: int
    in_time_by_class: tuple[int, ...]
    rows_by_class: tuple[int, ...]
    lost: int

    @property
    def utility(self) -> float:
        """Returns the share of rows in time."""
        return self.in_time / self.rows


def trace(
    rng: np.random.Generator,
    *,
    seconds: float,
    rows_per_s: float,
    shares: tuple[float, ...],
    costs_s: tuple[float, ...],
    bound_s: float,
    before_s: float,
    batch_s: float = 0.02,
    burst: float = 0.0,
    cost_scatter: float = 0.0,
) -> Trace:
    """Returns rows that enter at a constant mean rate, or in bursts, and arrive in batches.

    Parameters
    ----------
    shares : share of the rows in each class, sum 1
    before_s : time from the end of a batch until it arrives
    burst : amplitude of a rate that oscillates over two seconds: 0.5 is from 0.5 to 1.5 times the mean
    """
    count = int(rng.poisson(rows_per_s * seconds))
    steps = np.linspace(0, seconds, 2001)
    rate = 1 + burst * np.sin(np.pi * steps)
    entered = np.sort(np.interp(rng.random(count), np.cumsum(rate) / rate.sum(), steps))
    arrived = (np.floor(entered / batch_s) + 1) * batch_s + before_s
    kinds = rng.choice(len(shares), count, p=np.array(shares) / sum(shares))
    return Trace(
        entered_s=entered, arrived_s=arrived, cost_class=kinds, costs_s=costs_s, bound_s=bound_s, batch_s=batch_s, cost_scatter=cost_scatter
    )


def serve(given: Trace, policy: Policy, rng: np.random.Generator) -> Served:
    """Simulates one server under a policy; returns the rows that it finishes in time."""
    deadline_s, arrived_s, kinds = given.deadline_s, given.arrived_s, given.cost_class
    cost_s = np.array(given.costs_s)[kinds]
    if given.cost_scatter:
        cost_s = cost_s * rng.gamma(1 / given.cost_scatter**2, given.cost_scatter**2, len(cost_s))
    starts = np.flatnonzero(np.diff(arrived_s, prepend=-1.0))
    ends = [*starts[1:].tolist(), len(arrived_s)]
    batches = list(zip(arrived_s[starts].tolist(), starts.tolist(), ends, strict=True))
    is_in_time = np.zeros(len(arrived_s), dtype=bool)
    now_s, number = 0.0, 0
    while True:
        while number < len(batches) and batches[number][0] <= now_s:
            at_s, start, end = batches[number]
            policy.release(np.arange(start, end), deadline_s[start:end], kinds[start:end], max(now_s, at_s))
            number += 1
        rows = policy.next(now_s)
        if rows.size:
            if rows.size == 1:
                row = int(rows[0])
                now_s += float(cost_s[row])
                is_in_time[row] = now_s <= deadline_s[row]
                continue
            done_s = now_s + np.cumsum(cost_s[rows])
            is_in_time[rows] = done_s <= deadline_s[rows]
            now_s = float(done_s[-1])
        elif number < len(batches):
            now_s = max(now_s, batches[number][0])
        else:
            break
    classes = len(given.costs_s)
    return Served(
        int(is_in_time.sum()),
        len(is_in_time),
        tuple(np.bincount(kinds[is_in_time], minlength=classes).tolist()),
        tuple(np.bincount(kinds, minlength=classes).tolist()),
        int(policy.take_lost().size),
    )


def policies(given: Trace, *, fairness: float | None = None) -> dict[str, Callable[[], Policy]]:
    """Returns functions that create the policies to compare, by name."""

    def costs() -> Costs:
        return Costs(given.costs_s)

    found: dict[str, Callable[[], Policy]] = {
        "none": InOrder,
        "batch_edf": BatchEdf,
        "dover": lambda: Dover(costs()),
        "tree": lambda: Tree(costs()),
        "cells": lambda: Cells(costs(), given.bound_s / UNITS),
    }
    if fairness is not None:
        found["cells_fair"] = lambda: Cells(costs(), given.bound_s / UNITS, fairness=fairness)
    return found


def compare(given: Trace, names: tuple[str, ...], seed: int, *, fairness: float | None = None) -> dict[str, float]:
    """Returns the utility of policies and the upper bound, as shares of all rows."""
    made = policies(given, fairness=fairness)
    found = {name: serve(given, made[name](), np.random.default_rng(seed)).utility for name in names}
    cost_s = np.array(given.costs_s)[given.cost_class]
    found["bound"] = min(1.0, most_in_time(given.arrived_s, given.deadline_s, cost_s, given.batch_s) / len(cost_s))
    return found
