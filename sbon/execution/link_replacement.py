"""Replaces a link that has broken for good between two operators that still run. The agent calls it when a query's home asks (`Refeed`).

The sending end of the old link is gone: a multicast between the two operators has crashed, or the consumer was away for too long. The rows
in transit are lost, and no sequence number tells which. A new link with a new id begins instead: a sender of the old one that comes back
from a partition finds no receiver, so nothing arrives twice.

Both ends of the new link note that the target had made rows of other batches before. Otherwise, if the target crashed next, as many rows of
the new link would count as made already, and be left out.
"""

from collections.abc import Callable

import msgspec

from sbon.errors import LocalProtocolError
from sbon.execution.ends import Input
from sbon.execution.host_links import Links
from sbon.execution.instance import mark_of
from sbon.execution.life import State
from sbon.execution.operators import Operators
from sbon.links.frames import Data
from sbon.links.link_names import first_name, renewals
from sbon.types import LinkId, NodeId, OperatorId
from sbon.watermarks import WATERMARK_END
from sbon.wire.deployment import Refeed, Renew


def refeed(
    operators: Operators, links: Links, is_leaving: Callable[[OperatorId], bool], message: Refeed, wall_s: float
) -> tuple[NodeId, LinkId] | None:
    """Carries out one side of a replacement; repeating it does nothing.

    Returns the node that the old link came from, and its id, if it was removed here.

    Parameters
    ----------
    wall_s : time at which the link ends if its source is gone, in seconds since 1970

    Raises
    ------
    LocalProtocolError
        It is not possible now, or not here: ask again.
    """
    operator = message.end.link.source if message.gives else message.end.link.target
    instance = operators.instances.get(operator)
    if instance is None or message.query not in instance.users:
        raise LocalProtocolError(f"operator {operator} of {message.query} is not on {operators.me}")
    if is_leaving(operator) or instance.state not in (State.RUNNING, State.FINISHED):
        raise LocalProtocolError(f"operator {operator} is {instance.state.value}, or about to move")
    if message.gives:
        is_new = links.ends.gives(message.end.link.id) is None
        operators.connect(operator, message.end, message.query)
        if is_new:
            instance.outputs[message.end.link.id].made = (0, None)  # nobody knows how many rows the target had made by then
        return None
    left = None if message.end.link.id in instance.inputs else _take_from(links, message)
    incoming = instance.inputs[message.end.link.id]
    if not incoming.receiver.received:
        if message.end.node != incoming.node:
            incoming.moved(message.end.node, 0)  # an earlier request came when the source ran on another node
        if message.is_over:
            links.receive(Data(incoming.link.id, 1, wall_s, WATERMARK_END, 0, b""), incoming.node, lambda answer: True)
    return left


def begin_again(operators: Operators, links: Links, is_leaving: Callable[[OperatorId], bool], message: Renew) -> None:
    """Gives the source of a link that it has given up a new sending end, behind all rows that it has made, as the target is made again and
    has lost what it had been given. Does nothing if the source has a sending end, or if the message does not ask for one.

    Number 1 stands for all that the target may have had before, so the source says what it says of acknowledged batches.

    Raises
    ------
    LocalProtocolError
        It is not possible now, or not here: ask again.
    """
    link = message.end.link
    if message.begins is not True or not message.gives or links.ends.gives_first(first_name(link.id)) is not None:
        return
    instance = operators.instances.get(link.source)
    if instance is None or message.query not in instance.users:
        raise LocalProtocolError(f"operator {link.source} of {message.query} is not on {operators.me}")
    if is_leaving(link.source) or instance.state not in (State.RUNNING, State.FINISHED):
        raise LocalProtocolError(f"operator {link.source} is {instance.state.value}, or about to move")
    operators.connect(link.source, msgspec.structs.replace(message.end, after=1), message.query)


def replaced(operators: Operators, links: Links, link: LinkId) -> None:
    """Removes the sending end of a link that has been replaced. A multicast without any other output ends."""
    found = links.ends.gives(link)
    if found is not None:
        operators.disconnect(found[0].id, link)


def _take_from(links: Links, message: Refeed) -> tuple[NodeId, LinkId]:
    name = message.end.link.id
    found = links.ends.takes(message.lost) or links.ends.takes_first(first_name(name))  # a former owner may have turned it already
    if found is None:
        raise LocalProtocolError(f"operator {message.end.link.target} has no link {message.lost}")
    instance, old = found
    if renewals(old.link.id) >= renewals(name):
        raise LocalProtocolError(f"link {name} has been replaced since, by {old.link.id}")
    if instance.id != message.end.link.target:
        raise LocalProtocolError(f"link {message.lost} leads to {instance.id}, not to {message.end.link.target}")
    if old.byte_rate.per_s > 0 or old.queue or instance.busy:
        # The request may be mistaken, or a sender back from a partition still delivers.
        raise LocalProtocolError(f"operator {instance.id} still gets rows by {message.lost}, or works on them")
    new = Input(message.end.link, message.end.node, old.schema, old.receiver.anew(message.end.link.id), old.watermark_us)
    new.bytes_in, new.byte_rate, new.steady_rate = old.bytes_in, old.byte_rate, old.steady_rate
    new.origin.number, new.origin.taken = old.origin.number, None  # nobody has counted the rows lost with the link; `made` is unknown, too
    made = mark_of(instance, new)
    new.origin.made_of_all = instance.figures.rows_out
    new.unsafe.begin(0, made.made, made.parts)
    for output in instance.outputs.values():
        if output.giving.due(new.origin.number):
            output.giving.skip(new.origin.number, 0)  # the rows that were to be repeated are lost
    links.replace_input(instance, old, new)
    return old.node, old.link.id
