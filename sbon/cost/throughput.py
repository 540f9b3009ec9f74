"""Computes how far the rates of a profile can be multiplied until a configuration is full: its quality (WhiteWater, sections 3 and 4).

A configuration is an order of operators and a node for each. Its demand on nodes and on links between them grows with the rates of the
sources. So the best solution lies on the ray from the origin through the profile (proposition 1): rates are x times the profile, each
demand is a polynomial of x with coefficients of 0 or more, and the quality is the greatest x at which all demands fit. `Demand` holds these
polynomials for one order of operators, `Supply` holds the limits, and `qualities` evaluates many placements at once.

A profile may have several target points: each has a ray, and the worst quality counts.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from sbon.cost.chains import Chains, OneCore
from sbon.cost.multiples import greatest_multiple
from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray, NodeId, OperatorId


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one order of operators at x times the profile. p points, o operators, l links, k coefficients of 1, x, x^2 ...

    Raises
    ------
    ShapeError
        Shapes disagree, a link ends at no operator, or a coefficient is negative or not finite.
    """

    operators: tuple[OperatorId, ...]
    work: FloatArray
    """Processor time, (p, o, k): reference ns per second."""
    memory: FloatArray
    """State, (p, o, k): bytes."""
    ends: IntArray
    """Source and target of each link as rows of operators, (l, 2)."""
    sent: FloatArray
    """(p, l, k): bytes per second."""
    tuple_ns: FloatArray
    """Processor time of one tuple, (o,): reference ns. It counts for the latency of a path."""
    points: tuple[str, ...] = ("",)
    """Names of the target points, (p,)."""
    chains: Chains = ()
    """Operators by row, upstream first, that are one task where they are on one node. An operator in no chain is a task of its own."""

    def __post_init__(self) -> None:
        p, o, links = len(self.points), len(self.operators), len(self.ends)
        if self.work.ndim != 3 or self.work.shape[:2] != (p, o) or self.memory.shape[:2] != (p, o) or self.tuple_ns.shape != (o,):
            raise ShapeError(f"work {self.work.shape}, memory {self.memory.shape}, expected {p} points of {o} operators")
        if self.ends.shape != (links, 2) or self.sent.shape[:2] != (p, links) or self.sent.ndim != 3:
            raise ShapeError(f"ends {self.ends.shape}, sent {self.sent.shape}, expected {links} links")
        if links and not (self.ends.min() >= 0 and self.ends.max() < o):
            raise ShapeError(f"a link ends at row {self.ends.max()}, expected 0 to {o - 1}")
        chained = [row for chain in self.chains for row in chain]
        if len(set(chained)) != len(chained) or not all(0 <= row < o for row in chained):
            raise ShapeError(f"chains {self.chains} of {o} operators, expected each in one at most")
        for numbers in (self.work, self.memory, self.sent, self.tuple_ns):
            if not (np.isfinite(numbers).all() and (numbers >= 0).all()):
                raise ShapeError("a demand with a coefficient that is negative or not finite")

    def without(self, shared: Sequence[OperatorId]) -> "Demand":
        """Returns the demand if some operators run already for another query: their work, memory and inputs count there."""
        mine = np.array([operator not in set(shared) for operator in self.operators])
        into = mine[self.ends[:, 1]] if len(self.ends) else np.ones(0, dtype=bool)
        return msgspec.structs.replace(
            self, work=self.work * mine[None, :, None], memory=self.memory * mine[None, :, None], sent=self.sent * into[None, :, None]
        )


