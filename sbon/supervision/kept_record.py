"""The record of a query for the agent that takes it over: its plan, its operators with their places and epochs, its links and the
multicasts on them, and the losses of its recoveries so far."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from sbon.execution.life import State
from sbon.links.link_names import first_name, renewals
from sbon.query.plan import LinkSpec, OperatorSpec, Plan
from sbon.supervision.deployment import Deployed
from sbon.supervision.dropped import drop_all_but, used_by_others
from sbon.supervision.generations import first_epoch
from sbon.supervision.history import Happening
from sbon.supervision.multicasts import KeptMulticast
from sbon.supervision.record import QueryRecord, QueryState, is_undecided
from sbon.supervision.recovery import Recovered
from sbon.supervision.replanning import OtherPlan
from sbon.types import LinkId, NodeId, OperatorId, QueryId
from sbon.wire.deployment import User
from sbon.wire.ownership import RECORD_BYTES_MAX
from sbon.wire.reports import OperatorReport

FORMAT = 1
HISTORY_MAX = 10
"""Most recoveries, and most happenings, that a record describes; the sums include the rows lost in earlier recoveries."""

MOVING = frozenset(state.told for state in (State.BUILDING, State.PREPARED, State.PAUSED))
"""States in which an operator is being made, has not arrived yet, or is about to leave."""


class Content(msgspec.Struct, frozen=True):
    """A query as its record describes it."""

    format: int
    plan: Plan
    operators: tuple[OperatorSpec, ...]
    links: tuple[LinkSpec, ...]
    nodes: Mapping[OperatorId, NodeId]
    epochs: Mapping[OperatorId, int]
    former: QueryId
    started_wall_s: float
    told_ms: float
    migrations: int
    attempted: int
    """The highest epoch of operators that a recovery has used; the next recovery uses a higher one."""
    begun_at: Mapping[OperatorId, int]
    over: tuple[OperatorId, ...]
    missing: Mapping[LinkId, int]
    is_exact: bool
    recoveries: int
    history: tuple[Recovered, ...]
    happenings: tuple[Happening, ...]
    turned: tuple[OperatorId, ...] = ()
    """Operators of an attempt that has begun and may not be over; the next owner makes them again."""
    multicasts: tuple[KeptMulticast, ...] = ()
    named: int = 0
    """Version of its sink's name in the catalogue; 0 without a sink."""
    other: OtherPlan | None = None
    """The plan that is about to replace the present one, unless the sink has been told otherwise."""
    retiring: Mapping[OperatorId, NodeId] = {}
    retired: tuple[OperatorId, ...] = ()
    joined: Mapping[LinkId, int] = {}
    is_replanned: bool = False
    others: Mapping[OperatorId, tuple[User, ...]] = {}
    """Other queries that use an operator of this one. If the operator is lost together with the owner, it is made again for them, too."""
    first: QueryId = ""
    first_begun_at: Mapping[OperatorId, int] = {}


_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER = msgspec.msgpack.Decoder(Content)


def encode_content(record: QueryRecord) -> bytes:
    """Returns the content of a query's record.

    Raises
    ------
    ValueError
        It would have more than RECORD_BYTES_MAX bytes.
    """
    healing, account = record.health.healing, record.health.healing.account
    content = Content(
        FORMAT,
        record.plan,
        tuple(record.specs.values()),
        record.links,
        record.nodes,
        record.epochs,
        record.former,
        record.started_wall_s,
        record.bounds.told_ms,
        record.history.migrations,
        healing.attempted,
        healing.begun_at,
        tuple(sorted(healing.over)),
        account.missing,
        account.is_exact,
        account.recoveries,
        tuple(account.history[-HISTORY_MAX:]),
        record.history.latest(HISTORY_MAX),
        tuple(sorted(healing.turned)),
        record.multicasts.kept,
        healing.named,
        healing.plans.other,
        healing.plans.retiring,
        healing.plans.retired,
        healing.plans.joined,
        healing.plans.is_replanned,
        {operator: users for operator, users in record.health.healing.others.items() if users and operator in record.specs},
        record.history.first,
        account.first_begun_at,
    )
    data = _ENCODER.encode(content)
    if len(data) > RECORD_BYTES_MAX:
        raise ValueError(f"its record has {len(data)} bytes, expected at most {RECORD_BYTES_MAX}: no other agent can take it over")
    return data


