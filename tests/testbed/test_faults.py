"""The schedule of faults: its times, its draws, and what it leaves behind. No agent runs here."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.faults.schedule import Faults
from sbon_testbed.simulator.faults.timetable import Timetable
from sbon_testbed.simulator.harness import World


def world_of(nodes: int = 3) -> World:
    """Returns a world whose agents do nothing."""

    def make(config: Any, host: Any, ring: Any) -> Any:
        return SimpleNamespace(start=lambda: None, stop=lambda: None)

    return World(nodes, seed=3, make_agent=make)


def trace_of(kinds: tuple[str, ...], kind: str, seed: int = 3) -> list[str]:
    """Returns the lines of the trace about one kind."""
    case = Case(world_of(), seed)
    faults = Faults(case, kinds)
    faults.begin()
    faults.run(60.0)
    return [line for line in case.trace if kind in line]


def test_actions_happen_in_the_order_of_their_times_and_each_once() -> None:
    timetable, done = Timetable(world_of()), []
    for seconds in (2.0, 1.0, 3.0):
        timetable.after(seconds, lambda seconds=seconds: done.append((seconds, timetable.world.now)))  # type: ignore[misc]
    timetable.run(2.5)
    assert done == [(1.0, 1.0), (2.0, 2.0)]
    assert (timetable.world.now, timetable.next_s) == (2.5, 3.0)
    timetable.clear()
    timetable.run(1.0)
    assert len(done) == 2


def test_a_kind_draws_the_same_whatever_other_kinds_there_are() -> None:
    alone = trace_of(("clocks",), "jumps")
    assert len(alone) > 5
    assert trace_of(("slow", "partitions", "clocks"), "jumps") == alone
    assert trace_of(("clocks",), "jumps", seed=4) != alone


def test_a_fault_of_a_story_happens_once_within_its_times() -> None:
    case = Case(world_of(), 3)
    faults, times = Faults(case, ()), []
    faults.once("deaths", 0.3, 4.0, lambda rng: times.append(case.world.now))
    faults.begin()
    faults.run(60.0)
    assert len(times) == 1
    assert 0.3 <= times[0] <= 4.0


def test_calm_ends_all_faults_and_starts_all_agents_but_those_that_are_gone_for_good() -> None:
    case = Case(world_of(), 3)
    world, faults, rng = case.world, Faults(case, ("moves",)), np.random.default_rng(1)
    for number in range(3):
        world.start(number)
    faults.begin()
    faults.cut_off([0], 5.0)
    faults.slow(2, 5.0)
    faults.end(rng, 0, "kill", lambda: None)
    faults.end(rng, 1, "death")
    assert not world.world.network.reaches(0, 2)
    faults.calm()
    assert [agent is not None for agent in world.agents] == [True, False, True]
    assert world.world.network.reaches(0, 2)
    assert faults.next_s == float("inf")
    assert case.calm_s == world.now
