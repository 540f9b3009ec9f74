"""Hands outputs of an operator to a multicast of it on the same host, and back.

Each way takes a single turn of the event loop, so that no batch is in transit between the two. The engine calls it.

A link keeps its id, its numbers and its unacknowledged batches: the receiving end only sees another name of its source. Earlier results of
the operator are in the outputs' senders already; later ones come through the multicast, behind them.
"""

from collections.abc import Sequence

import msgspec

from sbon.execution.ends import Input, Output
from sbon.execution.host_links import Links
from sbon.execution.instance import Instance, mark_of
from sbon.execution.life import State
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.link_names import link_id
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.query.params.streams import MulticastParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.types import LinkId, NodeId, OperatorId


def multicast_spec(of: Instance, name: OperatorId) -> OperatorSpec:
    """Returns the spec of a multicast of an operator. It has the operator's signature, since either of the two can serve a query."""
    return OperatorSpec(
        id=name,
        params=MulticastParams(of.spec.params.of if isinstance(of.spec.params, MulticastParams) else of.id),
        schema=of.spec.schema,
        time_column=of.spec.time_column,
        pinned=None,
        signature=of.spec.signature,
    )


def split(parent: Instance, links: Sequence[LinkId], name: OperatorId, config: LinkConfig, me: NodeId) -> Instance:
    """Makes a multicast of `parent` and moves these outputs to it. It is BUILDING, and not added to a flow yet."""
    from sbon.operators.multicast import Multicast

    relay = Instance(multicast_spec(parent, name), 0)
    relay.operator = Multicast()
    relay.watermark_us = relay.watermark_out_us = parent.watermark_out_us
    relay.figures.upstream_delay_ms = parent.figures.upstream_delay_ms
    handed = [parent.outputs[link] for link in links]
    users = {query for output in handed for query in output.users}
    for query in sorted(users & parent.users.keys()):
        relay.users.add(parent.users.user(query))
    rows, rate = max(o.link.rate_rows_per_s for o in handed), max(o.steady_rate.per_s for o in handed)
    between = LinkSpec(link_id(parent.id, name, 0), parent.id, name, 0, rows, rate)
    incoming = Input(between, me, parent.spec.schema, LinkReceiver(between.id, config), parent.watermark_out_us)
    incoming.delay_ms = parent.figures.upstream_delay_ms
    relay.inputs[between.id] = incoming
    for output in handed:
        relay.outputs[output.link.id] = _handed_to(output, name)
    feeding = Output(between, me, 0, parent.spec.schema, LinkSender(between.id, config), users)
    for output in handed:
        del parent.outputs[output.link.id]
    parent.outputs[between.id] = feeding
    return relay


def may_fold(parent: Instance, relay: Instance, config: LinkConfig) -> bool:
    """Tells whether `fold` is possible now: the multicast is idle, and its outputs have room for the batches that wait before it."""
    if relay.busy or relay.state not in (State.RUNNING, State.PAUSED) or parent.state is not State.RUNNING:
        return False
    if any(parent.outputs[link].sender.on_disk for link in relay.inputs):
        return False
    if any(output.giving.is_due for output in relay.outputs.values()):
        return False  # `fold` offers waiting batches whole, and cannot skip rows of them
    waiting = len(_waiting(parent, relay))
    return all(output.sender.held + waiting <= config.window_batches for output in relay.outputs.values())


def fold(parent: Instance, relay: Instance, flow: Links) -> list[Output]:
    """Moves the outputs of a multicast, and the batches that wait before it, back to the operator that feeds it, and ends it.

    Ask `may_fold` first.
    """
    waiting = _waiting(parent, relay)
    outputs = list(relay.outputs.values())
    flow.remove(relay)
    for link in relay.inputs:
        flow.remove_output(parent, link)
    for output in outputs:
        for batch in waiting:
            output.sender.offer(
                batch.stimulus_s, batch.watermark_us, batch.payload, batch.path, batch.origin if output.giving.is_whole else 0
            )
        flow.add_output(parent, _handed_to(output, parent.id))
        flow.outgoing.transmit(output)
    relay.outputs = {}
    if parent.passes:
        for incoming in parent.inputs.values():
            incoming.unsafe.again(mark_of(parent, incoming))  # batches that waited at the multicast are in other outputs now
    return outputs


def feeds(parent: Instance, relay: Instance) -> bool:
    """Tells whether `relay` is a multicast that takes its rows from a link of `parent`."""
    return isinstance(relay.spec.params, MulticastParams) and any(link in parent.outputs for link in relay.inputs)


def _waiting(parent: Instance, relay: Instance) -> list[Batch]:
    """Returns the batches that the multicast has been sent and has not passed on."""
    incoming = next(iter(relay.inputs.values()))
    held = parent.outputs[incoming.link.id].sender.export()[3]
    return [batch for batch in held if batch.sequence > incoming.receiver.processed]


def _handed_to(output: Output, operator: OperatorId) -> Output:
    output.staying.add(output.link.source)
    output.link = msgspec.structs.replace(output.link, source=operator, handed=output.link.handed + 1)
    return output
