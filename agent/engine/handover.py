"""Encodes and installs the engine's record of a migrating operator: everything but the operator's own state.

It holds the number of the last batch processed on each input, and the unacknowledged output; `sbon.links` explains why that is enough. The
operator's own state is sent before (`sbon_agent.engine.copying`).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from sbon.errors import LocalProtocolError, RemoteProtocolError
from sbon.execution.life import State
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.query.schema import Schema
from sbon.types import LinkId, NodeId, QueryId
from sbon.wire.deployment import User
from sbon.wire.limits import Count, Epoch, Instant, Watermark
from sbon_agent.engine.ends import Input, Output
from sbon_agent.engine.instance import Instance
from sbon_agent.engine.rows import Rows

if TYPE_CHECKING:
    from sbon.operators.operator import Operator


class HeldBatch(msgspec.Struct, frozen=True, array_like=True):
    """An unacknowledged batch of an output."""

    sequence: Count
    stimulus_s: Instant
    watermark_us: Watermark
    rows: Count
    data: bytes
    path: Count = 0


class InputState(msgspec.Struct, frozen=True, array_like=True):
    """Progress of an input."""

    link: LinkSpec
    node: NodeId
    schema: Schema
    processed: Count
    rows_processed: Count
    watermark_us: Watermark
    epoch: Epoch = 0
    lost: bool = False
    told_lost: bool = False
    named: tuple[tuple[Epoch, NodeId], ...] = ()


class OutputState(msgspec.Struct, frozen=True, array_like=True):
    """What an output has still to deliver."""

    link: LinkSpec
    node: NodeId
    epoch: Epoch
    users: tuple[QueryId, ...]
    next_sequence: Count
    rows_offered: Count
    rows_acknowledged: Count
    held: tuple[HeldBatch, ...]
    named: tuple[tuple[Epoch, NodeId], ...] = ()


class OperatorState(msgspec.Struct, frozen=True):
    """Record of one operator between two batches, without the operator's own state."""

    spec: OperatorSpec
    users: tuple[User, ...]
    inputs: tuple[InputState, ...]
    outputs: tuple[OutputState, ...]
    watermark_us: Watermark
    watermark_out_us: Watermark
    rows_in: Count
    rows_out: Count
    batches_in: Count
    migrations: Epoch


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(OperatorState)


def export(instance: Instance) -> Callable[[], bytes]:
    """Returns the encoding of a paused operator's record as work for an executor thread, since it takes time in proportion to the held
    output.

    What later acknowledgements may change is read at once. A batch that is sent twice because of that is dropped by its number.

    Raises
    ------
    LocalProtocolError
        Part of the output is on disk.
    """
    senders = {output.link.id: output.sender.export() for output in instance.outputs.values()}
    return lambda: _encode(instance, senders)


def _encode(instance: Instance, senders: Mapping[LinkId, tuple[int, int, int, tuple[Batch, ...]]]) -> bytes:
    state = OperatorState(
        spec=instance.spec,
        users=tuple(User(query, owner, instance.slack_ms.get(query)) for query, owner in sorted(instance.users.items())),
        inputs=tuple(_input_state(incoming) for incoming in instance.inputs.values()),
        outputs=tuple(_output_state(output, senders[output.link.id]) for output in instance.outputs.values()),
        watermark_us=instance.watermark_us,
        watermark_out_us=instance.watermark_out_us,
        rows_in=instance.rows_in,
        rows_out=instance.rows_out,
        batches_in=instance.batches_in,
        migrations=instance.migrations,
    )
    return _encoder.encode(state)


def _input_state(incoming: Input) -> InputState:
    return InputState(
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
    )


def _output_state(output: Output, exported: tuple[int, int, int, tuple[Batch, ...]]) -> OutputState:
    next_sequence, offered, acknowledged, held = exported
    return OutputState(
        _as_measured(output),
        output.node,
        output.epoch,
        tuple(sorted(output.users)),
        next_sequence,
        offered,
        acknowledged,
        tuple(
            HeldBatch(
                b.sequence, b.stimulus_s, b.watermark_us, b.rows, bytes(b.payload.data()) if isinstance(b.payload, Rows) else b"", b.path
            )
            for b in held
        ),
        tuple(output.named.items()),
    )


def _as_measured(end: Input | Output) -> LinkSpec:
    """Returns the link with the rate measured here, from which the next host's optimiser goes on."""
    return msgspec.structs.replace(end.link, rate_bytes_per_s=end.steady_rate.per_s)


def install(operator: "Operator", data: bytes, epoch: int, links: LinkConfig) -> Instance:
    """Makes an operator from the result of `export`, as PREPARED: it accepts batches but processes none yet.

    Call it on an executor thread.

    Raises
    ------
    RemoteProtocolError
        The bytes are not such a state.
    """
    try:
        state = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise RemoteProtocolError(f"state of {len(data)} bytes is not one of an operator: {problem}") from problem
    instance = Instance(state.spec, epoch, State.PREPARED)
    instance.operator = operator
    if not operator.is_stateless:
        from sbon.operators.sizes import held_bytes

        instance.state_bytes = held_bytes(operator)
    for user in state.users:
        instance.used_by(user)
    instance.watermark_us, instance.watermark_out_us = state.watermark_us, state.watermark_out_us
    instance.rows_in, instance.rows_out, instance.batches_in = state.rows_in, state.rows_out, state.batches_in
    instance.migrations = state.migrations + 1
    for given in state.inputs:
        receiver = LinkReceiver(given.link.id, links, given.processed, given.rows_processed)
        incoming = Input(given.link, given.node, given.schema, receiver, given.watermark_us, given.epoch)
        incoming.lost, incoming.told_lost = given.lost, given.told_lost
        incoming.named.update(given.named)
        instance.inputs[given.link.id] = incoming
    for kept in state.outputs:
        schema = state.spec.schema
        held = [
            Batch(b.sequence, b.stimulus_s, b.watermark_us, Rows.of_bytes(b.data, b.rows, schema) if b.rows else None, b.path)
            for b in kept.held
        ]
        try:
            exported = (kept.next_sequence, kept.rows_offered, kept.rows_acknowledged, held)
            sender = LinkSender.restored(kept.link.id, links, exported)
        except LocalProtocolError as problem:
            raise RemoteProtocolError(str(problem)) from problem
        output = instance.outputs[kept.link.id] = Output(kept.link, kept.node, kept.epoch, schema, sender, set(kept.users))
        output.named.update(kept.named)
    return instance
