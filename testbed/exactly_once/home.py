"""A home that dies: once per story, an agent that took a query with a sink elsewhere and hosts nothing is killed and started again.

The agent starts without its kept statements (`sbon agent --forget`), so that it cannot resume the query itself.

While the home is away, its query must run on: the sink gets each row once, in order. Keepers of the query's record take the query over, and
then it must have all rows. The new process creates a sink of the same name with another query and file. If no agent owns the earlier query
then, this ends it: its file must have a prefix of the rows and no others, or all rows if it had ended by itself before. Otherwise the name
is taken, and the new sink gets another name. No other query's rows may be lost or repeated.
"""

from collections.abc import Callable

from sbon.errors import SbonError
from sbon.execution.life import State
from sbon_agent.node import Agent
from sbon_testbed.exactly_once.sinks import Filed
from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.faults.schedule import Faults

NAME = "k"
"""Name of the query's sink."""
LET_GO_S = 60.0
"""Virtual seconds after all trouble within which the query's operators must be gone."""


class Home:
    """The home of one query, and its life cycle.

    Parameters
    ----------
    faults : the schedule that kills the home and starts it again
    number : number of its node
    begun : the query that the home took
    begin_anew : submits another query to the home, with a sink of the given name
    """

    def __init__(self, case: Case, faults: Faults, number: int, begun: Filed, begin_anew: Callable[[str], None]) -> None:
        self.begun = begun
        self.had_ended = False
        """True if the query had all its rows before its home was back."""
        self.is_replaced = False
        """True if the other query has taken the sink's name."""
        self.is_begun = False
        """True once the other query runs."""
        self._case, self._world = case, case.world
        self._number, self._begin_anew, self._label = number, begin_anew, NAME
        self._is_back = False
        faults.once("homes", 0.3, 4.0, lambda rng: faults.end(rng, number, "home", self._return))

    def _return(self) -> None:
        """Starts the home again, without its statements."""
        self.had_ended = all(state is State.FINISHED for state in self._sinks())
        self._case.tell("start", f"{self._world.nodes[self._number]} without its statements")
        self._world.start(self._number, forget=True)
        self._is_back = True

    def step(self) -> None:
        """Submits the other query, once the home is back, until it accepts the query."""
        if self._is_back and not self.is_begun and self._sees_all():
            try:
                self._begin_anew(self._label)
            except SbonError as problem:  # the home has not heard of the streams yet, or is cut off
                if f"there is a sink {NAME} already" in str(problem):
                    self._label = f"another_{NAME}"
                return
            self.is_begun, self.is_replaced = True, self._label == NAME

    @property
    def is_done(self) -> bool:
        """Tells whether the other query runs, and the first one has ended or been replaced."""
        return self.is_begun and (self.is_replaced or self.begun.finished)

    @property
    def is_whole(self) -> bool:
        """Tells whether the query must have all rows."""
        return self.had_ended or not self.is_replaced

    def problem(self) -> str:
        """Describes hosts that still serve the query after it has ended; empty if there are none."""
        until = self._world.now + LET_GO_S
        while self._served() and self._world.now < until:
            self._world.run(0.5)
        return f"{', '.join(self._served())} run on {LET_GO_S:g} s after their query has ended" if self._served() else ""

    def _sees_all(self) -> bool:
        """Tells whether the home sees every host alive. A query leaves out sources on nodes that its home does not see, and reports
        that."""
        agent = self._world.agents[self._number]
        return isinstance(agent, Agent) and set(agent.network.gossip.alive_labels()) == set(self._world.nodes)

    def _served(self) -> list[str]:
        return [instance.id for _, instance in self._case.instances() if self.begun.query in instance.users]

    def _sinks(self) -> list[State]:
        mine = [instance for _, instance in self._case.instances() if self.begun.query in instance.users]
        return [instance.state for instance in mine if instance.sink is not None]
