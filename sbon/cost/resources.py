"""Resources of nodes and of the network between them: cores, speed, memory, use by other programs, bandwidth and propagation.

Costs are kept in reference ns, so that they hold for every node: one reference ns is one ns of a machine on which `kernel` takes
`KERNEL_REFERENCE_NS`. The agent times the kernel; this module does the arithmetic.
"""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from sbon.cost.figure import Edge, Figure, Source, around, by_rule, declared
from sbon.cost.latency import Latencies
from sbon.cost.moments import MomentCounter
from sbon.cost.waiting import UNKNOWN_WAIT_S, UNKNOWN_WAIT_S_MAX, Waits
from sbon.errors import ShapeError
from sbon.types import FloatArray, NodeId

NS_PER_S = 1e9
KERNEL_REFERENCE_NS = 250_000.0
"""Time of the kernel on the reference machine: one core of a server of 2024."""
TIMINGS_MIN = 5
BINS = 60
"""Bins of each of the two series of use, one in bins of 1 s and one in bins of 10 s."""
UNKNOWN_USE_SHARE = 0.1
"""Expected share of the cores that others use on a node that has not reported it; at worst `UNKNOWN_USE_SHARE_MAX`."""
UNKNOWN_USE_SHARE_MAX = 0.5
FAIR_SHARE = 0.2
"""Share of the cores that operators get however much others use: the system's scheduler gives some time to operators, too, at their low
priority."""
BANDWIDTH_RULE = 12.5e6
"""Bytes per second between two nodes without measured or declared bandwidth: 100 Mbit/s."""
PAIRS_MAX = 65_536

CORES_MAX = 4096.0
SPEED_MIN, SPEED_MAX = 1e-3, 1e3
MEMORY_BYTES_MAX = 2.0**60
BANDWIDTH_MAX = 1e12
SPARE_S = 60.0
"""Time for which a node's report that it runs operators of a query with `max_latency` counts."""
AGE_S_MAX = 10 * 365.25 * 86_400


def kernel() -> float:
    """Does a fixed piece of work of the kinds that operators do: arithmetic, comparison, sorting, grouping. Returns its checksum."""
    numbers = (np.arange(8192, dtype=np.int64) * 7919) % 8191
    values = numbers.astype(np.float64) * 0.5 + 1.0
    chosen = values[values > 1024.0]
    order = np.argsort(numbers, kind="stable")
    sums = np.bincount(numbers % 64, values, 64)
    return float(np.cumsum(chosen)[-1] + values[order][-1] + sums.max())


def speed_of(timings_ns: Sequence[float]) -> Figure:
    """Returns the speed of a machine from timings of the kernel, in reference ns per ns.

    The lower quartile counts, as other work only makes a timing longer; the spread below the median is the error.

    Raises
    ------
    ShapeError
        There are fewer than `TIMINGS_MIN`, or one is not above 0.

    Examples
    --------
    >>> speed_of([500_000.0] * 8).value
    0.5
    """
    if len(timings_ns) < TIMINGS_MIN or not all(0 < timing < math.inf for timing in timings_ns):
        raise ShapeError(f"{len(timings_ns)} timings of the kernel, expected {TIMINGS_MIN} above 0")
    typical, middle = (float(value) for value in np.percentile(timings_ns, [25, 50]))
    value = min(SPEED_MAX, max(SPEED_MIN, KERNEL_REFERENCE_NS / typical))
    return around(value, value * (middle - typical) / middle, Source.MEASURED, samples=len(timings_ns))


