"""Tells when to look for another order of a running query's operators. A machine without I/O.

    looked at with each round of reports -> search (`sbon.planning.reordering`), once the rate of a source has been off by `OFF_SHARE` for
    `OFF_S` -> `looked`, or `failed`

What is measured at that moment is what later rates are compared with, so that a rate which has changed once leads to one search. As long
as some placement of the present order carries what comes, the order stays.

The query gets it by itself (`sbon.queries.adapting`), or when somebody asks for it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sbon.planning.resizing import OFF_S, OFF_SHARE
from sbon.query.params.source import SourceParams
from sbon.query.plan import Plan
from sbon.types import OperatorId
from sbon.wire.reports import OperatorReport

if TYPE_CHECKING:
    from sbon.planning.reordering import Reordered


class Ordering:
    """The order of one running query's operators.

    Parameters
    ----------
    plan : as placed, with the rates that are expected of its sources
    """

    def __init__(self, plan: Plan) -> None:
        sources = {spec.id for spec in plan.operators if isinstance(spec.params, SourceParams)}
        self._rates = {link.source: link.rate_rows_per_s / link.share for link in plan.links if link.source in sources}
        self._off_since_s: float | None = None
        self._is_asked = False
        self.better: Reordered | None = None
        """The order that carries what comes, where the present one does not; None if none is known."""
        self.outlook = ""
        """Clause on whether the query gets it by itself; empty if it does not."""

    def look(self, reports: Mapping[OperatorId, OperatorReport], now: float) -> bool:
        """Takes a round of reports; returns whether to search now: then call `looked` or `failed`."""
        if self._is_asked or not self._rates.keys() <= reports.keys():
            return False
        measured = {source: reports[source].rows_per_s_out for source in self._rates}
        if not any(abs(rate - self._rates[source]) > OFF_SHARE * self._rates[source] for source, rate in measured.items()):
            self._off_since_s = None
        elif self._off_since_s is None:
            self._off_since_s = now
        elif now - self._off_since_s >= OFF_S:
            self._rates, self._is_asked = measured, True
        return self._is_asked

    def looked(self, found: "Reordered") -> None:
        """Takes the result of a search."""
        self.better = found if found.plan is not None else None
        self.failed()

    def failed(self) -> None:
        """Takes that nothing has been found; the next search is for other rates."""
        self._is_asked, self._off_since_s = False, None

    @property
    def reason(self) -> str:
        """Describes that the present order does not carry what comes; empty if it does, or no order does."""
        if self.better is None:
            return ""
        outlook = self.outlook or "`sbon replan --order` gives it another one"
        return f"its operators do not carry what comes in this order: {self.better.text}; {outlook}"
