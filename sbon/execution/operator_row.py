"""Makes the row that `sbon operators --json` shows for an operator on this host."""

from typing import TYPE_CHECKING, Any

import msgspec

from sbon.execution.instance import Instance
from sbon.execution.reporting import operator_report
from sbon.misfits import clause
from sbon.query.text import describe
from sbon.types import NodeId
from sbon.wire.reports import NONE_MISSED

if TYPE_CHECKING:
    from sbon.links.sender import LinkSender


def operator_row(instance: Instance, me: NodeId, now: float) -> dict[str, Any]:
    """Returns the row of an operator on this host."""
    report = operator_report(instance, me)
    missed = report.missed or NONE_MISSED
    latency = getattr(instance.sink, "latency", None)
    misfits = instance.misfits.told() if instance.misfits is not None else ()
    return {
        "id": instance.id,
        "queries": sorted(instance.users),
        "kind": str(instance.spec.params.__struct_config__.tag),
        "text": describe(instance.spec.params),
        "node": me,
        "state": report.state,
        "reason": "; ".join(filter(None, (report.reason, clause(misfits, report.dropped_rows)))),
        "pinned": not instance.movable,
        "rows_in": report.rows_in,
        "rows_out": report.rows_out,
        "rows_per_s_in": report.rows_per_s_in,
        "rows_per_s_out": report.rows_per_s_out,
        "bytes_per_s_out": report.bytes_per_s_out,
        "selectivity": report.selectivity,
        "queue_batches": report.queue_batches,
        "queue_rows": report.queue_rows,
        "quanta": report.quanta,
        "cpu_ns": report.cpu_ns,
        "cpu_ns_per_row": report.cpu_ns_per_row,
        "costs": [msgspec.structs.asdict(cost) for cost in instance.figures.port_costs.known(now)],
        "longest_quantum_ms": report.longest_quantum_ms,
        "late_rows": report.late_rows,
        "dropped_rows": report.dropped_rows,
        "shed_rows": list(missed.shed),
        "deferred_rows": list(missed.deferred),
        "deferred_waiting": missed.waiting,
        "misfits": [msgspec.structs.asdict(misfit) for misfit in misfits],
        "state_rows": report.state_rows,
        "state_bytes": report.state_bytes,
        "latency": latency.told(now) if latency is not None else None,
        "migrations": report.migrations,
        "signature": instance.spec.signature,
        "links": [
            {
                "id": link,
                "node": instance.outputs[link].node,
                "rows_sent": sent,
                "rows_acknowledged": acknowledged,
                "bytes_per_s": rate,
                "codec": instance.outputs[link].packing.codec.value,
                "packed_ratio": round(instance.outputs[link].packing.ratio, 4),
                **_waiting(instance.outputs[link].sender),
            }
            for link, sent, acknowledged, _, rate in report.links
        ],
        "received": [{"id": link, "rows": rows} for link, rows in report.received],
    }


def _waiting(sender: "LinkSender") -> dict[str, int]:
    return {"batches_in_memory": sender.memory_batches, "batches_on_disk": sender.spilled_batches}
