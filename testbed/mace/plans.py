"""Predicts which of three equivalent plans answers soonest, from samples of different sizes (Mace, section VIII.3, figure 10).

The query finds trades whose price falls three times in a row and that pass a user-defined select. The price is a random walk that rises
80 % of the time, so each test for one more fall keeps a fifth of the rows. The select is expensive and keeps half; it may come before the
tests, after the first test, or after all tests.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sbon.cost.load import Input, OperatorCost, Polynomial, Source, Upstream
from sbon.cost.node_excess import Nodes
from sbon_testbed.mace.virtual import NOISE, Case, foretold, learnt, on_off_events
from sbon_testbed.mace.world import simulate

FALL, SELECT = (0.2, 1.0), (0.5, 4.0)
"""Selectivity, and cost in relative units."""
PLANS = {
    "select first": (SELECT, FALL, FALL, FALL),
    "select second": (FALL, SELECT, FALL, FALL),
    "select last": (FALL, FALL, FALL, SELECT),
}
ENDS = ((1.0, 0.5), (1.0, 0.5))
"""Selectivity and cost of the input and output operators."""
CAPACITY_OVER_LOAD = 2.0
"""Capacity over the average load of the plan `select second`; the load of high periods exceeds it."""
SAMPLES = (100, 500, 1500, 6000, 20_000, 75_000)


def chain(steps: tuple[tuple[float, float], ...]) -> tuple[OperatorCost, ...]:
    """Returns a chain of operators between an input and an output operator."""
    made: list[OperatorCost] = []
    for number, (selectivity, cost) in enumerate((ENDS[0], *steps, ENDS[1])):
        inputs: tuple[Input, ...] = (Source(0),) if number == 0 else (Upstream(number - 1),)
        made.append(OperatorCost(inputs, Polynomial((selectivity,)), Polynomial((cost,))))
    return tuple(made)


def evaluate_plans(events: int, seed: int, report: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Returns, for each sample size, the chosen plan and the ranking of all plans; and the measured worst cases.

    Parameters
    ----------
    events : number of the source's events; samples are the first events, in the sizes of `SAMPLES` below this number, and all events
    """
    arrivals = (on_off_events(np.random.default_rng(seed), events),)
    rate = len(arrivals[0]) / float(arrivals[0][-1])
    work = rate * sum(cost * kept for cost, kept in _load(PLANS["select second"]))
    nodes = Nodes(np.array([work * CAPACITY_OVER_LOAD]), np.array([1]))
    cases = {}
    for name, steps in PLANS.items():
        operators = chain(steps)
        cases[name] = Case(operators, np.zeros(len(operators), dtype=np.int64), nodes, arrivals)
    measured = {}
    for number, (name, case) in enumerate(cases.items()):
        report("plans", number, len(cases))
        seen = simulate(case.operators, case.node_of, case.nodes, arrivals, np.random.default_rng([seed, 1]), NOISE)
        measured[name] = float(seen.latency_s.max())
    found: dict[str, Any] = {"measured_s": measured, "best": min(measured, key=lambda name: measured[name]), "samples": {}}
    for size in (*(size for size in SAMPLES if size < events), events):
        predicted = {
            name: float(foretold(case, learnt(case, size, np.random.default_rng([seed, 2]))).likely_s.max()) for name, case in cases.items()
        }
        ranking = sorted(predicted, key=lambda name: predicted[name])
        found["samples"][str(size)] = {"chosen": ranking[0], "ranking": ranking, "predicted_s": predicted}
    report("plans", len(cases), len(cases))
    return found


def _load(steps: tuple[tuple[float, float], ...]) -> list[tuple[float, float]]:
    """Returns the cost of each operator of a chain, and the share of the source's rows that reach it."""
    found, share = [], 1.0
    for selectivity, cost in (ENDS[0], *steps, ENDS[1]):
        found.append((cost, share))
        share *= selectivity
    return found
