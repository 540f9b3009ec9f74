"""Queries that have been dropped, and live on without their sinks as long as others use their operators (docs/recovery.md)."""

from typing import TYPE_CHECKING

import msgspec

from sbon.execution.life import State
from sbon.query.plan import is_multicast
from sbon.supervision.health import WITH_HOST
from sbon.types import OperatorId
from sbon.wire.authority import query_of

if TYPE_CHECKING:
    from sbon.supervision.record import QueryRecord


def is_dropped(record: "QueryRecord") -> bool:
    """Tells whether a query has no sink any more, and lives on because others use its operators."""
    return record.sink not in record.specs


def used_by_others(record: "QueryRecord") -> frozenset[OperatorId]:
    """Returns the operators that other queries use by their last reports, with all that feeds them.

    A query uses what feeds an operator that it uses; its own operators do not say so while their hosts are silent.
    """
    found = {operator for operator in record.nodes if operator != record.sink and _has_other_user(record, operator)}
    if found.isdisjoint(record.specs):
        return frozenset()
    feeders = {operator for operator in found if not is_multicast(operator)}
    while more := {link.source for link in record.links if link.target in feeders} - feeders:
        feeders |= more
    return frozenset(found | feeders)


def is_unused(record: "QueryRecord") -> bool:
    """Tells whether its operators have said that no other query uses them; those that had finished before they were lost do not matter."""
    return all(
        operator in record.health.healing.others
        and (not _has_other_user(record, operator) or (is_over(record, operator) and record.health.of(operator) in WITH_HOST))
        for operator in record.specs
        if operator not in record.health.healing.over
    )


def _has_other_user(record: "QueryRecord", operator: OperatorId) -> bool:
    """Tells whether an operator has users besides this query; the one that another query's operator was made for does not count."""
    return any(user.query != query_of(operator) for user in record.health.healing.others.get(operator, ()))


def is_over(record: "QueryRecord", operator: OperatorId) -> bool:
    """Tells whether an operator had finished by its last report."""
    report = record.reports.get(operator)
    return report is not None and report.state == State.FINISHED.told


def finished_with_host(record: "QueryRecord") -> frozenset[OperatorId]:
    """Returns the operators of a dropped query that had finished before their hosts were lost: nobody makes them again for themselves."""
    return (frozenset(record.health.those(WITH_HOST)) & record.specs.keys()) - record.lost


def drop_all_but(record: "QueryRecord", kept: frozenset[OperatorId]) -> None:
    """Ends the query but for some operators, which others use: it has neither a name nor a bound any more. The others are to be ended
    (`Plans.retiring`)."""
    plans = record.health.healing.plans
    gone = {operator: node for operator, node in record.nodes.items() if operator not in kept}
    plans.gives_up(record.id, gone | ({} if plans.other is None else plans.other.nodes))
    for operator in gone:
        record.reports.pop(operator, None)
        record.health.healing.others.pop(operator, None)
        record.health.forget(operator)
        record.epochs.pop(operator, None)
        del record.nodes[operator]
    record.specs = {operator: spec for operator, spec in record.specs.items() if operator in kept}
    record.links = tuple(link for link in record.links if link.source in kept and link.target in kept)
    healing = record.health.healing
    healing.turned, healing.named, healing.step, healing.waits_for = healing.turned & kept, 0, "", ""
    record.plan = msgspec.structs.replace(record.plan, name=record.id, delay_bound_ms=None, max_latency_ms=None)
    record.name, record.forecast, record.late = record.id, None, ""
