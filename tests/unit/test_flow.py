"""The links of one host: what is sent again when, and what latecomers hear. The other hosts are what this one has sent."""

import numpy as np
import pytest

from agent.engine.ends import Output
from agent.engine.flow import Flow
from agent.engine.instance import Instance
from sbon.links import LinkConfig, LinkSender
from sbon.query.plan import LinkSpec, OperatorSpec, UnionParams
from sbon.wire.links import Acknowledge, Moved, NoSuchLink
from testbed.virtual.world import SimulatedWorld

LINK = LinkSpec("q.1>q.2:0", "q.1", "q.2", 0, 1.0, 1.0)


class Router:
    """Keeps what was sent, by node; everything finds room."""

    me = "here"

    def __init__(self):
        self.sent = []

    def send(self, node, message):
        self.sent.append((node, message))
        return True

    def taken(self):
        """Batches sent since the last call."""
        found, self.sent = [(node, message.sequence) for node, message in self.sent], []
        return found


class Events:
    """Nobody to tell."""

    def __getattr__(self, name):
        return lambda *told: None


@pytest.fixture
def far():
    """A flow with an operator whose output leads to another host, three batches under way."""
    host = SimulatedWorld(np.zeros((1, 1)), 1).boot(0)
    router = Router()
    flow = Flow(host, router, Events(), 10, LinkConfig(), host.disk("spill"))
    output = Output(LINK, "far", 0, (), LinkSender(LINK.id, LinkConfig()), {"q"})
    instance = Instance(OperatorSpec("q.1", UnionParams(), (), None, None, "s"), 0)
    flow.add_output(instance, output)
    for _ in range(3):
        output.sender.offer(0.0, 0, None)
    flow.transmit(output)
    assert router.taken() == [("far", 1), ("far", 2), ("far", 3)]
    return flow, router, output


def acknowledge(processed, *, resume=False):
    return Acknowledge(link=LINK.id, processed=processed, credit=8, resume=resume)


def test_what_a_lost_connection_swallowed_goes_again_over_the_next(far):
    flow, router, _ = far
    flow.acknowledged(acknowledge(1))
    flow.reconnected("elsewhere")
    assert router.taken() == []
    flow.reconnected("far")

    assert router.taken() == [("far", 2), ("far", 3)]


def test_receiver_that_lacks_a_batch_is_sent_all_from_there(far):
    flow, router, _ = far
    flow.acknowledged(acknowledge(1))
    assert router.taken() == []
    flow.acknowledged(acknowledge(1, resume=True))

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
    flow.reconnected("far")
    data = router.sent[0][1]
    heard = []
    flow.receive(data, heard.append)
    flow.left("q.2", "there", 3)
    flow.receive(data, heard.append)
    flow.moved("q.2", "third", 4)
    flow.receive(data, heard.append)

    assert heard == [NoSuchLink(link=LINK.id), Moved(operator="q.2", node="there", epoch=3), Moved(operator="q.2", node="third", epoch=4)]


def test_acknowledgement_of_what_was_never_sent_is_counted_and_changes_nothing(far):
    flow, _, output = far
    flow.acknowledged(acknowledge(9))

    assert flow.counters["acknowledgements_bad"] == 1
    assert output.sender.held == 3
