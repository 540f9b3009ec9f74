"""Actions that are due at virtual times."""

import heapq
from collections.abc import Callable

from sbon_testbed.simulator.harness import World

TICK_S = 1e-6
"""Virtual time has whole nanoseconds; an action closer than this is due."""


class Timetable:
    """Actions of one world, each carried out once, in the order of their times."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    @property
    def next_s(self) -> float:
        """Returns when the next action is due, in virtual seconds."""
        return self._due[0][0] if self._due else float("inf")

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        """Plans an action."""
        self._order += 1
        heapq.heappush(self._due, (when_s, self._order, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Plans an action some virtual seconds from now."""
        self.at(self.world.now + seconds, action)

    def step(self) -> None:
        """Carries out the actions that are due."""
        while self._due and self._due[0][0] <= self.world.now + TICK_S:
            heapq.heappop(self._due)[2]()

    def run(self, seconds: float) -> None:
        """Lets virtual time pass, and carries out each action when it is due."""
        until = self.world.now + seconds
        while self.world.now < until - TICK_S:
            self.world.run(min(until - self.world.now, max(0.0, self.next_s - self.world.now)))
            self.step()

    def clear(self) -> None:
        """Drops all planned actions."""
        self._due.clear()
