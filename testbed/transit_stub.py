"""Generates a transit-stub network: backbone domains joined to each other, and stub domains attached to them.

After Zegura, Calvert and Bhattacharjee, "How to Model an Internetwork" (INFOCOM 1996), with the sizes of SBON (ICDE 2006), section
4.1: 10 transit domains of 5 routers, 3 stub domains on each of these routers, 10 routers in a stub domain on average, 1,550 routers in
all. Routers lie in a plane, and the latency of a wire is its length. Routes do not follow latency: they take the least sum of policy
weights, which keeps traffic of a domain inside it, never crosses a stub domain in transit, and prefers few transit domains. As on the
Internet, a route may therefore be longer than a detour through a third node.

The paper does not give the other parameters of its generator. The lengths here (above all those of access wires) were fitted to the
algorithms of its table 1 that use no cost space: OPTIMAL, IP MULTICAST, PRODUCER, CONSUMER and RANDOM come out near the paper's figures.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sbon.types import FloatArray

IntArray = npt.NDArray[np.int32]

_WEIGHT_INSIDE = 1.0
"""Weight of a wire within a domain: routes there count hops."""
_WEIGHT_ACCESS = 50.0
"""Weight of a wire from a stub domain to its transit router: above any path in a stub domain, so that no route leaves and re-enters it."""
_WEIGHT_BETWEEN = 20.0
"""Weight of a wire between transit domains: crossing a domain is cheaper than visiting another."""
_WEIGHT_TIES = 1e-6
"""Largest random addition to a weight, so that there is one best route between two routers, the same in both directions."""

_SIDE = 1000.0
"""Side of the square in which transit domains have their centres; all lengths are scaled at the end."""
_TRANSIT_RADIUS = 120.0
_STUB_RADIUS = 12.0
_ACCESS_LENGTH = 300.0
"""Distance from a transit router to the middle of a stub domain: half of this up to one and a half."""
_TRANSIT_EDGES = 0.6
"""Share of the pairs of routers in a transit domain that have a wire, besides those that connect it."""
_STUB_EDGES = 0.4
_BACKBONE_EDGES = 0.3
"""Share of the pairs of transit domains that have a wire, besides those that connect all of them."""


class TransitStub(NamedTuple):
    """A generated network; stub routers follow the transit routers."""

    rtt_ms: FloatArray
    """RTTs, (routers, routers)."""
    transit: list[int]
    """For each router, the transit domain that it is in or attached to."""
    stub: list[int]
    """For each router, its stub domain; -1 for transit routers."""
    before: IntArray
    """`before[a, b]` is the last router before `b` on the route from `a`, (routers, routers); negative where `a` is `b`."""

    def route(self, a: int, b: int) -> list[int]:
        """Returns the routers on the route from `a` to `b`, both included; the route back is the same."""
        way = [b]
        while way[-1] != a:
            way.append(int(self.before[a, way[-1]]))
        return way[::-1]


class _Wires:
    """The graph under construction."""

    def __init__(self) -> None:
        self.positions: list[tuple[float, float]] = []
        self.ends: list[tuple[int, int, float]] = []

    def add_domain(self, count: int, centre: tuple[float, float], radius: float, edge_share: float, rng: np.random.Generator) -> list[int]:
        """Adds a connected random graph of `count` routers around a point; returns the routers' numbers."""
        first = len(self.positions)
        for _ in range(count):
            angle, distance = 2 * np.pi * rng.random(), radius * np.sqrt(rng.random())
            self.positions.append((centre[0] + distance * np.cos(angle), centre[1] + distance * np.sin(angle)))
        routers = list(range(first, first + count))
        for index in range(1, count):
            self.join(routers[index], routers[int(rng.integers(index))], _WEIGHT_INSIDE)
        for a in range(count):
            for b in range(a + 1, count):
                if rng.random() < edge_share:
                    self.join(routers[a], routers[b], _WEIGHT_INSIDE)
        return routers

    def join(self, a: int, b: int, weight: float) -> None:
        """Adds a wire."""
        self.ends.append((a, b, weight))


