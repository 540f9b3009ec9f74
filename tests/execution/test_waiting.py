"""Batches that wait at the inputs of one operator: the order in which they are taken, and reasons to take none."""

import math

import pytest

from sbon.execution.ends import Input
from sbon.execution.waiting import Waiting
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.receiver import LinkReceiver
from sbon.query.plan import LinkSpec

CONFIG = LinkConfig()


class Inputs:
    """Two inputs of a join, and the batches that wait there."""

    def __init__(self) -> None:
        self.inputs = {}
        for port, (link, node) in enumerate((("left", "ams"), ("right", "fra"))):
            self.inputs[link] = Input(LinkSpec(link, f"source {link}", "join", port, 1.0, 1.0), node, (), LinkReceiver(link, CONFIG))
        self.waiting = Waiting(self.inputs)
        self.numbers = dict.fromkeys(self.inputs, 0)

    def come(self, link: str, stimulus_s: float) -> None:
        self.numbers[link] += 1
        self.waiting.enqueue(self.inputs[link], Batch(self.numbers[link], stimulus_s, 0, None))

    def take(self, *, begun: bool = False) -> str:
        incoming = self.waiting.earliest(begun=begun)
        if incoming is None:
            return ""
        self.waiting.dequeue(incoming)
        return incoming.link.id


@pytest.fixture
def join() -> Inputs:
    return Inputs()


def test_the_earliest_stimulus_is_taken_first_and_a_batch_that_has_been_begun_before_it(join: Inputs):
    join.come("left", 3.0)
    join.come("right", 1.0)
    join.come("right", 5.0)
    assert join.waiting.earliest_s == 1.0

    join.inputs["left"].sliced = 2
    assert join.take(begun=True) == "left"
    join.inputs["left"].sliced = 0
    assert [join.take() for _ in range(3)] == ["right", "right", ""]
    assert join.waiting.earliest_s == math.inf


def test_an_input_that_is_ahead_is_held_back_and_taken_up_again_without_a_further_batch(join: Inputs):
    join.inputs["left"].watermark_us, join.inputs["right"].watermark_us = 900, 100
    join.come("left", 1.0)
    join.waiting.align((11, 0), 10)
    assert join.waiting.held_port == 0
    assert join.waiting.held_back
    assert join.take() == ""
    join.come("left", 2.0)
    assert join.take() == ""
    join.come("right", 3.0)
    assert not join.waiting.held_back
    assert join.take() == "right"

    join.inputs["right"].watermark_us = 950
    join.waiting.align((11, 0), 10)
    assert join.waiting.held_port is None
    assert [join.take() for _ in range(3)] == ["left", "left", ""]


def test_an_input_is_held_back_for_another_only_as_long_as_that_one_may_come(join: Inputs):
    join.inputs["left"].watermark_us, join.inputs["right"].watermark_us = 900, 100
    join.waiting.align((10, 0), 10)
    assert join.waiting.held_port is None, "no more rows are kept than allowed"
    join.waiting.align((0, 11), 10)
    assert join.waiting.held_port is None, "the join waits for the input that is behind"
    join.inputs["right"].lost = True
    join.waiting.align((11, 0), 10)
    assert join.waiting.held_port is None


def test_an_operator_starves_when_all_its_inputs_are_gone_for_good_and_not_before(join: Inputs):
    join.waiting.look_for_input(lambda node: node == "ams", wants_more=True)
    assert join.waiting.starved == ""
    join.inputs["right"].told_lost = True
    join.waiting.look_for_input(lambda node: node == "ams", wants_more=False)
    assert join.waiting.starved == ""
    join.waiting.look_for_input(lambda node: node == "ams", wants_more=True)
    assert join.waiting.starved == "nothing feeds it any more: source left on ams, source right on fra are gone for good"
    join.come("left", 1.0)
    join.waiting.look_for_input(lambda node: node == "ams", wants_more=True)
    assert join.waiting.starved == ""
