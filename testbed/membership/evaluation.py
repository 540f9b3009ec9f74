"""Measures the cost of membership and how soon it notices changes, in virtual time (`sbon testbed membership`).

One overlay of membership machines goes through six stories: all agents start at once; the overlay idles; some agents are slow while others
crash; half of the agents restart at once; the overlay is cut in two and healed; agents come back with a lower incarnation than the others
remember. Forming takes longest in large overlays; without that story, the overlay begins as if formed long ago.
"""

import resource
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from sbon.errors import UsageError
from sbon.membership import MembershipConfig
from sbon_testbed.membership.world import FAILED, SUSPECT, MembershipWorld, MembershipWorldConfig
from sbon_testbed.ranges import check_seconds

Slow: TypeAlias = Literal["same", "any"]

SEEDS = (0, 1, 2)
PATIENCE_S = 300.0
"""Virtual seconds after which an awaited state is reported as not reached."""
SETTLE_S = 30.0
"""Virtual seconds between two stories."""
CRASH_NOTICED_S = 15.0
"""Virtual seconds between a crash and the restart of the agent; a crash not noticed by then counts as unnoticed."""
STALL_S_MAX = 1.0
STALL_PAUSE_S = 1.0
"""Mean virtual seconds for which a slow agent runs between two stalls."""
STORIES = ("formation", "idle", "slow", "half-restarted", "partition", "lower-incarnation")
RETURNING = 5
INCARNATION = 1000


class MembershipTrial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one evaluation."""

    agents: int = 100
    """Number of agents. More: a larger overlay; work and memory grow with the square."""
    seed: int = 1
    """Seed of places, draws and machines."""
    idle_s: float = 60.0
    """Virtual time over which traffic is counted."""
    slow: Slow = "same"
    """`same`: the same agents are slow all the time; `any`: each second a new choice of agents stalls, each of them once."""
    slow_share: float = 0.05
    """Share of the agents that stall."""
    slow_s: float = 600.0
    """Virtual time with slow agents. Longer: more crashes measured."""
    crash_every_s: float = 20.0
    """Pause between crashes, which must not overlap. Shorter: more crashes."""
    apart_s: float = 600.0
    """Seconds for which the overlay is cut in two."""
    stories: tuple[str, ...] = ()
    """Stories to run, in the usual order; empty: all. Without `formation`, the overlay begins with all agents known to all."""

    def __post_init__(self) -> None:
        if not 2 * len(SEEDS) <= self.agents <= 10_000:
            raise UsageError(f"agents = {self.agents}, expected {2 * len(SEEDS)} to 10000")
        unknown = [name for name in self.stories if name not in STORIES]
        if unknown:
            raise UsageError(f"story {unknown[0]!r} is unknown, expected one of {', '.join(STORIES)}")
        if not 0 <= self.slow_share < 0.5:
            raise UsageError(f"slow_share = {self.slow_share}, expected 0 to less than 0.5")
        check_seconds("--slow-s", self.slow_s, 0)
        check_seconds("--apart-s", self.apart_s, 0)
        if self.crash_every_s <= CRASH_NOTICED_S:
            raise UsageError(f"crash_every_s = {self.crash_every_s}, expected more than {CRASH_NOTICED_S:g}")


class Verdicts:
    """Compares the agents' beliefs about each other with the truth."""

    def __init__(self, world: MembershipWorld) -> None:
        self._world = world
        self._crashed_at: dict[int, float] = {}
        self._expected = 0
        self.delays_s: list[float] = []
        self.crashes = 0
        self.unnoticed = 0
        self.false_suspicions = 0
        self.false_failures = 0
        self._wronged: set[tuple[int, int]] = set()
        world.watch = self._changed

    @property
    def agents_wronged(self) -> int:
        """Number of suspicions against running agents, each counted once, however many agents believed it."""
        return len(self._wronged)

    def crash(self, number: int) -> None:
        """Kills an agent and waits for the others to notice."""
        world = self._world
        world.kill(number)
        self._crashed_at[number] = world.now
        self._expected = len(world.running)
        self.crashes += 1
        before = len(self.delays_s)
        world.run(CRASH_NOTICED_S)
        self.unnoticed += self._expected - (len(self.delays_s) - before)
        del self._crashed_at[number]

    def _changed(self, observer: int, subject: int, status: int) -> None:
        if status not in (SUSPECT, FAILED) or not self._world.knows_present_life(observer, subject):
            return
        machine = self._world.processes[subject].machine
        if machine is None:
            if status == FAILED and subject in self._crashed_at:
                self.delays_s.append(self._world.now - self._crashed_at[subject])
        elif status == FAILED:
            self.false_failures += 1
        else:
            self.false_suspicions += 1
            self._wronged.add((subject, machine.incarnation))


