"""One agent's knowledge of costs: of operators by signature, of nodes, and of the bandwidth between them.

The engine writes its measurements, other agents send theirs (`sbon.wire.costs`), and models read them through `sbon.planning.gathering`. A
peer's figures are refused as a whole, and counted (`refused`), if one is impossible for an operator or a node.
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from sbon.cost.figure import Figure, Source, by_rule
from sbon.cost.moments import MomentCounter, Moments
from sbon.cost.resources import Bandwidths, NodeBook, NodeResources, UseRecorder, kernel, speed_of
from sbon.cost.statistics import OperatorFit, OperatorStatistics, StatisticsBook, tellable
from sbon.cost.waiting import WaitRecorder
from sbon.errors import ShapeError
from sbon.types import NodeId, OperatorId
from sbon.wire.costs import TOLD_MAX, NodeTold, OperatorCosts

SHARE_S = 10.0
"""Pause between two measurements of the share of a core that work gets."""
AGENTS_KEPT = 10.0
"""Number of samples of the agent's own use, beside its operators, after which the weight of one sample has fallen to 1 / e."""
SHARES_KEPT = 6.0
"""Number of measurements of the share of a core that work gets after which the weight of one has fallen to 1 / e."""
BUSY_SHARE = 0.25
"""Share of the cores that others must use before the share of a core that work gets is measured; below, work counts as getting all that
others leave."""
TIMINGS = 9
"""Number of times that the reference kernel is timed; the first is left out, because it loads code."""
OWED_S_MAX = 1.0
"""Most core seconds by which the use of operators may be ahead of that of all programs."""
BANDWIDTHS_TOLD = 256
KEPT_MAX = 1024
"""Most signatures that are kept over a restart."""


T = TypeVar("T")


class Kept(msgspec.Struct, frozen=True):
    """Costs that an agent keeps over a restart."""

    saved_s: float
    """Wall clock, seconds since 1970."""
    operators: tuple[OperatorCosts, ...]


class OperatorsTime:
    """Processor time of all operators that this agent has ever run."""

    __slots__ = ("on_loop_ns", "operators_ns")

    def __init__(self) -> None:
        self.operators_ns = 0
        self.on_loop_ns = 0
        """Part of `operators_ns` spent on the event loop's thread."""


class Meter(Protocol):
    """Measures the processor time of a thread (`sbon.ports.Meter`)."""

    def lap(self, rows: int) -> int:
        """Returns the processor time in ns since the last call; the simulator computes it from `rows`."""

    def end(self) -> None:
        """Ends the measurement."""


def timings_ns(meter: Meter) -> list[float]:
    """Returns the processor time of each of `TIMINGS` runs of the reference kernel on this thread."""
    found = []
    for _ in range(TIMINGS):
        meter.lap(0)
        kernel()
        found.append(float(meter.lap(1)))
    meter.end()
    return found


def as_told(known: OperatorStatistics | NodeResources, kind: type[T]) -> T:
    """Converts figures to the type in which they travel to other agents."""
    return msgspec.convert(msgspec.to_builtins(known), kind)


def _least_share(shares: Moments | None) -> float | None:
    """Returns the least share of a core that work may get: two deviations of single measurements below their mean. One more measurement
    counts that had the whole core, because a few that agree say little.

    Examples
    --------
    >>> from sbon.cost.moments import moments_of
    >>> round(_least_share(moments_of([0.95])), 2), round(_least_share(moments_of([0.95] * 6)), 2), _least_share(moments_of([0.4, 0.8]))
    (0.85, 0.91, 0.0)
    """
    if shares is None:
        return None
    deviation = math.sqrt(shares.variance + (1 - shares.first) ** 2 / shares.count)
    return max(0.0, shares.first - 2 * deviation)