def generate(
    rng: np.random.Generator,
    transit_domains: int = 10,
    transit_nodes: int = 5,
    stub_domains: int = 150,
    stub_nodes: int = 10,
    diameter_ms: float = 878.0,
) -> TransitStub:
    """Draws a network.

    Parameters
    ----------
    stub_nodes : mean size of a stub domain; there are stub_domains x stub_nodes routers in all of them
    diameter_ms : one-way latency of the route between the two routers farthest apart, to which all latencies are scaled
    """
    wires = _Wires()
    transit: list[int] = []
    backbones: list[list[int]] = []
    for domain in range(transit_domains):
        centre = (_SIDE * rng.random(), _SIDE * rng.random())
        backbones.append(wires.add_domain(transit_nodes, centre, _TRANSIT_RADIUS, _TRANSIT_EDGES, rng))
        transit += [domain] * transit_nodes
    _join_backbones(wires, backbones, rng)
    routers = [router for backbone in backbones for router in backbone]
    stub = [-1] * len(transit)
    for number, count in enumerate(_stub_sizes(stub_domains, stub_nodes, rng)):
        router = routers[number % len(routers)]
        x, y = wires.positions[router]
        angle, length = 2 * np.pi * rng.random(), _ACCESS_LENGTH * rng.uniform(0.5, 1.5)
        members = wires.add_domain(count, (x + length * np.cos(angle), y + length * np.sin(angle)), _STUB_RADIUS, _STUB_EDGES, rng)
        wires.join(members[int(rng.integers(count))], router, _WEIGHT_ACCESS)
        transit += [transit[router]] * count
        stub += [number] * count
    one_way, before = _routed_lengths(wires, rng)
    longest = float(one_way.max())
    return TransitStub(2 * one_way * (diameter_ms / longest) if longest > 0 else one_way, transit, stub, before)


def _stub_sizes(domains: int, mean: int, rng: np.random.Generator) -> list[int]:
    """Returns sizes between half the mean and one and a half of it, that add up to domains x mean."""
    low, high = max(1, mean // 2), mean + mean - max(1, mean // 2)
    sizes: list[int] = [int(size) for size in rng.integers(low, high + 1, domains)]
    while (missing := domains * mean - sum(sizes)) != 0:
        one = int(rng.integers(domains))
        sizes[one] = min(max(sizes[one] + (1 if missing > 0 else -1), low), high)
    return sizes


def _join_backbones(wires: _Wires, backbones: list[list[int]], rng: np.random.Generator) -> None:
    """Connects each transit domain to an earlier one, then a few more pairs."""

    def wire(a: int, b: int) -> None:
        wires.join(backbones[a][int(rng.integers(len(backbones[a])))], backbones[b][int(rng.integers(len(backbones[b])))], _WEIGHT_BETWEEN)

    for domain in range(1, len(backbones)):
        wire(domain, int(rng.integers(domain)))
    for a in range(len(backbones)):
        for b in range(a + 1, len(backbones)):
            if rng.random() < _BACKBONE_EDGES:
                wire(a, b)


def _routed_lengths(wires: _Wires, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Returns the length of the routes of least weight, (routers, routers), and the last router but one on each."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import dijkstra

    count = len(wires.positions)
    position = np.array(wires.positions)
    pairs = {(min(a, b), max(a, b)): weight for a, b, weight in wires.ends}
    ends = np.array(list(pairs), dtype=np.intp).reshape(-1, 2)
    length = np.full((count, count), np.inf)
    length[ends[:, 0], ends[:, 1]] = length[ends[:, 1], ends[:, 0]] = np.linalg.norm(position[ends[:, 0]] - position[ends[:, 1]], axis=1)
    weights = np.array(list(pairs.values())) + _WEIGHT_TIES * rng.random(len(pairs))
    graph = coo_matrix((weights, (ends[:, 0], ends[:, 1])), shape=(count, count)).tocsr()
    weight, before = dijkstra(graph, directed=False, return_predecessors=True)
    # Every route is the route to its last hop but one, plus a wire. Lengths are filled in order of weight, for all sources at once.
    order = np.argsort(weight, axis=1, kind="stable")
    result = np.zeros((count, count))
    sources = np.arange(count)
    for step in range(1, count):
        target = order[:, step]
        hop = before[sources, target]
        result[sources, target] = result[sources, hop] + length[hop, target]
    # The way back adds the same wires in another order, so the last digits may differ.
    symmetric: FloatArray = (result + result.T) / 2
    return symmetric, before.astype(np.int32)
