"""The state of one simulated seed that faults and checkers share: world, workload, trace, and what faults have destroyed."""

from collections.abc import Iterator, Mapping
from copy import copy

from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.supervision.record import QueryRecord, QueryState
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.reference import Reference
from sbon_testbed.simulator.workload import Workload

ACTIVE = frozenset(
    (
        *(State.RUNNING, State.STALLED, State.RESTING, State.PAUSED, State.FORKING),
        *(State.EXPORTED, State.FINISHING, State.FINISHED),
    )
)
"""States in which an operator is the one that its links mean; one that is being made or has arrived and waits for the word is not."""
TRACE_LINES = 60
"""Lines of the trace that are shown, the latest ones."""


class Run:
    """One seed under way."""

    def __init__(self, workload: Workload, reference: Reference, world: World) -> None:
        self.workload, self.reference, self.world = workload, reference, world
        self.ids: dict[str, str] = {}
        """For each query, by the name of its sink, its id."""
        self.harmed: dict[str, str] = {}
        """For each query of which a fault has destroyed something, what."""
        self.finished: dict[str, QueryRecord] = {}
        """Knowledge of the owner of a query at its end."""
        self.calm_s: float | None = None
        """When the faults ended, in virtual seconds; None before."""
        self.trace: list[str] = []
        self._migrations_seen: dict[int, int] = {}
        self.committed = self.abandoned = 0

    def tell(self, what: str, details: str) -> None:
        """Adds a line to the trace."""
        self.trace.append(f"{self.world.now:9.3f} s  {what:<10} {details}")

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

    def record_of(self, name: str) -> QueryRecord | None:
        """Returns what the owner of a query knows of it, or knew at its end; None if nobody owns it at present.

        Of several agents that call themselves its owner, or have ended it, it is the one under the highest ownership epoch: a former owner
        may not have heard yet that another one has followed it. A query that its home has begun anew counts above all.
        """
        found = [
            (bool(record.former), register.owners.of(record.id).epoch, records is register.running, record)
            for register in (agent.queries.owned.register for _, agent in self.agents())
            for records in (register.running, register.ended)
            if (record := self._of(records, name)) is not None
        ]
        if found:
            return max(found, key=lambda one: one[:3])[3]
        # A home that has restarted without knowing that the query had finished is about to run it anew.
        waiting = [agent.queries.resuming.find(name) for _, agent in self.agents()]
        return None if any(kept is not None and not kept.finished for kept in waiting) else self.finished.get(name)

    def is_anew(self, name: str) -> bool:
        """Tells whether the home of a query has restarted and begun it anew, as nobody had its record: its sink adds to what is there."""
        record = self.record_of(name)
        return record is not None and record.id != self.ids[name]

    def watch_ends(self) -> None:
        """Notes queries that have finished, also those whose last figures are still being asked for: whoever owned them may be killed
        later."""
        for name in self.ids:
            for _, agent in self.agents():
                register = agent.queries.owned.register
                record = self._of(register.ended, name) or self._of(register.running, name)
                if name not in self.finished and record is not None and record.state is QueryState.FINISHED:
                    # An owner that may not end the query yet, as too few keepers answer, calls it running again until they do.
                    self.finished[name] = copy(record)

    def served_by(self, agent: Agent) -> set[str]:
        """Returns the names of the queries that lose something if this agent ends now: rows, or the news that the sink has them all."""
        users = {
            query for i in agent.execution.operators.instances.values() if i.state is not State.FINISHED or _owes(i) for query in i.users
        }
        sinks = {query for i in agent.execution.operators.instances.values() if i.sink is not None for query in i.users}
        heard = {
            record.id for _, home in self.agents() for record in home.queries.owned.records.values() if record.state is QueryState.FINISHED
        }
        return {name for name, query in self.ids.items() if query in users or query in sinks - heard}

    def harm(self, agent: Agent, what: str) -> None:
        """Records that an agent ends now with all that it has."""
        for name in sorted(self.served_by(agent)):
            self.harmed.setdefault(name, what)

    def _of(self, records: Mapping[str, QueryRecord], name: str) -> QueryRecord | None:
        """Returns what is known of a query, which has another id once its home has begun it anew."""
        return records.get(self.ids[name]) or next((record for record in records.values() if record.name == name and record.former), None)

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
    """Tells whether an output has batches that nobody has acknowledged."""
    return any(not output.sender.is_settled for output in instance.outputs.values())
