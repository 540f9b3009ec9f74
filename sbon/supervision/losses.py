"""Counts the rows that a query has lost where a link was replaced: which operator misses them, and about how many.

The query's record uses it.

Nobody has seen these rows: they were on a crashed host, or were never sent. But the source counts the rows that it gives, in all and on
each link, and the target counts the rows that it takes. Lost are the rows given after the last ones that the target took, less those sent
on the new link. Where a multicast sends on the link, or only one part of the rows, nobody knows how many rows the source had given when the
target took its last ones. Then, and where the target has crashed, too, the count is only as exact as the reports are frequent
(`engine.report_interval_s`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from sbon.links.link_names import first_name, target_of
from sbon.printable import printable
from sbon.query.plan import LinkSpec
from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire.reports import OperatorReport


class Losses:
    """Lost rows of one query."""

    def __init__(self) -> None:
        self._fed: dict[LinkId, tuple[int, int]] = {}
        """For each link: the rows that its target had taken when that number last grew, and the rows that its source had given by then."""
        self._before: dict[LinkId, int] = {}
        """For each link that its source itself sends on: the rows that the source had given before the link's first row."""
        self._uncounted: dict[LinkId, int] = {}
        """New links whose losses are not counted yet, with the rows that their sources had given when the last row came over the old
        link."""
        self._rows: dict[OperatorId, int] = {}
        self._sources: dict[OperatorId, OperatorId] = {}
        """Operators that miss rows and run on, each with the operator that it was cut off from."""
        self._unpackable: dict[tuple[LinkId, NodeId], tuple[OperatorId, int, str]] = {}
        """Links that have left rows out on a host, with the operator that made the rows, their number, and the first error."""

    def look(self, links: Iterable[LinkSpec], reports: Mapping[OperatorId, OperatorReport]) -> None:
        """Updates the counts; called after each round of reports."""
        for link in links:
            source, target = reports.get(link.source), reports.get(link.target)
            if source is None or target is None:
                continue
            taken = dict(target.received).get(link.id, 0)
            sent = next((sent for name, sent, *_ in source.links if name == link.id), None)
            if sent is not None and link.part is None:
                self._before[link.id] = source.rows_out - sent
            before = self._before.get(link.id)
            known = self._fed.get(link.id, (0, 0))[0]
            if before is not None and taken >= known:
                self._fed[link.id] = (taken, before + taken)  # rows that wait on the link are not taken yet
            elif taken > known:
                self._fed[link.id] = (taken, source.rows_out)
            if sent is not None and link.id in self._uncounted:
                lost = source.rows_out - sent - self._uncounted.pop(link.id)
                self._rows[link.target] = self._rows.get(link.target, 0) + max(0, lost)

    def reported(self, report: OperatorReport, links: Iterable[LinkId]) -> None:
        """Records the rows for these links that an operator could not pack. It reports them only while it stays on its host."""
        for link, rows, reason in report.left_out:
            if rows and (link in links or any(target_of(link) == name for name, *_ in report.multicasts)):
                self._unpackable[link, report.node] = (report.id, rows, printable(reason))

    @property
    def unpackable(self) -> bool:
        """True if a link has left rows out."""
        return bool(self._unpackable)

    def refed(self, old: LinkSpec, new: LinkSpec) -> None:
        """Records that a link has been replaced: rows in transit on the old link, and rows given since it broke, are lost."""
        self._sources[new.target] = new.source
        _, given = self._fed.pop(old.id, (0, None))
        self._before.pop(old.id, None)
        given = self._uncounted.pop(old.id, given)  # it broke again before the first loss was counted
        if given is not None:
            self._uncounted[new.id] = given

    def ended(self, link: LinkSpec, source: Sequence[OperatorReport], target: OperatorReport) -> None:
        """Records that a link has ended, as its source is gone for good. Rows given after the last ones that the target took are lost.

        Parameters
        ----------
        source : the last reports of the source
        """
        self._sources[link.target] = link.source
        given = self._uncounted.pop(link.id, self._fed.pop(link.id, (0, None))[1])
        # If the target has been made again since, the link has another id, but its numbers have gone on.
        sent = [sent for report in source for name, sent, *_ in report.links if first_name(name) == first_name(link.id)]
        if sent:
            lost = max(sent) - dict(target.received).get(link.id, 0)
        elif given is not None:
            lost = max((report.rows_out for report in source), default=0) - given
        else:
            return
        self._rows[link.target] = self._rows.get(link.target, 0) + max(0, lost)

    @property
    def any(self) -> bool:
        """True if a link has been replaced, or has left rows out."""
        return bool(self._sources or self._unpackable)

    @property
    def rows(self) -> int:
        """Approximate number of lost rows, as far as counted."""
        return sum(self._rows.values()) + sum(rows for _, rows, _ in self._unpackable.values())

    def told(self, text_of: Callable[[OperatorId], str]) -> list[str]:
        """Returns a sentence for each operator that misses rows."""
        sentences = []
        for operator, source in sorted(self._sources.items()):
            rows = f"about {self._rows[operator]:,} rows" if operator in self._rows else "rows"
            sentences.append(f"{operator} ({text_of(operator)}) was cut off from {source}: {rows} sent before it was fed again are lost")
        for (link, node), (operator, lost, why) in sorted(self._unpackable.items()):
            sentences.append(
                f"{operator} ({text_of(operator)}) on {node} could not pack {lost:,} rows for {target_of(link)}, which are lost: {why}"
            )
        return sentences
