"""A living neighbour's part in a recovery: turns its end of a link to the operator that is made again, and says how far the lost one was.

The home of a query asks for it (`Renew`, docs/recovery.md).
"""

from collections.abc import Callable, Mapping

import msgspec

from sbon.errors import LocalProtocolError
from sbon.execution.dealt_turns import dealt_turns
from sbon.execution.ends import Input, Output
from sbon.execution.host_links import Links, Outgoing
from sbon.execution.instance import Instance, begin_at
from sbon.execution.life import State
from sbon.links.link_names import first_name, renewals
from sbon.links.origins import of_part
from sbon.query.params.kinds import keeps_state
from sbon.query.params.source import SinkParams
from sbon.query.params.streams import DEALING
from sbon.query.plan import Begin, LinkSpec
from sbon.types import NodeId, OperatorId
from sbon.watermarks import WATERMARK_MIN
from sbon.wire.deployment import LeaveOut, Renew, Renewed, TakenUp

STEADY = frozenset({State.WAITING, State.RUNNING, State.STALLED, State.FINISHING, State.FINISHED})
"""States in which an operator keeps its links: it neither moves nor ends."""


def renew(
    me: NodeId,
    flow: Links,
    gives_way: Callable[[OperatorId, OperatorId], bool],
    advance: Callable[[Instance, int], None],
    message: Renew,
) -> Renewed:
    """Carries out one side of a recovery; repeating it does nothing more.

    Parameters
    ----------
    gives_way : calls off the move of an operator whose neighbour is made again; returns False if it moves nevertheless
    advance : raises the watermark of an idle operator without a batch

    Raises
    ------
    LocalProtocolError
        It is not possible now, or not here: ask again.
    """
    link, ends = message.end.link, flow.ends
    found = ends.gives_first(first_name(link.id)) if message.gives else ends.takes_first(first_name(link.id))
    if found is None:
        raise LocalProtocolError(f"link {link.id} has no {'sending' if message.gives else 'receiving'} end on {me}")
    instance, end = found
    lost = link.target if message.gives else link.source
    if not gives_way(instance.id, lost) or instance.state not in STEADY:
        raise LocalProtocolError(f"operator {instance.id} is {instance.state.value}, or about to move")
    if renewals(end.link.id) > renewals(link.id):
        raise LocalProtocolError(f"link {link.id} has been replaced since, by {end.link.id}")
    return _gives(flow, instance, end, message) if isinstance(end, Output) else _takes(flow, instance, end, advance, message)


def leave_out(
    me: NodeId, instances: Mapping[OperatorId, Instance], gives_way: Callable[[OperatorId, OperatorId], bool], message: LeaveOut
) -> None:
    """Lets a running operator leave out answers that would lack rows of an operator lost elsewhere; repeating it does nothing more.

    Parameters
    ----------
    gives_way : as for `renew`

    Raises
    ------
    LocalProtocolError
        It is not possible now, or not here: ask again.
    """
    instance = instances.get(message.operator)
    if instance is None:
        raise LocalProtocolError(f"operator {message.operator} is not on {me}")
    if message.column not in [column.name for column in instance.spec.schema]:
        raise LocalProtocolError(f"operator {message.operator} has no column {message.column}")
    if not gives_way(instance.id, instance.id) or instance.state not in STEADY:
        raise LocalProtocolError(f"operator {instance.id} is {instance.state.value}, or about to move")
    before = instance.spec.begin
    if not isinstance(before, Begin) or before.us < message.us:
        instance.spec = msgspec.structs.replace(instance.spec, begin=Begin(message.column, message.us))
        begin_at(instance.operator, instance.spec, is_whole=False)


def _gives(flow: Links, instance: Instance, output: Output, message: Renew) -> Renewed:
    if output.link.id != message.end.link.id or output.node != message.end.node:
        link = msgspec.structs.replace(output.link, id=message.end.link.id)
        renew_output(flow, instance, output, link, message.end.node, message.end.epoch)
        output.staying.clear()  # the home tells the new operator who feeds it
    sender = output.sender
    after, made = sender.forgotten, output.made_by_target
    return Renewed(
        link=output.link,
        after=after,
        rows=sender.rows_acknowledged,
        watermark_us=max(sender.former_us, _up_to(instance, sender.made_for(after))) if after else WATERMARK_MIN,
        sent_us=max(sender.former_us, _up_to(instance, sender.made_for(sender.highest_sent)), _watermark_sent(instance, output)),
        settled_us=instance.watermark_out_us if sender.is_settled else WATERMARK_MIN,
        schema=instance.spec.schema,
        made=made,
        behind=() if made is None else output.behind or (),
        passes=output.behind is not None,
        origins=_given_by_origin(instance, output),
        by_origin=None if made is None else output.by_origin,
        dealt=dealt_turns(instance),
    )


