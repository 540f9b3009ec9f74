"""Asks the hosts of queries for reports on the operators, and tells hosts about lost inputs, broken links and the slack of delay bounds.

`sbon.queries` calls it.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from sbon.cost.store import CostStore
from sbon.errors import SbonError
from sbon.execution.life import State
from sbon.membership.members import MemberStatus
from sbon.ports import Clock
from sbon.query.multicast_ids import is_multicast
from sbon.supervision.delay_bounds import DelayBounds
from sbon.supervision.health import LOST, WITH_HOST
from sbon.supervision.record import QueryRecord, is_undecided
from sbon.supervision.refeeding import Refeeding
from sbon.types import NodeId, OperatorId, QueryId
from sbon.wire.authority import query_of
from sbon.wire.deployment import InputLost
from sbon.wire.messages import Message
from sbon.wire.migration import Activate
from sbon.wire.reports import OperatorReport, OperatorReports, OperatorsAsk
from sbon.wire.requests import Messages

REPORT_TIMEOUT_S = 5.0
ASKED_AT_ONCE = 64
"""Number of queries whose hosts are asked for reports at the same time."""
ASK_PAUSE_S = 0.1
"""Pause before the hosts of the next group of queries are asked, in seconds."""


DepartureOf = Callable[[NodeId], MemberStatus | None]
"""Returns how a host has gone, FAILED or LEFT; None if it has not."""


class Forecasting(Protocol):
    """Compares latencies with predictions."""

    def look(self, record: QueryRecord) -> None:
        """Compares the latency of a query with its prediction, after a round of reports."""


def news_of(record: QueryRecord, report: OperatorReport, node: NodeId, asked: int) -> OperatorReport | None:
    """Returns a host's report on an operator as the query's record is to take it; None if it is no news.

    Not news: a report on a copy that waits for the command to run, and a report from before the operator left the host and came back.

    A report that the operator has moved away becomes `missing` if the operator has moved back to the host since: the former host crashed
    before it could tell the new copy to run, so that the copy has ended. The host knows only the earlier move.

    Parameters
    ----------
    node : the host
    asked : epoch that the operator was known to have when the host was asked
    """
    if report.state == "over":
        return report
    known, is_there = record.epochs.get(report.id, 0), record.nodes.get(report.id) == node
    if report.state == "moved":
        is_gone = is_there and report.id in record.specs and report.epoch < asked == known
        return OperatorReport(report.id, "missing", node) if is_gone else report
    is_late = asked < known if report.state == "missing" else report.epoch < known
    return report if is_there and not is_late and not is_undecided(report, known) else None


def waits_for_word(record: QueryRecord, report: OperatorReport, node: NodeId) -> bool:
    """Tells whether an operator waits for the command to run on a host to which it has certainly moved: its old host may have crashed."""
    here = (record.nodes.get(report.id), record.epochs.get(report.id, 0))
    return report.state == State.PREPARED.told and here == (node, report.epoch)


def lose_unheard(record: QueryRecord, departure_of: DepartureOf) -> None:
    """Notes operators that are gone with hosts from which they have not reported: news of a move may come after the host's failure."""
    heard = {(one, report.node) for one, report in record.reports.items()}
    for node in {node for one, node in record.nodes.items() if (one, node) not in heard and record.health.of(one) not in LOST}:
        if (gone := departure_of(node)) is not None:
            record.node_failed(node, left=gone is MemberStatus.LEFT)


