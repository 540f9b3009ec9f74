"""Operators that a query has left to other queries, because it has been dropped or has another plan (docs/recovery.md).

The record of the query keeps them beside its own operators. A dropped query has nothing else, and no sink.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from sbon.execution.life import State
from sbon.query.multicast_ids import MULTICAST_MARK, is_multicast
from sbon.supervision.health import WITH_HOST
from sbon.types import NodeId, OperatorId
from sbon.wire.authority import query_of
from sbon.wire.reports import OperatorReport

if TYPE_CHECKING:
    from sbon.supervision.record import QueryRecord


def is_dropped(record: "QueryRecord") -> bool:
    """Tells whether a query has been dropped, and lives on without a sink because others use its operators."""
    return record.sink not in record.specs


def left_to_others(record: "QueryRecord") -> frozenset[OperatorId]:
    """Returns the operators of a query that it does not use itself any more."""
    own = () if is_dropped(record) else [spec.id for spec in record.plan.operators]
    return frozenset(record.specs).difference(own)


def heard_users(record: "QueryRecord", report: OperatorReport) -> None:
    """Records which other queries use an operator."""
    record.health.healing.others[report.id] = tuple(user for user in report.users if user.query != record.id)


def used_by_others(record: "QueryRecord") -> frozenset[OperatorId]:
    """Returns the operators that other queries use by their last reports, with all operators that feed them.

    A query that uses an operator uses its feeders, too. The feeders' own reports do not say so while their hosts are silent.
    """
    found = {operator for operator in record.nodes if operator != record.sink and _has_other_user(record, operator)}
    if found.isdisjoint(record.specs):
        return frozenset()
    feeders = {operator for operator in found if not is_multicast(operator)}
    while more := {link.source for link in record.links if link.target in feeders} - feeders:
        feeders |= more
    return frozenset(found | feeders)


def is_unused(record: "QueryRecord") -> bool:
    """Tells whether all operators left to others have reported that no other query uses them. An operator that had finished before it was
    lost counts as unused."""
    left = left_to_others(record)
    return bool(left) and all(
        operator in record.health.healing.others
        and (not _has_other_user(record, operator) or (is_over(record, operator) and record.health.of(operator) in WITH_HOST))
        for operator in left
        if operator not in record.health.healing.over
    )


def _has_other_user(record: "QueryRecord", operator: OperatorId) -> bool:
    """Tells whether an operator has a user other than this query and the query that the operator was made for."""
    return any(user.query != query_of(operator) for user in record.health.healing.others.get(operator, ()))


def is_over(record: "QueryRecord", operator: OperatorId) -> bool:
    """Tells whether an operator had finished by its last report."""
    report = record.reports.get(operator)
    return report is not None and report.state == State.FINISHED.told


def finished_with_host(record: "QueryRecord") -> frozenset[OperatorId]:
    """Returns the operators left to others that had finished before their hosts were lost. They are not made again for their own sake."""
    return (frozenset(record.health.those(WITH_HOST)) & record.specs.keys()) - record.lost


def drop_all_but(record: "QueryRecord", kept: frozenset[OperatorId]) -> None:
    """Reduces the record of a query to the operators in `kept`, which others use, and takes its name and bounds away. All other operators
    are to be ended (`Plans.retiring`)."""
    healing = record.health.healing
    gone = {operator: node for operator, node in record.nodes.items() if operator not in kept}
    give_up(record, gone | ({} if healing.plans.other is None else healing.plans.other.nodes))
    healing.turned, healing.named, healing.step, healing.waits_for = healing.turned & kept, 0, "", ""
    record.plan = msgspec.structs.replace(record.plan, name=record.id, delay_bound_ms=None, max_latency_ms=None)
    record.name, record.forecast, record.late = record.id, None, ""


def give_up(record: "QueryRecord", operators: Mapping[OperatorId, NodeId]) -> None:
    """Takes operators out of a record; these and their multicasts are to be ended."""
    record.health.healing.plans.gives_up(record.id, operators)
    for operator in operators:
        record.reports.pop(operator, None)
        record.health.healing.others.pop(operator, None)
        record.health.forget(operator)
        record.epochs.pop(operator, None)
        record.nodes.pop(operator, None)
    record.specs = {operator: spec for operator, spec in record.specs.items() if operator not in operators}
    record.links = tuple(link for link in record.links if link.source not in operators and link.target not in operators)


def feeder_of(operator: OperatorId) -> OperatorId:
    """Returns the operator whose stream a multicast carries; any other operator is returned as it is."""
    return operator.partition(MULTICAST_MARK)[0]
