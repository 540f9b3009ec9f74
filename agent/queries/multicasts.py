"""The multicasts on a query's links, as the agent that took the query learns of them: from the reports of the operators that feed them.

Nobody announces a multicast. It is made and ended by whoever hosts the operator, and that host's next report says what is now; a query's
own links keep their names meanwhile and are found wherever they are reported.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from sbon.query.plan import target_of
from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire.reports import OperatorReport

MISSED_MAX = 3
"""A multicast that its host does not know may have been folded an instant ago; after so many reports in a row it is lost."""


class QueryMulticasts:
    """Those of one query."""

    def __init__(self) -> None:
        self.feeders: dict[OperatorId, OperatorId] = {}
        """Each multicast, and the operator that feeds it."""
        self._queries: dict[OperatorId, int] = {}
        self._missed: Counter[OperatorId] = Counter()

    def heard(self, report: OperatorReport, nodes: dict[OperatorId, NodeId]) -> list[OperatorId]:
        """Take what an operator reports of the multicasts that it feeds, `nodes` too; returns those that have ended."""
        told = {name for name, _, _ in report.multicasts}
        for name, node, queries in report.multicasts:
            self.feeders[name], self._queries[name] = report.id, max(1, queries)
            if name not in nodes or self._missed[name]:
                nodes[name] = node
        self._missed.pop(report.id, None)
        ended = [name for name, feeder in self.feeders.items() if feeder == report.id and name not in told]
        for name in ended:  # and what it fed: fed by another one, that would have been told
            ended.extend(behind for behind, feeder in self.feeders.items() if feeder == name)
            del self.feeders[name], self._queries[name]
            self._missed.pop(name, None)
            nodes.pop(name, None)
        return ended

    def missed(self, name: OperatorId) -> bool:
        """Its host does not know a multicast; True if that has been so for too long."""
        self._missed[name] += 1
        return self._missed[name] > MISSED_MAX

    def carry(self, operator: OperatorId, link: LinkId, reports: Mapping[OperatorId, OperatorReport]) -> bool:
        """Whether a multicast behind an operator has this link, or one that has not reported yet may have it."""
        for name, feeder in self.feeders.items():
            if feeder == operator:
                report = reports.get(name)
                if report is None or _has(report, link) or self.carry(name, link, reports):
                    return True
        return False

    def feeding(self, reports: Mapping[OperatorId, OperatorReport]) -> Iterator[tuple[OperatorId, OperatorId, float]]:
        """Feeder, multicast, and the query's share of the bytes/s between them."""
        for name, feeder in self.feeders.items():
            report = reports.get(feeder)
            for link, _, _, _, rate in report.links if report is not None else ():
                if target_of(link) == name:
                    yield feeder, name, rate / self._queries[name]


def carriers(reports: Mapping[OperatorId, OperatorReport]) -> dict[LinkId, OperatorId]:
    """The operator that has each link, by the latest reports."""
    return {link: operator for operator, report in reports.items() for link, *_ in report.links}


def _has(report: OperatorReport, link: LinkId) -> bool:
    return any(known == link for known, *_ in report.links)
