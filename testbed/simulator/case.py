"""An overlay under faults: its world, its trace, what its faults may hit, and what they have harmed. Faults and checkers share it."""

from collections.abc import Iterator, Sequence

from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.supervision.record import QueryState
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World

ACTIVE = frozenset(
    (
        *(State.RUNNING, State.STALLED, State.RESTING, State.PAUSED, State.FORKING),
        *(State.EXPORTED, State.FINISHING, State.FINISHED),
    )
)
"""States in which an operator owns its links. An operator that is being made, or has arrived and waits to be activated, does not."""
TRACE_LINES = 60
"""Number of lines of the trace that are shown, the latest ones."""


class Case:
    """One seed under way.

    Parameters
    ----------
    hosts : numbers of the nodes among which operators move; None: all
    """

    def __init__(self, world: World, seed: int, hosts: Sequence[int] | None = None) -> None:
        self.world, self.seed = world, seed
        self._hosts = hosts
        self.ids: dict[str, str] = {}
        """Id of each query, by the name of its sink."""
        self.harmed: dict[str, str] = {}
        """Cause of harm, for each query that has lost something through a fault."""
        self.calm_s: float | None = None
        """When the faults ended, in virtual seconds; None before."""
        self.trace: list[str] = []
        self._migrations_seen: dict[int, int] = {}
        self.committed = self.abandoned = 0

    @property
    def hosts(self) -> Sequence[int]:
        """Returns the numbers of the nodes among which operators move."""
        return range(len(self.world.nodes)) if self._hosts is None else self._hosts

    @property
    def spare(self) -> Sequence[int]:
        """Returns the numbers of the nodes whose agents may restart or leave without loss."""
        return ()

    def tell(self, what: str, details: str) -> None:
        """Adds a line to the trace."""
        self.trace.append(f"{self.world.now:9.3f} s  {what:<10} {details}")

    @property
    def running(self) -> list[int]:
        """Returns the numbers of the nodes with an agent, of whatever kind."""
        return [number for number, agent in enumerate(self.world.agents) if agent is not None]

    @property
    def homes(self) -> set[int]:
        """Returns the numbers of the nodes whose agents own queries."""
        return {number for number, agent in self.agents() if agent.queries.owned.records}

    def agents(self) -> Iterator[tuple[int, Agent]]:
        """Yields the running agents with their numbers."""
        for number, agent in enumerate(self.world.agents):
            if isinstance(agent, Agent):
                yield number, agent

    def instances(self) -> Iterator[tuple[Agent, Instance]]:
        """Yields all operators of all running agents."""
        for _, agent in self.agents():
            for instance in agent.execution.operators.instances.values():
                yield agent, instance

    def idle(self) -> list[int]:
        """Returns the numbers of the spare nodes whose agents serve no query."""
        return [number for number, agent in self.agents() if number in self.spare and not self.served_by(agent)]

    def served_by(self, agent: Agent) -> set[str]:
        """Returns the names of queries that lose something if this agent ends now: rows, or the report that the sink has all rows."""
        users = {
            query for i in agent.execution.operators.instances.values() if i.state is not State.FINISHED or _owes(i) for query in i.users
        }
        sinks = {query for i in agent.execution.operators.instances.values() if i.sink is not None for query in i.users}
        heard = {
            record.id for _, home in self.agents() for record in home.queries.owned.records.values() if record.state is QueryState.FINISHED
        }
        return {name for name, query in self.ids.items() if query in users or query in sinks - heard}

    def harm(self, number: int, what: str) -> None:
        """Records the queries that are harmed because the agent of a node ends now."""
        agent = self.world.agents[number]
        if isinstance(agent, Agent):
            for name in sorted(self.served_by(agent)):
                self.harmed.setdefault(name, what)

    def tell_migrations(self) -> None:
        """Adds the migrations that have ended since the previous call to the trace."""
        for number, agent in self.agents():
            seen = self._migrations_seen.get(id(agent), 0)
            counters = agent.execution.migrations.counters
            ended = counters["migrations_committed"] + counters["migrations_abandoned"]
            for record in (
                list(agent.monitoring.measuring.migrations)[len(agent.monitoring.measuring.migrations) - (ended - seen) :]
                if ended > seen
                else []
            ):
                done = bool(record["committed"])
                self.committed += done
                self.abandoned += not done
                how = "committed" if done else f"abandoned: {record['outcome']}"
                self.tell("migration", f"{record['operator']} {self.world.nodes[number]} -> {record['there']} {how}")
            self._migrations_seen[id(agent)] = ended


def _owes(instance: Instance) -> bool:
    """Tells whether an output has unacknowledged batches."""
    return any(not output.sender.is_settled for output in instance.outputs.values())
