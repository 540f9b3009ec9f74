"""Rows that a query has lost where a link was made anew: which operator misses them, and about how many they are.

Nobody has counted them: they were on a host that has crashed, or were never sent. But what gives them counts what it gives, and what takes
them what it takes, so that the rows given since the taker's last ones, less those that went by the new link, are the lost ones: as exact
as the reports are frequent (`engine.report_interval_s`), by which the last rows may be older or younger than they seem.
"""

from collections.abc import Callable, Iterable, Mapping

from sbon.printable import printable
from sbon.query.plan import LinkSpec, target_of
from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire.reports import OperatorReport


class Losses:
    """Of one query."""

    def __init__(self) -> None:
        self._fed: dict[LinkId, tuple[int, int]] = {}
        """Rows that a link's target had taken when they last grew, and what its source had given by then."""
        self._uncounted: dict[LinkId, int] = {}
        """New links whose losses are not counted yet: what their sources had given when the old ones brought their last rows."""
        self._rows: dict[OperatorId, int] = {}
        self._sources: dict[OperatorId, OperatorId] = {}
        """Operators that have missed rows, and go on, by what they were cut off from."""
        self._unpackable: dict[tuple[LinkId, NodeId], tuple[OperatorId, int, str]] = {}
        """Links that have left rows out on a host: what gives them, how many rows, and what was wrong with the first."""

    def look(self, links: Iterable[LinkSpec], reports: Mapping[OperatorId, OperatorReport]) -> None:
        """After each round of reports."""
        for link in links:
            source, target = reports.get(link.source), reports.get(link.target)
            if source is None or target is None:
                continue
            taken = dict(target.received).get(link.id, 0)
            if taken > self._fed.get(link.id, (0, 0))[0]:
                self._fed[link.id] = (taken, source.rows_out)
            sent = next((sent for name, sent, *_ in source.links if name == link.id), None)
            if sent is not None and link.id in self._uncounted:
                lost = source.rows_out - sent - self._uncounted.pop(link.id)
                self._rows[link.target] = self._rows.get(link.target, 0) + max(0, lost)

    def reported(self, report: OperatorReport, links: Iterable[LinkId]) -> None:
        """Keep what an operator says of batches that could not be packed, of these links: it tells for as long as it stays on its host."""
        for link, rows, reason in report.left_out:
            if rows and (link in links or any(target_of(link) == name for name, *_ in report.multicasts)):
                self._unpackable[link, report.node] = (report.id, rows, printable(reason))

    @property
    def unpackable(self) -> bool:
        """Whether a link has left rows out."""
        return bool(self._unpackable)

    def refed(self, old: LinkSpec, new: LinkSpec) -> None:
        """A link has been made anew; what was under way by the old one is lost, and what was given since it broke."""
        self._sources[new.target] = new.source
        _, given = self._fed.pop(old.id, (0, None))
        given = self._uncounted.pop(old.id, given)  # broken again before the first loss was counted
        if given is not None:
            self._uncounted[new.id] = given

    @property
    def rows(self) -> int:
        """About how many, as far as they are counted."""
        return sum(self._rows.values()) + sum(rows for _, rows, _ in self._unpackable.values())

    def told(self, text_of: Callable[[OperatorId], str]) -> list[str]:
        """A sentence for each operator that misses rows."""
        sentences = []
        for operator, source in sorted(self._sources.items()):
            rows = f"about {self._rows[operator]:,} rows, " if operator in self._rows else "rows, those "
            sentences.append(f"{operator} ({text_of(operator)}) was cut off from {source}: {rows}under way or of the meantime, are lost")
        for (link, node), (operator, lost, why) in sorted(self._unpackable.items()):
            sentences.append(
                f"{operator} ({text_of(operator)}) on {node} could not pack {lost:,} rows for {target_of(link)}, which are lost: {why}"
            )
        return sentences