class UseSeries(msgspec.Struct, frozen=True):
    """Cores that others used: the last 60 s in bins of 1 s, the time before in bins of 10 s, oldest first."""

    seconds: tuple[float, ...]
    tens: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.seconds) > BINS or len(self.tens) > BINS or not (self.seconds or self.tens):
            raise ShapeError(f"use of {len(self.seconds)} s and {len(self.tens)} x 10 s, expected 1 to {BINS} of each")
        if not all(0 <= cores <= CORES_MAX for cores in (*self.seconds, *self.tens)):
            raise ShapeError("use of cores that is negative, absurd or not finite")

    def history(self) -> FloatArray:
        """Returns the use by second, oldest first, with each bin of 10 s repeated: (seconds + 10 tens,)."""
        return np.concatenate([np.repeat(np.array(self.tens, dtype=np.float64), 10), np.array(self.seconds, dtype=np.float64)])

    def plus(self, other: "UseSeries") -> "UseSeries":
        """Returns the sum of both series, bin by bin; where one has no bin, that of the other."""
        return UseSeries(_together(self.seconds, other.seconds), _together(self.tens, other.tens))

    def less(self, cores: float) -> "UseSeries":
        """Returns the series less a steady use of so many cores; 0 at least."""
        return UseSeries(tuple(max(0.0, one - cores) for one in self.seconds), tuple(max(0.0, one - cores) for one in self.tens))

    def within(self, cores: float) -> "UseSeries":
        """Returns the series limited to so many cores at any time."""
        return UseSeries(tuple(min(cores, one) for one in self.seconds), tuple(min(cores, one) for one in self.tens))

    def over(self, intervals: int, width_s: float, edge: Edge = Edge.EXPECTED) -> FloatArray:
        """Returns the cores that others may use in the coming intervals, (intervals,).

        EXPECTED: as in the latest seconds, repeated if these are too few, so that bursts stay bursts. LOW and HIGH: the least and the
        greatest mean of any period as long as an interval.
        """
        history = self.history()
        if edge is Edge.EXPECTED:
            needed = math.ceil(intervals * width_s - 1e-9)
            latest = history[-needed:] if needed <= len(history) else np.resize(history[::-1], needed)[::-1]
            sums = np.concatenate([[0.0], np.cumsum(latest)])
            ends = np.interp(np.arange(intervals + 1) * width_s, np.arange(len(sums)), sums)
            expected: FloatArray = np.maximum(0.0, np.diff(ends)) / width_s
            return expected
        length = min(len(history), max(1, round(width_s)))
        sums = np.concatenate([[0.0], np.cumsum(history)])
        means = (sums[length:] - sums[:-length]) / length
        return np.full(intervals, max(0.0, float(means.max() if edge is Edge.HIGH else means.min())))