class Watching:
    """Rounds of reports about the queries of one agent.

    Parameters
    ----------
    records : the running queries
    reported : called with a query after each report
    cost_store : takes the costs that hosts report
    forecasting : compares latencies with predictions
    owner_of : returns the owner of a query
    """

    def __init__(
        self,
        host: Clock,
        directory: Messages,
        records: Mapping[QueryId, QueryRecord],
        reported: Callable[[QueryRecord], None],
        cost_store: CostStore,
        forecasting: Forecasting,
        owner_of: Callable[[QueryId], NodeId],
        departure_of: DepartureOf,
    ) -> None:
        self._host = host
        self._directory = directory
        self._records = records
        self._reported = reported
        self._cost_store = cost_store
        self._forecasting = forecasting
        self._owner_of = owner_of
        self._departure_of = departure_of
        self._bounds = DelayBounds()
        self._refeeding = Refeeding(directory)

    def watch(self) -> None:
        """Asks the hosts for reports on all operators; called every `engine.report_interval_s`.

        The queries are asked about in groups: a host takes a limited number of requests at a time (`peers.requests_max`), and would never
        report on the last ones.
        """
        records = list(self._records.values())
        for number, first in enumerate(range(0, len(records), ASKED_AT_ONCE)):
            watch = partial(self._watch, records[first : first + ASKED_AT_ONCE])
            if number:
                self._host.call_at(self._host.now() + number * ASK_PAUSE_S, watch)
            else:
                watch()

    def _watch(self, records: list[QueryRecord]) -> None:
        for record in records:
            if record.id in self._records:
                self.ask(record, self._compared)

    def _compared(self, record: QueryRecord) -> None:
        self._tell(self._bounds.reported(record))
        self._forecasting.look(record)

    def ask(self, record: QueryRecord, then: Callable[[QueryRecord], None]) -> None:
        """Asks all hosts of a query; calls `then` when all have answered or timed out."""
        by_node: dict[NodeId, list[OperatorId]] = {}
        for operator, node in record.nodes.items():
            by_node.setdefault(node, []).append(operator)
        for operator in record.health.those(WITH_HOST):
            if (
                operator not in record.specs
                and not is_multicast(operator)
                and (home := self._owner_of(query_of(operator))) != record.nodes[operator]
            ):
                by_node.setdefault(home, []).append(operator)  # another query's operator: that query's home makes it again, and knows where
        waiting = set(by_node)
        before, epochs = dict(record.nodes), dict(record.epochs)
        there = {node for node in by_node if self._departure_of(node) is None}

        def answered(node: NodeId, result: Message | SbonError) -> None:
            waiting.discard(node)
            lose_unheard(record, self._departure_of)
            is_late = node in there and self._departure_of(node) is not None  # asked before it departed, and its departure is known
            if isinstance(result, OperatorReports) and not is_late:
                self._cost_store.hear(node, result.host, result.costs, self._host.now())
                for report in result.reports:
                    if waits_for_word(record, report, node):
                        self._directory.tell(node, Activate(operator=report.id, epoch=report.epoch))
                    if report.state == "over" and record.nodes.get(report.id) == node:
                        record.reported(OperatorReport(report.id, "missing", node))
                    if (news := news_of(record, report, node, epochs.get(report.id, 0))) is not None:
                        record.reported(news)
                self._reported(record)
            if not waiting:
                self._tell_of_lost_inputs(record)
                record.losses.look(record.links, record.reports)
                self._refeeding.look(record, self._host.now())
                then(record)
                if any(record.nodes.get(one) != node for one, node in before.items() if one not in record.specs and one in record.nodes):
                    self.ask(record, self._compared)  # another query's operator runs elsewhere now: ask whether it feeds this query

        for node, operators in sorted(by_node.items()):
            self._directory.request(
                node, OperatorsAsk(operators=tuple(operators), query=record.id), partial(answered, node), REPORT_TIMEOUT_S
            )

    def moved(self, record: QueryRecord) -> None:
        """Tells the hosts of a query the slack that is left after an operator has moved."""
        self._tell(self._bounds.moved(record))

    def forget(self, query: QueryId) -> None:
        """Forgets a query that has ended."""
        self._refeeding.forget(query)

    def _tell(self, messages: Iterable[tuple[NodeId, Message]]) -> None:
        for node, message in messages:
            self._directory.tell(node, message)

    def _tell_of_lost_inputs(self, record: QueryRecord) -> None:
        """Tells operators about inputs whose sources are gone for good (failed, or forgotten by a host that has restarted)."""
        for link in record.lost_links():
            self._directory.tell(record.nodes[link.target], InputLost(operator=link.target, link=link.id))