def _watermark_sent(instance: Instance, output: Output) -> int:
    """Returns the watermark of the last batch that may have arrived, or a higher one. A batch without rows may have made the target answer,
    too."""
    known_us = output.sender.watermark_of(output.sender.highest_sent)
    return instance.watermark_out_us if known_us is None else known_us


def _up_to(instance: Instance, known_us: int | None) -> int:
    """Returns a watermark that the rows on an output had been made for, or a higher one.

    An operator without state that has several inputs gives rows of one input while its own watermark waits for another.

    Parameters
    ----------
    known_us : what the sending end knows of it; None if that may be any watermark up to the present one
    """
    given_us = instance.watermark_out_us if known_us is None else known_us
    if given_us <= WATERMARK_MIN or keeps_state(instance.spec.params) or len(instance.inputs) < 2:
        return given_us
    return max([given_us, *[incoming.watermark_us for incoming in instance.inputs.values()]])


def _takes(flow: Links, instance: Instance, incoming: Input, advance: Callable[[Instance, int], None], message: Renew) -> Renewed:
    ahead_us = instance.watermark_us if _is_ahead(instance, incoming) else WATERMARK_MIN
    if incoming.link.id != message.end.link.id or incoming.node != message.end.node:
        link = msgspec.structs.replace(incoming.link, id=message.end.link.id, source=message.end.link.source)
        is_behind = message.end.after > incoming.receiver.received  # the source was away when this operator was made again
        if is_behind and (instance.busy or incoming.queue):
            raise LocalProtocolError(f"operator {instance.id} still works on batches that came by {incoming.link.id} before")
        renew_input(flow, instance, incoming, link, message.end.node, message.end.epoch)
        if is_behind:
            known = message.end.rows - incoming.receiver.rows_processed
            incoming.receiver.go_on(message.end.after, message.end.rows)
            incoming.unsafe.begin(message.end.after, _goes_on(instance, incoming, message.end.made))
            before = incoming.origin.taken
            incoming.origin.taken, incoming.origin.made_by_origin = message.end.origins, None
            incoming.written.acknowledged(known, before, message.end.origins)  # a sink has found them in its file
            incoming.watermark_us = max(incoming.watermark_us, message.end.watermark_us)
            incoming.from_former = 0
            if instance.state is State.RUNNING and instance.watermark_in_us > instance.watermark_us:
                advance(instance, instance.watermark_in_us)  # the source may have nothing more to send
    receiver = incoming.receiver
    return Renewed(
        link=incoming.link,
        after=receiver.received,
        rows=incoming.rows_taken,
        watermark_us=incoming.watermark_taken_us,
        origins=incoming.origins_taken,
        is_whole=incoming.is_whole,
        ahead_us=ahead_us,
        dealt=dealt_turns(instance),
    )


def _is_ahead(instance: Instance, incoming: Input) -> bool:
    """Tells whether an operator with state has gone on without an input whose source was away for long, so that rows from it are late."""
    return keeps_state(instance.spec.params) and instance.watermark_us > max(incoming.watermark_taken_us, incoming.origin.began_us)


def _goes_on(instance: Instance, incoming: Input, made: tuple[int, ...] | None) -> int | None:
    """Sets how many rows a lost operator had made of an input whose source was away when this copy began. The rows that its consumers have
    taken of that input beyond these are skipped. Returns the rows made; None if unknown."""
    if not incoming.origin.number:
        return instance.figures.rows_out
    before, made = incoming.origin.made, instance.is_made_of_input(made)
    incoming.origin.made = made
    if made is None or before is None:
        return None
    for output in instance.outputs.values():
        index = 0 if output.link.part is None else output.link.part.index
        due = output.giving.due(incoming.origin.number)
        output.giving.skip(incoming.origin.number, max(0, due + before[index] - made[index]))
    return sum(made)


