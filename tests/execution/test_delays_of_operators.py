"""Delays from producers to the operators of a host: how the host computes and reports them."""

from sbon.execution.delays import DELAY_MS_MAX, REPEAT_S, Delays
from sbon.execution.ends import Input, Output
from sbon.execution.instance import Instance
from sbon.links.config import LinkConfig
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.query.expression import Column
from sbon.query.params.rowwise import MapParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.wire.reports import UpstreamDelay

LATENCY_MS = {"here": 0.0, "near": 10.0, "far": 40.0}
CONFIG = LinkConfig()


def operator(name: str, inputs: dict[str, str], outputs: dict[str, str]) -> Instance:
    """Returns an operator whose links have these names, with the node at the other end of each."""
    instance = Instance(OperatorSpec(name, MapParams(Column("ok"), None), (), None, None, name), 0)
    for link, node in inputs.items():
        instance.inputs[link] = Input(LinkSpec(link, "s", name, 0, 1.0, 1.0), node, (), LinkReceiver(link, CONFIG))
    for link, node in outputs.items():
        instance.outputs[link] = Output(LinkSpec(link, name, "t", 0, 1.0, 1.0), node, 0, (), LinkSender(link, CONFIG), set())
    return instance


class Host:
    def __init__(self, *instances: Instance) -> None:
        self.instances = {instance.id: instance for instance in instances}
        self.sent: list[tuple[str, float]] = []
        self.connected = True
        self.delays = Delays("here", self.instances, self.takes, LATENCY_MS.get, self.send)

    def takes(self, link):
        return next(((one, one.inputs[link]) for one in self.instances.values() if link in one.inputs), None)

    def send(self, node: str, message: UpstreamDelay) -> bool:
        self.sent.append((node, message.delay_ms))
        return self.connected

    def sample(self, now: float) -> list[tuple[str, float]]:
        self.sent = []
        self.delays.sample(now)
        return self.sent


def test_the_longest_way_counts_and_nothing_is_told_while_part_of_it_is_unknown():
    join = operator("join", {"b": "far", "a": "near"}, {"c": "far"})
    host = Host(join)
    host.delays.told(UpstreamDelay(link="a", delay_ms=5.0))
    assert host.sample(0.0) == []
    assert join.figures.upstream_delay_ms is None

    host.delays.told(UpstreamDelay(link="b", delay_ms=1.0))
    assert host.sample(1.0) == [("far", 41.0)]
    assert join.figures.upstream_delay_ms == 41.0


def test_operators_of_one_host_need_no_message():
    source, behind = operator("source", {}, {"a": "here"}), operator("behind", {"a": "here"}, {})
    assert Host(source, behind).sample(0.0) == []
    assert behind.figures.upstream_delay_ms == 0.0


def test_a_delay_is_told_when_it_changes_when_it_was_not_sent_and_now_and_then():
    host = Host(operator("map", {"a": "near"}, {"c": "far"}))
    host.connected = False
    host.delays.told(UpstreamDelay(link="a", delay_ms=90.0))
    assert host.sample(0.0) == [("far", 100.0)]
    host.connected = True
    assert host.sample(1.0) == [("far", 100.0)], "the last message was not sent"
    host.delays.told(UpstreamDelay(link="a", delay_ms=91.0))
    assert host.sample(2.0) == [], "the change is about a hundredth"
    host.delays.told(UpstreamDelay(link="a", delay_ms=95.0))
    assert host.sample(3.0) == [("far", 105.0)]
    assert host.sample(2.9 + REPEAT_S) == []
    assert host.sample(3.0 + REPEAT_S) == [("far", 105.0)]


def test_implausible_delays_and_unknown_nodes_are_ignored():
    host = Host(operator("map", {"a": "nowhere", "b": "near"}, {"c": "far"}))
    for delay_ms in (-1.0, float("nan"), float("inf"), 2 * DELAY_MS_MAX):
        host.delays.told(UpstreamDelay(link="b", delay_ms=delay_ms))
    assert host.instances["map"].inputs["b"].delay_ms is None
    host.delays.told(UpstreamDelay(link="unknown", delay_ms=1.0))
    host.delays.told(UpstreamDelay(link="a", delay_ms=1.0))
    host.delays.told(UpstreamDelay(link="b", delay_ms=1.0))
    assert host.sample(0.0) == [], "the node at the start of link a has no coordinate"
