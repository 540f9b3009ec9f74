"""Compares predicted and measured latency of one query on a real agent: with few training events, and over time (sections VIII.1 and 2).

One agent process on one core runs a query of 14 operators whose rows take real processor time. A program beside it sends rows over TCP in
high and low periods, and takes down when answers come. A fresh agent learns from the first events of one schedule, and is then asked how
late answers would be if the rows of another schedule came (`sbon plan latency`). The last agent, which has learnt from all events, then
runs that other schedule.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import numpy as np

from sbon.cost.mace import Prediction
from sbon.errors import SbonError
from sbon.types import FloatArray, IntArray
from sbon_testbed.bench.agents import BenchAgent, agents, on_cores
from sbon_testbed.leftovers import run_directory
from sbon_testbed.mace.feeding import Answers, Collector, Sent, collecting, feed
from sbon_testbed.mace.installed import functions_installed
from sbon_testbed.mace.virtual import INTERVAL_S, LOAD, RATE_PER_S, on_off_events, over_time
from sbon_testbed.mace.visit_query import QUARTER_S, answers_of, by_quarter, rounds_for, sink, statements, work_of_visit
from sbon_testbed.mace.visits import round_s
from sbon_testbed.mace.world import Measured
from sbon_testbed.processes.local import free_ports
from sbon_testbed.throughput.available import available, is_first, look_at, used

SIZES = (500, 1500)
"""Events that statistics are from, beside all of them."""
NAME = "real"
SETTINGS = 'optimiser = { enabled = false }\nlog = { level = "warning" }\n'
TEST = 1_000_000
"""Number of the first row of the test; rows of the training begin at 0."""
LATE_FACTOR = 3.0
"""The run is given up if its answers take so many times the schedule, and `PATIENCE_S`."""
PATIENCE_S = 300.0
QUIET_S = 10.0
"""Time after the last row of a schedule in which no other comes, as the prediction knows."""
SPEEDS = (0.75, 0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.15)
"""Speeds for which a prediction is made, too: the machine's speed during the test is known only after it."""
REST_S = 2.0
"""Pause after a query has ended, so that its last seconds are in the agent's statistics."""


class Ran(msgspec.Struct, frozen=True):
    """A schedule that an agent has run."""

    measured: Measured
    duration_s: float
    sender_late_s: float
    """Longest time by which a row was sent late."""
    core: dict[str, float]
    """Cores that the agent used, could have had, and that the machine below took."""
    operators_s: float
    """Processor seconds of the query's operators."""
    rounds: int
    """Rounds of work that its rows took."""

    @property
    def rounds_per_s(self) -> float:
        """Returns the speed of the machine: the rounds of a processor second."""
        return self.rounds / self.operators_s


class _Agent:
    """A fresh agent on one core, and the query over visits.

    Parameters
    ----------
    rounds : rounds of work for one unit of cost
    """

    def __init__(self, agent: BenchAgent, core: int, collector: Collector, rounds: float) -> None:
        self._agent, self._core, self._collector, self._rounds = agent, core, collector, rounds
        (self._port,) = free_ports(1)
        self._sink = sink(agent.name, collector.port)
        agent.client.ask("submit", sql=statements(rounds, agent.name, self._port, RATE_PER_S))

    def run(self, at_s: FloatArray, first: int) -> Ran:
        """Runs the query over rows that come at these instants, with numbers from `first` on.

        Raises
        ------
        SbonError
            Answers are wrong, or do not come.
        """
        core = look_at(self._core)
        self._agent.client.ask("submit", sql=self._sink)
        self._collector.begin()
        before, worked_s = used(self._core, self._agent.cpu_s), self._operators_s()
        numbers = first + np.arange(len(at_s))
        sent = feed(self._port, at_s, numbers)
        right = answers_of(numbers)
        self._collector.wait(int(right.sum()), PATIENCE_S + LATE_FACTOR * float(at_s[-1]))
        after, worked_s = used(self._core, self._agent.cpu_s), self._operators_s() - worked_s
        self._end()
        answers = self._collector.answers()
        check(answers, numbers, right)
        measured = measured_of(answers, at_s, sent, first)
        there = available(before, after, core, first=is_first())
        return Ran(measured, after.at_s - before.at_s, float(sent.late_s.max()), there, worked_s, rounds_for(numbers, self._rounds))

    def _operators_s(self) -> float:
        return float(self._agent.client.ask("status")["processor_s"]["operators"])

    def _end(self) -> None:
        self._agent.client.ask("submit", sql="DROP SINK answers")
        deadline_s = time.monotonic() + PATIENCE_S
        while self._agent.client.ask("operators"):
            if time.monotonic() > deadline_s:
                raise SbonError(f"operators still run {PATIENCE_S:g} s after their query was dropped")
            time.sleep(0.1)
        time.sleep(REST_S)

    def predicted(self, at_s: FloatArray, speed: float = 1.0) -> dict[str, Any]:
        """Returns the agent's prediction for rows at these instants, on a core that is so many times as fast as it was."""
        options = {"arrivals": by_quarter(at_s) + [0] * round(QUIET_S / QUARTER_S), "width": INTERVAL_S, "speed": speed}
        told: dict[str, Any] = self._agent.client.ask("plan", sql=self._sink, question="latency", options=options)
        return told


@contextmanager
def _fresh(core: int, collector: Collector, rounds: float) -> Iterator[_Agent]:
    with agents([NAME], SETTINGS, sealed=False, cores=[core]) as found:
        yield _Agent(found[NAME], core, collector, rounds)


