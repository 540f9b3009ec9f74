"""Measures how much of its core an agent could have had, and corrects a prediction for it.

An agent predicts with the share of a core that it had before. Other programs and the machine below a virtual one take more or less of it
later. So the cores are measured just before each trial, while the agents rest, and during the trial; the work that the prediction counts,
in reference processor time, is then compared with the processor time that there really was.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import psutil

from sbon.cost.multiples import greatest_multiple
from sbon.cost.resources import NS_PER_S, kernel, speed_of
from sbon_agent.cpu_load import share_of_class, share_of_core
from sbon_testbed.bench.agents import on_cores

SHARES = 10
"""Number of measurements of the share of a core; each takes 20 ms of processor time."""
TIMINGS = 60


class Core(NamedTuple):
    """One core before a trial, while its agent rests."""

    share: float
    """Share of it that work without pauses gets beside all other programs; 1 if the system does not tell."""
    speed: float
    """Reference ns per ns, by the kernel with which agents time their machine."""
    most: float = 1.0
    """Share of it that the scheduling class may have at most."""


class Used(NamedTuple):
    """Times of one core and its agent since the start of both, in seconds."""

    at_s: float
    agent_s: float
    idle_s: float
    stolen_s: float
    """Time in which the machine below ran something else."""


def look_at(core: int, shares: int = SHARES, timings: int = TIMINGS) -> Core:
    """Measures a core with work on this thread, in its scheduling class."""
    with on_cores([core]):
        found = [one for one in (share_of_core() for _ in range(shares)) if one is not None]
        took = []
        for _ in range(timings):
            began_ns = time.thread_time_ns()
            kernel()
            took.append(float(max(1, time.thread_time_ns() - began_ns)))
    # Shares of equal amounts of work: the time that all of it took counts.
    share = len(found) / sum(1 / one for one in found) if found else 1.0
    return Core(share, speed_of(took).value, share_of_class())


def used(core: int, agent_s: Callable[[], float]) -> Used:
    """Reads the times of a core and of the agent on it."""
    times = psutil.cpu_times(percpu=True)
    mine = times[core] if core < len(times) else times[0]
    return Used(time.monotonic(), agent_s(), mine.idle + getattr(mine, "iowait", 0.0), getattr(mine, "steal", 0.0))


def is_first() -> bool:
    """Tells whether this thread, and so the agents that it starts, are in a real-time class: other programs then never take a core from
    them."""
    return os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)


def available(before: Used, after: Used, core: Core, *, first: bool) -> dict[str, float]:
    """Returns the cores that an agent used between two readings (`used`), those that it could have had (`available`), and those that the
    machine below took (`stolen`).

    An agent could have had what it used and what was idle. Other programs of the same class may have used the rest only because the agent
    left it; so for an agent with time to spare this is a lower bound.

    Parameters
    ----------
    first : whether other programs give way to the agent: then it could have had what work without pauses got before, too
    """
    took_s = after.at_s - before.at_s
    mine = (after.agent_s - before.agent_s) / took_s
    left = mine + (after.idle_s - before.idle_s) / took_s
    return {
        "used": mine,
        "available": min(core.most, max(left, core.share) if first else left),
        "stolen": (after.stolen_s - before.stolen_s) / took_s,
        "share": core.share,
        "speed": core.speed,
    }


def present_multiple(rate: Mapping[str, Any], cores: Mapping[str, Mapping[str, float]], learned: Mapping[str, float]) -> tuple[float, str]:
    """Returns the highest multiple of a prediction with the processor time that there really was, and the limit that is full then.

    Parameters
    ----------
    rate : the prediction (`highest_rate` of `sbon queries --json`), for nodes of one core each
    cores : result of `available` by node
    learned : speed of each node's core when the agents timed it; the costs of operators are in reference ns of that time
    """
    found = [(float(limit["multiple"]), str(limit["what"])) for limit in rate["limits"]]
    for number, limit in enumerate(rate["limits"]):
        if limit["what"].startswith(("CPU ", "one core, ")):
            (node,) = limit["nodes"]
            there, then = rate["nodes"][node], cores[node]
            speed = there["speed"] * then["speed"] / learned[node]
            supply_ns = max(0.0, then["available"] - there["agent_cores"]) * speed * NS_PER_S
            multiple = greatest_multiple(np.array([limit["demand"]]), np.array([supply_ns]))[0]
            found[number] = float(multiple), limit["what"]
    return min(found, key=lambda one: one[0])


def cores_of_agents(count: int) -> list[int]:
    """Returns the cores of the first agents, one for each; fewer if this process may use fewer."""
    return sorted(os.sched_getaffinity(0))[:count]
