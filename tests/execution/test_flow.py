"""The links of one host: when batches are sent again, and what late senders are told. Only the messages to other hosts are recorded."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

from sbon.delivery.flow import Flow
from sbon.execution.ends import Input, Output
from sbon.execution.instance import Instance
from sbon.execution.rows import Rows
from sbon.links.config import LinkConfig
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.query.params.streams import UnionParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.schema import ColumnType, Field
from sbon.wire.links import Acknowledge, Moved, NoSuchLink
from sbon_testbed.simulator.world import SimulatedWorld

LINK = LinkSpec("q.1>q.2:0", "q.1", "q.2", 0, 1.0, 1.0)


class Router:
    """Records messages with their nodes; always has room."""

    me = "here"

    def __init__(self):
        self.sent = []

    def send(self, node, message):
        self.sent.append((node, message))
        return True

    def taken(self):
        """Returns the batches sent since the last call."""
        found, self.sent = [(node, message.sequence) for node, message in self.sent], []
        return found


class Events:
    """Ignores all reports."""

    def __getattr__(self, name):
        return lambda *told: None


@pytest.fixture
def far():
    """Returns a flow, its router and an output that leads to another host and has three unacknowledged batches."""
    host = SimulatedWorld(np.zeros((1, 1)), 1).boot(0)
    router = Router()
    flow = Flow(host, router, Events(), 10, LinkConfig(), host.disk("spill"))
    output = Output(LINK, "far", 0, (), LinkSender(LINK.id, LinkConfig()), {"q"})
    instance = Instance(OperatorSpec("q.1", UnionParams(), (), None, None, "s"), 0)
    flow.add_output(instance, output)
    for _ in range(3):
        output.sender.offer(0.0, 0, None)
    flow.outgoing.transmit(output)
    assert router.taken() == [("far", 1), ("far", 2), ("far", 3)]
    return flow, router, output


def acknowledge(processed, *, resume=False):
    return Acknowledge(link=LINK.id, processed=processed, credit=8, resume=resume)


def test_what_a_lost_connection_swallowed_goes_again_over_the_next(far):
    flow, router, _ = far
    flow.outgoing.acknowledged(acknowledge(1))
    flow.outgoing.reconnected("elsewhere")
    assert router.taken() == []
    flow.outgoing.reconnected("far")

    assert router.taken() == [("far", 2), ("far", 3)]


def test_receiver_that_lacks_a_batch_is_sent_all_from_there(far):
    flow, router, _ = far
    flow.outgoing.acknowledged(acknowledge(1))
    assert router.taken() == []
    flow.outgoing.acknowledged(acknowledge(1, resume=True))

    assert router.taken() == [("far", 2), ("far", 3)]


def test_new_place_of_the_receiver_gets_all_that_is_not_acknowledged_and_older_news_changes_nothing(far):
    flow, router, output = far
    flow.moved("q.2", "there", 2)
    assert router.taken() == [("there", 1), ("there", 2), ("there", 3)]
    flow.moved("q.2", "far", 1)
    flow.moved("q.2", "third", 2)

    assert router.taken() == []
    assert (output.node, output.epoch) == ("there", 2)


def test_latecomers_hear_where_an_operator_has_gone_and_only_the_latest(far):
    flow, router, _ = far
    flow.outgoing.reconnected("far")
    data = router.sent[0][1]
    heard = []
    flow.receive(data, "far", heard.append)
    flow.ends.left("q.2", "there", 3)
    flow.receive(data, "far", heard.append)
    flow.moved("q.2", "third", 4)
    flow.receive(data, "far", heard.append)

    assert heard == [NoSuchLink(link=LINK.id), Moved(operator="q.2", node="there", epoch=3), Moved(operator="q.2", node="third", epoch=4)]


def test_a_former_host_that_repeats_a_batch_gets_no_answers_once_the_next_host_has_sent():
    """Seed 7077: only the former host got acknowledgements, and the next host waited for credit for ever."""
    heard: list[str] = []
    incoming = Input(LINK, "before", (), LinkReceiver(LINK.id, LinkConfig()))

    def to(node: str) -> Callable[[Any], bool]:
        return lambda answer: heard.append(node) is None

    def answer() -> str:
        assert incoming.reply is not None
        incoming.reply("")
        return heard.pop()

    incoming.receiver.accept(1)
    incoming.answers(1, "before", to("before"))
    incoming.name("next", 1)
    incoming.answers(1, "before", to("before, again"))
    assert answer() == "before, again", "the move is not decided yet"
    incoming.answers(1, "next", to("next"))
    incoming.answers(1, "before", to("before"))
    assert answer() == "next"
    incoming.answers(1, "next", to("next, again"))
    assert answer() == "next, again", "the next host has a new connection"
    incoming.answers(2, "before", to("before"))
    assert answer() == "before", "a new batch comes from the host where the source runs"
    incoming.answers(1, "next", to("next"))
    incoming.unname("before")
    incoming.answers(1, "before", to("before"))
    assert answer() == "before", "the move was called off"


def test_a_host_where_the_sender_was_and_may_be_again_is_not_the_next_one_that_has_sent():
    """Seed 181: the sender was to return to its first host, and did not."""
    heard: list[str] = []
    incoming = Input(LINK, "first", (), LinkReceiver(LINK.id, LinkConfig()))
    incoming.receiver.accept(1)
    incoming.answers(1, "first", lambda answer: heard.append("first") is None)
    incoming.moved("second", 1)
    incoming.name("first", 2)
    incoming.answers(1, "second", lambda answer: heard.append("second") is None)
    assert incoming.reply is not None
    incoming.reply("")
    assert heard == ["second"]


def test_acknowledgement_of_what_was_never_sent_is_counted_and_changes_nothing(far):
    flow, _, output = far
    flow.outgoing.acknowledged(acknowledge(9))

    assert flow.counters["acknowledgements_bad"] == 1
    assert output.sender.held == 3


SCHEMA = (Field("n", ColumnType.INT),)


def test_batch_that_cannot_be_packed_goes_without_its_rows_and_those_behind_it_follow():
    world = SimulatedWorld(np.zeros((1, 1)), 1)
    router, told = Router(), []
    events = Events()
    events.rows_left_out = lambda output, rows, reason: told.append((output.link.id, rows, reason))
    host = world.boot(0)
    flow = Flow(host, router, events, 10, LinkConfig(), host.disk("spill"))
    output = Output(LINK, "far", 0, SCHEMA, LinkSender(LINK.id, LinkConfig()), {"q"})
    flow.add_output(Instance(OperatorSpec("q.1", UnionParams(), (), None, None, "s"), 0), output)
    frames = [pl.DataFrame({"n": [1]}), pl.DataFrame({"n": ["no number", "nor this"]}), pl.DataFrame({"n": [4, 5, 6]})]
    for number, frame in enumerate(frames):
        output.sender.offer(0.0, number, Rows(frame.height, 100, SCHEMA, frame))

    flow.outgoing.transmit(output)
    world.time.run_until(1.0)

    assert [(data.sequence, data.rows, data.watermark_us) for _, data in router.sent] == [(1, 1, 0), (2, 0, 1), (3, 3, 2)]
    assert [(link, rows) for link, rows, _ in told] == [(LINK.id, 2)]
    assert "frame has columns" in told[0][2]
    assert "frame has columns" in output.left_out_because
    assert (flow.counters["batches_unpackable"], flow.counters["rows_unpackable"]) == (1, 2)
    assert (output.sender.rows_offered, output.sender.rows_held) == (6, 4)

    flow.outgoing.acknowledged(acknowledge(3))
    assert (output.sender.held, output.sender.rows_held, output.sender.rows_acknowledged) == (0, 0, 4)
    assert output.sender.backlog.memory_bytes == 0
    assert output.sender.export()[1:3] == (4, 4)