def evaluate_real(events: int, seed: int, report: Callable[[str, int, int], None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the parts `training` and `series` of a real agent.

    Parameters
    ----------
    events : rows of the test, and of the longest training
    """
    schedule, test = (on_off_events(np.random.default_rng([seed, number]), events) for number in (1, 2))
    schedule, test = schedule - schedule[0], test - test[0]
    core, *others = sorted(os.sched_getaffinity(0))
    sizes = [*(size for size in SIZES if size < events), events]
    told: dict[int, dict[str, Any]] = {}
    learnt: dict[int, Ran] = {}
    at_speeds: dict[int, dict[float, float]] = {}
    with ExitStack() as stack:
        stack.enter_context(on_cores(others))  # this program works beside the agent, not on its core
        stack.enter_context(functions_installed(stack.enter_context(run_directory())))
        collector = stack.enter_context(collecting())
        rounds = LOAD / RATE_PER_S / work_of_visit() / round_s()
        for number, size in enumerate(sizes):
            report("training on a real agent", number, len(sizes) + 1)
            with _fresh(core, collector, rounds) as agent:
                learnt[size] = agent.run(schedule[:size], 0)
                told[size] = agent.predicted(test)
                at_speeds[size] = {speed: worst_s(agent.predicted(test, speed)) for speed in SPEEDS} | {1.0: worst_s(told[size])}
                if size == events:
                    report("test on a real agent", number + 1, len(sizes) + 1)
                    ran = agent.run(test, TEST)
        report("test on a real agent", len(sizes) + 1, len(sizes) + 1)
    training = {str(size): compared(one, ran) | {"then": then(at_speeds[size], learnt[size], ran)} for size, one in told.items()}
    about = {"real": True, "duration_s": ran.duration_s, "sender_late_s": ran.sender_late_s, "core": ran.core, "first": is_first()}
    series = over_time(prediction_of(told[events]), ran.measured, INTERVAL_S)
    return {size: one | about for size, one in training.items()}, series | about


def check(answers: Answers, numbers: IntArray, right: IntArray) -> None:
    """Checks that each row has as many answers as it must have.

    Raises
    ------
    SbonError
        A row has another number of answers.
    """
    found = np.bincount(answers.visits - numbers[0], minlength=len(numbers))
    if len(found) != len(right) or (found != right).any():
        raise SbonError(f"{int(found.sum())} answers, expected {int(right.sum())}: the agent's answers are wrong")


def measured_of(answers: Answers, at_s: FloatArray, sent: Sent, first: int) -> Measured:
    """Returns the latencies of answers, from the instants of the schedule on."""
    stimulus_s = at_s[answers.visits - first]
    none = np.zeros(0, dtype=np.int64)
    return Measured(stimulus_s, answers.at_s - sent.start_s - stimulus_s, none, none, np.zeros(0))


def prediction_of(told: dict[str, Any]) -> Prediction:
    """Returns an agent's prediction over time; its times are in s."""
    over = told["intervals"]
    latest, mace, upper = (
        np.array([np.inf if one is None else one / 1e3 for one in over[name]]) for name in ("latest_ms", "mace_ms", "upper_ms")
    )
    return Prediction(mace, latest, upper, {}, 0.0, ())


def worst_s(told: dict[str, Any]) -> float:
    """Returns the predicted worst case. Events end, so that even a load above capacity has a finite one."""
    return float(prediction_of(told).likely_s.max()) if told["worst_ms"] is None else float(told["worst_ms"]) / 1e3


def then(at_speeds: dict[float, float], learnt: Ran, ran: Ran) -> dict[str, float]:
    """Returns the predicted worst case at the speed that the machine had in the test, relative to that in the training.

    Parameters
    ----------
    at_speeds : predicted worst case in s by speed
    """
    speed, speeds = ran.rounds_per_s / learnt.rounds_per_s, sorted(at_speeds)
    predicted_s = float(np.interp(speed, speeds, [at_speeds[one] for one in speeds]))
    measured_s = float(ran.measured.latency_s.max())
    return {"speed": speed, "predicted_s": predicted_s, "error": abs(predicted_s - measured_s) / measured_s}


def compared(told: dict[str, Any], ran: Ran) -> dict[str, Any]:
    """Returns predicted and measured worst case, errors over time, how often bounds were wrong, and the error of the operators' work."""
    found, over, measured = prediction_of(told), told["intervals"], ran.measured
    measured_s, mace_s, predicted_s = float(measured.latency_s.max()), float(found.mace_s.max()), worst_s(told)
    latest_s = measured.worst_by_interval(INTERVAL_S, len(found.likely_s))
    seen = over_time(found, measured, INTERVAL_S)
    return {
        "predicted_s": predicted_s,
        "mace_s": mace_s,
        "upper_s": float(found.upper_s.max()),
        "measured_s": measured_s,
        "error": abs(predicted_s - measured_s) / measured_s,
        "mace_error": abs(mace_s - measured_s) / measured_s,
        **{name: seen[name] for name in ("error_p50", "mean_error", "p99_error", "outside_bounds", "intervals")},
        "work_s": sum(over["load_ms"]) / 1e3,
        "work_measured_s": ran.operators_s,
        "above_theorem": int(np.count_nonzero(latest_s > found.mace_s + over["width_s"] + over["epsilon_ms"] / 1e3)),
    }
