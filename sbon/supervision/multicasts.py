"""Keeps track of the multicasts on a query's links, for the query's home, from the reports of the operators that feed them.

Nobody announces a multicast. The host of an operator makes and ends its multicasts, and its next report lists them. The query's own links
keep their ids, and appear in the report of the operator that sends on them. The query's kept record has the multicasts, too, because one
may fail together with the owner, and the sources of its links do not report these links.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping

import msgspec

from sbon.links.link_names import first_name, target_of
from sbon.query.multicast_ids import is_multicast
from sbon.query.plan import LinkSpec
from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire.reports import OperatorReport

MISSED_MAX = 3
"""Number of successive reports without a multicast after which it counts as lost; before that it may just have been folded."""


class KeptMulticast(msgspec.Struct, frozen=True, array_like=True):
    """A multicast, as the kept record of a query describes it."""

    name: OperatorId
    feeder: OperatorId
    queries: int
    """Number of queries that use it."""
    links: tuple[LinkId, ...]
    """First names of the links that it sends on."""


class QueryMulticasts:
    """Multicasts on the links of one query."""

    def __init__(self) -> None:
        self.feeders: dict[OperatorId, OperatorId] = {}
        """Each multicast, with the operator that feeds it."""
        self._queries: dict[OperatorId, int] = {}
        self._links: dict[OperatorId, tuple[LinkId, ...]] = {}
        """First names of the links that each multicast sent on by its latest report."""
        self._missed: Counter[OperatorId] = Counter()

    @property
    def kept(self) -> tuple[KeptMulticast, ...]:
        """Returns the multicasts for the kept record of the query."""
        return tuple(
            KeptMulticast(name, feeder, self._queries[name], self._links.get(name, ())) for name, feeder in sorted(self.feeders.items())
        )

    def restore(self, kept: Iterable[KeptMulticast]) -> None:
        """Takes over the multicasts that a former owner knew."""
        for one in kept:
            self.feeders[one.name], self._queries[one.name], self._links[one.name] = one.feeder, one.queries, one.links

    def heard(self, report: OperatorReport, nodes: dict[OperatorId, NodeId]) -> list[OperatorId]:
        """Takes an operator's report of the multicasts that it feeds, and updates `nodes`; returns the multicasts that have ended."""
        if is_multicast(report.id):
            self._links[report.id] = tuple(sorted(first_name(link) for link, *_ in report.links))
        told = {name for name, _, _ in report.multicasts}
        for name, node, queries in report.multicasts:
            self.feeders[name], self._queries[name] = report.id, max(1, queries)
            if name not in nodes or self._missed[name]:
                nodes[name] = node
        self._missed.pop(report.id, None)
        ended = [name for name, feeder in self.feeders.items() if feeder == report.id and name not in told]
        for name in ended:  # and multicasts behind it: if another operator fed them now, its report would list them
            ended.extend(behind for behind, feeder in self.feeders.items() if feeder == name)
            del self.feeders[name], self._queries[name]
            self._missed.pop(name, None)
            self._links.pop(name, None)
            nodes.pop(name, None)
        return ended

    def missed(self, name: OperatorId) -> bool:
        """Counts a report in which the host of a multicast does not know it; returns True after too many of them in succession."""
        self._missed[name] += 1
        return self._missed[name] > MISSED_MAX

    def fed_by(self, operator: OperatorId) -> tuple[OperatorId, ...]:
        """Returns the multicasts that an operator feeds."""
        return tuple(name for name, feeder in self.feeders.items() if feeder == operator)

    def carry(
        self, operator: OperatorId, link: LinkId, reports: Mapping[OperatorId, OperatorReport], gone: Container[OperatorId] = ()
    ) -> bool:
        """Tells whether a multicast behind an operator has this link, or might have it because it has not reported yet.

        Parameters
        ----------
        gone : multicasts that have ended although their feeders report them: a feeder that has nothing more to send does not notice
        """
        for name in self.fed_by(operator):
            report = reports.get(name)
            if name not in gone and (report is None or _has(report, link) or self.carry(name, link, reports, gone)):
                return True
        return False

    def carriers(self, links: Iterable[LinkSpec], reports: Mapping[OperatorId, OperatorReport]) -> dict[LinkId, OperatorId]:
        """Returns the operator that sends on each link, by the latest reports.

        Parameters
        ----------
        links : the query's links; one whose multicast has not reported yet is at the multicast that last had it
        """
        kept = {link: name for name, carried in self._links.items() if name in self.feeders and name not in reports for link in carried}
        known = {link: operator for operator, report in reports.items() for link, *_ in report.links}
        return {**{link.id: kept[name] for link in links if (name := first_name(link.id)) in kept}, **known}

    def feeding(self, reports: Mapping[OperatorId, OperatorReport]) -> Iterator[tuple[OperatorId, OperatorId, float]]:
        """Yields feeder, multicast and the query's share of the bytes per second between them."""
        for name, feeder in self.feeders.items():
            report = reports.get(feeder)
            for link, _, _, _, rate in report.links if report is not None else ():
                if target_of(link) == name:
                    yield feeder, name, rate / self._queries[name]


def _has(report: OperatorReport, link: LinkId) -> bool:
    return any(known == link for known, *_ in report.links)
