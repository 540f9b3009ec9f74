"""A home that dies: an agent that takes a query for sinks elsewhere and hosts nothing is killed and started again, once per story.

It starts without its kept statements (`sbon agent --forget`), or the query would run again from the beginning of its sources.

The following must hold. While the home is away its query runs on: the sink gets the usual rows, each once and in order. When it is back,
its hosts end the query: the file has a prefix of the rows and no others, or all rows if the query had ended by itself before. A query of
the new process has rows of its own: a sink of the same name over another query, into another file. No other query's rows are lost or
repeated.
"""

from collections.abc import Callable

import numpy as np

from sbon.errors import SbonError
from sbon.execution.life import State
from sbon_agent.node import Agent
from sbon_testbed.exactly_once.sinks import Filed
from sbon_testbed.simulator.harness import World

LET_GO_S = 60.0
"""Seconds after all trouble within which the former process's operators must be gone."""


class Home:
    """The home of one query, and its life cycle.

    Parameters
    ----------
    number : number of its node
    begun : the query that it took
    begin_anew : submits another query to it, under the same name
    """

    def __init__(self, world: World, number: int, rng: np.random.Generator, begun: Filed, begin_anew: Callable[[], None]) -> None:
        self.begun = begun
        self.had_ended = False
        """True if the query had all its rows before its home was back."""
        self.is_done = False
        self._world, self._number, self._begin_anew = world, number, begin_anew
        self._dies_at = world.now + float(rng.uniform(0.3, 4.0))
        self._returns_at = self._dies_at + float(rng.uniform(0.2, 6.0))
        self._silent = bool(rng.integers(2))

    def step(self) -> None:
        """Kills it, starts it again, and submits the other query until it accepts that."""
        now = self._world.now
        if self._dies_at and now >= self._dies_at:
            self._dies_at = 0.0
            self._world.kill(self._number, silent=self._silent)
        elif not self._dies_at and self._returns_at and now >= self._returns_at:
            self._returns_at = 0.0
            self.had_ended = all(state is State.FINISHED for state in self._sinks())
            self._world.start(self._number, forget=True)
        elif not self._returns_at and not self.is_done and self._sees_all():
            try:
                self._begin_anew()
            except SbonError:
                return  # it has not heard of the streams yet, or is cut off
            self.is_done = True

    def problem(self) -> str:
        """Describes hosts that still serve the former process after they must have heard of the new one; empty if there are none."""
        until = self._world.now + LET_GO_S
        while self._served() and self._world.now < until:
            self._world.run(0.5)
        return f"{', '.join(self._served())} run on {LET_GO_S:g} s after their home is back" if self._served() else ""

    def _sees_all(self) -> bool:
        """Tells whether it knows that every host is alive: a query leaves out sources on nodes that its home does not see, and reports
        that."""
        agent = self._world.agents[self._number]
        return isinstance(agent, Agent) and set(agent.gossip.alive_labels()) == set(self._world.nodes)

    def _served(self) -> list[str]:
        return [i.id for agent in self._agents() for i in agent.operators.instances.values() if self.begun.query in i.users]

    def _sinks(self) -> list[State]:
        mine = [i for agent in self._agents() for i in agent.operators.instances.values() if self.begun.query in i.users]
        return [i.state for i in mine if i.sink is not None]

    def _agents(self) -> list[Agent]:
        return [agent for agent in self._world.agents if isinstance(agent, Agent)]
