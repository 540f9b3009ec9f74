"""What is lost with an agent: nothing but what it had, and never without a word.

Before an agent is killed, it is noted which queries have something there. Those alone may lack rows. Their home must call them degraded, or
finished where the rows of the others have all come, and say why. If it says nothing, all rows must be there. A query that works row by row
has no wrong rows either, only fewer.
"""

from collections import Counter

from sbon.supervision.record import QueryState
from sbon_testbed.random_queries.comparing import difference
from sbon_testbed.simulator.checkers.base import Checker
from sbon_testbed.simulator.workload import ROW_BY_ROW


class Crashes(Checker):
    """Judges the queries that were harmed and whose homes still run."""

    def converged(self) -> str:
        """Returns the first harmed query that looks well."""
        homes = dict(self.run.agents())
        for asked in self.run.reference.queries:
            if asked.name not in self.run.harmed or asked.name in self.run.orphaned:
                continue
            record = homes[asked.owner].queries.find(self.run.ids[asked.name])
            if record is None:
                return f"{asked.name} is unknown to its home"
            if record.state not in (QueryState.DEGRADED, QueryState.FINISHED):
                return f"{asked.name} is {record.state.value}, but {self.run.harmed[asked.name]}"
            if record.state is QueryState.DEGRADED and not record.reason:
                return f"{asked.name} is degraded without a reason, and {self.run.harmed[asked.name]}"
        return ""

    def end(self) -> str:
        """Returns the first harmed query that lacks rows without a reason, or has rows that nobody expects."""
        homes = dict(self.run.agents())
        for asked in self.run.reference.queries:
            if asked.name not in self.run.harmed:
                continue
            query, expected = asked.query, self.run.reference.rows[asked.name]
            found = asked.rows(self.run.world.data_dir_of(asked.sink))
            record = homes[asked.owner].queries.find(self.run.ids[asked.name])
            if record is not None and record.state is QueryState.FINISHED and not record.reason:
                problem = difference(found, expected, query.tolerances, ordered=query.ordered)
                if problem:
                    return f"{asked.name} is called finished without a reason after {self.run.harmed[asked.name]}: {problem}"
            extra = Counter(map(repr, found)) - Counter(map(repr, expected))
            if query.shape in ROW_BY_ROW and not any(tolerance > 1e-9 for tolerance in query.tolerances) and extra:
                return f"{asked.name} has rows that one node does not give, after {self.run.harmed[asked.name]}: {next(iter(extra))}"
        return ""
