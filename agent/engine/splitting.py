"""Outputs of one operator handed to a multicast of it on the same host, and given back. In one turn of the event loop, so that no batch is
between the two.

A link keeps its id, its numbers and what is not acknowledged on it: the receiving end sees nothing but another name of its source. What
the operator has given to its outputs before is in their senders already; what it gives afterwards comes through the multicast, behind it.
"""

from collections.abc import Sequence

import msgspec

from sbon.links import Batch, LinkConfig, LinkReceiver, LinkSender
from sbon.query.plan import LinkSpec, MulticastParams, OperatorSpec, link_id
from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire.deployment import User
from sbon_agent.engine.ends import Input, Output
from sbon_agent.engine.flow import Flow
from sbon_agent.engine.instance import Instance, State


def multicast_spec(of: Instance, name: OperatorId) -> OperatorSpec:
    """A multicast of an operator. It has its signature: who looks for the one may take the other."""
    return OperatorSpec(
        id=name,
        params=MulticastParams(of.spec.params.of if isinstance(of.spec.params, MulticastParams) else of.id),
        schema=of.spec.schema,
        time_column=of.spec.time_column,
        pinned=None,
        signature=of.spec.signature,
    )


def split(parent: Instance, links: Sequence[LinkId], name: OperatorId, config: LinkConfig, me: NodeId) -> Instance:
    """Make a multicast of `parent` that has these outputs of it. It is BUILDING, and belongs to no flow yet."""
    from sbon.operators.multicast import Multicast

    relay = Instance(multicast_spec(parent, name), 0)
    relay.operator = Multicast()
    relay.watermark_us = relay.watermark_out_us = parent.watermark_out_us
    relay.upstream_delay_ms = parent.upstream_delay_ms
    handed = [parent.outputs[link] for link in links]
    users = {query for output in handed for query in output.users}
    for query in sorted(users & parent.users.keys()):
        relay.used_by(User(query, parent.users[query], parent.slack_ms.get(query)))
    rows, rate = max(o.link.rate_rows_per_s for o in handed), max(o.steady_rate.per_s for o in handed)
    between = LinkSpec(link_id(parent.id, name, 0), parent.id, name, 0, rows, rate)
    incoming = Input(between, me, parent.spec.schema, LinkReceiver(between.id, config), parent.watermark_out_us)
    incoming.delay_ms = parent.upstream_delay_ms
    relay.inputs[between.id] = incoming
    for output in handed:
        relay.outputs[output.link.id] = _handed_to(output, name)
    feeding = Output(between, me, 0, parent.spec.schema, LinkSender(between.id, config), users)
    for output in handed:
        del parent.outputs[output.link.id]
    parent.outputs[between.id] = feeding
    return relay


def may_fold(parent: Instance, relay: Instance, config: LinkConfig) -> bool:
    """Whether `fold` would do no harm now: nothing is under way in the multicast, and its outputs have room for what waits before it."""
    if relay.busy or relay.state not in (State.RUNNING, State.PAUSED) or parent.state is not State.RUNNING:
        return False
    if any(parent.outputs[link].sender.on_disk for link in relay.inputs):
        return False
    waiting = len(_waiting(parent, relay))
    return all(output.sender.held + waiting <= config.window_batches for output in relay.outputs.values())


def fold(parent: Instance, relay: Instance, flow: Flow) -> list[Output]:
    """Give the outputs of a multicast back to the operator that feeds it, with what waits before it; it ends. Ask `may_fold` first."""
    waiting = _waiting(parent, relay)
    outputs = list(relay.outputs.values())
    flow.remove(relay)
    for link in relay.inputs:
        flow.remove_output(parent, link)
    for output in outputs:
        for batch in waiting:
            output.sender.offer(batch.stimulus_s, batch.watermark_us, batch.payload, batch.path)
        flow.add_output(parent, _handed_to(output, parent.id))
        flow.transmit(output)
    relay.outputs = {}
    return outputs


def feeds(parent: Instance, relay: Instance) -> bool:
    """Whether the one has the link that the other takes its rows from."""
    return isinstance(relay.spec.params, MulticastParams) and any(link in parent.outputs for link in relay.inputs)


def _waiting(parent: Instance, relay: Instance) -> list[Batch]:
    """Batches that the multicast has been given and has not passed on."""
    incoming = next(iter(relay.inputs.values()))
    held = parent.outputs[incoming.link.id].sender.export()[3]
    return [batch for batch in held if batch.sequence > incoming.receiver.processed]


def _handed_to(output: Output, operator: OperatorId) -> Output:
    output.link = msgspec.structs.replace(output.link, source=operator, handed=output.link.handed + 1)
    return output