def decode_content(data: bytes) -> Content:
    """Decodes the bytes of `encode_content`.

    Raises
    ------
    ValueError
        The bytes are something else, or were written by a later release.
    """
    try:
        content = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise ValueError(f"the record does not decode: {problem}") from problem
    if content.format != FORMAT:
        raise ValueError(f"the record has format {content.format}, expected {FORMAT}")
    return content


def record_from(
    content: Content, former: NodeId, reports: Iterable[OperatorReport], me: NodeId, now: float, wall_s: float, ownership: int = 0
) -> QueryRecord:
    """Returns a query as its new owner knows it.

    Parameters
    ----------
    former : the previous owner
    reports : the hosts' reports on operators of the query: where they are now, and the present ids of their links
    ownership : the epoch of the new owner
    """
    found: dict[OperatorId, OperatorReport] = {}
    for report in reports:
        if is_undecided(report, content.epochs.get(report.id, 0)):
            continue
        if report.id not in found or report.epoch > found[report.id].epoch:
            found[report.id] = report
    ends = [link for report in found.values() for link in ([name for name, *_ in report.links] + [name for name, _ in report.received])]
    names = {first_name(link): link for link in sorted(ends, key=renewals)}
    links = tuple(msgspec.structs.replace(link, id=names.get(first_name(link.id), link.id)) for link in content.links)
    record = QueryRecord(content.plan, Deployed(content.operators, links, dict(content.nodes)), me, content.started_wall_s)
    record.epochs.update(content.epochs)
    record.health.healing.others.update(content.others)
    record.former, record.history.first, record.bounds.told_ms = content.former, content.first, content.told_ms
    healing, account = record.health.healing, record.health.healing.account
    healing.is_on, healing.began_s = True, now - max(0.0, wall_s - content.started_wall_s)
    healing.attempted, healing.over = max(content.attempted, first_epoch(ownership)), set(content.over)
    healing.named = content.named
    plans = healing.plans
    plans.other, plans.retired, plans.is_replanned = content.other, content.retired, content.is_replanned
    plans.retiring, plans.joined = dict(content.retiring), dict(content.joined)
    healing.turned = frozenset(content.turned) & record.specs.keys()
    healing.begun_at.update(content.begun_at)
    record.multicasts.restore(content.multicasts)
    account.missing.update(content.missing)
    account.first_begun_at.update(content.first_begun_at)
    account.is_exact, account.recoveries, account.history = content.is_exact, content.recoveries, list(content.history)
    for report in found.values():
        plans.moved(report.id, report.node, report.epoch)
        if report.id in record.nodes and report.epoch >= record.epochs.get(report.id, 0):
            record.nodes[report.id], record.epochs[report.id] = report.node, report.epoch
    record.history.inherited(content.happenings, content.migrations, former, record.nodes, wall_s)
    return record


def may_run_on(content: Content, reports: Iterable[OperatorReport], silent: Collection[NodeId]) -> bool:
    """Tells whether agents that have not answered may run operators of a query, which may have moved since the record was written.

    Parameters
    ----------
    reports : the other agents' reports on operators of the query
    """
    if content.multicasts or content.retiring or content.other is not None:
        return True
    found = {report.id for report in reports if report.state not in MOVING and report.epoch >= content.epochs.get(report.id, 0)}
    return any(spec.id not in found and (spec.pinned is None or spec.pinned in silent) for spec in content.operators)


def left_of(
    records: Mapping[QueryId, bytes], ended: Collection[QueryId], ownership: Mapping[QueryId, int], me: NodeId, now: float, wall_s: float
) -> dict[QueryId, QueryRecord | ValueError]:
    """Returns the queries of a former process of their owner, reduced to the operators that other queries use, or the error why a record
    cannot be read. Queries without such operators are left out.

    Parameters
    ----------
    records : as that process has written them, in the order in which the queries were submitted
    ended : former queries that nobody runs any more; a query of `records` that is left out counts as ended, too
    ownership : the ownership epochs under which queries are taken up; 0 for missing ones
    """
    gone = set(ended)
    found: dict[QueryId, QueryRecord | ValueError] = {}
    for query, data in reversed([*records.items()]):  # a query uses operators of earlier ones
        try:
            record = record_from(decode_content(data), me, (), me, now, wall_s, ownership.get(query, 0))
        except ValueError as problem:
            found[query] = problem
            continue
        others = record.health.healing.others
        others.update({operator: tuple(user for user in users if user.query not in gone) for operator, users in others.items()})
        if used := used_by_others(record):
            drop_all_but(record, used)
            record.state = QueryState.SHARED
            found[query] = record
        else:
            gone.add(query)
    return found