def _together(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    """Returns the sums of two series that end at the same instant, as long as the longer one."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    begun = len(longer) - len(shorter)
    return (*longer[:begun], *(min(CORES_MAX, a + b) for a, b in zip(longer[begun:], shorter, strict=True)))


class UseRecorder:
    """Records the cores used on a node, from readings at any time."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=BINS)
        self._tens: deque[float] = deque(maxlen=BINS)
        self._second: int | None = None
        self._sum, self._count, self._old = 0.0, 0, list[float]()

    def record(self, now: float, cores: float) -> None:
        """Takes a reading; a second without one counts as the second before. Readings that are negative, not finite or of the past are
        ignored."""
        second = math.floor(now)
        if not 0 <= cores < math.inf or (self._second is not None and second < self._second):
            return
        if self._second is not None and second > self._second:
            mean = self._sum / self._count
            for _ in range(min(second - self._second, 11 * BINS)):
                self._push(mean)
            self._sum, self._count = 0.0, 0
        self._second = second
        self._sum += cores
        self._count += 1

    def _push(self, cores: float) -> None:
        if len(self._seconds) == BINS:
            self._old.append(self._seconds[0])
            if len(self._old) == 10:
                self._tens.append(sum(self._old) / 10)
                self._old.clear()
        self._seconds.append(cores)

    def take_out(self, other: "UseRecorder") -> None:
        """Subtracts a part of this use, recorded at the same instants until now. The two may fold the time before the last minute at
        different seconds, up to 9 s apart."""
        self._sum = max(0.0, self._sum - other._sum)
        for whole, part in ((self._seconds, other._seconds), (self._tens, other._tens), (self._old, other._old)):
            for place in range(-min(len(whole), len(part)), 0):
                whole[place] = max(0.0, whole[place] - part[place])

    def series(self) -> UseSeries | None:
        """Returns the use so far, without the current second; None before the first second has ended."""
        return UseSeries(tuple(self._seconds), tuple(self._tens)) if self._seconds else None


class NodeResources(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of one node."""

    node: NodeId
    cores: float
    speed: Figure
    """Reference ns per ns of one core."""
    memory_bytes: float = 0.0
    """For states of operators; 0: not reported."""
    others: UseSeries | None = None
    """Cores used by anything but operators, including the agent; None: not reported."""
    agent: float = 0.0
    """Cores that the agent itself uses beside its operators; it does not give way to them."""
    operators: UseSeries | None = None
    """Cores used by operators of running queries, in the same seconds; None: not reported, or none runs there."""
    share: float | None = None
    """Share of a core that work without pauses gets, measured beside all other work there; None: not reported."""
    share_low: float | None = None
    """The least that this share may be; None: not reported."""
    waits: Waits | None = None
    """Waits of batches for a processor; None: not reported."""
    spare_s: float | None = None
    """Additional seconds that work may take there before a running query breaks its `max_latency`; None: there is no such query."""

    def __post_init__(self) -> None:
        if not 0 < self.cores <= CORES_MAX or not 0 <= self.memory_bytes <= MEMORY_BYTES_MAX or not 0 <= self.agent <= CORES_MAX:
            found = f"{self.cores} cores, {self.agent} of them for its agent, and {self.memory_bytes} bytes"
            raise ShapeError(f"node {self.node!r} with {found}, expected more than 0 cores, and no absurd number")
        if not (self.speed.low >= SPEED_MIN / 10 and self.speed.high <= SPEED_MAX * 10 and self.speed.age_s <= AGE_S_MAX):
            raise ShapeError(f"node {self.node!r} has the speed {self.speed.value}, expected {SPEED_MIN} to {SPEED_MAX}")
        if self.share is not None and not 0 < self.share <= 1:
            raise ShapeError(f"node {self.node!r} gives work {self.share} of a core, expected more than 0, and 1 at most")
        if self.share_low is not None and not 0 <= self.share_low <= (0.0 if self.share is None else self.share):
            raise ShapeError(f"node {self.node!r} gives work {self.share_low} of a core at least and {self.share} on average")

    def capacity_ns(self, intervals: int, width_s: float, edge: Edge = Edge.EXPECTED) -> FloatArray:
        """Returns the reference ns that operators can have in each interval: all cores less those that others and running queries use,
        `FAIR_SHARE` at least.

        Other programs that never pause use all that operators leave, and give way if operators want more. Their use therefore counts only
        up to what they keep beside work without pauses (`share`). At the LOW edge they keep as much as they may (`share_low`).
        """
        least_used, most_used = Edge.LOW, Edge.HIGH
        if self.others is not None:
            kept = self.others
            share = self.share_low if edge is Edge.LOW else self.share
            if share is not None:
                kept = kept.within((1 - share) * self.cores + self.agent)
            there = kept if self.operators is None else kept.plus(self.operators)
            used = there.over(intervals, width_s, {Edge.LOW: most_used, Edge.HIGH: least_used}.get(edge, edge))
        else:
            part = {Edge.LOW: UNKNOWN_USE_SHARE_MAX, Edge.EXPECTED: UNKNOWN_USE_SHARE, Edge.HIGH: 0.0}[edge]
            used = np.full(intervals, part * self.cores)
        free: FloatArray = np.maximum(FAIR_SHARE * self.cores, self.cores - used) * (self.speed.at(edge) * width_s * NS_PER_S)
        return free

    def usual_wait_s(self, edge: Edge = Edge.EXPECTED) -> float:
        """Returns the mean time in s that a batch waits for a processor on its way through the node."""
        return self.waits.usual_s(edge) if self.waits is not None else _unknown_wait_s(edge)

    def longest_wait_s(self) -> float:
        """Returns the longest known wait for a processor, in s."""
        return self.waits.longest_s(Edge.HIGH) if self.waits is not None else UNKNOWN_WAIT_S_MAX

    def rare_wait_s(self, share: float) -> float:
        """Returns the wait for a processor, in s, that only this share of waits exceeds."""
        return self.waits.exceeded_s(share) if self.waits is not None else UNKNOWN_WAIT_S


def _unknown_wait_s(edge: Edge) -> float:
    return {Edge.LOW: 0.0, Edge.EXPECTED: UNKNOWN_WAIT_S, Edge.HIGH: UNKNOWN_WAIT_S_MAX}[edge]


class NodeBook:
    """Checked reports of nodes about their resources."""

    def __init__(self) -> None:
        self._told: dict[NodeId, tuple[NodeResources, float]] = {}
        self.refused: Counter[str] = Counter()
        """Refused reports by reason."""

    def told(self, node: NodeId, report: object, now: float) -> bool:
        """Takes a node's report about itself, decoded but not checked; returns False if it is refused, and keeps the report before."""
        try:
            resources = msgspec.convert(report, NodeResources, from_attributes=True)
        except msgspec.ValidationError:
            self.refused["malformed"] += 1
            return False
        except ShapeError:
            self.refused["absurd"] += 1
            return False
        if resources.node != node:
            self.refused["about another node"] += 1
            return False
        self._told[node] = (resources, now)
        return True

    def has_bounded(self, now: float) -> bool:
        """Tells whether a node has reported in the last `SPARE_S` that it runs operators of a query with `max_latency`."""
        return any(resources.spare_s is not None and now - since <= SPARE_S for resources, since in self._told.values())

    def forget(self, node: NodeId) -> None:
        """Drops a node that has left."""
        self._told.pop(node, None)

    def of(self, node: NodeId, now: float) -> NodeResources:
        """Returns the resources of a node; a node without a report counts as one core of a speed by rule."""
        if node not in self._told:
            return NodeResources(node=node, cores=1.0, speed=by_rule(1.0))
        resources, since = self._told[node]
        spare_s = resources.spare_s if now - since <= SPARE_S else None
        return msgspec.structs.replace(resources, speed=resources.speed.aged(max(0.0, now - since)), spare_s=spare_s)


class Bandwidths:
    """Bytes per second between pairs of nodes, by direction.

    Parameters
    ----------
    uplinks : declared limit of a node's sending rate, bytes/s (`hosting.uplink_bytes_per_s`); other nodes have no limit
    """

    def __init__(self, uplinks: Mapping[NodeId, float] | None = None) -> None:
        self._uplinks = dict(uplinks or {})
        self._measured: OrderedDict[tuple[NodeId, NodeId], tuple[MomentCounter, float]] = OrderedDict()
        self.refused = 0
        """Measurements that were negative, not finite or absurd."""

    def declared(self, source: NodeId, bytes_per_s: float) -> None:
        """Takes the limit that a node declares for its sending rate."""
        if 0 < bytes_per_s <= BANDWIDTH_MAX:
            self._uplinks[source] = bytes_per_s
        else:
            self.refused += 1

    def from_node(self, source: NodeId) -> list[tuple[NodeId, float]]:
        """Returns the bandwidths measured from a node, by target."""
        found = ((pair[1], counter.moments) for pair, (counter, _) in self._measured.items() if pair[0] == source)
        return [(target, moments.first) for target, moments in found if moments is not None]

    def measured(self, source: NodeId, target: NodeId, bytes_per_s: float, *, at_s: float) -> None:
        """Takes the rate measured while the sender's buffer was full: with room in the buffer, it would be the rate of the stream, not the
        bandwidth."""
        if not 0 < bytes_per_s <= BANDWIDTH_MAX or source == target:
            self.refused += 1
            return
        counter, _ = self._measured.pop((source, target), (MomentCounter(30.0), 0.0))
        counter.add(bytes_per_s)
        self._measured[source, target] = (counter, at_s)
        if len(self._measured) > PAIRS_MAX:
            self._measured.popitem(last=False)

    def of(self, source: NodeId, target: NodeId, now: float) -> Figure:
        """Returns the bandwidth: measured, else declared by the sender, else a rule.

        Raises
        ------
        ShapeError
            Both are one node: rows stay in its memory.
        """
        if source == target:
            raise ShapeError(f"bandwidth from {source!r} to itself, expected two nodes")
        counter, at_s = self._measured.get((source, target), (None, 0.0))
        if counter is not None and counter.moments is not None:
            moments = counter.moments
            # Between two readings the network may change: at least a tenth of the value counts as error.
            deviation = max(math.sqrt(moments.variance), 0.1 * moments.first / math.sqrt(moments.count))
            return around(moments.first, deviation, Source.MEASURED, samples=moments.count).aged(max(0.0, now - at_s))
        limit = self._uplinks.get(source)
        return declared(limit) if limit is not None else by_rule(BANDWIDTH_RULE)


class Network:
    """Bandwidth and propagation between nodes.

    Parameters
    ----------
    is_measured : whether the latency between two nodes was measured, and not only predicted from coordinates
    """

    def __init__(
        self, bandwidths: Bandwidths, latencies: Latencies, is_measured: Callable[[NodeId, NodeId], bool] = lambda source, target: False
    ) -> None:
        self.bandwidths, self.latencies, self.is_measured = bandwidths, latencies, is_measured

    def propagation_s(self, source: NodeId, target: NodeId) -> float:
        """Returns the one-way latency in seconds; 0 within a node."""
        return self.latencies.one_way_ms(source, target) / 1e3
