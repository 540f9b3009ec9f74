"""Makes and installs the record of a migrating operator (`sbon.migration.snapshot.Record`): everything but the operator's own state, which
is sent before (`sbon.migration.state_copy`).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from sbon.errors import LocalProtocolError, RemoteProtocolError
from sbon.execution.ends import Input, Output
from sbon.execution.instance import Instance, begin_at, mark_of
from sbon.execution.life import State
from sbon.execution.reporting import missed_rows
from sbon.execution.rows import Rows
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.migration.snapshot import HeldBatch, InputRecord, OutputRecord, Record, decode_record, encode_record
from sbon.query.plan import LinkSpec
from sbon.types import LinkId, OperatorId
from sbon.wire.costs import OperatorCosts

if TYPE_CHECKING:
    from sbon.operators.operator import Operator


def export(instance: Instance) -> Callable[[], bytes]:
    """Returns a function that encodes a paused operator's record; it is for an executor thread, as its time grows with the held output.

    Everything that later acknowledgements may change is read at once. Batches that are sent twice because of that are dropped by number.

    Raises
    ------
    LocalProtocolError
        Part of the output is on disk.
    """
    senders = {output.link.id: output.sender.export() for output in instance.outputs.values()}
    costs = instance.figures.port_costs.told()
    return lambda: _encode(instance, senders, costs)


def _encode(instance: Instance, senders: Mapping[LinkId, tuple[int, int, int, tuple[Batch, ...]]], costs: OperatorCosts | None) -> bytes:
    state = Record(
        spec=instance.spec,
        users=instance.users.told(),
        inputs=tuple(_input_state(incoming) for incoming in instance.inputs.values()),
        outputs=tuple(_output_state(output, senders[output.link.id]) for output in instance.outputs.values()),
        watermark_us=instance.watermark_us,
        watermark_out_us=instance.watermark_out_us,
        rows_in=instance.figures.rows_in,
        rows_out=instance.figures.rows_out,
        batches_in=instance.figures.batches_in,
        migrations=instance.figures.migrations,
        costs=costs,
        missed=missed_rows(instance),
        untimed_rows=(instance.operator.untimed_rows if instance.operator is not None else 0) or msgspec.UNSET,
    )
    return encode_record(state)


def note_progress(instance: Instance, instances: Mapping[OperatorId, Instance]) -> None:
    """Notes, for the links between a paused operator and others on this host, how many rows the target has made of all batches dropped.

    A link within a host drops batches that are processed but not safe, as a crash would take both ends. Once one end has left, a crash of
    the target's host takes rows made of these batches; their number is known then.

    Parameters
    ----------
    instances : all operators on this host
    """
    for output in instance.outputs.values():
        target = instances.get(output.link.target)
        if target is not None:
            _note(output, target)
    for incoming in instance.inputs.values():
        source = instances.get(incoming.link.source)
        if source is not None and incoming.link.id in source.outputs:
            _note(source.outputs[incoming.link.id], instance)


def _note(output: Output, target: Instance) -> None:
    incoming = target.inputs.get(output.link.id)
    if not target.passes or incoming is None:
        return
    mark = mark_of(target, incoming)
    if mark.sequence > output.made[0]:
        output.made, output.behind, output.by_origin = (mark.sequence, mark.made), mark.parts, mark.by_origin


def _input_state(incoming: Input) -> InputRecord:
    return InputRecord(
        _as_measured(incoming),
        incoming.node,
        incoming.schema,
        incoming.receiver.processed,
        incoming.receiver.rows_processed,
        incoming.watermark_us,
        incoming.epoch,
        incoming.lost,
        incoming.told_lost,
        tuple(incoming.named.items()),
        incoming.origin.made_of_all,
        incoming.origin.made,
        incoming.origin.taken,
        incoming.origin.made_by_origin,
    )


def _output_state(output: Output, exported: tuple[int, int, int, tuple[Batch, ...]]) -> OutputRecord:
    next_sequence, offered, acknowledged, held = exported
    return OutputRecord(
        _as_measured(output),
        output.node,
        output.epoch,
        tuple(sorted(output.users)),
        next_sequence,
        offered,
        acknowledged,
        tuple(
            HeldBatch(
                b.sequence,
                b.stimulus_s,
                b.watermark_us,
                b.rows,
                bytes(b.payload.data()) if isinstance(b.payload, Rows) else b"",
                b.path,
                b.origin,
            )
            for b in held
        ),
        tuple(output.named.items()),
        output.made,
        output.giving.rows,
        output.behind,
        tuple(output.giving.by_origin),
        output.giving.is_whole,
        output.by_origin,
        output.sender.former_us,
    )


def _as_measured(end: Input | Output) -> LinkSpec:
    """Returns the link with the rate measured here, which the next host's optimiser starts from."""
    return msgspec.structs.replace(end.link, rate_bytes_per_s=end.steady_rate.per_s)


