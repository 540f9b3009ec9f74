"""Checks that each file has the rows of a run on one node, each once, and in order if the query defines one.

A query that lost something when an agent ended may lack rows; `crashes` judges it.
"""

from sbon.supervision.record import QueryState
from sbon_testbed.random_queries.comparing import difference
from sbon_testbed.simulator.checkers.base import Checker


class Rows(Checker):
    """Compares files with the rows of a run on one node."""

    def converged(self) -> str:
        """Returns the first query that has not ended."""
        for asked in self.run.reference.queries:
            if asked.name in self.run.harmed:
                continue
            record = self.run.record_of(asked.name)
            if record is not None and record.health.healing.account.history:
                self.run.harmed[asked.name] = "a host was taken for failed"  # `crashes` judges it
                continue
            if record is None:
                return f"{asked.name} is unknown to all agents"
            if record.state is not QueryState.FINISHED:
                return f"{asked.name} is {record.state.value}: {record.reason or 'it goes on'}"
        return ""

    def end(self) -> str:
        """Returns the first difference of a query that lost nothing."""
        for asked in self.run.reference.queries:
            if asked.name in self.run.harmed or self.run.is_submitted_again(asked.name):
                continue
            found = asked.rows(self.run.world.data_dir_of(asked.sink))
            expected = self.run.reference.rows[asked.name]
            problem = difference(found, expected, asked.query.tolerances, ordered=asked.query.ordered)
            if problem:
                return f"{asked.name} has other rows than one node: {problem.replace('DuckDB only', 'one node only')}"
        return ""