def _given_by_origin(instance: Instance, output: Output) -> tuple[int, ...] | None:
    """Returns the rows that an operator without state has sent on a link and holds no more, by origin; None if unknown."""
    held, known = output.sender.kept(), _made_of_origins(instance)
    if held is None or known is None or not output.giving.is_whole or output.giving.rows:
        return None
    # Rows that are still to be skipped have been taken before.
    found = [of_part(made, output.link) + output.giving.due(number) for number, made in enumerate(known, 1)]
    for batch in held:
        if batch.rows and 0 < batch.origin <= len(found):
            found[batch.origin - 1] -= batch.rows
    return tuple(found) if min(found, default=0) >= 0 else None


def _made_of_origins(instance: Instance) -> list[tuple[int, ...]] | None:
    """Returns the rows that an operator has made of each origin, of each part if it deals them; None if unknown."""
    inputs = list(instance.inputs.values())
    if len(inputs) == 1:
        own = inputs[0].origin.made_by_origin
        return None if own is None else [made or instance.made_of_nothing for made in own]
    by_number = {incoming.origin.number: incoming.origin.made for incoming in inputs}
    found = [made for _, made in sorted(by_number.items()) if made is not None]
    return found if len(found) == len(inputs) and 0 not in by_number else None


def renew_input(flow: Links, instance: Instance, incoming: Input, link: LinkSpec, node: NodeId, epoch: int) -> None:
    """Gives an input another id: the operator that feeds it is made again, on `node`. Batches that arrive under the old id are refused."""
    before = incoming.link.id
    flow.drop_input(before)
    inputs = list(instance.inputs.values())
    instance.inputs.clear()
    incoming.link = link
    instance.inputs.update((one.link.id, one) for one in inputs)  # keeps their order
    instance.waiting.renamed(before, incoming)
    incoming.begins_anew(node, epoch)
    flow.ends.add_taking(instance, incoming)


def renew_output(flow: Links, instance: Instance, output: Output, link: LinkSpec, node: NodeId, epoch: int) -> None:
    """Gives an output another id: the operator that it feeds is made again, on `node`. Unacknowledged batches are sent there.

    Raises
    ------
    LocalProtocolError
        Some of its batches are being written to disk, or read.
    """
    flow.outgoing.spilling.rename(output.link.id, link.id)
    flow.ends.drop_giving(output.link.id)
    outputs = list(instance.outputs.values())
    instance.outputs.clear()
    output.link = link
    instance.outputs.update((one.link.id, one) for one in outputs)
    output.begins_anew(node, epoch)
    flow.ends.add_giving(instance, output)
    flow.outgoing.transmit(output)  # perhaps to nobody yet: batches are sent again until the operator is there, or asks


def begin_anew(instance: Instance, taken_up: TakenUp) -> None:
    """Gives an operator that is made again after a crash the figures with which it goes on."""
    instance.epoch = taken_up.epoch
    for user in taken_up.users:
        if user.query not in instance.users:
            instance.users.add(user)
    instance.figures.rows_out = taken_up.rows_out
    instance.watermark_out_us = taken_up.watermark_out_us
    for incoming in instance.inputs.values():
        incoming.origin.made_of_all = taken_up.rows_out
        own = incoming.origin.made
        made = taken_up.rows_out if not incoming.origin.number else None if own is None else sum(own)
        parts = own or () if isinstance(instance.spec.params, DEALING) else ()
        incoming.unsafe.begin(incoming.receiver.processed, made, parts, incoming.origin.by_origin())
    params = instance.spec.params
    if keeps_state(params):
        instance.watermark_us = taken_up.watermark_us
        for incoming in instance.inputs.values():
            incoming.origin.began_us = taken_up.watermark_us
    elif isinstance(params, SinkParams):
        instance.watermark_us = instance.watermark_in_us


def ask_again(me: NodeId, outgoing: Outgoing, instance: Instance) -> None:
    """Asks the feeders of an operator that has been made again here to send on."""
    for incoming in instance.inputs.values():
        message = incoming.acknowledgement(resume=True, passes=instance.passes)
        if incoming.node == me:
            outgoing.acknowledged(message)
        else:
            outgoing.tell(incoming.node, message)