class Trial:
    """Runs the stories, one after the other, in one overlay."""

    def __init__(self, trial: MembershipTrial, membership: MembershipConfig, network: MembershipWorldConfig) -> None:
        self._trial = trial
        self._rng = np.random.default_rng((trial.seed, 1))
        self.world = MembershipWorld(trial.agents, trial.seed, membership, network)
        self.verdicts = Verdicts(self.world)

    def formation(self) -> dict[str, Any]:
        """Starts all agents at once, each with three seeds."""
        world, agents = self.world, self._trial.agents
        for number in range(agents):
            world.start(number, SEEDS)
        seconds = world.run_until(world.whole, PATIENCE_S)
        return {"seconds": seconds, "bytes_per_agent": (world.datagram_bytes + world.stream_bytes) / agents}

    def formed(self) -> None:
        """Puts the overlay into the state of having formed long ago."""
        for number in range(self._trial.agents):
            self.world.start(number, ())
        self.world.acquaint()

    def idle(self) -> dict[str, Any]:
        """Measures the traffic while nothing happens."""
        world, trial = self.world, self._trial
        world.run(SETTLE_S)
        datagrams, datagram_bytes, stream_bytes = world.datagrams, world.datagram_bytes, world.stream_bytes
        world.run(trial.idle_s)
        per = trial.idle_s * trial.agents
        return {
            "datagrams_per_s": (world.datagrams - datagrams) / per,
            "datagram_bytes_per_s": (world.datagram_bytes - datagram_bytes) / per,
            "push_pull_bytes_per_s": (world.stream_bytes - stream_bytes) / per,
            "state_bytes": len(world.full_state(0)),
        }

    def slow_and_crashing(self) -> dict[str, Any]:
        """Stalls some agents repeatedly, while single agents crash and come back."""
        world, trial, verdicts = self.world, self._trial, self.verdicts
        count = round(trial.agents * trial.slow_share)
        end = world.now + trial.slow_s
        wronged, suspicions, failures = verdicts.agents_wronged, verdicts.false_suspicions, verdicts.false_failures
        if trial.slow == "same":
            for number in self._rng.permutation(trial.agents)[:count].tolist():
                self._stall_again(number, end)
        elif count:
            self._stall_some(count, end)
        while world.now + trial.crash_every_s <= end:
            world.run(trial.crash_every_s - CRASH_NOTICED_S)
            number = int(self._rng.integers(0, trial.agents))
            verdicts.crash(number)
            world.start(number, SEEDS)
        world.run(max(end - world.now, 0.0))
        delays = np.array(verdicts.delays_s)
        return {
            "agents": count,
            "which": trial.slow,
            "virtual_s": trial.slow_s,
            "suspicions": verdicts.agents_wronged - wronged,
            "suspicions_believed": verdicts.false_suspicions - suspicions,
            "false_failures": verdicts.false_failures - failures,
            "crashes": verdicts.crashes,
            "noticed": len(delays),
            "unnoticed": verdicts.unnoticed,
            "median_s": float(np.median(delays)) if len(delays) else None,
            "p99_s": float(np.percentile(delays, 99)) if len(delays) else None,
            "max_s": float(delays.max()) if len(delays) else None,
        }

    def half_restarted(self) -> dict[str, Any]:
        """Kills half of the agents and starts them again in the same instant, without their data."""
        world, trial = self.world, self._trial
        world.run_until(world.whole, PATIENCE_S)
        half = np.sort(self._rng.permutation(trial.agents)[: trial.agents // 2]).tolist()
        failures = self.verdicts.false_failures
        for number in half:
            world.kill(number)
        for number in half:
            world.start(number, SEEDS)
        return {"agents": len(half), "seconds": world.run_until(world.whole, PATIENCE_S)} | self._false_failures(failures)

    def cut_in_two(self) -> dict[str, Any]:
        """Separates two halves for `apart_s`, and joins them again."""
        world, trial = self.world, self._trial
        world.run(SETTLE_S)
        order = self._rng.permutation(trial.agents)
        here, there = np.sort(order[: trial.agents // 2]), np.sort(order[trial.agents // 2 :])
        world.partition(here.tolist())
        began = world.now

        def given_up() -> bool:
            return bool((world.status[np.ix_(here, there)] == FAILED).all() and (world.status[np.ix_(there, here)] == FAILED).all())

        given_up_s = world.run_until(given_up, trial.apart_s)
        world.run(began + trial.apart_s - world.now)
        world.heal()
        return {"apart_s": trial.apart_s, "given_up_s": given_up_s, "whole_s": world.run_until(world.whole, PATIENCE_S)}

    def lower_incarnations(self) -> dict[str, Any]:
        """Brings agents back without the high incarnation that others remember: first at once, then 30 s after their death."""
        world, trial = self.world, self._trial
        chosen = self._rng.permutation(np.arange(len(SEEDS), trial.agents))[:RETURNING].tolist()
        results = {}
        for name, dead_for_s in (("at_once_s", 0.0), ("after_30_s_s", 30.0)):
            for number in chosen:
                world.kill(number)
                world.start(number, SEEDS, INCARNATION)
            world.run_until(world.whole, PATIENCE_S)
            world.run(SETTLE_S)
            for number in chosen:
                world.kill(number)
            world.run(dead_for_s)
            for number in chosen:
                world.start(number, SEEDS)
            results[name] = world.run_until(world.whole, PATIENCE_S)
        return {"agents": len(chosen), **results}

    def _false_failures(self, before: int) -> dict[str, int]:
        return {"false_failures": self.verdicts.false_failures - before}

    def _stall_again(self, number: int, end: float) -> None:
        pause_s = STALL_PAUSE_S * float(self._rng.exponential())
        stall_s = STALL_S_MAX * float(self._rng.random())
        if self.world.now + pause_s + stall_s < end:
            self.world.at(self.world.now + pause_s, self.world.stall, number, stall_s)
            self.world.at(self.world.now + pause_s + stall_s, self._stall_again, number, end)

    def _stall_some(self, count: int, end: float) -> None:
        for number in self._rng.permutation(self._trial.agents)[:count].tolist():
            self.world.stall(number, STALL_S_MAX * float(self._rng.random()))
        if self.world.now + 1.0 < end:
            self.world.at(self.world.now + 1.0, self._stall_some, count, end)


def evaluate(
    trial: MembershipTrial,
    membership: MembershipConfig | None = None,
    network: MembershipWorldConfig | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Runs all stories.

    Returns
    -------
    dict
        Plain values for JSON; instants and delays in virtual seconds, None for states that were not reached; traffic per agent, datagrams
        with their seal but without UDP and IP headers. `seconds` and `memory_mb` are those of this process.
    """
    started = time.perf_counter()
    network = network or MembershipWorldConfig()
    stories = Trial(trial, membership or MembershipConfig(), network)
    result: dict[str, Any] = {"agents": trial.agents, "seed": trial.seed, "loss": network.loss, "jitter_ms": network.jitter_ms}
    told: tuple[Callable[[], dict[str, Any]], ...] = (
        stories.formation,
        stories.idle,
        stories.slow_and_crashing,
        stories.half_restarted,
        stories.cut_in_two,
        stories.lower_incarnations,
    )
    chosen = trial.stories or STORIES
    if "formation" not in chosen:
        stories.formed()
    for name, story in zip(STORIES, told, strict=True):
        if name in chosen:
            result[name.replace("-", "_")] = figures = story()
            progress(f"{time.perf_counter() - started:7.1f} s  {name}: {figures}")
    result["virtual_s"] = stories.world.now
    result["seconds"] = time.perf_counter() - started
    result["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result
