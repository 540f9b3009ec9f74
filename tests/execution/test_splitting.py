"""Outputs of an operator pass to a multicast beside it, and back: no batch is lost, and receivers see one link all the time."""

from types import SimpleNamespace

import pytest

from sbon.execution.ends import Input, Output
from sbon.execution.instance import Instance, mark_of
from sbon.execution.life import State
from sbon.execution.splitting import feeds, fold, may_fold, split
from sbon.links.config import LinkConfig
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.query.params.rowwise import MapParams
from sbon.query.params.streams import UnionParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.wire.deployment import User

CONFIG = LinkConfig(window_batches=4)
LINKS = ("a", "b", "c")


class Rows(SimpleNamespace):
    rows, size_bytes = 1, 8


@pytest.fixture
def parent() -> Instance:
    """Returns a running operator with three consumers, each of another query."""
    made = Instance(OperatorSpec("q.1", UnionParams(), (), None, None, "s"), 0, State.RUNNING)
    made.watermark_us = made.watermark_out_us = 700
    for link in LINKS:
        made.users.add(User(f"q{link}", "home", 5.0))
        spec = LinkSpec(link, "q.1", f"q.{link}", 0, 1.0, 8.0)
        made.outputs[link] = Output(spec, f"node {link}", 0, (), LinkSender(link, CONFIG), {f"q{link}"})
    return made


class Flow:
    """Records the calls that it gets."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.transmitted: list[str] = []
        self.outgoing = SimpleNamespace(transmit=lambda output: self.transmitted.append(output.link.id))

    def remove(self, instance: Instance) -> None:
        self.removed.append(instance.id)

    def add_output(self, instance: Instance, output: Output) -> None:
        instance.outputs[output.link.id] = output

    def remove_output(self, instance: Instance, link: str) -> None:
        del instance.outputs[link]


def halved(parent: Instance) -> Instance:
    relay = split(parent, ["a", "b"], "q.1~m", CONFIG, "here")
    relay.state = State.RUNNING
    return relay


def offer(output: Output, *watermarks_us: int) -> list[int]:
    """Offers batches; returns their numbers."""
    return [output.sender.offer(0.0, watermark_us, Rows()).sequence for watermark_us in watermarks_us]


def test_what_waits_at_a_multicast_is_not_safe_when_it_is_folded(parent: Instance):
    """The link to the multicast is gone by then, and a link that is gone counts as safe."""
    parent.spec = OperatorSpec("q.1", MapParams(None, None), (), None, None, "s")
    feeding = LinkSpec("f", "q.0", "q.1", 0, 1.0, 8.0)
    incoming = parent.inputs["f"] = Input(feeding, "far", (), LinkReceiver("f", CONFIG))
    relay = halved(parent)
    (between,) = relay.inputs
    incoming.receiver.accept(1)
    incoming.receiver.process(1, 1)
    offer(parent.outputs[between], 800)
    incoming.unsafe.processed(mark_of(parent, incoming))
    fold(parent, relay, Flow())  # type: ignore[arg-type]

    incoming.unsafe.look(lambda given: given[0].safe >= given[1] or given[0] not in [one.sender for one in parent.outputs.values()])
    assert incoming.unsafe.safe == 0
    for output in parent.outputs.values():
        output.sender.acknowledge(output.sender.offered, 4)
    incoming.unsafe.look(lambda given: given[0].safe >= given[1])
    assert incoming.unsafe.safe == 1


def test_a_multicast_takes_over_the_outputs_with_a_later_turn_and_stands_where_the_operator_stands(parent: Instance):
    relay = halved(parent)

    (between,) = relay.inputs.values()
    assert list(relay.outputs) == ["a", "b"]
    assert [(output.link.source, output.link.handed) for output in relay.outputs.values()] == [("q.1~m", 1)] * 2
    assert [output.staying for output in relay.outputs.values()] == [{"q.1"}] * 2, "until they are told, consumers take it for the sender"
    assert list(parent.outputs) == ["c", between.link.id]
    assert (relay.watermark_us, relay.watermark_out_us, between.watermark_us) == (700, 700, 700)
    assert feeds(parent, relay)


def test_a_multicast_is_used_by_the_queries_of_its_outputs_and_by_no_other(parent: Instance):
    relay = halved(parent)

    assert dict(relay.users) == {"qa": "home", "qb": "home"}
    assert relay.users.slack_ms == {"qa": 5.0, "qb": 5.0}
    assert parent.outputs[next(iter(relay.inputs))].users == {"qa", "qb"}


def test_a_folded_multicast_gives_its_outputs_back_behind_what_waited_before_it(parent: Instance):
    relay = halved(parent)
    between = next(iter(relay.inputs))
    offer(parent.outputs[between], 800, 900)
    relay.inputs[between].receiver.accept(1)
    relay.inputs[between].receiver.process(1, 1)  # the first of the two batches has passed already
    flow = Flow()

    assert may_fold(parent, relay, CONFIG)
    outputs = fold(parent, relay, flow)

    assert [output.link.id for output in outputs] == flow.transmitted == ["a", "b"]
    assert flow.removed == ["q.1~m"]
    assert list(parent.outputs) == ["c", "a", "b"]
    assert [(output.link.source, output.link.handed) for output in outputs] == [("q.1", 2)] * 2
    assert [[batch.watermark_us for batch in output.sender.export()[3]] for output in outputs] == [[900], [900]]
    assert relay.outputs == {}


def test_a_multicast_is_folded_only_while_it_is_idle_and_its_outputs_have_room(parent: Instance):
    relay = halved(parent)
    assert may_fold(parent, relay, CONFIG)

    relay.busy = True
    assert not may_fold(parent, relay, CONFIG)
    relay.busy = False
    relay.state = State.FAILED
    assert not may_fold(parent, relay, CONFIG)
    relay.state = State.PAUSED
    assert may_fold(parent, relay, CONFIG)
    parent.state = State.FORKING
    assert not may_fold(parent, relay, CONFIG)
    parent.state = State.RUNNING

    offer(relay.outputs["b"], 710, 720)
    offer(parent.outputs[next(iter(relay.inputs))], 730, 740)
    assert may_fold(parent, relay, CONFIG)
    offer(relay.outputs["b"], 750)
    assert not may_fold(parent, relay, CONFIG), "five batches, where a window has room for four"
