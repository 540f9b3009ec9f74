"""Other queries' operators that a query uses, and that are gone and not made again, as those queries have finished (docs/recovery.md).

Rows that they had given and the query has not taken are lost. Their links end, so that the query need not wait for them.
"""

from typing import TYPE_CHECKING

from sbon.query.plan import LinkSpec
from sbon.supervision.health import GONE, WITH_HOST
from sbon.types import OperatorId
from sbon.wire.reports import OperatorReport

if TYPE_CHECKING:
    from sbon.supervision.record import QueryRecord


def unmade(record: "QueryRecord") -> frozenset[OperatorId]:
    """Returns these operators, including those whose links have ended."""
    healing = record.health.healing
    return frozenset(healing.unmade.keys() | (healing.over - record.specs.keys()))


def heard_over(record: "QueryRecord", report: OperatorReport) -> None:
    """Records the report of an operator's home that it is not made again, unless it names a host that has not been asked yet."""
    one = report.id
    if one in record.specs or record.moved(one, report.node, report.epoch) or record.health.of(one) not in WITH_HOST:
        return
    record.health.healing.unmade[one] = report
    if all(link.source != one for link in record.links):
        _forget(record, one)


def ended_links(record: "QueryRecord") -> list[LinkSpec]:
    """Returns links to living operators whose sources are not made again."""
    gone, sources = {*record.health.those(GONE | WITH_HOST), *record.health.healing.turned}, unmade(record)
    return [
        link
        for link in record.links
        if link.source in sources
        and link.target not in gone
        and (target := record.reports.get(link.target)) is not None
        and target.node == record.nodes.get(link.target)
    ]


def ended(record: "QueryRecord", old: LinkSpec, new: LinkSpec) -> None:
    """Notes that a link has ended, under a new id. Rows that its source had given and its target has not taken are lost."""
    record.links = tuple(new if link.id == old.id else link for link in record.links)
    told = (record.reports.get(old.source), record.health.healing.unmade.get(old.source))
    record.losses.ended(old, [report for report in told if report is not None], record.reports[old.target])
    _forget(record, old.source)


def _forget(record: "QueryRecord", operator: OperatorId) -> None:
    """Forgets that an operator and its multicasts are gone: they are not needed any more."""
    for one in (operator, *record.multicasts.fed_by(operator)):
        record.health.healing.over.add(one)
        record.health.forget(one)