class Supply(msgspec.Struct, frozen=True, kw_only=True):
    """The capacity of nodes and links that others leave for one query. n is the number of nodes.

    Raises
    ------
    ShapeError
        Shapes disagree, or a limit is negative.
    """

    nodes: tuple[NodeId, ...]
    work: FloatArray
    """All cores, (n,): reference ns per second."""
    core: FloatArray
    """One core, (n,): a task never runs twice at once, so a chain of operators can have no more."""
    memory: FloatArray
    """Bytes, (n,); infinite where there is no limit."""
    bandwidth: FloatArray
    """Bytes per second from a node to another, (n, n); infinite where there is no limit, as within a node."""
    propagation_s: FloatArray
    """One way, (n, n)."""
    latency_s_max: float = math.inf
    """Longest time over the network and in operators that the query's author accepts (WhiteWater, section 4.4)."""

    def __post_init__(self) -> None:
        n = len(self.nodes)
        if {self.work.shape, self.core.shape, self.memory.shape} != {(n,)} or {self.bandwidth.shape, self.propagation_s.shape} != {(n, n)}:
            raise ShapeError(f"limits of {self.work.shape} nodes and {self.bandwidth.shape} links, expected {n} nodes")
        for limits in (self.work, self.core, self.memory, self.bandwidth, self.propagation_s):
            if not (limits >= 0).all():
                raise ShapeError("a supply with a limit that is negative or no number")

    @property
    def has_cores(self) -> bool:
        """Tells whether one core of any node is less than the whole node."""
        return bool((self.core < self.work).any())

    def less(self, demand: Demand, node_of: IntArray) -> "Supply":
        """Returns the supply left by another query at its profile (x = 1, the greatest of its points); 0 where that takes more than there
        is."""
        work, memory, bandwidth = self.work.copy(), self.memory.copy(), self.bandwidth.copy()
        np.subtract.at(work, node_of, demand.work.sum(axis=2).max(axis=0))
        np.subtract.at(memory, node_of, demand.memory.sum(axis=2).max(axis=0))
        if len(demand.ends):
            np.subtract.at(bandwidth, (node_of[demand.ends[:, 0]], node_of[demand.ends[:, 1]]), demand.sent.sum(axis=2).max(axis=0))
        return msgspec.structs.replace(
            self, work=np.maximum(work, 0.0), memory=np.maximum(memory, 0.0), bandwidth=np.maximum(bandwidth, 0.0)
        )


