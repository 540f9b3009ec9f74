"""Checks the queries of a seed whose answers, or rows, pass through programs outside the overlay by the connector `tcp`.

`docs/connectors.md`, *After a crash*, says what such queries may lose. A source must answer for the rows that its machine has received, and
no others: the virtual streams tell which. Streams that break lose bytes, and sinks lose the rows that no program takes: no more rows than
that may be missing, and none may come twice. If an agent that served a query has ended, a query that works row by row must have no wrong
rows, and must say what it lacks, also if rows came while the agent of its source was away. Only a sink need not: nobody counts what it had
in its buffers.
"""

from pathlib import Path

from sbon.connectors.line_sink import LineSink
from sbon.connectors.line_source import LineSource
from sbon.execution.instance import Instance
from sbon.supervision.record import QueryState
from sbon_testbed.leftovers import memory_folder, run_directory
from sbon_testbed.random_queries.comparing import alike, difference, differing
from sbon_testbed.random_queries.reading import without_special
from sbon_testbed.simulator.checkers.base import Checker
from sbon_testbed.simulator.reference import Rows
from sbon_testbed.simulator.run_state import Run
from sbon_testbed.simulator.tcp_traffic import TcpTraffic
from sbon_testbed.simulator.workload import ROW_BY_ROW

QUIET_LOOKS = 3
"""Successive calls of `converged` in which nothing moves, until a query without an end has given all its answers."""


class Tcp(Checker):
    """Compares what programs have sent, what agents have received, and what other programs have taken."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._sinks: dict[str, list[LineSink]] = {one.asked.name: [] for one in run.traffic}
        """All sinks that each query has had."""
        self._quiet = dict.fromkeys(self._sinks, 0)

    def look(self) -> str:
        """Notes the sinks, because a sink that ends counts the rows that it cannot deliver any more."""
        for one in self.run.traffic:
            known = self._sinks[one.asked.name]
            known += [i.sink for i in self._instances(one) if isinstance(i.sink, LineSink) and i.sink not in known]
        return ""

    def converged(self) -> str:
        """Returns the first query that has not given all its answers."""
        return next(filter(None, map(self._waits_for, self.run.traffic)), "")

    def end(self) -> str:
        """Returns the first query with wrong answers."""
        return next(filter(None, map(self._problem, self.run.traffic)), "")

    def _instances(self, one: TcpTraffic) -> list[Instance]:
        query = self.run.ids.get(one.asked.name)
        return [instance for _, instance in self.run.instances() if query in instance.users]

    def _waits_for(self, one: TcpTraffic) -> str:
        name, record = one.asked.name, self.run.record_of(one.asked.name)
        if record is None:
            return f"{name} is unknown to all agents"
        if record.health.healing.account.history:
            self.run.harmed.setdefault(name, "a host was taken for failed")
        if one.feeder is None and record.state is not QueryState.FINISHED:
            return f"{name} is {record.state.value}: {record.reason or 'it goes on'}"
        if one.feeder is not None and (record.state is not QueryState.RUNNING or record.lost or not one.feeder.is_done):
            return f"{name} is {record.state.value}: {record.reason or 'rows still come'}"
        self._quiet[name] = self._quiet[name] + 1 if self._is_quiet(one) else 0
        return "" if self._quiet[name] >= QUIET_LOOKS else f"{name} still has rows on their way"

    def _is_quiet(self, one: TcpTraffic) -> bool:
        for instance in self._instances(one):
            if isinstance(instance.source, LineSource) and instance.source.due_rows(0.0):
                return False
            if any(not output.sender.is_settled for output in instance.outputs.values()):
                return False
            if isinstance(instance.sink, LineSink) and instance.sink.waiting_bytes:
                return False
        return one.collector is None or one.collector.is_quiet

    def _problem(self, one: TcpTraffic) -> str:
        if self.run.is_submitted_again(one.asked.name):
            return ""
        with run_directory(memory_folder()) as folder:
            found, (expected, problem) = one.found(folder), self._expected(one, folder / "one")
        return problem or self._compared(one, found, expected)

    def _expected(self, one: TcpTraffic, folder: Path) -> tuple[Rows, str]:
        if one.feeder is not None:
            reference = one.expected(one.feeder.delivered, folder)
            return reference.rows.get(one.asked.name, []), reference.problem
        return without_special(self.run.reference.rows[one.asked.name]), ""

    def _compared(self, one: TcpTraffic, found: Rows, expected: Rows) -> str:
        query, harm = one.asked.query, self.run.harmed.get(one.asked.name)
        extra, lacking = differing(found, expected, query.tolerances)
        if harm is None:
            if extra:
                return f"{one.asked.name} has {len(extra)} rows too many, such as {extra[0]}"
            if len(lacking) > (lost := self._lost_rows(one)):
                return f"{one.asked.name} lacks {len(lacking)} rows, such as {lacking[0]}, and at most {lost} may be lost"
            return "" if lacking else difference(found, expected, query.tolerances, ordered=query.ordered)
        if query.shape not in ROW_BY_ROW:
            return ""  # operators with state may have begun empty
        if wrong := [row for row in extra if not any(alike(row, right, query.tolerances) for right in expected)]:
            return f"{one.asked.name} has rows that nobody sent, such as {wrong[0]}, after {harm}"
        record = self.run.record_of(one.asked.name)
        if record is None or record.reason:
            return ""
        if lacking and one.collector is None:
            return f"{one.asked.name} lacks {len(lacking)} rows, such as {lacking[0]}, and does not say so, after {harm}"
        if one.feeder is not None and one.feeder.lines_while_away:
            return f"{one.asked.name} lacks rows that came while the agent of its source was away, and does not say so, after {harm}"
        return ""

    def _lost_rows(self, one: TcpTraffic) -> int:
        """Returns the most rows that a sink without crashes may have lost with streams that broke, or because no program took them."""
        if one.collector is None:
            return 0
        least_bytes = len('{"c0":0}\n') + (len(one.asked.query.kinds) - 1) * len(',"c1":0')
        broken = sum(bool(end.lost_bytes) for end in one.collector.ends)  # each may have lost the rest of a line
        dropped = sum(sink.dropped_rows for sink in self._sinks[one.asked.name])
        return one.collector.lost_bytes // least_bytes + broken + dropped
