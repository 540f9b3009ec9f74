"""The state of one simulated seed that faults and checkers share: world, workload, trace, and queries harmed by faults."""

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
"""States in which an operator owns its links. An operator that is being made, or has arrived and waits to be activated, does not."""
TRACE_LINES = 60
"""Number of lines of the trace that are shown, the latest ones."""


class Run:
    """One seed under way."""

    def __init__(self, workload: Workload, reference: Reference, world: World) -> None:
        self.workload, self.reference, self.world = workload, reference, world
        self.ids: dict[str, str] = {}
        """Id of each query, by the name of its sink."""
        self.harmed: dict[str, str] = {}
        """Cause of harm, for each query that has lost something through a fault."""
        self.finished: dict[str, QueryRecord] = {}
        """Owner's record of each finished query, at its end."""
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
        """Returns the owner's record of a query, or its record at the query's end; None if no agent owns it at present.

        If several agents claim to own the query, or have ended it, the highest ownership epoch decides, because an earlier owner may not
        know of its successor yet. A query that its home has begun again takes precedence.
        """
        found = [
            (bool(record.former), register.owners.of(record.id).epoch, records is register.running, record)
            for register in (agent.queries.owned.register for _, agent in self.agents())
            for records in (register.running, register.ended)
            if (record := self._of(records, name)) is not None
        ]
        if found:
            return max(found, key=lambda one: one[:3])[3]
        # A home that has restarted without knowing that the query had finished is about to run it again.
        waiting = [agent.queries.resuming.find(name) for _, agent in self.agents()]
        return None if any(kept is not None and not kept.finished for kept in waiting) else self.finished.get(name)

    def is_anew(self, name: str) -> bool:
        """Tells whether the home of a query has restarted and begun it again, because no agent had its record. Its sink then adds rows to
        the file."""
        record = self.record_of(name)
        return record is not None and record.id != self.ids[name]

    def watch_ends(self) -> None:
        """Records finished queries, including those whose last figures are still being requested, because their owners may be killed
        later."""
        for name in self.ids:
            for _, agent in self.agents():
                register = agent.queries.owned.register
                record = self._of(register.ended, name) or self._of(register.running, name)
                if name not in self.finished and record is not None and record.state is QueryState.FINISHED:
                    # An owner that may not end the query yet, because too few keepers answer, shows it as running again until they do.
                    self.finished[name] = copy(record)

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

    def harm(self, agent: Agent, what: str) -> None:
        """Records the queries that are harmed because an agent ends now."""
        for name in sorted(self.served_by(agent)):
            self.harmed.setdefault(name, what)

    def _of(self, records: Mapping[str, QueryRecord], name: str) -> QueryRecord | None:
        """Returns a query's record, also if its home has begun the query again under another id."""
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
    """Tells whether an output has unacknowledged batches."""
    return any(not output.sender.is_settled for output in instance.outputs.values())