class CostStore:
    """One agent's records of costs.

    Parameters
    ----------
    node : this agent
    uplink_bytes_per_s : declared limit of its sending rate; 0: none
    """

    def __init__(self, node: NodeId = "", uplink_bytes_per_s: float = 0.0) -> None:
        self.node = node
        self.speed: Figure = by_rule(1.0)
        """Reference ns per ns of this machine; a rule until the kernel has been timed."""
        self.statistics = StatisticsBook(speed=lambda: self.speed.value)
        self.nodes = NodeBook()
        self._uplink_bytes_per_s = uplink_bytes_per_s
        self.bandwidths = Bandwidths({node: uplink_bytes_per_s} if uplink_bytes_per_s > 0 else None)
        self.waits = WaitRecorder()
        """Waits of batches here for a processor."""
        self._latencies_ms: dict[NodeId, dict[NodeId, float]] = {}
        self.processors = OperatorsTime()
        self._use, self._use_of_operators = UseRecorder(), UseRecorder()
        self._use_of_each: dict[OperatorId, UseRecorder] = {}
        self._shares, self._agent = MomentCounter(SHARES_KEPT), MomentCounter(AGENTS_KEPT)
        self._others_cores, self._shared_s = 0.0, -math.inf
        self._owed_s = 0.0
        """Core seconds (0 or below) by which operators seemed to use more than all programs; the next use by others is reduced by as
        much."""
        self._cpu_ns: dict[OperatorId, int] = {}
        self._sampled_s: float | None = None

    @property
    def is_timed(self) -> bool:
        """Tells whether the speed of this machine has been measured."""
        return self.speed.samples > 0

    def time_once(self, start: Callable[[], Meter]) -> None:
        """Times the kernel on this thread, which takes some ms, unless the speed of this machine has been measured.

        Parameters
        ----------
        start : starts a measurement of the processor time of this thread
        """
        if not self.is_timed:
            self.timed(timings_ns(start()))

    def timed(self, timings_ns: Sequence[float]) -> None:
        """Sets the speed of this machine from timings of the kernel; unusable timings set it to the rule of thumb."""
        try:
            self.speed = speed_of(timings_ns[1:])
        except ShapeError:
            self.speed = by_rule(1.0)

    def fit(self, signature: str, ports: int, now: float, alike: str = "") -> OperatorFit:
        """Returns the fit to which operators of a signature on this host add their measurements; `alike` as for `StatisticsBook.fit`."""
        return self.statistics.fit(signature, max(1, ports), now=now, alike=alike)

    def sample(self, now: float, cores_used: float, cpu_ns: Mapping[OperatorId, int], by_agent: float = 0.0) -> None:
        """Records the cores that others use on this node: all used cores less those of its operators. Called once a second.

        Parameters
        ----------
        cores_used : cores used by all programs
        by_agent : cores used by this process, including its operators
        cpu_ns : processor time of each operator here since it started here. What others used is forgotten: their queries have ended, or
            they have moved
        """
        for operator in self._use_of_each.keys() - cpu_ns.keys():
            self._use_of_operators.take_out(self._use_of_each.pop(operator))
        spent_ns = {operator: max(0, ns - self._cpu_ns[operator]) for operator, ns in cpu_ns.items() if operator in self._cpu_ns}
        if self._sampled_s is not None and now > self._sampled_s:
            for operator, ns in spent_ns.items():
                self._use_of_each.setdefault(operator, UseRecorder()).record(now, ns / 1e9 / (now - self._sampled_s))
            by_operators = sum(spent_ns.values()) / 1e9 / (now - self._sampled_s)
            # The work of a task counts when it ends, and the use of the cores is read at other instants, so at the edges of a burst one of
            # them is ahead. If the use by others were only cut off at 0, it would be too much in each burst.
            passed_s = now - self._sampled_s
            used_s = (cores_used - by_operators) * passed_s + self._owed_s
            self._others_cores, self._owed_s = max(0.0, used_s) / passed_s, max(-OWED_S_MAX, min(0.0, used_s))
            self._agent.add(by_agent - by_operators)
            self._use.record(now, self._others_cores)
            self._use_of_operators.record(now, by_operators)
        self._cpu_ns, self._sampled_s = dict(cpu_ns), now
        self.waits.fold()

    def wants_share(self, cores: int, now: float) -> bool:
        """Tells whether to measure the share of a core that work gets: once in `SHARE_S` while others use much of the cores."""
        if now < self._shared_s + SHARE_S or self._others_cores <= BUSY_SHARE * cores:
            return False
        self._shared_s = now
        return True

    def shared_out(self, share: float | None) -> None:
        """Takes the share of a core that work without pauses got; None if the system does not tell it."""
        if share is not None and 0 < share <= 1:
            self._shares.add(share)

    def own(
        self,
        cores: int,
        memory_bytes: float,
        now: float,
        latencies_ms: tuple[tuple[NodeId, float], ...] = (),
        spare_s: float | None = None,
    ) -> NodeTold:
        """Returns this node's report about itself, and records it in its own book.

        Parameters
        ----------
        latencies_ms : one-way latencies to the nodes that it sends to
        spare_s : additional time that work may take here; None if no query here has `max_latency`
        """
        resources = NodeResources(
            node=self.node,
            cores=float(max(1, cores)),
            speed=self.speed,
            memory_bytes=memory_bytes,
            others=self._use.series(),
            operators=self._use_of_operators.series(),
            agent=max(0.0, self._agent.first),
            share=self._shares.first if self._shares.count else None,
            share_low=_least_share(self._shares.moments),
            waits=self.waits.waits(),
            spare_s=spare_s,
        )
        self.nodes.told(self.node, resources, now)
        self._latencies_ms[self.node] = dict(latencies_ms)
        told = as_told(resources, NodeTold)
        bandwidths = self.bandwidths.from_node(self.node)[:BANDWIDTHS_TOLD]
        return msgspec.structs.replace(
            told, uplink_bytes_per_s=self._uplink_bytes_per_s, bandwidths=tuple(bandwidths), latencies_ms=latencies_ms
        )

    def latency_ms(self, source: NodeId, target: NodeId) -> float | None:
        """Returns the one-way latency that the sender has reported; None if it sends nothing there."""
        return self._latencies_ms.get(source, {}).get(target)

    def costs(self, signatures: Iterable[str], now: float) -> tuple[OperatorCosts, ...]:
        """Returns this host's measurements of operators with these signatures, for other agents."""
        found = (self.statistics.own(signature, now) for signature in dict.fromkeys(signatures))
        return tuple(as_told(tellable(one), OperatorCosts) for one in found if one is not None)[:TOLD_MAX]

    def hear(self, peer: NodeId, node: NodeTold | None, costs: Iterable[OperatorCosts], now: float) -> None:
        """Takes another agent's report about itself and about operators that it has run."""
        if node is not None and self.nodes.told(peer, node, now):
            if node.uplink_bytes_per_s > 0:
                self.bandwidths.declared(peer, node.uplink_bytes_per_s)
            self._latencies_ms[peer] = dict(node.latencies_ms[:BANDWIDTHS_TOLD])
            for target, bytes_per_s in node.bandwidths[:BANDWIDTHS_TOLD]:
                self.bandwidths.measured(peer, target, bytes_per_s, at_s=now)
        for one in costs:
            self.statistics.told(peer, one, now)

    def hear_sample(self, peer: NodeId, costs: Iterable[OperatorCosts], asked: Container[str], now: float) -> None:
        """Takes sampled costs of operators that were asked about and are not known yet; drops the rest."""
        for one in costs:
            is_sampled = all(port.law.source == Source.SAMPLED.value for port in one.ports)
            if is_sampled and one.signature in asked and self.statistics.of(one.signature, now) is None:
                self.statistics.told(peer, one, now)

    def kept(self, now: float, wall_s: float) -> Kept:
        """Returns the costs to keep over a restart: this host's own measurements of the latest `KEPT_MAX` signatures."""
        found = sorted(self.statistics.kept(now), key=lambda one: one.ports[0].law.age_s)
        return Kept(wall_s, tuple(as_told(tellable(one), OperatorCosts) for one in found[:KEPT_MAX]))

    def restore(self, kept: Kept, now: float, wall_s: float) -> None:
        """Takes the costs kept by an earlier run of this agent; leaves out and counts impossible figures of a damaged file."""
        for one in kept.operators:
            self.statistics.brought("kept", one, now - max(0.0, wall_s - kept.saved_s))

    def forget(self, peer: NodeId) -> None:
        """Drops the reports of an agent that has left."""
        self.nodes.forget(peer)
        self._latencies_ms.pop(peer, None)
        self.statistics.forget(peer)

    @property
    def refused(self) -> int:
        """Number of reports and measurements refused so far."""
        return sum(self.statistics.refused.values()) + sum(self.nodes.refused.values()) + self.bandwidths.refused
