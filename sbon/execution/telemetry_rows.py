"""Makes telemetry rows of the figures of an operator and of its links."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from sbon.cost_space.localiser import Localiser
from sbon.execution.ends import Output
from sbon.execution.instance import Instance
from sbon.execution.reporting import operator_report
from sbon.query.params.streams import ExchangeParams, SplitParams
from sbon.telemetry.rows import DealingRow, LinkRate, MisfitCount, OperatorStatistics, PortCostRow
from sbon.types import NodeId
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from sbon.wire.reports import NONE_MISSED

if TYPE_CHECKING:
    from sbon.dealing.asking import Figures


class Latencies(Protocol):
    """This node's name, coordinate and estimates of round trips."""

    @property
    def name(self) -> NodeId: ...
    @property
    def localiser(self) -> Localiser: ...
    def estimated_rtt_ms(self, a: NodeId, b: NodeId) -> float | None: ...


def operator_statistics(instance: Instance, me: NodeId, now: float) -> OperatorStatistics:
    """Returns the figures of an operator, with what its plan expected."""
    report = operator_report(instance, me)
    missed = report.missed or NONE_MISSED
    rows_per_s_in = report.rows_per_s_in if instance.inputs else 0.0
    expected_in = [incoming.link.rate_rows_per_s for incoming in instance.inputs.values()]
    expected_out = [outgoing.link.rate_rows_per_s for outgoing in instance.outputs.values()]
    return OperatorStatistics(
        operator=instance.id,
        operator_kind=str(instance.spec.params.__struct_config__.tag),
        queries=tuple(sorted(instance.users)),
        state=report.state,
        reason=report.reason,
        epoch=report.epoch,
        rows_in=report.rows_in,
        rows_out=report.rows_out,
        rows_per_s_in=rows_per_s_in,
        rows_per_s_out=report.rows_per_s_out,
        bytes_per_s_in=sum(incoming.byte_rate.per_s for incoming in instance.inputs.values()),
        bytes_per_s_out=float(report.bytes_per_s_out),
        selectivity=report.rows_per_s_out / rows_per_s_in if rows_per_s_in > 0 and instance.outputs else None,
        selectivity_estimated=float(instance.spec.selectivity),
        estimated_rows_per_s_in=float(sum(expected_in)) if expected_in else None,
        # All outputs carry the same rows.
        estimated_rows_per_s_out=float(max(expected_out)) if expected_out else None,
        late_rows=report.late_rows,
        dropped_rows=report.dropped_rows,
        queue_batches=report.queue_batches,
        state_rows=report.state_rows,
        state_bytes=report.state_bytes,
        queue_rows=report.queue_rows,
        quanta=report.quanta,
        cpu_ns=report.cpu_ns,
        cpu_ns_per_row=report.cpu_ns_per_row,
        longest_quantum_ms=report.longest_quantum_ms,
        shed_rows=missed.shed,
        deferred_rows=missed.deferred,
        deferred_waiting=missed.waiting,
        misfits=tuple(MisfitCount(kind.column, kind.cause, kind.rows) for kind in report.misfits),
        costs=tuple(
            PortCostRow(
                one.port,
                one.batches,
                one.rows_per_batch,
                one.per_batch_ns,
                one.per_row_ns,
                one.batch_ns,
                one.batch_ns_low,
                one.batch_ns_high,
                one.selectivity,
            )
            for one in instance.figures.port_costs.known(now)
        ),
    )


def dealing(instance: Instance, me: NodeId) -> DealingRow | None:
    """Returns the figures of a splitter; None for any other operator."""
    params = instance.spec.params
    if not isinstance(params, ExchangeParams | SplitParams) or params.turns is None:
        return None
    told: Figures | None = getattr(instance.operator, "figures", None)
    report, turns = operator_report(instance, me), params.turns
    has_turn = WATERMARK_MIN < instance.watermark_us < WATERMARK_END
    return DealingRow(
        operator=instance.id,
        queries=tuple(sorted(instance.users)),
        instances=params.instances,
        within_s=turns.within_us / 1e6,
        turn_s=turns.turn_us / 1e6,
        rows_dealt=report.rows_in,
        rows_sent=report.rows_out,
        copies=report.rows_out / report.rows_in if report.rows_in else None,
        copies_expected=turns.copies(params.instances),
        turn=instance.watermark_us // turns.turn_us if has_turn else None,
        dealer=params.dealer if isinstance(params, SplitParams) else None,
        used=None if told is None else told.used,
        decisions=None if told is None else told.decisions,
        peak_predicted_s=None if told is None else told.peak_predicted_s,
        peak_measured_s=None if told is None else told.peak_measured_s,
        row_ns=None if told is None else told.row_ns,
        turn_ns=None if told is None else told.turn_ns,
    )


def link_rates(instance: Instance, network: Latencies, bandwidths: Mapping[NodeId, float]) -> Iterator[LinkRate | DealingRow]:
    """Yields the figures of an operator's outputs, and of a splitter's dealing; `bandwidths` are those measured to other nodes."""
    if (dealt := dealing(instance, network.name)) is not None:
        yield dealt
    for output in instance.outputs.values():
        latency_ms, measured = _latency_ms(output, network)
        yield LinkRate(
            link=output.link.id,
            source=output.link.source,
            target=output.link.target,
            target_node=output.node,
            queries=tuple(sorted(output.users)),
            rows_per_s=float(output.row_rate.per_s),
            bytes_per_s=float(output.byte_rate.per_s),
            rows=output.sender.rows_offered,
            bytes=output.bytes_out,
            latency_ms=latency_ms,
            latency_measured=measured,
            batches_held=output.sender.held,
            batches_resent=output.sender.batches_resent,
            stalled=not output.sender.has_credit,
            bandwidth_bytes_per_s=bandwidths.get(output.node),
        )


def _latency_ms(output: Output, network: Latencies) -> tuple[float | None, bool]:
    """Returns the one-way latency in ms, and whether it was measured."""
    if output.node == network.name:
        return 0.0, True
    measured = network.localiser.measured_rtt_ms(output.node)
    rtt = measured if measured is not None else network.estimated_rtt_ms(network.name, output.node)
    return None if rtt is None else round(float(rtt) / 2, 4), measured is not None
