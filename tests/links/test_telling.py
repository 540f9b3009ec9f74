"""Receivers hear over the directory who gives on their links, and the operator that gives stays until they have answered."""

from types import SimpleNamespace

import numpy as np
import pytest

from sbon.delivery.sender_notices import Telling
from sbon.errors import LinkError, LocalProtocolError
from sbon.execution.ends import Output
from sbon.execution.life import State
from sbon.links.config import LinkConfig
from sbon.links.ends import Ends
from sbon.links.sender import LinkSender
from sbon.query.plan import LinkSpec
from sbon.wire.links import Handed, Moved
from sbon.wire.messages import Done
from sbon_testbed.simulator.world import SimulatedWorld

LINK = LinkSpec("q.1>q.2:0", "q.1~m", "q.2", 0, 1.0, 1.0, handed=1)


class Directory:
    """Keeps the requests; the test answers them."""

    me = "here"

    def __init__(self):
        self.asked = []

    def request(self, node, message, done):
        self.asked.append((node, message, done))

    def tell(self, node, message):
        self.asked.append((node, message, None))

    def answer(self, result):
        node, message, done = self.asked.pop()
        assert not self.asked, "one request at a time"
        done(result)
        return node, message


@pytest.fixture
def telling():
    world, directory, ends = SimulatedWorld(np.zeros((1, 1)), 1), Directory(), Ends(10)
    output = Output(LINK, "far", 0, (), LinkSender(LINK.id, LinkConfig()), {"q"})
    ends.add_giving(object(), output)
    return (
        Telling(world.boot(0), directory, SimpleNamespace(instances={}), SimpleNamespace(ends=ends), lambda operator: False),
        directory,
        output,
        ends,
        world,
    )


def test_receiver_that_does_not_answer_is_told_again_where_it_is_then(telling):
    machine, directory, output, _, world = telling
    told = []
    output.staying.add("q.1")
    machine.tell([output], lambda: told.append("once"))
    assert directory.answer(LinkError("away")) == ("far", Handed(LINK, "here"))
    assert (output.told, output.staying, directory.asked) == (False, {"q.1", "q.1~m"}, [])

    output.moved("there", 1)
    world.time.run_until(0.49)
    assert directory.asked == []
    world.time.run_until(0.51)
    assert not told
    assert directory.answer(Done()) == ("there", Handed(LINK, "here"))
    assert (output.told, output.staying, told) == (True, set(), ["once"])
    world.time.run_until(100.0)
    assert directory.asked == []


def test_end_that_is_gone_when_the_pause_is_over_is_told_no_more(telling):
    machine, directory, output, ends, world = telling
    machine.tell([output], lambda: pytest.fail("nobody was told"))
    directory.answer(LinkError("away"))
    ends.drop_giving(LINK.id)

    world.time.run_until(100.0)
    assert directory.asked == []


def test_end_that_goes_while_its_receiver_answers_calls_back_all_the_same(telling):
    machine, directory, output, ends, _ = telling
    told = []
    machine.tell([output], lambda: told.append("once"))
    ends.drop_giving(LINK.id)

    directory.answer(Done())
    assert told == ["once"]


def test_who_does_not_have_the_receiving_end_refuses(telling):
    machine, *_ = telling
    with pytest.raises(LocalProtocolError, match="is not on here"):
        machine.handle(Handed(LINK, "far"), lambda result: None)


def test_an_operator_that_has_moved_here_says_where_it_runs_until_a_batch_comes():
    world, directory = SimulatedWorld(np.zeros((1, 1)), 1), Directory()

    def incoming(link, node, reply=None):
        return SimpleNamespace(link=SimpleNamespace(id=link), node=node, reply=reply)

    inputs = {"a": incoming("a", "far"), "b": incoming("b", "here"), "c": incoming("c", "there", reply=print)}
    moved = SimpleNamespace(id="q.2", state=State.RUNNING, epoch=3, inputs=inputs)
    still = SimpleNamespace(id="q.3", state=State.RUNNING, epoch=0, inputs={"d": incoming("d", "far")})
    prepared = SimpleNamespace(id="q.4", state=State.PREPARED, epoch=5, inputs={"e": incoming("e", "far")})
    operators = SimpleNamespace(instances={one.id: one for one in (moved, still, prepared)})
    flow = SimpleNamespace(ends=SimpleNamespace(gives=lambda link: None))
    machine = Telling(world.boot(0), directory, operators, flow, lambda operator: False)

    for second in range(40):
        world.time.run_until(float(second))
        machine.say_where()
    assert {(node, message) for node, message, _ in directory.asked} == {("far", Moved("q.2", "here", 3))}
    assert len(directory.asked) == 6  # after 1, 2, 4, 8, 16 and 31 s

    inputs["a"].reply = print
    directory.asked.clear()
    world.time.run_until(100.0)
    machine.say_where()
    assert directory.asked == []


@pytest.mark.parametrize(("node", "told"), [("far", [("q.2", "here", 3)]), ("here", [])])
def test_a_neighbour_here_that_was_made_by_who_had_not_heard_of_the_move_is_told(node, told):
    world, found = SimulatedWorld(np.zeros((1, 1)), 1), []
    incoming = SimpleNamespace(link=SimpleNamespace(id="a"), node="here", reply=None)
    moved = SimpleNamespace(id="q.2", state=State.RUNNING, epoch=3, inputs={"a": incoming})
    ends = SimpleNamespace(gives=lambda link: (None, SimpleNamespace(node=node)))
    flow = SimpleNamespace(ends=ends, moved=lambda *given: found.append(given))
    Telling(world.boot(0), Directory(), SimpleNamespace(instances={"q.2": moved}), flow, lambda operator: False).say_where()
    assert found == told
