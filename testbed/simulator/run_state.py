"""The state of one seed of `sbon testbed simulate`: an overlay under faults with its workload, right answers, and records of queries."""

from collections.abc import Mapping, Sequence
from copy import copy

from sbon.supervision.record import QueryRecord, QueryState
from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.reference import Reference
from sbon_testbed.simulator.tcp_traffic import TcpQuery, TcpTraffic
from sbon_testbed.simulator.workload import Workload


class Run(Case):
    """One seed under way, whose queries are those of a workload."""

    def __init__(self, workload: Workload, reference: Reference, world: World, tcp: Sequence[TcpQuery] = ()) -> None:
        super().__init__(world, workload.seed)
        self.workload, self.reference = workload, reference
        self.traffic = [TcpTraffic(query, workload, world) for query in tcp]
        """Queries with programs outside the overlay, which are no queries of the reference."""
        self.finished: dict[str, QueryRecord] = {}
        """Owner's record of each finished query, at its end."""

    @property
    def spare(self) -> Sequence[int]:
        """Returns the nodes without source, sink or home."""
        return self.workload.spare

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

    def is_submitted_again(self, name: str) -> bool:
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

    def _of(self, records: Mapping[str, QueryRecord], name: str) -> QueryRecord | None:
        """Returns a query's record, also if its home has begun the query again under another id."""
        return records.get(self.ids[name]) or next((record for record in records.values() if record.name == name and record.former), None)
