"""Inputs of joins that are held back while the other input has rows waiting on this host."""

from types import SimpleNamespace
from typing import Any

import pytest

from sbon.engine.alignment import Alignment
from sbon.engine.leads import ROWS_AHEAD, STEP_S
from sbon.execution.ends import Input
from sbon.execution.life import State
from sbon.execution.waiting import Waiting
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.receiver import LinkReceiver
from sbon.query.plan import LinkSpec

ROWS_MAX = 10**6
MANY = ROWS_AHEAD + 1


class Operator(SimpleNamespace):
    """An operator, or a source, with inputs from other ones."""

    __hash__ = object.__hash__

    def __init__(self, name: str, *inputs: str, here: bool = False, has_more: bool = False) -> None:
        ends = [
            Input(LinkSpec(f"{one}-{name}", one, name, port, 1.0, 1.0), "here" if here else "there", (), LinkReceiver(one, LinkConfig()))
            for port, one in enumerate(inputs)
        ]
        self.inputs = {one.link.id: one for one in ends}
        super().__init__(id=name, state=State.RUNNING, has_credit=True, polls=SimpleNamespace(has_more=has_more), kept=(0, 0))
        self.waiting = Waiting(self.inputs)
        self.operator = SimpleNamespace(rows_ahead=lambda: self.kept)

    def comes(self, port: int) -> None:
        """Appends a batch to the queue of an input."""
        incoming = list(self.inputs.values())[port]
        self.waiting.enqueue(incoming, Batch(1, 1.0, 0, None))

    def reaches(self, *watermarks_s: float) -> None:
        """Sets the watermarks of all inputs."""
        for incoming, at_s in zip(self.inputs.values(), watermarks_s, strict=True):
            incoming.watermark_us = round(at_s * 1e6)


def alignment(*feeders: Operator, join: Operator) -> Alignment:
    givers = {one.id: one for one in feeders}
    ends = [end for one in (join, *feeders) for end in one.inputs.values()]
    giving: dict[str, Any] = {end.link.id: (givers[end.link.source], None) for end in ends if end.link.source in givers}
    flow: Any = SimpleNamespace(ends=SimpleNamespace(gives=giving.get))
    return Alignment(flow, "here", ROWS_MAX)


def held(decides: Alignment, join: Operator) -> int | None:
    """Returns the port that is held back."""
    instance: Any = join
    decides.look_at(instance)
    return join.waiting.held_port


@pytest.mark.parametrize(("kept", "watermarks_s", "port"), [((MANY, 5), (9.0, 8.0), 0), ((5, MANY), (8.0, 9.0), 1)])
def test_an_input_that_is_ahead_waits_while_batches_of_the_other_wait(kept: tuple[int, int], watermarks_s: tuple[float, float], port: int):
    join = Operator("join", "left", "right")
    join.kept = kept
    join.reaches(*watermarks_s)
    decides = alignment(join=join)
    assert held(decides, join) is None, "nothing waits for the other input"
    join.comes(port)
    assert held(decides, join) is None, "only its own batches wait"
    join.comes(1 - port)
    assert held(decides, join) == port
    assert decides.held == (join,)
    incoming = join.waiting.earliest(begun=False)
    assert incoming is not None
    assert incoming.link.port == 1 - port
    join.waiting.dequeue(incoming)
    assert held(decides, join) is None
    assert decides.held == ()


@pytest.mark.parametrize(
    ("kept", "watermarks_s"),
    [((MANY, 5), (8.0, 9.0)), ((MANY, 5), (8.0 + STEP_S, 8.0)), ((ROWS_AHEAD, 5), (99.0, 8.0))],
    ids=["it is behind", "it is a step ahead", "few rows are kept"],
)
def test_an_input_goes_on_if_it_is_not_far_ahead(kept: tuple[int, int], watermarks_s: tuple[float, float]):
    join = Operator("join", "left", "right")
    join.kept = kept
    join.reaches(*watermarks_s)
    join.comes(0)
    join.comes(1)
    assert held(alignment(join=join), join) is None


def test_rows_count_that_wait_further_up_on_this_host():
    source, map_, join = Operator("source"), Operator("map", "source", here=True), Operator("join", "left", "map", here=True)
    join.kept = (MANY, 0)
    join.reaches(9.0, 1.0)
    decides = alignment(source, map_, join=join)
    assert held(decides, join) is None
    source.polls.has_more = True
    assert held(decides, join) == 0
    source.has_credit = False
    assert held(decides, join) is None, "the source can give nothing: something else would have to go on"
    source.has_credit, source.polls.has_more = True, False
    map_.comes(0)
    assert held(decides, join) == 0
    map_.state = State.RESTING
    assert held(decides, join) is None


def test_held_inputs_go_on_when_nothing_else_does():
    join = Operator("join", "left", "right")
    join.kept = (MANY, 0)
    join.reaches(9.0, 1.0)
    join.comes(0)
    join.comes(1)
    decides = alignment(join=join)
    assert held(decides, join) == 0
    assert decides.release() == (join,)
    assert join.waiting.held_port is None
    assert decides.held == ()


def test_a_join_that_does_not_run_any_more_is_forgotten():
    join = Operator("join", "left", "right")
    join.kept = (MANY, 0)
    join.reaches(9.0, 1.0)
    join.comes(1)
    decides = alignment(join=join)
    assert held(decides, join) == 0
    join.state = State.GONE
    assert decides.held == ()


def test_an_operator_that_keeps_nothing_for_other_inputs_is_left_alone():
    union = Operator("union", "left", "right")
    union.kept = ()
    union.comes(1)
    assert held(alignment(join=union), union) is None