def install(operator: "Operator", data: bytes, epoch: int, links: LinkConfig) -> Instance:
    """Makes a PREPARED operator from the result of `export`: it accepts batches but processes none yet.

    Call it on an executor thread.

    Raises
    ------
    RemoteProtocolError
        The bytes are not such a record.
    """
    state = decode_record(data)
    instance = Instance(state.spec, epoch, State.PREPARED)
    instance.operator = operator
    begin_at(operator, state.spec, is_whole=True)
    if state.untimed_rows:
        operator.untimed_rows = state.untimed_rows
    if not operator.is_stateless:
        from sbon.operators.sizes import held_bytes

        instance.figures.state_bytes = held_bytes(operator)
    for user in state.users:
        instance.users.add(user)
    instance.watermark_us, instance.watermark_out_us = state.watermark_us, state.watermark_out_us
    instance.figures.rows_in, instance.figures.rows_out, instance.figures.batches_in = state.rows_in, state.rows_out, state.batches_in
    instance.figures.migrations = state.migrations + 1
    instance.figures.costs_brought = state.costs
    if state.missed:
        instance.figures.shed_rows, instance.figures.deferred_rows = state.missed.shed, state.missed.deferred
    for given in state.inputs:
        receiver = LinkReceiver(given.link.id, links, given.processed, given.rows_processed)
        incoming = Input(given.link, given.node, given.schema, receiver, given.watermark_us, given.epoch)
        incoming.lost, incoming.told_lost = given.lost, given.told_lost
        incoming.named.update(given.named)
        incoming.origin.made_of_all, incoming.origin.taken = given.made, given.origins
        incoming.origin.made, incoming.origin.made_by_origin = instance.is_made_of_input(given.made_of_it), given.made_by_origin
        instance.inputs[given.link.id] = incoming
    for kept in state.outputs:
        schema = state.spec.schema
        held = [
            Batch(b.sequence, b.stimulus_s, b.watermark_us, Rows.of_bytes(b.data, b.rows, schema) if b.rows else None, b.path, b.origin)
            for b in kept.held
        ]
        try:
            exported = (kept.next_sequence, kept.rows_offered, kept.rows_acknowledged, held)
            sender = LinkSender.restored(kept.link.id, links, exported)
        except LocalProtocolError as problem:
            raise RemoteProtocolError(str(problem)) from problem
        output = instance.outputs[kept.link.id] = Output(kept.link, kept.node, kept.epoch, schema, sender, set(kept.users))
        output.named.update(kept.named)
        output.made, output.giving.rows, sender.former_us = kept.made, kept.skip_rows, kept.former_us
        output.behind, output.by_origin = kept.behind, kept.by_origin
        output.giving.by_origin, output.giving.is_whole = list(kept.skips), kept.is_whole
    instance.number_inputs()
    if instance.passes:
        for incoming in instance.inputs.values():
            incoming.unsafe.again(mark_of(instance, incoming))
    return instance
