"""Tells when to look for another order of a running query's operators. A machine without I/O.

    looked at with each round of reports -> search (`sbon.planning.reordering`), once the rate of a source has been off by `OFF_SHARE` for
    `OFF_S` -> `looked`, or `failed`

Later rates are compared with those measured at that moment, so that a rate which has changed once leads to one search. As long as some
placement of the present order carries the incoming rows, the order stays.

The query changes to the better order by itself (`sbon.queries.adapting`), or on request.
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
    plan : as placed, with the expected rates of its sources
    """

    def __init__(self, plan: Plan) -> None:
        sources = {spec.id for spec in plan.operators if isinstance(spec.params, SourceParams)}
        self._rates = {link.source: link.rate_rows_per_s / link.share for link in plan.links if link.source in sources}
        self._off_since_s: float | None = None
        self._is_asked = False
        self.better: Reordered | None = None
        """The order that carries the incoming rows, where the present one does not; None if none is known."""
        self.outlook = ""
        """Clause on whether the query changes to it by itself; empty if it does not."""

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
        """Ends a search without a result; the next one is for other rates."""
        self._is_asked, self._off_since_s = False, None

    @property
    def reason(self) -> str:
        """Says that the present order does not carry the incoming rows; empty if it does, or no order does."""
        if self.better is None:
            return ""
        outlook = self.outlook or "`sbon replan --order` reorders them"
        return f"its operators do not carry the incoming rows in this order: {self.better.text}; {outlook}"