def qualities(demand: Demand, supply: Supply, node_of: IntArray) -> FloatArray:
    """Returns the quality Q^p of configurations that share an order of operators.

    Parameters
    ----------
    node_of : (configurations, operators), rows of nodes

    Returns
    -------
    FloatArray
        (configurations,): 1 means that the profile just fits; 0 that a constant part or the latency is too much.

    Source
    ------
    WhiteWater, definitions 1 and 2, proposition 1.
    """
    count, nodes = len(node_of), len(supply.nodes)
    if node_of.shape != (count, len(demand.operators)):
        raise ShapeError(f"nodes of {node_of.shape[1:]} operators, expected {len(demand.operators)}")
    worst = np.full(count, np.inf)
    places = (np.arange(count)[:, None] * nodes + node_of).ravel()
    if supply.has_cores:
        worst = OneCore(demand.work, demand.chains, supply.core).qualities(node_of)
    for point in range(len(demand.points)):
        for coefficients, limit in ((demand.work[point], supply.work), (demand.memory[point], supply.memory)):
            if np.isinf(limit).all():
                continue
            totals = _added(places, coefficients, count, count * nodes).reshape(count, nodes, -1)
            worst = np.minimum(worst, greatest_multiple(totals, limit).min(axis=1))
        if not np.isinf(supply.bandwidth).all() and len(demand.ends):
            sources, targets = node_of[:, demand.ends[:, 0]], node_of[:, demand.ends[:, 1]]
            pairs = (np.arange(count)[:, None] * nodes + sources) * nodes + targets
            used, where = np.unique(pairs.ravel(), return_inverse=True)
            totals = _added(where.ravel(), demand.sent[point], count, len(used))
            source, target = used // nodes % nodes, used % nodes
            limits = np.where(source == target, np.inf, supply.bandwidth[source, target])
            np.minimum.at(worst, used // nodes**2, greatest_multiple(totals, limits))
    if not math.isinf(supply.latency_s_max):
        worst = np.where(latencies(demand, supply, node_of) <= supply.latency_s_max, worst, 0.0)
    return worst


def _added(places: IntArray, coefficients: FloatArray, times: int, size: int) -> FloatArray:
    """Returns the sums of coefficients by place, (size, k); the coefficients are repeated `times` times."""
    return np.stack([np.bincount(places, np.tile(column, times), size) for column in coefficients.T], axis=-1)


def latencies(demand: Demand, supply: Supply, node_of: IntArray) -> FloatArray:
    """Returns the longest time of a tuple from a source to the last operator, of each configuration: (configurations,), s.

    Source
    ------
    WhiteWater, section 4.4: the most expensive path; propagation of links is added.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.where(demand.tuple_ns > 0, demand.tuple_ns / supply.core[node_of], 0.0)
    own = np.where(np.isnan(own), np.inf, own)
    longest = own.copy()
    for link in _upstream_first(demand.ends, len(demand.operators)):
        source, target = demand.ends[link].tolist()
        way = longest[:, source] + supply.propagation_s[node_of[:, source], node_of[:, target]]
        longest[:, target] = np.maximum(longest[:, target], way + own[:, target])
    found: FloatArray = longest.max(axis=1)
    return found


def _upstream_first(ends: IntArray, operators: int) -> list[int]:
    """Returns the links in an order in which all that lead to an operator come before those that leave it.

    Raises
    ------
    ShapeError
        The links form a cycle.
    """
    waiting = np.bincount(ends[:, 1], minlength=operators).tolist() if len(ends) else [0] * operators
    leaving: dict[int, list[int]] = {}
    for link, source in enumerate(ends[:, 0].tolist()):
        leaving.setdefault(source, []).append(link)
    ready = [operator for operator, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    for operator in ready:  # the list grows during the loop
        for link in leaving.get(operator, ()):
            order.append(link)
            target = int(ends[link, 1])
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    if len(order) < len(ends):
        raise ShapeError("the links form a cycle, expected a graph without one")
    return order


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of a configuration."""

    what: str
    """Resource and place, as "CPU on node x", "memory on node x", "link x-y", "one core, operators y, z on node x", "latency"."""
    quality: float
    """Multiple of the profile at which it is full."""
    point: str = ""
    """Target point at which it is full first; empty if the profile has one."""
    nodes: tuple[NodeId, ...] = ()
    """The node, or the two ends of the link."""
    demand: tuple[float, ...] = ()
    """Use of it at x times the profile: coefficients of 1, x, x^2 ...; in reference ns a second, bytes, or bytes a second."""
    supply: float = 0.0
    """The whole of it, in the same unit."""


def limits(demand: Demand, supply: Supply, node_of: IntArray) -> list[Limit]:
    """Returns all finite limits of one configuration, the binding one first; each resource once, at its worst target point.

    Parameters
    ----------
    node_of : (operators,)
    """
    found: dict[str, Limit] = {}

    def take(what: str, quality: float, point: str, where: tuple[NodeId, ...], used: FloatArray, limit: float) -> None:
        if math.isfinite(quality) and (what not in found or quality < found[what].quality):
            demand_ = tuple(float(one) for one in used)
            found[what] = Limit(what=what, quality=quality, point=point, nodes=where, demand=demand_, supply=float(limit))

    nodes = len(supply.nodes)
    cores = OneCore(demand.work, demand.chains, supply.core)
    for number, point in enumerate(demand.points):
        for name, coefficients, limit in (("CPU", demand.work, supply.work), ("memory", demand.memory, supply.memory)):
            totals = _added(node_of, coefficients[number], 1, nodes)
            for row, quality in enumerate(greatest_multiple(totals, limit).tolist()):
                take(f"{name} on node {supply.nodes[row]}", quality, point, (supply.nodes[row],), totals[row], limit[row])
        for rows, quality in cores.tasks(node_of.tolist(), number):
            names, node = ", ".join(demand.operators[row] for row in rows), int(node_of[rows[0]])
            what = f"one core, {'operator' if len(rows) == 1 else 'operators'} {names} on node {supply.nodes[node]}"
            take(what, quality, point, (supply.nodes[node],), demand.work[number][list(rows)].sum(axis=0), supply.core[node])
        sent: dict[tuple[int, int], FloatArray] = {}
        for (source, target), coefficients in zip(
            node_of[demand.ends].tolist() if len(demand.ends) else [], demand.sent[number], strict=True
        ):
            if source != target:
                sent[source, target] = sent.get((source, target), np.zeros_like(coefficients)) + coefficients
        for (source, target), coefficients in sent.items():
            bandwidth, where = supply.bandwidth[source, target], (supply.nodes[source], supply.nodes[target])
            quality = float(greatest_multiple(coefficients[None, :], bandwidth)[0])
            take(f"link {where[0]}-{where[1]}", quality, point, where, coefficients, bandwidth)
    if (latency_s := latencies(demand, supply, node_of[None, :])[0]) > supply.latency_s_max:
        take("latency", 0.0, "", (), np.array([latency_s]), supply.latency_s_max)
    # Of two limits that are full at once, that of the whole node says more than that of its only operator.
    return sorted(found.values(), key=lambda one: (one.quality, one.what.startswith("one core")))


def usage(demand: Demand, supply: Supply, node_of: IntArray) -> float:
    """Returns the network usage at the profile: bytes in transit, rate x propagation over links, at the point where it is greatest."""
    if not len(demand.ends):
        return 0.0
    ends = node_of[demand.ends]
    return float((demand.sent.sum(axis=2) @ supply.propagation_s[ends[:, 0], ends[:, 1]]).max())


Profile = Mapping[str, Mapping[OperatorId, float]]
"""Target points by name: rows per second of each source."""
