"""A source is told when its rows have been processed."""

from types import SimpleNamespace
from typing import Any

import pytest

from sbon.engine.source_acknowledgement import LOOK_AGAIN_S, SourceAcknowledgement
from sbon.execution.life import State
from sbon.links.config import LinkConfig
from sbon.links.sender import LinkSender


class World:
    """A source with two outputs, without an engine."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Any]] = []
        self.told: list[int] = []
        self.outputs = {name: SimpleNamespace(link=SimpleNamespace(id=name), sender=LinkSender(name, LinkConfig())) for name in "xy"}
        self.source: Any = Hashable()
        self.source.id, self.source.state, self.source.source = "s", State.RUNNING, SimpleNamespace(acknowledged=self.told.append)
        self.instances = {"s": self.source}
        host: Any = SimpleNamespace(now=lambda: self.now, call_at=lambda when, call: self.timers.append((when, call)))
        ends = SimpleNamespace(gives=lambda link: (self.source, self.outputs[link]) if link in self.outputs else None)
        flow: Any = SimpleNamespace(ends=ends)
        self.machine = SourceAcknowledgement(host, flow, self.instances)

    def poll(self, upto: int | None, *outputs: str) -> None:
        for name in outputs:
            output: Any = self.outputs[name]
            output.sender.offer(0.0, 0, None)
            self.machine.offered(output)
        self.machine.entered(self.source, upto)

    def acknowledge(self, name: str, processed: int) -> None:
        assert self.outputs[name].sender.acknowledge(processed, 1)
        self.machine.look()


class Hashable:
    """Stands for an instance."""


def test_a_source_is_told_once_every_output_has_acknowledged():
    world = World()
    world.poll(7, "x", "y")
    world.acknowledge("x", 1)
    assert world.told == []
    world.acknowledge("y", 1)
    assert world.told == [7]


def test_later_polls_wait_for_earlier_ones_and_are_told_together():
    world = World()
    world.poll(1, "x")
    world.poll(2, "y")
    world.poll(3)  # all rows of this poll have been left out
    world.acknowledge("y", 1)
    assert world.told == []
    world.acknowledge("x", 1)
    assert world.told == [3]


def test_what_left_without_rows_is_told_at_once():
    world = World()
    world.poll(1)
    assert world.told == [1]


def test_two_polls_that_came_as_far_count_as_one():
    world = World()
    world.poll(1, "x")
    world.poll(1, "x")
    world.acknowledge("x", 1)
    assert world.told == []
    world.acknowledge("x", 2)
    assert world.told == [1]


def test_a_source_that_does_not_want_to_know_is_not_told():
    world = World()
    world.poll(None, "x")
    world.acknowledge("x", 1)
    assert world.told == []
    assert world.timers == []


@pytest.mark.parametrize("instead", [None, "another sender"])
def test_a_link_that_is_here_no_longer_is_seen_by_the_clock(instead):
    world = World()
    world.poll(1, "x")
    [(when, look)] = world.timers
    assert when == LOOK_AGAIN_S
    if instead is None:
        del world.outputs["x"]
    else:
        world.outputs["x"].sender = LinkSender("x", LinkConfig())
    look()
    assert world.told == [1]


@pytest.mark.parametrize("why", ["failed", "gone"])
def test_a_source_that_has_failed_or_gone_is_never_told(why):
    world = World()
    world.poll(1, "x")
    if why == "failed":
        world.source.state = State.FAILED
    else:
        del world.instances["s"]
    world.acknowledge("x", 1)
    assert world.told == []
