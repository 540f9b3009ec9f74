"""Keeps track of the multicasts on a query's links, for the query's home, from the reports of the operators that feed them.

Nobody announces a multicast. The host of an operator makes and ends its multicasts, and its next report lists them. The query's own links
keep their ids meanwhile, and are found in whichever operator's report they are.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from sbon.query.plan import target_of
from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire.reports import OperatorReport

MISSED_MAX = 3
"""Number of successive reports without a multicast after which it counts as lost; before that it may just have been folded."""


class QueryMulticasts:
    """Multicasts on the links of one query."""

    def __init__(self) -> None:
        self.feeders: dict[OperatorId, OperatorId] = {}
        """Each multicast, with the operator that feeds it."""
        self._queries: dict[OperatorId, int] = {}
        self._missed: Counter[OperatorId] = Counter()

    def heard(self, report: OperatorReport, nodes: dict[OperatorId, NodeId]) -> list[OperatorId]:
        """Takes an operator's report of the multicasts that it feeds, and updates `nodes`; returns the multicasts that have ended."""
        told = {name for name, _, _ in report.multicasts}
        for name, node, queries in report.multicasts:
            self.feeders[name], self._queries[name] = report.id, max(1, queries)
            if name not in nodes or self._missed[name]:
                nodes[name] = node
        self._missed.pop(report.id, None)
        ended = [name for name, feeder in self.feeders.items() if feeder == report.id and name not in told]
        for name in ended:  # includes those behind it: if another operator fed them now, its report would list them
            ended.extend(behind for behind, feeder in self.feeders.items() if feeder == name)
            del self.feeders[name], self._queries[name]
            self._missed.pop(name, None)
            nodes.pop(name, None)
        return ended

    def missed(self, name: OperatorId) -> bool:
        """Counts that the host of a multicast does not know it; returns True once that has happened too often."""
        self._missed[name] += 1
        return self._missed[name] > MISSED_MAX

    def carry(self, operator: OperatorId, link: LinkId, reports: Mapping[OperatorId, OperatorReport]) -> bool:
        """Tells whether a multicast behind an operator has this link, or might have it because it has not reported yet."""
        for name, feeder in self.feeders.items():
            if feeder == operator:
                report = reports.get(name)
                if report is None or _has(report, link) or self.carry(name, link, reports):
                    return True
        return False

    def feeding(self, reports: Mapping[OperatorId, OperatorReport]) -> Iterator[tuple[OperatorId, OperatorId, float]]:
        """Yields feeder, multicast and the query's share of the bytes per second between them."""
        for name, feeder in self.feeders.items():
            report = reports.get(feeder)
            for link, _, _, _, rate in report.links if report is not None else ():
                if target_of(link) == name:
                    yield feeder, name, rate / self._queries[name]


def carriers(reports: Mapping[OperatorId, OperatorReport]) -> dict[LinkId, OperatorId]:
    """Returns the operator that sends on each link, by the latest reports."""
    return {link: operator for operator, report in reports.items() for link, *_ in report.links}


def _has(report: OperatorReport, link: LinkId) -> bool:
    return any(known == link for known, *_ in report.links)
