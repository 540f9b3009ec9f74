"""Makes the report on an operator of this host for homes of queries and `sbon operators`: its figures, and why it does nothing."""

import msgspec

from sbon.execution.instance import Instance, deferred_rows
from sbon.execution.life import State
from sbon.misfits import KINDS_REPORTED_MAX
from sbon.query.multicast_ids import is_multicast
from sbon.types import NodeId, OperatorId, QueryId
from sbon.wire.reports import MissedRows, OperatorReport


def operator_report(instance: Instance, node: NodeId, query: QueryId = "") -> OperatorReport:
    """Returns the figures of an operator, for one query or for all."""
    figures, waiting = instance.figures, instance.waiting
    late = instance.operator.late_rows if instance.operator is not None else figures.late_rows
    stalled = str(getattr(instance.source, "stalled", "")) if instance.state is State.RUNNING else ""
    state = instance.state.told
    if instance.state is State.RUNNING and (waiting.blocked or waiting.held_back):
        state = "blocked"
    elif waiting.starved:
        state = "degraded"
    why = _held_back_by(instance) if state == "blocked" else waiting.starved
    if stalled and state == State.RUNNING.value:
        state, why = State.STALLED.value, stalled
    given = figures.rows_in - sum(figures.shed_rows)
    unmatched = int(getattr(instance.sink, "unmatched_rows", 0))
    return OperatorReport(
        id=instance.id,
        state=state,
        node=node,
        reason=instance.reason or "; ".join(filter(None, (why, instance.stays_for, getattr(instance.source, "remark", "")))),
        epoch=instance.epoch,
        rows_in=figures.rows_in,
        rows_out=figures.rows_out,
        batches_in=figures.batches_in,
        rows_per_s_in=figures.rate_in.per_s,
        rows_per_s_out=figures.rate_out.per_s,
        bytes_per_s_out=sum(output.byte_rate.per_s for output in instance.outputs.values()),
        late_rows=late,
        dropped_rows=instance.dropped_rows,
        queue_batches=sum(len(incoming.queue) for incoming in instance.inputs.values()),
        queue_rows=sum(incoming.queued_rows - incoming.sliced for incoming in instance.inputs.values()),
        quanta=figures.accounts.quanta,
        cpu_ns=figures.accounts.cpu_ns,
        cpu_ns_per_row=figures.accounts.cpu_ns_per_row,
        longest_quantum_ms=figures.accounts.longest_s * 1000,
        selectivity=figures.rows_out / given if given > 0 and instance.inputs and instance.outputs else None,
        state_rows=instance.operator.state_rows if instance.operator is not None else 0,
        state_bytes=figures.state_bytes,
        migrations=figures.migrations,
        links=tuple(
            (o.link.id, o.sender.rows_offered, o.sender.rows_acknowledged, o.row_rate.per_s, o.byte_rate.per_s)
            for o in instance.outputs.values()
        ),
        packing=tuple((o.link.id, o.packing.codec.value, o.packing.ratio) for o in instance.outputs.values()),
        received=tuple((i.link.id, i.receiver.rows_processed) for i in instance.inputs.values()),
        upstream_delay_ms=figures.upstream_delay_ms,
        multicasts=_multicasts(instance, query) if query else (),
        held_up=_held_up_by(instance) if state == "blocked" else "",
        left_out=tuple(
            (o.link.id, o.sender.rows_left_out, o.left_out_because) for o in instance.outputs.values() if o.sender.rows_left_out
        ),
        users=tuple(msgspec.structs.replace(user, delay_slack_ms=None) for user in instance.users.told()),
        begun_at=getattr(instance.sink, "begun_at", None),
        lost_rows=instance.waiting.lost_rows or msgspec.UNSET,
        untimed_rows=(instance.operator.untimed_rows if instance.operator is not None else 0) or msgspec.UNSET,
        is_found=(instance.waiting.is_found and not unmatched) or msgspec.UNSET,
        unmatched_rows=unmatched or msgspec.UNSET,
        misfits=() if instance.misfits is None else instance.misfits.told(KINDS_REPORTED_MAX),
        latency=figures.latency(),
        bursts=(figures.rate_out.bursts or msgspec.UNSET) if instance.source is not None else msgspec.UNSET,
        missed=missed_rows(instance),
    )


def missed_rows(instance: Instance) -> MissedRows | msgspec.UnsetType:
    """Returns the rows left out or put off because they would be late; unset for an operator that takes all rows."""
    if instance.waiting.misses is None:
        return msgspec.UNSET
    return MissedRows(instance.figures.shed_rows, instance.figures.deferred_rows, deferred_rows(instance))


def _held_back_by(instance: Instance) -> str:
    """Describes the consumers that accept no more, and the trouble of their disks; empty if all accept."""
    if (port := instance.waiting.held_port) is not None:
        ahead = instance.operator.rows_ahead()[port] if instance.operator is not None else 0
        return f"input {port} waits until the other input has caught up: {ahead} of its rows are kept until then"
    full = [output for output in instance.outputs.values() if not output.sender.has_credit]
    return "; ".join(
        (
            f"{output.sender.held} batches wait for {output.obstructed}"
            if output.obstructed
            else f"{output.link.target} on {output.node} takes no more, {output.sender.held} batches wait for it"
        )
        + (f" and {output.sender.trouble}" if output.sender.trouble else "")
        for output in full
    )


def _held_up_by(instance: Instance) -> str:
    """Describes the consumers that accept no more because they are gone; empty if there is none."""
    return " and ".join(output.obstructed for output in instance.outputs.values() if output.obstructed and not output.sender.has_credit)


def _multicasts(instance: Instance, query: QueryId) -> tuple[tuple[OperatorId, NodeId, int], ...]:
    """Returns the multicasts fed from here that serve a query, each with its host and the number of queries that share it."""
    outputs = [o for o in instance.outputs.values() if query in o.users and is_multicast(o.link.target)]
    return tuple((o.link.target, o.node, len(o.users)) for o in outputs)
